"""Messages laid on steps at a given offset: each request's chain where most of its messages want it.

Times are shifted so that a message at its step's end has residual 0. Every message votes for where its request's chain
begins (the step that ends nearest to it, less its place); what most say counts: messages that came on time agree, those that
a client read late scatter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from .messages import Messages
from .steps import CaptureSteps, Flags, Floats, Ints

#: Votes are packed beside the request's row into one integer to be sorted.
VOTE_SPAN = 1 << 32


@dataclass(frozen=True)
class Shift:
    """What is added to a log's time: ``offset_ns`` at ``middle_ns`` (log), changing by ``slope`` ns per ns."""

    offset_ns: float
    slope: float = 0.0
    middle_ns: float = 0.0

    def apply(self, at_ns: Floats) -> Floats:
        """Log times on the capture's clock."""
        return at_ns + self.offset_ns + self.slope * (at_ns - self.middle_ns)

    def moved(self, by_ns: float, slope: float = 0.0) -> Shift:
        """The shift with more offset (and slope)."""
        return Shift(self.offset_ns + by_ns, self.slope + slope, self.middle_ns)


@dataclass(frozen=True)
class Placement:
    """Messages on steps; columns are beside ``messages``.

    ``slot``: decode-bearing step (its number among them) after the first message, -1 outside. ``step``: row of the step that
    made the message, -1 where none. ``residual_ns``: time after that step's end. ``begin``: per request of the log, the slot
    of its second token (a big negative number where it has no message inside).
    """

    messages: Messages
    shift: Shift
    at_ns: Floats
    begin: Ints
    slot: Ints
    step: Ints
    residual_ns: Floats

    @property
    def placed(self) -> Flags:
        """Messages that have a step."""
        return self.step >= 0


NOWHERE = -(1 << 40)


def place(messages: Messages, steps: CaptureSteps, shift: Shift) -> Placement:
    """Lay the messages on the steps, every chain where most of its messages want it."""
    at = shift.apply(messages.at_ns)
    return _laid(messages, steps, shift, at, _begin_of_chains(messages, steps, at))


def place_shifted(placement: Placement, steps: CaptureSteps, by: int) -> Placement:
    """The same chains ``by`` decode-bearing steps later, times moved with them."""
    moved = np.where(placement.begin == NOWHERE, NOWHERE, placement.begin + by)
    trial = _laid(placement.messages, steps, placement.shift, placement.at_ns, moved)
    middle = float(np.median(trial.residual_ns[trial.placed])) if trial.placed.any() else 0.0
    shift = placement.shift.moved(-middle)
    return _laid(placement.messages, steps, shift, shift.apply(placement.messages.at_ns), moved)


def with_residual_moved(placement: Placement, by_ns: float) -> Placement:
    """The same messages on the same steps, all times ``by_ns`` later."""
    return replace(
        placement,
        shift=placement.shift.moved(by_ns),
        at_ns=placement.at_ns + by_ns,
        residual_ns=placement.residual_ns + by_ns,
    )


def with_shift(placement: Placement, steps: CaptureSteps, shift: Shift) -> Placement:
    """The same messages on the same steps, with the times of another shift."""
    at = shift.apply(placement.messages.at_ns)
    ends = steps.end_ns[np.maximum(placement.step, 0)]
    return replace(placement, shift=shift, at_ns=at, residual_ns=np.where(placement.placed, at - ends, np.nan))


def _begin_of_chains(messages: Messages, steps: CaptureSteps, at: Floats) -> Ints:
    ends = steps.decode_end
    count = int(messages.row.max()) + 1 if len(messages.row) else 0
    begin = np.full(count, NOWHERE, dtype=np.int64)
    margin = 2 * steps.typical_gap_ns
    if len(ends):
        inside = (at >= ends[0] - margin) & (at <= ends[-1] + margin) & (messages.place > 0)
        votes = nearest_end(ends, at[inside]) - messages.place[inside] + 1
        _most_of_groups(messages.row[inside], votes, begin)
    alone = messages.is_first & (begin[messages.row] == NOWHERE)
    rows = steps.prefill_rows
    if alone.any() and len(rows):  # one token, or cut behind the first: only the prefill can be found
        nearest = rows[nearest_end(steps.end_ns[rows].astype(np.float64), at[alone])]
        close = np.abs(steps.end_ns[nearest] - at[alone]) < margin
        begin[messages.row[alone][close]] = steps.decodes_up_to[nearest[close]]
    return begin


