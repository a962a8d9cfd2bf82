"""Covered shares as heights to draw: what a timeline shows where single intervals are too small."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...analysis.numeric.covered_time import Times, covered_shares

LEVELS = 64  # heights a bin can have; a lane is some twenty pixels tall


def levels_by_code(
    starts: Times, ends: Times, codes: npt.NDArray[np.uint8], edges: npt.NDArray[np.float64], count: int
) -> dict[int, npt.NDArray[np.uint8]]:
    """Coverage per code (0..count-1), each in 0..LEVELS-1, for the codes that occur."""
    out = {}
    for code in range(count):
        mine = codes == code
        if mine.any():
            out[code] = visible(covered_shares(starts[mine], ends[mine], edges))
    return out


def visible(share: npt.NDArray[np.float64]) -> npt.NDArray[np.uint8]:
    """Shares as levels; what is there at all has at least the lowest level above nothing."""
    level = np.rint(share * (LEVELS - 1)).astype(np.uint8)
    return np.where((share > 0) & (level == 0), np.uint8(1), level)
