"""Requests that were preempted: their chain breaks once, and goes on some steps later with a prefill of its own.

Laid as one chain, all messages behind the break seem late (or all before it early) by the same time. Such a break, with a
step that holds prompt tokens inside, is mended by laying both parts apart; the gap between them then covers the steps that
the request missed.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .placement import Placement
from .steps import CaptureSteps, Flags, Floats, Ints

#: Messages each side of a break must have.
LEAST_SIDE = 4
#: A break is so much of a usual step at least, and either side scatters by less than SCATTER of one.
LEAST_BREAK = 0.8
SCATTER = 0.45


def mended(placement: Placement, steps: CaptureSteps) -> tuple[Placement, int]:
    """The placement with the chains of preempted requests laid in two parts, and how many there were."""
    if len(steps.decode_rows) < 2 or not placement.placed.any():
        return placement, 0
    slot, step = placement.slot.copy(), placement.step.copy()
    usual = float(np.median(placement.residual_ns[placement.placed]))
    count = 0
    for first, last in _suspects(placement, steps):
        found = _break(placement, steps, first, last, usual)
        if found is not None:
            where, slots = found
            slot[where], step[where] = slots, steps.decode_rows[slots]
            count += 1
    if not count:
        return placement, 0
    residual = np.where(step >= 0, placement.at_ns - steps.end_ns[np.maximum(step, 0)], np.nan)
    return replace(placement, slot=slot, step=step, residual_ns=residual), count


def _suspects(placement: Placement, steps: CaptureSteps) -> list[tuple[int, int]]:
    """Ranges of messages whose first and last few lie more than half a step apart, against their steps."""
    placed = np.flatnonzero((placement.slot >= 0) & placement.messages.strict)
    if not len(placed):
        return []
    row, late = placement.messages.row[placed], placement.residual_ns[placed]
    begin = np.flatnonzero(np.diff(row, prepend=-1))
    end = np.append(begin[1:], len(row))
    long = end - begin >= 2 * LEAST_SIDE
    begin, end = begin[long], end[long]
    few = np.arange(LEAST_SIDE)
    front = np.median(late[begin[:, None] + few], axis=1)
    back = np.median(late[end[:, None] - 1 - few], axis=1)
    apart: Flags = np.abs(back - front) > 0.5 * steps.typical_gap_ns
    return [(int(placed[b]), int(placed[e - 1]) + 1) for b, e in zip(begin[apart], end[apart], strict=True)]


def _break(placement: Placement, steps: CaptureSteps, first: int, last: int, usual: float) -> tuple[slice, Ints] | None:
    """The messages of the displaced part and their new slots; None where the request has no such break."""
    late: Floats = placement.residual_ns[first:last]
    if np.isnan(late).any() or len(late) < 2 * LEAST_SIDE:
        return None
    cut = _where_it_breaks(late)
    before, after = float(np.median(late[:cut])), float(np.median(late[cut:]))
    scatter = max(float(np.median(np.abs(late[:cut] - before))), float(np.median(np.abs(late[cut:] - after))))
    typical = steps.typical_gap_ns
    if abs(after - before) < LEAST_BREAK * typical or scatter > SCATTER * typical:
        return None
    is_behind = abs(after - usual) > abs(before - usual)
    where = slice(first + cut, last) if is_behind else slice(first, first + cut)
    slots = placement.slot[where] + _steps_missed(placement, steps, where, usual)
    if slots[0] < 0 or slots[-1] >= len(steps.decode_rows):
        return None
    low, high = (placement.slot[first + cut - 1], slots[0]) if is_behind else (slots[-1], placement.slot[first + cut])
    between = slice(int(steps.decode_rows[low]) + 1, int(steps.decode_rows[max(high, 0)]) + 1)
    return (where, slots) if high - low >= 2 and steps.has_prefill[between].any() else None


def _where_it_breaks(late: Floats) -> int:
    """The cut that leaves the least scatter on both sides; outliers are clipped."""
    low, high = np.quantile(late, [0.03, 0.97])
    values = np.clip(late, low, high)
    values = values - values.mean()
    left, left_squares = np.cumsum(values), np.cumsum(values**2)
    cuts = np.arange(LEAST_SIDE, len(late) - LEAST_SIDE + 1)
    sums, squares = left[cuts - 1], left_squares[cuts - 1]
    rest, rest_squares = left[-1] - sums, left_squares[-1] - squares
    cost = squares - sums**2 / cuts + rest_squares - rest**2 / (len(late) - cuts)
    return int(cuts[np.argmin(cost)])


def _steps_missed(placement: Placement, steps: CaptureSteps, where: slice, usual: float) -> int:
    """By how many decode-bearing steps a part must be moved to be as late as messages usually are."""
    ends, wanted = steps.decode_end, placement.at_ns[where] - usual
    near = np.clip(np.searchsorted(ends, wanted), 1, len(ends) - 1)
    near = np.where(np.abs(ends[near] - wanted) < np.abs(wanted - ends[near - 1]), near, near - 1)
    return int(np.median(near - placement.slot[where]))
