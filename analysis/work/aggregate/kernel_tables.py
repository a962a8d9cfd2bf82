"""The kernel table, the op-class table and the roofline: sums of kernel work by (name, phase) and (op class, phase)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from ...gpus.device_ceilings import DeviceCeilings
from ...numeric.grouping import places_of, stable_order
from ...records.tables import KERNEL_TABLE, OP_CLASS_TABLE
from ...records.trace import Trace
from ...records.work import Roofline, RooflineCeiling, RooflineCentroid, RooflinePoint
from ..model_choice.choose_model import ModelChoice
from ..operators.name_arrays import DTYPES, MATRIX_OPS
from . import ratios
from .block_waves import SmLimits, waves
from .kernel_sums import GroupSums, each_group, merged

CONVENTIONS = (
    "multiply-add = 2 FLOP; attention exact causal; bytes = least traffic, activations counted",
    "intensity counts activations; by the weights-only convention a GEMM's is its tokens at 16 bit a weight",
    "MFU counts matrix work (GEMMs, attention) against the dense peak of the kernel's own type",
)
_NO_RATIO = {"collective": "time is transfer and waiting for other ranks: no MFU or MBU"}
# Why nothing is said of kernels that belong to no place of a layer.
_NO_FORMULA = {
    "elementwise": "no formula: neither name nor grid tells how many tensors it reads",
    "reduce": "no formula: the reduced shape is not in the capture",
    "index": "no formula: how many rows it touches is not in the capture",
    "step_metadata": "no formula: bookkeeping of a few bytes a request",
    "sampling": "no formula: how often it passes over the logits is not known",
    "moe_routing": "no formula: which tables it passes over is not known",
    "copy": "no formula: its size is not in the capture",
    "lora": "no formula: the rank of the adapters is not in the capture",
    "convolution": "no formula: its shape is not in the capture",
}
_NO_TOKENS = {
    "other": "not a step of the model: warm-up, graph capture or a draft",
    "unknown": "phase unknown: its tokens are not known",
}
MOSTLY = 0.5  # share of a row's or a phase's time that must be known for its ratios
_LAUNCH = ("blocks", "threads", "registers", "shared_memory_bytes", "cluster_size")


@dataclass(frozen=True)
class Ceiling:
    """The ceilings a whole row is held against: those of the devices, which are alike or are named in the reason."""

    bandwidth_gbps: float | None
    l2_bytes: float | None
    boost_pct: float
    reason: str | None


def common_ceiling(ceilings: Sequence[DeviceCeilings]) -> Ceiling:
    """The mean bandwidth, smallest L2 and largest boost of the devices, and why a number is missing."""
    bandwidth = [each.memory_bandwidth_gbps for each in ceilings if each.memory_bandwidth_gbps]
    cache = [each.l2_bytes for each in ceilings if each.l2_bytes]
    reasons = [each.reason for each in ceilings if each.reason and not each.peak_tflops]
    return Ceiling(
        bandwidth_gbps=sum(bandwidth) / len(bandwidth) if bandwidth else None,
        l2_bytes=min(cache) if cache else None,
        boost_pct=max((boost_pct(each) for each in ceilings), default=ratios.MFU_BOOST_PCT),
        reason=reasons[0] if reasons else (None if bandwidth else "GPU not known: pass --gpu"),
    )


def boost_pct(ceiling: DeviceCeilings) -> float:
    """How far above the spec peak a device may honestly come: its maximum clock over the clock of the peak."""
    if ceiling.max_clock_mhz and ceiling.spec_clock_mhz:
        return float(100.0 * max(1.0, ceiling.max_clock_mhz / ceiling.spec_clock_mhz))
    return ratios.MFU_BOOST_PCT


@dataclass(frozen=True)
class Why:
    """What reasons are made of."""

    ceiling: Ceiling
    choice: ModelChoice


def _ratios_of(row: Mapping[str, Any], why: Why) -> dict[str, Any]:
    """The row with intensity, MFU, MBU, bound, headroom and reason filled in."""
    out = dict(row)
    notes: list[str] = []
    op_class = row["op_class"]
    flop, total_bytes = row["flop"], row["bytes"]
    # a step that an edge cuts lacks some of its kernels
    count, steps = (row["whole_n"], row["whole_steps"]) if row["whole_steps"] else (row["count"], row["steps"])
    out["count_per_step"] = count / steps if steps else None
    matrix = op_class in MATRIX_OPS
    told = row["compute_ms"] >= MOSTLY * row["most_ms"]  # else what is known of a few kernels would speak for all
    out["arithmetic_intensity"] = row["both_flop"] / row["both_bytes"] if told and row["both_bytes"] > 0 else None
    mfu = mbu = ratios.Ratio(None)
    if op_class in _NO_RATIO:
        notes.append(_NO_RATIO[op_class])
    elif row["helper"] and total_bytes == 0:
        notes.append("its work is counted with the kernel it completes")
    elif flop is None and total_bytes is None:
        notes.append(_unknown_work(row, why))
    else:
        if matrix and told and row["matrix_s"] is not None and row["compute_ms"]:
            peak = _effective_peak(row)
            mfu = ratios.mfu(flop or 0.0, row["compute_ms"] / 1e3, peak, boost_pct=why.ceiling.boost_pct)
        if row["memory_s"] is not None and row["memory_ms"] and why.ceiling.bandwidth_gbps:
            mbu = _row_mbu(row, why.ceiling)
        notes += [each.reason for each in (mfu, mbu) if each.reason]
        if matrix and flop is None:
            notes.append(_unknown_work(row, why))
        notes.append(_at_most(row))
        if row["bytes_ms"] < 0.995 * row["total_ms"]:
            notes.append(f"work known for {100 * row['bytes_ms'] / row['total_ms']:.0f}% of its time")
        if why.ceiling.reason and row["memory_s"] is None:
            notes.append(why.ceiling.reason)
        elif matrix and flop is not None and row["matrix_s"] is None:
            notes.append(f"no peak known for {DTYPES[row['dtype']] or 'its data type'}")
    out["mfu_pct"], out["mbu_pct"] = mfu.pct, mbu.pct
    verdict = _verdict(row, mfu, mbu, told=told, communication=op_class == "collective")
    out["bound"], out["headroom_ms"] = verdict.bound, verdict.headroom_ms
    notes.append(_bounds_of(row))
    if verdict.bound == "latency" and verdict.roofline_share is not None:
        notes.append(f"roofline time is {100 * verdict.roofline_share:.0f}% of its time: neither ceiling binds")
    out["reason"] = "; ".join(dict.fromkeys(note for note in notes if note)) or None
    out["work_source"] = row["source"] if total_bytes is not None or flop is not None else "unknown"
    out["dtype"] = DTYPES[row["dtype"]] or None
    return out


def _at_most(row: Mapping[str, Any]) -> str:
    """The MFU that the padded work of kernels without useful FLOPs bounds from above; '' where none is so."""
    if not row["most_ms"] > row["compute_ms"]:
        return ""
    bound = f"MFU at most {100 * row['most_s'] / (row['most_ms'] / 1e3):.1f}%, counted with the padded size"
    if row["flop"] is None:
        return bound
    return f"useful FLOPs known for {100 * row['compute_ms'] / row['most_ms']:.0f}% of its time; {bound}"


def _bounds_of(row: Mapping[str, Any]) -> str:
    """What tile and grid bound the FLOPs of a row's launches by; '' where they do not."""
    bounded = row.get("bounded_n")
    if not bounded:
        return ""
    least, most = (row[end] / bounded / 1e6 for end in ("flop_low", "flop_high"))
    least, most = (f"{each:,.0f}" if each >= 1e3 else f"{each:.4g}" for each in (least, most))
    of = "" if bounded == row["count"] else f" ({bounded:.0f} of {row['count']} launches)"
    return f"between {least} and {most} MFLOP per launch by tile and grid{of}"


