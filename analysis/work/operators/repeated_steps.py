"""Steps that launch the same kinds of kernels in the same order: what follows from the order is found once for all.

A server replays one graph, or runs one eager pass, thousands of times, so a capture of a million kernels holds a few
dozen different steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RepeatedSteps:
    """The kernels of the first step of each kind, and where every kernel of the others finds its counterpart.

    ``rows`` are rows of the first ones, step by step; ``source`` says for each row of the input its place in ``rows``;
    ``times`` how many steps launch the same kernels as the step of each of ``rows``.
    """

    rows: Ints
    source: npt.NDArray[np.int32]
    times: Ints


def repeated_steps(
    step: npt.NDArray[np.int32], kind: npt.NDArray[np.uint8], of_step: npt.NDArray[np.integer]
) -> RepeatedSteps:
    """Group the steps whose kernels have the same ``kind``s in the same order, and which are the same ``of_step``.

    ``step`` ascends; ``of_step`` has a number for each step.
    """
    n = len(step)
    begins = np.flatnonzero(np.append(True, step[1:] != step[:-1])) if n else np.zeros(0, np.int64)
    lengths = np.diff(np.append(begins, n))
    place = np.arange(n, dtype=np.int32) - np.repeat(begins.astype(np.int32), lengths)
    random = np.random.default_rng(7)
    of_kind, of_place = (random.integers(1, 2**63, size, np.uint64) for size in (256, int(lengths.max(initial=1))))
    mixed = of_kind[kind]
    mixed *= of_place[place] | np.uint64(1)
    hashes = np.add.reduceat(mixed, begins) if n else np.zeros(0, np.uint64)
    keys = np.stack([hashes, lengths.astype(np.uint64), of_step[step[begins]].astype(np.uint64)], axis=1)
    _, first, group, count = np.unique(keys, axis=0, return_index=True, return_inverse=True, return_counts=True)
    group = group.reshape(-1)
    kept = np.sort(first)
    start_of = np.zeros(len(begins), np.int32)  # of the first steps, where their rows begin among the kept ones
    start_of[kept] = np.cumsum(lengths[kept]) - lengths[kept]
    rows = np.repeat(begins[kept] - start_of[kept], lengths[kept]) + np.arange(int(lengths[kept].sum()))
    source = np.repeat(start_of[first[group]], lengths) + place
    if not np.array_equal(kind[rows][source], kind):  # two orders with one hash: each step for itself
        return RepeatedSteps(np.arange(n), np.arange(n, dtype=np.int32), np.ones(n, np.int64))
    return RepeatedSteps(rows, source, np.repeat(count[group[kept]], lengths[kept]))
