"""The step-time model: coefficients it must find back, chunk sizes it never saw, and when it refuses."""

import numpy as np
import pytest

from trace_analyze.analysis.advice.ridge_batch import ridge_batch
from trace_analyze.analysis.advice.step_model import StepFacts, StepModel, fit_step_model
from trace_analyze.analysis.time.group_steps import split_groups
from trace_analyze.fixtures.hand_frames import HandRun, from_truth, model_of
from trace_analyze.fixtures.simulator.config import RunConfig
from trace_analyze.fixtures.simulator.scheduler import Request
from trace_analyze.fixtures.simulator.serving import simulate


class Ceiling:
    memory_bandwidth_gbps = 2039.0
    peak_tflops = {"bf16": 312.0, "int8": 624.0}  # noqa: RUF012


def groups_of(run: HandRun):
    made = run.build()
    return list(split_groups(made.steps, made.groups))


def known_run(sizes, *, outlier=None) -> HandRun:
    """Steps of 2 ms + 0.05 ms x max(tokens, 100) + 1e-6 ms per pair + 1e-4 ms per KV token."""
    run = HandRun()
    for k in range(60):
        kv = 8000 + 8 * k
        run.step("decode", 7 + 1e-4 * kv, decode_requests=8, decode_tokens=8, kv_tokens=kv, prefill_kv_tokens=0)
    for k, size in enumerate(sizes):
        pairs, ms = size * (size + 500.0), 2 + 0.05 * max(size + 8, 100) + 1e-6 * size * (size + 500.0) + 0.8
        facts = {"prefill_tokens": size, "prefill_qk": pairs, "prefill_qq": size**2, "prefill_kv_tokens": size + 500}
        ms = outlier if outlier and k == 0 else ms
        run.step("mixed", ms, decode_requests=8, decode_tokens=8, kv_tokens=8000 + size + 500, **facts)
    return run


def test_it_finds_the_coefficients_back_and_ignores_a_warm_up_outlier():
    # figures.md, section 1: the first step of a published file is an outlier that must not bend the curve
    model = fit_step_model(groups_of(known_run([256, 300, 512, 700, 1024, 1500, 2048, 2048], outlier=250)), 100)
    assert isinstance(model, StepModel)
    assert model.predict(prefill_tokens=1024, prefill_qk=1024 * 1524, decode_tokens=8, decode_kv=8000) == pytest.approx(
        2 + 0.05 * 1032 + 1e-6 * 1024 * 1524 + 0.8, rel=0.02
    )
    assert model.predict(decode_tokens=8, decode_kv=8000, decode_requests=8) == pytest.approx(7.8, rel=0.02)
    assert model.median_error_pct["prefill"] < 2


def test_prompts_of_which_only_the_padded_size_is_known_keep_their_rows():
    run = HandRun()
    run.step("decode", 10, decode_requests=8, decode_tokens=8, padded_tokens=8)
    run.step("mixed", 60, decode_requests=8, decode_tokens=8, padded_tokens=1024)
    run.step("prefill", 50, padded_tokens=2048)
    run.step("prefill", 40, prefill_tokens=700, padded_tokens=704)
    facts = StepFacts.of(groups_of(run))
    assert facts.has_prefill.tolist() == [False, True, True, True]
    assert np.isnan(facts.prefill_tokens).tolist() == [False, True, True, False]
    assert facts.tokens.tolist() == [8, 1024, 2048, 704]
    assert facts.prefill_rows.tolist() == [0, 1016, 2048, 700]


