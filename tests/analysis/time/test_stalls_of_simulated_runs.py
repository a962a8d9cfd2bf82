"""Stalls and gaps of simulated serving runs against their truth (steps and phases taken from the truth)."""

import polars as pl
import pytest

from trace_analyze.analysis.time.stalls import StallResult, find_gaps_and_stalls
from trace_analyze.analysis.time.time_accounting import account_time
from trace_analyze.fixtures.hand_frames import from_truth
from trace_analyze.fixtures.matrix import MATRIX, busy
from trace_analyze.fixtures.simulator.config import RunConfig
from trace_analyze.fixtures.simulator.serving import SimulatedRun, simulate

SGLANG = {"engine": "sglang", "policy": "separate", "graphs": "full", "markers": "sglang"}


def find(run: SimulatedRun) -> StallResult:
    made = from_truth(run)
    time = account_time(made.trace, made.kernels, made.steps, made.groups, made.window_start_ns, made.window_end_ns)
    return find_gaps_and_stalls(made.steps, made.groups, time)


def serve(chunk: int, **options) -> SimulatedRun:
    requests = busy(6.0, prompts=(5000, 900, 2600), output=70)
    return simulate(RunConfig("stalls", requests, max_batched_tokens=chunk, chunk=chunk, **options))


@pytest.mark.parametrize("chunk", [512, 2048, 8192])
@pytest.mark.parametrize("options", [{}, SGLANG], ids=["vllm-mixed", "sglang-separate"])
def test_count_is_exact_and_ms_within_two_percent(chunk, options):
    run = serve(chunk, **options)
    found, truth = find(run), run.truth
    assert found.stalls.height == truth.stalls.height > 0
    assert found.stalls["kind"].cast(pl.String).to_list() == truth.stalls["kind"].to_list()
    assert found.stalls["episode"].to_list() == truth.stalls["episode"].to_list()
    assert found.stalls["requests_held"].to_list() == truth.stalls["requests_held"].to_list()
    # Single stalls may differ by the decode steps chosen as baseline: those of one graph size, or those of near batches.
    assert found.stalls["stall_ms"].to_list() == pytest.approx(truth.stalls["stall_ms"].to_list(), rel=0.06)
    assert found.stalls["stall_ms"].sum() == pytest.approx(truth.stalls["stall_ms"].sum(), rel=0.02)
    assert found.gaps["gap_ms"].to_list() == pytest.approx(truth.gaps["gap_ms"].to_list())
    assert found.prefill_without_waiters == {0: truth.prefill_without_waiters}


@pytest.mark.parametrize(
    "name", ["vllm-llama-8b-h100-decode-only", "vllm-llama-8b-h100-prefill-only", "vllm-llama-8b-h100-one-user"]
)
def test_nobody_waited(name):
    run = simulate(MATRIX[name])
    found = find(run)
    assert run.truth.stalls.height == 0
    assert found.stalls.is_empty()
    assert found.prefill_without_waiters == {0: run.truth.prefill_without_waiters}


@pytest.mark.parametrize(
    "name", ["vllm-llama-8b-h100-tp2", "vllm-llama-8b-h100-speculative", "trtllm-llama-8b-h100", "sglang-qwen3-8b-h100"]
)
def test_other_engines_and_ranks(name):
    run = simulate(MATRIX[name])
    found = find(run)
    assert found.stalls.height == run.truth.stalls.height
    assert found.stalls["stall_ms"].to_list() == pytest.approx(run.truth.stalls["stall_ms"].to_list(), rel=0.02)
