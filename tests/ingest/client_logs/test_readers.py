"""Readers of client logs: hand-worked files, and every format of one simulated run."""

import gzip
import json

import numpy as np
import polars as pl
import pytest

from trace_analyze.analysis.records.errors import UsageError
from trace_analyze.fixtures.client_logs import Delivery, engine_writers, serve, watch, writers
from trace_analyze.fixtures.simulator.scheduler import poisson_like
from trace_analyze.ingest.client_logs import FORMATS, open_client_log


def opened(tmp_path, content, name="log.json"):
    path = tmp_path / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return open_client_log(path)


def times(log, request):
    """Message times of a request on the log's clock, ms after its sending."""
    row = log.requests.row(request, named=True)
    part = log.messages.slice(row["first_message"], row["message_count"])
    return [round(ns / 1e6, 3) for ns in part["after_ns"].to_list()], part["tokens"].to_list()


VLLM = {
    "duration": 0.5, "start_times": [5000.000, 5000.105, 5000.158], "ttfts": [0.100, 0.045, 0.252],
    "itls": [[0.010, 0.040, 0.010, 0.250, 0.010], [0.010, 0.250], [0.010]], "output_lens": [6, 3, 2], "errors": ["", "", ""],
}  # fmt: skip


def test_vllm_times_are_start_plus_first_token_plus_gaps(tmp_path):
    log = opened(tmp_path, VLLM)
    assert (log.source, log.clock) == ("vllm", "monotonic")
    assert log.requests["sent_ns"].to_list() == [5_000_000_000_000, 5_000_105_000_000, 5_000_158_000_000]
    assert times(log, 0) == ([100.0, 110.0, 150.0, 160.0, 410.0, 420.0], [1] * 6)
    assert times(log, 1) == ([45.0, 55.0, 305.0], [1] * 3)
    assert times(log, 2) == ([252.0, 262.0], [1, 1])


def test_a_failed_request_keeps_its_place_and_has_no_messages(tmp_path):
    run = {**VLLM, "ttfts": [0.1, 0.0, 0.252], "itls": [VLLM["itls"][0], [], [0.01]], "errors": ["", "503: no", ""], "output_lens": [6, 0, 2]}  # fmt: skip
    log = opened(tmp_path, run)
    assert log.requests["failed"].to_list() == [False, True, False]
    assert log.requests["message_count"].to_list() == [6, 0, 2]
    assert times(log, 2) == ([252.0, 262.0], [1, 1])


def test_an_old_vllm_file_had_the_first_token_among_the_gaps(tmp_path):
    run = {"ttfts": [0.1, 0.2], "itls": [[0.1, 0.01], [0.2, 0.02, 0.03]], "output_lens": [2, 3], "errors": ["", ""]}
    log = opened(tmp_path, run)
    assert times(log, 1) == ([200.0, 220.0, 250.0], [1, 1, 1])
    assert "first token" in log.notes[0]


def test_messages_that_are_fewer_than_tokens_do_not_say_how_many_they_hold(tmp_path):
    run = {"ttfts": [0.1], "itls": [[0.03, 0.24]], "output_lens": [6], "errors": [""], "backend": "vllm"}
    assert times(opened(tmp_path, run), 0) == ([100.0, 130.0, 370.0], [None, None, None])


def test_sglang_spread_gaps_are_put_together_again(tmp_path):
    run = {"backend": "sglang", "ttfts": [0.100, 0.0], "itls": [[0.01, 0.01, 0.01, 0.12, 0.12], []], "output_lens": [6, 0], "errors": ["", "503"]}  # fmt: skip
    log = opened(tmp_path, json.dumps(run) + "\n")
    assert (log.source, log.clock) == ("sglang", "none")
    assert times(log, 0) == ([100.0, 130.0, 370.0], [1, 3, 2])
    assert log.itl_as_recorded_ns.tolist() == pytest.approx([1e7, 1e7, 1e7, 1.2e8, 1.2e8])


def test_a_first_token_of_0_ms_is_unknown(tmp_path):
    run = {"backend": "sglang", "ttfts": [0.0], "itls": [[]], "output_lens": [0], "errors": [""]}
    log = opened(tmp_path, run)
    assert log.messages.height == 0
    assert not log.requests["failed"][0]


def test_the_last_of_several_runs_is_taken_and_said(tmp_path):
    log = opened(tmp_path, json.dumps({**VLLM, "ttfts": [9.0, 9.0, 9.0]}) + "\n" + json.dumps(VLLM))
    assert times(log, 1)[0][0] == 45.0
    assert "2 runs" in log.notes[0]


def test_objects_over_several_lines_one_after_the_other(tmp_path):
    log = opened(tmp_path, json.dumps(VLLM, indent=2) + "\n" + json.dumps(VLLM, indent=2))
    assert "2 runs" in log.notes[0]


