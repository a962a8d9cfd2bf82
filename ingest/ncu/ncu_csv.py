"""Nsight Compute results as a capture of their own: CSV pages (``csv_tables`` has what they look like).

They have no timeline: ``read`` lays the launches end to end and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import polars as pl

from ...analysis.records.errors import NotACaptureError
from ...analysis.records.trace import Trace
from ..sniff import SQLITE_MAGIC
from .csv_tables import HEADER, PROFILER_LINE, REPORT_MAGIC, csv_tables, decode, launches_of, sqlite_tables
from .launches_as_trace import trace_of
from .report_file import launches_of_report

FORMAT = "ncu_csv"


def sniff(path: Path, head: bytes) -> bool:
    """Whether ``head`` holds Nsight Compute's CSV header, or its ``==PROF==`` lines before one."""
    text = decode(head)
    return bool(HEADER.search(text) or (PROFILER_LINE.search(text) and b"\x00" not in head[:4]))


def read(path: Path, *, progress: Callable[[str], None] | None = None) -> Trace:
    """A Trace of the profiled launches laid end to end in their order, without a timeline.

    Raises NotACaptureError when no launch is understood and CannotAnswerError when none has a duration.
    """
    launches = read_ncu(path)
    if progress:
        progress(f"{launches.height:,} profiled launches read")
    return trace_of(path, launches, FORMAT)


def read_ncu(path: Path) -> pl.DataFrame:
    """One row per profiled launch of a CSV, an ``.ncu-rep`` or a SQLite with imported CSV rows.

    Columns: ``ncu_metrics.SCHEMA`` (bytes, executed FLOPs, ns, Hz, percent; null with ``reason`` where the report does
    not hold them). Raises NotACaptureError when the file is something else or holds no launch.
    """
    try:
        with path.open("rb") as file:
            head = file.read(16)
    except OSError as error:
        raise NotACaptureError(f"Cannot read {path}: {error.strerror or error}.") from error
    if head.startswith(REPORT_MAGIC):
        return launches_of_report(path)
    if head.startswith(SQLITE_MAGIC):
        tables: Iterable[Iterable[list[str]]] = sqlite_tables(path)
    else:
        tables = csv_tables(decode(path.read_bytes()))
    return launches_of(tables, path.name)
