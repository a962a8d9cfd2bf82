"""Graph replays recorded as one row each: they take their place between the kernels as if they were one.

A replay that holds whole layers stands for the attention of a step; a replay between two eager attention launches
(piecewise graphs) stands for the GEMMs around them. What runs inside is not known, so such a row has no name, grid or
class of its own that reaches a report.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import polars as pl

from ...records.trace import Trace
from ..kernel_arrays import OP, Bools, Ints, KernelArrays, column
from ..launch_links import GRAPH_KIND, LinkResult

Values = TypeVar("Values", Ints, Bools)


def with_whole_graphs(trace: Trace, columns: KernelArrays, link: LinkResult) -> tuple[KernelArrays, LinkResult]:
    """Kernels and links with the rows of ``trace.graph_launches`` added in time order; unchanged without any."""
    graphs = trace.graph_launches
    extra = graphs.height
    if extra == 0:
        return with_lost_replays(trace, columns, link)
    start, end = column(graphs, "start_ns"), column(graphs, "end_ns")
    places = lane_places(columns)
    owners = list(zip(column(graphs, "device_index").tolist(), column(graphs, "process").tolist(), strict=True))
    for owner in owners:
        places.setdefault(owner, len(places))
    lane = np.array([places[owner] for owner in owners], dtype=np.int64)
    return insert_rows(columns, link, RowsToInsert(start, end, lane, link.graph_launch, np.arange(extra)), places)


def with_lost_replays(trace: Trace, columns: KernelArrays, link: LinkResult) -> tuple[KernelArrays, LinkResult]:
    """Where most graph launches left no GPU record at all: a row without duration in the place of each replay.

    It comes when its call has returned, behind the kernel launched before it on its thread and before the one launched
    after it. Only the order of such a row means something.
    """
    launches = trace.launches
    if launches.height == 0 or columns.count == 0:
        return columns, link
    graph = launches["kind"].to_physical().to_numpy() == GRAPH_KIND
    lost = np.flatnonzero(graph & ~link.launch_used)
    if len(lost) * 2 <= np.count_nonzero(graph):
        return columns, link
    thread, time = launches["thread"].to_numpy(), launches["start_ns"].to_numpy()
    process = launches["process"].to_numpy()
    first_kernel = np.full(launches.height, columns.count)
    tied = np.flatnonzero(link.launch >= 0)
    np.minimum.at(first_kernel, link.launch[tied], tied)
    order = np.lexsort((time, thread))
    ahead = first_kernel[order]
    block = np.concatenate([[True], thread[order][1:] != thread[order][:-1]]).cumsum()
    frame = pl.DataFrame({"block": block, "row": np.where(ahead < columns.count, ahead, -1)})
    row = pl.when(pl.col("row") >= 0).then("row").otherwise(None)
    known = frame.select(
        row.backward_fill().over("block").fill_null(-1).alias("next"),
        row.forward_fill().over("block").fill_null(-1).alias("previous"),
    )
    following, previous = np.full((2, launches.height), -1, dtype=np.int64)
    following[order], previous[order] = known["next"].to_numpy(), known["previous"].to_numpy()
    placed = lost[following[lost] >= 0]
    past = np.where(previous[placed] >= 0, columns.end[previous[placed]], 0)
    returned = np.maximum(launches["end_ns"].to_numpy()[placed], past)
    at = np.minimum(columns.start[following[placed]] - 1, returned)
    lane = columns.lane[following[placed]]
    keep = process[placed] == np.array(columns.lane_process)[lane]
    placed, at, lane = placed[keep], at[keep], lane[keep]
    return insert_rows(
        columns, link, RowsToInsert(at, at, lane, placed, np.full(len(placed), -1)), lane_places(columns)
    )


def lane_places(columns: KernelArrays) -> dict[tuple[int, int], int]:
    """Lane number of each (device, process)."""
    return {place: lane for lane, place in enumerate(zip(columns.lane_device, columns.lane_process, strict=True))}


@dataclass(frozen=True)
class RowsToInsert:
    """Rows to insert: times, lane, launch row, row of Trace.graph_launches (-1 = lost)."""

    start: Ints
    end: Ints
    lane: Ints
    launch: Ints
    graph_row: Ints


def insert_rows(
    columns: KernelArrays, link: LinkResult, extra_rows: RowsToInsert, places: dict[tuple[int, int], int]
) -> tuple[KernelArrays, LinkResult]:
    """Kernels and links with ``extra_rows`` among them in time order."""
    start, end, lane, extra = extra_rows.start, extra_rows.end, extra_rows.lane, len(extra_rows.start)
    if extra == 0:
        return columns, link
    order = np.argsort(np.concatenate([columns.start, start]), kind="stable")
    zero, none = np.zeros(extra, np.int64), np.full(extra, -1, np.int64)
    replays = int(link.replay.max(initial=-1)) + 1 + np.arange(extra)

    def joined(kernels: Values, graph_rows: Values) -> Values:
        return np.asarray(np.concatenate([kernels, graph_rows])[order])

    no = np.zeros(extra, dtype=bool)
    lanes = joined(columns.lane, lane)
    whole: Bools = joined(columns.opaque, ~no)
    attention = joined(columns.op, zero) == OP["attention"]
    op = joined(columns.op, np.full(extra, OP["gemm"]))
    op[holds_layers(lanes, attention & ~whole, whole)] = OP["attention"]
    mixed = replace(
        columns,
        start=joined(columns.start, start),
        end=joined(columns.end, end),
        name=joined(columns.name, zero),
        op=op,
        hint=joined(columns.hint, zero),
        hint_sure=joined(columns.hint_sure, no),
        few=joined(columns.few, no),
        many=joined(columns.many, no),
        exact_tokens=joined(columns.exact_tokens, no),
        load_time=joined(columns.load_time, no),
        named_rows=joined(columns.named_rows, zero),
        grid_x=joined(columns.grid_x, zero),
        grid_y=joined(columns.grid_y, zero),
        grid_z=joined(columns.grid_z, zero),
        lane=lanes,
        stream=joined(columns.stream, none),
        kernel_row=joined(columns.kernel_row, none),
        graph_row=joined(columns.graph_row, extra_rows.graph_row),
        opaque=whole,
        lane_device=tuple(device for device, _ in places),
        lane_process=tuple(process for _, process in places),
    )
    return mixed, replace(link, launch=joined(link.launch, extra_rows.launch), replay=joined(link.replay, replays))


def holds_layers(lane: Ints, attention: Bools, whole: Bools) -> Bools:
    """Whole-graph rows that hold attention: all but those separated by exactly one attention launch (piecewise)."""
    result = whole.copy()
    for number in np.unique(lane[whole]):
        rows = np.flatnonzero((lane == number) & (attention | whole))
        is_graph = whole[rows]
        padded = np.concatenate([[False, False], is_graph, [False, False]])
        before = ~padded[1:-3] & padded[:-4] & (np.arange(len(rows)) >= 2)  # graph, attention, this
        after = ~padded[3:-1] & padded[4:] & (np.arange(len(rows)) < len(rows) - 2)  # this, attention, graph
        result[rows[is_graph & (before | after)]] = False
    return result
