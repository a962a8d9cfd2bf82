"""What-ifs: worked out by hand from a run whose step times follow a known law, and against simulated runs."""

import numpy as np
import polars as pl
import pytest

from trace_analyze.analysis.advice.what_if import what_would_help
from trace_analyze.analysis.summary.summary_input import SummaryInput
from trace_analyze.analysis.time.stalls import find_gaps_and_stalls
from trace_analyze.analysis.time.time_accounting import account_time
from trace_analyze.fixtures.hand_frames import NO_DOUBTS, HandMade, HandRun, from_truth
from trace_analyze.fixtures.matrix import decoding
from trace_analyze.fixtures.simulator.config import RunConfig
from trace_analyze.fixtures.simulator.scheduler import Request
from trace_analyze.fixtures.simulator.serving import simulate


def found_in(made: HandMade, **more) -> SummaryInput:
    time = account_time(made.trace, made.kernels, made.steps, made.groups, made.window_start_ns, made.window_end_ns)
    stalls = find_gaps_and_stalls(made.steps, made.groups, time)
    return SummaryInput(made.trace, made.kernels, made.steps, made.groups, time, stalls, phase_trust=NO_DOUBTS, **more)


def lawful(kind: str) -> HandRun:
    """Decode steps of 10 ms at 8 requests; a step with p prefill tokens takes 5 + 0.05 (p + decode tokens) ms."""
    run = HandRun()
    for size in (512, 1024, 1536, 2040, 2040, 2040, 700, 900):
        run.step("decode", 10, times=12, decode_requests=8, decode_tokens=8)
        decode = {"decode_requests": 8, "decode_tokens": 8} if kind == "mixed" else {}
        tokens = size + (8 if kind == "mixed" else 0)
        run.step(kind, 5 + 0.05 * tokens, prefill_tokens=size, prefill_requests=1, prompts_finished=0, **decode)
    return run.step("decode", 10, times=4, decode_requests=8, decode_tokens=8)


def test_chunks_of_mixed_steps():
    result = what_would_help(found_in(lawful("mixed").build()), itl_target_ms=60.0)
    assert result["schedule"] == "mixed"
    assert result["chunk_now_tokens"] == 2048
    rows = {c["chunk_tokens"]: c for c in result["chunks"]}
    assert rows[1024]["step_ms"] == pytest.approx(5 + 0.05 * 1024, rel=0.01)
    assert rows[1024]["gap_max_ms"] == pytest.approx(56.2, rel=0.01)
    # of the 1,024 tokens of the budget, 8 decode
    assert rows[1024]["prefill_tokens_per_s"] == pytest.approx(1016 / 56.2e-3, rel=0.01)
    assert [rows[c]["extrapolated"] for c in (256, 512, 2048, 16384)] == [True, False, False, True]
    # 5 + 0.05 x <= 60 ms holds up to 1,100 tokens; chunks are multiples of 16
    assert result["itl_target"]["largest_chunk_tokens"] == pytest.approx(1100, abs=24)
    assert result["fit"]["r2"] > 0.99


def test_chunks_of_separate_steps_delay_the_next_decode_step_too():
    result = what_would_help(found_in(lawful("prefill").build()))
    row = next(c for c in result["chunks"] if c["chunk_tokens"] == 1024)
    assert result["schedule"] == "separate"
    assert row["gap_max_ms"] == pytest.approx(5 + 0.05 * 1024 + 10, rel=0.01)
    assert result["itl_target"] is None


def test_separating_the_phases_is_read_off_the_steps():
    split = what_would_help(found_in(lawful("mixed").build()))["disaggregation"]
    excess = sum(5 + 0.05 * (p + 8) - 10 for p in (512, 1024, 1536, 2040, 2040, 2040, 700, 900))
    assert split["prefill_ms"] == pytest.approx(excess)
    assert split["decode_ms"] == pytest.approx(10 * 100 + 10 * 8)
    assert split["prefill_devices_per_decode_device"] == pytest.approx(excess / 1080)
    assert split["gap_p99_without_stalls_ms"] == 10


def test_an_unreachable_target_is_said():
    target = what_would_help(found_in(lawful("mixed").build()), itl_target_ms=3.0)["itl_target"]
    assert target["largest_chunk_tokens"] is None
    assert "no chunk" in target["largest_chunk_tokens_reason"]


def test_a_refused_fit_leaves_no_figures():
    run = HandRun().step("decode", 10, times=20, decode_requests=2, decode_tokens=2)
    result = what_would_help(found_in(run.build()), itl_target_ms=50.0)
    assert result["fit"] is None
    assert "too few" in result["fit_reason"]
    assert (result.chunks, result.batches) == ((), ())
    assert "refused" in result["itl_target"]["largest_chunk_tokens_reason"]


@pytest.mark.parametrize("policy", ["chunked", "separate"])
def test_the_predicted_gap_of_a_chunk_agrees_with_a_run_made_with_it(policy):
    asked = tuple(Request(round((k + 1) * 90e6), (1800, 3900, 2700)[k % 3], 30) for k in range(6))
    more = (
        {} if policy == "chunked" else {"engine": "sglang", "policy": "separate", "graphs": "full", "markers": "sglang"}
    )

    def run(chunk):
        config = RunConfig(
            "w", decoding(8, 600, 160) + asked, gpu="a100-80gb", max_batched_tokens=chunk, chunk=chunk, **more
        )
        return found_in(from_truth(simulate(config)))

    predicted = {c["chunk_tokens"]: c for c in what_would_help(run(2048))["chunks"]}[1024]
    made = run(1024).steps.filter(pl.col("prefill_tokens") > 950)
    assert made.height >= 5
    assert predicted["step_ms"] == pytest.approx(np.median(made["end_ns"] - made["start_ns"]) / 1e6, rel=0.10)
    assert predicted["gap_max_ms"] >= predicted["step_ms"]


def test_a_larger_batch_reads_the_weights_once():
    made = lawful("mixed").build()
    steps = made.steps.with_columns(bytes_weights=15.0e9, bytes_kv=1.0e9, bytes_activations=0.0)
    made = HandMade(made.trace, made.kernels, steps, made.groups, made.window_start_ns, made.window_end_ns)
    ceiling = type("C", (), {"memory_bandwidth_gbps": 2000.0, "peak_tflops": {"bf16": 312.0}})()
    rows = what_would_help(found_in(made, ceilings=(ceiling,)))["batches"]
    assert [r["decode_requests"] for r in rows] == [8, 16, 32, 64]
    assert rows[0]["step_ms"] == pytest.approx(10, rel=0.01)
    assert rows[0]["tokens_per_s"] == pytest.approx(800, rel=0.01)
    assert rows[0]["mbu_pct"] == pytest.approx(100 * 16e9 / 0.010 / 2e12, rel=0.01)
    assert rows[3]["tokens_per_s"] > 4 * rows[0]["tokens_per_s"]
    assert rows[3]["extrapolated"] is True
