"""The summary: every headline number of one capture, each null with its reason where it is unknown.

Keys and units are those of the JSON (docs/design.md). Times of devices are means over the devices with kernels; step and
stall numbers are per group and added up over groups. Ratios come from the steps' own ratios, so that they agree with the
step table: over kernel time each step weighs its busy time, over wall time the time it took.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from ..records.analysis import PHASES, Finding
from ..records.trace import Trace
from ..time.group_steps import GroupSteps, split_groups
from ..time.stalls import StallResult
from ..time.time_accounting import NO_TIMES, TimeResult
from .batch_ramp import decode_ramp
from .efficiency import RATIOS, phase_ratios, utilization
from .headline import headline_of
from .step_frames import StepFrames
from .trust_verdict import judge_status, merge_trust

NO_PHASES = "no autoregressive phases found"
STALL_KEYS = (
    "stall_count",
    "stall_ms",
    "stall_max_ms",
    "stall_pct_of_window",
    "stall_episode_count",
    "stall_episode_max_ms",
    "request_ms_lost",
    "prefill_without_waiters",
)


COUNT_KEYS = ("decode_batch_p50", "decode_batch_min", "decode_batch_max", "prefill_tokens", "decode_tokens")
#: Objects of {n, p50, p95, p99, max} and why one has no value.
SPREADS = {
    "decode_step_ms": "there is no decode step",
    "prefill_step_ms": "there is no prefill step",
    "mixed_step_ms": "there is no mixed step",
    "inter_token_gap_ms": "no two decode-bearing steps of a group follow each other",
}


class SummaryResult(NamedTuple):
    """What :func:`summarise` gives; the fields of the Analysis of the same names."""

    summary: dict[str, Any]
    group_summaries: tuple[dict[str, Any], ...]
    trust: dict[str, Any]
    status: str
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class SummaryInput:
    """All that the stages found. ``kernels`` and ``steps`` carry work columns; ``ceilings`` are DeviceCeilings."""

    trace: Trace
    kernels: pl.DataFrame
    steps: pl.DataFrame
    groups: pl.DataFrame
    time: TimeResult
    stalls: StallResult
    ceilings: Sequence[Any] = ()
    graphs: pl.DataFrame | None = None
    kernel_table: pl.DataFrame | None = None
    model: Mapping[str, Any] | None = None
    phase_trust: Mapping[str, Any] | None = None
    work_trust: Mapping[str, Any] | None = None
    autoregressive: bool = True
    opaque_graphs: bool = False
    engine: str | None = None
    findings: Sequence[Finding] = ()
    reasons: Sequence[str] = ()
    mfu_at_most: pl.Series | None = None  # per row of ``steps``, %; null unless useful FLOPs are unknown


def summarise(found: SummaryInput) -> SummaryResult:
    """Put the numbers of all stages into the JSON's ``summary``, ``groups[]``, ``trust``, ``status`` and ``reasons``.

    ``summary['reasons']`` maps each key that is null to why. ``summary['headline']`` is the first screen's sentence.
    """
    reasons: dict[str, str] = {}
    summary = _device_numbers(found, reasons)
    per_group = list(split_groups(found.steps, found.groups)) if found.autoregressive else []
    steps = StepFrames.of(found, per_group)
    summary |= _step_numbers(found, per_group, steps, None, reasons)
    summary["utilization"] = utilization(found, summary)
    summary["decode_ramp"] = decode_ramp(per_group)
    summary["worst_episode"] = _worst_episode(found.stalls)
    summary["longest_run_without_decode"] = _longest_run(found.stalls)
    if len(per_group) > 1:
        summary["stalls_across_groups"] = None
        reasons["stalls_across_groups"] = (
            "not detected: prefill on one group can hold decode on another inside a collective they share"
        )
    if not found.autoregressive:
        unknown = [k for k, v in summary.items() if v is None or (k in SPREADS and not v["n"])]
        reasons |= dict.fromkeys([k for k in unknown if k not in reasons], NO_PHASES)
    summary["reasons"] = {key: reasons[key] for key in sorted(reasons)}

    group_summaries = []
    ordinals = _ordinals(found.trace)
    steps_of = steps.split()
    for group in per_group:
        why: dict[str, str] = {}
        own = _step_numbers(found, [group], steps_of(group.group), group.group, why)
        devices = [ordinals.get(d, d) for d in group.devices]
        own = {"group": group.group, "kind": group.kind, "devices": devices} | own
        group_summaries.append(own | {"reasons": why})
    trust = merge_trust(found.trace, found.kernels, found.steps, found.time, found.phase_trust, found.work_trust)
    if found.engine:
        trust["engine"] = found.engine
    status, why_status = judge_status(found, summary, trust)
    summary["headline"] = headline_of(found, summary, status, why_status)
    return SummaryResult(summary, tuple(group_summaries), trust, status, why_status)


def device_rows(
    trace: Trace, groups: pl.DataFrame, time: TimeResult, ceilings: Sequence[Any] = ()
) -> tuple[dict[str, Any], ...]:
    """JSON ``devices[]``: identity, ceilings and time account of every device with kernels in the window."""
    ceiling_of = {c.device_index: c for c in ceilings}
    group_of = {d: g for g, devices in groups.select("group", "devices").iter_rows() for d in devices}
    identity = {row["device_index"]: row for row in trace.devices.iter_rows(named=True)}
    rows = []
    for account in time.devices:
        d = account.device_index
        seen, ceiling = identity.get(d, {}), ceiling_of.get(d)
        bandwidth = seen.get("memory_bandwidth_bytes_per_s")
        row = {
            "device": account.device,
            "device_index": d,
            "process": None if seen.get("process") is None else int(seen["process"]) & 0xFFFFFF,
            "group": group_of.get(d),
            "gpu_name": getattr(ceiling, "gpu_name", None) or seen.get("gpu_name"),
            "gpu_source": getattr(ceiling, "gpu_source", None) or seen.get("gpu_source"),
            "sm_count": getattr(ceiling, "sm_count", None) or seen.get("sm_count"),
            # what the ceilings leave out (an integrated chip's wrong figure) must not come back from the capture
            "memory_bandwidth_gbps": ceiling.memory_bandwidth_gbps
            if ceiling
            else bandwidth / 1e9
            if bandwidth
            else None,
            "peak_tflops": dict(getattr(ceiling, "peak_tflops", None) or {}),
            "ceiling_source": getattr(ceiling, "ceiling_source", None),
            "ceiling_reason": getattr(ceiling, "reason", None),
            "candidates": list(getattr(ceiling, "candidates", ()) or ()),
            "contradiction": getattr(ceiling, "contradiction", None),
            "kernel_count": account.kernel_count,
            "window_ns": account.window_ns,
            "busy_ns": account.busy_ns,
            "copy_only_ns": account.copy_only_ns,
            "idle_ns": account.idle_ns,
            "idle_ns_by_cause": None if account.idle_ns_by_cause is None else dict(account.idle_ns_by_cause),
            "phase_ns": dict(account.phase_ns),
            "kernel_time_sum_ns": account.kernel_time_sum_ns,
            "same_stream_overlap_ns": account.same_stream_overlap_ns,
        }
        if account.reason:
            row["idle_ns_reason"] = row["idle_ns_by_cause_reason"] = account.reason
        rows.append(row)
    return tuple(rows)


def spread(values: npt.ArrayLike) -> dict[str, float | int | None]:
    """``{n, p50, p95, p99, max}`` of values in ms (linear interpolation between ranks); null where there are none."""
    numbers = np.asarray(values, dtype=np.float64)
    if not len(numbers):
        return {"n": 0, "p50": None, "p95": None, "p99": None, "max": None}
    p50, p95, p99 = np.percentile(numbers, [50, 95, 99]).tolist()
    return {"n": len(numbers), "p50": p50, "p95": p95, "p99": p99, "max": float(numbers.max())}


def _device_numbers(found: SummaryInput, reasons: dict[str, str]) -> dict[str, Any]:
    devices, capture = found.time.devices, found.trace.capture
    window_ns = found.time.window_ns
    count = max(len(devices), 1)
    busy_ms = sum(d.busy_ns for d in devices) / count / 1e6
    phase_ms = {p: sum(d.phase_ns.get(p, 0) for d in devices) / count / 1e6 for p in PHASES.categories.to_list()}
    idle_known = bool(devices) and all(d.idle_ns is not None for d in devices)
    has_times = found.trace.capture.has_timeline
    summary: dict[str, Any] = {
        "capture_ms": None if capture.duration_ns is None else capture.duration_ns / 1e6,
        "window_ms": window_ns / 1e6,
        "gpu_busy_ms": busy_ms,
        "copy_only_ms": sum(d.copy_only_ns for d in devices) / count / 1e6,
        "gpu_idle_ms": sum(d.idle_ns or 0 for d in devices) / count / 1e6 if idle_known else None,
        "idle_ms_by_cause": None,
        "nvml_utilization_pct": 100 * busy_ms * 1e6 / window_ns if devices and window_ns and has_times else None,
        "kernel_count": int(found.kernels["in_window"].sum()),
        "kernel_time_sum_ms": sum(d.kernel_time_sum_ns for d in devices) / count / 1e6,
        "phase_ms": phase_ms,
        "phase_pct": {p: 100 * ms / busy_ms for p, ms in phase_ms.items()} if busy_ms else None,
    }
    if idle_known:
        causes = [d.idle_ns_by_cause or {} for d in devices]
        summary["idle_ms_by_cause"] = {c: sum(one[c] for one in causes) / count / 1e6 for c in causes[0]}
    else:
        why = found.time.no_idle_reason or "no device ran a kernel in the window"
        reasons["gpu_idle_ms"] = reasons["idle_ms_by_cause"] = why
    if summary["capture_ms"] is None:
        reasons["capture_ms"] = "the capture does not record its own length"
    for key in ("nvml_utilization_pct", "phase_pct"):
        if summary[key] is None:
            reasons[key] = "no device ran a kernel in the window"
    if devices and not has_times:
        # Kernels stand end to end: neither the window nor the capture has a length, and nothing stands between them.
        unknown = ("capture_ms", "window_ms", "nvml_utilization_pct", "copy_only_ms")
        summary |= dict.fromkeys(unknown)
        reasons |= dict.fromkeys(unknown, NO_TIMES)
    return summary


def _step_numbers(
    found: SummaryInput,
    groups: Sequence[GroupSteps],
    steps: StepFrames,
    only: int | None,
    reasons: dict[str, str],
) -> dict[str, Any]:
    """Step, gap, ratio and stall numbers of the given groups."""
    window_ms = found.time.window_ns / 1e6
    whole, gaps, stalls = steps.whole, steps.gaps, steps.stalls
    numbers: dict[str, Any] = {
        "step_count": whole.height,
        "decode_step_ms": spread(_spans_ms(groups, "is_decode")),
        "prefill_step_ms": spread(_spans_ms(groups, "is_prefill")),
        "mixed_step_ms": spread(_spans_ms(groups, "is_mixed")),
        "inter_token_gap_ms": spread(gaps.filter("counted")["gap_ms"].to_numpy() if gaps.height else []),
        "decode_batch_p50": _median([g.count("decode_requests")[g.is_decode] for g in groups]),
        **_batch_range(groups),
        "prefill_tokens": _total([g.count("prefill_tokens")[g.is_prefill | g.is_mixed] for g in groups]),
        "decode_tokens": _total([_decoded(g) for g in groups]),
    }
    if groups:
        reasons |= {key: why for key, why in SPREADS.items() if not numbers[key]["n"]}
    if not groups:
        numbers |= dict.fromkeys((*STALL_KEYS, *COUNT_KEYS))
        numbers |= {f"{r}_{over}_pct": None for r, *_ in RATIOS for over in ("kernel", "wall")}
        numbers["decode_mbu_is_lower_bound"] = False
        return numbers
    for key in COUNT_KEYS:
        if numbers[key] is None:
            reasons[key] = "token and request counts are not known for every step"
    numbers |= phase_ratios(found, steps.rated, reasons)
    bearing = whole["phase"].cast(pl.String).is_in(["decode", "mixed"]).any()
    if not gaps.height and (bearing or not sum(len(g.index) for g in groups)):
        # Somebody decoded, but no gap shows what they waited for: that is not the same as no stall.
        numbers |= dict.fromkeys(STALL_KEYS)
        reasons |= dict.fromkeys(STALL_KEYS, "no two decode-bearing steps of a group follow each other")
        return numbers
    numbers |= _stall_numbers(found, stalls, groups, only, window_ms, reasons)
    return numbers


def _spans_ms(groups: Sequence[GroupSteps], kind: str) -> npt.NDArray[np.float64]:
    """Spans of the groups' steps of one kind (a mask of GroupSteps), ms."""
    parts = [(g.end_ns - g.start_ns)[getattr(g, kind)] / 1e6 for g in groups]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.float64)


