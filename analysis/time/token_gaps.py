"""Inter-token gaps: the time between the ends of consecutive decode-bearing steps, and what it was spent on.

A gap is decode work + prefill work + waiting inside collectives + copies + idle by cause. The parts are measured on the
timeline of every rank of the group and averaged, so that they sum to the gap to the nanosecond. In a mixed step the
decode share is what a pure decode step of that batch takes (the baseline), the rest is prefill work. Work of no step and
bookkeeping between the steps belongs to the token it prepares: it counts as decode work.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import polars as pl

from ..numeric.intervals import EMPTY, Intervals, Measure, Times
from ..records.tables import GAPS
from .decode_baseline import Baseline, baselines
from .group_steps import DecodeChain, GroupSteps, chain_decode_steps
from .idle_causes import CAUSES
from .time_accounting import AccountingError, DeviceTimeline, TimeResult

#: GAPS and why a part is null.
GAPS_WITH_REASON = {**GAPS, "reason": pl.String}


@dataclass(frozen=True)
class GroupGaps:
    """The gaps of one group with what stalls need to know about them; all columns align with ``frame``'s rows."""

    steps: GroupSteps
    chain: DecodeChain
    baseline: list[Baseline]  # for the closing step's decode requests; only looked at where that step is mixed
    columns: Mapping[str, npt.NDArray[np.generic]]  # GAPS without ``stall``; NaN marks what cannot be told
    reasons: list[str | None]  # why a part cannot be told

    @property
    def start_ns(self) -> Times:
        """End of the step before, ns."""
        return self.steps.end_ns[self.chain.before]

    @property
    def end_ns(self) -> Times:
        """End of the closing step, ns."""
        return self.steps.end_ns[self.chain.closing]

    @property
    def closes_mixed(self) -> npt.NDArray[np.bool_]:
        """Whether the closing step is mixed."""
        mixed: npt.NDArray[np.bool_] = self.steps.is_mixed[self.chain.closing]
        return mixed

    @property
    def counted(self) -> npt.NDArray[np.bool_]:
        """False where prefill ran in between and nobody waited for it: no token of anybody was late."""
        unheld: npt.NDArray[np.bool_] = (self.chain.prefill_between > 0) & (self.chain.held == 0)
        return ~unheld


def find_gaps(steps: GroupSteps, time: TimeResult, uses: DeviceUses) -> GroupGaps:
    """The inter-token gaps of one group, split into their parts.

    Idle parts are null where graph replays are opaque; decode and prefill work are null where a mixed step has no
    baseline.
    """
    chain = chain_decode_steps(steps)
    requests = steps.count("decode_requests")[chain.closing]
    found = baselines(steps, np.where(steps.is_mixed[chain.closing], requests, np.nan))
    start_ns, end_ns = steps.end_ns[chain.before], steps.end_ns[chain.closing]
    parts = _mean_parts(steps, chain, time, uses, found, (start_ns, end_ns))
    outside = (start_ns < time.window_start_ns) | (end_ns > time.window_end_ns)
    for values in parts.values():
        values[outside] = np.nan
    unsplit = steps.is_mixed[chain.closing] & np.array([b.ns is None for b in found], dtype=bool)
    counted = ~((chain.prefill_between > 0) & (chain.held == 0))
    columns: dict[str, npt.NDArray[np.generic]] = {
        "group": np.full(len(chain.closing), steps.group),
        "index": steps.index[chain.closing],
        "start_ns": start_ns,
        "end_ns": end_ns,
        "gap_ms": (end_ns - start_ns) / 1e6,
        **parts,
        "counted": counted,
        "decode_requests": requests,
    }
    reasons = [_reason(*row) for row in zip(found, unsplit.tolist(), outside.tolist(), strict=True)]
    return GroupGaps(steps, chain, found, columns, reasons)


def gaps_frame(groups: Sequence[GroupGaps], stall: Sequence[npt.NDArray[np.int32]]) -> pl.DataFrame:
    """GAPS_WITH_REASON of all groups; ``stall`` has each gap's row of the stalls, -1 for none."""
    if not groups:
        return pl.DataFrame(schema=GAPS_WITH_REASON)
    columns = {name: np.concatenate([group.columns[name] for group in groups]) for name in groups[0].columns}
    columns["stall"] = np.concatenate(stall)
    series = [pl.Series(name, columns[name], nan_to_null=True).cast(dtype) for name, dtype in GAPS.items()]
    reasons = itertools.chain.from_iterable(group.reasons for group in groups)
    return pl.DataFrame([*series, pl.Series("reason", list(reasons), pl.String)])


