"""The road from a SQLite export to a Trace, one part after another."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import polars as pl

from ..errors import NotACaptureError, TraceAnalyzeError
from ..sniff import NSYS_EXPORT, SQLITE_MAGIC
from ..trace import CaptureFacts, Trace, build_trace
from .calls import read_calls
from .database import Database, damaged
from .devices import read_places
from .evidence import gaps_in_evidence, nothing_on_gpu
from .facts import SelfDescription, read_facts
from .kernels import KERNEL_TABLE, Context, read_copies, read_graph_launches, read_kernels
from .metrics import read_gpu_metrics
from .ranges import read_ranges
from .rows import Notes
from .strings import Strings, TextPool, names_frame
from .timebase import find_time_base

NSYS_TABLES = (
    "StringIds",
    "CUPTI_ACTIVITY_KIND_",
    "TARGET_INFO_",
    "NVTX_EVENTS",
    "META_DATA_EXPORT",
    "EXPORT_META_DATA",
)
OPTIONAL_TABLES = (
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "NVTX_EVENTS",
    "TARGET_INFO_GPU",
    "TARGET_INFO_CUDA_DEVICE",
    "GPU_METRICS",
    "DIAGNOSTIC_EVENT",
    "META_DATA_CAPTURE",
    "StringIds",
)
# (a table that only this product has, what its database is)
OTHER_DATABASES = (
    ("op_instances", "a DLProf database"),
    ("read_only_kernels", "a DLProf database"),
    ("expert_systems_feedback", "a DLProf database"),
    ("CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL", "an nvprof database"),
    ("StringTable", "an nvprof database"),
    ("rocpd_kernelapi", "a ROCm rocpd database"),
    ("rocpd_string", "a ROCm rocpd database"),
)


def sniff(path: Path, head: bytes) -> bool:
    """Whether the file is a SQLite database; whose, its tables tell in ``read``."""
    return head.startswith(SQLITE_MAGIC) and path.is_file()


def read(path: Path, *, progress: Callable[[str], None] | None = None) -> Trace:
    """Read an Nsight Systems SQLite export.

    Raises ``NotACaptureError`` for another product's or a damaged database, ``CannotAnswerError`` where it holds
    neither kernels nor whole-graph launches.
    """
    say = progress or (lambda _: None)
    done: list[str] = []
    with Database(path) as database:
        try:
            _refuse_others(database)
            return _read(database, done, say)
        except TraceAnalyzeError:
            raise
        except (
            sqlite3.Error,
            pl.exceptions.PolarsError,
            OverflowError,
            ValueError,
            TypeError,
            KeyError,
            IndexError,
        ) as error:
            # Corruption can show as any of these, and only while rows are read.
            intact = f"Readable before that: {', '.join(done)}." if done else ""
            raise damaged(path, error, intact) from error


def _refuse_others(database: Database) -> None:
    name = database.original.name
    if not database.tables:
        raise NotACaptureError(
            f"{name} is a SQLite database without tables: the export did not finish. Run: {NSYS_EXPORT}"
        )
    for table, product in OTHER_DATABASES:
        if table.lower() in database.tables and database.find(KERNEL_TABLE, "TARGET_INFO_GPU") is None:
            raise _foreign(name, product)
    kernel_table = database.find(KERNEL_TABLE)
    if kernel_table is not None:
        columns = database.columns(kernel_table)
        if "_id_" in columns or ("start" not in columns and "name" in columns):
            raise _foreign(name, "an nvprof database")
    if not any(table.startswith(tuple(known.lower() for known in NSYS_TABLES)) for table in database.tables):
        shown = ", ".join(sorted(database.tables.values())[:5])
        raise _foreign(name, f"a SQLite database of another kind (tables: {shown}, ...)")


def _foreign(name: str, what: str) -> NotACaptureError:
    return NotACaptureError(
        f"{name} is {what}, not an Nsight Systems export. Expected tables: StringIds and CUPTI_ACTIVITY_KIND_KERNEL or "
        f"TARGET_INFO_GPU. Make one with: {NSYS_EXPORT}"
    )


def _read(database: Database, done: list[str], say: Callable[[str], None]) -> Trace:
    notes = Notes(sentences=list(database.notes))
    described = read_facts(database)
    places = read_places(database, notes)
    base = find_time_base(database, described.export, notes)
    context = Context(database, base, Strings(database), places, notes)

    def finished(what: str, rows: int) -> None:
        done.append(f"{rows:,} {what}")
        say(f"{what}: {rows:,}")

    kernels, names = read_kernels(context)
    finished("kernels", kernels.height)
    graph_launches = read_graph_launches(context)
    finished("graph launches", graph_launches.height)
    texts = TextPool()
    launches, api_calls = read_calls(context, texts)
    finished("launches and calls", launches.height + api_calls.height)
    end = _end_of_capture(base.duration_ns, kernels, launches)
    if kernels.is_empty() and graph_launches.is_empty():
        raise nothing_on_gpu(
            database.original.name,
            calls=launches.height + api_calls.height,
            nvtx=_has_rows(database, "NVTX_EVENTS"),
            rejected=sum(count for reason, count in notes.rejected.items() if reason.startswith(("kernel", "graph"))),
            diagnostics=described.diagnostics,
            partial=described.partial_export,
            tables=len(database.tables),
        )
    copies = read_copies(context)
    finished("copies", copies.height)
    ranges, marks = read_ranges(context, texts, end)
    finished("NVTX ranges and marks", ranges.height + marks.height)
    gpu_metrics = read_gpu_metrics(context)
    finished("GPU metric samples", gpu_metrics.height)
    devices = places.frame()
    opaque = not graph_launches.is_empty()
    return build_trace(
        _capture(database, described, context, devices),
        names=names_frame(names),
        texts=texts.frame(),
        kernels=kernels,
        launches=launches,
        api_calls=api_calls,
        copies=copies,
        graph_launches=graph_launches,
        ranges=ranges,
        marks=marks,
        gpu_metrics=gpu_metrics,
        devices=devices,
        gaps_in_evidence=gaps_in_evidence(
            nvtx=ranges.height + marks.height > 0,
            launches=launches.height,
            opaque_graphs=opaque,
            gpu_known=not devices["gpu_name"].has_nulls(),
            gpu_metrics=gpu_metrics.height > 0,
            partial=described.partial_export,
        ),
    )


def _capture(database: Database, described: SelfDescription, context: Context, devices: pl.DataFrame) -> CaptureFacts:
    return CaptureFacts(
        source_name=database.original.name,
        format="nsys_sqlite",
        product="Nsight Systems",
        product_version=described.product_version,
        schema_version=described.schema_version,
        session_start_utc_ns=context.base.session_start_utc_ns,
        duration_ns=context.base.duration_ns,
        graph_trace_mode=described.graph_mode,
        hardware_trace=described.hardware_trace,
        gpus_present=tuple(gpu.name for gpu in context.places.gpus if gpu.name),
        serving=described.serving,
        diagnostics=described.diagnostics,
        rejected_rows=dict(sorted(context.notes.rejected.items())),
        tables_missing=tuple(name for name in OPTIONAL_TABLES if database.find(name) is None),
        notes=tuple(context.notes.sentences),
    )


def _has_rows(database: Database, name: str) -> bool:
    table = database.find(name)
    return table is not None and database.has_rows(table)


def _end_of_capture(duration_ns: int | None, kernels: pl.DataFrame, launches: pl.DataFrame) -> int | None:
    if duration_ns is not None:
        return duration_ns
    ends = [int(str(frame["end_ns"].max())) for frame in (kernels, launches) if not frame.is_empty()]
    return max(ends, default=None)
