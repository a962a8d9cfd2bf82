"""Bounds of the matrices of a model that nobody knows: their outputs and inputs, each between two numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..operators.gemm_orders import PLACE_CODE, PLACES

Floats = npt.NDArray[np.float64]

# Relative distance of the ends of N K up to which it is counted: no more than the ceilings are uncertain by (MBU counts
# up to 105% as within calibration).
MAX_BOUNDS_SPREAD = 0.05


@dataclass(frozen=True)
class WidthBounds:
    """A width between two numbers, both possible, and the one that is counted where they are close."""

    low: int
    high: int
    counted: int

    def __str__(self) -> str:
        return f"{self.low:,}" if self.low == self.high else f"{self.low:,} to {self.high:,}"


@dataclass(frozen=True)
class MatrixBounds:
    """Bounds of every matrix that tiles and grids tell of; ``notes`` say what they are or why there are none."""

    outputs: Mapping[str, WidthBounds]
    inputs: Mapping[str, WidthBounds]
    notes: tuple[str, ...] = ()

    def weights(self, end: str) -> Floats:
        """N K by place code at one end ('low', 'high' or 'counted'); NaN where there is no bound."""
        found = np.full(len(PLACES), np.nan)
        for place in self.outputs.keys() & self.inputs.keys():
            found[PLACE_CODE[place]] = float(getattr(self.outputs[place], end)) * getattr(self.inputs[place], end)
        return found

    def close(self) -> npt.NDArray[np.bool_]:
        """Place codes whose bounds are close enough to count."""
        with np.errstate(invalid="ignore"):
            return np.asarray(self.weights("high") <= (1.0 + MAX_BOUNDS_SPREAD) * self.weights("low"))
