"""How near the run came to the GPU: MBU and MFU per phase, and what utilisation meters would have shown beside them.

The ratios are those of the steps, weighed by time, so that they agree with the step table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl

from ..advice.number_words import count, percent
from .step_frames import RatedSteps

if TYPE_CHECKING:
    from .summarise import SummaryInput

#: Ratio, phase of its steps, column of the step table. With chunked prefill all prompt work sits in mixed steps.
RATIOS = (
    ("decode_mbu", "decode", "mbu_pct"),
    ("prefill_mfu", "prefill", "mfu_pct"),
    ("mixed_mfu", "mixed", "mfu_pct"),
)


def phase_ratios(found: SummaryInput, rated: RatedSteps, reasons: dict[str, str]) -> dict[str, Any]:
    """MBU of pure decode steps and MFU of prefill and of mixed steps, over kernel time and over wall time, %."""
    numbers: dict[str, Any] = {}
    for name, phase, column in RATIOS:
        steps = rated.phase == phase
        values = rated.ratios[column]
        known = steps & np.isfinite(values)
        count_steps, count_known = int(steps.sum()), int(known.sum())
        why = _why_no_ratio(found, column) if count_steps else f"there is no {phase} step"
        if phase == "decode" and found.time.opaque_graphs and count_steps and not count_known:
            # what is recorded outside the graphs says nothing about the bytes inside; the model does
            lost = "graph replays are opaque: the kernels of decode steps are not recorded"
            why = lost if (found.model or {}).get("name") else f"{lost}, and the model is not known: give --model"
        bounded = steps & ~np.isnan(rated.at_most) & (column == "mfu_pct")
        for over, time in (("kernel", rated.busy_ns), ("wall", rated.wall_ns)):
            timed = known & (time > 0)
            key = f"{name}_{over}_pct"
            numbers[key] = None
            if timed.any():
                numbers[key] = float((values[timed] * rated.busy_ns[timed]).sum() / time[timed].sum())
            elif count_known:
                reasons[key] = f"no {phase} step follows a decode-bearing one without a prefill between"
            else:
                reasons[key] = _padded_only(rated, bounded, time) if bounded.any() else why
        if 0 < count_known < count_steps:
            numbers[f"{name}_steps"] = {"counted": count_known, "of": count_steps}
    decode = (rated.phase == "decode") & ~np.isnan(rated.ratios["mbu_pct"])
    model = found.model or {}
    # without a model the lengths may be known and the bytes of attention still not
    partly = bool(model.get("decode_bytes_are_lower_bound")) and not model.get("name")
    unsure = partly or not rated.lengths_known[decode].all()
    numbers["decode_mbu_is_lower_bound"] = bool(
        numbers["decode_mbu_kernel_pct"] is not None and decode.any() and unsure
    )
    return numbers


def _padded_only(rated: RatedSteps, steps: npt.NDArray[np.bool_], time: npt.NDArray[np.int64]) -> str:
    """Why steps of which only the padded work is known have no MFU, with the upper bound that it gives their GEMMs."""
    ideal = (rated.at_most[steps] * rated.busy_ns[steps]).sum()
    bound = percent(float(ideal / time[steps].sum()))
    return (
        f"the tokens of {count(int(steps.sum()), 'step')} in padded graphs are not known: GEMMs alone make an MFU of at "
        f"most {bound} over these steps, counted with the padded size"
    )


def _why_no_ratio(found: SummaryInput, column: str) -> str:
    what = "bytes" if column == "mbu_pct" else "FLOPs"
    peak = "memory_bandwidth_gbps" if column == "mbu_pct" else "peak_tflops"
    if not any(getattr(c, peak, None) for c in found.ceilings):
        said = next((c.reason for c in found.ceilings if getattr(c, "reason", None)), None)
        return said or "the GPU's peak is not known: give --gpu"
    if not (found.model or {}).get("name"):
        return f"the {what} of the steps are not known: the model was not recognised, give --model"
    return f"the {what} of the steps are not known"


def utilization(found: SummaryInput, summary: Mapping[str, Any]) -> dict[str, Any]:
    """What nvidia-smi would have shown beside what the hardware did, under DCGM's names where sampled, %.

    ``dcgm_*`` come from the profiler's GPU metrics, else from counters recorded beside it; ``*_source`` says which.
    """
    result: dict[str, Any] = {
        "nvml_utilization_pct": summary["nvml_utilization_pct"],
        "decode_mbu_kernel_pct": summary["decode_mbu_kernel_pct"],
        "prefill_mfu_kernel_pct": summary["prefill_mfu_kernel_pct"],
    }
    window = pl.col("time_ns").is_between(found.time.window_start_ns, found.time.window_end_ns)
    metrics, counters = found.trace.gpu_metrics.filter(window), found.trace.counters.filter(window)
    dram = pl.col("dram_read_pct") + pl.col("dram_write_pct")
    wanted = (
        ("dcgm_fi_prof_sm_active_pct", pl.col("sm_active_pct"), pl.col("sm_active_pct")),
        ("dcgm_fi_prof_pipe_tensor_active_pct", pl.col("tensor_active_pct"), pl.col("tensor_active_pct")),
        ("dcgm_fi_prof_dram_active_pct", dram, pl.col("dram_active_pct")),
    )
    for key, sampled, counted in wanted:
        result[key] = _mean(metrics, sampled)
        source = "gpu_metrics"
        if result[key] is None:
            result[key], source = _mean(counters, counted), "dcgm"
        if result[key] is None:
            result[f"{key}_reason"] = "not sampled: no GPU metrics and no DCGM counters in the window"
        else:
            result[f"{key}_source"] = source
    measured = _mean(counters, pl.col("utilization_pct"))
    if measured is not None:
        result["nvidia_smi_measured_pct"] = measured
    return result


def _mean(frame: pl.DataFrame, expression: pl.Expr) -> float | None:
    values = frame.select(expression.cast(pl.Float64).alias("value"))["value"].drop_nulls().to_numpy()
    return float(values.mean()) if len(values) else None
