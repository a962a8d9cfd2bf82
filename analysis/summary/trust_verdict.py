"""How far the numbers can be trusted, and whether the question could be answered at all. Rules: docs/findings.md."""

from __future__ import annotations

import polars as pl
from msgspec import UNSET, structs

from ..records.summary import Summary
from ..records.trace import Trace
from ..records.trust import Contradiction, Trust
from ..records.work import WorkTrust
from ..time.time_accounting import LOST, NO_TIMES, TimeResult
from .summary_input import SummaryInput

# Shares of GPU time or counts beyond which a capture is read with care, or not at all.
MAX_GOOD_NO_EVIDENCE, MAX_NO_EVIDENCE = 0.02, 0.20
MAX_CONTRADICTED = 0.10
MAX_GOOD_LOST_LAUNCHES = 0.03
MAX_GOOD_REJECTED = 0.001
MAX_EMPTY_STEPS = 0.5
MAX_ONE_KERNEL = 0.9
MIN_KERNELS_PER_STEP = 10
#: The numbers the tool exists for, as a reason names them.
IN_WORDS = {"decode_mbu_kernel_pct": "decode MBU", "prefill_mfu_kernel_pct": "prefill MFU", "stall_ms": "stall time"}


def merge_trust(found: SummaryInput) -> Trust:
    """JSON ``trust``: what the stages said, what the capture says of itself, and the verdict with its reasons."""
    capture, time = found.trace.capture, found.time
    own = structs.asdict(found.phase_trust)
    of_work = found.work_trust or WorkTrust(gpu_time_by_work_source={}, clocks=None, contradictions=())
    own["contradictions"] = (*found.phase_trust.contradictions, *of_work.contradictions)
    trust = Trust(
        **own,
        gpu_time_by_work_source=of_work.gpu_time_by_work_source,
        clocks=of_work.clocks,
        devices_with_kernels=len(time.devices),
        devices_present=max(len(capture.gpus_present), len(time.devices)),
        ranks_expected=expected_ranks(found.trace),
        rejected_rows=dict(capture.rejected_rows),
        lost_events=tuple(d.text for d in capture.diagnostics if d.severity in {"warning", "error"}),
        graph_mode=capture.graph_trace_mode,
        opaque_graphs=time.opaque_graphs,
        lost_graphs=time.opaque_reason == LOST,
        partial_steps=_cut_steps(found.steps, time),
        largest_kernel_share=_largest_kernel_share(found.kernels, time),
        empty_step_share=_empty_step_share(found.steps),
        verdict="",
        verdict_reasons=(),
        engine=found.engine or UNSET,
    )
    bad, care = _judge(found.trace, found.kernels, trust)
    verdict = "unreliable" if bad else "read with care" if care else "good"
    return structs.replace(trust, verdict=verdict, verdict_reasons=(*bad, *care))


def expected_ranks(trace: Trace) -> int | None:
    """Devices that the command line or the trace says took part (tensor x pipeline x data parallel); None = not said."""
    if trace.capture.world_size:
        return trace.capture.world_size
    serving = trace.capture.serving
    sizes = [serving.tensor_parallel, serving.pipeline_parallel, serving.data_parallel]
    if not any(sizes):
        return None
    product = 1
    for size in sizes:
        product *= size or 1
    return product


def _cut_steps(steps: pl.DataFrame, time: TimeResult) -> int:
    """Steps cut by the edges of the window or of the capture (per group, not per device)."""
    touching = (pl.col("start_ns") < time.window_end_ns) & (pl.col("end_ns") > time.window_start_ns)
    return steps.filter(touching & pl.col("partial")).select("group", "index").unique().height


def _largest_kernel_share(kernels: pl.DataFrame, time: TimeResult) -> float | None:
    """Length of the longest single kernel as a share of the window; None without times (launches profiled one by one)."""
    if kernels.is_empty() or not time.window_ns or time.no_idle_reason == NO_TIMES:
        return None
    longest = kernels.filter("in_window").select((pl.col("end_ns") - pl.col("start_ns")).max()).item()
    return None if longest is None else min(1.0, longest / time.window_ns)


def _empty_step_share(steps: pl.DataFrame) -> float | None:
    """Share of the steps without any kernel (and not an opaque graph replay)."""
    if steps.is_empty():
        return None
    return float(((steps["kernel_count"] == 0) & (steps["busy_ns"] == 0)).sum() / steps.height)


