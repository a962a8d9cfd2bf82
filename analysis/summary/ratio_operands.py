"""Numerator and denominator of the two ratios of the first screen, shown where they give the ratio that is shown."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from ...analysis.numeric import number_text as fmt
from ...analysis.records.analysis import Analysis

AGREE = 0.01  # relative: mixed data types and refused steps can part the plain quotient from the ratio


@dataclass(frozen=True)
class Ratio:
    """One of the two ratios: of which phase, which column of the steps it counts, against which ceiling."""

    key: str
    label: str
    phase: str
    column: str
    ratio_column: str
    unit: str
    counted: str  # what the numerator counts


MBU = Ratio("decode_mbu", "Decode MBU", "decode", "bytes", "mbu_pct", "B", "bytes decode must move")
MIXED_MFU = Ratio("mixed_mfu", "Mixed MFU", "mixed", "flop", "mfu_pct", "FLOP", "useful FLOP of mixed steps")
MFU = Ratio("prefill_mfu", "Prefill MFU", "prefill", "flop", "mfu_pct", "FLOP", "useful FLOP of prefill")


def footnote(analysis: Analysis, ratio: Ratio, percent: float | None, ceiling: float | None, ceiling_text: str) -> str:
    """How the ratio over kernel time came about, with its numbers where the steps hold them.

    ``ceiling``: bytes/s or FLOP/s of one device.
    """
    end = "Kernel time is the union of the phase's kernels; wall time runs from step end to step end."
    plain = f"{ratio.label}: {ratio.counted} ÷ (time × {ceiling_text}). {end}"
    steps = analysis.steps.filter(
        (pl.col("phase") == ratio.phase) & ~pl.col("partial") & ~pl.col("excluded") & pl.col(ratio.ratio_column).is_not_null()
    )  # fmt: skip
    amount, busy_ns = float(steps[ratio.column].sum()), float(steps["busy_ns"].sum())
    if percent is None or not ceiling or not busy_ns:
        return plain
    quotient = 100 * amount / (busy_ns / 1e9) / ceiling
    if abs(quotient - percent) > AGREE * percent:
        return plain
    rows = fmt.plural(steps.height, f"{ratio.phase} step")
    devices = steps["device_index"].n_unique()
    each = f" on {fmt.plural(devices, 'device')}" if devices > 1 else ""
    return (
        f"{ratio.label} {fmt.percent(percent)} = {fmt.scaled(amount, ratio.unit)} ({ratio.counted}) ÷ "
        f"({fmt.nanoseconds(busy_ns)} of kernel time in {rows}{each} × {ceiling_text}). {end}"
    )