def _effective_peak(row: Mapping[str, Any]) -> float:
    """TFLOP/s that the row's FLOPs would need to run in its ideal time: the peak, or the mix of several."""
    return float(row["flop"] / row["matrix_s"] / 1e12) if row["matrix_s"] else float("inf")


def _row_mbu(row: Mapping[str, Any], ceiling: Ceiling) -> ratios.Ratio:
    seconds = row["memory_ms"] / 1e3
    bandwidth = row["bytes"] / row["memory_s"] / 1e9 if row["memory_s"] else ceiling.bandwidth_gbps or 0.0
    per_launch = row["bytes"] / max(row["bytes_n"], 1)
    ratio = ratios.mbu(row["bytes"], seconds, bandwidth)
    if ratio.pct is None or ratio.pct > 100.0:
        alone = ratios.mbu(per_launch, seconds / max(row["bytes_n"], 1), bandwidth, l2_bytes=ceiling.l2_bytes)
        return alone if alone.l2_resident else ratio
    return ratio


def _verdict(
    row: Mapping[str, Any], mfu: ratios.Ratio, mbu: ratios.Ratio, *, told: bool, communication: bool
) -> ratios.Verdict:
    refused = (mfu.pct is None and mfu.reason) or (mbu.pct is None and mbu.reason)
    if communication:
        return ratios.Verdict("communication", None)
    if refused or not told or not row["placed_ms"]:
        return ratios.Verdict("unknown", None)
    if row["helper"] and row["bytes"] == 0:
        return ratios.Verdict("latency", row["total_ms"])
    return ratios.verdict(row["placed_ms"] / 1e3, row["placed_compute_s"], row["placed_memory_s"])


