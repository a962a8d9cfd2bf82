"""The kernels of each device as numpy columns, sorted by start."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from ..numeric.grouping import split_by
from ..records.tables import PHASES


@dataclass(frozen=True)
class DeviceKernels:
    """One device's kernels as numpy columns, sorted by start."""

    start_ns: npt.NDArray[np.int64]
    end_ns: npt.NDArray[np.int64]
    phase: npt.NDArray[np.uint8]  # physical code of PHASES, of the step
    launch: npt.NDArray[np.int32]
    context: npt.NDArray[np.int32]
    stream: npt.NDArray[np.int32]

    def clipped(self, window: tuple[int, int]) -> DeviceKernels:
        """The parts inside the window; itself where all of it is, as the usual window is made of the kernels."""
        low, high = window
        outside = (self.start_ns < low) | (self.end_ns > high) | (self.end_ns <= self.start_ns)
        if not outside.any():
            return self
        start_ns, end_ns = np.maximum(self.start_ns, low), np.minimum(self.end_ns, high)
        rows = np.flatnonzero(start_ns < end_ns)
        context, stream = self.context[rows], self.stream[rows]
        return DeviceKernels(start_ns[rows], end_ns[rows], self.phase[rows], self.launch[rows], context, stream)

    def stream_key(self) -> npt.NDArray[np.int64]:
        """One number per (context, stream)."""
        if len(self.stream) and self.stream.min() == self.stream.max() and self.context.min() == self.context.max():
            return np.broadcast_to(np.int64(0), len(self.stream))
        key = self.context.astype(np.int64)
        key <<= 32
        key += self.stream
        return key


def kernels_by_device(kernels: pl.DataFrame) -> dict[int, DeviceKernels]:
    """The kernels of every device that has some, by its index."""
    of_device = split_by(
        kernels.select("start_ns", "end_ns", "device_index", "in_window", "step_phase", "launch", "context", "stream"),
        "device_index",
    )
    return {d: _kernel_columns(of_device(d)) for d in kernels["device_index"].unique().to_list()}


def _kernel_columns(mine: pl.DataFrame) -> DeviceKernels:
    other = np.uint8(PHASES.categories.to_list().index("other"))
    return DeviceKernels(
        start_ns=mine["start_ns"].to_numpy(),
        end_ns=mine["end_ns"].to_numpy(),
        phase=np.where(mine["in_window"].to_numpy(), mine["step_phase"].to_physical().to_numpy(), other),
        launch=mine["launch"].to_numpy(),
        context=mine["context"].to_numpy(),
        stream=mine["stream"].to_numpy(),
    )
