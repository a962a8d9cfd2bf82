"""How much of each slice of time is covered by intervals: what a timeline shows where single ones are too small."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
LEVELS = 64  # heights a bin can have; a lane is some twenty pixels tall


def covered(starts: Ints, ends: Ints, edges: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Share of each bin between ``edges`` that intervals sorted by start cover.

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


def layers(
    starts: Ints, ends: Ints, codes: npt.NDArray[np.uint8], edges: npt.NDArray[np.float64], count: int
) -> dict[int, npt.NDArray[np.uint8]]:
    """Coverage per code (0..count-1), each in 0..LEVELS-1, for the codes that occur."""
    out = {}
    for code in range(count):
        mine = codes == code
        if mine.any():
            out[code] = visible(covered(starts[mine], ends[mine], edges))
    return out


def visible(share: npt.NDArray[np.float64]) -> npt.NDArray[np.uint8]:
    """Shares as levels; what is there at all has at least the lowest level above nothing."""
    level = np.rint(share * (LEVELS - 1)).astype(np.uint8)
    return np.where((share > 0) & (level == 0), np.uint8(1), level)


def merged(windows: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Windows in time order, those that touch joined."""
    out: list[tuple[int, int]] = []
    for start, end in sorted(windows):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        else:
            out.append((start, end))
    return out
