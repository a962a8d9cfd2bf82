"""The summary: every headline number of one capture, each null with its reason where it is unknown.

Keys and units are those of the JSON (docs/json.md). Times of devices are means over the devices with kernels; step and
stall numbers are per group and added up over groups. Ratios come from the steps' own ratios, so that they agree with the
step table: over kernel time each step weighs its busy time, over wall time the time it took.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import UNSET, structs

from ..records.summary import ByCause, ByPhase, GroupSummary, Spread, Summary
from ..records.tables import PHASES
from ..records.trace import Trace
from ..records.trust import Trust
from ..time.group_steps import GroupSteps, split_groups
from ..time.time_accounting import NO_TIMES, DeviceTime
from .batch_ramp import decode_ramp
from .efficiency import utilization
from .headline import headline_of
from .stall_numbers import longest_run, worst_episode
from .step_frames import StepFrames
from .step_numbers import step_numbers
from .summary_input import SummaryInput
from .trust_verdict import judge_status, merge_trust

NO_PHASES = "no autoregressive phases found"
NOTHING_RAN = "no device ran a kernel in the window"


class SummaryResult(NamedTuple):
    """What :func:`summarise` gives; the fields of the Analysis of the same names."""

    summary: Summary
    group_summaries: tuple[GroupSummary, ...]
    trust: Trust
    status: str
    reasons: tuple[str, ...]


def summarise(found: SummaryInput) -> SummaryResult:
    """Put the numbers of all stages into the JSON's ``summary``, ``groups[]``, ``trust``, ``status`` and ``reasons``.

    ``summary.reasons`` maps each key that is null to why. ``summary.headline`` is the first screen's sentence.
    """
    groups = list(split_groups(found.steps, found.groups)) if found.autoregressive else []
    steps = StepFrames.of(found, groups)
    summary = _numbers(found, groups, steps)
    trust = merge_trust(found)
    status, why_status = judge_status(found, summary, trust)
    summary = structs.replace(summary, headline=headline_of(found, summary, status, why_status))
    return SummaryResult(summary, _group_summaries(found, groups, steps), trust, status, why_status)


def _numbers(found: SummaryInput, groups: Sequence[GroupSteps], steps: StepFrames) -> Summary:
    """The summary, still without its headline."""
    reasons: dict[str, str] = {}
    devices, capture, window_ns = found.time.devices, found.trace.capture, found.time.window_ns
    timed = capture.has_timeline or not devices
    count = max(len(devices), 1)
    busy_ms = sum(d.busy_ns for d in devices) / count / 1e6
    phase_ms = {p: sum(d.phase_ns.get(p, 0) for d in devices) / count / 1e6 for p in PHASES.categories}
    causes = _idle_by_cause(devices)
    nvml = 100 * busy_ms * 1e6 / window_ns if devices and window_ns and timed else None
    numbers = step_numbers(found, groups, steps, None, reasons)
    summary = Summary(
        capture_ms=None if capture.duration_ns is None or not timed else capture.duration_ns / 1e6,
        window_ms=window_ns / 1e6 if timed else None,
        gpu_busy_ms=busy_ms,
        copy_only_ms=sum(d.copy_only_ns for d in devices) / count / 1e6 if timed else None,
        gpu_idle_ms=None if causes is None else sum(d.idle_ns or 0 for d in devices) / count / 1e6,
        idle_ms_by_cause=None if causes is None else ByCause[float](**causes),
        nvml_utilization_pct=nvml,
        kernel_count=found.trace.count_launches(found.kernels["in_window"]),
        kernel_time_sum_ms=sum(d.kernel_time_sum_ns for d in devices) / count / 1e6,
        phase_ms=ByPhase[float](**phase_ms),
        phase_pct=ByPhase[float](**{p: 100 * ms / busy_ms for p, ms in phase_ms.items()}) if busy_ms else None,
        **structs.asdict(numbers),
        utilization=utilization(found, nvml, numbers),
        decode_ramp=decode_ramp(groups),
        worst_episode=worst_episode(found.stalls),
        longest_run_without_decode=longest_run(found.stalls),
        stalls_across_groups=None if len(groups) > 1 else UNSET,
        reasons={},
        headline="",
    )
    reasons |= _reasons_of_devices(found, summary, timed)
    if len(groups) > 1:
        across = "not detected: prefill on one group can hold decode on another inside a collective they share"
        reasons["stalls_across_groups"] = across
    if not found.autoregressive:
        unknown = [k for k, v in summary.items() if v is None or (isinstance(v, Spread) and not v.n)]
        reasons = dict.fromkeys(unknown, NO_PHASES) | reasons
    return structs.replace(summary, reasons={key: reasons[key] for key in sorted(reasons)})


def _idle_by_cause(devices: Sequence[DeviceTime]) -> dict[str, float] | None:
    """Mean idle time over the devices by cause, ms; None where some device does not know its own."""
    causes = [d.idle_ns_by_cause for d in devices if d.idle_ns is not None and d.idle_ns_by_cause is not None]
    if not causes or len(causes) < len(devices):
        return None
    return {cause: sum(one[cause] for one in causes) / len(devices) / 1e6 for cause in causes[0]}


def _reasons_of_devices(found: SummaryInput, summary: Summary, timed: bool) -> dict[str, str]:
    """Why numbers of time are null."""
    reasons: dict[str, str] = {}
    if summary.gpu_idle_ms is None:
        reasons["gpu_idle_ms"] = reasons["idle_ms_by_cause"] = found.time.no_idle_reason or NOTHING_RAN
    if summary.capture_ms is None:
        reasons["capture_ms"] = "the capture does not record its own length"
    for key, value in (("nvml_utilization_pct", summary.nvml_utilization_pct), ("phase_pct", summary.phase_pct)):
        if value is None:
            reasons[key] = NOTHING_RAN
    if not timed:
        # Kernels stand end to end: neither the window nor the capture has a length, and nothing stands between them.
        unknown = ("capture_ms", "window_ms", "nvml_utilization_pct", "copy_only_ms")
        reasons |= dict.fromkeys(unknown, NO_TIMES)
    return reasons


def _group_summaries(found: SummaryInput, groups: Sequence[GroupSteps], steps: StepFrames) -> tuple[GroupSummary, ...]:
    ordinals = _ordinals(found.trace)
    steps_of = steps.split()
    rows = []
    for group in groups:
        reasons: dict[str, str] = {}
        numbers = step_numbers(found, [group], steps_of(group.group), group.group, reasons)
        rows.append(
            GroupSummary(
                group=group.group,
                kind=group.kind,
                devices=tuple(ordinals.get(d, d) for d in group.devices),
                **structs.asdict(numbers),
                reasons=reasons,
            )
        )
    return tuple(rows)


def _ordinals(trace: Trace) -> Mapping[int, int]:
    """CUDA ordinal of each device index."""
    return dict(trace.devices.select("device_index", "device").iter_rows())
