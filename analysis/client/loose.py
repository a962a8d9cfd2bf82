"""Messages that do not say how many tokens they hold: parsers hold text back, several steps' tokens come as one message.

Their places in a chain are not known, but each came after the step of its last token, so it is laid on the latest step that
leaves it as late as messages are at least. A log of nothing but such messages is fitted by its first tokens alone: each must
follow a step with prompt tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from .drift import trend
from .messages import Messages
from .placement import NOWHERE, Placement, Shift, nearest_end
from .search import LARGEST_DRIFT, candidates, sample
from .steps import CaptureSteps, Floats, Ints

MISSED = 0.05
#: How near to its step's end a first token must come: a share of the usual step, but at least LEAST_WIDTH_NS.
WIDTH = 0.35
LEAST_WIDTH_NS = 1.5e6
EARLIER = 0.1
SEARCHED = 20_000
#: A first token that comes later than this after the last prefill step of the capture is from outside.
MOST_AFTER_PREFILL_NS = 400e6


@dataclass(frozen=True)
class LooseFit:
    """A shift that puts first tokens behind steps with prompt tokens: ``met`` of ``seen``, what that is worth, and for others."""

    shift: Shift
    nats: float
    margin: float
    seen: int
    met: int
    tried: tuple[tuple[float, float], ...]  # offset ns, nats


def fit_loosely(messages: Messages, steps: CaptureSteps, within: tuple[float, float] | None, *, drift: bool) -> LooseFit | None:  # fmt: skip
    """The best shift by first tokens; None where there are none or no step with prompt tokens."""
    first = messages.only(messages.is_first)
    if len(first.row) < 2 or not len(steps.prefill_rows):
        return None
    found = [_by_first_tokens(first, steps, shift) for shift in candidates(sample(messages, SEARCHED), steps, drift=drift, within=within)]  # fmt: skip
    found.sort(key=lambda fit: -fit.nats)
    if not found:
        return None
    best = found[0]
    apart = 0.5 * steps.typical_gap_ns
    second = max((f.nats for f in found[1:] if abs(f.shift.offset_ns - best.shift.offset_ns) > apart), default=0.0)
    return replace(best, margin=best.nats - max(second, 0.0), tried=tuple((f.shift.offset_ns, f.nats) for f in found))


def _by_first_tokens(first: Messages, steps: CaptureSteps, shift: Shift) -> LooseFit:
    rows = steps.prefill_rows
    ends = steps.end_ns[rows].astype(np.float64)
    width = max(LEAST_WIDTH_NS, WIDTH * steps.typical_gap_ns)
    for reach in (3 * width, 2 * width, width, width):
        late = shift.apply(first.at_ns)
        late = late - ends[nearest_end(ends, late)]
        near = np.abs(late) < reach
        if near.any():
            slope, level = trend(first.at_ns[near] - shift.middle_ns, late[near], least=8)
            possible = abs(shift.slope - slope) <= LARGEST_DRIFT
            shift = shift.moved(-level, -slope) if possible else shift.moved(-float(np.median(late[near])))
    at = shift.apply(first.at_ns)
    inside = (at > ends[0] - width) & (at < steps.end_ns[-1])
    nearest = nearest_end(ends, at)
    hit = inside & (np.abs(at - ends[nearest]) < width)
    covered = float(np.minimum(np.diff(ends, append=ends[-1] + 2 * width), 2 * width).sum())
    share = float(np.clip(covered / max(float(steps.end_ns[-1] - ends[0]), 1.0), 0.001, 0.999))
    missed = int((inside & ~hit).sum())
    distinct = len(np.unique(nearest[hit]))
    nats = distinct * np.log((1 - MISSED) / share) + missed * np.log(MISSED / (1 - share))
    return LooseFit(shift, float(nats), 0.0, int(inside.sum()), int(hit.sum()), ())


def place_loosely(
    messages: Messages, steps: CaptureSteps, shift: Shift, *, earliest_ns: float | None = None
) -> Placement:
    """All messages on the latest steps they can be from, first tokens on such a step with prompt tokens.

    ``earliest_ns``: the least time after its step that a message can come, where the shift is exact.
    """
    at = shift.apply(messages.at_ns)
    none = np.full(len(at), -1, dtype=np.int64)
    begin = np.full(int(messages.row.max()) + 1 if len(messages.row) else 0, NOWHERE, dtype=np.int64)
    empty = Placement(messages, shift, at, begin, none, none, np.full(len(at), np.nan))
    return lay_loosely(
        replace(empty, messages=replace(messages, strict=np.zeros(len(at), dtype=bool))), steps, earliest_ns
    )


def lay_loosely(placement: Placement, steps: CaptureSteps, earliest_ns: float | None = None) -> Placement:
    """The placement with its uncertain messages (not ``strict``) laid one by one."""
    messages = placement.messages
    loose = ~messages.strict
    if not loose.any() or not len(steps.decode_rows):
        return placement
    certain = placement.residual_ns[messages.strict & placement.placed]
    # A little before the earliest certain ones: the earliest of all need not be among these.
    room = EARLIER * steps.typical_gap_ns
    earliest = float(np.quantile(certain, 0.01)) - room if len(certain) else -WIDTH * steps.typical_gap_ns
    earliest = earliest if earliest_ns is None else earliest_ns
    slot, step = placement.slot.copy(), placement.step.copy()
    later = loose & ~messages.is_first
    slot[later] = _latest(steps.decode_end, placement.at_ns[later] - earliest, 2 * steps.typical_gap_ns)
    step[later] = np.where(slot[later] >= 0, steps.decode_rows[np.maximum(slot[later], 0)], -1)
    first = loose & messages.is_first
    if earliest_ns is None:
        step[first] = _first(steps, placement.at_ns[first])
    elif len(steps.prefill_rows):
        ends = steps.end_ns[steps.prefill_rows].astype(np.float64)
        number = _latest(ends, placement.at_ns[first] - earliest, MOST_AFTER_PREFILL_NS)
        step[first] = np.where(number >= 0, steps.prefill_rows[np.maximum(number, 0)], -1)
    residual = np.where(step >= 0, placement.at_ns - steps.end_ns[np.maximum(step, 0)], np.nan)
    return replace(placement, slot=slot, step=step, residual_ns=residual)


def _latest(ends: Floats, at: Floats, beyond: float) -> Ints:
    """The number of the last end not after each time; -1 before all and too far behind the last."""
    found = np.searchsorted(ends, at, side="right") - 1
    return np.where(at > ends[-1] + beyond, -1, found)


def _first(steps: CaptureSteps, at: Floats) -> Ints:
    """The step of each first token, -1 where none with prompt tokens ends near."""
    rows = steps.prefill_rows
    if not len(rows):
        return np.full(len(at), -1, dtype=np.int64)
    ends = steps.end_ns[rows].astype(np.float64)
    nearest = nearest_end(ends, at)
    return np.where(np.abs(ends[nearest] - at) < max(LEAST_WIDTH_NS, steps.typical_gap_ns), rows[nearest], -1)
