"""The first screen: the sentence, who and what was measured, how far to trust it, six numbers, the top kernels.

In the order in which a performance review asks. Each number carries its spread and its denominator.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from ...analysis.result import Analysis
from .. import format as fmt
from .tables import Column, Table, names, numbers, texts

PHASE_ORDER = ("prefill", "decode", "mixed", "other", "unknown")
TOP = 5


@dataclass(frozen=True)
class Fact:
    """A label with its value and, in small type, where it came from; ``bad`` where it is a reason for care."""

    label: str
    value: str
    note: str = ""
    bad: bool = False


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


def identity(analysis: Analysis) -> list[Fact]:
    """Which GPU and which peak, which model, which window, which profiler."""
    capture, summary = analysis.trace.capture, analysis.summary
    facts = [*_gpu_facts(analysis), *_model_facts(analysis)]
    steps = summary.get("step_count")
    window = f"{fmt.milliseconds(summary.get('window_ms'))} of {fmt.milliseconds(summary.get('capture_ms'))}"
    facts.append(Fact("Window", window, f"{fmt.plural(steps, 'step')}" if steps else "no steps found"))
    if capture.session_start_utc_ns:
        moment = datetime.datetime.fromtimestamp(capture.session_start_utc_ns / 1e9, tz=datetime.UTC)
        facts.append(Fact("Captured", f"{moment:%Y-%m-%d %H:%M} UTC"))
    product = " ".join(x for x in (capture.product or capture.format, capture.product_version) if x)
    mode = capture.graph_trace_mode
    facts.append(Fact("Profiler", product, f"graphs by {mode}" if mode else "graph mode not recorded"))
    return facts


def _gpu_facts(analysis: Analysis) -> list[Fact]:
    if not analysis.devices:
        return [Fact("GPU", fmt.NOT_KNOWN, "no device with kernels")]
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    for device in analysis.devices:
        by_name.setdefault(str(device.get("gpu_name") or fmt.NOT_KNOWN), []).append(device)
    facts = []
    for name, group in by_name.items():
        first = group[0]
        count = f"{len(group)} × " if len(group) > 1 else ""
        source = first.get("gpu_source")
        facts.append(Fact("GPU", f"{count}{name}", f"named by {source}" if source else "not named by the capture"))
        why = short_source(first.get("ceiling_source")) or str(first.get("ceiling_reason") or "")
        facts.append(Fact("Ceilings", ceilings_text(first, main_dtype(analysis)), why))
        others = first.get("candidates") or ()
        if len(others) > 1:
            facts.append(Fact("Could also be", ", ".join(map(str, others)), "the capture does not say which"))
    return facts


def ceilings_text(device: Mapping[str, Any], dtype: str | None) -> str:
    """Peak FLOP rate for ``dtype`` (else the highest) and bandwidth of one device, as one line."""
    peak, name = peak_of(device, dtype)
    parts = [f"{name} {fmt.number(peak)} TFLOP/s dense"] if peak else []
    bandwidth = device.get("memory_bandwidth_gbps")
    if fmt.is_known(bandwidth):
        parts.append(f"{fmt.number(bandwidth)} GB/s")
    return ", ".join(parts) or fmt.NOT_KNOWN


def peak_of(device: Mapping[str, Any], dtype: str | None) -> tuple[float | None, str]:
    """(TFLOP/s, data type) that the run's work is held against; (None, '') where no peak is known."""
    peaks = {k: v for k, v in (device.get("peak_tflops") or {}).items() if fmt.is_known(v)}
    if dtype in peaks:
        return peaks[dtype], str(dtype)
    name = next((d for d in ("bf16", "fp16", "fp8", "tf32", "fp32") if d in peaks), next(iter(peaks), ""))
    return peaks.get(name), name


