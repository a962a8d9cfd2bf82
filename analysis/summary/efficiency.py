"""How near the run came to the GPU: MBU and MFU per phase, and what utilisation meters would have shown beside them.

The ratios are those of the steps, weighed by time, so that they agree with the step table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import polars as pl
from msgspec import UNSET, UnsetType

from ..numeric.number_text import plural, short_percent
from ..records.summary import KnownSteps, StepNumbers, Utilization
from .step_frames import RatedSteps
from .summary_input import SummaryInput

NOT_SAMPLED = "not sampled: no GPU metrics and no DCGM counters in the window"


@dataclass(frozen=True)
class PhaseRatio:
    """MBU or MFU of the steps of one phase, %; ``steps`` is UNSET where it is known for all or none."""

    kernel_pct: float | None = None
    wall_pct: float | None = None
    steps: KnownSteps | UnsetType = UNSET


def phase_ratio(
    found: SummaryInput,
    rated: RatedSteps,
    phase: Literal["decode", "prefill", "mixed"],
    reasons: dict[str, str],
) -> PhaseRatio:
    """MBU of pure decode steps, or MFU of prefill or of mixed steps, over kernel time and over wall time.

    With chunked prefill all prompt work sits in mixed steps. ``reasons`` is told why a ratio is null.
    """
    ratio: Literal["mbu", "mfu"] = "mbu" if phase == "decode" else "mfu"
    steps = rated.phase == phase
    values = rated.ratios[f"{ratio}_pct"]
    known = steps & np.isfinite(values)
    count_steps, count_known = int(steps.sum()), int(known.sum())
    why = _why_no_ratio(found, ratio) if count_steps else f"there is no {phase} step"
    if phase == "decode" and found.time.opaque_graphs and count_steps and not count_known:
        # what is recorded outside the graphs says nothing about the bytes inside; the model does
        lost = "graph replays are opaque: the kernels of decode steps are not recorded"
        why = lost if found.model.name else f"{lost}, and the model is not known: give --model"
    bounded = steps & ~np.isnan(rated.at_most) & (ratio == "mfu")
    percents: dict[str, float | None] = {}
    for over, time in (("kernel", rated.busy_ns), ("wall", rated.wall_ns)):
        timed = known & (time > 0)
        percents[over] = None
        if timed.any():
            percents[over] = float((values[timed] * rated.busy_ns[timed]).sum() / time[timed].sum())
        elif count_known:
            said = f"no {phase} step follows a decode-bearing one without a prefill between"
            reasons[f"{phase}_{ratio}_{over}_pct"] = said
        else:
            reasons[f"{phase}_{ratio}_{over}_pct"] = _padded_only(rated, bounded, time) if bounded.any() else why
    partly = 0 < count_known < count_steps
    return PhaseRatio(
        percents["kernel"], percents["wall"], KnownSteps(counted=count_known, of=count_steps) if partly else UNSET
    )


def decode_mbu_is_lower_bound(found: SummaryInput, rated: RatedSteps, decode_mbu: PhaseRatio) -> bool:
    """Whether the KV reads of some decode step behind the ratio are not known."""
    decode = (rated.phase == "decode") & ~np.isnan(rated.ratios["mbu_pct"])
    # without a model the lengths may be known and the bytes of attention still not
    partly = bool(found.model.decode_bytes_are_lower_bound) and not found.model.name
    unsure = partly or not rated.lengths_known[decode].all()
    return bool(decode_mbu.kernel_pct is not None and decode.any() and unsure)


def _padded_only(rated: RatedSteps, steps: npt.NDArray[np.bool_], time: npt.NDArray[np.int64]) -> str:
    """Why steps of which only the padded work is known have no MFU, with the upper bound that it gives their GEMMs."""
    ideal = (rated.at_most[steps] * rated.busy_ns[steps]).sum()
    bound = short_percent(float(ideal / time[steps].sum()))
    return (
        f"the tokens of {plural(int(steps.sum()), 'step')} in padded graphs are not known: GEMMs alone make an MFU of at "
        f"most {bound} over these steps, counted with the padded size"
    )


def _why_no_ratio(found: SummaryInput, ratio: Literal["mbu", "mfu"]) -> str:
    what = "bytes" if ratio == "mbu" else "FLOPs"
    if not any((c.memory_bandwidth_gbps if ratio == "mbu" else c.peak_tflops) for c in found.ceilings):
        said = next((c.reason for c in found.ceilings if c.reason), None)
        return said or "the GPU's peak is not known: give --gpu"
    if not found.model.name:
        return f"the {what} of the steps are not known: the model was not recognised, give --model"
    return f"the {what} of the steps are not known"


@dataclass(frozen=True)
class _Sampled:
    """One activity: its mean over the window, or why there is none."""

    pct: float | None
    source: str | UnsetType = UNSET
    reason: str | UnsetType = UNSET


def utilization(found: SummaryInput, nvml_utilization_pct: float | None, steps: StepNumbers) -> Utilization:
    """What nvidia-smi would have shown beside what the hardware did, under DCGM's names where sampled, %.

    ``dcgm_*`` come from the profiler's GPU metrics, else from counters recorded beside it; ``*_source`` says which.
    """
    window = pl.col("time_ns").is_between(found.time.window_start_ns, found.time.window_end_ns)
    metrics, counters = found.trace.gpu_metrics.filter(window), found.trace.counters.filter(window)

    def sampled(in_metrics: pl.Expr, in_counters: str) -> _Sampled:
        pct = _mean(metrics, in_metrics)
        if pct is not None:
            return _Sampled(pct, source="gpu_metrics")
        pct = _mean(counters, pl.col(in_counters))
        return _Sampled(None, reason=NOT_SAMPLED) if pct is None else _Sampled(pct, source="dcgm")

    active = sampled(pl.col("sm_active_pct"), "sm_active_pct")
    tensor = sampled(pl.col("tensor_active_pct"), "tensor_active_pct")
    dram = sampled(pl.col("dram_read_pct") + pl.col("dram_write_pct"), "dram_active_pct")
    measured = _mean(counters, pl.col("utilization_pct"))
    return Utilization(
        nvml_utilization_pct=nvml_utilization_pct,
        decode_mbu_kernel_pct=steps.decode_mbu_kernel_pct,
        prefill_mfu_kernel_pct=steps.prefill_mfu_kernel_pct,
        dcgm_fi_prof_sm_active_pct=active.pct,
        dcgm_fi_prof_sm_active_pct_reason=active.reason,
        dcgm_fi_prof_sm_active_pct_source=active.source,
        dcgm_fi_prof_pipe_tensor_active_pct=tensor.pct,
        dcgm_fi_prof_pipe_tensor_active_pct_reason=tensor.reason,
        dcgm_fi_prof_pipe_tensor_active_pct_source=tensor.source,
        dcgm_fi_prof_dram_active_pct=dram.pct,
        dcgm_fi_prof_dram_active_pct_reason=dram.reason,
        dcgm_fi_prof_dram_active_pct_source=dram.source,
        nvidia_smi_measured_pct=UNSET if measured is None else measured,
    )


def _mean(frame: pl.DataFrame, expression: pl.Expr) -> float | None:
    values = frame.select(expression.cast(pl.Float64).alias("value"))["value"].drop_nulls().to_numpy()
    return float(values.mean()) if len(values) else None