def _judge(trace: Trace, kernels: pl.DataFrame, trust: Trust) -> tuple[list[str], list[str]]:
    """Reasons why the numbers are unreliable, and why they are to be read with care."""
    bad: list[str] = []
    care: list[str] = []
    none = trust.gpu_time_by_evidence.get("none", 0.0)
    # Without any phase there is nothing to have evidence for; the status says so.
    if MAX_GOOD_NO_EVIDENCE < none < 1.0 and not trace.holds_sums:
        text = f"{100 * none:.0f}% of GPU time has no evidence of its phase"
        (bad if none > MAX_NO_EVIDENCE else care).append(text)
    _judge_contradictions(kernels, trust, bad, care)
    empty = trust.empty_step_share or 0
    if empty > MAX_EMPTY_STEPS:
        bad.append(f"{100 * empty:.0f}% of the steps hold no kernel: launches and kernels do not match")
    # the only kernel of a capture covers its window by definition
    largest = trust.largest_kernel_share or 0
    if kernels.height > 1 and largest > MAX_ONE_KERNEL:
        bad.append(f"one kernel covers {100 * largest:.0f}% of the window")
    if trust.lost_graphs:
        bad.append("graph replays left no kernel records: most of decode is missing")
    elif trust.opaque_graphs:
        care.append("graph replays are opaque: no kernels, bytes or idle time inside them")
    per_step, layers = trust.kernels_per_step, trust.layers
    if not trust.opaque_graphs and per_step and layers and per_step < layers:
        bad.append(f"{per_step:.0f} kernels per step for {layers} layers: kernels are missing")
    if trust.devices_with_kernels < (trust.ranks_expected or 0):
        care.append(f"{trust.devices_with_kernels} of {trust.ranks_expected} ranks are in the capture")
    errors = [d.text for d in trace.capture.diagnostics if d.severity == "error"]
    bad.extend(f"the profiler reports an error: {text}" for text in errors[:2])
    warnings = len(trust.lost_events) - len(errors)
    if warnings > 0:
        care.append(f"the profiler reports {warnings} warning{'s' if warnings > 1 else ''} about lost or late events")
    launches = trace.launches.height
    lost = trust.launches_without_kernel or 0
    if launches and lost > MAX_GOOD_LOST_LAUNCHES * launches:
        care.append(f"{lost} of {launches} launches have no kernel record")
    rejected = sum(trust.rejected_rows.values())
    if rejected > MAX_GOOD_REJECTED * max(trace.kernel_count, 1):
        care.append(f"{rejected} rows of the capture were rejected")
    return bad, care


def _judge_contradictions(kernels: pl.DataFrame, trust: Trust, bad: list[str], care: list[str]) -> None:
    found = trust.contradictions
    if not found:
        return
    total_ms = kernels.filter("in_window").select((pl.col("end_ns") - pl.col("start_ns")).sum()).item() / 1e6
    weight = sum(c.gpu_ms for c in found if isinstance(c, Contradiction))
    text = f"{len(found)} contradiction{'s' if len(found) > 1 else ''} in the evidence"
    (bad if total_ms and weight > MAX_CONTRADICTED * total_ms else care).append(text)


def judge_status(found: SummaryInput, summary: Summary, trust: Trust) -> tuple[str, tuple[str, ...]]:
    """``ok``, ``partial`` or ``could_not_look``, and why it is not ``ok``.

    ``could_not_look``: nothing ran in the window, or only opaque graph replays of one phase, whose kernels are not there.
    ``partial``: something the tool exists for (phases, idle, a ratio, a stall's length) could not be told.
    """
    reasons = list(dict.fromkeys(found.reasons))
    if not found.time.devices:
        reasons.insert(0, "no kernels in the window")
        return "could_not_look", tuple(dict.fromkeys(reasons))
    if found.time.opaque_graphs:
        lost = found.time.opaque_reason == LOST
        what = "left no kernel records" if lost else "are opaque"
        reasons.append(f"graph replays {what}: recapture with --cuda-graph-trace=node")
        seen = {p for p, ms in summary.phase_ms.items() if ms > 0}
        inner = trust.kernels_per_step or 0
        few = inner < (trust.layers or 1) or not found.autoregressive
        if trust.layers is None:
            few = few or inner < MIN_KERNELS_PER_STEP
        if few and not seen & {"prefill", "mixed"}:
            return "could_not_look", tuple(dict.fromkeys(reasons))
    if not found.autoregressive and not any("autoregressive" in r for r in reasons):
        reasons.append("no autoregressive phases found")
    for key, words in IN_WORDS.items():
        why = summary.reasons.get(key)
        # A phase that did not run leaves nothing unanswered.
        if found.autoregressive and why and not why.startswith("there is no ") and why not in reasons:
            reasons.append(f"{words} not known: {why}")
    return ("partial" if reasons else "ok"), tuple(dict.fromkeys(reasons))
