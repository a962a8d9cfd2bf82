"""Numerator and denominator of a ratio, by hand: two devices, whole steps of the phase only."""

import polars as pl
import pytest

from trace_analyze.analysis.summary.ratio_operands import RatioOperands, ratio_operands

STEPS = pl.DataFrame(
    {
        "phase": ["decode", "decode", "decode", "decode", "prefill"],
        "partial": [False, False, True, False, False],
        "excluded": [False, False, False, True, False],
        "mbu_pct": [50.0, 50.0, 50.0, 50.0, 10.0],
        "mfu_pct": [1.0, None, 1.0, 1.0, 60.0],
        "bytes": [5e8, 5e8, 9e9, 9e9, 1e8],
        "flop": [1e9, 1e9, 1e9, 1e9, 6e9],
        "busy_ns": [1_000_000, 1_000_000, 7, 7, 1_000_000],
        "device_index": [0, 1, 0, 0, 0],
    }
)


def test_whole_steps_of_the_phase_on_all_devices():
    # 1 GB in 2 ms at 1 TB/s
    assert ratio_operands(STEPS, "decode", "mbu", 50.0, 1e12) == RatioOperands(1e9, 2e6, 2, 2)


def test_steps_without_the_ratio_do_not_count():
    assert ratio_operands(STEPS, "decode", "mfu", 1.0, 1e14) == RatioOperands(1e9, 1e6, 1, 1)


@pytest.mark.parametrize(
    ("phase", "percent", "ceiling"), [("decode", 51.0, 1e12), ("decode", 50.0, 0.0), ("mixed", 50.0, 1e12)]
)
def test_none_where_they_do_not_give_it(phase, percent, ceiling):
    assert ratio_operands(STEPS, phase, "mbu", percent, ceiling) is None
