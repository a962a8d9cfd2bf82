"""Formulas against numbers worked out by hand or published; every row names its source."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trace_analyze.analysis.models.find_model import linear_maps
from trace_analyze.analysis.models.load_model import load_model
from trace_analyze.analysis.work.operators import formulas
from trace_analyze.analysis.work.operators.formulas import Attended, LatentHeads, OrdinaryHeads, Work

DEEPSEEK_V3 = LatentHeads(heads=128, nope=128, rope=64, value=128, latent=512)


class TestOneLayer:
    """The seed documents: a 4096 x 4096 layer in bf16 on an A100 80 GB, ridge 312 / 2.039 = 153."""

    def test_decode_of_one_token(self):
        work = formulas.gemm(1, 4096, 4096)
        assert work.flop == pytest.approx(33.5e6, rel=0.005)
        assert work.weights == pytest.approx(33.5e6, rel=0.005)
        assert work.flop / work.weights == 1.0
        assert work.flop / work.bytes == pytest.approx(0.9995, abs=1e-4)

    def test_prefill_of_512_tokens_by_both_conventions(self):
        work = formulas.gemm(512, 4096, 4096)
        assert work.flop == pytest.approx(17.2e9, rel=0.005)
        assert work.flop / work.weights == 512.0
        assert work.flop / work.bytes == pytest.approx(409.6)

    @pytest.mark.parametrize(("peak", "bandwidth", "ridge"), [(312e12, 2.039e12, 153), (989e12, 3.35e12, 295)])
    def test_ridges(self, peak, bandwidth, ridge):
        assert round(peak / bandwidth) == ridge


# arXiv 2402.16363 as re-run from hahnyuan/LLM-Viewer at 472f71f: Llama-2-7B on an A6000 (154.84 TFLOP/s, 768 GB/s),
# batch 1, sequence 2048, fp16, one layer. op -> (FLOP, bytes, intensity) of prefill, then of decode.
LLM_VIEWER = {
    "q_proj": ((68.72e9, 67.11e6, 1024), (33.55e6, 33.57e6, 0.9995)),
    "gate_proj": ((184.68e9, 152.04e6, 1215), (90.18e6, 90.21e6, 0.9997)),
    "qk_matmul": ((34.36e9, 301.99e6, 113.8), (16.78e6, 16.92e6, 0.9918)),
    "sv_matmul": ((34.36e9, 301.99e6, 113.8), (16.78e6, 16.92e6, 0.9918)),
    "softmax": ((671.1e6, 536.9e6, 1.25), (327.7e3, 262.1e3, 1.25)),
    "norm": ((58.72e6, 33.55e6, 1.75), (28.67e3, 16.38e3, 1.75)),
    "add": ((8.389e6, 33.55e6, 0.25), (4.096e3, 16.38e3, 0.25)),
}
HEADS, HEAD_DIM, SEQUENCE = 32, 128, 2048


def unfused(op: str, tokens: int) -> Work:
    """The table's unfused operations (no flash attention), which the analysis itself never uses."""
    scores = float(HEADS * tokens * SEQUENCE)
    queries, keys = float(tokens * HEADS * HEAD_DIM), float(SEQUENCE * HEADS * HEAD_DIM)
    return {
        "q_proj": formulas.gemm(tokens, 4096, 4096),
        "gate_proj": formulas.gemm(tokens, 4096, 11008),
        "qk_matmul": Work(2.0 * scores * HEAD_DIM, activations=2.0 * (queries + keys + scores)),
        "sv_matmul": Work(2.0 * scores * HEAD_DIM, activations=2.0 * (queries + keys + scores)),
        "softmax": Work(5.0 * scores, activations=2.0 * 2.0 * scores),
        "norm": Work(7.0 * tokens * 4096, activations=2.0 * 2.0 * tokens * 4096),
        "add": Work(1.0 * tokens * 4096, activations=2.0 * 2.0 * tokens * 4096),
    }[op]


@pytest.mark.parametrize("op", LLM_VIEWER)
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_llm_viewer_table(op, phase):
    flop, size, intensity = LLM_VIEWER[op][phase == "decode"]
    work = unfused(op, SEQUENCE if phase == "prefill" else 1)
    assert work.flop == pytest.approx(flop, rel=0.005)
    assert work.bytes == pytest.approx(size, rel=0.005)
    assert work.flop / work.bytes == pytest.approx(intensity, rel=0.005)


