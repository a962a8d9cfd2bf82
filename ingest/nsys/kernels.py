"""Kernels, copies and whole-graph launches: the work of the GPUs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from ..trace import COPIES, COPY_KINDS, GRAPH_LAUNCHES, KERNELS, empty
from .columns import read_columns
from .database import Database
from .devices import Places
from .rows import Notes, in_order, keep_valid_times, narrowed, to_process
from .strings import Strings, dense, short_name
from .timebase import TimeBase, latest_start

KERNEL_TABLE = "CUPTI_ACTIVITY_KIND_KERNEL"
GRAPH_TABLE = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"

# column of the Trace -> column of the export
PLACE = {
    "start_ns": "start",
    "end_ns": "end",
    "device": "deviceId",
    "context": "contextId",
    "stream": "streamId",
    "correlation_id": "correlationId",
    "process": "globalPid",
}
KERNEL_COLUMNS = {
    **PLACE,
    "demangled": "demangledName",
    "short": "shortName",
    "grid_x": "gridX",
    "grid_y": "gridY",
    "grid_z": "gridZ",
    "block_x": "blockX",
    "block_y": "blockY",
    "block_z": "blockZ",
    "registers": "registersPerThread",
    "static_shared": "staticSharedMemory",
    "dynamic_shared": "dynamicSharedMemory",
    "cluster_x": "clusterX",
    "cluster_y": "clusterY",
    "cluster_z": "clusterZ",
    "graph_node_id": "graphNodeId",
    "graph_id": "graphId",
}
# ENUM_CUDA_MEMCPY_OPER: arrays live in device memory, unified-memory migrations move as their namesakes do
COPY_KIND_OF = {1: "h2d", 2: "d2h", 3: "h2d", 4: "d2h", 5: "d2d", 6: "d2d", 7: "d2d", 8: "d2d", 9: "h2h", 10: "p2p"}
COPY_KIND_OF |= {11: "h2d", 12: "d2h", 13: "d2d"}


@dataclass
class Context:
    """What the readers of one file share."""

    database: Database
    base: TimeBase
    strings: Strings
    places: Places
    notes: Notes


def read_events(context: Context, table: str, columns: dict[str, str], *, where: str = "") -> pl.DataFrame:
    """Columns of an event table as Int64 under the Trace's names; missing ones are null."""
    source = read_columns(context.database, table, dict.fromkeys(columns.values(), pl.Int64), where=where)
    return source.rename({source_name: name for name, source_name in columns.items()})


def read_kernels(context: Context) -> tuple[pl.DataFrame, list[tuple[str, str]]]:
    """The KERNELS frame and the (name, short name) of each name id."""
    table = context.database.find(KERNEL_TABLE)
    if table is None:
        return empty(KERNELS), []
    frame = _valid(read_events(context, table, KERNEL_COLUMNS), "kernel", context, zero_is_invalid=True)
    names, name_ids = _names(frame, context)
    frame = placed(frame, context).with_columns(
        pl.Series("name_id", name_ids),
        shared_memory_bytes=pl.col("static_shared").fill_null(0) + pl.col("dynamic_shared").fill_null(0),
        cluster_size=_cluster_size(frame),
        **{name: pl.col(name).replace(0, -1) for name in ("graph_node_id", "graph_id")},
    )
    frame = _without_repeats(in_order(narrowed(frame, KERNELS, "kernel", context.notes)), context.notes)
    return frame, names


def _cluster_size(frame: pl.DataFrame) -> pl.Series:
    if frame["cluster_x"].null_count() == frame.height:
        return pl.Series("cluster_size", np.zeros(frame.height, dtype=np.int64))
    sizes = [frame[f"cluster_{axis}"].fill_null(0).to_numpy() for axis in "xyz"]
    return pl.Series("cluster_size", sizes[0] * sizes[1] * sizes[2])


def _without_repeats(frame: pl.DataFrame, notes: Notes) -> pl.DataFrame:
    """Rows that repeat the row before them in every column are one kernel exported twice."""
    start = frame["start_ns"].to_numpy()
    same = start[1:] == start[:-1]
    if not same.any():
        return frame
    for name in frame.columns[1:]:
        column = frame[name].to_numpy()
        same &= column[1:] == column[:-1]
    notes.reject("kernel: the same row twice", int(same.sum()))
    return frame.filter(pl.Series(np.concatenate(([True], ~same)))) if same.any() else frame


