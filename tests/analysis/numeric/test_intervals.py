"""Interval sets: each operation against a set of unit cells, which cannot be wrong."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trace_analyze.analysis.numeric.intervals import (
    EMPTY,
    Intervals,
    idle_before,
    latest_end_so_far,
    merge,
    union,
    union_length_by_key,
)

PAIRS = st.lists(st.tuples(st.integers(-20, 40), st.integers(-5, 15)).map(lambda p: (p[0], p[0] + p[1])), max_size=12)


def build(pairs: list[tuple[int, int]]) -> Intervals:
    return union([a for a, _ in pairs], [b for _, b in pairs])


def cells(pairs: list[tuple[int, int]]) -> set[int]:
    return {t for a, b in pairs for t in range(a, b)}


def cells_of(intervals: Intervals) -> set[int]:
    return cells(list(zip(intervals.starts.tolist(), intervals.ends.tolist(), strict=True)))


@given(PAIRS)
def test_union_is_disjoint_sorted_and_complete(pairs):
    made = build(pairs)
    assert cells_of(made) == cells(pairs)
    assert made.total_ns == len(cells(pairs))
    assert (made.starts[1:] > made.ends[:-1]).all()


@given(PAIRS, PAIRS)
def test_set_algebra(one, two):
    a, b = build(one), build(two)
    assert cells_of(a.intersect(b)) == cells(one) & cells(two)
    assert cells_of(a.subtract(b)) == cells(one) - cells(two)
    assert a.overlaps(b) == bool(cells(one) & cells(two))
    assert cells_of(merge([a, b])) == cells(one) | cells(two)
    assert cells_of(a.complement(-10, 30)) == set(range(-10, 30)) - cells(one)


@given(PAIRS, PAIRS)
def test_measure_within_windows(pairs, windows):
    windows = [w for w in windows if w[1] >= w[0]]
    got = build(pairs).measure_within([a for a, _ in windows], [b for _, b in windows])
    assert got.tolist() == [len(cells(pairs) & cells([w])) for w in windows]


@given(PAIRS, PAIRS)
def test_what_two_sets_share_and_which_intervals_lie_near_or_inside(one, two):
    a, b = build(one), build(two)
    own = [cells([pair]) for pair in zip(a.starts.tolist(), a.ends.tolist(), strict=True)]
    assert a.shared_ns(b) == len(cells(one) & cells(two))
    assert b.holds(a).tolist() == [each <= cells(two) for each in own]
    assert cells_of(a.near(b)) == set().union(*(each for each in own if each & cells(two)))


def test_length_by_key_over_years_on_hundreds_of_streams():
    """Two kernels of 5 ns on each of 300 streams, two years apart: 3,000 ns, though 300 x 2 years fit no int64."""
    streams = np.repeat(np.arange(300), 2)
    starts = np.tile([0, 63_115_200_000_000_000], 300)
    assert union_length_by_key(streams, starts, starts + 5) == 3_000


@given(PAIRS, st.randoms(use_true_random=False))
def test_row_order_does_not_matter(pairs, random):
    shuffled = random.sample(pairs, len(pairs))
    assert cells_of(build(pairs)) == cells_of(build(shuffled))
    assert build(pairs).starts.tolist() == build(shuffled).starts.tolist()


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30), st.integers(0, 9)), max_size=15))
def test_union_length_by_key(rows):
    keys = np.array([k for k, _, _ in rows], dtype=np.int64)
    starts = [s for _, s, _ in rows]
    ends = [s + d for _, s, d in rows]
    expected = sum(len(cells([(s, s + d) for k, s, d in rows if k == key])) for key in range(4))
    assert union_length_by_key(keys, starts, ends) == expected


def test_programmatic_dependent_launch_overlap_on_one_stream():
    # users' M27: [0,10) [8,20) [18,30): union 30, sum 34
    assert union([0, 8, 18], [10, 20, 30]).total_ns == 30


def test_empty():
    assert EMPTY.total_ns == 0
    assert EMPTY.measure_within([1], [5]).tolist() == [0]
    assert len(EMPTY.intersect(build([(0, 1)]))) == 0
    assert build([(0, 4)]).subtract(EMPTY).total_ns == 4


def test_idle_before_counts_from_the_latest_end_so_far():
    starts, ends = np.array([0, 10, 30, 50]), np.array([40, 12, 35, 60])
    assert latest_end_so_far(ends).tolist() == [40, 40, 40, 60]
    assert idle_before(starts, ends).tolist() == [0, -30, -10, 10]
    assert idle_before(starts[:0], ends[:0]).tolist() == []