def _decoded(group: GroupSteps) -> npt.NDArray[np.float64]:
    """Tokens the decoding requests ran (verify width included), NaN where unknown."""
    tokens, requests = group.count("decode_tokens"), group.count("decode_requests")
    return np.where(np.isnan(tokens), requests, tokens)[group.is_decode_bearing]


def _median(parts: list[npt.NDArray[np.float64]]) -> float | None:
    values = np.concatenate(parts) if parts else np.zeros(0)
    known = values[~np.isnan(values)]
    # A median of a few known steps would speak for all the others.
    return float(np.median(known)) if len(known) * 2 >= max(len(values), 1) else None


def _batch_range(groups: Sequence[GroupSteps]) -> dict[str, int | None]:
    """Smallest and largest decode batch of the pure decode steps that show theirs; null where most do not."""
    parts = [g.count("decode_requests")[g.is_decode] for g in groups]
    if _median(parts) is None:
        return {"decode_batch_min": None, "decode_batch_max": None}
    values = np.concatenate(parts)
    return {"decode_batch_min": int(np.nanmin(values)), "decode_batch_max": int(np.nanmax(values))}


def _total(parts: list[npt.NDArray[np.float64]]) -> int | None:
    values = np.concatenate(parts) if parts else np.zeros(0)
    return None if np.isnan(values).any() else int(values.sum())


