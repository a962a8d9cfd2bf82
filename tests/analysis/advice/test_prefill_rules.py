"""Prefill that waits for its launch calls, by hand: two prefill steps of 50 ms, the GPU idle for 30 ms of each."""

from types import SimpleNamespace

import polars as pl
import pytest

from trace_analyze.analysis.advice.prefill_rules import host_bound_prefill
from trace_analyze.analysis.result import IDLE, STEPS

MS = 1_000_000


def evidence(cause="launch_bound", idle_ms=30, phase="prefill", opaque=False):
    steps = [
        {"device_index": 0, "start_ns": a * MS, "end_ns": (a + 50) * MS, "phase": phase, "excluded": False}
        for a in (0, 100)
    ]
    idle = [
        {"device": 0, "device_index": 0, "start_ns": a * MS, "end_ns": (a + idle_ms) * MS, "cause": cause}
        for a in (5, 110)
    ]
    idle.append(
        {"device": 0, "device_index": 0, "start_ns": 50 * MS, "end_ns": 100 * MS, "cause": cause}
    )  # between steps
    frame = lambda rows, schema: pl.DataFrame([dict.fromkeys(schema) | r for r in rows], schema=dict(schema))  # noqa: E731
    time = SimpleNamespace(opaque_graphs=opaque, idle=frame(idle, IDLE), window_ns=150 * MS)
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
