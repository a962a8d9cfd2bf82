"""Fits of step time: known bandwidths go in, the same come out."""

from __future__ import annotations

import numpy as np
import pytest

from trace_analyze.analysis.work.traffic import line, two_rates, within_groups


def noise(count, size, seed=1):
    return np.random.default_rng(seed).normal(0, size, count)


def test_growth_gives_the_slope_although_levels_are_unknown():
    """Three stretches at different levels; 8 tokens a step at 131,072 B over 2 TB/s."""
    per_token = 131072 / 2e12
    group = np.repeat([0, 1, 2], 20)
    grown = np.tile(np.arange(20) * 8.0, 3)
    seconds = np.array([5e-3, 9e-3, 6e-3])[group] + per_token * grown + noise(60, 2e-7)
    fit = within_groups(grown, seconds, group)
    assert fit.significant
    assert 131072 / fit.slope == pytest.approx(2e12, rel=0.02)


def test_noise_is_not_a_slope():
    x = np.arange(30.0)
    assert not within_groups(x, 5e-3 + noise(30, 1e-4), np.zeros(30, np.int64)).significant


def test_too_few_steps_are_no_fit():
    assert within_groups(np.arange(5.0), np.arange(5.0), np.zeros(5, np.int64)) is None
    assert within_groups(np.ones(20), np.arange(20.0), np.zeros(20, np.int64)) is None


def test_line_gives_the_intercept():
    x = np.linspace(1, 64, 40)
    fit = line(x, 4.7e-3 + 5e-5 * x + noise(40, 1e-7))
    assert fit.intercept == pytest.approx(4.7e-3, rel=1e-2)
    assert fit.slope == pytest.approx(5e-5, rel=1e-2)


def test_two_bandwidths():
    """15 GB of weights at 2.8 TB/s and a growing cache at 2.1 TB/s."""
    cache = np.linspace(0.3e9, 3e9, 50)
    weights = np.full(50, 15.0e9)
    seconds = weights / 2.8e12 + cache / 2.1e12 + noise(50, 1e-6)
    rates = two_rates(weights, cache, seconds)
    assert 1 / rates[0] == pytest.approx(2.8e12, rel=0.01)
    assert 1 / rates[1] == pytest.approx(2.1e12, rel=0.02)


def test_two_bandwidths_with_experts_that_grow_with_the_batch():
    batch = np.tile(np.arange(1, 26), 2).astype(float)
    weights = 2e9 + 50e9 * (1 - (1 - 8 / 128) ** batch)
    cache = batch * np.repeat([500.0, 2000.0], 25) * 98304
    rates = two_rates(weights, cache, weights / 2.5e12 + cache / 2.0e12 + noise(50, 1e-6))
    assert 1 / rates[0] == pytest.approx(2.5e12, rel=0.02)
    assert 1 / rates[1] == pytest.approx(2.0e12, rel=0.05)


def test_no_contrast_no_bandwidths():
    assert two_rates(np.full(20, 1e9), np.full(20, 1e8), np.full(20, 1e-3) + noise(20, 1e-6)) is None