def _stall_numbers(
    found: SummaryInput,
    stalls: pl.DataFrame,
    groups: Sequence[GroupSteps],
    only: int | None,
    window_ms: float,
    reasons: dict[str, str],
) -> dict[str, Any]:
    known = stalls["stall_ms"].drop_nulls()
    episodes = known  # none, where no gap stalled
    if stalls.height:
        episodes = stalls.group_by("episode").agg(pl.col("stall_ms").sum())["stall_ms"]
    unheld = found.stalls.prefill_without_waiters
    lost = stalls["request_ms_lost"]
    total = float(known.sum())
    numbers: dict[str, Any] = {
        "stall_count": stalls.height,
        "stall_ms": total,
        "stall_max_ms": _maximum(known),
        "stall_pct_of_window": 100 * total / (window_ms * len(groups)) if window_ms else None,
        "stall_episode_count": episodes.len(),
        "stall_episode_max_ms": _maximum(episodes),
        "request_ms_lost": None if lost.null_count() else float(lost.sum()),
        "prefill_without_waiters": sum(n for g, n in unheld.items() if only is None or g == only),
    }
    if not window_ms:
        reasons["stall_pct_of_window"] = "the window is empty"
    missing = stalls.height - known.len()
    if missing:
        why = f"no decode-only baseline for {missing} of {stalls.height} stalls: what is known is a lower bound"
        numbers["stall_ms_is_lower_bound"] = True
        reasons["stall_ms"] = why
        if not known.len():
            keys = ("stall_ms", "stall_max_ms", "stall_pct_of_window", "stall_episode_max_ms")
            numbers |= dict.fromkeys(keys)
            reasons |= dict.fromkeys(keys, why)
    if numbers["request_ms_lost"] is None:
        reasons["request_ms_lost"] = "requests held or a baseline are not known for every stall"
    return numbers


