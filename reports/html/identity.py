"""Who and what was measured, and how far to trust it: the two strips under the sentence."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...analysis.numeric import number_text as fmt
from ...analysis.records.analysis import Analysis
from .. import key_text
from ..ceilings import main_dtype, peak_of


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
    steps = summary.get("step_count")
    if capture.has_timeline:
        window = f"{fmt.milliseconds(summary.get('window_ms'))} of {fmt.milliseconds(summary.get('capture_ms'))}"
        facts.append(Fact("Window", window, f"{fmt.plural(steps, 'step')}" if steps else "no steps found"))
    else:
        measured = f"{fmt.milliseconds(summary.get('gpu_busy_ms'))} in {fmt.plural(summary['kernel_count'], 'kernel')}"
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
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    for device in analysis.devices:
        by_name.setdefault(str(device.get("gpu_name") or fmt.NOT_KNOWN), []).append(device)
    facts = []
    for name, group in by_name.items():
        first = group[0]
        count = f"{len(group)} × " if len(group) > 1 else ""
        source = first.get("gpu_source")
        named = name if name != fmt.NOT_KNOWN else f"device{'s' if len(group) > 1 else ''} of unknown make"
        facts.append(Fact("GPU", f"{count}{named}", f"named by {source}" if source else "not named by the capture"))
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


def short_source(source: Any) -> str:
    """Where a ceiling came from, without the document's own number (that is in the section on ceilings)."""
    return str(source or "").split(":")[0]


def _model_facts(analysis: Analysis) -> list[Fact]:
    serving, model = analysis.trace.capture.serving, analysis.model
    facts = []
    engine = serving.engine or analysis.trust.get("engine")
    facts.append(Fact("Engine", " ".join(x for x in (engine, serving.engine_version) if x) or fmt.NOT_KNOWN))
    name = model.get("name") or serving.model
    source = model.get("source") or model.get("how_known") or ("capture" if serving.model else "")
    dtype = " ".join(str(model[k]) for k in ("weight_dtype",) if model.get(k)) or serving.dtype or ""
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
    known, facts = analysis.trust, []
    present, used = known.get("devices_present"), known.get("devices_with_kernels")
    if used is not None:
        few = present is not None and used < present
        facts.append(Fact("Devices with kernels", f"{used} of {present if present is not None else '?'}", bad=few))
    per_step, layers = known.get("kernels_per_step"), known.get("layers")
    if per_step is not None:
        opaque = bool(layers) and per_step < layers
        note = f"{layers} layers" if layers else "layers not known"
        facts.append(Fact("Kernels per step", fmt.number(per_step), note, bad=opaque))
    facts += _evidence_fact(known.get("gpu_time_by_evidence") or {}, stepless=not analysis.summary.get("step_count"))
    excluded = known.get("steps_excluded")
    if excluded is not None:
        facts.append(Fact("Warm-up steps left out", fmt.whole(excluded)))
    if known.get("node_tracing_inflates_decode"):
        facts.append(Fact("Graph tracing", "by node", "slows decode steps"))
    clocks = known.get("clocks")
    facts.append(_clock_fact(clocks, key_text.reason_for(known, "clocks")))
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


def verdict_reasons(analysis: Analysis) -> list[str]:
    """Why the verdict is not ``good``, as the analysis says it."""
    reasons = analysis.trust.get("verdict_reasons") or analysis.trust.get("verdict_reason") or ()
    return [reasons] if isinstance(reasons, str) else [str(reason) for reason in reasons]


def _evidence_fact(shares: Mapping[str, Any], *, stepless: bool) -> list[Fact]:
    """The shares of GPU time by what told their phase; no alarm where the run has no phases at all."""
    total = sum(v for v in shares.values() if fmt.is_known(v))
    if not total:
        return []
    parts = [(k, v / total * 100) for k, v in shares.items() if fmt.is_known(v) and v > 0]
    text = ", ".join(f"{key_text.label(k)} {fmt.percent(v)}" for k, v in sorted(parts, key=lambda p: -p[1]))
    untagged = sum(v for k, v in parts if k == "none")
    return [
        Fact(
            "Phases by evidence", text.replace("none", "no evidence"), "of GPU time", bad=untagged > 20 and not stepless
        )
    ]


def _clock_fact(clocks: Any, why: str) -> Fact:
    """The SM clock the run had, or that none was captured."""
    if not isinstance(clocks, Mapping):
        return Fact("Clocks", str(clocks) if clocks else "not captured", "" if clocks else why)
    known = {k: v for k, v in clocks.items() if fmt.is_known(v) and isinstance(v, int | float)}
    text = ", ".join(f"{key_text.split_key(str(k))[0]} {key_text.by_key(str(k), v)}" for k, v in known.items())
    note = clocks.get("reason") or (f"from {key_text.label(str(clocks['source']))}" if clocks.get("source") else why)
    return Fact("Clocks", text or "not captured", str(note or ""))
