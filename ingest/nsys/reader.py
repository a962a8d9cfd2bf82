"""The road from a SQLite export to a Trace, one part after another."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from ...analysis.records.errors import CannotAnswerError, NotACaptureError, TraceAnalyzeError
from ...analysis.records.trace import CaptureFacts, Trace, build_trace
from ..sniff import NSYS_EXPORT, SQLITE_MAGIC
from .calls import opaque_launches, read_calls
from .context import Context
from .devices import read_places
from .evidence import gaps_in_evidence, nothing_on_gpu
from .facts import SelfDescription, read_facts
from .kernels import KERNEL_TABLE, read_copies, read_graph_launches, read_kernels
from .metrics import read_gpu_metrics
from .ranges import read_ranges
from .rows import Notes
from .sqlite_pages.database import Database, damaged, identifier, is_sound
from .strings import Strings, TextPool, names_frame
from .timebase import find_time_base
from .vocabulary import vocabulary

OWN_TABLES = (
    "stringids",
    "cupti_activity_kind_",
    "target_info_",
    "nvtx_events",
    "meta_data_export",
    "export_meta_data",
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


def sniff(path: Path, head: bytes) -> bool:
    """Whether the file is a SQLite database; whose, its tables tell in ``read``."""
    return head.startswith(SQLITE_MAGIC) and path.is_file()


@dataclass
class _Progress:
    """Which parts have been read: for the user, and for the message where reading fails."""

    say: Callable[[str], None]
    done: str = ""

    def finished(self, what: str, rows: int) -> None:
        part = f"{rows:,} {what}"
        self.done = f"{self.done}, {part}" if self.done else part
        self.say(part)


def read(path: Path, *, progress: Callable[[str], None] | None = None) -> Trace:
    """Read an Nsight Systems SQLite export.

    Raises ``NotACaptureError`` for another product's or a damaged database, ``CannotAnswerError`` where it holds
    neither kernels nor whole-graph launches.
    """
    with Database(path) as database:
        return trace_of(database, progress)


def trace_of(database: Database, progress: Callable[[str], None] | None = None) -> Trace:
    """The Trace of an open database; see ``read``."""
    steps = _Progress(progress or (lambda _: None))
    try:
        _refuse_others(database)
        return _read(database, steps)
    except TraceAnalyzeError:
        raise
    except Exception as error:  # corruption can show as anything, and only while rows are read
        intact = f"Readable before that: {steps.done}." if steps.done else ""
        if isinstance(error, sqlite3.Error) or not is_sound(database):
            raise damaged(database.original, error, intact) from error
        if isinstance(error, MemoryError):
            raise CannotAnswerError(f"Not enough memory to read {database.original.name}. {intact}".strip()) from error
        raise NotACaptureError(
            f"{database.original.name} holds something this tool does not understand "
            f"({type(error).__name__}: {error}). {intact} Please report it; the traceback is the cause of this error."
        ) from error


def _refuse_others(database: Database) -> None:
    name = database.original.name
    if not database.tables:
        raise NotACaptureError(
            f"{name} is a SQLite database without tables: the export did not finish. Run: {NSYS_EXPORT}"
        )
    kernels = database.find(KERNEL_TABLE)
    for table, product in vocabulary()["other_databases"].items():
        if table.lower() in database.tables and kernels is None and database.find("TARGET_INFO_GPU") is None:
            raise _foreign(name, product)
    if kernels is not None:
        columns = database.columns(kernels)
        if "_id_" in columns or ("name" in columns and "demangledname" not in columns and "shortname" not in columns):
            raise _foreign(name, "an nvprof database")
        missing = sorted({"start", "end"} - set(columns))
        if missing:
            raise _foreign(name, f"a database whose {kernels} lacks the column {' and '.join(missing)}")
    if not any(table.startswith(OWN_TABLES) for table in database.tables):
        shown = ", ".join(sorted(database.tables.values())[:5])
        raise _foreign(name, f"a SQLite database of another kind (tables: {shown})")


def _foreign(name: str, what: str) -> NotACaptureError:
    return NotACaptureError(
        f"{name} is {what}, not an Nsight Systems export. Expected tables: StringIds and CUPTI_ACTIVITY_KIND_KERNEL or "
        f"TARGET_INFO_GPU. Make one with: {NSYS_EXPORT}"
    )


def _read(database: Database, steps: _Progress) -> Trace:
    notes = Notes(sentences=list(database.notes))
    described = read_facts(database)
    context = Context(
        database,
        find_time_base(database, described.export, notes),
        Strings(database),
        read_places(database, notes),
        notes,
    )
    kernels, names = read_kernels(context)
    steps.finished("kernels", kernels.height)
    graph_launches = read_graph_launches(context)
    steps.finished("whole-graph launches", graph_launches.height)
    texts = TextPool()
    launches, api_calls = read_calls(context, texts, context.places.single_process())
    steps.finished("launches", launches.height)
    steps.finished("other CUDA calls", api_calls.height)
    if kernels.is_empty() and graph_launches.is_empty():
        raise _nothing_on_gpu(context, described, launches.height + api_calls.height)
    copies = read_copies(context)
    steps.finished("copies", copies.height)
    ranges, marks = read_ranges(context, texts, _end_of_capture(context, kernels, launches))
    steps.finished("NVTX ranges", ranges.height)
    steps.finished("NVTX marks", marks.height)
    gpu_metrics = read_gpu_metrics(context)
    steps.finished("GPU metric samples", gpu_metrics.height)
    devices = context.places.frame()
    gaps = gaps_in_evidence(
        nvtx=ranges.height + marks.height > 0,
        launches=launches.height,
        opaque_graphs=graph_launches.height + opaque_launches(launches, kernels),
        gpu_known=not devices["gpu_name"].has_nulls(),
        gpu_metrics=gpu_metrics.height > 0,
        partial=described.partial_export,
    )
    capture = _capture(context, described, _graph_mode(described, kernels, graph_launches, notes))
    return build_trace(
        capture,
        gaps_in_evidence=gaps,
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
    )


def _nothing_on_gpu(context: Context, described: SelfDescription, calls: int) -> TraceAnalyzeError:
    gpu_rows = ("kernel", "graph launch")
    nvtx = context.database.find("NVTX_EVENTS")
    return nothing_on_gpu(
        context.database.original.name,
        calls=calls,
        nvtx=nvtx is not None and context.database.has_rows(nvtx),
        rejected={reason: rows for reason, rows in context.notes.rejected.items() if reason.startswith(gpu_rows)},
        diagnostics=described.diagnostics,
        partial=described.partial_export,
        tables=len(context.database.tables),
    )


def _graph_mode(
    described: SelfDescription, kernels: pl.DataFrame, graph_launches: pl.DataFrame, notes: Notes
) -> str | None:
    """How graphs were traced: what the rows show, else what was recorded."""
    if not graph_launches.is_empty():
        return "graph"
    if (kernels["graph_node_id"] >= 0).any():
        if described.graph_mode == "graph":
            notes.say("Graph tracing is recorded as 'graph', but kernels of graph nodes were found: taken as 'node'.")
        return "node"
    return described.graph_mode


def _capture(context: Context, described: SelfDescription, graph_mode: str | None) -> CaptureFacts:
    database = context.database
    return CaptureFacts(
        source_name=database.original.name,
        format="nsys_sqlite",
        product="Nsight Systems",
        product_version=described.product_version,
        schema_version=described.schema_version,
        session_start_utc_ns=context.base.session_start_utc_ns,
        duration_ns=context.base.duration_ns,
        graph_trace_mode=graph_mode,
        hardware_trace=_hardware_trace(database, described),
        gpus_present=tuple(gpu.name for gpu in context.places.gpus if gpu.name),
        serving=described.serving,
        diagnostics=described.diagnostics,
        rejected_rows=dict(sorted(context.notes.rejected.items())),
        tables_missing=tuple(name for name in OPTIONAL_TABLES if database.find(name) is None),
        notes=tuple(context.notes.sentences),
    )


def _hardware_trace(database: Database, described: SelfDescription) -> bool | None:
    """Whether the GPU itself took the times: as the profiler said, else by a column that only this fills."""
    table = database.find(KERNEL_TABLE)
    if described.hardware_trace is not None or table is None:
        return described.hardware_trace
    column = database.columns(table).get("qmdlastctadone")
    if column is None:
        return None
    query = f"SELECT {identifier(column)} FROM {identifier(table)} LIMIT 1"
    first = database.connection.execute(query).fetchone()
    return True if first is not None and first[0] is not None else None


def _end_of_capture(context: Context, kernels: pl.DataFrame, launches: pl.DataFrame) -> int | None:
    if context.base.duration_ns is not None:
        return context.base.duration_ns
    ends = [int(frame["end_ns"].to_numpy().max()) for frame in (kernels, launches) if not frame.is_empty()]
    return max(ends, default=None)
