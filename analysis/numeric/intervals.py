"""Sets of half-open time intervals ``[start, end)`` in int64 nanoseconds, a whole column at a time.

An :class:`Intervals` is always *disjoint and sorted* (touching intervals are merged), which makes every question
one pass: how long is it, what lies between, how much of it falls inside each of a million query windows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

Times = npt.NDArray[np.int64]
IntegerType = TypeVar("IntegerType", bound=np.integer)
MAX_KEYS_UNSORTED = 12


@dataclass(frozen=True)
class Intervals:
    """Disjoint, sorted, non-empty intervals. Build one with :func:`union`; the constructor does not check."""

    starts: Times
    ends: Times

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def lengths(self) -> Times:
        """Length of each interval, ns."""
        return self.ends - self.starts

    @property
    def total_ns(self) -> int:
        """Summed length, ns."""
        return int(self.lengths.sum())

    def measure_within(self, starts: npt.ArrayLike, ends: npt.ArrayLike) -> Times:
        """Length of the part inside each window ``[starts[k], ends[k])``; windows may overlap, ns."""
        return Measure.of(self).within(starts, ends)

    def _measured_until(self, times: Times, before: Times) -> Times:
        """Length of the part before each of ``times``; ``before`` is that before each interval."""
        row = np.searchsorted(self.starts, times, side="right")
        row -= 1
        none = row < 0
        row[none] = 0
        length: Times = np.minimum(times, self.ends[row])
        length -= self.starts[row]
        length += before[row]
        length[none] = 0
        return length

    def shared_ns(self, other: Intervals) -> int:
        """Length of what lies in both sets, ns; looks up only the smaller set's intervals."""
        small, large = (self, other) if len(self) <= len(other) else (other, self)
        return int(large.measure_within(small.starts, small.ends).sum())

    def holds(self, other: Intervals) -> npt.NDArray[np.bool_]:
        """For each interval of ``other``, whether all of it lies in this set."""
        if not len(self):
            return np.zeros(len(other), dtype=bool)
        row = np.searchsorted(self.starts, other.starts, side="right") - 1
        return np.asarray((row >= 0) & (other.ends <= self.ends[np.maximum(row, 0)]))

    def near(self, windows: Intervals) -> Intervals:
        """Those of its intervals, whole, that reach into one of ``windows``."""
        return self._of(self._reached(windows))

    def _of(self, chosen: npt.NDArray[np.bool_]) -> Intervals:
        rows = np.flatnonzero(chosen)
        return Intervals(self.starts[rows], self.ends[rows])

    def _reached(self, other: Intervals) -> npt.NDArray[np.bool_]:
        """Which of its intervals share time with ``other``; looks up only the smaller set's intervals."""
        if len(self) <= len(other):
            row = np.searchsorted(other.ends, self.starts, side="right")
            beyond = row == len(other)
            row[beyond] = 0
            return np.asarray((other.starts[row] < self.ends) & ~beyond)
        first = np.searchsorted(self.ends, other.starts, side="right")
        beyond = np.searchsorted(self.starts, other.ends, side="left")
        marks = np.zeros(len(self) + 1, dtype=np.int32)
        reaches = first < beyond
        np.add.at(marks, first[reaches], 1)
        np.add.at(marks, beyond[reaches], -1)
        return np.asarray(np.cumsum(marks[:-1]) > 0)

    def clip(self, start_ns: int, end_ns: int) -> Intervals:
        """The part inside ``[start_ns, end_ns)``."""
        starts = np.maximum(self.starts, start_ns)
        ends = np.minimum(self.ends, end_ns)
        keep = starts < ends
        return Intervals(starts[keep], ends[keep])

    def complement(self, start_ns: int, end_ns: int) -> Intervals:
        """What ``[start_ns, end_ns)`` holds beside this set."""
        inner = self.clip(start_ns, end_ns)
        starts = np.concatenate((np.array([start_ns], dtype=np.int64), inner.ends))
        ends = np.concatenate((inner.starts, np.array([end_ns], dtype=np.int64)))
        keep = starts < ends
        return Intervals(starts[keep], ends[keep])

    def overlaps(self, other: Intervals) -> bool:
        """Whether any instant lies in both sets; looks only at the smaller set's intervals."""
        small, large = (self, other) if len(self) <= len(other) else (other, self)
        return len(small) > 0 and bool(small._reached(large).any())

    def intersect(self, other: Intervals) -> Intervals:
        """What lies in both sets."""
        if not self.overlaps(other):
            return EMPTY
        one = self.near(other)
        two = other.near(one)
        start_ns = int(max(one.starts[0], two.starts[0]))
        end_ns = int(min(one.ends[-1], two.ends[-1]))
        outside = merge([one.complement(start_ns, end_ns), two.complement(start_ns, end_ns)])
        return outside.complement(start_ns, end_ns)

    def subtract(self, other: Intervals) -> Intervals:
        """What lies in this set and not in ``other``."""
        if not self.overlaps(other):
            return self
        reached = self._reached(other)
        cut, kept = self._of(reached), self._of(~reached)
        left = cut.intersect(other.near(cut).complement(int(cut.starts[0]), int(cut.ends[-1])))
        place = np.searchsorted(kept.starts, left.starts)
        return Intervals(np.insert(kept.starts, place, left.starts), np.insert(kept.ends, place, left.ends))


