"""How much of each slice of time intervals cover."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trace_analyze.analysis.numeric.covered_time import covered_shares

intervals = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=1, max_size=30)


@given(intervals, st.integers(1, 20))
def test_covered_share_equals_counting_every_nanosecond(pairs, bins):
    cut = np.cumsum([x for pair in pairs for x in pair])
    starts, ends = cut[0::2], cut[1::2]  # alternating: never overlapping
    span = int(ends[-1]) + 3
    edges = np.linspace(0, bins * (-(-span // bins)), bins + 1)
    busy = np.zeros(int(edges[-1]), bool)
    for a, b in zip(starts, ends, strict=True):
        busy[a:b] = True
    expected = busy.reshape(bins, -1).mean(axis=1)
    assert covered_shares(starts, ends, edges) == pytest.approx(expected)


def test_nothing_covers_nothing():
    none = np.zeros(0, np.int64)
    assert covered_shares(none, none, np.array([0.0, 5.0, 10.0])).tolist() == [0.0, 0.0]


def test_overlaps_count_once_at_most():
    starts, ends = np.array([0, 2]), np.array([6, 8])
    assert covered_shares(starts, ends, np.array([0.0, 4.0, 8.0])).tolist() == [1.0, 1.0]
