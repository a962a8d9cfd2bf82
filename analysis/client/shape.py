"""Logs without start times: every request laid on the steps by the pattern of its own gaps.

A long step, another's prefill, a pause leave their mark in every stream that decodes meanwhile. A request whose pattern fits
one place clearly better than any other is placed; the order in which requests were issued, what steps can serve, and the
share of requests that have a place of their own decide whether the whole is believed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .fit import LEAST_DELIVERY_NS
from .messages import Messages
from .placement import NOWHERE, Placement, Shift
from .steps import CaptureSteps, Flags, Floats, Ints

LEAST_SURE = 10.0  # nats by which the best place must lead
LEAST_AMONG_NEIGHBOURS = 3.0
MOST_OUTLIERS = 0.08
LEAST_PLACED = 0.5
LEAST_TRIED = 5
MOST_OUT_OF_ORDER = 0.05
COARSE = 24  # messages of a request that are looked at first
KEPT = 80  # places that are left after a first look at a few messages
CLOSER = 12  # places that are looked at with all messages
MOST_PER_MESSAGE = 4.0  # nats that one message may cost
NOISE_FLOOR_NS = 100_000.0


@dataclass(frozen=True)
class Shape:
    """Requests placed by their shape; ``problem`` '' = to be believed."""

    placement: Placement
    sure: int
    tried: int
    nats: float
    problem: str


@dataclass(frozen=True)
class _Place:
    """The best place of one request: the step of its first token, its lead in nats, its level, and whether it fits."""

    step: int
    lead: float
    level_ns: float
    fits: bool


def place_by_shape(messages: Messages, steps: CaptureSteps) -> Shape:
    """Place all requests with three or more messages whose pattern lies wholly inside the capture."""
    usable = messages.only(messages.strict) if messages.strict.any() else messages
    order = np.flatnonzero(np.diff(usable.row, prepend=-1))
    bounds = np.append(order, len(usable.row))
    found: dict[int, _Place] = {}
    tried = 0
    for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        if last - first < 3:
            continue
        tried += 1
        best = _best_place(usable.at_ns[first:last], usable.place[first:last], steps, steps.prefill_rows, LEAST_SURE)
        if best is not None:
            found[int(usable.row[first])] = best
    sure = {row: p for row, p in found.items() if p.fits and p.lead >= LEAST_SURE}
    problem = _problem(sure, tried)
    if not problem:
        sure |= _between_neighbours(usable, bounds, sure, steps)
    placement = _placement(messages, steps, sure)
    if not problem and _overfull(placement, steps):
        problem = "the requests so placed would put more streams into steps than these have requests"
    return Shape(placement, len(sure), tried, float(sum(min(p.lead, 50.0) for p in sure.values())), problem)


def _best_place(at: Floats, place: Ints, steps: CaptureSteps, rows: Ints, least: float) -> _Place | None:
    """The place among the first-token steps ``rows`` that fits best, None where none holds the whole request."""
    whole = steps.decodes_up_to[rows] + int(place[-1]) - 1 < len(steps.decode_rows)
    rows = rows[whole]
    if not len(rows):
        return None
    begin = np.unique(steps.decodes_up_to[rows])  # prefill steps one behind the other differ in the first token only
    for messages, keep in ((COARSE // 3, KEPT), (COARSE, CLOSER)):
        if len(begin) > keep:
            begin = begin[_nearest_shapes(at, place, steps, begin, messages, keep)]
    return _closer(at, place, steps, rows, begin, least)


def _nearest_shapes(at: Floats, place: Ints, steps: CaptureSteps, begin: Ints, messages: int, keep: int) -> Ints:
    """The ``keep`` places that some messages fit best: evenly spread ones and those around the longest gaps."""
    some = np.linspace(1, len(at) - 1, min(messages, len(at) - 1)).astype(np.int64)
    gaps = np.diff(at)
    count = min(max(messages // 2, 2), len(gaps))
    long = np.argpartition(-gaps, count - 1)[:count] + 1
    some = np.unique(np.concatenate((some, long, np.maximum(long - 1, 1))))
    late = at[some][None, :] - steps.decode_end[begin[:, None] + place[some][None, :] - 1]
    late -= late.mean(axis=1, keepdims=True)
    cost = np.minimum(np.abs(late), 3 * steps.typical_gap_ns).sum(axis=1)
    return np.sort(np.argpartition(cost, keep)[:keep])


def _closer(at: Floats, place: Ints, steps: CaptureSteps, rows: Ints, begin: Ints, least: float) -> _Place:
    late = at[None, 1:] - steps.decode_end[begin[:, None] + place[None, 1:] - 1]
    level = np.median(late, axis=1)
    apart = np.abs(late - level[:, None])
    noise = np.maximum(np.median(apart, axis=1) / np.log(2), NOISE_FLOOR_NS)
    scale = float(noise.min())
    step, first = _first_token_step(at[0] - level, steps, rows, begin)
    cost = np.minimum(apart / scale, MOST_PER_MESSAGE).sum(axis=1) + np.minimum(first / scale, MOST_PER_MESSAGE)
    best = int(np.argmin(cost))
    rivals = np.delete(cost, best)
    lead = float(rivals.min() - cost[best]) if len(rivals) else least
    outliers = float((apart[best] > 5 * noise[best] + NOISE_FLOOR_NS).mean())
    fits = outliers <= MOST_OUTLIERS and noise[best] < 0.5 * steps.typical_gap_ns
    return _Place(int(step[best]), lead, float(level[best]), fits)


def _first_token_step(at: Floats, steps: CaptureSteps, rows: Ints, begin: Ints) -> tuple[Ints, Floats]:
    """For each beginning: which of the steps ``rows`` that lead to it ends nearest to the first token, and how near."""
    reaches = steps.decodes_up_to[rows][None, :] == begin[:, None]
    off = np.where(reaches, np.abs(at[:, None] - steps.end_ns[rows][None, :]), np.inf)
    return rows[np.argmin(off, axis=1)], np.min(off, axis=1)


def _problem(sure: dict[int, _Place], tried: int) -> str:
    if tried < LEAST_TRIED:
        return f"only {tried} requests of the log have three messages or more"
    if len(sure) < max(LEAST_TRIED, LEAST_PLACED * tried):
        return (
            f"only {len(sure)} of {tried} requests have a pattern that fits one place in the capture and no other: the steps are "
            "too regular, or the log is of another run"
        )
    steps = np.array([sure[row].step for row in sorted(sure)])
    behind = np.minimum.accumulate(steps[::-1])[::-1]
    ahead = np.maximum.accumulate(steps)
    disordered = float(((ahead > steps) & (behind < steps)).mean() + (np.diff(steps) < -20).mean())
    if disordered > MOST_OUT_OF_ORDER:
        return "the places found do not follow the order in which the requests were issued: the log is of another run"
    return ""


def _between_neighbours(messages: Messages, bounds: Ints, sure: dict[int, _Place], steps: CaptureSteps) -> dict[int, _Place]:  # fmt: skip
    """Places of the others: between the requests issued before and after them a smaller lead will do."""
    rows = np.array(sorted(sure))
    at_step = np.array([sure[row].step for row in rows.tolist()])
    more: dict[int, _Place] = {}
    for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        row = int(messages.row[first])
        if row in sure or last - first < 3:
            continue
        k = int(np.searchsorted(rows, row))
        low = at_step[k - 1] if k > 0 else 0
        high = at_step[k] if k < len(rows) else len(steps.index)
        choice = steps.prefill_rows[(steps.prefill_rows >= low) & (steps.prefill_rows <= high)]
        best = _best_place(messages.at_ns[first:last], messages.place[first:last], steps, choice, LEAST_AMONG_NEIGHBOURS)  # fmt: skip
        if best is not None and best.fits and best.lead >= LEAST_AMONG_NEIGHBOURS:
            more[row] = best
    return more


def _placement(messages: Messages, steps: CaptureSteps, places: dict[int, _Place]) -> Placement:
    """Messages of the placed requests on the capture's clock, every request with its own shift."""
    count = int(messages.row.max()) + 1 if len(messages.row) else 0
    begin = np.full(count, NOWHERE, dtype=np.int64)
    first = np.full(count, -1, dtype=np.int64)
    level = np.full(count, np.nan)
    for row, found in places.items():
        begin[row], first[row], level[row] = steps.decodes_up_to[found.step], found.step, found.level_ns
    slot = begin[messages.row] + messages.place - 1
    inside = (slot >= 0) & (slot < len(steps.decode_rows)) & (messages.place > 0)
    step = np.full(len(slot), -1, dtype=np.int64)
    step[inside] = steps.decode_rows[slot[inside]]
    step[messages.is_first] = first[messages.row[messages.is_first]]
    at = messages.at_ns - level[messages.row]
    residual = np.where(step >= 0, at - steps.end_ns[np.maximum(step, 0)], np.nan)
    placed = step >= 0
    lowest = float(np.quantile(residual[placed], 0.01)) if placed.any() else 0.0
    up = LEAST_DELIVERY_NS - lowest
    return Placement(messages, Shift(0.0), at + up, begin, np.where(inside, slot, -1), step, residual + up)


def _overfull(placement: Placement, steps: CaptureSteps) -> bool:
    used = placement.slot[placement.slot >= 0]
    if not len(used):
        return False
    got = np.bincount(used, minlength=len(steps.decode_rows))
    over: Flags = got > steps.counts["decode_requests"][steps.decode_rows]
    return int(over.sum()) >= 2 and float(over.sum() / (got > 0).sum()) > 0.02
