"""Numerator and denominator of a phase's MBU or MFU over kernel time, where the plain quotient gives the ratio."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import polars as pl

from ..records.usable_steps import USABLE_STEP

AGREE = 0.01  # relative: mixed data types and refused steps can part the plain quotient from the ratio


@dataclass(frozen=True)
class RatioOperands:
    """What the steps of a phase moved or computed, in which kernel time."""

    amount: float  # bytes for an MBU, FLOP for an MFU
    busy_ns: float  # the union of the steps' kernels, added up
    steps: int  # over all devices
    devices: int


def ratio_operands(
    steps: pl.DataFrame, phase: str, ratio: Literal["mbu", "mfu"], percent: float, ceiling: float
) -> RatioOperands | None:
    """The operands of ``percent`` over the whole steps of ``phase``; None where they do not give it.

    ``ceiling``: bytes/s or FLOP/s of one device.
    """
    counted = steps.filter((pl.col("phase") == phase) & USABLE_STEP & pl.col(f"{ratio}_pct").is_not_null())
    amount = float(counted["bytes" if ratio == "mbu" else "flop"].sum())
    busy_ns = float(counted["busy_ns"].sum())
    if not ceiling or not busy_ns:
        return None
    quotient = 100 * amount / (busy_ns / 1e9) / ceiling
    if abs(quotient - percent) > AGREE * percent:
        return None
    return RatioOperands(amount, busy_ns, counted.height, counted["device_index"].n_unique())
