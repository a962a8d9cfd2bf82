"""Prefill that waits for its launch calls, by hand: two prefill steps of 50 ms, the GPU idle for 30 ms of each."""

from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from trace_analyze.analysis.advice.prefill_rules import host_bound_prefill
from trace_analyze.analysis.numeric.intervals import Intervals
from trace_analyze.analysis.records.tables import STEPS
from trace_analyze.analysis.time.idle_causes import CAUSES, IdleIntervals

MS = 1_000_000


def evidence(cause="launch_bound", idle_ms=30, phase="prefill", opaque=False):
    steps = [
        {"device_index": 0, "start_ns": a * MS, "end_ns": (a + 50) * MS, "phase": phase, "excluded": False}
        for a in (0, 100)
    ]
    begins, ends = [5, 50, 110], [5 + idle_ms, 100, 110 + idle_ms]  # the one in the middle lies between the steps
    spans = Intervals(np.array(begins) * MS, np.array(ends) * MS)
    three = np.zeros(3, np.int64)
    idle = IdleIntervals(spans, np.full(3, CAUSES.index(cause), np.uint8), three > 0, three)
    time = SimpleNamespace(opaque_graphs=opaque, timelines={0: SimpleNamespace(idle=idle)}, window_ns=150 * MS)
    frame = lambda rows, schema: pl.DataFrame([dict.fromkeys(schema) | r for r in rows], schema=dict(schema))  # noqa: E731
    return SimpleNamespace(found=SimpleNamespace(time=time, steps=frame(steps, STEPS)), device_count=1)


def test_waiting_inside_prefill_steps_is_named_and_waiting_between_them_is_not():
    finding = host_bound_prefill(evidence())
    assert finding.recoverable_ms == pytest.approx(60)
    assert finding.evidence["share_of_steps_pct"] == pytest.approx(60)
    assert finding.sentence == (
        "The GPU waits for launch calls for 60 ms inside steps with prefill work, 60% of their time"
    )


@pytest.mark.parametrize(
    "other", [{"idle_ms": 4}, {"cause": "host_sync"}, {"phase": "decode"}, {"opaque": True}], ids=str
)
def test_it_is_silent_otherwise(other):
    assert host_bound_prefill(evidence(**other)) is None