@pytest.mark.parametrize("op", LLM_VIEWER)
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_llm_viewer_bound(op, phase):
    """Reachable speed is min(peak, intensity x bandwidth): GEMMs of the prefill alone are bound by compute."""
    work = unfused(op, SEQUENCE if phase == "prefill" else 1)
    compute_bound = work.flop / work.bytes > 154.84e12 / 768e9
    assert compute_bound == (phase == "prefill" and op in ("q_proj", "gate_proj"))


def test_our_norm_moves_the_bytes_of_the_table():
    assert formulas.norm(SEQUENCE, 4096).bytes == pytest.approx(33.55e6, rel=0.005)


def test_flash_attention_prefill_turns_compute_bound():
    """Without the S x S terms the table's memory-bound attention passes the A6000's ridge of 201.6."""
    pairs = formulas.causal_pairs(2048, 2048 * 2048, 2048 * 2048)
    fused = formulas.attention(Attended(pairs, 2048, 2048), OrdinaryHeads(32, 32, 128))
    assert fused.flop / fused.bytes > 201.6


class TestAttention:
    def test_f10_decode_with_long_cache(self):
        """intel/sycl-tla PR 778: B16, Hq 80, Hkv 8, d 128, KV 1 + 10,240, bf16, 4.1408 ms."""
        length = 16 * 10241.0
        work = formulas.attention(Attended(formulas.decode_pairs(length, 16), 16, length), OrdinaryHeads(80, 8, 128))
        seconds = 4_140_800e-9
        assert work.kv == pytest.approx(671.2e6, rel=1e-3)
        assert work.bytes == pytest.approx(671.8e6, rel=1e-3)
        assert work.kv / seconds / 1e9 == pytest.approx(162.1, abs=0.05)
        assert work.flop / seconds / 1e12 == pytest.approx(1.621, abs=0.001)
        assert work.flop / work.kv == pytest.approx(10.0, abs=0.01)

    @pytest.mark.parametrize(
        ("queries", "length", "pairs"),
        [
            (1, 1, 1),  # a token sees itself
            (1, 10, 10),
            (4, 4, 10),  # 1 + 2 + 3 + 4
            (2, 5, 9),  # 4 + 5
            (3, 10, 27),  # 8 + 9 + 10
        ],
    )
    def test_causal_pairs(self, queries, length, pairs):
        assert formulas.causal_pairs(queries, queries * length, queries * queries) == pairs

    def test_rectangle_counts_a_fresh_prompt_about_twice(self):
        q = 2000.0
        ratio = formulas.rectangle_pairs(q * q) / formulas.causal_pairs(q, q * q, q * q)
        assert ratio == pytest.approx(2.0, rel=1e-3)

    def test_decode_pairs_of_speculative_width(self):
        # two requests of length 10 and 20 after a step of width 3: 8+9+10 and 18+19+20
        assert formulas.decode_pairs(30, 2, 3) == 27 + 57

    @pytest.mark.parametrize(
        ("queries", "length", "window", "pairs"),
        [(1, 10, 4, 4), (1, 3, 4, 3), (4, 4, 2, 1 + 2 + 2 + 2), (3, 5, 4, 3 + 4 + 4), (5, 5, 100, 15)],
    )
    def test_windowed_pairs(self, queries, length, window, pairs):
        assert formulas.windowed_pairs(queries, length, window) == pairs

    @given(st.integers(1, 300), st.integers(0, 300), st.integers(1, 400))
    def test_windowed_pairs_equal_the_sum_over_rows(self, queries, cached, window):
        length = queries + cached
        rows = sum(min(position, window) for position in range(cached + 1, length + 1))
        assert formulas.windowed_pairs(queries, length, window) == rows
        if window >= length:
            assert rows == formulas.causal_pairs(queries, queries * length, queries**2)

    def test_unknown_length_stays_unknown(self):
        work = formulas.attention(Attended(np.nan, 8, np.nan), OrdinaryHeads(32, 8, 128))
        assert np.isnan(work.flop)
        assert np.isnan(work.bytes)


