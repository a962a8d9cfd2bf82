"""Why a device was idle: each idle interval gets one cause, decided by the operation that ended it.

The operation that ends an interval had a launch call on some thread. In order:

1. ``between_requests``: the interval ends before a prefill step and nobody was decoding (or nothing runs after it);
2. ``host_sync``: that launch call came after the device had gone idle, and its thread came out of a synchronising
   call (or a copy to the host that it waited for) only after the device had gone idle: it could not run ahead;
3. ``launch_bound``: that launch call came after the device had gone idle (the host was late), or the operation was
   queued and only the dispatch of a queued kernel, up to 10 us, passed;
4. ``waiting_rank``: the operation was queued and other devices of its group were busy;
5. ``unknown``: no launch call is recorded, or it was queued and something else held it back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import polars as pl

from ..numeric.grouping import places_of, rows_by_value, split_by
from ..numeric.intervals import Intervals, Times, latest_end_so_far, merge
from ..numeric.row_chunks import stretches
from ..records.tables import IDLE_CAUSES
from ..records.trace import Trace
from .device_kernels import DeviceKernels
from .group_steps import GroupSteps, chain_decode_steps

MAX_DISPATCH_NS = 10_000  # between kernels that are already queued; graph nodes show 1 to 2 us, eager kernels a few
MIN_BETWEEN_REQUESTS_NS = 1_000_000  # a shorter pause before a prefill is the host's work, not a lack of requests
MIN_UNKNOWN_BETWEEN_REQUESTS_NS = 20_000_000  # the same where it is unknown whether anybody was decoding
MAX_MATES_MERGED_EACH = 7  # of a larger group the devices are merged once, not for each device anew
CAUSES: tuple[str, ...] = tuple(IDLE_CAUSES.categories.to_list())
LAUNCH_BOUND, HOST_SYNC, WAITING_RANK, BETWEEN_REQUESTS, UNKNOWN = range(5)
Codes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class IdleIntervals:
    """Idle intervals of one device with their cause (code in IDLE_CAUSES).

    ``late`` marks those that ended with a launch call the host made only after the device had gone idle, ``thread`` is
    the thread of that call (-1 = no launch call recorded).
    """

    intervals: Intervals
    cause: Codes
    late: npt.NDArray[np.bool_]
    thread: Times

    def ns_by_cause(self) -> dict[str, int]:
        """Summed length per cause, ns; every cause is present."""
        lengths = self.intervals.lengths
        return {name: int(lengths[self.cause == code].sum()) for code, name in enumerate(CAUSES)}

    def of_cause(self, code: int) -> Intervals:
        """The intervals of one cause."""
        chosen = self.cause == code
        return Intervals(self.intervals.starts[chosen], self.intervals.ends[chosen])


@dataclass(frozen=True)
class DeviceSteps:
    """Steps of one device by start; ``workless`` marks a prefill step that no decoding request waited for.

    Its value is the shortest idle before it that counts as a lack of requests, -1 where somebody waited.
    """

    start_ns: Times
    reach_ns: Times  # latest end of this and all earlier steps
    workless_after_ns: Times


@dataclass
class CalledOperations:
    """Graph replays or copies by device with the calls that asked for them, joined when first asked for."""

    operations: pl.DataFrame
    calls: pl.DataFrame
    _joined: Callable[[int], pl.DataFrame] | None = None

    def of_device(self, device_index: int) -> pl.DataFrame:
        """start_ns of each operation, call_start, call_end and thread of its call; sorted by the first two."""
        if self._joined is None:
            columns = ["process", "correlation_id"]
            times = (pl.col("start_ns").alias("call_start"), pl.col("end_ns").alias("call_end"))
            mine = self.operations.select("start_ns", "device_index", *columns)
            calls = self.calls.head(0) if mine.is_empty() else self.calls
            first = calls.select(*columns, *times, "thread").unique(subset=columns, keep="first", maintain_order=True)
            called = mine.join(first, on=columns, how="inner").sort("start_ns", "call_start")
            self._joined = split_by(called, "device_index")
        return self._joined(device_index)


@dataclass(frozen=True)
class IdleContext:
    """What deciding a cause needs beside the idle intervals, prepared once for all devices."""

    launch_start_ns: Times
    launch_end_ns: Times
    launch_thread: Times
    blocking: Mapping[int, Times]  # by thread: rising ends of its calls that waited for the device
    operations: tuple[CalledOperations, ...]  # what ends an idle interval where no kernel does
    steps: Mapping[int, DeviceSteps]
    mates: Mapping[int, tuple[int, ...]]  # device_index -> the other devices of its group
    pipeline: frozenset[int]
    together: dict[tuple[int, ...], Intervals] = field(default_factory=dict, repr=False)  # busy time of large groups

    def others_busy(self, device_index: int, busy: Mapping[int, Intervals]) -> list[Intervals]:
        """When the other devices of a device's group worked; in a large group when any worked, itself included: asked
        only about time in which the device itself was idle, that is the same."""
        mates = [d for d in self.mates.get(device_index, ()) if d in busy]
        if len(mates) <= MAX_MATES_MERGED_EACH:
            return [busy[d] for d in mates]
        group = tuple(sorted((device_index, *mates)))
        if group not in self.together:
            self.together[group] = merge(busy[d] for d in group)
        return [self.together[group]]

    @staticmethod
    def build(trace: Trace, groups: list[GroupSteps], steps: pl.DataFrame, group_frame: pl.DataFrame) -> IdleContext:
        """Prepare from the whole capture; ``groups`` are the usable steps, ``steps`` all of them."""
        workless = {g.group: _workless_steps(g) for g in groups}
        mates: dict[int, tuple[int, ...]] = {}
        pipeline: set[int] = set()
        for devices, kind in group_frame.select("devices", "kind").iter_rows():
            for d in devices:
                mates[d] = tuple(other for other in devices if other != d)
                if kind == "pipeline_parallel":
                    pipeline.add(d)
        by_device = {
            int(mine["device_index"][0]): _device_steps(mine, workless)
            for mine in steps.partition_by("device_index", maintain_order=True)
        }
        return IdleContext(
            launch_start_ns=trace.launches["start_ns"].to_numpy(),
            launch_end_ns=trace.launches["end_ns"].to_numpy(),
            launch_thread=trace.launches["thread"].to_numpy(),
            blocking=_blocking_calls(trace),
            operations=(
                CalledOperations(trace.graph_launches, trace.launches),
                CalledOperations(trace.copies, trace.api_calls),
            ),
            steps=by_device,
            mates=mates,
            pipeline=frozenset(pipeline),
        )


def find_idle(
    context: IdleContext,
    kernels: DeviceKernels | None,
    device_index: int,
    free: Intervals,
    busy: Mapping[int, Intervals],
) -> IdleIntervals:
    """Give each interval of ``free`` (what the device neither computed nor copied in) its cause."""
    begin, end = free.starts, free.ends
    operations = _operations(context, kernels, device_index)
    cause = np.full(len(free), UNKNOWN, dtype=np.uint8)
    known, late, short = (np.zeros(len(free), dtype=bool) for _ in range(3))
    thread = np.full(len(free), -1, dtype=np.int64)
    for some in stretches(len(free)):  # nothing but the answers is kept of millions of calls
        call = _next_calls(operations, end[some])
        known[some], short[some] = call.known, end[some] - begin[some] <= MAX_DISPATCH_NS
        late[some] = call.known & (call.end_ns > begin[some])
        thread[some] = np.where(call.known, call.thread, -1)
        cause[some][late[some] | (call.known & short[some])] = LAUNCH_BOUND
        rows = np.flatnonzero(late[some])
        cause[some][rows[_last_blocking_end(context.blocking, call, rows) > begin[some][rows]]] = HOST_SYNC
    # A queued operation waited for the other ranks. In a pipeline the host of a stage blocks on the stage before it;
    # without launches, busy ranks are all there is.
    may_wait = ~known | (~late & ~short)
    if device_index in context.pipeline:
        may_wait |= cause == HOST_SYNC
    rows = np.flatnonzero(may_wait)
    waits = rows[_mates_are_busy(Intervals(begin[rows], end[rows]), context.others_busy(device_index, busy))]
    cause[waits] = WAITING_RANK
    long = np.flatnonzero(free.lengths >= MIN_BETWEEN_REQUESTS_NS)
    unserved = long[_between_requests(context.steps.get(device_index), begin[long], end[long])]
    sure = np.zeros(len(free), dtype=bool)
    sure[waits] = ~known[waits] | late[waits]
    cause[unserved[~sure[unserved]]] = BETWEEN_REQUESTS
    return IdleIntervals(free, cause, late, thread)


def _mates_are_busy(idle: Intervals, others: list[Intervals]) -> npt.NDArray[np.bool_]:
    """For each idle interval, whether other devices worked for at least half of it."""
    mates = merge([each.near(idle) for each in others])
    return mates.measure_within(idle.starts, idle.ends) * 2 >= idle.lengths if others else np.zeros(len(idle), bool)


@dataclass(frozen=True)
class _Calls:
    """The launch call of the operation that ended each idle interval."""

    known: npt.NDArray[np.bool_]
    start_ns: Times
    end_ns: Times
    thread: Times


@dataclass(frozen=True)
class _Operations:
    """Kernels, whole graphs or copies of a device in time order, and the rows of their launch calls (-1 = none)."""

    start_ns: Times
    launch: npt.NDArray[np.integer]
    call_start_ns: Times
    call_end_ns: Times
    call_thread: Times


def _operations(context: IdleContext, kernels: DeviceKernels | None, device_index: int) -> list[_Operations]:
    """Kernels, then whole graphs, then copies: what an interval may end with, in this order."""
    found = []
    if kernels is not None and len(kernels.start_ns) and len(context.launch_start_ns):
        calls = (context.launch_start_ns, context.launch_end_ns, context.launch_thread)
        found.append(_Operations(kernels.start_ns, kernels.launch, *calls))
    for operations in context.operations:
        called = operations.of_device(device_index)
        if called.height:
            times = (called[name].to_numpy() for name in ("call_start", "call_end", "thread"))
            found.append(_Operations(called["start_ns"].to_numpy(), np.arange(called.height), *times))
    return found


def _next_calls(operations: list[_Operations], end: Times) -> _Calls:
    """The call of the operation that starts exactly where each interval ends."""
    known = np.zeros(len(end), dtype=bool)
    start_ns, end_ns, thread = (np.zeros(len(end), dtype=np.int64) for _ in range(3))
    for each in operations:
        open_yet = np.flatnonzero(~known)
        row = np.minimum(np.searchsorted(each.start_ns, end[open_yet]), len(each.start_ns) - 1)
        launch = np.where(each.start_ns[row] == end[open_yet], each.launch[row], -1)
        at, launch = open_yet[launch >= 0], launch[launch >= 0]
        start_ns[at], end_ns[at] = each.call_start_ns[launch], each.call_end_ns[launch]
        thread[at] = each.call_thread[launch]
        known[at] = True
    return _Calls(known, start_ns, end_ns, thread)


def _blocking_calls(trace: Trace) -> dict[int, Times]:
    """By thread: ends of the calls after which it knew the device to be done: synchronisations, and copies to the host
    it waited for."""
    calls = trace.api_calls
    syncs = calls.filter(pl.col("kind").cast(pl.String) == "sync").select("thread", "end_ns")
    to_host = trace.copies.filter(pl.col("kind").cast(pl.String) == "d2h").select(
        "process", "correlation_id", pl.col("end_ns").alias("copied_ns")
    )
    waited = (
        calls.filter(pl.col("kind").cast(pl.String) == "copy")
        .join(to_host, on=["process", "correlation_id"], how="inner")
        .filter(pl.col("end_ns") >= pl.col("copied_ns"))
        .select("thread", "end_ns")
    )
    blocking = pl.concat([syncs, waited]).sort("thread", "end_ns")
    ends = blocking["end_ns"].to_numpy()
    return {thread: ends[own] for thread, own in places_of(blocking["thread"].to_numpy()).items()}


def _last_blocking_end(blocking: Mapping[int, Times], call: _Calls, rows: npt.NDArray[np.int64]) -> Times:
    """For the calls in ``rows``: end of the last blocking call on their thread before them; the least int64 if none."""
    result = np.full(len(rows), np.iinfo(np.int64).min, dtype=np.int64)
    thread, begin = call.thread[rows], call.start_ns[rows]
    for number, own in rows_by_value(thread):
        ends = blocking.get(number)
        if ends is None:
            continue
        last = np.searchsorted(ends, begin[own], side="right") - 1
        result[own] = np.where(last >= 0, ends[np.maximum(last, 0)], result[own])
    return result


def _workless_steps(group: GroupSteps) -> dict[int, int]:
    """Prefill steps that no decoding request waited for: step index -> the shortest idle that shows a lack of work."""
    chain = chain_decode_steps(group)
    shortest: dict[int, int] = {}
    closing_gap = np.searchsorted(group.index[chain.closing], group.index, side="left")
    for row in np.flatnonzero(group.is_prefill):
        gap = int(closing_gap[row])
        first_before = gap < len(chain.closing) and row > chain.before[gap]
        held = float(chain.held[gap]) if first_before else float("nan")
        if held == 0:
            shortest[int(group.index[row])] = MIN_BETWEEN_REQUESTS_NS
        elif np.isnan(held):
            shortest[int(group.index[row])] = MIN_UNKNOWN_BETWEEN_REQUESTS_NS
    return shortest


def _device_steps(mine: pl.DataFrame, workless: Mapping[int, Mapping[int, int]]) -> DeviceSteps:
    mine = mine.sort("start_ns", "index")
    shortest = [workless.get(g, {}).get(i, -1) for g, i in mine.select("group", "index").iter_rows()]
    return DeviceSteps(
        start_ns=mine["start_ns"].to_numpy(),
        reach_ns=latest_end_so_far(mine["end_ns"].to_numpy()),
        workless_after_ns=np.array(shortest, dtype=np.int64),
    )


def _between_requests(steps: DeviceSteps | None, begin: Times, end: Times) -> npt.NDArray[np.bool_]:
    """Intervals outside every step and before a prefill that nobody decoding waited for, or behind the last step."""
    if steps is None:
        return np.zeros(len(begin), dtype=bool)
    before = np.searchsorted(steps.start_ns, begin, side="right") - 1
    inside = (before >= 0) & (steps.reach_ns[np.maximum(before, 0)] >= end)
    after = np.searchsorted(steps.start_ns, end, side="left")
    is_last = after == len(steps.start_ns)
    shortest = np.where(
        is_last, MIN_BETWEEN_REQUESTS_NS, steps.workless_after_ns[np.minimum(after, len(steps.start_ns) - 1)]
    )
    return ~inside & (shortest >= 0) & (end - begin >= shortest)
