"""Every nanosecond of the window on every device: busy by phase, copies alone, idle by cause.

Busy is the union of the kernels' intervals on one device, never their sum (which stands beside it under its own name);
copies count where no kernel runs; the rest is idle. The three add up to the window exactly, which is asserted on every
analysis. The idle of a capture whose graph replays are opaque is unknown: the kernels inside are not in the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from ..numeric.grouping import split_by
from ..numeric.intervals import Intervals, merge, union, union_length_by_key
from ..numeric.row_chunks import stretches
from ..records.tables import IDLE, IDLE_CAUSES, PHASES
from ..records.trace import Trace
from .device_kernels import DeviceKernels, kernels_by_device
from .group_steps import split_groups
from .idle_causes import IdleContext, IdleIntervals, find_idle

OPAQUE = "graph replays are opaque: the kernels inside are not recorded, so idle time cannot be told from work"
LOST = "graph replays left no kernel records: busy time is too low and idle time cannot be told from work"
NO_TIMES = "the input holds durations but no times"
MAX_LOST_REPLAY_SHARE = 0.05  # of the graph launches; a replay at the capture's edge may lack its kernels


class AccountingError(AssertionError):
    """An identity of the time account does not hold: a fault of ours, never of the capture."""


@dataclass(frozen=True)
class DeviceTime:
    """The time account of one device over the window, all in ns.

    ``idle_ns`` and ``idle_ns_by_cause`` are None where graph replays are opaque or the input has no times (``reason``
    says so).
    ``kernel_time_sum_ns`` is the sum of durations, which exceeds ``busy_ns`` by overlap; ``same_stream_overlap_ns`` is
    the part of it within single streams (programmatic dependent launch).
    """

    device_index: int
    device: int
    window_ns: int
    busy_ns: int
    copy_only_ns: int
    idle_ns: int | None
    phase_ns: Mapping[str, int]
    idle_ns_by_cause: Mapping[str, int] | None
    kernel_count: int
    kernel_time_sum_ns: int
    same_stream_overlap_ns: int
    reason: str | None = None


@dataclass(frozen=True)
class DeviceTimeline:
    """The disjoint parts of one device's window as interval sets; together they cover the window."""

    phases: Mapping[str, Intervals]  # by PHASES; prefill and decode at once is mixed
    busy: Intervals
    copy_only: Intervals
    idle: IdleIntervals | None
    span: tuple[int, int]  # the window, ns


@dataclass(frozen=True)
class TimeResult:
    """What :func:`account_time` gives: the account per device, every idle interval, and the timelines behind them."""

    window_start_ns: int
    window_end_ns: int
    devices: tuple[DeviceTime, ...]
    timelines: Mapping[int, DeviceTimeline]  # by device_index
    opaque_graphs: bool
    opaque_reason: str | None = None
    no_idle_reason: str | None = None  # why idle time is not known: opaque graphs, or an input without times

    @property
    def window_ns(self) -> int:
        """Length of the analysed window, ns."""
        return self.window_end_ns - self.window_start_ns

    @property
    def idle(self) -> pl.DataFrame:
        """Every idle interval of every device in time order (IDLE); made anew at each call, there may be millions."""
        return self._idle_of_at_least(0)

    def longest_idle(self, count: int = 100) -> pl.DataFrame:
        """The ``count`` longest idle intervals in time order (IDLE schema): what the JSON lists."""
        idle = self._idle_of_at_least(self._length_of_longest(count))
        length = pl.col("end_ns") - pl.col("start_ns")
        longest = idle.sort(length, "start_ns", "device_index", descending=[True, False, False]).head(count)
        return longest.sort("start_ns", "device_index")

    def _length_of_longest(self, count: int) -> int:
        """Length of the ``count``-th longest idle interval, ns; 0 where there are fewer."""
        longest = np.zeros(count, dtype=np.int64)
        for line in self.timelines.values():
            if line.idle is not None:
                for some in stretches(len(line.idle.intervals)):
                    own = line.idle.intervals.ends[some] - line.idle.intervals.starts[some]
                    own = own[own > longest[0]]
                    longest = np.sort(np.concatenate([longest, own]))[-count:]
        return int(longest[0])

    def _idle_of_at_least(self, shortest_ns: int) -> pl.DataFrame:
        causes = pl.Series(IDLE_CAUSES.categories, dtype=IDLE_CAUSES)
        frames = []
        for device in self.devices:
            idle = self.timelines[device.device_index].idle
            if idle is None:
                continue
            rows = np.flatnonzero(idle.intervals.lengths >= shortest_ns)
            columns = {
                "start_ns": idle.intervals.starts[rows],
                "end_ns": idle.intervals.ends[rows],
                "cause": causes.gather(idle.cause[rows].astype(np.uint32)),
            }
            place = {"device": device.device, "device_index": device.device_index}
            frames.append(
                pl.DataFrame(columns).with_columns(pl.lit(at, pl.Int32).alias(name) for name, at in place.items())
            )
        if not frames:
            return pl.DataFrame(schema=IDLE)
        return pl.concat(frames).select(list(IDLE)).sort("start_ns", "device_index")