def _names(frame: pl.DataFrame, context: Context) -> tuple[list[tuple[str, str]], np.ndarray]:
    """Distinct (name, short name) pairs, and the name id of each row."""
    demangled = frame["demangled"].fill_null(-1).to_numpy()
    short = frame["short"].fill_null(-1).to_numpy()
    demangled = np.where(demangled < 0, short, demangled) if (demangled < 0).any() else demangled
    distinct, first_codes = dense(demangled)
    # The short name follows from the demangled one: look at one row of each.
    example = np.zeros(distinct.size, dtype=np.int64)
    example[first_codes] = short
    texts = context.strings.values(np.concatenate((distinct, example)))
    dangling = [int(key) for key in distinct.tolist() if key not in texts]
    if dangling:
        context.notes.say(f"{len(dangling)} kernel name ids have no text in StringIds; shown as numbers.")
    pairs: dict[str, str] = {}
    place = np.empty(distinct.size, dtype=np.uint32)
    order: dict[str, int] = {}
    for row, (key, short_key) in enumerate(zip(distinct.tolist(), example.tolist(), strict=True)):
        name = texts.get(key) or (f"kernel {key} (name not recorded)" if key >= 0 else "kernel (name not recorded)")
        if name not in order:
            order[name] = len(order)
            given = texts.get(short_key, "")
            pairs[name] = given if given and given != name else short_name(name)
        place[row] = order[name]
    return list(pairs.items()), place[first_codes] if distinct.size else np.empty(0, dtype=np.uint32)


def _valid(frame: pl.DataFrame, what: str, context: Context, *, zero_is_invalid: bool = False) -> pl.DataFrame:
    latest = latest_start(frame["start_ns"].drop_nulls().to_numpy(), context.base)
    return keep_valid_times(
        frame, what, context.notes, offset=context.base.offset, latest=latest, zero_is_invalid=zero_is_invalid
    )


def placed(frame: pl.DataFrame, context: Context) -> pl.DataFrame:
    """``frame`` with ``process`` as the process key and ``device_index`` from (process, deviceId)."""
    process = to_process(frame["process"])
    process = context.places.known_process(process)
    device = frame["device"].fill_null(-1).to_numpy()
    index = context.places.device_index(process, device)
    return frame.with_columns(
        pl.Series("process", process),
        pl.Series("device_index", index),
        correlation_id=pl.col("correlation_id").fill_null(-1),
    )


def read_graph_launches(context: Context) -> pl.DataFrame:
    """The GRAPH_LAUNCHES frame: whole-graph rows, whose kernels are not recorded."""
    table = context.database.find(GRAPH_TABLE)
    if table is None:
        return empty(GRAPH_LAUNCHES)
    columns = {**PLACE, "graph_id": "graphId", "graph_exec_id": "graphExecId"}
    frame = placed(_valid(read_events(context, table, columns), "graph launch", context), context)
    return in_order(narrowed(frame, GRAPH_LAUNCHES, "graph launch", context.notes))


def read_copies(context: Context) -> pl.DataFrame:
    """The COPIES frame: memory copies and fills."""
    frames = []
    columns = {**PLACE, "bytes": "bytes", "graph_node_id": "graphNodeId"}
    table = context.database.find("CUPTI_ACTIVITY_KIND_MEMCPY")
    if table is not None:
        extra = {"copy_kind": "copyKind", "source": "srcDeviceId", "target": "dstDeviceId"}
        frame = read_events(context, table, {**columns, **extra})
        frames.append(frame.with_columns(kind=_copy_kind()).drop(list(extra)))
    table = context.database.find("CUPTI_ACTIVITY_KIND_MEMSET")
    if table is not None:
        kind = pl.lit("memset", dtype=COPY_KINDS).alias("kind")
        frames.append(read_events(context, table, columns).with_columns(kind))
    if not frames:
        return empty(COPIES)
    frame = _valid(pl.concat(frames), "copy", context)
    frame = placed(frame, context).with_columns(
        pl.col("bytes").fill_null(0), graph_node_id=pl.col("graph_node_id").replace(0, -1)
    )
    return in_order(narrowed(frame, COPIES, "copy", context.notes))


def _copy_kind() -> pl.Expr:
    kind = pl.col("copy_kind").replace_strict(COPY_KIND_OF, default="other", return_dtype=COPY_KINDS)
    other_device = (pl.col("copy_kind") == 8) & pl.col("source").is_not_null() & pl.col("target").is_not_null()
    between = other_device & (pl.col("source") != pl.col("target"))
    return pl.when(between.fill_null(False)).then(pl.lit("p2p", dtype=COPY_KINDS)).otherwise(kind)
