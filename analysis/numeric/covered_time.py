"""How much of each slice of time intervals cover."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]  # ns


def covered_shares(starts: Times, ends: Times, edges: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Share of each slice between ``edges`` that intervals sorted by start cover.

    Exact for intervals that do not overlap; where they do (programmatic dependent launch) the share stops at 1.
    """
    if not len(starts):
        return np.zeros(len(edges) - 1)
    before = np.concatenate([[0.0], np.cumsum((ends - starts).astype(np.float64))])
    index = np.searchsorted(starts, edges, side="right")
    last = np.maximum(index - 1, 0)
    beyond = np.where(index > 0, np.maximum(ends[last] - edges, 0), 0)
    share: npt.NDArray[np.float64] = np.clip(np.diff(before[index] - beyond) / np.diff(edges), 0, 1)
    return share
