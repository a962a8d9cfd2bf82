"""The first screen: the sentence, six numbers, the top kernels, what is not known (``identity`` has the strips).

In the order in which a performance review asks. Each number carries its spread and its denominator.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from ...analysis.numeric import number_text as fmt
from ...analysis.records.analysis import Analysis
from .. import key_text
from ..ceilings import main_dtype, peak_of
from ..first_screen_lines import batch_told
from . import ratio_operands as operands
from .identity import short_source
from .sortable_tables import Column, Table, names, numbers, texts

PHASE_ORDER = ("prefill", "decode", "mixed", "other", "unknown")
TOP = 5
WORTH_A_TABLE = 0.02  # of kernel time that a phase must have
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


def sentence(analysis: Analysis) -> str:
    """The answer in one sentence; where there is none, why not."""
    given = analysis.summary.get("sentence") or analysis.summary.get("headline")
    if given:
        return str(given)
    if analysis.status == "could_not_look":
        return "Could not look: " + ("; ".join(analysis.reasons) or "the capture holds nothing to analyse") + "."
    if analysis.findings:
        return analysis.findings[0].sentence
    return _plain_sentence(analysis)


def _plain_sentence(analysis: Analysis) -> str:
    busy, window = analysis.summary.get("gpu_busy_ms"), analysis.summary.get("window_ms")
    text = f"The GPU was busy for {fmt.milliseconds(busy)} of {fmt.milliseconds(window)}"
    return f"{text}; {analysis.reasons[0]}." if analysis.reasons else f"{text}; no stall was found."


def six_numbers(analysis: Analysis) -> list[Headline]:
    """The six numbers of the first screen."""
    return [
        _split(analysis),
        _decode_step(analysis),
        _mbu(analysis),
        _mfu(analysis),
        _stalls(analysis),
        _idle(analysis),
    ]


def _split(analysis: Analysis) -> Headline:
    summary = analysis.summary
    times, shares = summary.get("phase_ms") or {}, summary.get("phase_pct") or {}
    known = [(p, shares.get(p), times.get(p)) for p in PHASE_ORDER]
    parts = [(p, float(s), fmt.milliseconds(ms)) for p, s, ms in known if fmt.is_known(s) and s]
    busy = fmt.milliseconds(summary.get("gpu_busy_ms"))
    known_parts = [part for part in parts if part[0] != "unknown"]
    # decode is what users wait for; without any, the phase that took most
    main = next((p for p in known_parts if p[0] == "decode"), max(known_parts, key=lambda p: p[1], default=None))
    value = f"{fmt.percent(main[1])} {main[0]}" if main else fmt.NOT_KNOWN
    spread = " · ".join(f"{p} {fmt.percent(s)}" for p, s, _ in parts if not main or p != main[0])
    return Headline(
        "split", "GPU time by phase", value, spread, f"of {busy} busy (union of kernels, by step phase)",
        "GPU time by phase: " + "; ".join(f"{p} {ms}" for p, _, ms in parts) + f"; divided by {busy} busy.",
        known=main is not None, shares=parts,
    )  # fmt: skip


def _decode_step(analysis: Analysis) -> Headline:
    """Pure decode steps; where every decode-bearing step is mixed, those, under their own name."""
    summary = analysis.summary
    kind = (
        "decode"
        if (summary.get("decode_step_ms") or {}).get("n") or not (summary.get("mixed_step_ms") or {}).get("n")
        else "mixed"
    )
    spread = summary.get(f"{kind}_step_ms") or {}
    n = spread.get("n") or 0
    what = fmt.plural(n, "pure decode step" if kind == "decode" else "mixed step")
    batch = batch_told(summary) if kind == "decode" else ""
    what += f" (batch {batch})" if batch else ""
    return Headline(
        "decode-step", f"{kind.capitalize()} step, median", fmt.milliseconds(spread.get("p50")) if n else fmt.NOT_KNOWN, spread_text(spread),
        f"{what}, first kernel's start to last kernel's end" if n else _why_no_step(analysis),
        known=n > 0 and fmt.is_known(spread.get("p50")),
    )  # fmt: skip


def spread_text(spread: Mapping[str, Any]) -> str:
    """``p95 2.11 · p99 2.14 · max 2.14 ms`` of a {n, p50, p95, p99, max} object."""
    n = spread.get("n") or 0
    keys = ("p95", "p99", "max") if n >= FEW else ("max",) if n > 1 else ()
    parts = [f"{k} {fmt.number(spread[k])}" for k in keys if fmt.is_known(spread.get(k))]
    return " · ".join(parts) + " ms" if parts else ""


def _mbu(analysis: Analysis) -> Headline:
    return _ratio(analysis, operands.MBU)


def _mfu(analysis: Analysis) -> Headline:
    """Prefill steps; with chunked prefill all prompt work sits in mixed ones, which have their own name."""
    summary = analysis.summary
    mixed = (summary.get("mixed_step_ms") or {}).get("n") and not (summary.get("prefill_step_ms") or {}).get("n")
    return _ratio(analysis, operands.MIXED_MFU if mixed else operands.MFU)


def _ratio(analysis: Analysis, ratio: operands.Ratio) -> Headline:
    summary, key, label = analysis.summary, ratio.key, ratio.label
    kernel, wall = summary.get(f"{key}_kernel_pct"), summary.get(f"{key}_wall_pct")
    lower = bool(summary.get(f"{key}_lower_bound") or summary.get(f"{key}_is_lower_bound"))
    device = analysis.devices[0] if analysis.devices else {}
    ceiling, over = _ceiling(device, ratio, main_dtype(analysis))
    why = _why(analysis, f"{key}_kernel_pct")
    known = fmt.is_known(kernel)
    note = str(summary.get(f"{key}_note") or "") or (
        "weights only: KV lengths are not known" if lower and known else ""
    )
    wall_text = f"{fmt.percent(wall, at_least=lower and fmt.is_known(wall))} over wall time"
    if not fmt.is_known(wall):
        wall_why = key_text.reason_for(summary, f"{key}_wall_pct")
        wall_text = f"over wall time not known{': ' + wall_why if wall_why and known else ''}"
    return Headline(
        key.replace("_", "-"), f"{label}, kernel time", fmt.percent(kernel, at_least=lower and known),
        wall_text if known else "", "; ".join(x for x in (f"of {over}" if known else why, note) if x),
        operands.footnote(analysis, ratio, kernel, ceiling, over) if known else "",
        known=known,
    )  # fmt: skip


def _ceiling(device: Mapping[str, Any], ratio: operands.Ratio, dtype: str | None) -> tuple[float | None, str]:
    """(bytes/s or FLOP/s of one device, the ceiling in words with its source)."""
    source = short_source(device.get("ceiling_source"))
    peak, name = peak_of(device, dtype)
    bandwidth = device.get("memory_bandwidth_gbps")
    if ratio.column == "flop":
        value, text = peak and peak * 1e12, f"{fmt.number(peak)} TFLOP/s {name} dense"
    else:
        value, text = bandwidth and bandwidth * 1e9, f"{fmt.number(bandwidth)} GB/s"
    return value, f"{text} ({source})" if source else text


def _stalls(analysis: Analysis) -> Headline:
    summary = analysis.summary
    count, ms = summary.get("stall_count"), summary.get("stall_ms")
    known = fmt.is_known(ms)
    episodes, longest = summary.get("stall_episode_count"), summary.get("stall_episode_max_ms")
    spread = ""
    if known and count:
        spread = f"{fmt.plural(count, 'stall')} in {fmt.plural(episodes or 0, 'episode')}, longest episode {fmt.milliseconds(longest)}"
    share = summary.get("stall_pct_of_window")
    window = fmt.milliseconds(summary.get("window_ms"))
    free = summary.get("prefill_without_waiters")
    each = f" of each of {len(analysis.groups)} groups" if len(analysis.groups) > 1 else ""
    note = f"{fmt.percent(share)} of the {window} window{each}" if known and fmt.is_known(share) else ""
    if free:
        note += f"; {fmt.plural(free, 'prefill step')} held nobody" if note else ""
    value = (
        fmt.milliseconds(ms, at_least=bool(summary.get("stall_ms_is_lower_bound"))) if count or not known else "none"
    )
    return Headline(
        "stalls", "Decode stalled by prefill", value, spread, note or _why(analysis, "stall_ms"), known=known
    )


def _idle(analysis: Analysis) -> Headline:
    summary = analysis.summary
    idle = summary.get("gpu_idle_ms")
    known = fmt.is_known(idle)
    nvml = summary.get("nvml_utilization_pct")
    spread = f"copies only {fmt.milliseconds(summary.get('copy_only_ms'))}" if known else ""
    if fmt.is_known(nvml):
        spread += (" · " if spread else "") + f"nvidia-smi would say {fmt.percent(nvml)} busy"
    many = len(analysis.devices) > 1
    note = f"of {fmt.milliseconds(summary.get('window_ms'))} window{', mean of ' + str(len(analysis.devices)) + ' devices' if many else ''}"
    return Headline(
        "idle",
        "Device idle",
        fmt.milliseconds(idle),
        spread,
        note if known else _why(analysis, "gpu_idle_ms"),
        known=known,
    )


def _why_no_step(analysis: Analysis) -> str:
    steps = analysis.summary.get("step_count")
    return "there is no decode step" if steps else _why(analysis, "decode_step_ms")


def _why(analysis: Analysis, key: str) -> str:
    found = key_text.reason_for(analysis.summary, key)
    return found or (analysis.reasons[0] if analysis.reasons else "the analysis gives no reason")


def top_tables(analysis: Analysis) -> list[tuple[str, Table]]:
    """The five heaviest kernels of each of the two phases that matter: decode, and the other that takes most time."""
    table = analysis.kernel_table
    by_phase = table.group_by("phase").agg(pl.col("total_ms").sum().alias("ms")).to_dicts()
    time = {row["phase"]: row["ms"] for row in by_phase if row["ms"]}
    worth = {p for p, ms in time.items() if ms >= WORTH_A_TABLE * sum(time.values())}
    ranked = sorted(worth, key=lambda p: -time[p])
    # what users wait for comes first; beside it the phase that takes most time
    phases = (["decode"] if "decode" in worth else []) + [p for p in ranked if p != "decode"]
    phases = phases[:2]
    alone = len(phases) == 1
    rows = 2 * TOP if alone else TOP
    opaque = bool(analysis.trust.get("opaque_graphs"))
    tables = [(p, top_table(table.filter(pl.col("phase") == p).head(rows), p, time[p], alone=alone)) for p in phases]
    return [(p, replace(t, caption=f"{t.caption}, of those recorded") if opaque else t) for p, t in tables]


def top_table(rows: pl.DataFrame, phase: str, phase_ms: float, *, alone: bool) -> Table:
    """One phase's heaviest kernels: MBU in decode, MFU elsewhere, both where there is room."""
    get = rows.get_column
    reasons = [r or "" for r in get("reason")]
    ratios = ("mfu_pct", "mbu_pct") if alone else ("mbu_pct",) if phase == "decode" else ("mfu_pct",)
    columns = [
        names("name", "Kernel", get("short_name").to_list(), get("name").to_list(), limit=60 if alone else 22),
        texts("op_class", "Class", [key_text.label(x) for x in get("op_class")]),
        numbers("count_per_step", "/ step", get("count_per_step").to_list(), help="launches per step"),
        numbers("median_us", "p50", get("median_us").to_list(), unit="µs"),
        numbers("share", "% of", [ms / phase_ms * 100 for ms in get("total_ms")], unit="time" if phase == "unknown" else phase, show=lambda v: f"{v:.1f}"),
        numbers("arithmetic_intensity", "AI", get("arithmetic_intensity").to_list(), unit="FLOP/B", reasons=reasons, help="arithmetic intensity"),
        *(ratio_column(rows, ratio, reasons) for ratio in ratios),
        texts("bound", "Bound", ["comm." if b == "communication" and not alone else str(b) for b in get("bound")], help="; ".join(dict.fromkeys(r for r in reasons if r))),
        numbers("headroom_ms", "Headroom", get("headroom_ms").to_list(), unit="ms", reasons=reasons, help="time above the roofline"),
    ]  # fmt: skip
    known = {c.key for c in columns if set(c.text) - {"–", "unknown"}}
    if alone:  # a column without any number is no help
        columns = [c for c in columns if c.key in known or c.key == "op_class"]
    return Table(
        f"top-{phase}",
        "Top kernels" if phase == "unknown" else f"Top kernels, {phase}",
        columns,
        rows.height,
        plain=True,
    )


