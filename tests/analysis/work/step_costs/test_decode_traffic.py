"""Fits of step time: known bandwidths go in, the same come out."""

from __future__ import annotations

import numpy as np
import pytest

from trace_analyze.analysis.work.step_costs.decode_traffic import line, two_rates, within_groups


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


class TestSimulated:
    """The simulator reads the cache at 92% / 1.12 = 82% of an H100's bandwidth, 86% / 1.12 = 77% of an A100's."""

    @pytest.mark.parametrize(
        ("name", "truth_pct"),
        [
            ("vllm-llama-8b-h100-marks", 82.1),
            ("vllm-llama-8b-h100-decode-only", 82.1),  # levels unknown, growth known
            ("sglang-qwen3-8b-a100-roofline", 76.8),
            ("vllm-llama-8b-h100-tp2", 82.1),
        ],
    )
    def test_growth_gives_the_cache_bandwidth_within_its_error(self, prepared, name, truth_pct):
        traffic = prepared(name).with_model().traffic
        assert traffic["kv_fit_over"] == "attention"
        assert traffic["kv_fit_error_pct"] < 12
        assert traffic["kv_fitted_mbu_pct"] == pytest.approx(truth_pct, rel=2 * traffic["kv_fit_error_pct"] / 100)
        assert traffic["notes"] == ()

    def test_weights_have_a_bandwidth_where_the_level_of_the_cache_is_unknown(self, prepared):
        traffic = prepared("vllm-llama-8b-h100-decode-only").with_model().traffic
        assert traffic["steps_with_known_kv"] == 0
        assert traffic["weights_fit_over"] == "steps without attention"
        assert traffic["weights_fitted_mbu_pct"] == pytest.approx(85, abs=2)

    @pytest.mark.parametrize(
        ("name", "options", "words"),
        [
            ("vllm-llama-8b-h100-marks", {"model": "llama-3.1-8b", "kv_dtype": "fp8"}, "bandwidths disagree: KV"),
            ("vllm-llama-8b-h100-decode-only", {"model": "llama-3.1-8b", "kv_dtype": "fp8"}, "bandwidths disagree: KV"),
            ("vllm-llama-8b-h200-fp8-kv8", {"kv_dtype": "bf16"}, "KV bandwidth 10"),  # 10,415 GB/s of 4,917
            (
                "vllm-llama-8b-h100-decode-only",
                {"model": "llama-2-7b"},
                "is above the peak",
            ),  # no GQA: four times the KV
        ],
    )
    def test_a_wrong_kv_data_type_or_head_count_is_said(self, prepared, name, options, words):
        notes = prepared(name).work(**options).traffic["notes"]
        assert any(words in note for note in notes), notes


def test_opaque_replays_are_fitted_over_whole_steps(prepared):
    traffic = prepared("vllm-llama-8b-h100-opaque-graphs").with_model().traffic
    assert traffic["kv_fit_over"] == "steps"
    assert traffic["kv_fitted_gbps"] is None
    assert traffic["kv_fit_reason"] == "time does not grow clearly with the cache"
