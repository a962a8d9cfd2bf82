"""The report of a client's log: its JSON, its counts, its percentiles."""

import json

import numpy as np
import polars as pl
import pytest

from trace_analyze.analysis.client import ClientOptions, explain_client
from trace_analyze.analysis.client.ledger import GapLedger, simple_ledger
from trace_analyze.analysis.client.percentiles import percentiles, shares
from trace_analyze.analysis.client.steps import capture_steps
from trace_analyze.fixtures.client_logs import Delivery, serve, watch, writers
from trace_analyze.fixtures.client_logs.engine_writers import write_trtllm_iterations, write_trtllm_perf_metrics
from trace_analyze.fixtures.simulator.scheduler import Request
from trace_analyze.ingest.client_logs import open_client_log

from .worlds import MONOTONIC, NO_CLOCK, busy, log_of, steps_of


def explained(tmp_path, served, delivery=None, clock=MONOTONIC, options=None, write=writers.write_vllm, part=(0, None)):
    view, log = log_of(tmp_path, served, delivery, write)
    return view, explain_client([log], steps_of(served, *part), clock, options)[0]


KEYS = {"source", "requests", "requests_outside", "clock", "itl_ms", "ttft_ms", "all_requests", "by_cause", "worst_gaps", "worst_first_tokens"}  # fmt: skip


def test_the_json_has_the_contract_s_keys(tmp_path):
    _, report = explained(tmp_path, busy(3), Delivery(jitter_ms=3), NO_CLOCK, ClientOptions(worst=5))
    found = json.loads(json.dumps(report.to_json()))
    assert found.keys() >= KEYS
    assert found["clock"].keys() >= {"method", "offset_ms", "drift_ppm", "confident", "reason"}
    for name in ("itl_ms", "ttft_ms"):
        assert found[name].keys() == {"p50", "p90", "p95", "p99", "max", "n"}
        assert found["all_requests"][name].keys() == found[name].keys()
    assert sum(c["pct"] for c in found["by_cause"]) == pytest.approx(100)
    assert len(found["worst_gaps"]) == len(found["worst_first_tokens"]) == 5
    worst = found["worst_gaps"][0]
    assert worst.keys() == {"request", "at_ns", "ms", "steps", "by_cause"}
    assert worst["ms"] == found["itl_ms"]["max"]
    assert sum(c["ms"] for c in worst["by_cause"]) == pytest.approx(worst["ms"])
    assert {c["cause"] for c in found["worst_first_tokens"][0]["by_cause"]} <= {
        "queue",
        "own_prefill",
        "others",
        "after_gpu",
    }


def test_percentiles_are_those_of_the_true_messages(tmp_path):
    served = busy(3)
    view, report = explained(tmp_path, served, Delivery(jitter_ms=3))
    inner = np.diff(view.message_request) == 0
    gaps = np.diff(view.message_ns)[inner] / 1e6
    first = np.searchsorted(view.message_request, np.arange(len(view.sent_ns)))
    ttft = (view.message_ns[first] - view.sent_ns) / 1e6
    for found, true in ((report.itl_ms, gaps), (report.all_requests.itl_ms, gaps), (report.ttft_ms, ttft)):
        assert found.n == len(true)
        assert found.p99 == pytest.approx(np.percentile(true, 99), abs=1e-3)
        assert found.max == pytest.approx(true.max(), abs=1e-3)
    steps = view.served.end_ns[view.message_step]
    assert report.gpu_itl_ms.p99 == pytest.approx(np.percentile(np.diff(steps)[inner] / 1e6, 99), abs=1e-3)


def test_the_headline_says_what_the_worst_gaps_were_made_of(tmp_path):
    _, report = explained(tmp_path, busy(3), Delivery(jitter_ms=2))
    assert report.headline.startswith(f"p99 gap {report.itl_ms.p99:.0f} ms: ")
    assert "% prefill of others" in report.headline


