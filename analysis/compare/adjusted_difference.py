"""The difference between two sets of steps, after adjusting for what they did.

Pooled least squares: ``y = a + covariates . b + d * after``; ``d`` is the adjusted difference. Where a covariate is
unknown (KV lengths often are), each run gets a drift of its own instead: contexts grow by one token per request and
step, so step time drifts within a run even where the level is not known. Its standard error is widened by the lag-1 autocorrelation of the residuals, because steps of one run are not independent. Values are
winsorised at 1% and 99% of each run, so that one profiler hiccup is not a regression.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..numeric.fits import least_squares

Floats = npt.NDArray[np.float64]

MIN_STEPS = 5
DRIFT_ORDER = 2
SIGNIFICANT_T = 3.3  # two-sided p of about 0.001
CONFIDENCE_T = 1.96  # the interval that is printed


@dataclass(frozen=True)
class Difference:
    """An adjusted difference; percentages are of the before run's mean."""

    before: float
    after: float  # before + the adjusted difference
    change_pct: float
    low_pct: float  # 95% interval
    high_pct: float
    t: float
    n_before: int
    n_after: int

    def significant(self, min_change_pct: float, tests: int = 1) -> bool:
        """Whether it is beyond chance (Bonferroni over ``tests``) and at least ``min_change_pct``."""
        threshold = SIGNIFICANT_T + 0.25 * np.log2(max(tests, 1))
        return bool(abs(self.t) > threshold and abs(self.change_pct) >= min_change_pct)

    def excluded(self, min_change_pct: float) -> bool:
        """Whether the interval rules out a change of ``min_change_pct`` either way."""
        return self.low_pct > -min_change_pct and self.high_pct < min_change_pct


def winsorise(values: Floats) -> Floats:
    """Values cut to their 1% and 99% quantiles."""
    low, high = np.quantile(values, (0.01, 0.99))
    return np.clip(values, low, high)


def adjusted_difference(
    before: Floats, after: Floats, covariates_before: Floats, covariates_after: Floats
) -> Difference | None:
    """The difference after - before at equal covariates; None with too few steps or a zero mean.

    ``covariates_*`` have shape (steps, k); columns that hold a NaN or do not vary are left out.
    """
    if len(before) < MIN_STEPS or len(after) < MIN_STEPS:
        return None
    mean = float(winsorise(before).mean())
    if mean <= 0:
        return None
    y = np.concatenate([winsorise(before), winsorise(after)])
    marker = np.concatenate([np.zeros(len(before)), np.ones(len(after))])
    covariates = np.vstack([covariates_before, covariates_after])
    usable = [
        column
        for column in covariates.T
        if np.isfinite(column).all() and np.ptp(column) > 1e-12 * max(abs(column).max(), 1.0)
    ]
    columns = [(c - c.mean()) / c.std() for c in usable]
    if len(y) > 8 * DRIFT_ORDER and not np.isfinite(covariates).all():
        columns += _drifts(len(before), len(after))
    design = np.column_stack([np.ones(len(y)), *columns, marker])
    fit = least_squares(design, y)
    if fit is None:  # the runs do not overlap in what they did, or have too few steps: no covariate can be told apart
        return None
    residual = fit.residuals
    error = fit.standard_errors[-1] * _autocorrelation_factor(residual[: len(before)], residual[len(before) :])
    error = max(float(error), 1e-9 * mean)
    d = float(fit.coefficients[-1])
    return Difference(
        before=mean,
        after=mean + d,
        change_pct=100 * d / mean,
        low_pct=100 * (d - CONFIDENCE_T * error) / mean,
        high_pct=100 * (d + CONFIDENCE_T * error) / mean,
        t=d / error,
        n_before=len(before),
        n_after=len(after),
    )


def _drifts(before: int, after: int) -> list[Floats]:
    """Polynomials of the order of steps for each run, zero in the other and with zero mean: they move no level."""
    drifts = []
    for first, count in ((0, before), (before, after)):
        order = np.linspace(-1.0, 1.0, count)
        for power in range(1, DRIFT_ORDER + 1):
            column = np.zeros(before + after)
            column[first : first + count] = order**power - (order**power).mean()
            drifts.append(column)
    return drifts


def _autocorrelation_factor(*residuals: Floats) -> float:
    """By how much dependent steps widen the error: sqrt((1 + r) / (1 - r)) of the larger lag-1 correlation."""
    worst = 0.0
    for values in residuals:
        centred = values - values.mean()
        power = float(centred @ centred)
        if len(values) > 3 and power > 0:
            worst = max(worst, float(centred[1:] @ centred[:-1]) / power)
    worst = min(worst, 0.95)
    return float(np.sqrt((1 + worst) / (1 - worst)))