class TestLatentAttention:
    """DeepSeek-V3 per layer: H 128, n 128, r 64, c 512, v 128."""

    def test_absorbed_decode(self):
        work = formulas.mla_attention_absorbed(Attended(1000, 1, 1000), DEEPSEEK_V3)
        assert work.flop == 2 * 128 * (2 * 512 + 64) * 1000
        assert work.kv == 2 * (512 + 64) * 1000

    def test_decompressed_prefill(self):
        work = formulas.mla_attention_decompressed(Attended(5050, 100, 100), DEEPSEEK_V3)
        assert work.flop == 2 * 128 * (128 + 64 + 128) * 5050
        assert work.kv == 2 * (512 + 64) * 100

    def test_absorb(self):
        work = formulas.mla_absorb(4, heads=128, head_width=128, latent=512, activation_bytes=2)
        assert work.flop == 2 * 4 * 128 * 128 * 512
        assert work.weights == 2 * 128 * 128 * 512


class TestExperts:
    @pytest.mark.parametrize(
        ("experts", "per_token", "tokens", "expected"),
        [(8, 8, 1, 8), (128, 8, 1, 8), (128, 8, 16, 82.4), (8, 2, 1, 2), (256, 8, 100_000, 256)],
    )
    def test_expected_distinct(self, experts, per_token, tokens, expected):
        """E (1 - (1 - k/E)^T): 8 of 128 for one token of Qwen3-30B-A3B, 82.4 for sixteen."""
        assert formulas.expected_distinct_experts(experts, per_token, tokens) == pytest.approx(expected, abs=0.05)

    @given(st.integers(1, 256), st.integers(1, 64), st.integers(1, 10_000))
    def test_never_more_than_there_are_nor_than_routed(self, experts, per_token, tokens):
        per_token = min(per_token, experts)
        distinct = formulas.expected_distinct_experts(experts, per_token, float(tokens))
        assert distinct <= experts * (1 + 1e-12)
        assert distinct <= tokens * per_token * (1 + 1e-9)

    def test_users_m09_routed_and_shared(self):
        """40 layers x 8 experts x 3 x 512 x 2048 at one byte = 1.007 GB routed, one shared expert 0.126 GB."""
        one = formulas.expert_gemm(1, 2048, 3 * 512, experts=64, per_token=8, weight_bytes=1)
        assert 40 * one.weights == pytest.approx(1.007e9, rel=1e-3)
        assert 40 * formulas.gemm(1, 2048, 3 * 512, weight_bytes=1).weights == pytest.approx(0.126e9, rel=2e-3)


class TestWholeSteps:
    """Llama-3.1-8B, facts/engines.md E.4: the seeds' bounds, made exact."""

    def layer_parameters(self):
        return sum(each.parameters for each in linear_maps(load_model("llama-3.1-8b")) if each.place != "lm_head")

    def test_decode_step_reads_15_gb(self):
        weights = sum(
            formulas.gemm(1, each.inputs, each.outputs).weights * each.layers
            for each in linear_maps(load_model("llama-3.1-8b"))
        )
        assert weights == pytest.approx(15.01e9, rel=1e-3)
        assert weights / 3.35e12 == pytest.approx(4.48e-3, rel=1e-3)

    def test_prefill_of_2000_tokens(self):
        pairs = formulas.causal_pairs(2000, 2000 * 2000, 2000 * 2000)
        attention = 32 * formulas.attention(Attended(pairs, 2000, 2000), OrdinaryHeads(32, 8, 128)).flop
        layers = 2.0 * 2000 * self.layer_parameters()
        head = formulas.gemm(1, 4096, 128256).flop
        assert layers == pytest.approx(2.792e13, rel=1e-3)
        assert attention == pytest.approx(1.049e12, rel=1e-3)
        assert layers + attention + head == pytest.approx(2.897e13, rel=1e-3)

    def test_gemm_intensity_near_the_ridge(self):
        """M = 256 -> 228..241, M = 512 -> 410..453 over the layer's matrices."""
        maps = [each for each in linear_maps(load_model("llama-3.1-8b")) if each.place != "lm_head"]
        for rows, low, high in ((256, 227, 242), (512, 409, 454)):
            works = [formulas.gemm(rows, each.inputs, each.outputs) for each in maps]
            found = [work.flop / work.bytes for work in works]
            assert low <= min(found)
            assert max(found) <= high


@given(st.floats(1, 1e5), st.floats(1, 1e5), st.floats(1, 1e5))
def test_gemm_intensity_is_below_the_weights_only_convention(rows, inputs, outputs):
    work = formulas.gemm(rows, inputs, outputs)
    assert work.flop / work.bytes <= (work.flop / work.weights) * (1 + 1e-12)
