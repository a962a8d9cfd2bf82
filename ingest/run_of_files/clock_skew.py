"""How far the clocks of two files are apart, from collectives that end together.

A collective of a tensor-parallel group ends on all its ranks once the last has arrived, so the n-th collective of one
rank and the n-th of another end at one moment, whatever their clocks say. The session start gives a first guess, off by
microseconds on one host and by milliseconds between hosts. The true shift is found by sliding stretches of one file's
ends along the other's: under a wrong shift the distances between collectives disagree as soon as steps differ. Then
every collective is paired with its nearest, and a line through the differences gives shift and drift.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

Ints = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

LEAST = 32  # collectives that must pair up
STRETCHES, EVERY = 6, 4  # stretches of one file looked for in the other, and which of their collectives
STRETCH = 512  # how long
REACHES_NS = (250_000_000, 5_000_000_000)  # how far from the session clock to look, in turn
SAME_NS = 15_000  # shifts closer than this are one
TRIED = 6  # shifts that are fitted
# Shifts near a guess: neighbours of how many rows are looked at, in bins how wide, and how many peaks are fitted.
BESIDE, BESIDE_ROWS, BESIDE_BIN_NS, BESIDE_TRIED = 40, 3000, 6_000, 4
MOST_FITTED = 60_000  # collectives that take part in a fit
NEAR_NS = (100_000, 30_000)  # how far apart a pair may end, before and after the line is fitted
SAME_SHARE = 0.8  # of the collectives in the common time that must pair up
MOST_SPREAD = 1 / 8  # of the usual distance between collectives; pairs at random spread over three eighths of it
MOST_DRIFT = 2e-4  # clocks of two machines differ by less; steps of two independent servers differ by more
LEAST_SPAN_NS = 1_000_000_000  # a drift needs time to show
# A second shift must fit worse by the first factor and by more than chance, or by the second factor.
CLEARER, FAR_WORSE = 1.15, 4.0
LEAST_COVERED = 0.5  # of the collectives of the shorter file that must pair up
_ROWS = 4096


@dataclass(frozen=True)
class Collectives:
    """The collectives of one device in the order of their ends: times on the session clock, and codes of names."""

    end_ns: Ints
    name: Ints


@dataclass(frozen=True)
class Skew:
    """What the other file's clock is ahead: ``ahead_ns`` at ``at_ns`` of its own clock, growing by ``drift``."""

    ahead_ns: int
    at_ns: int
    drift: float
    spread_ns: float  # robust standard deviation of one pair's difference
    pairs: int
    span_ns: int
    loss_ns: float = 0.0  # mean distance to the line, what did not pair up counting as the limit
    loss_error_ns: float = 0.0  # its standard error

    @property
    def clear(self) -> bool:
        """Whether it is larger than its spread explains."""
        return abs(self.ahead_ns) > 3 * self.spread_ns or self.drifts

    @property
    def drifts(self) -> bool:
        """Whether the drift adds up to more than the spread."""
        return abs(self.drift) * self.span_ns > max(self.spread_ns, 1_000.0)


def find_skew(one: Collectives, other: Collectives, *, clock_known: bool) -> Skew | None:
    """How far ``other``'s clock is ahead of ``one``'s; None where their collectives do not end together.

    ``clock_known``: both count from known session starts, so near shifts are tried first.
    """
    common = np.intersect1d(one.name, other.name)
    one, other = _of_names(one, common), _of_names(other, common)
    if min(len(one.end_ns), len(other.end_ns)) < LEAST:
        return None
    for reach in REACHES_NS if clock_known else (None,):
        guesses = _guesses(one.end_ns, other.end_ns, reach)
        guesses += [(s, g[1], g[2]) for g in guesses[:2] for s in _beside(one.end_ns, other.end_ns, g)]
        fits = _distinct([fit for guess in guesses if (fit := _fit(one, other, *guess))])
        if fits:  # the best must also be the best among its neighbours
            near = (fits[0].ahead_ns, fits[0].drift, fits[0].at_ns)
            beside = [_fit(one, other, shift, *near[1:]) for shift in _beside(one.end_ns, other.end_ns, near)]
            fits = _distinct([*fits, *(fit for fit in beside if fit)])
        if fits:
            return fits[0] if len(fits) == 1 or _clearly_worse(fits[1], fits[0]) else None
    return None