def test_a_gap_that_the_client_made_is_after_the_gpu(tmp_path):
    served = serve([Request(40_000_000 * i, 300, 200) for i in range(20)], host_ms=0.2)
    _, report = explained(tmp_path, served, Delivery(jitter_ms=0.5, busy_every_ms=400, busy_ms=90))
    assert report.clock.method == "monotonic"
    assert report.by_cause[0].cause == "after_gpu"
    assert report.by_cause[0].pct > 50
    assert report.messages_together_pct > 10
    assert report.itl_ms.p50 > 1  # no gaps of zero
    assert report.all_requests.itl_as_recorded_ms.n > report.all_requests.itl_ms.n


def test_failed_and_warm_up_requests_are_counted_and_left_out(tmp_path):
    view, report = explained(tmp_path, busy(8, 60), Delivery(failed=0.1, warmup=3, offset_ns=-4_990_000_000_000), write=writers.write_aiperf_raw)  # fmt: skip
    assert report.requests_warmup == 3
    assert report.requests_failed == int((view.failed & ~view.warmup).sum()) > 0
    assert report.requests == 57
    assert report.ttft_ms.n == int((~view.failed & ~view.warmup).sum())


def test_requests_outside_the_capture_are_left_out_and_counted(tmp_path):
    served = busy(8, 60)
    view, report = explained(tmp_path, served, Delivery(), part=(200, 500))
    last = np.array([view.message_step[view.of_request(r)][-1] for r in range(60)])
    first = np.array([view.message_step[view.of_request(r)][0] for r in range(60)])
    assert report.requests_outside == int(((last < 200) | (first >= 500)).sum()) > 5
    assert report.requests_unplaced == 0
    assert report.itl_ms.n < report.all_requests.itl_ms.n
    sent_inside = view.sent_ns >= served.start_ns[200]
    assert report.ttft_ms.n == int((sent_inside & (first < 500)).sum())


def test_partly_inside_requests_give_their_inside_gaps(tmp_path):
    served = busy(8, 60)
    view, report = explained(tmp_path, served, Delivery(jitter_ms=0), part=(200, 500))
    step, request = view.message_step, view.message_request
    inside = (step >= 200) & (step < 500)
    assert report.itl_ms.n == int((inside[1:] & inside[:-1] & (request[1:] == request[:-1])).sum())


def test_a_log_that_is_not_aligned_has_its_own_percentiles_only(tmp_path):
    _, log = log_of(tmp_path, busy(77), Delivery())
    report = explain_client([log], steps_of(busy(3)), NO_CLOCK)[0]
    assert report.clock.method == "none"
    assert not report.clock.confident
    assert report.itl_ms is None and report.ttft_ms is None and report.by_cause == () and report.worst_gaps == ()
    assert report.all_requests.itl_ms.n > 100
    assert report.lane.height == 0
    assert report.headline == ""


def test_aggregates_only_say_what_is_missing(tmp_path):
    view = watch(busy(3), Delivery())
    log = open_client_log(writers.write_vllm(view, tmp_path / "x", detailed=False))
    report = explain_client([log], steps_of(busy(3)), MONOTONIC)[0]
    assert report.all_requests.itl_ms is None
    assert any("--save-detailed" in note for note in report.notes)


def test_the_lane_lays_requests_on_the_capture_s_clock(tmp_path):
    served = busy(3)
    view, report = explained(tmp_path, served, Delivery())
    lane = report.lane
    assert lane.height == 40
    assert (lane["sent_ns"].to_numpy() == view.sent_ns).all()
    assert lane["prefill_step"].to_list() == [p[0] for p in served.prefill_steps]
    assert lane["prefill_start_ns"].to_list() == [served.start_ns[p[0]] for p in served.prefill_steps]
    last = [view.message_ns[view.of_request(r)][-1] for r in range(40)]
    assert np.abs(lane["last_token_ns"].to_numpy() - np.array(last)).max() < 1000
    assert lane["confidence"].to_list() == ["prompt"] * 40


