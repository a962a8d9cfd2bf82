"""Which launch call started a kernel, and which NVTX range was open on that thread at that moment.

GPU work runs late, sometimes by more than a step, so times of kernels and ranges are never compared: a kernel is tied
to its launch call by (process, correlation id), and the call to the ranges of its own thread.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from ..numeric.intervals import latest_end_so_far
from ..records.trace import LAUNCH_KINDS, Trace
from .kernel_arrays import Bools, Ints, column

TABLE_ROWS_PER_LAUNCH, TABLE_ROWS = 16, 1 << 20  # a lookup table of ids may be this much larger than the launches
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
    missing = np.full(activity.height, -1, dtype=np.int32)
    if launches.height == 0 or activity.height == 0:
        return missing
    keys, wanted = correlation_keys(launches, activity)
    known = column(activity, "correlation_id") > 0
    low, high = int(keys.min()), int(keys.max())
    if high - low < TABLE_ROWS_PER_LAUNCH * len(keys) + TABLE_ROWS:  # ids are dense: look them up in a table
        table = np.full(high - low + 1, -1, dtype=np.int32)
        table[keys[::-1] - low] = np.arange(len(keys), dtype=np.int32)[::-1]
        inside = known & (wanted >= low) & (wanted <= high)
        if inside.all():
            return table[wanted - low]
        return np.where(inside, table[np.where(inside, wanted - low, 0)], missing)
    order = np.arange(len(keys)) if bool(np.all(keys[1:] >= keys[:-1])) else np.argsort(keys, kind="stable")
    ordered = keys[order]
    place = np.minimum(np.searchsorted(ordered, wanted), len(ordered) - 1)
    return np.where((ordered[place] == wanted) & known, order[place], missing).astype(np.int32)


def correlation_keys(launches: pl.DataFrame, activity: pl.DataFrame) -> tuple[Ints, Ints]:
    """(process, correlation id) of both frames as one integer, dense where the ids are."""
    own, wanted = column(launches, "correlation_id"), column(activity, "correlation_id")
    processes = pl.concat([launches["process"].unique(), activity["process"].unique()]).unique().sort()
    if len(processes) == 1:
        return own, wanted
    low = min(int(own.min()), int(wanted.min()))
    width = max(int(own.max()), int(wanted.max())) - low + 1
    if width * len(processes) >= 1 << 62:  # ids too large to combine: number them
        numbered = pl.Series(np.concatenate([own, wanted])).rank("dense").cast(pl.Int64).to_numpy()
        own, wanted, low, width = numbered[: len(own)], numbered[len(own) :], 0, len(numbered) + 1
    known = processes.to_numpy()
    of_launch, of_activity = (np.searchsorted(known, column(frame, "process")) for frame in (launches, activity))
    return of_launch * width + own - low, of_activity * width + wanted - low


def number_replays(trace: Trace, launch: Ints) -> Ints:
    """Number the graph replays: kernels of one replay share the correlation id of the one graph launch.

    Where the launch call was lost, the shared id tells; where ids are absent, a repeat or decrease of the graph node
    id on a device begins a new replay.
    """
    kernels = trace.kernels
    replay = np.full(kernels.height, -1, dtype=np.int32)
    if kernels.height == 0:
        return replay
    used = 0
    if trace.launches.height:
        by_graph = trace.launches["kind"].to_physical().to_numpy() == GRAPH_KIND
        linked = launch >= 0
        replay = np.where(linked & by_graph[np.maximum(launch, 0)], launch, replay)
        used = trace.launches.height
    lost = np.flatnonzero((launch < 0) & (column(kernels, "correlation_id") > 0))
    if len(lost):
        shared = shared_correlation(kernels.select("process", "correlation_id", "device_index", "graph_node_id")[lost])
        replay[lost] = np.where(shared >= 0, used + shared, replay[lost])
        used += int(shared.max(initial=-1)) + 1
    node = column(kernels, "graph_node_id")
    loose = np.flatnonzero((node > 0) & (replay < 0))
    if len(loose):
        device = column(kernels, "device_index")[loose]
        order = np.argsort(device, kind="stable")
        fresh = np.ones(len(loose), dtype=bool)
        sorted_node, sorted_device = node[loose][order], device[order]
        fresh[1:] = (sorted_device[1:] != sorted_device[:-1]) | (sorted_node[1:] <= sorted_node[:-1])
        replay[loose[order]] = used + np.cumsum(fresh) - 1
    return replay


def shared_correlation(kernels: pl.DataFrame) -> Ints:
    """A number per correlation id that several kernels of one device share (one graph launch), -1 for single kernels."""
    key = pl.struct("process", "device_index", "correlation_id")
    coded = kernels.select(key.rank("dense").alias("code"), (pl.len().over(key) > 1).alias("many"))
    return coded.select(pl.when("many").then(pl.col("code").cast(pl.Int64) - 1).otherwise(-1)).to_series().to_numpy()


@dataclass(frozen=True)
class ThreadIntervals:
    """Intervals of one thread, none inside another, sorted by start: ``row`` says which range each is."""

    start: Ints
    end: Ints
    row: Ints


def enclosing_interval(intervals: ThreadIntervals, times: Ints) -> Ints:
    """For each time the index of the interval that holds it (start <= time < end), the last begun where two overlap.

    -1 where none does.
    """
    if len(intervals.start) == 0:
        return np.full(len(times), -1, dtype=np.int64)
    place = np.searchsorted(intervals.start, times, side="right") - 1
    inside = (place >= 0) & (times < intervals.end[np.maximum(place, 0)])
    return np.where(inside, place, -1)


def outermost(start: Ints, end: Ints) -> Bools:
    """Of intervals sorted by (start, -end): those that do not lie wholly inside an earlier one."""
    if len(start) == 0:
        return np.zeros(0, dtype=bool)
    reach = latest_end_so_far(end)
    keep = np.ones(len(start), dtype=bool)
    keep[1:] = end[1:] > reach[:-1]
    return keep
