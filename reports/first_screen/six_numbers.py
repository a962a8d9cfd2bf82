"""The six numbers of the page's first screen, each with its spread, its denominator, and why it is not known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ...analysis.gpus.run_ceilings import main_dtype, peak_of
from ...analysis.numeric import number_text as fmt
from ...analysis.records.analysis import Analysis
from ...analysis.records.devices import Device
from ...analysis.records.summary import Spread
from ...analysis.summary.ratio_operands import ratio_operands
from .lines import batch_told, percentiles, phase_shares, prompts_only_in_mixed_steps

FEW = 5  # of fewer values only the largest is told, no percentiles


@dataclass(frozen=True)
class Headline:
    """One of the six numbers: the value in large type, its spread, what it was divided by, why it is not known."""

    key: str
    label: str
    value: str
    spread: str = ""
    denominator: str = ""
    footnote: str = ""
    known: bool = True
    shares: Sequence[tuple[str, float, str]] = ()  # (phase, % of busy, ms) of the split


@dataclass(frozen=True)
class ShownRatio:
    """One of the ratios of the first screen: of which phase, over which ceiling, and what its numerator counts."""

    key: str
    label: str
    phase: str
    ratio: Literal["mbu", "mfu"]
    unit: str
    counted: str


MBU = ShownRatio("decode_mbu", "Decode MBU", "decode", "mbu", "B", "bytes decode must move")
MIXED_MFU = ShownRatio("mixed_mfu", "Mixed MFU", "mixed", "mfu", "FLOP", "useful FLOP of mixed steps")
MFU = ShownRatio("prefill_mfu", "Prefill MFU", "prefill", "mfu", "FLOP", "useful FLOP of prefill")


def six_numbers(analysis: Analysis) -> list[Headline]:
    """The six numbers of the first screen."""
    mfu = MIXED_MFU if prompts_only_in_mixed_steps(analysis.summary) else MFU
    return [
        _split(analysis),
        _decode_step(analysis),
        _ratio(analysis, MBU),
        _ratio(analysis, mfu),
        _stalls(analysis),
        _idle(analysis),
    ]


def _split(analysis: Analysis) -> Headline:
    parts = [(p.phase, p.pct, p) for p in phase_shares(analysis.summary) if p.pct]
    busy = fmt.milliseconds(analysis.summary.gpu_busy_ms)
    known_parts = [part for part in parts if part[0] != "unknown"]
    # decode is what users wait for; without any, the phase that took most
    main = next((p for p in known_parts if p[0] == "decode"), max(known_parts, key=lambda p: p[1], default=None))
    value = f"{main[2].share} {main[0]}" if main else fmt.NOT_KNOWN
    spread = " · ".join(f"{p} {told.share}" for p, _, told in parts if not main or p != main[0])
    return Headline(
        "split", "GPU time by phase", value, spread, f"of {busy} busy (union of kernels, by step phase)",
        "GPU time by phase: " + "; ".join(f"{p} {told.time}" for p, _, told in parts) + f"; divided by {busy} busy.",
        known=main is not None, shares=[(p, pct, told.time) for p, pct, told in parts],
    )  # fmt: skip


def _decode_step(analysis: Analysis) -> Headline:
    """Pure decode steps; where every decode-bearing step is mixed, those, under their own name."""
    summary = analysis.summary
    mixed = bool(summary.mixed_step_ms.n and not summary.decode_step_ms.n)
    kind, spread = ("mixed", summary.mixed_step_ms) if mixed else ("decode", summary.decode_step_ms)
    what = fmt.plural(spread.n, "mixed step" if mixed else "pure decode step")
    batch = "" if mixed else batch_told(summary)
    what += f" (batch {batch})" if batch else ""
    return Headline(
        "decode-step", f"{kind.capitalize()} step, median", fmt.milliseconds(spread.p50) if spread.n else fmt.NOT_KNOWN,
        spread_text(spread), f"{what}, first kernel's start to last kernel's end" if spread.n else _why_no_step(analysis),
        known=spread.n > 0 and fmt.is_known(spread.p50),
    )  # fmt: skip


def spread_text(spread: Spread) -> str:
    """``p95 2.11 · p99 2.14 · max 2.14 ms``."""
    keys = ("p95", "p99", "max") if spread.n >= FEW else ("max",) if spread.n > 1 else ()
    parts = percentiles(spread, keys, fmt.number)
    return " · ".join(parts) + " ms" if parts else ""


def _ratio(analysis: Analysis, shown: ShownRatio) -> Headline:
    summary, key = analysis.summary, shown.key
    kernel, wall = summary[f"{key}_kernel_pct"], summary[f"{key}_wall_pct"]
    lower = shown is MBU and summary.decode_mbu_is_lower_bound
    ceiling, over = _ceiling(analysis.devices[0], shown, analysis) if analysis.devices else (None, "")
    if not fmt.is_known(kernel):
        why = _why(analysis, f"{key}_kernel_pct")
        return Headline(
            key.replace("_", "-"), f"{shown.label}, kernel time", fmt.percent(None), denominator=why, known=False
        )
    note = "weights only: KV lengths are not known" if lower else ""
    if fmt.is_known(wall):
        wall_text = f"{fmt.percent(wall, at_least=lower)} over wall time"
    else:
        wall_why = summary.reasons.get(f"{key}_wall_pct", "")
        wall_text = f"over wall time not known{': ' + wall_why if wall_why else ''}"
    return Headline(
        key.replace("_", "-"), f"{shown.label}, kernel time", fmt.percent(kernel, at_least=lower), wall_text,
        "; ".join(x for x in (f"of {over}", note) if x), footnote(analysis, shown, kernel, ceiling, over),
    )  # fmt: skip


def _ceiling(device: Device, shown: ShownRatio, analysis: Analysis) -> tuple[float | None, str]:
    """(bytes/s or FLOP/s of one device, the ceiling in words with its source)."""
    source = short_source(device.ceiling_source)
    if shown.ratio == "mfu":
        peak, name = peak_of(device, main_dtype(analysis.kernel_table))
        value, text = peak and peak * 1e12, f"{fmt.number(peak)} TFLOP/s {name} dense"
    else:
        bandwidth = device.memory_bandwidth_gbps
        value, text = bandwidth and bandwidth * 1e9, f"{fmt.number(bandwidth)} GB/s"
    return value, f"{text} ({source})" if source else text


def short_source(source: str | None) -> str:
    """Where a ceiling came from, without the document's own number (that is in the section on ceilings)."""
    return (source or "").split(":")[0]


