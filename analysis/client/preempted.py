"""Requests that were preempted: their chain breaks once, and goes on some steps later with a prefill of its own.

Laid as one chain, all messages behind the break seem late (or all before it early) by the same time. Such a break, with a
step that holds prompt tokens inside, is mended by laying both parts apart; the gap between them then covers the steps that
the request missed.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .align import Alignment
from .placement import Placement
from .steps import CaptureSteps, Floats, Ints

#: Messages each side of a break must have.
LEAST_SIDE = 4


def preempted_chains(alignment: Alignment, steps: CaptureSteps) -> Alignment:
    """The alignment with the chains of preempted requests laid in two parts."""
    placement = alignment.placement
    if placement is None or not len(steps.decode_rows):
        return alignment
    broken = _suspects(placement, steps)
    if not broken:
        return alignment
    usual = float(np.median(placement.residual_ns[placement.placed]))
    slot, step, at = placement.slot.copy(), placement.step.copy(), placement.at_ns
    mended = 0
    for first, last in broken:
        part = _mend(placement, steps, first, last, usual)
        if part is not None:
            where, slots = part
            slot[where], step[where] = slots, steps.decode_rows[slots]
            mended += 1
    if not mended:
        return alignment
    residual = np.where(step >= 0, at - steps.end_ns[np.maximum(step, 0)], np.nan)
    reason = f"{alignment.reason} {mended} request{'s were' if mended > 1 else ' was'} preempted and went on later."
    return replace(alignment, placement=replace(placement, slot=slot, step=step, residual_ns=residual), reason=reason)


def _suspects(placement: Placement, steps: CaptureSteps) -> list[tuple[int, int]]:
    """Ranges of messages whose first and last third lie more than most of a step apart."""
    placed = np.flatnonzero(placement.slot >= 0)
    if not len(placed):
        return []
    row = placement.messages.row[placed]
    begin = np.flatnonzero(np.diff(row, prepend=-1))
    end = np.append(begin[1:], len(row))
    long = end - begin >= 2 * LEAST_SIDE
    found = []
    late = placement.residual_ns[placed]
    quarter = np.maximum((end - begin) // 6, 2)
    front = late[np.minimum(begin + quarter, len(late) - 1)]
    back = late[np.maximum(end - 1 - quarter, 0)]
    # One message of either side is enough to look closer; the closer look takes all of them.
    for k in np.flatnonzero(long & (np.abs(back - front) > 0.6 * steps.typical_gap_ns)).tolist():
        found.append((int(placed[begin[k]]), int(placed[end[k] - 1]) + 1))
    return found


def _mend(placement: Placement, steps: CaptureSteps, first: int, last: int, usual: float) -> tuple[slice, Ints] | None:
    """The messages of the displaced part and their new slots; None where the request has no such break."""
    late: Floats = placement.residual_ns[first:last]
    if np.isnan(late).any():
        return None
    count = len(late)
    best, cost = -1, np.inf
    for k in range(LEAST_SIDE, count - LEAST_SIDE + 1):
        left, right = late[:k], late[k:]
        total = float(np.abs(left - np.median(left)).sum() + np.abs(right - np.median(right)).sum())
        if total < cost:
            best, cost = k, total
    if best < 0:
        return None
    before, after = float(np.median(late[:best])), float(np.median(late[best:]))
    whole = float(np.abs(late - np.median(late)).sum())
    if abs(after - before) < 0.8 * steps.typical_gap_ns or cost > 0.5 * whole:
        return None
    late_side = abs(after - usual) > abs(before - usual)
    where = slice(first + best, last) if late_side else slice(first, first + best)
    wanted = placement.at_ns[where] - usual
    ends = steps.decode_end
    near = np.clip(np.searchsorted(ends, wanted), 1, max(len(ends) - 1, 1))
    near = np.where(np.abs(ends[near] - wanted) < np.abs(wanted - ends[near - 1]), near, near - 1)
    slots = placement.slot[where] + int(np.median(near - placement.slot[where]))
    if slots[0] < 0 or slots[-1] >= len(ends):
        return None
    low, high = (placement.slot[first + best - 1], slots[0]) if late_side else (slots[-1], placement.slot[first + best])
    if high - low < 2:
        return None
    between = slice(int(steps.decode_rows[low]) + 1, int(steps.decode_rows[high]) + 1)
    return (where, slots) if steps.has_prefill[between].any() else None