def _reason(baseline: Baseline, unsplit: bool, outside: bool) -> str | None:
    if outside:
        return "the gap reaches beyond the analysed window"
    return f"the mixed step has no baseline ({baseline.rule})" if unsplit else None


def _mean_parts(
    steps: GroupSteps,
    chain: DecodeChain,
    time: TimeResult,
    uses: DeviceUses,
    found: list[Baseline],
    window: tuple[Times, Times],
) -> dict[str, npt.NDArray[np.float64]]:
    """Mean over the ranks of each part, ms; NaN = unknown."""
    names = ["decode_ms", "prefill_ms", "collective_wait_ms", "copy_ms", *(f"idle_{cause}_ms" for cause in CAUSES)]
    sums = {name: np.zeros(len(chain.closing)) for name in names}
    lines = [(d, time.timelines[d]) for d in steps.devices if d in time.timelines]
    closes_mixed = steps.is_mixed[chain.closing]
    baseline_ns = np.array([np.nan if b.ns is None else b.ns for b in found], dtype=np.float64)
    for device_index, line in lines:
        own = _device_parts(line, uses.of(device_index, line), window)
        mixed = own.pop("mixed").astype(np.float64)
        decode_share = np.where(closes_mixed, np.minimum(mixed, baseline_ns), mixed)
        sums["decode_ms"] += own.pop("decode") + decode_share
        sums["prefill_ms"] += own.pop("prefill") + (mixed - decode_share)
        for name, values in own.items():
            sums[f"{name}_ms"] += values
        if line.idle is None:
            for cause in CAUSES:
                sums[f"idle_{cause}_ms"] += np.nan
    if not lines:
        return {name: np.full(len(chain.closing), np.nan) for name in names}
    return {name: values / len(lines) / 1e6 for name, values in sums.items()}


@dataclass
class DeviceUses:
    """What each device's time was spent on, ready to be measured; kept for devices that several groups share.

    ``waits`` are the waiting intervals inside collectives by device_index (``collectives.split_collectives``).
    """

    waits: Mapping[int, Intervals]
    shared: Collection[int]  # device_index of devices in several groups: a thousand processes on one GPU
    kept: dict[int, tuple[tuple[str, Measure], ...]] = field(default_factory=dict)

    @staticmethod
    def among(groups: pl.DataFrame, waits: Mapping[int, Intervals]) -> DeviceUses:
        """For the devices of ``groups`` (GROUPS)."""
        counts = Counter(groups["devices"].explode().to_list())
        return DeviceUses(waits, {device for device, count in counts.items() if count > 1})

    def of(self, device_index: int, line: DeviceTimeline) -> Iterable[tuple[str, Measure]]:
        """Busy time, waiting, prefill and mixed work without waiting, copies, and idle time by cause; one after the other,
        as each may have millions of intervals."""
        if device_index not in self.shared:
            return self._measured(device_index, line)
        if device_index not in self.kept:
            self.kept[device_index] = tuple(self._measured(device_index, line))
        return self.kept[device_index]

    def _measured(self, device_index: int, line: DeviceTimeline) -> Iterator[tuple[str, Measure]]:
        waiting = self.waits.get(device_index, EMPTY).intersect(line.busy)
        yield "collective_wait", Measure.of(waiting)
        for part in ("prefill", "mixed"):
            yield part, Measure.of(line.phases[part].subtract(waiting))
        yield "busy", Measure.of(line.busy)
        yield "copy", Measure.of(line.copy_only)
        if line.idle is not None:
            for code, cause in enumerate(CAUSES):
                yield f"idle_{cause}", Measure.of(line.idle.of_cause(code))


def _device_parts(
    line: DeviceTimeline, uses: Iterable[tuple[str, Measure]], window: tuple[Times, Times]
) -> dict[str, Times]:
    """What one device spent each gap on, ns. Raises AccountingError when the parts do not fill the gap.

    Gaps are cut to what the timeline covers; a gap that reaches beyond it is not divided at all (``find_gaps``).
    """
    start_ns, end_ns = (np.clip(times, *line.span) for times in window)
    parts = {name: use.within(start_ns, end_ns) for name, use in uses}
    parts["decode"] = parts.pop("busy") - parts["prefill"] - parts["mixed"] - parts["collective_wait"]
    if line.idle is not None:
        total = sum(parts.values())
        if not np.array_equal(total, end_ns - start_ns):
            worst = int(np.abs(total - (end_ns - start_ns)).max())
            raise AccountingError(f"the parts of an inter-token gap miss it by {worst} ns")
    return parts