def _maximum(values: pl.Series) -> float:
    return float(values.to_numpy().max()) if values.len() else 0.0


def _worst_episode(stalls: StallResult) -> dict[str, Any] | None:
    """The episode with most stall time: start, length, steps, tokens, who was held, gaps before, during and after."""
    frame = stalls.stalls
    if frame.is_empty():
        return None
    episodes = frame.group_by("episode", maintain_order=True).agg(
        pl.col("group").first(),
        pl.col("start_ns").min(),
        pl.col("end_ns").max(),
        pl.len().alias("stalls"),
        pl.col("steps").list.len().sum().alias("steps"),
        pl.col("stall_ms").sum(),
        _sum_or_null("prefill_tokens"),
        pl.col("requests_held").max(),
        _sum_or_null("request_ms_lost"),
        pl.col("gap_before_ms").first(),
        pl.col("gap_ms").median().alias("gap_during_ms"),
        pl.col("gap_after_ms").last(),
    )
    worst = episodes.sort("stall_ms", "episode", descending=[True, False], nulls_last=True).row(0, named=True)
    calm, lost = worst["gap_before_ms"] or worst["gap_after_ms"], worst["request_ms_lost"]
    # One token per request and undisturbed gap is what the time would have given.
    worst["tokens_lost"] = None if not calm or lost is None else lost / calm
    return dict(worst)


def _sum_or_null(column: str) -> pl.Expr:
    return pl.when(pl.col(column).null_count() == 0).then(pl.col(column).sum()).otherwise(None).alias(column)


def _longest_run(stalls: StallResult) -> dict[str, Any] | None:
    run = stalls.longest_run
    if run is None:
        return None
    return {
        "group": run.group,
        "steps": run.steps,
        "ms": run.ms,
        "start_ns": run.start_ns,
        "end_ns": run.end_ns,
        "requests_held": run.requests_held,
    }


def _ordinals(trace: Trace) -> dict[int, int]:
    return dict(trace.devices.select("device_index", "device").iter_rows())