def test_bare_infinity_is_no_hindrance(tmp_path):
    log = opened(tmp_path, '{"request_rate": Infinity, "mean": NaN, "ttfts": [0.1], "itls": [[0.01]], "errors": [""], "output_lens": [2]}')  # fmt: skip
    assert times(log, 0)[0] == [100.0, 110.0]


@pytest.mark.parametrize(
    ("run", "flag"),
    [({"mean_ttft_ms": 1.0, "p99_itl_ms": 143.0}, "--save-detailed"),
     ({"mean_ttft_ms": 1.0, "server_info": {}, "p99_itl_ms": 2.0}, "--output-details"),
     ({"mean_ttft_ms": 1.0, "avg_decoded_tokens_per_iter": 1.0}, "benchmark_serving")],
)  # fmt: skip
def test_aggregates_only_name_the_missing_option(tmp_path, run, flag):
    log = opened(tmp_path, run)
    assert log.requests.height == 0
    assert flag in log.lacking


def aiperf_line(start, phase="profiling", gaps=(10, 0, 240), **more):
    metrics = {"time_to_first_token": {"value": 0.1, "unit": "s"}, "inter_chunk_latency": {"value": list(gaps), "unit": "ms"},
               "inter_token_latency": {"value": 83.3, "unit": "ms"}, "output_sequence_length": {"value": 4, "unit": "tokens"}}  # fmt: skip
    about = {"request_start_ns": start, "benchmark_phase": phase, "was_cancelled": False}
    return json.dumps({"metadata": about | more, "metrics": metrics, "error": None})


def test_aiperf_reads_units_phases_and_sorts_by_start(tmp_path):
    start = 1_764_000_010_000_000_000
    lines = [aiperf_line(start + 5), aiperf_line(start, "warmup"), aiperf_line(start + 9, was_cancelled=True)]
    log = opened(tmp_path, "\n".join(lines))
    assert (log.source, log.clock) == ("aiperf", "wall")
    assert log.requests["sent_ns"].to_list() == [start, start + 5, start + 9]
    assert log.requests["warmup"].to_list() == [True, False, False]
    assert log.requests["cancelled"].to_list() == [False, False, True]
    assert times(log, 0) == ([100.0, 110.0, 110.0, 350.0], [1] * 4)


def test_inference_perf_puts_tokens_of_one_time_into_one_message(tmp_path):
    entry = {"start_time": 5000.0, "end_time": 5000.4, "error": None,
             "info": {"input_tokens": 7, "output_tokens": 4, "response_metrics": {"output_token_times": [5000.1, 5000.11, 5000.11, 5000.35]}}}  # fmt: skip
    failed = {**entry, "start_time": 5001.0, "error": {"error_type": "x"}}
    log = opened(tmp_path, [entry, failed, {**entry, "start_time": 5002.0, "info": {"output_token_times": []}}])
    assert (log.source, log.clock) == ("inference-perf", "monotonic")
    assert times(log, 0) == ([100.0, 110.0, 350.0], [1, 2, 1])
    assert log.requests["message_count"].to_list() == [3, 0, 0]


def test_trtllm_metrics_name_the_steps(tmp_path):
    timing = {
        "arrival_time": 100.0,
        "first_scheduled_time": 100.02,
        "first_token_time": 100.06,
        "last_token_time": 100.3,
    }
    log = opened(tmp_path, [{"request_id": 7, "perf_metrics": {"first_iter": 512, "last_iter": 515, "timing_metrics": timing}}])  # fmt: skip
    row = log.requests.row(0, named=True)
    assert (row["first_step"], row["last_step"]) == (512, 515)
    assert times(log, 0) == ([60.0], [1])
    assert row["scheduled_ns"] == 100_020_000_000
    assert not log.all_messages


ITERATIONS = [
    "INFO 12-01 Iteration(41): 0 context requests, 0 context tokens, 2 generation requests, 2 generation tokens, iteration elapsed time: 10.1 ms",
    "INFO 12-01 Iteration(42): 1 context requests, 2048 context tokens, 2 generation requests, 2 generation tokens, iteration elapsed time: 250.3 ms, KV",
    "INFO 12-01 Iteration(43): 0 context requests, 0 context tokens, 0 generation requests, 0 generation tokens, iteration elapsed time: 9 ms (dummy)",
]


def test_vllm_iteration_lines_without_dummy_ones(tmp_path):
    log = opened(tmp_path, "\n".join(ITERATIONS), "server.log")
    assert log.iterations.rows() == [(41, 0, 0, 2, 10.1), (42, 1, 2048, 2, 250.3)]


