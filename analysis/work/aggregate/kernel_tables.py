"""The kernel table and the op-class table: sums of kernel work by (name, phase) and (op class, phase), and ratios."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from ...gpus.device_ceilings import DeviceCeilings
from ...numeric.grouping import places_of, stable_order
from ...records.tables import KERNEL_TABLE, OP_CLASS_TABLE
from ...records.trace import Schema, Trace
from ..model_choice.choose_model import ModelChoice
from ..operators.name_arrays import DTYPES, MATRIX_OPS
from ..work_input import WorkInput
from . import ratios
from .block_waves import SmLimits, waves
from .kernel_sums import GroupSums, RowSums, WorkSums, each_group, merged

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
MIN_KNOWN_SHARE = 0.5  # of a row's time at the compute ceiling, padding included, that must be known for its ratios
MIN_WHOLE_SHARE = 0.995  # of a row's time with known work: from here on it counts as all of it
_LAUNCH = ("blocks", "threads", "registers", "shared_memory_bytes", "cluster_size")


@dataclass(frozen=True)
class CommonCeiling:
    """The ceilings a whole row is held against: those of the devices, which are equal or are named in the reason."""

    bandwidth_gbps: float | None
    l2_bytes: float | None
    boost_pct: float
    reason: str | None


def common_ceiling(ceilings: Sequence[DeviceCeilings]) -> CommonCeiling:
    """The mean bandwidth, smallest L2 and largest boost of the devices, and why a number is missing."""
    bandwidth = [each.memory_bandwidth_gbps for each in ceilings if each.memory_bandwidth_gbps]
    cache = [each.l2_bytes for each in ceilings if each.l2_bytes]
    reasons = [each.reason for each in ceilings if each.reason and not each.peak_tflops]
    return CommonCeiling(
        bandwidth_gbps=sum(bandwidth) / len(bandwidth) if bandwidth else None,
        l2_bytes=min(cache) if cache else None,
        boost_pct=max((ratios.boost_pct(each) for each in ceilings), default=ratios.MAX_MFU_PCT),
        reason=reasons[0] if reasons else (None if bandwidth else "GPU not known: pass --gpu"),
    )


@dataclass(frozen=True)
class RowReasons:
    """What the reasons of a row are made of."""

    ceiling: CommonCeiling
    choice: ModelChoice


class TableRow(msgspec.Struct, frozen=True):
    """The cells of one row by the names of KERNEL_TABLE, but for what its name and its median launch say."""

    name_id: int
    median_launch: int
    op_class: str
    phase: str
    evidence: dict[str, float]
    count: int
    count_per_step: float | None
    total_ms: float
    in_mixed_ms: float
    median_us: float
    flop: float | None
    flop_executed: float | None
    bytes: float | None
    work_source: str
    arithmetic_intensity: float | None
    mfu_pct: float | None
    mbu_pct: float | None
    bound: str
    headroom_ms: float | None
    reason: str | None
    dtype: str | None


_NO_RATIOS = (ratios.Ratio(None), ratios.Ratio(None))


def _table_row(row: RowSums, why: RowReasons) -> TableRow:
    """The row with intensity, MFU, MBU, bound, headroom and reason."""
    sums = row.sums
    # a step that an edge cuts lacks some of its kernels
    count, steps = (sums.whole_n, row.whole_steps) if row.whole_steps else (sums.count, row.steps)
    told = _mostly_known(sums)
    mfu, mbu = _ratios(row, why.ceiling) if _has_ratios(row) else _NO_RATIOS
    verdict = _verdict(row, mfu, mbu)
    notes = [*_notes(row, why, mfu, mbu), _bounds_of(sums)]
    if verdict.bound == "latency" and verdict.roofline_share is not None:
        notes.append(f"roofline time is {100 * verdict.roofline_share:.0f}% of its time: neither ceiling binds")
    return TableRow(
        name_id=row.name_id,
        median_launch=row.median_launch,
        op_class=row.op_class,
        phase=row.phase,
        evidence=row.evidence,
        count=sums.count,
        count_per_step=count / steps if steps else None,
        total_ms=sums.total_ms,
        in_mixed_ms=sums.in_mixed_ms,
        median_us=row.median_us,
        flop=sums.flop,
        flop_executed=sums.flop_executed,
        bytes=sums.bytes,
        work_source=row.work_source if sums.bytes is not None or sums.flop is not None else "unknown",
        arithmetic_intensity=sums.both_flop / sums.both_bytes if told and sums.both_bytes > 0 else None,
        mfu_pct=mfu.pct,
        mbu_pct=mbu.pct,
        bound=verdict.bound,
        headroom_ms=verdict.headroom_ms,
        reason="; ".join(dict.fromkeys(note for note in notes if note)) or None,
        dtype=DTYPES[row.dtype] or None,
    )


def _mostly_known(sums: WorkSums) -> bool:
    """Whether what is known speaks for the row: else a few kernels would speak for all."""
    return sums.compute_ms >= MIN_KNOWN_SHARE * sums.most_ms


def _is_counted_elsewhere(row: RowSums) -> bool:
    """Whether its work is counted with the kernels that it completes."""
    return row.helper and row.sums.bytes == 0


def _has_ratios(row: RowSums) -> bool:
    known = row.sums.flop is not None or row.sums.bytes is not None
    return known and row.op_class not in _NO_RATIO and not _is_counted_elsewhere(row)


def _ratios(row: RowSums, ceiling: CommonCeiling) -> tuple[ratios.Ratio, ratios.Ratio]:
    """MFU and MBU of a row with known work."""
    sums = row.sums
    mfu, mbu = _NO_RATIOS
    if row.op_class in MATRIX_OPS and _mostly_known(sums) and sums.matrix_s is not None and sums.compute_ms:
        flop = sums.flop or 0.0
        # the peak, or the mix of several: what the row's FLOPs would need to run in its ideal time
        peak = flop / sums.matrix_s / 1e12 if sums.matrix_s else float("inf")
        mfu = ratios.mfu(flop, sums.compute_ms / 1e3, peak, boost_pct=ceiling.boost_pct)
    if sums.memory_s is not None and sums.memory_ms and ceiling.bandwidth_gbps:
        mbu = _row_mbu(sums, sums.memory_s, ceiling.bandwidth_gbps, ceiling.l2_bytes)
    return mfu, mbu


def _row_mbu(sums: WorkSums, memory_s: float, ceiling_gbps: float, l2_bytes: float | None) -> ratios.Ratio:
    seconds, size = sums.memory_ms / 1e3, sums.bytes or 0.0
    bandwidth = size / memory_s / 1e9 if memory_s else ceiling_gbps
    launches = max(sums.bytes_n, 1)
    ratio = ratios.mbu(size, seconds, bandwidth)
    if ratio.pct is None or ratio.pct > 100.0:
        alone = ratios.mbu(size / launches, seconds / launches, bandwidth, l2_bytes=l2_bytes)
        return alone if alone.l2_resident else ratio
    return ratio


def _notes(row: RowSums, why: RowReasons, mfu: ratios.Ratio, mbu: ratios.Ratio) -> Iterator[str]:
    """Why a number of the row is missing, and what to know of one; '' for none."""
    sums, matrix = row.sums, row.op_class in MATRIX_OPS
    if row.op_class in _NO_RATIO:
        yield _NO_RATIO[row.op_class]
    elif _is_counted_elsewhere(row):
        yield "its work is counted with the kernel it completes"
    elif not _has_ratios(row):
        yield _unknown_work(row, why)
    else:
        yield from (each.reason or "" for each in (mfu, mbu))
        if matrix and sums.flop is None:
            yield _unknown_work(row, why)
        yield _at_most(sums)
        if sums.bytes_ms < MIN_WHOLE_SHARE * sums.total_ms:
            yield f"work known for {100 * sums.bytes_ms / sums.total_ms:.0f}% of its time"
        if why.ceiling.reason and sums.memory_s is None:
            yield why.ceiling.reason
        elif matrix and sums.flop is not None and sums.matrix_s is None:
            yield f"no peak known for {DTYPES[row.dtype] or 'its data type'}"


def _at_most(sums: WorkSums) -> str:
    """The MFU that the padded work of kernels without useful FLOPs bounds from above; '' where none is so."""
    if not sums.most_ms > sums.compute_ms:
        return ""
    bound = f"MFU at most {100 * sums.most_s / (sums.most_ms / 1e3):.1f}%, counted with the padded size"
    if sums.flop is None:
        return bound
    return f"useful FLOPs known for {100 * sums.compute_ms / sums.most_ms:.0f}% of its time; {bound}"


def _bounds_of(sums: WorkSums) -> str:
    """What tile and grid bound the FLOPs of a row's launches by; '' where they do not."""
    if not sums.bounded_n:
        return ""
    ends = (sums.flop_low / sums.bounded_n / 1e6, sums.flop_high / sums.bounded_n / 1e6)
    least, most = (f"{each:,.0f}" if each >= 1e3 else f"{each:.4g}" for each in ends)
    of = "" if sums.bounded_n == sums.count else f" ({sums.bounded_n:.0f} of {sums.count} launches)"
    return f"between {least} and {most} MFLOP per launch by tile and grid{of}"


