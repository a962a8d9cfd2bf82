"""Which launch call started a kernel, and which NVTX range was open on that thread at that moment.

GPU work runs late, sometimes by more than a step, so times of kernels and ranges are never compared: a kernel is tied
to its launch call by (process, correlation id), and the call to the ranges of its own thread.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from ...ingest.trace import LAUNCH_KINDS, Trace
from .columns import Bools, Ints, column

GRAPH_KIND = LAUNCH_KINDS.categories.to_list().index("graph")


@dataclass(frozen=True)
class LinkResult:
    """Kernels tied to launch calls, and graph replays told apart."""

    launch: Ints  # per kernel: row of Trace.launches, -1 = none
    launch_used: Bools  # per launch: at least one kernel or whole-graph row
    graph_launch: Ints  # per row of Trace.graph_launches: row of Trace.launches, -1 = none
    replay: Ints  # per kernel: dense number of its graph replay, -1 = launched on its own


def link_launches(trace: Trace) -> LinkResult:
    """Tie every kernel and whole-graph row to its launch call. Kernels without one are kept, with -1."""
    launches, kernels, graphs = trace.launches, trace.kernels, trace.graph_launches
    launch = find_rows(launches, kernels)
    graph_launch = find_rows(launches, graphs)
    used = np.zeros(launches.height, dtype=bool)
    used[launch[launch >= 0]] = True
    used[graph_launch[graph_launch >= 0]] = True
    return LinkResult(launch, used, graph_launch, number_replays(trace, launch))


def find_rows(launches: pl.DataFrame, activity: pl.DataFrame) -> Ints:
    """For each activity row, the row of the launch with its (process, correlation id), the first where several."""
    missing = np.full(activity.height, -1, dtype=np.int64)
    if launches.height == 0 or activity.height == 0:
        return missing
    keys, wanted = correlation_keys(launches, activity)
    order = np.arange(len(keys)) if bool(np.all(keys[1:] >= keys[:-1])) else np.argsort(keys, kind="stable")
    ordered = keys[order]
    place = np.minimum(np.searchsorted(ordered, wanted), len(ordered) - 1)
    known = column(activity, "correlation_id") > 0
    return np.where((ordered[place] == wanted) & known, order[place], missing)


def correlation_keys(launches: pl.DataFrame, activity: pl.DataFrame) -> tuple[Ints, Ints]:
    """(process, correlation id) of both frames as one comparable integer."""
    both = pl.concat([launches["process"], activity["process"]])
    process = both.rank("dense").cast(pl.Int64).to_numpy()
    correlation = np.concatenate([column(launches, "correlation_id"), column(activity, "correlation_id")])
    if len(correlation) and correlation.max() >= 1 << 44:
        correlation = pl.Series(correlation).rank("dense").cast(pl.Int64).to_numpy()
    keys = (process << 44) + correlation
    return keys[: launches.height], keys[launches.height :]


def number_replays(trace: Trace, launch: Ints) -> Ints:
    """Number the graph replays: kernels of one replay share the correlation id of the one graph launch.

    Where ids are absent, a repeat or decrease of the graph node id on a stream begins a new replay.
    """
    kernels = trace.kernels
    count = kernels.height
    replay = np.full(count, -1, dtype=np.int64)
    if count == 0:
        return replay
    node = column(kernels, "graph_node_id")
    correlation = column(kernels, "correlation_id")
    in_graph = node > 0
    if trace.launches.height:
        graph_kind = trace.launches["kind"].to_physical().to_numpy() == GRAPH_KIND
        in_graph |= graph_kind[np.maximum(launch, 0)] & (launch >= 0)
    in_graph |= shared_correlation(kernels)
    if not in_graph.any():
        return replay
    keyed = in_graph & (correlation > 0)
    if keyed.any():
        rows = np.flatnonzero(keyed)
        pairs = kernels.select("process", "correlation_id", "device_index")[rows]
        codes = pairs.select(pl.struct("process", "correlation_id", "device_index").rank("dense").alias("code"))
        replay[rows] = codes["code"].cast(pl.Int64).to_numpy() - 1
    loose = np.flatnonzero(in_graph & ~keyed)
    if len(loose):
        device = column(kernels, "device_index")[loose]
        order = np.argsort(device, kind="stable")
        fresh = np.ones(len(loose), dtype=bool)
        sorted_node, sorted_device = node[loose][order], device[order]
        fresh[1:] = (sorted_device[1:] != sorted_device[:-1]) | (sorted_node[1:] <= sorted_node[:-1])
        replay[loose[order]] = replay.max() + np.cumsum(fresh)
    return replay


def shared_correlation(kernels: pl.DataFrame) -> Bools:
    """Rows whose correlation id (>0) belongs to several kernels of one device: one graph launch, many kernels."""
    ids = column(kernels, "correlation_id")
    if bool(np.all(ids[1:] > ids[:-1])):  # every kernel has its own id, in order: no graph
        return np.zeros(len(ids), dtype=bool)
    many = kernels.select(
        (pl.len().over("process", "device_index", "correlation_id") > 1) & (pl.col("correlation_id") > 0)
    )
    return many.to_series().to_numpy()


@dataclass(frozen=True)
class ThreadIntervals:
    """Intervals of one thread that neither nest nor overlap, sorted by start: ``row`` says which range each is."""

    start: Ints
    end: Ints
    row: Ints


def enclosing_interval(intervals: ThreadIntervals, times: Ints) -> Ints:
    """For each time the index of the interval that holds it (start <= time < end), -1 where none does."""
    if len(intervals.start) == 0:
        return np.full(len(times), -1, dtype=np.int64)
    place = np.searchsorted(intervals.start, times, side="right") - 1
    inside = (place >= 0) & (times < intervals.end[np.maximum(place, 0)])
    return np.where(inside, place, -1)


def outermost(start: Ints, end: Ints) -> Bools:
    """Of intervals sorted by (start, -end): those that no earlier one still holds when they begin."""
    if len(start) == 0:
        return np.zeros(0, dtype=bool)
    reach = np.maximum.accumulate(end)
    keep = np.ones(len(start), dtype=bool)
    keep[1:] = start[1:] >= reach[:-1]
    return keep