def test_trtllm_iterations_in_three_notations(tmp_path):
    statistics = {"iter": 7, "iterLatencyMS": 6.5, "inflightBatchingStats": {"numContextRequests": 1, "numCtxTokens": 300, "numGenRequests": 4}}  # fmt: skip
    line = ("[TRT-LLM] [I] iter = 7, global_rank = 0, rank = 0, currank_total_requests = 1/1, host_step_time = 6.5 ms, "
            "states = {'num_ctx_requests': 1, 'num_ctx_tokens': 300, 'num_generation_tokens': 4}")  # fmt: skip
    for content in (json.dumps(statistics), repr(statistics), line):
        assert opened(tmp_path, content).iterations.rows() == [(7, 1, 300, 4, 6.5)]


def test_sglang_request_lines(tmp_path):
    line = ("[2026-12-01 10:00:00] ReqTimeStats(rid=abc, input_len=700, cached_input_len=100, output_len=32, attempts=1, type=unified): "
            "queue_duration=12.50ms, forward_duration=400.00ms, entry_time=1764000010.123")  # fmt: skip
    row = opened(tmp_path, line).requests.row(0, named=True)
    assert row["sent_ns"] == pytest.approx(1_764_000_010_123_000_000, abs=1000)
    assert row["scheduled_ns"] - row["sent_ns"] == pytest.approx(12_500_000, abs=1000)
    assert (row["prompt_tokens"], row["cached_tokens"], row["output_tokens"]) == (700, 100, 32)


@pytest.mark.parametrize("content", ["", "hello", "[]", "{}", '{"a": 1}', "[1, 2", '{"traceEvents": []}'])
def test_what_is_no_client_log_is_refused_with_the_formats(tmp_path, content):
    with pytest.raises(UsageError, match="vllm bench serve"):
        opened(tmp_path, content)


def test_a_broken_gzip_and_a_missing_file_are_usage_errors(tmp_path):
    (tmp_path / "x.gz").write_bytes(b"\x1f\x8bnot gzip")
    for name in ("x.gz", "nowhere.json"):
        with pytest.raises(UsageError, match="cannot be read"):
            open_client_log(tmp_path / name)


def test_a_last_line_that_was_cut_off_is_left_out(tmp_path):
    start = 1_764_000_010_000_000_000
    log = opened(tmp_path, aiperf_line(start) + "\n" + aiperf_line(start + 1)[:60])
    assert log.requests.height == 1


@pytest.fixture(scope="module")
def view():
    served = serve(poisson_like(24, rate_per_s=12, prompt=(200, 3000), output=(20, 60), seed=11))
    return watch(served, Delivery(failed=0.15, warmup=2, busy_every_ms=300, busy_ms=40))


CLIENTS = ("write_vllm", "write_aiperf", "write_aiperf_raw", "write_perf_analyzer", "write_inference_perf")


@pytest.mark.parametrize("name", CLIENTS)
def test_a_simulated_run_comes_back_to_the_microsecond(tmp_path, view, name):
    log = open_client_log(getattr(writers, name)(view, tmp_path / "log.gz"))
    starts = dict(zip(log.requests["sent_ns"].to_list(), range(log.requests.height), strict=True))
    met = 0
    for number in range(len(view.sent_ns)):
        sent = int(view.on_log_clock(view.sent_ns[number : number + 1])[0])
        near = min(starts, key=lambda s, sent=sent: abs(s - sent))
        if abs(near - sent) > 1000:
            assert view.warmup[number] or view.failed[number]  # not written by this format
            continue
        met += 1
        row = log.requests.row(starts[near], named=True)
        expected = [] if view.failed[number] else view.message_ns[view.of_request(number)] - view.sent_ns[number]
        got = log.messages["after_ns"].slice(row["first_message"], row["message_count"]).to_numpy()
        assert len(got) == len(expected)
        assert np.abs(got - expected).max(initial=0) < 1000
        assert row["failed"] == view.failed[number]
    assert met >= 18


ALL = [(m, n) for m in (writers, engine_writers) for n in dir(m) if n.startswith("write_") and n != "write_vllm_runs"]


@pytest.mark.parametrize(("module", "name"), ALL)
def test_no_text_id_or_address_is_kept(tmp_path, view, module, name):
    path = getattr(module, name)(view, tmp_path / "log")
    assert writers.SECRET in path.read_text() or name in ("write_trtllm_perf_metrics", "write_trtllm_iterations")
    log = open_client_log(path)
    kept = [log.source, log.file_name, log.lacking, *log.notes]
    for frame in (log.requests, log.messages, log.iterations):
        assert not any(dtype == pl.String for dtype in frame.schema.values())
    assert not any("SECRET" in text or "10.1.2.3" in text for text in kept)


def test_every_format_is_written_and_recognised(tmp_path, view):
    found = {open_client_log(getattr(m, n)(view, tmp_path / n)).source for m, n in ALL}
    assert found == set(FORMATS)


def test_gzipped_and_plain_read_alike(tmp_path, view):
    plain = writers.write_vllm(view, tmp_path / "a.json")
    packed = tmp_path / "b"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert open_client_log(plain).messages.equals(open_client_log(packed).messages)
