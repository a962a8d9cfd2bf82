"""Counters recorded beside the profiler against the model: said side by side, and said when they disagree."""

import base64
import zlib
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import trace_analyze as ta
from trace_analyze.analysis.records.trace import COUNTERS
from trace_analyze.reports.timeline import timeline_payload

CAPTURE = Path(__file__).parents[4] / "fixtures" / "captures" / "sglang-qwen3-8b-h100.sqlite"


@pytest.fixture(scope="module")
def trace():
    return ta.open_trace(CAPTURE)


def with_dram_active(trace, percent):
    """DCGM every 10 ms over the whole capture."""
    end = int(trace.kernels["end_ns"].max())
    rows = [
        {"time_ns": t, "device_index": 0, "source": "dcgm", "dram_active_pct": percent, "sm_active_pct": 90.0}
        for t in range(0, end + 1, 10_000_000)
    ]
    return replace(trace, counters=pl.DataFrame(rows, schema=dict(COUNTERS)))


def test_counted_bandwidth_is_a_share_of_the_capture_s_own(trace):
    result = ta.analyze(with_dram_active(trace, 75.0))
    (row,) = result.measured["counters"]
    assert row["source"] == "dcgm"
    assert row["dram_active_pct"] == pytest.approx(75)
    assert row["counted_gbps"] == pytest.approx(0.75 * result.devices[0]["memory_bandwidth_gbps"])
    assert row["utilization_pct"] is None
    assert 0 < row["model_gbps"] < result.devices[0]["memory_bandwidth_gbps"]
    assert "warnings" not in result.measured


def test_impossible_counters_are_a_warning_with_both_numbers(trace):
    result = ta.analyze(with_dram_active(trace, 5.0))
    (warning,) = [w for w in result.measured["warnings"] if "dcgm" in w]
    assert "by the model" in warning


def test_counters_outside_the_window_say_nothing(trace):
    shifted = with_dram_active(trace, 75.0)
    late = shifted.counters.with_columns(pl.col("time_ns") + 10**12)
    assert ta.analyze(replace(shifted, counters=late)).measured["counters"] == ()


def test_counters_have_lanes_of_their_own(trace):
    payload = timeline_payload(ta.analyze(with_dram_active(trace, 75.0)))
    text = zlib.decompress(base64.b64decode(payload.data))
    assert b"DRAM active (dcgm)" in text
