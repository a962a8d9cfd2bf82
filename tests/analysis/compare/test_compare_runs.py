"""Comparisons of made-up profiles: what must be found, what must not, and what cannot be compared."""

import random

import numpy as np
import pytest
from msgspec import structs

from trace_analyze.analysis.compare.adjusted_difference import adjusted_difference
from trace_analyze.analysis.compare.compare_runs import compare_profiles, summary_delta
from trace_analyze.analysis.compare.run_profile import PhaseProfile, Profile, RunIdentity, profile_from_json

IDENTITY = RunIdentity(
    gpu_name="NVIDIA A100-SXM4-80GB",
    devices=1,
    model="Llama-3.1-8B",
    weight_dtype="bf16",
    tensor_parallel=1,
    graph_trace_mode="node",
    engine="vllm",
)


def decode_run(
    name, *, seed, steps=300, attention=1.0, gemm=1.0, batch=(24, 32), kv_per_request=2000, identity=IDENTITY
):
    """Steps of 8 ms of GEMM and 1 ms per 32k tokens of KV, 1% jitter."""
    rng = random.Random(seed)
    batches = np.array([rng.choice(range(*batch)) for _ in range(steps)], dtype=float)
    kv = batches * kv_per_request * np.array([rng.uniform(0.8, 1.2) for _ in range(steps)])
    noise = lambda: np.array([rng.gauss(1, 0.01) for _ in range(steps)])  # noqa: E731
    parts = {"gemm": 8.0 * gemm * noise(), "attention": kv / 32_000 * attention * noise()}
    phase = PhaseProfile(
        duration_ms=parts["gemm"] + parts["attention"] + 0.2,
        tokens=batches,
        batch=batches,
        kv_tokens=kv,
        op_classes=parts,
        kernels={"nvjet_tst": parts["gemm"], "flash_fwd_splitkv_kernel": parts["attention"]},
    )
    summary = {"decode_step_ms": {"n": steps, "p50": float(np.median(phase.duration_ms))}, "stall_ms": 0.0}
    return Profile(name, identity, "ok", {"decode": phase}, {"nvjet_tst": 1.0, "flash": 1.0}, summary)


def test_other_seed_is_no_change():
    for seed in range(10):
        result = compare_profiles(decode_run("a", seed=seed), decode_run("b", seed=seed + 100))
        assert result.verdict == "no change", result.reasons
        assert result.exit_code == 0


def test_slower_decode_attention_is_found_and_named():
    result = compare_profiles(decode_run("a", seed=1), decode_run("b", seed=2, attention=1.12))
    assert result.verdict == "regression"
    assert result.exit_code == 1
    attention = next(c for c in result.changes if c.name == "attention")
    assert attention.counts
    assert attention.difference.change_pct == pytest.approx(12, abs=0.5)
    assert any("attention" in reason for reason in result.reasons)
    assert not next(c for c in result.changes if c.name == "gemm").counts


def test_more_kv_is_not_a_regression():
    """30% longer contexts make slower steps; at equal KV nothing changed."""
    before = decode_run("a", seed=1)
    after = decode_run("b", seed=2, kv_per_request=2600)
    assert np.mean(after.phases["decode"].duration_ms) > 1.04 * np.mean(before.phases["decode"].duration_ms)
    assert compare_profiles(before, after).verdict == "no change"


def test_faster_gemm_is_an_improvement():
    result = compare_profiles(decode_run("a", seed=1), decode_run("b", seed=2, gemm=0.9))
    assert result.verdict == "improvement"
    assert result.exit_code == 0


def test_min_change_decides_what_counts():
    before, after = decode_run("a", seed=1), decode_run("b", seed=2, attention=1.12)
    assert compare_profiles(before, after, min_change_pct=20).verdict == "no change"


def test_few_noisy_steps_are_inconclusive():
    few = compare_profiles(decode_run("a", seed=1, steps=4), decode_run("b", seed=2, steps=4))
    assert few.verdict == "inconclusive"
    assert few.exit_code == 3


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"gpu_name": "NVIDIA H100 80GB HBM3"}, "GPU"),
        ({"weight_dtype": "fp8"}, "data type"),
        ({"devices": 2}, "devices"),
    ],
)
def test_other_identity_is_not_comparable(change, word):
    result = compare_profiles(
        decode_run("a", seed=1), decode_run("b", seed=2, identity=structs.replace(IDENTITY, **change))
    )
    assert result.verdict == "not comparable"
    assert result.exit_code == 3
    assert word in result.reasons[0]


def test_other_batch_is_not_comparable():
    result = compare_profiles(decode_run("a", seed=1), decode_run("b", seed=2, batch=(120, 128)))
    assert result.verdict == "not comparable"
    assert "decode batch" in result.reasons[0]


def test_empty_side_is_inconclusive_and_named():
    """An empty capture must never read as faster."""
    empty = Profile("empty.sqlite", None, "could_not_look", {}, {}, {}, ("no kernels",))
    result = compare_profiles(decode_run("a", seed=1), empty)
    assert result.verdict == "inconclusive"
    assert result.exit_code == 3
    assert "empty.sqlite" in result.reasons[0]


def test_new_and_vanished_kernels():
    before, after = decode_run("a", seed=1), decode_run("b", seed=2)
    after.kernel_ms["triton_new"] = 0.5
    del after.kernel_ms["flash"]
    result = compare_profiles(before, after)
    assert [n for n, _ in result.new_kernels] == ["triton_new"]
    assert [n for n, _ in result.vanished_kernels] == ["flash"]


def test_adjusted_difference_by_hand():
    """y = 2 + 3 x, and 0.5 more after: the mean before is 2 + 3 * 4.5 = 15.5."""
    x = np.arange(10, dtype=float).reshape(-1, 1)
    before, after = 2 + 3 * x[:, 0], 2.5 + 3 * x[:, 0]
    result = adjusted_difference(before, after, x, x)
    assert result.before == pytest.approx(15.5, abs=0.1)
    assert result.after - result.before == pytest.approx(0.5, abs=0.05)


def test_delta_is_null_where_either_side_is():
    delta = summary_delta(
        {"a": 10.0, "b": None, "c": 0, "d": {"p50": 4.0}}, {"a": 11.0, "b": 1.0, "c": 3, "d": {"p50": 5.0}}
    )
    assert delta == {"a": pytest.approx(10.0), "b": None, "c": None, "d": {"p50": 25.0}}


@pytest.mark.parametrize("text", ['{"version": 0}', '{"version": 1, "phases": {}, "identity": {"devices": "two"}}'])
def test_a_profile_of_other_making_is_refused(text):
    with pytest.raises(ValueError, match="profile"):
        profile_from_json(text)
