"""The first screen's facts in words, the same in the terminal, Markdown, notebooks and the page.

Where a number is not known its text is '' and the reason stands beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..analysis.numeric.number_text import is_known, milliseconds, number, percent, plural
from ..analysis.records.analysis import Analysis
from .ceilings import main_dtype, peak_of
from .key_text import reason_for


def model_line(analysis: Analysis) -> str:
    """The model with its weights' type, how it is known, the parallelism and the engine; else why it is not known."""
    model = analysis.model
    if model.get("name"):
        source = str(model.get("source") or "").replace("_", " ")
        parts = [" ".join(str(model[k]) for k in ("name", "weight_dtype") if model.get(k))]
        if model.get("tensor_parallel"):
            parts.append(f"TP {model['tensor_parallel']}")
        if source:
            parts.append(source if source.startswith("recogni") else f"from {source}")
    else:
        could = model.get("candidates") or ()
        parts = [
            f"not known (could be {' or '.join(map(str, could))}; give --model)"
            if could
            else "not known (give --model)"
        ]
        if not analysis.summary.get("step_count"):
            parts = ["not known"]
        if (analysis.trust.get("gpu_time_by_work_source") or {}).get("name"):
            parts.append("GEMM work bounded by tiles and grids")
    engine = analysis.trust.get("engine") or analysis.trace.capture.serving.engine
    return ", ".join([*parts, f"engine {engine}"] if engine else parts)


def batch_told(summary: Mapping[str, Any]) -> str:
    """``7 to 9``, and where it still grows at the start: ``1 to 32, ramping up over the first 5 steps``; '' if unknown."""
    low, high, ramp = (summary.get(key) for key in ("decode_batch_min", "decode_batch_max", "decode_ramp"))
    if not is_known(low) or not is_known(high):
        return ""
    told = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    return told + (f", ramping up over the first {ramp['steps']:,} steps" if ramp else "")


def gpu_line(analysis: Analysis) -> str:
    """The GPUs with their peaks and where each came from: ``2 x NVIDIA A100-SXM4-80GB, 312 TFLOP/s bf16, ...``."""
    if not analysis.devices:
        return "none with activity"
    kinds: dict[str, tuple[int, Mapping[str, Any]]] = {}
    for device in analysis.devices:
        name = str(device.get("gpu_name") or "")
        kinds[name] = (kinds.get(name, (0, device))[0] + 1, device)
    dtype = main_dtype(analysis)
    return " | ".join(_gpu(name, count, device, dtype) for name, (count, device) in kinds.items())


def _gpu(name: str, count: int, device: Mapping[str, Any], dtype: str | None) -> str:
    times = f"{count} x " if count > 1 else ""
    peak, of = peak_of(device, dtype)
    bandwidth = device.get("memory_bandwidth_gbps")
    parts = [f"{times}{name}" if name else f"{times}not known: the capture does not name its GPU (give --gpu)"]
    if is_known(peak):
        parts.append(f"{number(peak)} TFLOP/s {of}")
    if is_known(bandwidth):
        parts.append(f"{number(bandwidth)} GB/s")
        if is_known(peak):
            parts.append(f"ridge {number(float(peak or 0) * 1e3 / float(bandwidth or 1))}")
    if name and device.get("gpu_source"):
        parts.append(f"named by {device['gpu_source']}")
    if device.get("contradiction"):
        parts.append(str(device["contradiction"]))
    elif device.get("candidates"):
        parts.append(f"could also be {', '.join(device['candidates'])}")
    elif name and device.get("ceiling_reason") and not (is_known(peak) and is_known(bandwidth)):
        parts.append(str(device["ceiling_reason"]))
    return ", ".join(parts)


def idle_told(summary: Mapping[str, Any]) -> tuple[str, str]:
    """(idle time with its share and what nvidia-smi would have shown, '' where not known; why not)."""
    idle, window = summary.get("gpu_idle_ms"), summary.get("window_ms")
    if not is_known(idle) or not window:
        return "", reason_for(summary, "gpu_idle_ms")
    busy = percent(summary.get("nvml_utilization_pct"))
    share = percent(100 * float(idle or 0) / window)
    return f"{milliseconds(idle)} ({share} of the window); nvidia-smi would say {busy} busy", ""


@dataclass(frozen=True)
class RatioTold:
    """One of the two ratios of the first screen in words; ``text`` is '' where it is not known and ``why`` says why."""

    label: str
    text: str
    why: str


def ratios(summary: Mapping[str, Any]) -> tuple[RatioTold, RatioTold]:
    """Decode MBU, and prefill MFU: that of mixed steps where all prompt work sits in them."""
    only_mixed = bool((summary.get("mixed_step_ms") or {}).get("n")) and not (summary.get("prefill_step_ms") or {}).get(
        "n"
    )
    bound = bool(summary.get("decode_mbu_is_lower_bound"))
    mfu = ("mixed_mfu", "Mixed MFU") if only_mixed else ("prefill_mfu", "Prefill MFU")
    return _ratio(summary, "decode_mbu", "Decode MBU", bound=bound), _ratio(summary, *mfu, bound=False)


def _ratio(summary: Mapping[str, Any], name: str, label: str, *, bound: bool) -> RatioTold:
    kernel, wall = summary.get(f"{name}_kernel_pct"), summary.get(f"{name}_wall_pct")
    if not is_known(kernel):
        return RatioTold(label, "", reason_for(summary, f"{name}_kernel_pct"))
    text = f"{percent(kernel, at_least=bound)} of peak (kernel time)"
    if is_known(wall):
        text += f", {percent(wall, at_least=bound)} (wall)"
    return RatioTold(label, text + (", weights only" if bound else ""), "")


def stalls_told(summary: Mapping[str, Any]) -> tuple[str, str]:
    """(the stalls in one line, '' where not known; why not). People read episodes."""
    count, ms = summary.get("stall_count"), summary.get("stall_ms")
    if not is_known(count):
        return "", reason_for(summary, "stall_count")
    if not count:
        return "none: no decoding request waited for a prefill", ""
    stalls = plural(int(count or 0), "stall")
    if not is_known(ms):
        return f"{stalls}; their length is not known: {reason_for(summary, 'stall_ms')}", ""
    bound = bool(summary.get("stall_ms_is_lower_bound"))
    longest = summary.get("stall_episode_max_ms")
    text = (
        f"{milliseconds(ms, at_least=bound)} ({percent(summary.get('stall_pct_of_window'), at_least=bound)} of window) in "
        f"{plural(int(summary.get('stall_episode_count') or 0), 'episode')} of {stalls}"
    )
    if is_known(longest):
        return text + f", longest episode {milliseconds(longest)}", ""
    return text + f", longest stall {milliseconds(summary.get('stall_max_ms'))}", ""


def stall_line(summary: Mapping[str, Any]) -> str:
    """The stalls in one line, or why they are not known."""
    text, why = stalls_told(summary)
    return text or (f"not known: {why}" if why else "not known")
