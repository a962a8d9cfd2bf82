"""Logs with missing or absurd values are explained as far as they go; whole captures as the analysis reads them."""

import json
from dataclasses import replace
from random import Random

import numpy as np
import pytest

import trace_analyze as ta
from trace_analyze.analysis.client import CaptureClock, ClientOptions, explain_client
from trace_analyze.analysis.client.steps import capture_steps
from trace_analyze.analysis.records.errors import UsageError
from trace_analyze.fixtures.client_logs import Delivery, serve, served_by, watch, writers
from trace_analyze.fixtures.matrix import MATRIX
from trace_analyze.fixtures.simulator.scheduler import Request, poisson_like
from trace_analyze.fixtures.simulator.serving import simulate
from trace_analyze.ingest.client_logs import open_client_log

from .worlds import MONOTONIC, NO_CLOCK, least_delivery_ms, steps_of

JUNK = (None, "x", -1, 0, 1e300, [], [None], True)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("clock", [MONOTONIC, NO_CLOCK], ids=["exact", "fit"])
def test_any_value_of_a_vllm_log_may_be_absurd(tmp_path, clock):
    served = serve(poisson_like(12, rate_per_s=12, prompt=(200, 900), output=(4, 19), seed=11))
    path = writers.write_vllm(watch(served, Delivery()), tmp_path / "log")
    run, steps, rng = json.loads(path.read_text()), steps_of(served), Random(4)
    for _ in range(60):
        other = json.loads(json.dumps(run))
        key = rng.choice([k for k, v in run.items() if isinstance(v, list)])
        other[key][rng.randrange(len(run[key]))] = rng.choice(JUNK)
        path.write_text(json.dumps(other))
        try:
            log = open_client_log(path)
        except UsageError:
            continue
        for report in explain_client([log], steps, clock, ClientOptions(50, 100)):
            json.dumps(report.to_json(), allow_nan=False)


REQUESTS = tuple(poisson_like(24, rate_per_s=25, prompt=(180, 1400), output=(14, 40), seed=5))
CAPTURES = (
    "vllm-llama-8b-h100", "sglang-qwen3-8b-h100", "vllm-llama-8b-h100-unmarked", "vllm-llama-8b-a100-async", "trtllm-llama-8b-h100",
    "vllm-llama-8b-h100-tp2", "vllm-llama-8b-h100-speculative",
)  # fmt: skip


@pytest.mark.parametrize("name", CAPTURES)
def test_a_capture_and_a_log_of_one_run_meet(tmp_path, name):
    """The steps are those the analysis found in the capture, marked or not; the log is of the run that was captured."""
    run = simulate(replace(MATRIX[name], requests=REQUESTS, max_steps=None))
    result = ta.analyze(ta.open_trace(run.write(tmp_path / "run.sqlite")))
    steps = capture_steps(result.steps)
    served = served_by(run)
    view = watch(served, Delivery(jitter_ms=3))
    log = open_client_log(writers.write_vllm(view, tmp_path / "log"))
    for clock in (NO_CLOCK, MONOTONIC):
        report = explain_client([log], steps, clock)[0]
        assert report.clock.method == ("fit" if clock is NO_CLOCK else "monotonic"), report.clock.reason
        assert report.clock.confident
        slack = 0.0 if clock is MONOTONIC else least_delivery_ms(view)
        assert abs(report.clock.offset_ms - view.delivery.offset_ns / 1e6 + slack) < (1 if clock is NO_CLOCK else 0.1)
        inner = np.diff(view.message_request) == 0
        p99 = np.percentile(np.diff(view.message_ns)[inner], 99) / 1e6
        assert report.itl_ms.p99 == pytest.approx(p99, rel=0.1)
        assert {c.cause for c in report.by_cause[:1]} <= {"prefill_in_step", "prefill_before"}


def test_a_host_pause_in_a_capture_is_host_in_the_client_s_worst_gap(tmp_path):
    requests = tuple(Request(0, 700 + 10 * i, 60, prefilled=True) for i in range(8))
    run = simulate(replace(MATRIX["vllm-llama-8b-h100"], requests=requests, max_steps=None, host_stall_ms={20: 80.0, 33: 55.0, 41: 70.0, 47: 90.0}))  # fmt: skip
    result = ta.analyze(ta.open_trace(run.write(tmp_path / "run.sqlite")))
    view = watch(served_by(run), Delivery(jitter_ms=1))
    log = open_client_log(writers.write_vllm(view, tmp_path / "log"))
    report = explain_client([log], capture_steps(result.steps), CaptureClock(monotonic_ns=4_990_000_000_000))[0]
    assert report.worst_gaps[0].by_cause[0].cause == "host"
    assert report.worst_gaps[0].by_cause[0].ms == pytest.approx(90, abs=2)