def main_dtype(analysis: Analysis) -> str | None:
    """The data type most kernel time computes in; None where no kernel names one."""
    known = analysis.kernel_table.filter(pl.col("dtype").is_not_null() & (pl.col("dtype") != ""))
    by_type = known.group_by("dtype").agg(pl.col("total_ms").sum()).sort("total_ms", "dtype", descending=[True, False])
    return None if by_type.is_empty() else str(by_type["dtype"][0])


def short_source(source: Any) -> str:
    """Where a ceiling came from, without the document's own number (that is in the section on ceilings)."""
    return str(source or "").split(":")[0]


def _model_facts(analysis: Analysis) -> list[Fact]:
    serving, model = analysis.trace.capture.serving, analysis.model
    facts = []
    engine = serving.engine or model.get("engine") or analysis.summary.get("engine")
    facts.append(Fact("Engine", " ".join(x for x in (engine, serving.engine_version) if x) or fmt.NOT_KNOWN))
    name = model.get("name") or serving.model
    source = model.get("source") or model.get("how_known") or ("capture" if serving.model else "")
    dtype = " ".join(str(model[k]) for k in ("weight_dtype",) if model.get(k)) or serving.dtype or ""
    shown = " ".join(x for x in (str(name) if name else fmt.NOT_KNOWN, dtype) if x)
    facts.append(
        Fact("Model", shown, f"from {fmt.label(str(source))}" if source and name else str(model.get("reason") or ""))
    )
    parallel = model.get("tensor_parallel") or serving.tensor_parallel
    if parallel:
        facts.append(Fact("Tensor parallel", str(parallel)))
    return facts


def trust(analysis: Analysis) -> list[Fact]:
    """What the numbers rest on; ``bad`` marks what a reviewer would stop at."""
    known, facts = analysis.trust, []
    present, used = known.get("devices_present"), known.get("devices_with_kernels")
    if used is not None:
        few = present is not None and used < present
        facts.append(Fact("Devices with kernels", f"{used} of {present if present is not None else '?'}", bad=few))
    per_step, layers = known.get("kernels_per_step"), known.get("layers")
    if per_step is not None:
        opaque = bool(layers) and per_step < layers
        note = f"{layers} layers" if layers else "layers not known"
        facts.append(Fact("Kernels per decode step", fmt.number(per_step), note, bad=opaque))
    facts += _evidence_fact(known.get("gpu_time_by_evidence") or {})
    excluded = known.get("steps_excluded")
    if excluded is not None:
        facts.append(Fact("Warm-up steps left out", fmt.whole(excluded)))
    if known.get("node_tracing_inflates_decode"):
        facts.append(Fact("Graph tracing", "by node", "slows decode steps"))
    clocks = known.get("clocks")
    facts.append(Fact("Clocks", _clock_text(clocks), "" if clocks else fmt.reason_for(known, "clocks")))
    for key, name in (("launches_without_kernel", "launch calls without a kernel"), ("lost_events", "losses reported")):
        value = known.get(key)
        count = value if isinstance(value, int) else len(value or ())
        if count:
            facts.append(Fact(name.capitalize(), fmt.whole(count), bad=key == "lost_events"))
    rejected = known.get("rejected_rows") or {}
    if rejected:
        shown = "; ".join(f"{fmt.whole(n)} {reason}" for reason, n in rejected.items())
        facts.append(Fact("Rows left out", shown))
    facts += [Fact("Contradiction", str(text), bad=True) for text in known.get("contradictions") or ()]
    return facts


def _evidence_fact(shares: Mapping[str, Any]) -> list[Fact]:
    total = sum(v for v in shares.values() if fmt.is_known(v))
    if not total:
        return []
    parts = [(k, v / total * 100) for k, v in shares.items() if fmt.is_known(v) and v > 0]
    text = ", ".join(f"{fmt.label(k)} {fmt.percent(v)}" for k, v in sorted(parts, key=lambda p: -p[1]))
    untagged = sum(v for k, v in parts if k == "none")
    return [Fact("Phases by evidence", text.replace("none", "no evidence"), "of GPU time", bad=untagged > 20)]


