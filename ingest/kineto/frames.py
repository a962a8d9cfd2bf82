"""The frames of a Trace from the columns of a PyTorch-profiler trace."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from ...analysis.records.errors import CannotAnswerError
from ...analysis.records.trace import API_CALLS, COPIES, FRAMES, KERNELS, LAUNCHES, NAMES, RANGES, TEXTS, Schema, check
from ..api_names import GRAPH_LAUNCH, KERNEL_LAUNCH, kind_of_call, plain_name
from ..short_names import short_name
from .devices import find_devices, property_names
from .events import Columns

# These calls take the grid in threads, all others in blocks (HIP API reference, "Module management").
_GRID_IN_THREADS = frozenset({"hipExtModuleLaunchKernel", "hipHccModuleLaunchKernel"})
_COPY_KINDS = (
    ("memset", re.compile(r"memset|fillbuffer", re.IGNORECASE)),
    ("h2d", re.compile(r"HtoD|HostToDevice", re.IGNORECASE)),
    ("d2h", re.compile(r"DtoH|DeviceToHost", re.IGNORECASE)),
    ("d2d", re.compile(r"DtoD|DeviceToDevice", re.IGNORECASE)),
    ("p2p", re.compile(r"PtoP|peer", re.IGNORECASE)),
    ("h2h", re.compile(r"HtoH|HostToHost", re.IGNORECASE)),
)


@dataclass
class Frames:
    """What ``assemble`` found: the tables by name, and facts for the capture."""

    tables: dict[str, pl.DataFrame]
    session_start_utc_ns: int | None
    duration_ns: int | None
    gpus_present: tuple[str, ...]
    stream_captures: int  # calls that began to record a graph
    replayed_kernels: int  # kernels whose launch call is a graph launch
    rejected: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass
class _Text:
    """Texts of the trace, numbered; new ones can be added."""

    codes: dict[str, int]

    def code(self, text: str) -> int:
        return self.codes.setdefault(text, len(self.codes))

    def frame(self) -> pl.DataFrame:
        return pl.DataFrame({"text_id": range(len(self.codes)), "text": list(self.codes)}, schema=dict(TEXTS))


def assemble(columns: Columns, facts: Mapping[str, Any], source_name: str) -> Frames:
    """Build the frames; times become ns since the session start (the profiler's own start where it is recorded).

    Raises CannotAnswerError where no kernel has a time that can be true.
    """
    rejected: dict[str, int] = {}
    notes: list[str] = []
    frames = {
        kind: _sound(columns.frame(kind), kind, rejected)
        for kind in ("kernel", "copy", "call", "annotation", "gpu_annotation", "op")
    }
    if frames["kernel"].is_empty():
        why = "; ".join(f"{rows:,} rows: {reason}" for reason, rows in rejected.items() if reason.startswith("kernel "))
        raise CannotAnswerError(
            f"{source_name} has no kernel with a time that can be true ({why}). The profiler did not collect the GPU's "
            "times, or another program wrote the file: record it again, and check that other traces of this server have "
            "durations."
        )
    origin, duration = _session(columns, frames)
    frames = {kind: _shifted(frame, origin) for kind, frame in frames.items()}
    text = _Text(dict(columns.texts.codes))
    threads = _threads(columns)
    calls = _calls(frames["call"], text, threads)
    if not frames["call"].height:
        calls["launches"] = _launches_of_operators(frames, columns, text, threads)
    devices, index_of, device_notes = find_devices(frames, facts, calls["launches"], threads)
    notes += device_notes
    kernels = _kernels(frames["kernel"], calls, index_of)
    tables = {
        "names": _names(columns),
        "kernels": kernels,
        "copies": _copies(frames["copy"], text, index_of),
        "launches": calls["launches"],
        "api_calls": calls["api_calls"],
        "ranges": _ranges(frames, columns, text, threads, calls["launches"], index_of),
        "devices": devices,
    }
    tables["texts"] = text.frame()
    ordered = {name: _ordered(frame, FRAMES[name]) for name, frame in tables.items()}
    replays = calls["launches"].filter(pl.col("kind") == GRAPH_LAUNCH).select("process", "correlation_id").unique()
    return Frames(
        tables=ordered,
        session_start_utc_ns=_utc(facts.get("baseTimeNanoseconds"), origin),
        duration_ns=duration,
        gpus_present=tuple(name for name in property_names(facts) if name),
        stream_captures=sum("BeginCapture" in str(name) for name in columns.texts.codes),
        replayed_kernels=kernels.join(replays, on=["process", "correlation_id"], how="semi").height,
        rejected=rejected,
        notes=notes,
    )


def _sound(frame: pl.DataFrame, kind: str, rejected: dict[str, int]) -> pl.DataFrame:
    """``frame`` without events that have no start or a negative duration; a missing duration on the host is 0."""
    if frame.is_empty():
        return frame
    if kind not in ("kernel", "copy"):
        frame = frame.with_columns(pl.col("duration_ns").fill_null(0))
    for reason, bad in (
        (f"{kind} without a start or a duration", pl.col("start_ns").is_null() | pl.col("duration_ns").is_null()),
        (f"{kind} with a negative duration", pl.col("duration_ns") < 0),
        (f"{kind} whose timing was not collected", (pl.col("start_ns") == 0) & (pl.col("duration_ns") == 0)),
    ):
        kept = frame.filter(~bad)
        if kept.height < frame.height:
            rejected[reason] = frame.height - kept.height
        frame = kept
    return frame


def _session(columns: Columns, frames: Mapping[str, pl.DataFrame]) -> tuple[int, int | None]:
    """Start of the session (absolute ns) and its length: the profiler's own span where it holds every event's start."""
    starts = [int(frame["start_ns"].min()) for frame in frames.values() if frame.height]  # type: ignore[arg-type]
    ends = [int((frame["start_ns"] + frame["duration_ns"]).max()) for frame in frames.values() if frame.height]  # type: ignore[arg-type]
    first, last = min(starts), max(ends)
    if columns.span and columns.span[0] <= first:
        return columns.span[0], max(columns.span[1], last - columns.span[0])
    return first, last - first


def _shifted(frame: pl.DataFrame, origin: int) -> pl.DataFrame:
    if frame.is_empty():
        return frame
    return frame.with_columns(pl.col("start_ns") - origin).with_columns(
        (pl.col("start_ns") + pl.col("duration_ns")).alias("end_ns")
    )


def _utc(base: Any, origin: int) -> int | None:
    if isinstance(base, int):
        return base + origin
    # Traces without a base time count from 1970; small values are some other clock.
    return origin if origin > 1_000_000_000_000_000_000 else None


def _threads(columns: Columns) -> pl.DataFrame:
    """``code`` -> process and thread key. A thread id that does not fit 24 bits is numbered instead."""
    rows: list[tuple[int, int, int]] = []
    others: dict[tuple[Any, ...], int] = {}
    for rank, pid, tid in columns.threads.values():
        process = pid if isinstance(pid, int) and 0 <= pid < 1 << 39 else 0
        if rank:  # processes of different ranks may have the same number
            process = (rank << 24) | (process & 0xFFFFFF)
        if isinstance(tid, int) and 0 <= tid < 1 << 23:
            thread = tid
        else:
            thread = (1 << 23) + others.setdefault((rank, pid, tid), len(others))
        rows.append((rank, process, (process << 24) | thread))
    schema = {"rank": pl.Int64, "process": pl.Int64, "thread": pl.Int64}
    return pl.DataFrame(rows, schema=schema, orient="row").with_row_index("code")


def _with_thread(frame: pl.DataFrame, threads: pl.DataFrame) -> pl.DataFrame:
    """Replace the thread code by process and thread keys."""
    codes = frame["thread"]
    return frame.drop("thread").with_columns(threads["process"].gather(codes), threads["thread"].gather(codes))


def _calls(frame: pl.DataFrame, text: _Text, threads: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """``launches`` and ``api_calls``; ``threads_grid`` lists correlations of launches whose grid is in threads."""
    if frame.is_empty():
        empty = {name: pl.DataFrame(schema=dict(FRAMES[name])) for name in ("launches", "api_calls")}
        return {**empty, "threads_grid": pl.DataFrame(schema={"correlation_id": pl.Int64})}
    used = frame["text_id"].unique().to_list()
    words = list(text.codes)
    kinds = pl.DataFrame(
        {
            "text_id": pl.Series(used, dtype=pl.UInt32),
            "call_kind": [kind_of_call(words[code]) for code in used],
            "in_threads": [words[code] in _GRID_IN_THREADS for code in used],
            "plain": pl.Series([text.code(plain_name(words[code])) for code in used], dtype=pl.UInt32),
        }
    )
    calls = _with_thread(frame, threads).join(kinds, on="text_id", maintain_order="left")
    calls = calls.with_columns(
        _id("correlation").alias("correlation_id"), pl.col("plain").alias("text_id"), pl.col("call_kind").alias("kind")
    )
    launch = pl.col("call_kind").is_in([KERNEL_LAUNCH, GRAPH_LAUNCH])
    return {
        "launches": _as(calls.filter(launch), LAUNCHES),
        "api_calls": _as(calls.filter(~launch), API_CALLS),
        "threads_grid": calls.filter("in_threads").select("correlation_id"),
    }


def _launches_of_operators(
    frames: Mapping[str, pl.DataFrame], columns: Columns, text: _Text, threads: pl.DataFrame
) -> pl.DataFrame:
    """Stand-ins for launches where no runtime call is recorded: the operator that a kernel's ``External id`` names."""
    kernels, ops = frames["kernel"], frames["op"]
    if ops.is_empty():
        return pl.DataFrame(schema=dict(LAUNCHES))
    names = pl.Series([text.code(name) for name, _ in columns.ops.values()], dtype=pl.UInt32)
    ops = ops.filter(pl.col("external").is_not_null()).unique("external", keep="first", maintain_order=True)
    pairs = kernels.select("external", _id("correlation").alias("correlation_id")).unique("correlation_id")
    found = pairs.filter(pl.col("correlation_id") >= 0).join(ops, on="external")
    found = found.with_columns(names.gather(found["op_id"]).alias("text_id"), pl.lit(KERNEL_LAUNCH).alias("kind"))
    return _as(_with_thread(found, threads), LAUNCHES)


def _id(column: str) -> pl.Expr:
    """An id column with -1 for absent; the profiler writes 0 where there is none."""
    value = pl.col(column)
    return pl.when(value.is_null() | (value == 0)).then(-1).otherwise(value).cast(pl.Int64)


def _placed(frame: pl.DataFrame, index_of: pl.DataFrame) -> pl.DataFrame:
    """Rows of the GPU with their row of ``devices`` and their process."""
    known = frame.with_columns(pl.col("device").fill_null(-1))
    return known.join(index_of, on=["rank", "device"], maintain_order="left")


def _kernels(frame: pl.DataFrame, calls: Mapping[str, pl.DataFrame], index_of: pl.DataFrame) -> pl.DataFrame:
    frame = _placed(frame, index_of)
    node = _id("graph_node_id")
    kernels = frame.with_columns(
        pl.col("context", "stream").cast(pl.Int32, strict=False).fill_null(-1),
        _id("correlation").alias("correlation_id"),
        pl.col("registers", "shared_memory_bytes").cast(pl.Int32, strict=False),
        pl.lit(0, dtype=pl.Int32).alias("cluster_size"),
        node.alias("graph_node_id"),
        pl.when(node >= 0).then(_id("graph_id")).otherwise(-1).cast(pl.Int64).alias("graph_id"),
    )
    in_threads = kernels["correlation_id"].is_in(calls["threads_grid"]["correlation_id"].implode())
    if in_threads.any():
        kernels = kernels.with_columns(
            pl.when(in_threads & (pl.col(f"block_{axis}") > 0))
            .then(-(-pl.col(f"grid_{axis}") // pl.col(f"block_{axis}")))
            .otherwise(pl.col(f"grid_{axis}"))
            .cast(pl.Int32)
            .alias(f"grid_{axis}")
            for axis in "xyz"
        )
    return _as(kernels, KERNELS)


def _copies(frame: pl.DataFrame, text: _Text, index_of: pl.DataFrame) -> pl.DataFrame:
    if frame.is_empty():
        return pl.DataFrame(schema=dict(COPIES))
    words = list(text.codes)
    kind_of = {code: _copy_kind(words[code]) for code in frame["text_id"].unique().to_list()}
    frame = _placed(frame, index_of)
    return _as(
        frame.with_columns(
            pl.col("context", "stream").cast(pl.Int32, strict=False).fill_null(-1),
            _id("correlation").alias("correlation_id"),
            pl.col("text_id").replace_strict(kind_of, return_dtype=pl.String).alias("kind"),
            _id("graph_node_id").alias("graph_node_id"),
        ),
        COPIES,
    )


def _copy_kind(name: str) -> str:
    return next((kind for kind, pattern in _COPY_KINDS if pattern.search(name)), "other")


def _ranges(
    frames: Mapping[str, pl.DataFrame],
    columns: Columns,
    text: _Text,
    threads: pl.DataFrame,
    launches: pl.DataFrame,
    index_of: pl.DataFrame,
) -> pl.DataFrame:
    domain = pl.lit(text.code(""), dtype=pl.UInt32).alias("domain_text_id")
    nowhere = (pl.lit(-1, dtype=pl.Int32).alias("device_index"), pl.lit(-1, dtype=pl.Int32).alias("stream"))
    host = []
    if frames["annotation"].height:
        host.append(_with_thread(frames["annotation"], threads))
    if frames["op"].height:
        host.append(_shaped_operators(_with_thread(frames["op"], threads), columns, text, launches))
    parts = [
        _as(
            frame.with_columns(
                pl.col("thread").alias("end_thread"), domain, pl.lit("annotation").alias("kind"), *nowhere
            ),
            RANGES,
        )
        for frame in host
    ]
    gpu = frames["gpu_annotation"]
    if gpu.height:
        gpu = gpu.join(index_of, on=["rank", "device"], how="left", maintain_order="left").with_columns(
            pl.col("device_index").fill_null(-1),
            pl.col("stream").cast(pl.Int32, strict=False).fill_null(-1),
            pl.col("process").fill_null(0),
            pl.lit(-1, dtype=pl.Int64).alias("thread"),
            pl.lit(-1, dtype=pl.Int64).alias("end_thread"),
            domain,
            pl.lit("gpu_annotation").alias("kind"),
        )
        parts.append(_as(gpu, RANGES))
    return pl.concat(parts) if parts else pl.DataFrame(schema=dict(RANGES))


def _shaped_operators(ops: pl.DataFrame, columns: Columns, text: _Text, launches: pl.DataFrame) -> pl.DataFrame:
    """Operators that have input shapes and launch something on their thread, with the text emit_nvtx would give."""
    codes = pl.Series([_shape_text(name, dims, text) for name, dims in columns.ops.values()], dtype=pl.UInt32)
    ops = ops.with_columns(codes.gather(ops["op_id"]).alias("text_id")).filter(pl.col("text_id").is_not_null())
    if launches.is_empty():
        return ops.clear()
    kept = []
    for (thread,), group in ops.group_by("thread", maintain_order=True):
        starts = launches.filter(pl.col("thread") == thread)["start_ns"].sort().to_numpy()
        inside = np.searchsorted(starts, group["end_ns"].to_numpy()) - np.searchsorted(
            starts, group["start_ns"].to_numpy()
        )
        kept.append(group.filter(pl.Series(inside > 0)))
    return pl.concat(kept) if kept else ops


def _shape_text(name: str, dims: bytes, text: _Text) -> int | None:
    if not any(48 <= byte <= 57 for byte in dims):  # no digit: scalars only
        return None
    sizes = re.sub(r"\s+", "", dims.decode("utf-8", "replace")).replace(",", ", ")
    return text.code(f"{name}, sizes = {sizes}")


def _names(columns: Columns) -> pl.DataFrame:
    names = [str(name) for name in columns.names.codes]
    short = [short_name(name) for name in names]
    return pl.DataFrame({"name_id": range(len(names)), "name": names, "short_name": short}, schema=dict(NAMES))


def _as(frame: pl.DataFrame, schema: Schema) -> pl.DataFrame:
    """``frame`` with the columns of ``schema``, cast."""
    return frame.select(pl.col(column).cast(dtype) for column, dtype in schema.items())


def _ordered(frame: pl.DataFrame, schema: Schema) -> pl.DataFrame:
    """Rows sorted by their first time column and then all others, so that a file's row order never matters."""
    times = [column for column in ("start_ns", "time_ns") if column in frame.columns]
    if not times:
        return check(frame, schema, "frame")
    rest = [column for column in frame.columns if column not in times]
    return check(frame, schema, "frame").sort([*times, *rest])