def test_goodput_counts_requests_within_both_targets(tmp_path):
    view, report = explained(tmp_path, busy(3), Delivery(jitter_ms=3), options=ClientOptions(itl_target_ms=60, ttft_target_ms=120))  # fmt: skip
    good = 0
    for request in range(40):
        at = view.message_ns[view.of_request(request)]
        late = (np.diff(at) > 60e6).mean()
        good += at[0] - view.sent_ns[request] <= 120e6 and late <= 0.01
    served = report.all_requests.throughput
    assert 0 < good < 40
    assert served.good_pct == pytest.approx(100 * good / 40)
    assert served.tokens_per_s == pytest.approx(sum(r.output for r in view.served.requests) / served.seconds)


def test_a_ledger_of_one_s_own_brings_its_own_causes(tmp_path):
    served = busy(3)
    _, log = log_of(tmp_path, served)
    steps = steps_of(served)
    gap = simple_ledger(steps).gap_ns
    mine = GapLedger(
        ("decode", "moon"), gap, np.stack((gap - 5, np.full(len(gap), 5)), axis=1), np.full(len(gap), np.nan)
    )
    report = explain_client([log], steps, MONOTONIC, ledger=mine)[0]
    assert {c.cause for c in report.by_cause} == {"decode", "moon", "after_gpu"}
    with pytest.raises(ValueError, match="decode-bearing steps"):
        explain_client([log], steps_of(served, 0, 100), MONOTONIC, ledger=mine)


def test_engine_logs_number_steps_and_get_no_report(tmp_path):
    view = watch(busy(3), Delivery())
    logs = [open_client_log(write_trtllm_perf_metrics(view, tmp_path / "m")), open_client_log(write_trtllm_iterations(view, tmp_path / "i"))]  # fmt: skip
    reports = explain_client(logs, steps_of(view.served), NO_CLOCK)
    assert [r.clock.method for r in reports] == ["step_ids"]
    assert reports[0].ttft_ms.n == 40
    assert reports[0].itl_ms is None


def test_nothing_secret_reaches_the_report(tmp_path):
    for name in ("write_vllm", "write_aiperf", "write_sglang", "write_inference_perf", "write_perf_analyzer"):
        _, report = explained(tmp_path, busy(3), Delivery(failed=0.1), write=getattr(writers, name))
        assert writers.SECRET not in json.dumps(report.to_json()) + str(report.lane.to_dicts())


def test_one_request_and_one_token(tmp_path):
    for requests in ([Request(0, 100, 1)], [Request(0, 100, 2)], [Request(0, 100, 1), Request(5, 50, 1)]):
        _, report = explained(tmp_path, serve(requests))
        assert report.requests == len(requests)
        json.dumps(report.to_json())


def test_percentiles_by_hand():
    found = percentiles(np.arange(101) * 1e6)
    assert (found.p50, found.p90, found.p99, found.max, found.n) == (50, 90, 99, 100, 101)
    assert percentiles(np.array([np.nan])) is None


def test_shares_sum_to_100_and_leave_out_what_never_occurs():
    found = shares(("a", "b", "c"), np.array([[3e6, 0, -1e6], [5e6, 0, 3e6]]))
    assert [(s.cause, s.ms, s.pct) for s in found] == [("a", 8.0, 80.0), ("c", 2.0, 20.0)]


def test_steps_of_a_group_begin_with_the_first_rank_and_end_with_the_last():
    frame = pl.DataFrame({
        "index": [0, 0, 1, 1, 2], "group": [0] * 5, "start_ns": [10, 12, 30, 31, 90], "end_ns": [20, 25, 45, 44, 99],
        "phase": ["decode", "decode", "mixed", "mixed", "decode"], "partial": [False] * 4 + [True], "excluded": [False] * 5,
        "prefill_tokens": [0, 0, 7, 7, 0], "decode_requests": [3, None, 3, 3, 3], "label": [None, "[Executor] _forward_step 512: 1 ctx", "_forward_step 513", None, None],
    })  # fmt: skip
    steps = capture_steps(frame)
    assert (steps.start_ns.tolist(), steps.end_ns.tolist()) == ([10, 30], [25, 45])
    assert steps.has_prefill.tolist() == [False, True]
    assert steps.counts["decode_requests"].tolist() == [3, 3]
    assert np.isnan(steps.counts["prompts_finished"]).all()
    assert steps.iteration.tolist() == [512, 513]