def nearest_end(ends: Floats, at: Floats) -> Ints:
    """The number of the end nearest to each time."""
    after = np.searchsorted(ends, at)
    before = np.maximum(after - 1, 0)
    after = np.minimum(after, len(ends) - 1)
    return np.where(np.abs(ends[after] - at) < np.abs(at - ends[before]), after, before)


def _most_of_groups(group: Ints, values: Ints, into: Ints) -> None:
    """Write the commonest of each group's values into ``into``; of equally common ones the smallest."""
    if not len(group):
        return
    packed = np.sort(group * VOTE_SPAN + (values + VOTE_SPAN // 2))
    first = np.flatnonzero(np.diff(packed, prepend=packed[0] - 1))
    counts = np.diff(first, append=len(packed))
    groups = packed[first] // VOTE_SPAN
    begin = np.flatnonzero(np.diff(groups, prepend=-1))
    most = np.maximum.reduceat(counts, begin)
    is_most = counts == np.repeat(most, np.diff(begin, append=len(groups)))
    chosen = np.flatnonzero(is_most)
    chosen = chosen[np.diff(groups[chosen], prepend=-1) != 0]
    into[groups[chosen]] = packed[first[chosen]] % VOTE_SPAN - VOTE_SPAN // 2


def median_of_groups(group: Ints, values: Ints, into: Ints) -> None:
    """Write the (upper) median of each group's values into ``into``."""
    if not len(group):
        return
    packed = np.sort(group * VOTE_SPAN + (values + VOTE_SPAN // 2))
    groups = packed // VOTE_SPAN
    first = np.flatnonzero(np.diff(groups, prepend=-1))
    sizes = np.diff(first, append=len(packed))
    into[groups[first]] = packed[first + sizes // 2] % VOTE_SPAN - VOTE_SPAN // 2


def _laid(messages: Messages, steps: CaptureSteps, shift: Shift, at: Floats, begin: Ints) -> Placement:
    slot = begin[messages.row] + messages.place - 1 if len(begin) else np.zeros(0, dtype=np.int64)
    rows = steps.decode_rows
    inside = (slot >= 0) & (slot < len(rows)) & (messages.place > 0)
    step = np.full(len(slot), -1, dtype=np.int64)
    step[inside] = rows[slot[inside]]
    first = np.flatnonzero(messages.is_first)
    step[first] = _first_steps(steps, begin[messages.row[first]], at[first])
    ends = steps.end_ns.astype(np.float64)
    residual = np.where(step >= 0, at - ends[np.maximum(step, 0)] if len(ends) else 0.0, np.nan)
    return Placement(messages, shift, at, begin, np.where(inside, slot, -1), step, residual)


def _first_steps(steps: CaptureSteps, begin: Ints, at: Floats) -> Ints:
    """The step of each first token: one with prompt tokens between the decode-bearing steps before and at the second
    token (the one before included: it may be mixed), the nearest in time; -1 where there is none.
    """
    rows = steps.prefill_rows
    if not len(rows):
        return np.full(len(begin), -1, dtype=np.int64)
    decode = steps.decode_rows
    count = len(decode)
    known = (begin >= 0) & (begin <= count)
    low = np.where(begin > 0, decode[np.clip(begin - 1, 0, count - 1)] if count else 0, 0)
    high = np.where(begin < count, decode[np.clip(begin, 0, max(count - 1, 0))] if count else len(steps.index), len(steps.index))  # fmt: skip
    first, last = np.searchsorted(rows, low), np.searchsorted(rows, high) - 1
    ends = steps.end_ns[rows].astype(np.float64)
    chosen = np.clip(nearest_end(ends, at), first, np.maximum(first, last))
    found = known & (last >= first)
    return np.where(found, rows[np.minimum(chosen, len(rows) - 1)], -1)
