"""The yardstick: the columns that trace-analyze reads, by plain sqlite3 and numpy in one thread, and nothing else.

    python benchmarks/scan.py run.sqlite

No joins, no sorting, no checks; integers go from the cursor into one numpy matrix a table, the fastest of the plain ways
(``fetchmany`` into arrays and ``fetchall`` are slower). Texts are kept as Python lists.
"""

from __future__ import annotations

import sqlite3
import sys
from itertools import chain
from pathlib import Path

import numpy as np

GPU = "start end deviceId contextId streamId correlationId globalPid"
INTEGERS = {
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{GPU} demangledName shortName gridX gridY gridZ blockX blockY blockZ "
    "registersPerThread staticSharedMemory dynamicSharedMemory clusterX clusterY clusterZ graphNodeId graphId",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start end globalTid correlationId nameId",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{GPU} bytes copyKind srcDeviceId dstDeviceId graphNodeId",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{GPU} bytes graphNodeId",
    "NVTX_EVENTS": "start end globalTid endGlobalTid eventType domainId textId",
}
TEXTS = {"StringIds": "id value", "NVTX_EVENTS": "text"}


def columns_of(connection: sqlite3.Connection, table: str, wanted: str) -> list[str]:
    there = {row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')}
    return [column for column in wanted.split() if column in there]


def scan(path: Path) -> tuple[dict[str, np.ndarray], dict[str, list]]:
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
    integers, texts = {}, {}
    for table, wanted in INTEGERS.items():
        if columns := columns_of(connection, table, wanted):
            chosen = ", ".join(f"ifnull({column}, -1)" for column in columns)
            cells = chain.from_iterable(connection.execute(f"SELECT {chosen} FROM {table}"))
            integers[table] = np.fromiter(cells, np.int64).reshape(-1, len(columns))
    for table, wanted in TEXTS.items():
        if columns := columns_of(connection, table, wanted):
            texts[table] = connection.execute(f"SELECT {', '.join(columns)} FROM {table}").fetchall()
    connection.close()
    return integers, texts


if __name__ == "__main__":
    for table, rows in scan(Path(sys.argv[1]))[0].items():
        print(f"{table}: {len(rows):,} rows of {rows.shape[1]} columns")