def _verdict(row: RowSums, mfu: ratios.Ratio, mbu: ratios.Ratio) -> ratios.Verdict:
    sums = row.sums
    refused = (mfu.pct is None and mfu.reason) or (mbu.pct is None and mbu.reason)
    if row.op_class == "collective":
        return ratios.Verdict("communication", None)
    if refused or not _mostly_known(sums) or not sums.placed_ms:
        return ratios.Verdict("unknown", None)
    if _is_counted_elsewhere(row):
        return ratios.Verdict("latency", sums.total_ms)
    return ratios.verdict(sums.placed_ms / 1e3, sums.placed_compute_s, sums.placed_memory_s)


def _unknown_work(row: RowSums, why: RowReasons) -> str:
    """Why nothing is known of a row's work."""
    op_class, phase = row.op_class, row.phase
    if row.work_source == "measured" and row.sums.bytes is not None:
        return "its FLOPs were not counted by Nsight Compute"
    if not row.steps:
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
        known = _unknown_tokens(row.sums) if modelled else None
        return known or why.choice.reason or "its place in the layer, or the step's tokens, could not be told"
    return _NO_FORMULA.get(op_class, "no formula for this kind of kernel")


def _unknown_tokens(sums: WorkSums) -> str | None:
    """That a row's work lacks the step's tokens, where what is known of it shows that."""
    said = "the step's tokens are not known"
    if sums.flop_executed is not None:
        said += ", only the size its graph was padded to"
    if sums.bytes is not None:
        return f"{said}: bytes are those of the weights alone"
    return said if sums.flop_executed is not None else None


