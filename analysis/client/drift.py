"""How fast one clock runs against another, from how late messages seem to be over time."""

from __future__ import annotations

import numpy as np

from .steps import Floats

#: A drift is stated when it is so many of its own standard errors.
SIGNIFICANT = 3.0


def trend(at: Floats, late: Floats, *, least: int = 30) -> tuple[float, float]:
    """Slope and level at 0 of residuals over time, the slope 0 where it does not stand out of the noise.

    A line (the median of all slopes) through medians of up to 60 stretches of at least ``least`` messages; outliers count
    little.
    """
    count = int(np.clip(len(at) // least, 1, 60))
    middle = float(np.median(late))
    if count < 4:
        return 0.0, middle
    parts = np.array_split(np.argsort(at, kind="stable"), count)
    x = np.array([at[p].mean() for p in parts])
    y = np.array([np.median(late[p]) for p in parts])
    i, j = np.triu_indices(count, 1)
    apart = x[j] - x[i]
    if not (apart > 0).any():
        return 0.0, middle
    slope = float(np.median((y[j] - y[i])[apart > 0] / apart[apart > 0]))
    off = y - slope * x
    error = 1.5 * float(np.median(np.abs(off - np.median(off)))) / float(np.sqrt(((x - x.mean()) ** 2).sum()))
    if abs(slope) < SIGNIFICANT * error:
        return 0.0, middle
    return slope, float(np.median(late - slope * at))
