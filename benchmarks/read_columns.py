"""Roads from a million rows of CUPTI_ACTIVITY_KIND_KERNEL to columns, side by side.

    python benchmarks/read_columns.py [--rows 1000000] [--repeat 5]

Writes one capture to a temporary folder and reads the 23 columns that the reader of Nsight Systems needs by every road
that is installed, each run in a process of its own, the roads in turn so that a busy machine hurts all alike. Prints a
table of the best and median wall time, CPU time and peak memory, and stops when two roads disagree on what they read.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import numpy as np

TABLE = "CUPTI_ACTIVITY_KIND_KERNEL"
COLUMNS = [
    "start",
    "end",
    "deviceId",
    "contextId",
    "streamId",
    "correlationId",
    "globalPid",
    "demangledName",
    "shortName",
    "gridX",
    "gridY",
    "gridZ",
    "blockX",
    "blockY",
    "blockZ",
    "registersPerThread",
    "staticSharedMemory",
    "dynamicSharedMemory",
    "clusterX",
    "clusterY",
    "clusterZ",
    "graphNodeId",
    "graphId",
]
SELECT = ", ".join(f'"{column}"' for column in COLUMNS)
NULL = -1


def write_capture(path: Path, rows: int) -> None:
    """A capture of ``rows`` kernels of 60 names, schema of 2025.6."""
    from trace_analyze.fixtures.writers.nsys_writer import Capture

    dice = np.random.default_rng(1)
    duration = dice.integers(2_000, 20_000, rows)
    start = 5_000_000_000 + np.cumsum(duration + 300)
    kind = dice.integers(0, 60, rows)
    capture = Capture("2025.6")
    capture.gpu("h100")
    capture.kernel_columns(
        [f"void kernel_{number}<(int)64, (bool)1>(T1 *, int)" for number in range(60)],
        kind,
        start=start,
        end=start + duration,
        deviceId=0,
        correlationId=np.arange(1, rows + 1),
        gridX=kind * 8 + 1,
        dynamicSharedMemory=49_152,
    )
    capture.write(path)


def ranges(path: Path, parts: int) -> list[str]:
    """The query, cut into ranges of row numbers."""
    import sqlite3

    connection = sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)
    (last,) = connection.execute(f"SELECT max(rowid) FROM {TABLE}").fetchone()
    connection.close()
    step = -(-last // parts)
    return [
        f"SELECT {SELECT} FROM {TABLE} WHERE rowid BETWEEN {first} AND {first + step - 1}"
        for first in range(1, last + 1, step)
    ]


def checksum(columns: dict[str, np.ndarray]) -> list[int]:
    """One number per column, the same for every road; NULL counts as -1, order does not count."""
    return [
        int(np.sum(np.where(columns[name] == np.iinfo(np.int64).min, NULL, columns[name]), dtype=np.int64))
        for name in COLUMNS
    ]


def from_arrow(table) -> dict[str, np.ndarray]:
    return {
        name: table.column(name).combine_chunks().fill_null(NULL).to_numpy(zero_copy_only=False) for name in COLUMNS
    }


def road_pages(path: Path) -> dict[str, np.ndarray]:
    from trace_analyze.ingest.nsys.kernels import KERNEL_COLUMNS
    from trace_analyze.ingest.nsys.sqlite_pages.columns import read_columns
    from trace_analyze.ingest.nsys.sqlite_pages.database import Database

    wanted = {column.source: column for column in KERNEL_COLUMNS.values() if column.source in COLUMNS}
    with Database(path) as database:
        return read_columns(database, TABLE, wanted).integers


def road_sqlite3(path: Path) -> dict[str, np.ndarray]:
    import sqlite3

    connection = sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)
    cursor = connection.execute(f"SELECT {SELECT} FROM {TABLE}")
    chunks: list[list[np.ndarray]] = [[] for _ in COLUMNS]
    while rows := cursor.fetchmany(50_000):
        for chunk, cells in zip(chunks, zip(*rows, strict=True), strict=True):
            try:
                chunk.append(np.array(cells, dtype=np.int64))
            except TypeError:  # NULL among them
                chunk.append(np.array([NULL if cell is None else cell for cell in cells], dtype=np.int64))
    return {name: np.concatenate(chunk) for name, chunk in zip(COLUMNS, chunks, strict=True)}


def road_connectorx(path: Path, parts: int) -> dict[str, np.ndarray]:
    import connectorx

    # A bare colon gets lost and a plain path is opened read-write: hence the escaped URI.
    source = "sqlite://" + quote(f"file:{quote(str(path))}?mode=ro&immutable=1", safe="/")
    return from_arrow(connectorx.read_sql(source, ranges(path, parts), return_type="arrow"))


def road_adbc(path: Path, parts: int) -> dict[str, np.ndarray]:
    from concurrent.futures import ThreadPoolExecutor

    import adbc_driver_sqlite.dbapi
    import pyarrow

    def read(query: str):
        with adbc_driver_sqlite.dbapi.connect(f"{path.as_uri()}?mode=ro&immutable=1") as connection:
            cursor = connection.cursor()
            cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": "65536"})
            cursor.execute(query)
            table = cursor.fetch_arrow_table()
            cursor.close()
            return table

    with ThreadPoolExecutor(parts) as pool:
        return from_arrow(pyarrow.concat_tables(pool.map(read, ranges(path, parts))))


def road_polars_adbc(path: Path) -> dict[str, np.ndarray]:
    import polars

    uri = f"sqlite:///{path}"
    frame = polars.read_database_uri(f"SELECT {SELECT} FROM {TABLE}", uri, engine="adbc")
    return {name: frame[name].fill_null(NULL).to_numpy() for name in COLUMNS}


ROADS: dict[str, Callable[[Path], dict[str, np.ndarray]]] = {
    "pages of the table (ours)": road_pages,
    "connectorx, 2 parts": lambda path: road_connectorx(path, 2),
    "connectorx, 1 part": lambda path: road_connectorx(path, 1),
    "ADBC, 2 connections": lambda path: road_adbc(path, 2),
    "ADBC, 1 connection": lambda path: road_adbc(path, 1),
    "polars.read_database_uri, ADBC": road_polars_adbc,
    "sqlite3 and numpy": road_sqlite3,
}


def run_here(road: str, path: Path) -> None:
    """One road in this process; prints its figures as JSON."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    begin = time.perf_counter()
    columns = ROADS[road](path)
    wall = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(json.dumps({"wall": wall, "cpu": cpu, "peak": after.ru_maxrss / 1024, "sum": checksum(columns)}))


