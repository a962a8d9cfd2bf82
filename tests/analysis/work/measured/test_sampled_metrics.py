"""Integrals of GPU-metrics samples, by hand. A sample at t describes the interval before it."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trace_analyze.analysis.work.measured.sampled_metrics import integral

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


def test_phases_of_a_sampled_run(prepared):
    """Sampled DRAM activity of each phase against the bytes that really moved; the SM clock that was set, 1,890 MHz."""
    run = prepared("vllm-llama-8b-h100-warmup-metrics")
    result = run.with_model()
    truth = run.run.truth.steps.filter(~pl.col("excluded") & (pl.col("rank") == 0))
    rows = {row["phase"]: row for row in result.measured["gpu_metrics"]["by_phase"]}
    assert set(rows) >= {"decode", "mixed"}
    for phase in ("decode", "mixed"):
        own = truth.filter(pl.col("phase") == phase)
        moved = float((own["bytes_weights"] + own["bytes_kv"] + own["bytes_activations"]).sum())
        gbps = moved / float((own["end_ns"] - own["start_ns"]).sum())
        assert rows[phase]["sampled_gbps"] == pytest.approx(gbps, rel=0.03)
        assert rows[phase]["sampled_mbu_pct"] == pytest.approx(100 * gbps / 3352.32, rel=0.03)
    assert rows["mixed"]["tensor_active_pct"] > 50 > rows["decode"]["tensor_active_pct"]
    assert result.trust["clocks"]["sm_clock_mhz"] == pytest.approx(1890)
    assert result.trust["clocks"]["source"] == "gpu_metrics"
    bf16 = next(line for line in result.roofline["ceilings"] if line["dtype"] == "bf16")
    assert bf16["peak_tflops_at_clock"] == pytest.approx(bf16["peak_tflops"] * 1890 / 1830, rel=1e-3)


def test_a_wrong_model_is_told_by_the_samples(prepared):
    """Half of the layers' width is a fraction of the bytes: both figures are named."""
    run = prepared("vllm-llama-8b-h100-warmup-metrics")
    right, wrong = run.work(model="llama-3.1-8b"), run.work(model="llama-3.2-1b")

    def said(result):
        return [each for each in result.trust["contradictions"] if "by the sampled DRAM activity" in each]

    assert not said(right)
    assert said(wrong)
