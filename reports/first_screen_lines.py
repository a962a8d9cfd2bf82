"""The first screen's facts in words, the same in the terminal, Markdown, notebooks and the page.

Where a number is not known its text is '' and the reason stands beside it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..analysis.records.analysis import Analysis
from ..analysis.records.devices import Device
from ..analysis.records.summary import Summary
from .ceilings import main_dtype, peak_of
from .number_text import is_known, milliseconds, number, percent, plural


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
        if not analysis.summary.step_count:
            parts = ["not known"]
        if analysis.trust.gpu_time_by_work_source.get("name"):
            parts.append("GEMM work bounded by tiles and grids")
    engine = analysis.trust.engine or analysis.trace.capture.serving.engine
    return ", ".join([*parts, f"engine {engine}"] if engine else parts)


def batch_told(summary: Summary) -> str:
    """``7 to 9``, and where it still grows at the start: ``1 to 32, ramping up over the first 5 steps``; '' if unknown."""
    low, high, ramp = summary.decode_batch_min, summary.decode_batch_max, summary.decode_ramp
    if low is None or high is None:
        return ""
    told = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    return told + (f", ramping up over the first {ramp.steps:,} steps" if ramp else "")


def gpu_line(analysis: Analysis) -> str:
    """The GPUs with their peaks and where each came from: ``2 x NVIDIA A100-SXM4-80GB, 312 TFLOP/s bf16, ...``."""
    if not analysis.devices:
        return "none with activity"
    kinds: dict[str, tuple[int, Device]] = {}
    for device in analysis.devices:
        name = str(device.gpu_name or "")
        kinds[name] = (kinds.get(name, (0, device))[0] + 1, device)
    dtype = main_dtype(analysis)
    return " | ".join(_gpu(name, count, device, dtype) for name, (count, device) in kinds.items())


def _gpu(name: str, count: int, device: Device, dtype: str | None) -> str:
    times = f"{count} x " if count > 1 else ""
    peak, of = peak_of(device, dtype)
    bandwidth = device.memory_bandwidth_gbps
    parts = [f"{times}{name}" if name else f"{times}not known: the capture does not name its GPU (give --gpu)"]
    if is_known(peak):
        parts.append(f"{number(peak)} TFLOP/s {of}")
    if is_known(bandwidth):
        parts.append(f"{number(bandwidth)} GB/s")
        if is_known(peak):
            parts.append(f"ridge {number(float(peak or 0) * 1e3 / float(bandwidth or 1))}")
    if name and device.gpu_source:
        parts.append(f"named by {device.gpu_source}")
    if device.contradiction:
        parts.append(str(device.contradiction))
    elif device.candidates:
        parts.append(f"could also be {', '.join(device.candidates)}")
    elif name and device.ceiling_reason and not (is_known(peak) and is_known(bandwidth)):
        parts.append(str(device.ceiling_reason))
    return ", ".join(parts)


def idle_told(summary: Summary) -> tuple[str, str]:
    """(idle time with its share and what nvidia-smi would have shown, '' where not known; why not)."""
    idle, window = summary.gpu_idle_ms, summary.window_ms
    if idle is None or not window:
        return "", summary.reasons.get("gpu_idle_ms", "")
    busy = percent(summary.nvml_utilization_pct)
    share = percent(100 * idle / window)
    return f"{milliseconds(idle)} ({share} of the window); nvidia-smi would say {busy} busy", ""


@dataclass(frozen=True)
class RatioTold:
    """One of the two ratios of the first screen in words; ``text`` is '' where it is not known and ``why`` says why."""

    label: str
    text: str
    why: str


def ratios(summary: Summary) -> tuple[RatioTold, RatioTold]:
    """Decode MBU, and prefill MFU: that of mixed steps where all prompt work sits in them."""
    only_mixed = summary.mixed_step_ms.n and not summary.prefill_step_ms.n
    decode = _ratio(
        "Decode MBU", summary.decode_mbu_kernel_pct, summary.decode_mbu_wall_pct, summary.decode_mbu_is_lower_bound
    )
    if only_mixed:
        mfu = _ratio("Mixed MFU", summary.mixed_mfu_kernel_pct, summary.mixed_mfu_wall_pct)
    else:
        mfu = _ratio("Prefill MFU", summary.prefill_mfu_kernel_pct, summary.prefill_mfu_wall_pct)
    reasons = summary.reasons
    return (
        replace(decode, why="" if decode.text else reasons.get("decode_mbu_kernel_pct", "")),
        replace(mfu, why="" if mfu.text else reasons.get(f"{'mixed' if only_mixed else 'prefill'}_mfu_kernel_pct", "")),
    )


def _ratio(label: str, kernel: float | None, wall: float | None, bound: bool = False) -> RatioTold:
    if kernel is None:
        return RatioTold(label, "", "")
    text = f"{percent(kernel, at_least=bound)} of peak (kernel time)"
    if is_known(wall):
        text += f", {percent(wall, at_least=bound)} (wall)"
    return RatioTold(label, text + (", weights only" if bound else ""), "")


def stalls_told(summary: Summary) -> tuple[str, str]:
    """(the stalls in one line, '' where not known; why not). People read episodes."""
    count, ms = summary.stall_count, summary.stall_ms
    if count is None:
        return "", summary.reasons.get("stall_count", "")
    if not count:
        return "none: no decoding request waited for a prefill", ""
    stalls = plural(count, "stall")
    if not is_known(ms):
        return f"{stalls}; their length is not known: {summary.reasons.get('stall_ms', '')}", ""
    bound = bool(summary.stall_ms_is_lower_bound)
    share = percent(summary.stall_pct_of_window, at_least=bound)
    episodes = plural(summary.stall_episode_count or 0, "episode")
    longest = milliseconds(summary.stall_episode_max_ms)
    told = f"{milliseconds(ms, at_least=bound)} ({share} of window) in {episodes} of {stalls}"
    return f"{told}, longest episode {longest}", ""


def stall_line(summary: Summary) -> str:
    """The stalls in one line, or why they are not known."""
    text, why = stalls_told(summary)
    return text or (f"not known: {why}" if why else "not known")
