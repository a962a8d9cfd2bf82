"""Counters recorded beside the profiler (nvidia-smi dmon, DCGM) against the model, over the whole window.

They come once a second or ten times a second, so they speak of the window, not of steps. Only DCGM's DRAM active is a
share of the memory bandwidth; nvidia-smi's ``mem`` is the share of time in which memory was read or written at all.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from ...gpus.device_ceilings import DeviceCeilings
from ...records.trace import Trace
from ...records.work import CounterMeans
from .sampled_metrics import MAX_RATIO

_MEANS = (
    "utilization_pct",
    "memory_utilization_pct",
    "sm_active_pct",
    "tensor_active_pct",
    "dram_active_pct",
    "sm_clock_hz",
    "power_w",
)
_MOST_OF_THE_TIME = 0.95  # of kernel time must have known bytes for the model to be called complete


def counter_means(
    trace: Trace,
    kernels: pl.DataFrame,
    kernel_bytes: npt.NDArray[np.float64],
    window: tuple[int, int],
    ceilings: Sequence[DeviceCeilings],
) -> list[CounterMeans]:
    """Per device and source: means of the counters inside ``window`` and the model's bandwidth beside the counted one.

    ``kernel_bytes`` is row-aligned with ``kernels``, NaN = unknown. ``model_gbps_is_lower_bound`` where under 95% of
    the kernel time has known bytes. Empty where no counter lies in the window.
    """
    bandwidth = {c.device_index: c.memory_bandwidth_gbps for c in ceilings}
    inside = trace.counters.filter(pl.col("time_ns").is_between(*window))
    rows = []
    for (device, source), own in inside.partition_by(
        "device_index", "source", as_dict=True, maintain_order=True
    ).items():
        means = {name: _mean(own[name]) for name in _MEANS}
        peak, dram = bandwidth.get(int(device)), means["dram_active_pct"]
        counted = dram / 100 * peak if dram is not None and peak else None
        model, complete = _model_gbps(kernels, kernel_bytes, int(device), window)
        rows.append(
            CounterMeans(
                device_index=int(device),
                source=source,
                samples=own.height,
                counted_gbps=counted,
                model_gbps=model,
                model_gbps_is_lower_bound=None if model is None else not complete,
                **means,
            )
        )
    return rows


def _mean(column: pl.Series) -> float | None:
    mean = column.cast(pl.Float64).mean()
    return mean if isinstance(mean, float) else None


def _model_gbps(
    kernels: pl.DataFrame, kernel_bytes: npt.NDArray[np.float64], device: int, window: tuple[int, int]
) -> tuple[float | None, bool]:
    chosen = (kernels["device_index"] == device).to_numpy() & kernels["in_window"].to_numpy()
    size, length = kernel_bytes[chosen], (kernels["end_ns"] - kernels["start_ns"]).to_numpy()[chosen]
    known = ~np.isnan(size)
    if not known.any():
        return None, False
    complete = bool(length[known].sum() >= _MOST_OF_THE_TIME * length.sum())
    return float(size[known].sum()) / max(window[1] - window[0], 1), complete


def disagreements(rows: Sequence[CounterMeans]) -> list[str]:
    """A warning where counters and model differ by more than 1.5 times; an incomplete model may only be below."""
    warnings = []
    for row in rows:
        counted, model = row.counted_gbps, row.model_gbps
        if not counted or not model:
            continue
        above = model / counted > MAX_RATIO
        below = counted / model > MAX_RATIO and not row.model_gbps_is_lower_bound
        if above or below:
            warnings.append(
                f"device {row.device_index}: {model:.3g} GB/s over the window by the model, {counted:.3g} GB/s by "
                f"{row.source}'s DRAM activity"
            )
    return warnings
