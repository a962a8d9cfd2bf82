"""How near the run came to the GPU: MBU and MFU per phase, and what utilisation meters would have shown beside them.

The ratios are those of the steps, weighed by time, so that they agree with the step table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from ..time.group_steps import GroupSteps, chain_decode_steps
from .words import count, percent

if TYPE_CHECKING:
    from ..summary import SummaryInput

#: Ratio, phase of its steps, column of the step table. With chunked prefill all prompt work sits in mixed steps.
RATIOS = (
    ("decode_mbu", "decode", "mbu_pct"),
    ("prefill_mfu", "prefill", "mfu_pct"),
    ("mixed_mfu", "mixed", "mfu_pct"),
)


def phase_ratios(found: SummaryInput, groups: Sequence[GroupSteps], reasons: dict[str, str]) -> dict[str, Any]:
    """MBU of pure decode steps and MFU of prefill and of mixed steps, over kernel time and over wall time, %.

    Wall time of a decode step is the time since the decode-bearing step before it ended, where no prefill step lies
    between; of the others their span.
    """
    at_most = found.mfu_at_most if found.mfu_at_most is not None else pl.lit(None, dtype=pl.Float64)
    with_bound = found.steps.with_columns(at_most.alias("at_most"))
    chosen = pl.concat([_wall_times(with_bound, g) for g in groups])
    numbers: dict[str, Any] = {}
    for name, phase, column in RATIOS:
        steps = chosen.filter(pl.col("phase").cast(pl.String) == phase)
        known = steps.filter(pl.col(column).is_not_null() & pl.col(column).is_finite())
        why = f"there is no {phase} step" if steps.is_empty() else _why_no_ratio(found, column)
        if phase == "decode" and found.time.opaque_graphs and known.is_empty() and not steps.is_empty():
            # what is recorded outside the graphs says nothing about the bytes inside; the model does
            lost = "graph replays are opaque: the kernels of decode steps are not recorded"
            why = lost if (found.model or {}).get("name") else f"{lost}, and the model is not known: give --model"
        bounded = steps.filter(pl.col("at_most").is_not_null()) if column == "mfu_pct" else steps.clear()
        for over, time_column in (("kernel", "busy_ns"), ("wall", "wall_ns")):
            timed = known.filter(pl.col(time_column) > 0)
            key = f"{name}_{over}_pct"
            numbers[key] = None
            if timed.height:
                weighted = timed[column].cast(pl.Float64).to_numpy() * timed["busy_ns"].to_numpy()
                numbers[key] = float(weighted.sum() / timed[time_column].to_numpy().sum())
            elif known.height:
                reasons[key] = f"no {phase} step follows a decode-bearing one without a prefill between"
            else:
                reasons[key] = _padded_only(bounded, time_column) if bounded.height else why
        if known.height and known.height < steps.height:
            numbers[f"{name}_steps"] = {"counted": known.height, "of": steps.height}
    decode = chosen.filter((pl.col("phase").cast(pl.String) == "decode") & pl.col("mbu_pct").is_not_null())
    if numbers["decode_mbu_kernel_pct"] is None:
        decode = decode.clear()
    sure = decode["kv_tokens_source"].fill_null("none").is_in(["marker", "tracked", "estimated"])
    model = found.model or {}
    # without a model the lengths may be known and the bytes of attention still not
    partly = bool(model.get("decode_bytes_are_lower_bound")) and not model.get("name")
    numbers["decode_mbu_is_lower_bound"] = bool(decode.height and (partly or not sure.all()))
    return numbers


def _wall_times(steps: pl.DataFrame, group: GroupSteps) -> pl.DataFrame:
    """The group's usable steps, one row per device, with ``wall_ns`` (0 = none)."""
    wall = np.where(group.is_prefill | group.is_mixed, group.end_ns - group.start_ns, 0)
    chain = chain_decode_steps(group)
    # draft steps of speculation may lie between: they are part of the wait for the next token, a prefill is not
    direct = (chain.prefill_between == 0) & group.is_decode[chain.closing]
    wall[chain.closing[direct]] = (group.end_ns[chain.closing] - group.end_ns[chain.before])[direct]
    walls = pl.DataFrame({"index": pl.Series(group.index, dtype=pl.Int32), "wall_ns": pl.Series(wall, dtype=pl.Int64)})
    return steps.filter(pl.col("group") == group.group).join(walls, on="index", how="inner")


def _padded_only(steps: pl.DataFrame, time_column: str) -> str:
    """Why steps of which only the padded work is known have no MFU, with the upper bound that it gives their GEMMs."""
    ideal = (steps["at_most"] * steps["busy_ns"]).to_numpy().sum()
    bound = percent(float(ideal / steps[time_column].to_numpy().sum()))
    return (
        f"the tokens of {count(steps.height, 'step')} in padded graphs are not known: GEMMs alone make an MFU of at most "
        f"{bound} over these steps, counted with the padded size"
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
