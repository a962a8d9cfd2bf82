"""The first screen's lines. Where a number is not known its text is '' and the reason stands beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...analysis.gpus.run_ceilings import main_dtype, peak_of
from ...analysis.numeric.number_text import is_known, milliseconds, number, percent, plural
from ...analysis.records.analysis import Analysis
from ...analysis.records.devices import Device
from ...analysis.records.summary import Spread, Summary
from ...analysis.records.trust import Trust


@dataclass(frozen=True)
class Line:
    """A label and its text, '' where it is not known; ``why`` then says why."""

    label: str
    text: str
    why: str

    def told(self) -> str:
        """The text, or that it is not known and why."""
        return self.text or not_known(self.why)


def not_known(why: str) -> str:
    """``not known``, with its reason where there is one."""
    return f"not known: {why}" if why else "not known"


def _why(summary: Summary, key: str) -> str:
    return summary.reasons.get(key, "")


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
        name = device.gpu_name or ""
        kinds[name] = (kinds.get(name, (0, device))[0] + 1, device)
    dtype = main_dtype(analysis.kernel_table)
    return " | ".join(_gpu(name, count, device, dtype) for name, (count, device) in kinds.items())


def _gpu(name: str, count: int, device: Device, dtype: str | None) -> str:
    times = f"{count} x " if count > 1 else ""
    peak, of = peak_of(device, dtype)
    bandwidth = device.memory_bandwidth_gbps
    parts = [f"{times}{name}" if name else f"{times}not known: the capture does not name its GPU (give --gpu)"]
    if peak is not None:
        parts.append(f"{number(peak)} TFLOP/s {of}")
    if bandwidth is not None:
        parts.append(f"{number(bandwidth)} GB/s")
        if peak is not None:
            parts.append(f"ridge {number(float(peak or 0) * 1e3 / float(bandwidth or 1))}")
    if name and device.gpu_source:
        parts.append(f"named by {device.gpu_source}")
    if device.contradiction:
        parts.append(device.contradiction)
    elif device.candidates:
        parts.append(f"could also be {', '.join(device.candidates)}")
    elif name and device.ceiling_reason and (peak is None or bandwidth is None):
        parts.append(device.ceiling_reason)
    return ", ".join(parts)


def trust_line(trust: Trust, reasons: int | None = None) -> str:
    """The verdict with its reasons, at most ``reasons`` of them."""
    said = "; ".join(trust.verdict_reasons[:reasons])
    return f"{trust.verdict}: {said}" if said else trust.verdict


@dataclass(frozen=True)
class PhaseShare:
    """One phase of the GPU time, in words."""

    phase: str
    pct: float | None  # of busy time
    share: str
    time: str


def phase_shares(summary: Summary) -> list[PhaseShare]:
    """The phases that took time, in their usual order."""
    shares = summary.phase_pct
    return [
        PhaseShare(phase, pct := shares[phase] if shares else None, percent(pct), milliseconds(ms))
        for phase, ms in summary.phase_ms.items()
        if ms > 0
    ]


def percentiles(
    spread: Spread,
    keys: Sequence[str] = ("p50", "p95", "p99", "max"),
    show: Callable[[float | None], str] = milliseconds,
) -> list[str]:
    """``p50 2.05 ms``, ``p95 2.11 ms`` and so on, those that are known."""
    return [f"{key} {show(spread[key])}" for key in keys if is_known(spread[key])]


def idle_line(summary: Summary) -> Line:
    """Idle time with its share and what nvidia-smi would have shown."""
    idle, window = summary.gpu_idle_ms, summary.window_ms
    if idle is None or not window:
        return Line("Idle", "", _why(summary, "gpu_idle_ms"))
    busy = percent(summary.nvml_utilization_pct)
    share = percent(100 * idle / window)
    return Line("Idle", f"{milliseconds(idle)} ({share} of the window); nvidia-smi would say {busy} busy", "")


def prompts_only_in_mixed_steps(summary: Summary) -> bool:
    """Whether all prompt work sits in mixed steps, as with chunked prefill: the MFU shown is then theirs."""
    return bool(summary.mixed_step_ms.n) and not summary.prefill_step_ms.n


def ratio_lines(summary: Summary) -> tuple[Line, Line]:
    """Decode MBU, and prefill MFU: that of mixed steps where all prompt work sits in them."""
    mixed = prompts_only_in_mixed_steps(summary)
    mfu = ("mixed_mfu", "Mixed MFU") if mixed else ("prefill_mfu", "Prefill MFU")
    mbu = _ratio(summary, "decode_mbu", "Decode MBU", bound=summary.decode_mbu_is_lower_bound)
    return mbu, _ratio(summary, *mfu, bound=False)


def _ratio(summary: Summary, name: str, label: str, *, bound: bool) -> Line:
    kernel, wall = summary[f"{name}_kernel_pct"], summary[f"{name}_wall_pct"]
    if not is_known(kernel):
        return Line(label, "", _why(summary, f"{name}_kernel_pct"))
    text = f"{percent(kernel, at_least=bound)} of peak (kernel time)"
    if is_known(wall):
        text += f", {percent(wall, at_least=bound)} (wall)"
    return Line(label, text + (", weights only" if bound else ""), "")


def stall_line(summary: Summary) -> Line:
    """The stalls. People read episodes."""
    count, ms = summary.stall_count, summary.stall_ms
    if count is None:
        return Line("Stalls", "", _why(summary, "stall_count"))
    if not count:
        return Line("Stalls", "none: no decoding request waited for a prefill", "")
    stalls = plural(count, "stall")
    if ms is None:
        return Line("Stalls", f"{stalls}; their length is not known: {_why(summary, 'stall_ms')}", "")
    bound = summary.stall_ms_is_lower_bound is True
    share = percent(summary.stall_pct_of_window, at_least=bound)
    episodes = plural(summary.stall_episode_count or 0, "episode")
    longest = milliseconds(summary.stall_episode_max_ms)
    text = (
        f"{milliseconds(ms, at_least=bound)} ({share} of window) in {episodes} of {stalls}, longest episode {longest}"
    )
    return Line("Stalls", text, "")