def _unknown_work(row: Mapping[str, Any], why: Why) -> str:
    """Why nothing is known of a row's work."""
    op_class, phase = row["op_class"], row["phase"]
    if row["source"] == "measured" and row["bytes"] is not None:
        return "its FLOPs were not counted by Nsight Compute"
    if not row["steps"]:
        return "outside every step"
    if phase in _NO_TOKENS:
        return _NO_TOKENS[phase]
    modelled = why.choice.rank is not None
    if op_class == "attention" and modelled:
        lengths = "KV lengths are not in the capture"
        return (
            lengths if phase == "decode" else "how the step's prompt tokens split over requests is not in the capture"
        )
    if op_class in (*MATRIX_OPS, "norm", "rope", "kv_write", "activation", "embedding"):
        known = _unknown_tokens(row) if modelled else None
        return known or why.choice.reason or "its place in the layer, or the step's tokens, could not be told"
    return _NO_FORMULA.get(op_class, "no formula for this kind of kernel")


def _unknown_tokens(row: Mapping[str, Any]) -> str | None:
    """That a row's work lacks the step's tokens, where what is known of it shows that."""
    said = "the step's tokens are not known"
    if row["flop_executed"] is not None:
        said += ", only the size its graph was padded to"
    if row["bytes"] is not None:
        return f"{said}: bytes are those of the weights alone"
    return said if row["flop_executed"] is not None else None


def kernel_table(
    trace: Trace, facts: pl.DataFrame, sums: GroupSums, why: Why, ceilings: Sequence[DeviceCeilings]
) -> pl.DataFrame:
    """KERNEL_TABLE: one row per (name, own phase), the most time first."""
    columns = _columns((_ratios_of(row, why) for row in each_group(sums)), (*KERNEL_TABLE, "name_id", "median_launch"))
    keys = zip(columns["total_ms"], columns["name_id"], columns["phase"], strict=True)
    order = [at for *_, at in sorted((-ms, name, phase, at) for at, (ms, name, phase) in enumerate(keys))]
    columns = {key: [values[at] for at in order] for key, values in columns.items()}
    used = columns.pop("name_id")
    for key, series in (
        ("name", trace.names["name"]),
        ("library", facts["library"]),
        ("short_name", facts["short_name"]),
    ):
        columns[key] = series.gather(used).to_list()
    return _frame(columns | _launch_facts(trace, columns.pop("median_launch"), ceilings), KERNEL_TABLE)


def op_class_table(sums: GroupSums, why: Why) -> pl.DataFrame:
    """OP_CLASS_TABLE: the same numbers by (op class, phase)."""
    members: dict[tuple[int, int], list[int]] = {}
    for group, key in enumerate(zip(sums.op.tolist(), sums.phase.tolist(), strict=True)):
        members.setdefault(key, []).append(group)
    rows = [_ratios_of(merged(sums, groups), why) for groups in members.values()]
    rows.sort(key=lambda row: (-row["total_ms"], row["op_class"], row["phase"]))
    return _frame(_columns(rows, tuple(OP_CLASS_TABLE)), OP_CLASS_TABLE)


def _columns(rows: Iterable[Mapping[str, Any]], keys: Sequence[str]) -> dict[str, list[Any]]:
    """The rows as columns; each row is let go before the next is made, as there may be 100,000."""
    cells = [tuple(map(row.get, keys)) for row in rows]
    return {key: [row[at] for row in cells] for at, key in enumerate(keys)}


def _frame(columns: Mapping[str, Any], schema: Mapping[str, Any]) -> pl.DataFrame:
    return pl.DataFrame([pl.Series(name, columns[name], dtype=dtype) for name, dtype in schema.items()])


