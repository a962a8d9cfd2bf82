"""Simulated captures for the benchmarks, made once and kept in a folder outside the repository.

    python benchmarks/make.py [--folder DIR] [--kernels 100000 --kernels 1000000 ...] [--kind eager ...]

Each is a busy vLLM server of ``fixtures.matrix.large``: decode steps with a new prompt every now and then.

| kind | kernels per launch call | NVTX | GPUs |
|---|---|---|---|
| graphs | a replay launches a whole step | one range a step | 1 |
| eager | one launch call for each kernel | a range for every layer-wise module | 1 |
| two-gpus | a replay launches a whole step | one range a step | 2, tensor parallel |

Beyond a million kernels *eager* and *two-gpus* are the capture of a million, several times one after the other.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

SIZES = (100_000, 1_000_000, 10_000_000)


@dataclass(frozen=True)
class Kind:
    """Changes to the run of ``large``, and how many kernels to ask it for, as a share of those wanted."""

    share: float
    markers: str = "vllm"
    changes: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


KINDS = {
    "graphs": Kind(1.036),
    "eager": Kind(1.036, "vllm_layerwise", MappingProxyType({"graphs": "none"})),
    "two-gpus": Kind(0.51, "vllm", MappingProxyType({"tensor_parallel": 2})),
}


SIMULATED_UP_TO = 1_000_000  # of other kinds than graphs, whose simulation takes a kilobyte of memory a kernel
PAUSE_NS = 1_000_000


def repeat_in_time(source: Path, target: Path, times: int) -> None:
    """A capture in which what ``source`` holds happens ``times`` over, one after the other, each with its own ids."""
    unfinished = target.with_suffix(".part")
    shutil.copyfile(source, unfinished)
    with closing(sqlite3.connect(unfinished, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        columns = {name: [row[1] for row in connection.execute(f"PRAGMA table_info({name})")] for name in tables}
        timed = [name for name in tables if {"start", "end"} <= set(columns[name])]
        spans = [
            connection.execute(f"SELECT min(start), max(end), max(rowid) FROM {name}").fetchone() for name in timed
        ]
        filled = {name: last for name, (_, _, last) in zip(timed, spans, strict=True) if last}
        length = max(span[1] for span in spans if span[2]) - min(span[0] for span in spans if span[2]) + PAUSE_NS
        calls = "CUPTI_ACTIVITY_KIND_RUNTIME"
        ids = connection.execute(f"SELECT max(correlationId) + 1 FROM {calls}").fetchone()[0]
        shift = {"start": length, "end": length, "correlationId": ids}
        for name, last in filled.items():
            for number in range(1, times):
                values = ", ".join(f'"{c}" + {number * shift[c]}' if c in shift else f'"{c}"' for c in columns[name])
                connection.execute(f"INSERT INTO {name} SELECT {values} FROM {name} WHERE rowid <= {last}")
    unfinished.replace(target)


def default_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "trace-analyze-benchmarks"


def capture_path(folder: Path, kind: str, kernels: int, seed: int = 7) -> Path:
    """The capture of this kind and size, made where it is not there yet."""
    path = folder / f"{kind}-{kernels}-{seed}.sqlite"
    if not path.exists():
        from trace_analyze.fixtures.matrix import large
        from trace_analyze.fixtures.simulator.serving import simulate

        folder.mkdir(parents=True, exist_ok=True)
        if kind != "graphs" and kernels > SIMULATED_UP_TO:
            repeat_in_time(capture_path(folder, kind, SIMULATED_UP_TO, seed), path, round(kernels / SIMULATED_UP_TO))
            return path
        made = KINDS[kind]
        config = replace(large(round(kernels * made.share), markers=made.markers, seed=seed), **made.changes)
        unfinished = path.with_suffix(".part")
        unfinished.unlink(missing_ok=True)
        simulate(config).write(unfinished)
        unfinished.replace(path)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=default_folder())
    parser.add_argument("--kernels", type=int, action="append", help=f"repeatable; default {SIZES}")
    parser.add_argument("--kind", choices=KINDS, action="append", help="repeatable; default all")
    options = parser.parse_args()
    for kernels in options.kernels or SIZES:
        for kind in options.kind or KINDS:
            path = capture_path(options.folder, kind, kernels)
            print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB", flush=True)


if __name__ == "__main__":
    main()
