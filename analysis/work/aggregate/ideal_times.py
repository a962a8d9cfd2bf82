"""What each kernel's work would take at the ceilings of its device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ...gpus.device_ceilings import DeviceCeilings
from ...numeric.row_chunks import stretches
from ..kernel_work import IdealTimes, KernelWork
from ..operators.name_arrays import DTYPES

Floats = npt.NDArray[np.float64]


def ideal_times(work: KernelWork, ceilings: Sequence[DeviceCeilings]) -> IdealTimes:
    """The least time of each kernel's work at its device's ceilings."""
    devices = max((ceiling.device_index for ceiling in ceilings), default=-1) + 1
    devices = max(devices, int(work.device.max(initial=-1)) + 1)
    peak = np.full((devices, len(DTYPES)), np.nan)
    bandwidth = np.full(devices, np.nan)
    for ceiling in ceilings:
        for code, dtype in enumerate(DTYPES):
            value = ceiling.peak_tflops.get(dtype)
            if value:
                peak[ceiling.device_index, code] = value * 1e12
        if ceiling.memory_bandwidth_gbps:
            bandwidth[ceiling.device_index] = ceiling.memory_bandwidth_gbps * 1e9
    vector = peak[:, DTYPES.index("fp32")]
    compute_s, memory_s = np.empty(len(work.flop)), np.empty(len(work.flop))
    more: list[tuple[npt.NDArray[np.int64], Floats]] = []
    for some in stretches(len(work.flop)):
        device, flop = work.device[some], work.flop[some]
        rate = np.where(work.matrix[some], peak.ravel()[device * len(DTYPES) + work.dtype[some]], vector[device])
        compute_s[some] = np.where(flop == 0, 0.0, flop / rate)
        memory_s[some] = work.bytes[some] / bandwidth[device]
        padded = np.flatnonzero(np.isnan(flop) & ~np.isnan(work.flop_executed[some]))
        if len(padded):
            more.append((padded + some.start, work.flop_executed[some][padded] / rate[padded]))
    most_s = compute_s.copy() if more else compute_s
    for rows, seconds in more:
        most_s[rows] = seconds
    return IdealTimes(compute_s, memory_s, most_s)