def kernel_table(given: WorkInput, sums: GroupSums, why: RowReasons) -> pl.DataFrame:
    """KERNEL_TABLE: one row per (name, own phase), the most time first."""
    names, facts = given.trace.names, given.name_facts
    rows = sorted(
        (_table_row(row, why) for row in each_group(sums)), key=lambda row: (-row.total_ms, row.name_id, row.phase)
    )
    used = pl.Series([row.name_id for row in rows], dtype=pl.UInt32)
    named = {
        "name": names["name"].gather(used),
        "short_name": facts["short_name"].gather(used),
        "library": facts["library"].gather(used),
    }
    launches = _launch_facts(given.trace, np.array([row.median_launch for row in rows], np.int64), given.ceilings)
    return _frame(rows, {**named, **launches}, KERNEL_TABLE)


def op_class_table(sums: GroupSums, why: RowReasons) -> pl.DataFrame:
    """OP_CLASS_TABLE: the same numbers by (op class, phase)."""
    members: dict[tuple[int, int], list[int]] = {}
    for group, key in enumerate(zip(sums.op.tolist(), sums.phase.tolist(), strict=True)):
        members.setdefault(key, []).append(group)
    rows = [_table_row(merged(sums, groups), why) for groups in members.values()]
    rows.sort(key=lambda row: (-row.total_ms, row.op_class, row.phase))
    return _frame(rows, {}, OP_CLASS_TABLE)


def _frame(rows: Sequence[TableRow], further: Mapping[str, pl.Series], schema: Schema) -> pl.DataFrame:
    """The rows as a frame, with columns that are no cells of theirs."""
    return pl.DataFrame(
        [
            pl.Series(name, further[name] if name in further else [getattr(row, name) for row in rows], dtype=dtype)
            for name, dtype in schema.items()
        ]
    )


def _launch_facts(
    trace: Trace, rows: npt.NDArray[np.int64], ceilings: Sequence[DeviceCeilings]
) -> dict[str, pl.Series]:
    """Columns of blocks, waves, coverage and tail of some launches; null where not known."""
    launch = trace.kernels[rows].with_columns(
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
