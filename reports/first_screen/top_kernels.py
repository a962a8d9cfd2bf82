"""The heaviest kernels of the first screen: their cells as text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import polars as pl

from ...analysis.numeric.number_text import is_known, milliseconds, number, percent


@dataclass(frozen=True)
class KernelCells:
    """What a short table says of one kernel; '' where it is not known."""

    name: str
    short_name: str
    phase: str
    op_class: str
    count_per_step: str
    median_us: str
    total: str
    intensity: str
    mfu: str
    mbu: str
    bound: str


def heaviest(table: pl.DataFrame, count: int) -> pl.DataFrame:
    """The heaviest rows of a kernel table."""
    return table.sort("total_ms", "name", descending=[True, False]).head(count)


def of_phase(table: pl.DataFrame, phase: str) -> pl.DataFrame:
    """The rows of one phase."""
    return table.filter(pl.col("phase") == phase)


def kernel_cells(rows: pl.DataFrame) -> list[KernelCells]:
    """The rows of the kernel table in words, in their order."""

    def told(key: str, show: Callable[[float], str]) -> list[str]:
        return [show(value) if is_known(value) else "" for value in rows[key].to_list()]

    def words(key: str) -> list[str]:
        return [str(value or "") for value in rows[key].to_list()]

    columns = (
        words("name"), words("short_name"), words("phase"), words("op_class"), told("count_per_step", number),
        told("median_us", number), told("total_ms", milliseconds), told("arithmetic_intensity", number),
        told("mfu_pct", percent), told("mbu_pct", percent), words("bound"),
    )  # fmt: skip
    return [KernelCells(*cells) for cells in zip(*columns, strict=True)]