@pytest.mark.parametrize("gpu", ["a100-80gb", "h100"])
@pytest.mark.parametrize(
    "options",
    [{}, {"engine": "sglang", "policy": "separate", "graphs": "full", "markers": "sglang"}],
    ids=["mixed", "separate"],
)
def test_it_predicts_a_chunk_size_that_was_not_in_the_capture(gpu, options):
    live = tuple(Request(0, 300 + 40 * k, 120) for k in range(8))
    asked = tuple(Request(round((k + 1) * 60e6), (700, 1500, 3000, 5200)[k % 4], 40) for k in range(10))
    ridge = {"a100-80gb": 153, "h100": 295}[gpu]

    def steps(chunk):
        config = RunConfig("fit", live + asked, gpu=gpu, max_batched_tokens=chunk, chunk=chunk, **options)
        made = from_truth(simulate(config))
        return list(split_groups(made.steps, made.groups))

    model = fit_step_model(steps(2048), ridge)
    assert isinstance(model, StepModel)
    for chunk in (512, 1024, 4096):
        seen = StepFacts.of(steps(chunk))
        seen = seen.take(seen.has_prefill & (seen.prefill_tokens > 0.8 * chunk))
        predicted = model.predict(
            prefill_tokens=seen.tokens - seen.decode_tokens,
            prefill_qk=seen.prefill_qk,
            decode_tokens=seen.decode_tokens,
            decode_requests=seen.decode_requests,
            decode_kv=seen.decode_kv,
        )
        assert len(seen.ms) >= 3
        assert np.median(predicted / seen.ms) == pytest.approx(1, abs=0.10)
        assert (np.abs(predicted / seen.ms - 1) < 0.12).all()


def test_it_refuses_what_it_cannot_know():
    few = HandRun().step("decode", 10, times=40, decode_requests=8, decode_tokens=8)
    few.step("mixed", 250, decode_requests=8, decode_tokens=8, prefill_tokens=2048)
    assert "too few" in fit_step_model(groups_of(few))
    unknown = HandRun().step("decode", 10, times=40).step("prefill", 100, times=9)
    assert "too few" in fit_step_model(groups_of(unknown))
    same = HandRun().step("prefill", 100, times=20, prefill_tokens=2048)
    assert "slope" in fit_step_model(groups_of(same))
    noise = HandRun()
    for k in range(40):
        noise.step("prefill", 10 + 290 * ((k * 7919) % 40) / 40, prefill_tokens=100 + 50 * k)
    assert "poor" in fit_step_model(groups_of(noise))


def test_ridge_batch():
    # a weight of 2 bytes: 153 tokens on an A100 80 GB; int8 halves the bytes and doubles the peak; int4 computes in bf16
    assert ridge_batch([Ceiling()], model_of("bf16")) == pytest.approx(153.0, abs=0.05)
    assert ridge_batch([Ceiling()], model_of("int8")) == pytest.approx(153.0, abs=0.05)
    assert ridge_batch([Ceiling()], model_of("int4")) == pytest.approx(153 * 0.53 / 2, abs=0.05)
    assert ridge_batch([], None) is None


def test_a_published_curve_with_its_warm_up_outlier():
    # figures.md, section 1 (Yi-34B, TP2, A100): step ms of prefill-only and decode-only steps; the first 256-token step is
    # a warm-up outlier of 121.35 ms. The curve without its 4,096-token point (757.60 ms) must still give that point.
    prefill = {128: 48.09, 256: 60.0, 512: 105.58, 1024: 214.30, 2048: 366.03, 8192: 1863.26, 16384: 4407.50}
    decode = {1: 46.80, 2: 47.50, 4: 48.85, 8: 69.68, 16: 77.25, 32: 87.90, 64: 127.81, 128: 189.33}
    run = HandRun().step("prefill", 121.35, prefill_tokens=256, prefill_qk=256.0**2, prefill_qq=256.0**2)
    for _ in range(3):
        for tokens, ms in prefill.items():
            run.step("prefill", ms, prefill_tokens=tokens, prefill_qk=float(tokens) ** 2, prefill_qq=float(tokens) ** 2)
        for batch, ms in decode.items():
            run.step("decode", ms, decode_requests=batch, decode_tokens=batch, kv_tokens=1024 * batch)
    model = fit_step_model(groups_of(run), 153)
    assert isinstance(model, StepModel)
    assert model.predict(prefill_tokens=4096, prefill_qk=4096.0**2) == pytest.approx(757.60, rel=0.10)
    assert model.predict(prefill_tokens=256, prefill_qk=256.0**2) == pytest.approx(60, rel=0.15)