def account_time(
    trace: Trace,
    kernels: pl.DataFrame,
    steps: pl.DataFrame,
    groups: pl.DataFrame,
    window_start_ns: int,
    window_end_ns: int,
    *,
    opaque_graphs: bool = False,
) -> TimeResult:
    """Account for every nanosecond of ``[window_start_ns, window_end_ns)`` on every device that ran kernels in it.

    ``kernels`` is Trace.kernels with KERNEL_TAGS, ``steps`` STEPS, ``groups`` GROUPS. Kernels count by their *step's*
    phase; warm-up and other excluded kernels that lie inside the window are ``other``; whole-graph rows are busy time of
    the step they lie in. Idle time is refused where graph replays are opaque or left no kernels. Raises AccountingError when an identity fails.
    """
    if window_end_ns < window_start_ns:
        raise ValueError(f"window ends before it starts: {window_start_ns} .. {window_end_ns}")
    window = (window_start_ns, window_end_ns)
    opaque_reason = LOST if _lost_replays(trace, kernels) else OPAQUE if opaque_graphs else None
    no_idle = opaque_reason if trace.capture.has_timeline else NO_TIMES
    context = IdleContext.build(trace, list(split_groups(steps, groups)), steps, groups)
    columns = kernels_by_device(kernels)
    graphs = _graph_rows(trace, steps)
    present = sorted(set(columns) | set(graphs))

    phase_sets = {d: _phase_sets(columns.get(d), graphs.get(d), window) for d in present}
    phase_sets = {d: sets for d, sets in phase_sets.items() if any(len(s) for s in sets.values())}
    busy = {d: _busy(columns.get(d), graphs.get(d), window) for d in phase_sets}
    copies_of = split_by(trace.copies.select("device_index", "start_ns", "end_ns"), "device_index")
    devices: list[DeviceTime] = []
    timelines: dict[int, DeviceTimeline] = {}
    for d, sets in phase_sets.items():
        copies = copies_of(d)
        copied = union(copies["start_ns"].to_numpy(), copies["end_ns"].to_numpy()).clip(*window)
        copy_only = copied.subtract(busy[d])
        idle = None
        if no_idle is None:
            free = busy[d].complement(*window).subtract(copy_only)
            idle = find_idle(context, columns.get(d), d, free, busy)
        timelines[d] = DeviceTimeline(sets, busy[d], copy_only, idle, window)
        devices.append(_device_time(trace, d, columns.get(d), timelines[d], window, no_idle))
    return TimeResult(
        window_start_ns,
        window_end_ns,
        tuple(devices),
        timelines,
        opaque_reason is not None,
        opaque_reason,
        no_idle,
    )


def _lost_replays(trace: Trace, kernels: pl.DataFrame) -> bool:
    """Whether graphs were launched whose kernels (and whole-graph rows) the profiler did not record."""
    is_graph = (trace.launches["kind"] == "graph").to_numpy()
    if not is_graph.any():
        return False
    used = np.zeros(len(is_graph) + 1, dtype=bool)  # the last entry takes kernels without a launch
    used[kernels["launch"].to_numpy()] = True
    recorded = trace.graph_launches.select("process", "correlation_id").unique().height
    return int((is_graph & ~used[:-1]).sum()) - recorded > MAX_LOST_REPLAY_SHARE * int(is_graph.sum())


GraphRows = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]


def _graph_rows(trace: Trace, steps: pl.DataFrame) -> dict[int, GraphRows]:
    """Start, end and phase code of the whole-graph rows of each device; the phase is that of the step around it."""
    if trace.graph_launches.is_empty():
        return {}
    rows, mine = split_by(trace.graph_launches, "device_index"), split_by(steps, "device_index")
    return {d: _phased_graphs(rows(d), mine(d)) for d in trace.graph_launches["device_index"].unique().to_list()}