def ratio_column(rows: pl.DataFrame, key: str, reasons: Sequence[str]) -> Column:
    """MFU or MBU with its numerator and denominator on hover."""
    label = "MFU" if key == "mfu_pct" else "MBU"
    amount, unit = ("flop", "FLOP") if key == "mfu_pct" else ("bytes", "B")
    values = rows.get_column(key).to_list()
    column = numbers(key, label, values, unit="%", show=lambda v: f"{v:.1f}", reasons=reasons)
    title = []
    for i, (value, total, ms) in enumerate(
        zip(values, rows.get_column(amount), rows.get_column("total_ms"), strict=True)
    ):
        if fmt.is_known(value):
            title.append(
                f"{fmt.scaled(total, unit)} in {fmt.milliseconds(ms)} of kernel time, over this device's ceiling"
            )
        else:
            title.append(column.title[i] if column.title else "")
    return Column(column.key, column.label, column.unit, column.kind, column.text, column.raw, title)


def undetermined(analysis: Analysis) -> tuple[list[tuple[str, str]], str]:
    """((what, consequence) pairs, one command to copy): what the capture cannot say and how to record it."""
    gaps = analysis.trace.gaps_in_evidence
    pairs = [(gap.what, gap.consequence) for gap in gaps]
    seen = {what for what, _ in pairs}
    # a reason may begin with the key it is about: that is for programs, a reader gets its words
    reasons = [
        re.sub(r"^[a-z]+(_[a-z0-9]+)+(?=: )", lambda m: key_text.split_key(m[0])[0], r) for r in analysis.reasons
    ]
    pairs += [(reason, "") for reason in reasons if reason not in seen]
    commands = [gap.recapture for gap in gaps if gap.recapture]
    return pairs, max(commands, key=len, default="")