def measure(path: Path, repeat: int) -> dict[str, list[dict]]:
    """All roads in turn, ``repeat`` times."""
    results: dict[str, list[dict]] = {road: [] for road in ROADS}
    for _ in range(repeat):
        for road in ROADS:
            command = [sys.executable, __file__, "--road", road, "--path", str(path)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                results[road].append(json.loads(done.stdout))
            elif "ModuleNotFoundError" not in done.stderr:
                print(f"{road}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
    return {road: runs for road, runs in results.items() if runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--road", choices=ROADS, help=argparse.SUPPRESS)
    parser.add_argument("--path", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.road:
        run_here(options.road, options.path)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.sqlite"
        write_capture(path, options.rows)
        results = measure(path, options.repeat)
    sums = {tuple(run["sum"]) for runs in results.values() for run in runs}
    if len(sums) != 1:
        raise SystemExit("the roads disagree on what they read")
    print(f"{options.rows:,} rows, {len(COLUMNS)} columns, {options.repeat} runs of each road\n")
    print("| road | best s | median s | CPU s (median) | peak MiB |")
    print("|---|---|---|---|---|")
    for road, runs in results.items():
        wall = [run["wall"] for run in runs]
        cpu = statistics.median(run["cpu"] for run in runs)
        peak = max(run["peak"] for run in runs)
        print(f"| {road} | {min(wall):.2f} | {statistics.median(wall):.2f} | {cpu:.2f} | {peak:.0f} |")


if __name__ == "__main__":
    main()
