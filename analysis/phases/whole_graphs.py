"""Graph replays recorded as one row each: they take their place between the kernels as if they were one.

A replay that holds whole layers stands for the attention of a step; a replay between two eager attention launches
(piecewise graphs) stands for the GEMMs around them. What runs inside is not known, so such a row has no name, grid or
class of its own that reaches a report.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...ingest.trace import Trace
from .columns import OP, Bools, Columns, Ints, column
from .link import LinkResult


def with_whole_graphs(trace: Trace, columns: Columns, link: LinkResult) -> tuple[Columns, LinkResult]:
    """Columns and links with the rows of ``trace.graph_launches`` added in time order; unchanged without any."""
    graphs = trace.graph_launches
    extra = graphs.height
    if extra == 0:
        return columns, link
    start, end = column(graphs, "start_ns"), column(graphs, "end_ns")
    order = np.argsort(np.concatenate([columns.start, start]), kind="stable")
    places = {place: lane for lane, place in enumerate(zip(columns.lane_device, columns.lane_process, strict=True))}
    owners = list(zip(column(graphs, "device_index").tolist(), column(graphs, "process").tolist(), strict=True))
    for owner in owners:
        places.setdefault(owner, len(places))
    lane = np.array([places[owner] for owner in owners], dtype=np.int64)
    zero, none = np.zeros(extra, np.int64), np.full(extra, -1, np.int64)
    replays = int(link.replay.max(initial=-1)) + 1 + np.arange(extra)

    def joined(kernels: Ints, graph_rows: Ints) -> Ints:
        return np.concatenate([kernels, graph_rows])[order]

    no = np.zeros(extra, dtype=bool)
    lanes = joined(columns.lane, lane)
    whole = joined(np.zeros(columns.count, bool), ~no)
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
        exact_tokens=joined(columns.exact_tokens, no),
        load_time=joined(columns.load_time, no),
        grid_x=joined(columns.grid_x, zero),
        grid_y=joined(columns.grid_y, zero),
        grid_z=joined(columns.grid_z, zero),
        lane=lanes,
        stream=joined(columns.stream, none),
        kernel_row=joined(columns.kernel_row, none),
        graph_row=joined(columns.graph_row, np.arange(extra)),
        lane_device=tuple(device for device, _ in places),
        lane_process=tuple(process for _, process in places),
    )
    return mixed, replace(link, launch=joined(link.launch, link.graph_launch), replay=joined(link.replay, replays))


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
