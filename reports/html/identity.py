"""Who and what was measured, and how far to trust it: the two strips under the sentence."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass

from ...analysis.gpus.run_ceilings import main_dtype, peak_of
from ...analysis.numeric import number_text as fmt
from ...analysis.records.analysis import Analysis
from ...analysis.records.devices import Device
from ...analysis.records.trust import Clocks, Trust
from .. import key_text
from ..first_screen.six_numbers import short_source

MAX_UNTAGGED_PCT = 20  # of GPU time; more without any evidence of its phase is a reason for care


@dataclass(frozen=True)
class Fact:
    """A label with its value and, in small type, where it came from; ``bad`` where it is a reason for care."""

    label: str
    value: str
    note: str = ""
    bad: bool = False


def identity(analysis: Analysis) -> list[Fact]:
    """Which GPU and which peak, which model, which window, which profiler."""
    capture, summary = analysis.trace.capture, analysis.summary
    facts = [*_gpu_facts(analysis), *_model_facts(analysis)]
    steps = summary.step_count
    if capture.has_timeline:
        window = f"{fmt.milliseconds(summary.window_ms)} of {fmt.milliseconds(summary.capture_ms)}"
        facts.append(Fact("Window", window, f"{fmt.plural(steps, 'step')}" if steps else "no steps found"))
    else:
        measured = f"{fmt.milliseconds(summary.gpu_busy_ms)} in {fmt.plural(summary.kernel_count, 'kernel')}"
        facts.append(Fact("Measured", measured, "durations without times"))
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
    by_name: dict[str | None, list[Device]] = {}
    for device in analysis.devices:
        by_name.setdefault(device.gpu_name or None, []).append(device)
    facts = []
    for name, group in by_name.items():
        first = group[0]
        count = f"{len(group)} × " if len(group) > 1 else ""
        named = name or f"device{'s' if len(group) > 1 else ''} of unknown make"
        how = f"named by {first.gpu_source}" if first.gpu_source else "not named by the capture"
        facts.append(Fact("GPU", f"{count}{named}", how))
        why = short_source(first.ceiling_source) or first.ceiling_reason or ""
        facts.append(Fact("Ceilings", ceilings_text(first, main_dtype(analysis.kernel_table)), why))
        if len(first.candidates) > 1:
            facts.append(Fact("Could also be", ", ".join(first.candidates), "the capture does not say which"))
    return facts


def ceilings_text(device: Device, dtype: str | None) -> str:
    """Peak FLOP rate for ``dtype`` (else the highest) and bandwidth of one device, as one line."""
    peak, name = peak_of(device, dtype)
    parts = [f"{name} {fmt.number(peak)} TFLOP/s dense"] if peak else []
    if device.memory_bandwidth_gbps is not None:
        parts.append(f"{fmt.number(device.memory_bandwidth_gbps)} GB/s")
    return ", ".join(parts) or fmt.NOT_KNOWN


def _model_facts(analysis: Analysis) -> list[Fact]:
    serving, model = analysis.trace.capture.serving, analysis.model
    facts = []
    engine = serving.engine or analysis.trust.engine
    facts.append(Fact("Engine", " ".join(x for x in (engine, serving.engine_version) if x) or fmt.NOT_KNOWN))
    name = model.get("name") or serving.model
    source = model.get("source") or ("capture" if serving.model else "")
    dtype = str(model.get("weight_dtype") or serving.dtype or "")
    shown = " ".join(x for x in (str(name) if name else fmt.NOT_KNOWN, dtype) if x)
    facts.append(Fact("Model", shown, _how_known(str(source)) if source and name else str(model.get("reason") or "")))
    parallel = model.get("tensor_parallel") or serving.tensor_parallel
    if parallel:
        facts.append(Fact("Tensor parallel", str(parallel)))
    return facts


def _how_known(source: str) -> str:
    """``from command line``, ``recognised``."""
    return source if source.startswith("recogni") else f"from {key_text.label(source)}"


def trust(analysis: Analysis) -> list[Fact]:
    """What the numbers rest on; ``bad`` marks what a reviewer would stop at."""
    known = analysis.trust
    present, used = known.devices_present, known.devices_with_kernels
    facts = [Fact("Devices with kernels", f"{used} of {present}", bad=used < present)]
    per_step, layers = known.kernels_per_step, known.layers
    if per_step is not None:
        opaque = layers is not None and per_step < layers
        note = f"{layers} layers" if layers else "layers not known"
        facts.append(Fact("Kernels per step", fmt.number(per_step), note, bad=opaque))
    facts += _evidence_fact(known.gpu_time_by_evidence, stepless=not analysis.summary.step_count)
    facts.append(Fact("Warm-up steps left out", fmt.whole(known.steps_excluded)))
    if known.node_tracing_inflates_decode:
        facts.append(Fact("Graph tracing", "by node", "slows decode steps"))
    facts.append(_clock_fact(known.clocks))
    return facts + _losses(known)


def _losses(known: Trust) -> list[Fact]:
    """What is missing from the capture, and what contradicts itself."""
    facts = []
    if known.launches_without_kernel:
        facts.append(Fact("Launch calls without a kernel", fmt.whole(known.launches_without_kernel)))
    if known.lost_events:
        facts.append(Fact("Losses reported", fmt.whole(len(known.lost_events)), bad=True))
    if known.rejected_rows:
        shown = "; ".join(f"{fmt.whole(n)} {reason}" for reason, n in known.rejected_rows.items())
        facts.append(Fact("Rows left out", shown))
    return facts + [Fact("Contradiction", text, bad=True) for text in known.contradictions_in_words]


def _evidence_fact(shares: Mapping[str, float], *, stepless: bool) -> list[Fact]:
    """The shares of GPU time by what told their phase; no alarm where the run has no phases at all."""
    total = sum(shares.values())
    if not total:
        return []
    parts = [(k, v / total * 100) for k, v in shares.items() if v > 0]
    text = ", ".join(f"{key_text.label(k)} {fmt.percent(v)}" for k, v in sorted(parts, key=lambda p: -p[1]))
    untagged = sum(v for k, v in parts if k == "none")
    bad = untagged > MAX_UNTAGGED_PCT and not stepless
    return [Fact("Phases by evidence", text.replace("none", "no evidence"), "of GPU time", bad=bad)]


def _clock_fact(clocks: Clocks | None) -> Fact:
    """The SM clock the run had, or that none was captured."""
    if clocks is None:
        return Fact("Clocks", "not captured")
    clock = clocks.sm_clock_mhz
    text = (
        f"{key_text.split_key('sm_clock_mhz')[0]} {key_text.by_key('sm_clock_mhz', clock)}" if clock is not None else ""
    )
    note = clocks.reason or (f"from {key_text.label(clocks.source)}" if clocks.source else "")
    return Fact("Clocks", text or "not captured", note)