@dataclass(frozen=True)
class Measure:
    """A set with what lies before each of its intervals, ns: worth keeping where many ask for lengths within windows."""

    intervals: Intervals
    before: Times

    @staticmethod
    def of(intervals: Intervals) -> Measure:
        """The set, measured."""
        before = np.cumsum(intervals.lengths)
        before -= intervals.lengths
        return Measure(intervals, before)

    def within(self, starts: npt.ArrayLike, ends: npt.ArrayLike) -> Times:
        """:meth:`Intervals.measure_within`."""
        first: Times = np.asarray(starts, dtype=np.int64)
        last: Times = np.asarray(ends, dtype=np.int64)
        if not len(self.intervals) or not len(first):
            return np.zeros(first.shape, dtype=np.int64)
        length = self.intervals._measured_until(last, self.before)
        length -= self.intervals._measured_until(first, self.before)
        return length


EMPTY = Intervals(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


def latest_end_so_far(ends: npt.NDArray[IntegerType]) -> npt.NDArray[IntegerType]:
    """For each of intervals sorted by start: the latest end of it and all before it, in the type of ``ends``."""
    return np.maximum.accumulate(ends)


def idle_before(starts: npt.NDArray[np.integer], ends: npt.NDArray[np.integer]) -> Times:
    """For each of intervals sorted by start: how long nothing ran before it, negative where something still did.

    0 for the first.
    """
    gap = np.zeros(len(starts), dtype=np.int64)
    gap[1:] = starts[1:] - latest_end_so_far(ends)[:-1]
    return gap


def union(starts: npt.ArrayLike, ends: npt.ArrayLike) -> Intervals:
    """The union of intervals in any order; empty and negative ones add nothing."""
    first: Times = np.asarray(starts, dtype=np.int64)
    last: Times = np.asarray(ends, dtype=np.int64)
    keep = last > first
    if not keep.all():
        first, last = first[keep], last[keep]
    if not len(first):
        return EMPTY
    if (first[1:] < first[:-1]).any():
        order = np.argsort(first, kind="stable")
        first, last = first[order], last[order]
    reach = latest_end_so_far(last)
    # A new interval begins where nothing before reaches it.
    fresh = np.concatenate(([True], first[1:] > reach[:-1]))
    final = np.concatenate((fresh[1:], [True]))
    return Intervals(first[fresh], reach[final])


def merge(sets: Iterable[Intervals]) -> Intervals:
    """The union of several sets."""
    given = [s for s in sets if len(s)]
    if not given:
        return EMPTY
    if len(given) == 1:
        return given[0]
    return union(np.concatenate([s.starts for s in given]), np.concatenate([s.ends for s in given]))


def union_length_by_key(keys: npt.NDArray[np.integer], starts: npt.ArrayLike, ends: npt.ArrayLike) -> int:
    """Sum over the distinct ``keys`` of the length of each key's union, ns (no loop over rows).

    Used for streams: kernels of one stream may overlap (programmatic dependent launch), so the sum of their
    durations exceeds this length by the overlap.
    """
    first: Times = np.asarray(starts, dtype=np.int64)
    last: Times = np.asarray(ends, dtype=np.int64)
    if not len(first):
        return 0
    if keys.min() == keys.max():
        return union(first, last).total_ns
    distinct = pl.Series(keys).unique().to_numpy()
    if (
        len(distinct) <= MAX_KEYS_UNSORTED
    ):  # kernels come sorted by start: a pass per stream beats sorting them together
        return sum(union(first[keys == key], last[keys == key]).total_ns for key in distinct)
    _, dense = np.unique(keys, return_inverse=True)
    span = int(last.max() - first.min()) + 1
    if len(distinct) * span >= 2**62:  # hundreds of streams over years
        order = np.argsort(dense, kind="stable")
        parts = np.split(order, np.flatnonzero(np.diff(dense[order])) + 1)
        return sum(union(first[rows], last[rows]).total_ns for rows in parts)
    # Each key gets its own stretch of time, so one union serves all of them.
    shift = dense.reshape(-1).astype(np.int64) * span - int(first.min())
    return union(first + shift, last + shift).total_ns
