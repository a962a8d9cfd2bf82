"""Which of a GPU's ceilings a run is held against: shared by the screen, the page and the figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from ..analysis.numeric.number_text import is_known
from ..analysis.records.analysis import Analysis

#: Op classes that are held against a peak; a sampler in fp32 does not make the fp32 peak one of the run's ceilings.
MATRIX = ("gemm", "moe_gemm", "attention")


def main_dtype(analysis: Analysis) -> str | None:
    """The data type most kernel time computes in; None where no kernel names one."""
    known = analysis.kernel_table.filter(pl.col("dtype").is_not_null() & (pl.col("dtype") != ""))
    by_type = known.group_by("dtype").agg(pl.col("total_ms").sum()).sort("total_ms", "dtype", descending=[True, False])
    return None if by_type.is_empty() else str(by_type["dtype"][0])


def peak_of(device: Mapping[str, Any], dtype: str | None) -> tuple[float | None, str]:
    """(TFLOP/s, data type) that the run's work is held against; (None, '') where no peak is known."""
    peaks = {k: v for k, v in (device.get("peak_tflops") or {}).items() if is_known(v)}
    if dtype in peaks:
        return peaks[dtype], str(dtype)
    name = next((d for d in ("bf16", "fp16", "fp8", "tf32", "fp32") if d in peaks), next(iter(peaks), ""))
    return peaks.get(name), name


def ceilings_in_use(analysis: Analysis) -> list[dict[str, Any]]:
    """The roofline's ceilings of the data types that this run's matrix kernels compute in; all where none is named.

    Once per peak and bandwidth, the highest peak first: types that share a ceiling stand together in ``dtypes``.
    """
    ceilings: Sequence[Mapping[str, Any]] = analysis.roofline.get("ceilings") or ()
    matrix = analysis.kernel_table.filter(pl.col("op_class").cast(pl.String).is_in(MATRIX))
    used = set(matrix["dtype"].drop_nulls().to_list())
    by_values: dict[tuple[float, float], dict[str, Any]] = {}
    for c in [c for c in ceilings if c.get("dtype") in used] or ceilings:
        peak, bandwidth = c.get("peak_tflops"), c.get("bandwidth_gbps")
        if is_known(peak) and is_known(bandwidth) and peak > 0 and bandwidth > 0:  # type: ignore[operator]
            kept = by_values.setdefault((peak, bandwidth), {**c, "dtypes": []})  # type: ignore[arg-type]
            if c.get("dtype") not in kept["dtypes"]:
                kept["dtypes"].append(c.get("dtype"))
    return sorted(by_values.values(), key=lambda c: -c["peak_tflops"])


def ridge_of(ceiling: Mapping[str, Any]) -> float:
    """FLOP/byte at which a ceiling's slope meets its roof."""
    given = ceiling.get("ridge")
    return float(given if is_known(given) else ceiling["peak_tflops"] * 1e3 / ceiling["bandwidth_gbps"])  # type: ignore[arg-type]