def footnote(analysis: Analysis, shown: ShownRatio, percent: float, ceiling: float | None, ceiling_text: str) -> str:
    """How the ratio over kernel time came about, with its numbers where the steps hold them.

    ``ceiling``: bytes/s or FLOP/s of one device.
    """
    end = "Kernel time is the union of the phase's kernels; wall time runs from step end to step end."
    found = ratio_operands(analysis.steps, shown.phase, shown.ratio, percent, ceiling or 0.0)
    if found is None:
        return f"{shown.label}: {shown.counted} ÷ (time × {ceiling_text}). {end}"
    rows = fmt.plural(found.steps, f"{shown.phase} step")
    each = f" on {fmt.plural(found.devices, 'device')}" if found.devices > 1 else ""
    return (
        f"{shown.label} {fmt.percent(percent)} = {fmt.scaled(found.amount, shown.unit)} ({shown.counted}) ÷ "
        f"({fmt.nanoseconds(found.busy_ns)} of kernel time in {rows}{each} × {ceiling_text}). {end}"
    )


def _stalls(analysis: Analysis) -> Headline:
    summary = analysis.summary
    count, ms, share = summary.stall_count, summary.stall_ms, summary.stall_pct_of_window
    label = "Decode stalled by prefill"
    if ms is None:
        return Headline("stalls", label, fmt.NOT_KNOWN, denominator=_why(analysis, "stall_ms"), known=False)
    spread = ""
    if count:
        episodes = fmt.plural(summary.stall_episode_count or 0, "episode")
        longest = fmt.milliseconds(summary.stall_episode_max_ms)
        spread = f"{fmt.plural(count, 'stall')} in {episodes}, longest episode {longest}"
    each = f" of each of {len(analysis.groups)} groups" if len(analysis.groups) > 1 else ""
    note = (
        f"{fmt.percent(share)} of the {fmt.milliseconds(summary.window_ms)} window{each}" if share is not None else ""
    )
    if note and summary.prefill_without_waiters:
        note += f"; {fmt.plural(summary.prefill_without_waiters, 'prefill step')} held nobody"
    bound = summary.stall_ms_is_lower_bound is True
    value = fmt.milliseconds(ms, at_least=bound) if count else "none"
    return Headline("stalls", label, value, spread, note or _why(analysis, "stall_ms"))


def _idle(analysis: Analysis) -> Headline:
    summary = analysis.summary
    idle, nvml = summary.gpu_idle_ms, summary.nvml_utilization_pct
    meter = f"nvidia-smi would say {fmt.percent(nvml)} busy" if nvml is not None else ""
    if idle is None:
        return Headline("idle", "Device idle", fmt.NOT_KNOWN, meter, _why(analysis, "gpu_idle_ms"), known=False)
    spread = " · ".join(x for x in (f"copies only {fmt.milliseconds(summary.copy_only_ms)}", meter) if x)
    mean = f", mean of {len(analysis.devices)} devices" if len(analysis.devices) > 1 else ""
    note = f"of {fmt.milliseconds(summary.window_ms)} window{mean}"
    return Headline("idle", "Device idle", fmt.milliseconds(idle), spread, note)


def _why_no_step(analysis: Analysis) -> str:
    return "there is no decode step" if analysis.summary.step_count else _why(analysis, "decode_step_ms")


def _why(analysis: Analysis, key: str) -> str:
    found = analysis.summary.reasons.get(key, "")
    return found or (analysis.reasons[0] if analysis.reasons else "the analysis gives no reason")
