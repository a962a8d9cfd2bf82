"""Linear least squares with the spread of what it finds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class LinearFit:
    """Coefficients of the columns of a design, their standard errors, and what the fit leaves of each row."""

    coefficients: Floats
    standard_errors: Floats
    residuals: Floats


def least_squares(design: Floats, target: Floats) -> LinearFit | None:
    """Fit ``target`` by the columns of ``design``; None where they cannot be told apart or rows do not exceed columns.

    Standard errors take the residuals to be independent and of one spread.
    """
    coefficients, _, rank, _ = np.linalg.lstsq(design, target, rcond=None)
    freedom = len(target) - design.shape[1]
    if rank < design.shape[1] or freedom <= 0:
        return None
    found: Floats = np.asarray(coefficients, dtype=np.float64)
    residuals = target - design @ found
    noise = float(residuals @ residuals) / freedom
    spread = np.diag(np.linalg.inv(design.T @ design))
    return LinearFit(found, np.sqrt(np.maximum(noise * spread, 0.0)), residuals)
