"""Kernels, copies and whole-graph launches: the work of the GPUs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from ...analysis.records.trace import COPIES, COPY_KINDS, GRAPH_LAUNCHES, KERNELS, empty
from ..short_names import short_name
from .context import Context, place, valid
from .rows import Columns, Notes, in_order, to_frame
from .sqlite_pages.columns import Integers, Wanted, read_columns
from .strings import dense

KERNEL_TABLE = "CUPTI_ACTIVITY_KIND_KERNEL"
GRAPH_TABLE = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"

PLACE = {
    "start_ns": Wanted("start", "i64"),
    "end_ns": Wanted("end", "i64"),
    "device": Wanted("deviceId", "i32"),
    "context": Wanted("contextId", "i32"),
    "stream": Wanted("streamId", "i32"),
    "correlation_id": Wanted("correlationId", "i64"),
    "process": Wanted("globalPid", "i64"),
}
KERNEL_COLUMNS = {
    **PLACE,
    "demangled": Wanted("demangledName", "i32"),
    "short": Wanted("shortName", "i32"),
    "mangled": Wanted("mangledName", "i32"),
    "grid_x": Wanted("gridX", "i32"),
    "grid_y": Wanted("gridY", "i32"),
    "grid_z": Wanted("gridZ", "i32"),
    "block_x": Wanted("blockX", "i32"),
    "block_y": Wanted("blockY", "i32"),
    "block_z": Wanted("blockZ", "i32"),
    "registers": Wanted("registersPerThread", "i32"),
    "static_shared": Wanted("staticSharedMemory", "i32"),
    "shared_memory_bytes": Wanted("dynamicSharedMemory", "i32"),
    "cluster_size": Wanted("clusterX", "i32"),
    "cluster_y": Wanted("clusterY", "i32"),
    "cluster_z": Wanted("clusterZ", "i32"),
    "graph_node_id": Wanted("graphNodeId", "i64"),
    "graph_id": Wanted("graphId", "i64"),
}
# ENUM_CUDA_MEMCPY_OPER: arrays live in device memory, unified-memory migrations move as their namesakes do
COPY_KIND_OF = {1: "h2d", 2: "d2h", 3: "h2d", 4: "d2h", 5: "d2d", 6: "d2d", 7: "d2d", 8: "d2d", 9: "h2h", 10: "p2p"}
DEVICE_TO_DEVICE, PEER_TO_PEER = 8, 10
COPY_TABLES = (("CUPTI_ACTIVITY_KIND_MEMCPY", True), ("CUPTI_ACTIVITY_KIND_MEMSET", False))
COPY_KIND_OF |= {11: "h2d", 12: "d2h", 13: "d2d"}


def read_kernels(context: Context) -> tuple[pl.DataFrame, list[tuple[str, str]]]:
    """The KERNELS frame and the (name, short name) of each name id."""
    table = context.database.find(KERNEL_TABLE)
    if table is None:
        return empty(KERNELS), []
    wanted = KERNEL_COLUMNS
    if "demangledname" in context.database.columns(table):
        wanted = {name: column for name, column in wanted.items() if name != "mangled"}
    columns = read_columns(context.database, table, wanted).integers
    columns = valid(columns, "kernel", context, on_gpu=True, zero_is_invalid=True)
    names, columns["name_id"] = _names(columns, context)
    place(columns, context)
    static, dynamic = columns.pop("static_shared"), columns["shared_memory_bytes"]
    columns["shared_memory_bytes"] = np.maximum(static, 0) + np.maximum(dynamic, 0)
    columns["cluster_size"] = _cluster_size(columns)
    columns["graph_node_id"] = zero_is_absent(columns["graph_node_id"])
    columns["graph_id"] = zero_is_absent(columns["graph_id"])
    frame = to_frame(columns, KERNELS, "kernel", context.notes)
    return _without_repeats(in_order(frame), context.notes), names


def zero_is_absent(ids: Integers) -> Integers:
    """Old exports hold 0 where newer ones hold NULL."""
    if ids.strides == (0,) or not (ids == 0).any():
        return ids
    return np.where(ids == 0, -1, ids)


def _cluster_size(columns: Columns) -> Integers:
    """Blocks per cluster; 0 where there is none or the export does not say."""
    axes = [columns.pop(name) for name in ("cluster_size", "cluster_y", "cluster_z")]
    if axes[0].strides == (0,):
        return np.zeros(axes[0].size, dtype=np.int32)
    size: Integers = np.maximum(axes[0], 0) * np.maximum(axes[1], 0) * np.maximum(axes[2], 0)
    return size


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


def _names(columns: Columns, context: Context) -> tuple[list[tuple[str, str]], npt.NDArray[np.uint32]]:
    """Distinct (name, short name) pairs, and the name id of each row."""
    demangled, short = columns.pop("demangled"), columns.pop("short")
    mangled = columns.pop("mangled", None)
    for other in (mangled, short):
        if other is not None and demangled.size and int(demangled.min()) < 0:
            demangled = np.where(demangled < 0, other, demangled)
    distinct, codes = dense(demangled)
    example = np.zeros(distinct.size, dtype=np.int64)  # the short name follows from the other: look at one row of each
    example[codes] = short
    texts = context.strings.values(np.concatenate((distinct, example)))
    dangling = sum(key not in texts for key in distinct.tolist())
    if dangling:
        context.notes.say(f"{dangling} kernel name ids have no text in StringIds; they are shown as numbers.")
    pairs: dict[str, str] = {}
    for key, short_key in zip(distinct.tolist(), example.tolist(), strict=True):
        name = texts.get(key) or _unknown_name(key)
        given = texts.get(short_key, "")
        pairs.setdefault(name, given if given and given != name else short_name(name))
    order = {name: place for place, name in enumerate(pairs)}
    ids = [order[texts.get(key) or _unknown_name(key)] for key in distinct.tolist()]
    return list(pairs.items()), np.array(ids, dtype=np.uint32)[codes]


def _unknown_name(key: int) -> str:
    return f"kernel {key} (name not recorded)" if key >= 0 else "kernel (name not recorded)"


def read_graph_launches(context: Context) -> pl.DataFrame:
    """The GRAPH_LAUNCHES frame: whole-graph rows, whose kernels are not recorded."""
    table = context.database.find(GRAPH_TABLE)
    if table is None:
        return empty(GRAPH_LAUNCHES)
    wanted = {**PLACE, "graph_id": Wanted("graphId", "i64"), "graph_exec_id": Wanted("graphExecId", "i64")}
    columns = valid(read_columns(context.database, table, wanted).integers, "graph launch", context, on_gpu=True)
    place(columns, context)
    return in_order(to_frame(columns, GRAPH_LAUNCHES, "graph launch", context.notes))


def read_copies(context: Context) -> pl.DataFrame:
    """The COPIES frame: memory copies and fills."""
    frames = [_copies_of(context, table, is_copy) for table, is_copy in COPY_TABLES]
    return in_order(pl.concat(frames))


def _copies_of(context: Context, name: str, is_copy: bool) -> pl.DataFrame:
    table = context.database.find(name)
    if table is None:
        return empty(COPIES)
    wanted = {**PLACE, "bytes": Wanted("bytes", "i64"), "graph_node_id": Wanted("graphNodeId", "i64")}
    if is_copy:
        wanted |= {
            "copy_kind": Wanted("copyKind", "i32"),
            "source": Wanted("srcDeviceId", "i32"),
            "target": Wanted("dstDeviceId", "i32"),
        }
    columns = valid(read_columns(context.database, table, wanted).integers, "copy", context, on_gpu=True)
    place(columns, context)
    columns["graph_node_id"] = zero_is_absent(columns["graph_node_id"])
    columns["bytes"] = np.maximum(columns["bytes"], 0)
    if is_copy:
        columns["kind"] = _copy_kind(columns.pop("copy_kind"), columns.pop("source"), columns.pop("target"))
    else:
        columns["kind"] = pl.Series(["memset"], dtype=COPY_KINDS).new_from_index(0, columns["bytes"].size)
    return to_frame(columns, COPIES, "copy", context.notes)


def _copy_kind(kind: Integers, source: Integers, target: Integers) -> pl.Series:
    between = (kind == DEVICE_TO_DEVICE) & (source >= 0) & (target >= 0) & (source != target)
    kind = np.where(between, PEER_TO_PEER, kind)
    distinct, codes = dense(kind)
    words = [COPY_KIND_OF.get(key, "other") for key in distinct.tolist()]
    return pl.Series(words, dtype=COPY_KINDS).gather(codes)
