"""The workload's class and each technique's predicted step time, worked out by hand."""

import pytest

from trace_analyze.analysis.advice.what_if import what_would_help
from trace_analyze.analysis.advice.workload import classify_workload
from trace_analyze.analysis.summary.summary_input import SummaryInput
from trace_analyze.analysis.time.stalls import find_gaps_and_stalls
from trace_analyze.analysis.time.time_accounting import account_time
from trace_analyze.fixtures.hand_frames import A100, MS, NO_DOUBTS, HandRun, model_of

WORK = {"flop": 16e9 * 8, "bytes_weights": 15e9, "bytes_kv": 1e9, "bytes_activations": 0.0}


DECODE = (("gemm", 0, 7), ("attention", 7, 9), ("norm", 9, 10))


def workload_of(requests: int, *, prefill_ms=100.0, prefill_tokens=2000, ceilings=(A100,), model=None, kernels=DECODE):
    """Decode steps of 10 ms: 7 ms GEMMs, 2 ms attention, 1 ms norms; one prefill step."""
    run = HandRun()
    for k in range(41):
        if k == 20:
            facts = {"prefill_tokens": prefill_tokens, "prefill_requests": 1, "prompts_finished": 1}
            run.step("prefill", prefill_ms, **facts)
            continue
        begin = run.now_ns
        for op, start, end in kernels:
            at = {"step_index": k, "step_phase": "decode", "op_class": op}
            run.kernel(begin + start * MS, begin + end * MS, **at)
        run.step("decode", 10, kernel=False, decode_requests=requests, decode_tokens=requests, **WORK)
    made = run.build()
    time = account_time(made.trace, made.kernels, made.steps, made.groups, made.window_start_ns, made.window_end_ns)
    stalls = find_gaps_and_stalls(made.steps, made.groups, time)
    found = SummaryInput(
        made.trace,
        made.kernels,
        made.steps,
        made.groups,
        time,
        stalls,
        ceilings=ceilings,
        phase_trust=NO_DOUBTS,
        model=model,
    )
    return classify_workload(found, what_would_help(found))


def technique(workload, name):
    return next(t for t in workload["techniques"] if t["technique"].startswith(name))


def test_the_class_by_time_by_tokens_and_by_batch():
    workload = workload_of(8)
    assert workload["by_time"] == "decode-heavy"
    assert workload["prefill_time_share_pct"] == pytest.approx(20)
    assert workload["by_tokens"] == "prefill-heavy"
    assert workload["prefill_token_share_pct"] == pytest.approx(100 * 2000 / 2320)
    assert workload["ridge_batch"] == pytest.approx(153.0, abs=0.05)
    assert workload["batch_regime"].startswith("below the ridge: 8 of 153")
    assert workload["bound_by"] == "throughput: decode steps move 78% of what the bandwidth allows"


def test_packed_weights_shorten_gemms_below_the_ridge_only():
    below = workload_of(8)
    assert technique(below, "8-bit weights")["predicted_step_ms"] == pytest.approx(10 - 3.5)
    four = technique(below, "4-bit weights")
    assert four["predicted_step_ms"] == pytest.approx(10 - 7 * (1 - 1 / 3.7))
    assert four["intensity_now"] == pytest.approx(8)
    assert four["intensity_then"] == pytest.approx(128e9 / (16e9 - 15e9 * (1 - 1 / 3.7)))
    above = technique(workload_of(200), "8-bit weights")
    assert (above["helps"], above["predicted_step_ms"]) == ("no", 10)
    assert "wait for compute" in above["why"]
    packed = {t["technique"] for t in workload_of(8, model=model_of("int4"))["techniques"]}
    assert not any("weights" in t for t in packed)


def test_tensor_parallelism_and_attention():
    workload = workload_of(8)
    assert technique(workload, "tensor parallelism")["predicted_step_ms"] == pytest.approx(10 - 4.5)
    assert technique(workload, "8-bit KV")["predicted_step_ms"] == pytest.approx(9)


def test_kernels_side_by_side_share_the_step():
    """20 ms of kernels in a step of 10 ms: halving the GEMMs (10 of the 20 ms) saves a quarter of the step."""
    side_by_side = (("gemm", 0, 10), ("attention", 0, 10))
    workload = workload_of(8, kernels=side_by_side)
    assert technique(workload, "8-bit weights")["predicted_step_ms"] == pytest.approx(7.5)
    assert technique(workload, "tensor parallelism")["predicted_step_ms"] == pytest.approx(5)


def test_speculation_pays_below_the_ridge():
    spoken = technique(workload_of(8), "speculative")
    assert spoken["predicted_step_ms"] == pytest.approx(10 / (1 + 0.8 + 0.64 + 0.512))
    assert "time per token, taking 80% acceptance" in spoken["condition"]
    beyond = technique(workload_of(60), "speculative")
    assert (beyond["helps"], beyond["predicted_step_ms"]) == ("no", None)
    assert "beyond the ridge batch" in beyond["why"]


def test_prefix_caching_counts_prefill_time():
    row = technique(workload_of(8), "prefix caching")
    assert row["saved_ms_per_10_pct_of_prompt_tokens"] == pytest.approx(10)
    assert technique(workload_of(8, prefill_ms=5), "prefix caching")["helps"] == "no"


def test_what_is_not_known_is_not_said():
    workload = workload_of(8, ceilings=())
    assert workload["ridge_batch"] is None
    assert "not known" in workload["ridge_batch_reason"]
    assert workload["batch_regime"] is None
    assert technique(workload, "speculative")["predicted_step_ms"] is None