def _clock_text(clocks: Any) -> str:
    if not clocks:
        return "not captured"
    if isinstance(clocks, Mapping):
        return ", ".join(
            f"{fmt.split_key(str(k))[0]} {fmt.by_key(str(k), v)}"
            for k, v in clocks.items()
            if v is not None and not isinstance(v, Mapping | list)
        )
    return str(clocks)


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
    value = fmt.percent(shares.get("decode")) + " decode" if fmt.is_known(shares.get("decode")) else fmt.NOT_KNOWN
    spread = " · ".join(f"{p} {fmt.percent(s)}" for p, s, _ in parts if p != "decode")
    return Headline(
        "split", "GPU time by phase", value, spread, f"of {busy} busy (union of kernels, by step phase)",
        "GPU time by phase: " + "; ".join(f"{p} {ms}" for p, _, ms in parts) + f"; divided by {busy} busy.",
        known=bool(parts), shares=parts,
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
    return Headline(
        "decode-step", f"{kind.capitalize()} step, median", fmt.milliseconds(spread.get("p50")) if n else fmt.NOT_KNOWN, spread_text(spread),
        f"{what}, first kernel's start to last kernel's end" if n else _why(analysis, "decode_step_ms"),
        known=n > 0 and fmt.is_known(spread.get("p50")),
    )  # fmt: skip


def spread_text(spread: Mapping[str, Any]) -> str:
    """``p95 2.11 · p99 2.14 · max 2.14 ms`` of a {n, p50, p95, p99, max} object."""
    parts = [f"{k} {fmt.number(spread[k])}" for k in ("p95", "p99", "max") if fmt.is_known(spread.get(k))]
    return " · ".join(parts) + " ms" if parts else ""


def _mbu(analysis: Analysis) -> Headline:
    return _ratio(analysis, "decode_mbu", "Decode MBU", "memory_bandwidth_gbps", "bytes decode must move")


def _mfu(analysis: Analysis) -> Headline:
    return _ratio(analysis, "prefill_mfu", "Prefill MFU", "peak_tflops", "useful FLOP of prefill")


def _ratio(analysis: Analysis, key: str, label: str, ceiling: str, numerator: str) -> Headline:
    summary = analysis.summary
    kernel, wall = summary.get(f"{key}_kernel_pct"), summary.get(f"{key}_wall_pct")
    lower = bool(summary.get(f"{key}_lower_bound") or summary.get(f"{key}_is_lower_bound"))
    device = analysis.devices[0] if analysis.devices else {}
    over = _ceiling_text(device, ceiling, main_dtype(analysis))
    why = _why(analysis, f"{key}_kernel_pct")
    known = fmt.is_known(kernel)
    note = str(summary.get(f"{key}_note") or "") or (
        "weights only: KV lengths are not known" if lower and known else ""
    )
    wall_text = f"{fmt.percent(wall, at_least=lower and fmt.is_known(wall))} over wall time"
    if not fmt.is_known(wall):
        wall_why = fmt.reason_for(summary, f"{key}_wall_pct")
        wall_text = f"over wall time not known{': ' + wall_why if wall_why and known else ''}"
    return Headline(
        key.replace("_", "-"), f"{label}, kernel time", fmt.percent(kernel, at_least=lower and known),
        wall_text if known else "", "; ".join(x for x in (f"of {over}" if known else why, note) if x),
        f"{label}: {numerator} ÷ (time × {over}). Kernel time is the union of the phase's kernels; wall time runs from step end to step end." if known else "",
        known=known,
    )  # fmt: skip


def _ceiling_text(device: Mapping[str, Any], ceiling: str, dtype: str | None) -> str:
    source = short_source(device.get("ceiling_source"))
    if ceiling == "peak_tflops":
        peak, name = peak_of(device, dtype)
        text = f"{fmt.number(peak)} TFLOP/s {name} dense"
    else:
        text = f"{fmt.number(device.get(ceiling))} GB/s"
    return f"{text} ({source})" if source else text


def _stalls(analysis: Analysis) -> Headline:
    summary = analysis.summary
    count, ms = summary.get("stall_count"), summary.get("stall_ms")
    known = fmt.is_known(ms)
    episodes, longest = summary.get("stall_episode_count"), summary.get("stall_episode_max_ms")
    spread = ""
    if known and count:
        spread = f"{fmt.plural(count, 'stall')} in {fmt.plural(episodes or 0, 'episode')}, longest {fmt.milliseconds(longest)}"
    share = summary.get("stall_pct_of_window")
    window = fmt.milliseconds(summary.get("window_ms"))
    free = summary.get("prefill_without_waiters")
    note = f"{fmt.percent(share)} of the {window} window" if known and fmt.is_known(share) else ""
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


def _why(analysis: Analysis, key: str) -> str:
    found = fmt.reason_for(analysis.summary, key)
    return found or (analysis.reasons[0] if analysis.reasons else "the analysis gives no reason")


def top_tables(analysis: Analysis) -> list[tuple[str, Table]]:
    """The five heaviest kernels of each of the two phases that matter: decode and prefill where they exist."""
    table = analysis.kernel_table
    time = {
        row["phase"]: row["ms"] for row in table.group_by("phase").agg(pl.col("total_ms").sum().alias("ms")).to_dicts()
    }
    wanted = [p for p in ("decode", "prefill") if time.get(p)]
    rest = sorted((p for p in time if p not in wanted and time[p]), key=lambda p: -time[p])
    phases = (wanted + rest)[:2]
    rows = TOP if len(phases) > 1 else 2 * TOP
    return [
        (
            phase,
            top_table(table.filter(pl.col("phase") == phase).head(rows), phase, time[phase], alone=len(phases) == 1),
        )
        for phase in phases
    ]


def top_table(rows: pl.DataFrame, phase: str, phase_ms: float, *, alone: bool) -> Table:
    """One phase's heaviest kernels: MBU in decode, MFU elsewhere, both where there is room."""
    get = rows.get_column
    reasons = [r or "" for r in get("reason")]
    ratios = ("mfu_pct", "mbu_pct") if alone else ("mbu_pct",) if phase == "decode" else ("mfu_pct",)
    columns = [
        names("name", "Kernel", get("short_name").to_list(), get("name").to_list(), limit=60 if alone else 26),
        texts("op_class", "Class", [fmt.label(x) for x in get("op_class")]),
        numbers("count_per_step", "/ step", get("count_per_step").to_list(), help="launches per step"),
        numbers("median_us", "median", get("median_us").to_list(), unit="µs"),
        numbers("share", "% of", [ms / phase_ms * 100 for ms in get("total_ms")], unit=phase, show=lambda v: f"{v:.1f}"),
        numbers("arithmetic_intensity", "AI", get("arithmetic_intensity").to_list(), unit="FLOP/B", reasons=reasons, help="arithmetic intensity"),
        *(ratio_column(rows, ratio, reasons) for ratio in ratios),
        texts("bound", "Bound", [str(b) for b in get("bound")], help="; ".join({r for r in reasons if r})),
        numbers("headroom_ms", "Headroom", get("headroom_ms").to_list(), unit="ms", reasons=reasons, help="time above the roofline"),
    ]  # fmt: skip
    return Table(f"top-{phase}", f"Top kernels, {phase}", columns, rows.height, plain=True)


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
    pairs += [(reason, "") for reason in analysis.reasons if reason not in seen]
    commands = [gap.recapture for gap in gaps if gap.recapture]
    return pairs, max(commands, key=len, default="")


def verdict_reasons(analysis: Analysis) -> list[str]:
    """Why the verdict is not ``good``, as the analysis says it."""
    reasons = analysis.trust.get("verdict_reasons") or analysis.trust.get("verdict_reason") or ()
    return [reasons] if isinstance(reasons, str) else [str(reason) for reason in reasons]
