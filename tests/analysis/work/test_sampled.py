"""Integrals of GPU-metrics samples, by hand. A sample at t describes the interval before it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trace_analyze.analysis.work.sampled import integral

PERIOD = 100_000  # 10 kHz


def samples(values, begin=0):
    time = begin + PERIOD * np.arange(1, len(values) + 1)
    return integral(time.astype(np.int64), np.array(values, float))


def mean(found, start, end):
    return float(found.mean(np.array([start]), np.array([end]))[0])


def test_mean_over_whole_samples():
    found = samples([10, 20, 30, 40])
    assert mean(found, 0, 4 * PERIOD) == pytest.approx(25)
    assert mean(found, PERIOD, 3 * PERIOD) == pytest.approx(25)


def test_mean_over_parts_of_samples():
    found = samples([10, 20, 30, 40])
    assert mean(found, PERIOD // 2, PERIOD + PERIOD // 2) == pytest.approx(15)
    assert mean(found, 10, 20) == pytest.approx(10)


def test_missing_data_is_not_one_long_sample():
    time = np.array([1, 2, 3, 13, 14, 15]) * PERIOD
    found = integral(time.astype(np.int64), np.array([50.0, 50, 50, 80, 80, 80]))
    assert mean(found, 12 * PERIOD, 15 * PERIOD) == pytest.approx(80)
    assert np.isnan(mean(found, 4 * PERIOD, 11 * PERIOD))


def test_outside_the_samples_nothing_is_known():
    assert np.isnan(mean(samples([10, 20, 30], begin=10 * PERIOD), 0, 5 * PERIOD))


def test_too_few_samples():
    assert integral(np.array([1, 2], np.int64), np.array([1.0, 2.0])) is None
    assert integral(np.array([1, 2, 3], np.int64), np.array([1.0, np.nan, np.nan])) is None
    assert integral(np.array([5, 5, 5], np.int64), np.array([1.0, 1.0, 1.0])) is None


@given(st.lists(st.floats(0, 100), min_size=3, max_size=40), st.data())
def test_a_mean_lies_between_least_and_most(values, data):
    found = samples(values)
    start = data.draw(st.integers(0, (len(values) - 1) * PERIOD))
    end = data.draw(st.integers(start + 1, len(values) * PERIOD))
    assert min(values) - 1e-6 <= mean(found, start, end) <= max(values) + 1e-6
