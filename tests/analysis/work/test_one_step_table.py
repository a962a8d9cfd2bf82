"""One step kernel by kernel, worked out by hand."""

import polars as pl
import pytest

from trace_analyze.analysis.records.errors import CannotAnswerError, UsageError
from trace_analyze.analysis.records.tables import KERNEL_TAGS, KERNEL_WORK, STEPS
from trace_analyze.analysis.records.trace import KERNELS, NAMES, CaptureFacts, build_trace
from trace_analyze.analysis.work.one_step_table import step_table


def frame(schema, rows):
    return pl.DataFrame([{**dict.fromkeys(schema), **row} for row in rows], schema=dict(schema))


def step(number, phase, start, end, **more):
    base = {"step": number, "index": number, "device": 0, "device_index": 0, "group": 0, "phase": phase}
    return {**base, "start_ns": start, "end_ns": end, "partial": False, "excluded": False, **more}


STEP_ROWS = frame(
    STEPS,
    [
        step(0, "decode", 0, 10_000),
        step(1, "decode", 10_000, 22_000),
        step(2, "prefill", 22_000, 90_000),
        step(3, "decode", 90_000, 104_000),
        step(4, "decode", 104_000, 999_000, partial=True),
    ],
)


@pytest.fixture
def run():
    names = pl.DataFrame({"name_id": [0, 1], "name": ["gemm<1>()", "norm()"], "short_name": ["gemm", "norm"]}).cast(
        dict(NAMES)
    )
    rows = [
        {"start_ns": 10_000, "end_ns": 14_000, "name_id": 0, "step": 1, "place": "qkv", "op_class": "gemm", "phase": "decode",
         "flop": 8e6, "bytes": 4e6, "mfu_pct": 1.0, "mbu_pct": 40.0},
        {"start_ns": 14_000, "end_ns": 20_000, "name_id": 0, "step": 1, "place": "qkv", "op_class": "gemm", "phase": "decode",
         "flop": 8e6, "bytes": 4e6, "mfu_pct": 2.0, "mbu_pct": 60.0},
        {"start_ns": 20_000, "end_ns": 22_000, "name_id": 1, "step": 1, "place": "", "op_class": "norm", "phase": "decode"},
    ]  # fmt: skip
    kernels = frame(KERNELS | KERNEL_TAGS | KERNEL_WORK, rows)
    return build_trace(CaptureFacts("x", "test"), names=names), kernels


def test_median_decode_step(run):
    """Whole decode steps take 10, 12 and 14 us: step 1 is the median; the partial one does not count."""
    trace, kernels = run
    table = step_table("median-decode", trace, kernels, STEP_ROWS)
    gemm, norm = table.to_dicts()
    assert gemm["index"] == 1
    assert gemm["step_ms"] == pytest.approx(0.012)
    assert (gemm["short_name"], gemm["count"], gemm["total_us"]) == ("gemm", 2, 10.0)
    assert gemm["time_pct"] == pytest.approx(100 * 10 / 12)
    assert gemm["arithmetic_intensity"] == pytest.approx(2.0)
    assert gemm["mbu_pct"] == pytest.approx((4 * 40 + 6 * 60) / 10)
    assert norm["flop"] is None
    assert norm["mbu_pct"] is None
    assert table["time_pct"].sum() == pytest.approx(100)


def test_index_and_absence(run):
    trace, kernels = run
    assert step_table(None, trace, kernels, STEP_ROWS) is None
    assert len(step_table("1", trace, kernels, STEP_ROWS)) == 2
    with pytest.raises(UsageError, match="from 0 to 4"):
        step_table("17", trace, kernels, STEP_ROWS)
    with pytest.raises(UsageError, match="median-decode"):
        step_table("mean", trace, kernels, STEP_ROWS)
    with pytest.raises(CannotAnswerError, match="no whole prefill"):
        step_table("median-prefill", trace, kernels, STEP_ROWS.filter(pl.col("phase") == "decode"))