def _clearly_worse(second: Skew, first: Skew) -> bool:
    error = float(np.hypot(first.loss_error_ns, second.loss_error_ns))
    if second.loss_ns > FAR_WORSE * max(first.loss_ns, 100.0):
        return True
    return second.loss_ns > CLEARER * first.loss_ns and second.loss_ns > first.loss_ns + 4 * error


def _of_names(collectives: Collectives, names: Ints) -> Collectives:
    keep = np.isin(collectives.name, names)
    return Collectives(collectives.end_ns[keep], collectives.name[keep])


def _distinct(fits: Sequence[Skew]) -> list[Skew]:
    """Fits with different shifts, the best first."""
    kept: list[Skew] = []
    for fit in sorted(fits, key=lambda f: (f.loss_ns, abs(f.ahead_ns))):
        if all(abs(_ahead(fit, k.at_ns) - k.ahead_ns) > SAME_NS for k in kept):
            kept.append(fit)
    return kept


def _ahead(skew: Skew, at: int) -> float:
    return skew.ahead_ns + skew.drift * (at - skew.at_ns)


def _guesses(one: Ints, other: Ints, reach: int | None) -> list[tuple[float, float, int]]:
    """Candidates (shift, drift, time of ``other`` they hold at), those that most stretches agree on first."""
    length = min(STRETCH, max(LEAST // 2, min(len(one), len(other)) // 3))
    found: list[tuple[int, float]] = []
    for begin in np.unique(np.linspace(0, len(other) - length, STRETCHES).astype(np.int64)):
        stretch = other[begin : begin + length]
        low = 0 if reach is None else int(np.searchsorted(one, stretch[0] - reach))
        high = len(one) if reach is None else int(np.searchsorted(one, stretch[0] + reach, side="right"))
        found += [(int(stretch[length // 2]), shift) for shift in _best_shifts(one, stretch, low, high)]

    def agreeing(at: int, shift: float) -> list[tuple[int, float]]:
        return [(t, s) for t, s in found if abs(s - shift) <= NEAR_NS[0] / 2 + MOST_DRIFT * abs(t - at)]

    ranked = sorted(found, key=lambda g: (-len({t for t, _ in agreeing(*g)}), abs(g[1]), g[0]))
    chosen: list[tuple[float, float, int]] = []
    for at, shift in ranked:
        if len(chosen) < TRIED and all(abs(shift - s - d * (at - t)) > SAME_NS for s, d, t in chosen):
            chosen.append((shift, _slope(agreeing(at, shift)), at))
    return chosen


def _slope(points: list[tuple[int, float]]) -> float:
    """The median slope between points far enough apart; 0 where there are none."""
    slopes = [
        (s2 - s1) / (t2 - t1) for t1, s1 in points for t2, s2 in points if t2 - t1 >= LEAST_SPAN_NS
    ]  # fmt: skip
    middle = float(np.median(slopes)) if slopes else 0.0
    return middle if abs(middle) <= MOST_DRIFT else 0.0


def _best_shifts(one: Ints, stretch: Ints, low: int, high: int, count: int = 3) -> list[float]:
    """The shifts under which the stretch lies best on ``one[low:high]``; some of its collectives stand for all."""
    high = min(high, len(one) - len(stretch) + 1)
    if high <= low:
        return []
    windows, few = sliding_window_view(one, len(stretch))[:, ::EVERY], stretch[::EVERY]
    scores = np.empty(high - low)
    for begin in range(low, high, _ROWS):
        end = min(begin + _ROWS, high)
        apart = (few - windows[begin:end]).astype(np.float64)
        apart -= apart.mean(axis=1)[:, None]
        scores[begin - low : end - low] = np.abs(apart, out=apart).mean(axis=1)
    best = low + np.argsort(scores, kind="stable")[:count]
    return [float(np.median(few - windows[place])) for place in best]


def _beside(one: Ints, other: Ints, guess: tuple[float, float, int]) -> list[float]:
    """Shifts near the guess under which most collectives meet one of the other file: where rows are lost, stretches
    lie a few collectives beside the truth."""
    shift, drift, at = guess
    begin = max(0, int(np.searchsorted(other, at)) - BESIDE_ROWS // 2)
    some = other[begin : begin + BESIDE_ROWS]
    moved = some - np.round(shift + drift * (some - at)).astype(np.int64)
    place = np.searchsorted(one, moved)[:, None] + np.arange(-BESIDE, BESIDE)[None, :]
    inside = (place >= 0) & (place < len(one))
    apart = (moved[:, None] - one[np.clip(place, 0, len(one) - 1)])[inside]
    bins, counts = np.unique(np.floor_divide(apart, BESIDE_BIN_NS), return_counts=True)
    best: list[float] = []
    for bin_ in bins[np.argsort(-counts, kind="stable")].tolist():
        near = (bin_ + 0.5) * BESIDE_BIN_NS
        if all(abs(near - other_near) > SAME_NS for other_near in best):
            best.append(near)
        if len(best) == BESIDE_TRIED:
            break
    return [shift + near for near in best]


def _fit(one: Collectives, other: Collectives, shift: float, drift: float, at: int) -> Skew | None:
    """Pair collectives with their nearest and fit shift and drift; None where too few pair up or too loosely."""
    every = -(-len(other.end_ns) // MOST_FITTED)
    full, other = other, Collectives(other.end_ns[::every], other.name[::every])
    ahead: Floats = shift + drift * (other.end_ns - at).astype(np.float64)
    for near in NEAR_NS:
        mine, theirs = _pairs(one, other, ahead, near)
        if len(theirs) < LEAST:
            return None
        times = other.end_ns[theirs]
        difference = (times - one.end_ns[mine]).astype(np.float64)
        at = int(times[len(times) // 2])
        drift = _line(times - at, difference) if int(times[-1] - times[0]) >= LEAST_SPAN_NS else 0.0
        shift = float(np.median(difference - drift * (times - at)))
        ahead = shift + drift * (other.end_ns - at).astype(np.float64)
    rest = np.abs(difference - ahead[theirs])
    spread = 1.4826 * float(np.median(rest))
    tight = rest <= max(5 * spread, 1_000.0)
    common = _in_common(other.end_ns - ahead, one.end_ns)
    moved = full.end_ns - shift - drift * (full.end_ns - at)
    sizes = sorted([_in_common(moved, one.end_ns), _in_common(one.end_ns, moved)])
    alike = np.count_nonzero(tight) >= SAME_SHARE * common and sizes[0] >= SAME_SHARE * sizes[1]
    covered = len(theirs) * every >= LEAST_COVERED * min(len(one.end_ns), len(full.end_ns))
    if (
        not (alike and covered)
        or spread > MOST_SPREAD * float(np.median(np.diff(one.end_ns)))
        or abs(drift) > MOST_DRIFT
    ):
        return None
    loss = np.full(max(common, len(rest)), float(NEAR_NS[1]))
    loss[: len(rest)] = np.minimum(rest, NEAR_NS[1])
    return Skew(
        round(shift), at, drift, spread, len(theirs) * every, int(times[-1] - times[0]),
        float(loss.mean()), float(loss.std() / np.sqrt(len(loss))),
    )  # fmt: skip


def _pairs(one: Collectives, other: Collectives, ahead: Floats, near: int) -> tuple[Ints, Ints]:
    """Rows of both that end together, within ``near``, under the shift: each row once, names alike."""
    moved = other.end_ns - np.round(ahead).astype(np.int64)
    right = np.clip(np.searchsorted(one.end_ns, moved), 1, len(one.end_ns) - 1)
    closer = np.abs(one.end_ns[right - 1] - moved) <= np.abs(one.end_ns[right] - moved)
    nearest = np.where(closer, right - 1, right)
    fits = (np.abs(one.end_ns[nearest] - moved) <= near) & (one.name[nearest] == other.name)
    rows = np.flatnonzero(fits)
    mine, first = np.unique(nearest[rows], return_index=True)
    return mine, rows[first]


def _line(times: Ints, values: Floats) -> float:
    """Slope of a line through the points, those far from the middle left out."""
    middle = np.median(values)
    slope = 0.0
    for _ in range(2):
        rest = values - middle - slope * times
        limit = max(4.5 * float(np.median(np.abs(rest - np.median(rest)))), 100.0)
        keep = np.abs(rest - np.median(rest)) <= limit
        slope, middle = np.polyfit(times[keep].astype(np.float64), values[keep], 1)
    return float(slope)


def _in_common(times: Ints | Floats, others: Ints | Floats) -> int:
    """How many of ``times`` lie within the span of ``others``."""
    return int(np.count_nonzero((times >= others.min()) & (times <= others.max())))