def _phased_graphs(rows: pl.DataFrame, mine: pl.DataFrame) -> GraphRows:
    start_ns, end_ns = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    mine = mine.sort("start_ns")
    categories = PHASES.categories.to_list()
    phase = np.full(len(start_ns), categories.index("unknown"), dtype=np.int64)
    if len(mine) and len(start_ns):
        row = np.searchsorted(mine["start_ns"].to_numpy(), start_ns, side="right") - 1
        inside = (row >= 0) & (start_ns < mine["end_ns"].to_numpy()[np.maximum(row, 0)])
        of_step = np.where(
            mine["excluded"].to_numpy(),
            categories.index("other"),
            mine["phase"].to_physical().cast(pl.Int64).to_numpy(),
        )
        phase = np.where(inside, of_step[np.maximum(row, 0)], phase)
    return start_ns, end_ns, phase


def _phase_sets(
    kernels: DeviceKernels | None,
    graphs: GraphRows | None,
    window: tuple[int, int],
) -> dict[str, Intervals]:
    """Disjoint interval sets by phase, clipped to the window.

    An instant covered by prefill and decode at once is mixed; work of neither phase beside a phase's own work (the next
    step's bookkeeping beside a decode kernel) does not change what the instant was spent on.
    """
    raw: dict[str, Intervals] = {}
    for code, name in enumerate(PHASES.categories.to_list()):
        parts = []
        if kernels is not None:
            chosen = kernels.phase == code
            parts.append(union(kernels.start_ns[chosen], kernels.end_ns[chosen]))
        if graphs is not None:
            chosen = graphs[2] == code
            parts.append(union(graphs[0][chosen], graphs[1][chosen]))
        raw[name] = merge(parts).clip(*window)
    mixed = merge([raw["mixed"], raw["prefill"].intersect(raw["decode"])])
    prefill, decode = raw["prefill"].subtract(mixed), raw["decode"].subtract(mixed)
    other, unknown = raw["other"], raw["unknown"]
    for phased in (mixed, prefill, decode):
        other, unknown = other.subtract(phased), unknown.subtract(phased)
    unknown = unknown.subtract(other)
    return {"prefill": prefill, "decode": decode, "mixed": mixed, "other": other, "unknown": unknown}


def _busy(
    kernels: DeviceKernels | None,
    graphs: GraphRows | None,
    window: tuple[int, int],
) -> Intervals:
    """Union of all work on a device, found apart from the phases so that the two check each other."""
    parts = [] if kernels is None else [union(kernels.start_ns, kernels.end_ns)]
    if graphs is not None:
        parts.append(union(graphs[0], graphs[1]))
    return merge(parts).clip(*window)


def _device_time(
    trace: Trace,
    device_index: int,
    kernels: DeviceKernels | None,
    line: DeviceTimeline,
    window: tuple[int, int],
    opaque_reason: str | None,
) -> DeviceTime:
    count = kernel_sum = overlap = 0
    if kernels is not None:
        own = kernels.clipped(window)
        count = _launches_of_sums(trace, device_index, window) if trace.holds_sums else len(own.start_ns)
        kernel_sum = int((own.end_ns - own.start_ns).sum())
        overlap = kernel_sum - union_length_by_key(own.stream_key(), own.start_ns, own.end_ns)
    phase_ns = {name: part.total_ns for name, part in line.phases.items()}
    busy_ns, copy_ns, window_ns = line.busy.total_ns, line.copy_only.total_ns, window[1] - window[0]
    if sum(phase_ns.values()) != busy_ns:
        raise AccountingError(f"device {device_index}: phases {phase_ns} do not add up to busy {busy_ns} ns")
    idle_ns = by_cause = None
    if line.idle is not None:
        by_cause = line.idle.ns_by_cause()
        idle_ns = sum(by_cause.values())
        if busy_ns + copy_ns + idle_ns != window_ns:
            raise AccountingError(
                f"device {device_index}: busy {busy_ns} + copies {copy_ns} + idle {idle_ns} is not the window {window_ns} ns"
            )
    return DeviceTime(
        device_index=device_index,
        device=_ordinal(trace, device_index),
        window_ns=window_ns,
        busy_ns=busy_ns,
        copy_only_ns=copy_ns,
        idle_ns=idle_ns,
        phase_ns=phase_ns,
        idle_ns_by_cause=by_cause,
        kernel_count=count,
        kernel_time_sum_ns=kernel_sum,
        same_stream_overlap_ns=overlap,
        reason=opaque_reason,
    )


def _launches_of_sums(trace: Trace, device_index: int, window: tuple[int, int]) -> int:
    """How many launches the kernel rows of a device in the window stand for."""
    mine = (pl.col("device_index") == device_index) & (pl.col("end_ns") > window[0]) & (pl.col("start_ns") < window[1])
    return trace.count_launches(trace.kernels.select(mine).to_series())


def _ordinal(trace: Trace, device_index: int) -> int:
    return int(trace.devices["device"][device_index]) if device_index < trace.devices.height else device_index
