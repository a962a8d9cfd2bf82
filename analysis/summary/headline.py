"""The first screen's one sentence: a number, a cause and a lever, with nothing said about things not measured."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from ..numeric.number_text import plural, short_duration, short_percent
from ..records.summary import Summary
from .summary_input import SummaryInput

MIN_MEMORY_BOUND_PCT = 50  # above half of the bandwidth, bandwidth is what decode waits for
SHORT_NAMES = (("NVIDIA ", ""), ("Tesla ", ""), ("GeForce ", ""))


def headline_of(found: SummaryInput, summary: Summary, status: str, reasons: Sequence[str]) -> str:
    """One sentence: how near decode (or prefill) is to the GPU, who waited for prefill and how long, the largest lever."""
    if status == "could_not_look":
        return f"Could not look: {reasons[0]}." if reasons else "Could not look."
    gpu = _gpu(found)
    if not found.trace.capture.has_timeline:
        ran = f"{plural(summary.kernel_count, 'kernel')} took {short_duration(summary.gpu_busy_ms)} of {gpu}"
        return f"{ran}; without their times there are no steps, idle time or stalls."
    if not found.autoregressive:
        busy = summary.nvml_utilization_pct
        share = (
            f"{gpu} ran kernels for {short_percent(busy)} of {short_duration(found.time.window_ns / 1e6)}"
            if busy is not None
            else gpu
        )
        return f"No autoregressive phases found; {share}."
    parts = [_rate(found, summary, gpu)]
    if summary.decode_step_ms.n or summary.mixed_step_ms.n:
        parts.append(_waiting(found, summary))
    lever = next((f.lever for f in found.findings if f.lever and f.kind == "serving"), None)
    if lever:
        parts.append(
            f"the largest lever: {lever[0].lower() + lever[1:]}"
            if lever[:2].istitle()
            else f"the largest lever: {lever}"
        )
    return "; ".join(p for p in parts if p).rstrip(".") + "."


def _gpu(found: SummaryInput) -> str:
    names = [c.gpu_name for c in found.ceilings if c.gpu_name]
    name = names[0] if names else next(iter(found.trace.devices["gpu_name"].drop_nulls()), None) or "the GPU"
    for long, short in SHORT_NAMES:
        name = name.replace(long, short)
    return str(name)


def _rate(found: SummaryInput, summary: Summary, gpu: str) -> str:
    decode, prefill = summary.decode_step_ms, summary.prefill_step_ms
    mbu, mfu = summary.decode_mbu_kernel_pct, summary.prefill_mfu_kernel_pct
    if decode.n and mbu is not None:
        how = "is memory-bound" if mbu >= MIN_MEMORY_BOUND_PCT else "runs"
        if summary.decode_mbu_is_lower_bound:
            return f"Decode {how} at {short_percent(mbu)} MBU or more of {gpu} (KV reads not known)"
        return f"Decode {how} at {short_percent(mbu)} MBU of {gpu}"
    if decode.p50 is not None:
        batch = summary.decode_batch_p50
        at = f" for {plural(batch, 'request')}" if batch else ""
        return f"A decode step takes {short_duration(decode.p50)}{at} on {gpu} (median of {decode.n})"
    steps, kind = (prefill, "prefill") if prefill.n else (summary.mixed_step_ms, "mixed")
    if steps.p50 is None:
        return f"No complete step in {short_duration(found.time.window_ns / 1e6)} on {gpu}"
    ratio = f"at {short_percent(mfu)} MFU of {gpu}" if mfu is not None and kind == "prefill" else f"on {gpu}"
    return f"A {kind} step takes {short_duration(steps.p50)} {ratio} (median of {steps.n})"


def _waiting(found: SummaryInput, summary: Summary) -> str:
    stalls = found.stalls.stalls
    if summary.stall_count is None or found.stalls.gaps.is_empty():
        return ""
    if stalls.is_empty():
        return "no decoding request waited for prefill"
    kinds = dict(stalls.group_by(pl.col("kind").cast(pl.String)).len().iter_rows())
    steps = int(stalls["steps"].list.len().sum())
    noun = {"prefill_step": "prefill step", "mixed_step": "mixed step"}
    name = noun[next(iter(kinds))] if len(kinds) == 1 else "prefill or mixed step"
    held = stalls["requests_held"].drop_nulls()
    who = f"up to {plural(int(held.to_numpy().max()), 'request')}" if held.len() else "decoding requests"
    if summary.stall_ms is None:
        return f"{plural(steps, name)} held {who} (for how long is not known: no baseline)"
    share = summary.stall_pct_of_window
    text = f"{plural(steps, name)} held {who} for {short_duration(summary.stall_ms)}"
    episodes = stalls["episode"].n_unique()
    if episodes != stalls.height:
        text += f" in {plural(episodes, 'episode')}"
    groups = found.groups.height
    window = "the window" if groups < 2 else f"the window of {groups} groups"
    return text if share is None else f"{text} ({short_percent(share)} of {window})"