def _launch_facts(trace: Trace, rows: list[int], ceilings: Sequence[DeviceCeilings]) -> dict[str, pl.Series]:
    """Columns of blocks, waves, coverage and tail of some launches; null where not known."""
    launch = trace.kernels[np.array(rows, dtype=np.int64)].with_columns(
        blocks=pl.col("grid_x").cast(pl.Int64) * pl.col("grid_y") * pl.col("grid_z"),
        threads=pl.col("block_x").cast(pl.Int64) * pl.col("block_y") * pl.col("block_z"),
    )
    column = {name: launch[name].fill_null(0).cast(pl.Int64).to_numpy() for name in _LAUNCH}
    found = {name: np.full(len(rows), np.nan) for name in ("waves", "sm_coverage_pct", "tail_waste_pct")}
    by_device = {ceiling.device_index: ceiling for ceiling in ceilings}
    devices = launch["device_index"].to_numpy()
    order = stable_order(devices)
    for device, place in places_of(devices[order]).items():
        limits = _limits(by_device[device]) if device in by_device else None
        if limits is None:
            continue
        own = order[place]
        own = own[column["blocks"][own] != 0]
        blocks, threads, registers, shared, cluster = (column[name][own] for name in _LAUNCH)
        result = waves(blocks, threads, registers, shared, limits, cluster)
        found["waves"][own], found["sm_coverage_pct"][own] = result.waves, result.sm_coverage_pct
        found["tail_waste_pct"][own] = np.where(np.isnan(result.waves), np.nan, result.tail_waste_pct)
    blocks = pl.Series(column["blocks"])
    return {
        "blocks": blocks.set(blocks == 0, None),
        **{name: pl.Series(values, nan_to_null=True) for name, values in found.items()},
    }


def _limits(ceiling: DeviceCeilings) -> SmLimits | None:
    if not ceiling.sm_count:
        return None
    return SmLimits(
        sm_count=ceiling.sm_count,
        max_warps=ceiling.max_warps_per_sm or None,
        max_blocks=ceiling.max_blocks_per_sm or None,
        registers=ceiling.registers_per_sm or None,
        shared_memory_bytes=ceiling.shared_memory_per_sm_bytes or None,
    )


def roofline(op_classes: pl.DataFrame, ceilings: Sequence[DeviceCeilings], clock_hz: float | None = None) -> Roofline:
    """Ceilings per data type, a point per (op class, phase) with known work, and a centroid per phase.

    ``clock_hz``: the measured SM clock; the peak at that clock then stands beside the spec peak.
    """
    lines = []
    for ceiling in ceilings:
        for dtype, peak in sorted(ceiling.peak_tflops.items(), key=lambda item: -item[1]):
            lines.append(
                RooflineCeiling(
                    device_index=ceiling.device_index,
                    gpu_name=ceiling.gpu_name,
                    dtype=dtype,
                    peak_tflops=peak,
                    bandwidth_gbps=ceiling.memory_bandwidth_gbps,
                    ridge=ceiling.ridge(dtype),
                    source=ceiling.ceiling_source,
                    peak_tflops_at_clock=ceiling.peak_at_clock(dtype, clock_hz) if clock_hz else None,
                )
            )
    points = []
    columns = ("op_class", "phase", "flop", "bytes", "arithmetic_intensity", "mfu_pct", "mbu_pct", "total_ms", "bound")
    for row in op_classes.select(columns).iter_rows(named=True):
        if row["arithmetic_intensity"] is None or not row["total_ms"]:
            continue
        gbps = row["bytes"] / row["total_ms"] / 1e6
        # By way of the intensity: where FLOPs are known of some kernels only, the point keeps its place to the roof.
        points.append(RooflinePoint(**row, tflops=row["arithmetic_intensity"] * gbps / 1e3, gbps=gbps))
    centroids = []
    for phase in ("prefill", "decode", "mixed"):
        own = [point for point in points if point.phase == phase]
        of_phase = op_classes.filter((pl.col("phase") == phase) & ~pl.col("op_class").is_in(list(_NO_RATIO)))
        if not own or sum(point.total_ms for point in own) < MOSTLY * float(of_phase["total_ms"].sum()):
            continue
        flop = sum(point.arithmetic_intensity * point.bytes for point in own)
        size, ms = sum(point.bytes for point in own), sum(point.total_ms for point in own)
        centroids.append(
            RooflineCentroid(
                phase=phase,
                arithmetic_intensity=flop / size if size else None,
                tflops=flop / ms / 1e9,
                total_ms=ms,
            )
        )
    return Roofline(ceilings=tuple(lines), points=tuple(points), centroids=tuple(centroids), conventions=CONVENTIONS)
