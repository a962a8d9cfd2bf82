"""GPU metrics samples integrated over steps and over kernels longer than the sampling period.

A sample holds the mean of the interval before it, so its running integral, read at two times, gives the mean between
them. Samples are of the whole device, whatever process caused the traffic. DRAM percentages are of the peak at the
current memory clock, which the bandwidth of the capture stands for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from ...gpus.device_ceilings import DeviceCeilings
from ...records.trace import Trace
from ...records.work import PhaseMetrics
from ..kernel_work import SOURCE_CODE, UNKNOWN, KernelWork, WorkLayer

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

METRICS = ("dram_read_pct", "dram_write_pct", "tensor_active_pct", "sm_active_pct", "sm_clock_hz")
MAX_GAP_PERIODS = 3.0  # a step between samples of more than so many periods is missing data, not one long sample
MIN_PERIODS = 2.0  # a kernel of so many periods has samples of its own
MAX_RATIO = 1.5  # model against sampled bytes


@dataclass(frozen=True)
class Integral:
    """Running integral of one metric on one device, and of the time it was sampled."""

    time: Floats
    value: Floats
    sampled: Floats
    period: float

    def mean(self, start: Ints, end: Ints) -> Floats:
        """Mean over each [start, end); NaN where under half of it was sampled."""
        area = np.interp(end, self.time, self.value) - np.interp(start, self.time, self.value)
        covered = np.interp(end, self.time, self.sampled) - np.interp(start, self.time, self.sampled)
        enough = covered > 0.5 * np.maximum(end - start, 1)
        return np.where(enough, area / np.where(enough, covered, 1.0), np.nan)


def integral(time: Ints, values: Floats) -> Integral | None:
    """The running integral of samples (time = end of the interval each describes); None with fewer than three."""
    known = ~np.isnan(values)
    time, values = time[known], values[known]
    if len(time) < 3:
        return None
    gaps = np.diff(time)
    period = float(np.median(gaps[gaps > 0])) if (gaps > 0).any() else 0.0
    if period <= 0:
        return None
    length = np.append(period, np.where(gaps > MAX_GAP_PERIODS * period, period, gaps))
    # each sample becomes two points, the begin and the end of its interval, so that missing time adds nothing
    ends = np.column_stack([time - length, time]).ravel().astype(np.float64)
    area = np.column_stack([np.append(0.0, np.cumsum(values * length)[:-1]), np.cumsum(values * length)]).ravel()
    sampled = np.column_stack([np.append(0.0, np.cumsum(length)[:-1]), np.cumsum(length)]).ravel()
    return Integral(ends, area, sampled, period)


def integrals(trace: Trace) -> dict[int, dict[str, Integral]]:
    """Per device the integral of every metric that was sampled."""
    found: dict[int, dict[str, Integral]] = {}
    for (device,), own in trace.gpu_metrics.partition_by("device_index", as_dict=True).items():
        time = own["time_ns"].to_numpy()
        for metric in METRICS:
            made = integral(time, own[metric].cast(pl.Float64).to_numpy().astype(np.float64))
            if made is not None:
                found.setdefault(int(device), {})[metric] = made
    return found


def phase_means(
    steps: pl.DataFrame, sampled: Mapping[int, Mapping[str, Integral]], ceilings: Sequence[DeviceCeilings]
) -> list[PhaseMetrics]:
    """Per step phase and device: time-weighted means over the steps, sampled bandwidth and MBU (over step spans)."""
    bandwidth = {each.device_index: each.memory_bandwidth_gbps for each in ceilings}
    rows = []
    counted = steps.filter(~pl.col("excluded").fill_null(False) & ~pl.col("partial").fill_null(False))
    for (device, phase), own in counted.partition_by(
        "device_index", "phase", as_dict=True, maintain_order=True
    ).items():
        metrics = sampled.get(int(device))
        if not metrics:
            continue
        start, end = own["start_ns"].to_numpy(), own["end_ns"].to_numpy()
        means = {name: _weighted(each.mean(start, end), end - start) for name, each in metrics.items()}
        read, write = means.get("dram_read_pct"), means.get("dram_write_pct")
        dram = None if read is None and write is None else (read or 0.0) + (write or 0.0)
        peak = bandwidth.get(int(device))
        clock = means.get("sm_clock_hz")
        rows.append(
            PhaseMetrics(
                device_index=int(device),
                phase=phase,
                steps=own.height,
                seconds=float((end - start).sum()) / 1e9,
                sampled_mbu_pct=dram,
                sampled_gbps=None if dram is None or not peak else dram / 100.0 * peak,
                dram_read_pct=read,
                dram_write_pct=write,
                tensor_active_pct=means.get("tensor_active_pct"),
                sm_active_pct=means.get("sm_active_pct"),
                sm_clock_mhz=None if clock is None else clock / 1e6,
            )
        )
    return rows


def _weighted(means: Floats, lengths: Ints) -> float | None:
    known = ~np.isnan(means)
    if not known.any():
        return None
    return float(np.average(means[known], weights=np.maximum(lengths[known], 1)))


def layers_of_long_kernels(
    work: KernelWork,
    kernels: pl.DataFrame,
    sampled: Mapping[int, Mapping[str, Integral]],
    ceilings: Sequence[DeviceCeilings],
) -> tuple[list[WorkLayer], list[str]]:
    """Sampled bytes of long kernels without work, and a sentence where sampled and modelled bytes disagree.

    Device-wide samples are a kernel's own only while nothing else runs, so they never replace known work.
    """
    layers: list[WorkLayer] = []
    warnings: list[str] = []
    bandwidth = {each.device_index: each.memory_bandwidth_gbps for each in ceilings}
    start, end = kernels["start_ns"].to_numpy(), kernels["end_ns"].to_numpy()
    for device, metrics in sampled.items():
        parts = [metrics[name] for name in ("dram_read_pct", "dram_write_pct") if name in metrics]
        peak = bandwidth.get(device)
        if not parts or not peak:
            continue
        period = max(part.period for part in parts)
        rows = np.flatnonzero((work.device == device) & (work.duration >= MIN_PERIODS * period))
        if not len(rows):
            continue
        pct = sum((part.mean(start[rows], end[rows]) for part in parts), np.zeros(len(rows)))
        size = pct / 100.0 * peak * work.duration[rows]  # GB/s times ns = bytes
        fresh = (work.source[rows] == UNKNOWN) & ~np.isnan(size)
        source = np.full(int(fresh.sum()), SOURCE_CODE["sampled"], np.uint8)
        layers.append(WorkLayer(rows[fresh], bytes=size[fresh], source=source))
        known = ~fresh & ~np.isnan(size) & ~np.isnan(work.bytes[rows])
        model, seen = float(work.bytes[rows[known]].sum()), float(size[known].sum())
        if model > 0 and seen > 0 and max(model / seen, seen / model) > MAX_RATIO:
            warnings.append(
                f"device {device}: {int(known.sum())} long kernels move {model / 1e9:.3g} GB by the model and "
                f"{seen / 1e9:.3g} GB by the sampled DRAM activity"
            )
    return layers, warnings


def compare_steps(steps: pl.DataFrame, rows: Sequence[PhaseMetrics]) -> list[str]:
    """Warnings where the model's bytes of a phase and the sampled ones differ by more than 1.5 times."""
    warnings = []
    own = steps.filter(~pl.col("excluded").fill_null(False) & ~pl.col("partial").fill_null(False))
    for row in rows:
        if row.sampled_gbps is None:
            continue
        same = own.filter((pl.col("device_index") == row.device_index) & (pl.col("phase") == row.phase))
        if not same.height or same["bytes"].null_count() or same["bytes_kv"].null_count():
            continue
        model, seen = float(same["bytes"].sum()), row.sampled_gbps * 1e9 * row.seconds
        if seen > 0 and max(model / seen, seen / model) > MAX_RATIO:
            warnings.append(
                f"device {row.device_index}, {row.phase} steps: {model / 1e9:.3g} GB by the model, "
                f"{seen / 1e9:.3g} GB by the sampled DRAM activity"
            )
    return warnings
