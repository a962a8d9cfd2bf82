"""Which of a GPU's ceilings a run is held against."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from ..numeric.number_text import is_known
from ..records.analysis import Analysis
from ..records.devices import Device
from ..records.record import Number

#: Op classes that are held against a peak; a sampler in fp32 does not make the fp32 peak one of the run's ceilings.
MATRIX = ("gemm", "moe_gemm", "attention")
_USUAL_DTYPES = ("bf16", "fp16", "fp8", "tf32", "fp32")  # the first that has a peak, where the run names no type


@dataclass(frozen=True)
class CeilingInUse:
    """One roof of the roofline with the data types that share it."""

    dtypes: tuple[str, ...]
    peak_tflops: Number
    bandwidth_gbps: Number
    ridge: float  # FLOP/byte at which the slope meets the roof


def main_dtype(kernel_table: pl.DataFrame) -> str | None:
    """The data type most kernel time computes in; None where no kernel names one."""
    known = kernel_table.filter(pl.col("dtype").is_not_null() & (pl.col("dtype") != ""))
    by_type = known.group_by("dtype").agg(pl.col("total_ms").sum()).sort("total_ms", "dtype", descending=[True, False])
    return None if by_type.is_empty() else str(by_type["dtype"][0])


def peak_of(device: Device, dtype: str | None) -> tuple[Number | None, str]:
    """(TFLOP/s, data type) that the run's work is held against; (None, '') where no peak is known."""
    peaks = {k: v for k, v in device.peak_tflops.items() if is_known(v)}
    if dtype in peaks:
        return peaks[dtype], str(dtype)
    name = next((d for d in _USUAL_DTYPES if d in peaks), next(iter(peaks), ""))
    return peaks.get(name), name


def ceilings_in_use(analysis: Analysis) -> list[CeilingInUse]:
    """The roofline's ceilings of the data types that this run's matrix kernels compute in; all where none is named.

    Once per peak and bandwidth, the highest peak first.
    """
    ceilings = analysis.roofline.get("ceilings") or ()
    matrix = analysis.kernel_table.filter(pl.col("op_class").cast(pl.String).is_in(MATRIX))
    used = set(matrix["dtype"].drop_nulls().to_list())
    by_values: dict[tuple[Number, Number], CeilingInUse] = {}
    for ceiling in [c for c in ceilings if c["dtype"] in used] or ceilings:
        peak, bandwidth, dtype = ceiling["peak_tflops"], ceiling["bandwidth_gbps"], ceiling["dtype"]
        if not (is_known(peak) and is_known(bandwidth) and peak > 0 and bandwidth > 0):
            continue
        same = by_values.get((peak, bandwidth))
        ridge = ceiling["ridge"]
        shared = same.dtypes if same else ()
        by_values[peak, bandwidth] = CeilingInUse(
            dtypes=shared if dtype in shared else (*shared, dtype),
            peak_tflops=peak,
            bandwidth_gbps=bandwidth,
            ridge=same.ridge if same else float(ridge if is_known(ridge) else peak * 1e3 / bandwidth),
        )
    return sorted(by_values.values(), key=lambda c: -c.peak_tflops)
