"""Runs whose prompts or requests ran in padded graphs and nothing tells how many: what each part of the result says."""

import math
import sqlite3

import polars as pl
import pytest

import trace_analyze as ta
from trace_analyze.analysis.compare.compare_runs import compare_profiles
from trace_analyze.analysis.compare.run_profile import profile_of
from trace_analyze.fixtures.matrix import MATRIX
from trace_analyze.fixtures.simulator.serving import simulate
from trace_analyze.reports.first_screen.lines import ratio_lines
from trace_analyze.reports.html import save_html
from trace_analyze.reports.json_report import to_dict
from trace_analyze.reports.terminal import print_screen


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """1,900 tokens in a graph of 2,048 and 2,700 in one of 2,816, each while others decode."""
    run = simulate(MATRIX["sglang-qwen3-8b-h100-piecewise-unmarked"])
    return ta.analyze(run.write(tmp_path_factory.mktemp("padded") / "run.sqlite"))


def test_summary_quotes_the_padded_work_as_an_upper_bound(result):
    summary = result.summary
    for key in ("prefill_mfu_kernel_pct", "prefill_mfu_wall_pct"):
        assert summary[key] is None
        assert summary["reasons"][key] == (
            "the tokens of 2 steps in padded graphs are not known: GEMMs alone make an MFU of at most 62% over these steps, "
            "counted with the padded size"
        )
    assert summary["prefill_tokens"] is None
    assert "at most 62%" in ratio_lines(summary)[1].why


def test_stalls_keep_their_time_and_say_why_tokens_are_missing(result):
    stalls = result.stalls
    assert stalls.height == 2
    assert stalls["stall_ms"].null_count() == stalls["requests_held"].null_count() == 0
    assert stalls["prefill_tokens"].to_list() == [None, None]
    assert all("prefill_tokens is unknown" in reason for reason in stalls["reason"])
    (finding,) = [finding for finding in result.findings if finding.id == "prefill_interference"]
    assert finding.evidence["prefill_tokens"] is None
    assert "a step padded to 2,816 tokens takes" in finding.lever


def test_what_if_goes_by_the_rows_that_ran(result):
    assert result.what_if["chunk_now_tokens"] == 2816
    assert result.what_if["chunk_now_is_padded"] is True
    assert result.workload["by_tokens"] is None
    assert result.workload["by_tokens_reason"]


def test_a_profile_holds_the_rows_that_ran_and_no_tokens(result):
    prefill = profile_of(result).phases["prefill"]
    assert prefill.batch.tolist() == [2048.0, 2816.0]
    assert all(math.isnan(tokens) for tokens in prefill.tokens)


def test_padded_rows_are_not_compared_with_tokens(tmp_path):
    """The same run with and without the copies that tell its tokens: nothing became faster."""
    path = simulate(MATRIX["sglang-qwen3-8b-h100-piecewise-copies"]).write(tmp_path / "told.sqlite")
    told = profile_of(ta.analyze(path))
    connection = sqlite3.connect(path)
    connection.execute("DELETE FROM CUPTI_ACTIVITY_KIND_MEMCPY WHERE copyKind = 8")
    connection.commit()
    connection.close()
    silent = profile_of(ta.analyze(path))
    assert sum(told.phases["prefill"].tokens) == 1900 + 330 + 2700 + 2048 + 3900
    for before, after in ((told, silent), (silent, told)):
        steps = [c for c in compare_profiles(before, after).changes if c.kind == "step" and c.phase == "prefill"]
        assert [c.difference.change_pct for c in steps] == [pytest.approx(0.0, abs=1e-6)]


def test_reports_show_unknown_and_never_zero(result, tmp_path, capsys):
    data = to_dict(result)
    steps = [step for step in data["steps"] if step["phase"] == "prefill"]
    assert [(step["prefill_tokens"], step["padded_tokens"], step["flop"]) for step in steps] == [
        (None, 2048, None),
        (None, 2816, None),
    ]
    rows = [
        row for row in data["kernels"] if row["phase"] == "prefill" and row["flop"] is None and row["flop_executed"]
    ]
    assert rows
    assert all("only the size its graph was padded to" in row["reason"] for row in rows)
    assert not any(
        isinstance(value, float) and math.isnan(value) for row in data["op_classes"] for value in row.values()
    )
    save_html(result, tmp_path / "run.html")
    page = (tmp_path / "run.html").read_text(encoding="utf-8")
    assert "only the size its graph was padded to is known" in page
    print_screen(result)
    assert "at most 62%" in " ".join(capsys.readouterr().out.split())


@pytest.fixture(scope="module")
def decode_only_padded(tmp_path_factory):
    """Up to 9 requests in graphs of 2 to 16: only the 3 steps of a single request, of 62, show theirs."""
    run = simulate(MATRIX["trtllm-llama-8b-a100-unmarked"])
    return ta.analyze(run.write(tmp_path_factory.mktemp("padded") / "run.sqlite"))


def test_a_few_known_steps_do_not_speak_for_the_others(decode_only_padded):
    result = decode_only_padded
    known = result.steps.filter(pl.col("phase") == "decode")["decode_requests"].drop_nulls()
    assert known.to_list() == [1, 1, 1]
    assert result.summary["decode_batch_p50"] is None
    workload = result.workload
    assert workload["decode_batch_p50"] is None
    # the median graph is one of 8, and the batch no larger
    assert workload["batch_regime"] == "below the ridge: at most 8 of 153 requests, decode GEMMs read weights"
    assert not any("intensity_now" in row for row in workload["techniques"])
    assert result.traffic["bytes_activations_per_step"] is None
    assert result.traffic["bytes_weights_per_step"] == pytest.approx(15.0e9, rel=0.01)
