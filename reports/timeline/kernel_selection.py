"""Which kernels a page carries one by one when it cannot carry all of them.

Whole stretches of time, never a sample of kernels: inside a stretch everything is there, outside it the page shows how
much of each slice of time was covered. First the stalls, longest first, then runs of steps spread over the window.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import polars as pl

from ...analysis.numeric.covered_time import Times
from ...analysis.numeric.intervals import union

STALL_SHARE = 0.6  # of the budget at most, so that quiet steps can be looked at too
RUN = 8  # steps in a row
SLICES = 64  # where there are no steps


@dataclass(frozen=True)
class Detail:
    """The stretches whose kernels are drawn one by one, and what they are."""

    windows: list[tuple[int, int]]
    kernels: int
    whole: bool  # all kernels
    stalls: int = 0
    steps: int = 0


def choose(starts: Times, stalls: pl.DataFrame, steps: pl.DataFrame, window: tuple[int, int], budget: int) -> Detail:
    """Stretches that hold at most ``budget`` of the kernels that begin at ``starts`` (sorted)."""
    if len(starts) <= budget:
        return Detail([window], len(starts), True)
    chosen = _Chosen(starts)
    longest = stalls.sort("stall_ms", descending=True, nulls_last=True).head(2_000)
    n_stalls = chosen.take(zip(longest["start_ns"], longest["end_ns"], strict=True), int(budget * STALL_SHARE))
    n_steps = chosen.take(_runs(steps, starts, budget - chosen.count), budget)
    if steps.is_empty():
        chosen.take(_slices(starts, budget), budget)
    joined = union(*np.array(chosen.windows, dtype=np.int64).reshape(-1, 2).T)
    windows = list(zip(joined.starts.tolist(), joined.ends.tolist(), strict=True))
    return Detail(windows, chosen.inside(windows), False, n_stalls, n_steps * RUN)


class _Chosen:
    """Windows taken so far and an upper bound of their kernels."""

    def __init__(self, starts: Times) -> None:
        self.starts = starts
        self.windows: list[tuple[int, int]] = []
        self.count = 0

    def inside(self, windows: Iterable[tuple[int, int]]) -> int:
        """Kernels that begin in the windows (which do not overlap)."""
        edges = np.array(list(windows), dtype=np.int64).reshape(-1, 2)
        return int(np.diff(np.searchsorted(self.starts, edges), axis=1).sum())

    def take(self, candidates: Iterable[tuple[int, int]], limit: int) -> int:
        """Take the candidates that fit below ``limit``; how many did."""
        taken = 0
        for start, end in candidates:
            more = self.inside([(start, end)])
            if more and self.count + more <= limit:
                self.windows.append((int(start), int(end)))
                self.count += more
                taken += 1
        return taken


def _runs(steps: pl.DataFrame, starts: Times, budget: int) -> list[tuple[int, int]]:
    """Runs of consecutive steps, evenly spread over the window, as many as the budget may hold."""
    if steps.is_empty() or budget <= 0:
        return []
    times = steps.group_by("group", "index").agg(pl.col("start_ns").min(), pl.col("end_ns").max()).sort("start_ns")
    begin, end = times["start_ns"].to_numpy(), times["end_ns"].to_numpy()
    per_run = max(1, len(starts) * RUN // times.height)
    wanted = max(1, min(budget // per_run, times.height // RUN))
    first = np.unique(np.linspace(0, max(0, times.height - RUN), wanted).astype(np.int64))
    last = np.minimum(first + RUN - 1, times.height - 1)
    return list(zip(begin[first].tolist(), end[last].tolist(), strict=True))


def _slices(starts: Times, budget: int) -> list[tuple[int, int]]:
    """Evenly spread stretches of equally many kernels, for captures without steps."""
    each = budget // SLICES
    first = np.linspace(0, len(starts) - each - 1, SLICES).astype(np.int64)
    return list(zip(starts[first].tolist(), starts[first + each].tolist(), strict=True))
