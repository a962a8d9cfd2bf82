"""How near the run came to the GPU: MBU and MFU per phase, and what utilisation meters would have shown beside them.

The ratios are those of the steps, weighed by time, so that they agree with the step table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
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


@dataclass(frozen=True)
class RatedSteps:
    """The usable steps, one row per device, as columns in the order of the groups; NaN where unknown."""

    slices: Mapping[int, slice]  # group -> its rows
    phase: npt.NDArray[Any]
    busy_ns: npt.NDArray[np.int64]
    wall_ns: npt.NDArray[np.int64]  # 0 = none
    ratios: Mapping[str, npt.NDArray[np.float64]]  # mbu_pct, mfu_pct
    at_most: npt.NDArray[np.float64]  # MFU by the padded work, %
    lengths_known: npt.NDArray[np.bool_]  # the source of the KV length says so

    @staticmethod
    def of(found: SummaryInput, groups: Sequence[GroupSteps]) -> RatedSteps:
        """From the steps of ``groups``.

        Wall time of a decode step is the time since the decode-bearing step before it ended, where no prefill step lies
        between; of the others their span.
        """
        if not groups:
            none, nothing = np.zeros(0), np.zeros(0, np.int64)
            ratios = {"mbu_pct": none, "mfu_pct": none}
            return RatedSteps({}, np.zeros(0, object), nothing, nothing, ratios, none, none.astype(bool))
        at_most = found.mfu_at_most if found.mfu_at_most is not None else pl.lit(None, dtype=pl.Float64)
        order = pl.DataFrame({"group": pl.Series([g.group for g in groups], dtype=pl.Int32)}).with_row_index("turn")
        rows = (
            found.steps.select("group", "index", "phase", "busy_ns", "mbu_pct", "mfu_pct", "kv_tokens_source")
            .with_columns(at_most.alias("at_most"))
            .join(_wall_times(groups), on=["group", "index"], maintain_order="left")
            .join(order, on="group", maintain_order="left")
            .sort("turn", maintain_order=True)
        )
        ends = np.searchsorted(rows["turn"].to_numpy(), np.arange(len(groups)), side="right").tolist()
        return RatedSteps(
            slices={g.group: slice(a, b) for g, a, b in zip(groups, [0, *ends[:-1]], ends, strict=True)},
            phase=rows["phase"].cast(pl.String).to_numpy(),
            busy_ns=rows["busy_ns"].to_numpy(),
            wall_ns=rows["wall_ns"].to_numpy(),
            ratios={name: _floats(rows[name]) for name in ("mbu_pct", "mfu_pct")},
            at_most=_floats(rows["at_most"]),
            lengths_known=rows["kv_tokens_source"]
            .fill_null("none")
            .is_in(["marker", "tracked", "estimated"])
            .to_numpy(),
        )

    def only(self, group: int) -> RatedSteps:
        """Those of one group."""
        own = self.slices[group]
        return RatedSteps(
            slices={group: slice(None)},
            phase=self.phase[own],
            busy_ns=self.busy_ns[own],
            wall_ns=self.wall_ns[own],
            ratios={name: values[own] for name, values in self.ratios.items()},
            at_most=self.at_most[own],
            lengths_known=self.lengths_known[own],
        )


def _floats(values: pl.Series) -> npt.NDArray[np.float64]:
    return values.cast(pl.Float64).fill_null(float("nan")).to_numpy()


def _wall_times(groups: Sequence[GroupSteps]) -> pl.DataFrame:
    """``wall_ns`` of the groups' usable steps (0 = none)."""
    walls = []
    for group in groups:
        wall = np.where(group.is_prefill | group.is_mixed, group.end_ns - group.start_ns, 0)
        chain = chain_decode_steps(group)
        # draft steps of speculation may lie between: they are part of the wait for the next token, a prefill is not
        direct = (chain.prefill_between == 0) & group.is_decode[chain.closing]
        wall[chain.closing[direct]] = (group.end_ns[chain.closing] - group.end_ns[chain.before])[direct]
        walls.append(wall)
    numbers = np.repeat([group.group for group in groups], [len(wall) for wall in walls])
    return pl.DataFrame(
        {
            "group": pl.Series(numbers, dtype=pl.Int32),
            "index": pl.Series(np.concatenate([group.index for group in groups]), dtype=pl.Int32),
            "wall_ns": pl.Series(np.concatenate(walls), dtype=pl.Int64),
        }
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
