"""MFU, MBU and verdicts against published and derived figures; each names its source."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trace_analyze.analysis.models.find_model import (
    ModelShape,
    Quantisation,
    bytes_per_weight,
    kv_bytes_per_token,
    linear_maps,
    parameters_total,
)
from trace_analyze.analysis.models.load_model import load_model
from trace_analyze.analysis.work.aggregate import ratios

YI_34B = ModelShape(
    "Yi-34B", hidden=7168, layers=60, heads=56, kv_heads=8, head_dim=128, intermediate=20480, vocab=64000
)
LLAMA_2_70B = ModelShape(
    "Llama-2-70B", hidden=8192, layers=80, heads=64, kv_heads=8, head_dim=128, intermediate=28672, vocab=32000
)
A100_PCIE_GBPS, A100_SXM_GBPS, A100_TFLOPS = 1935, 2039, 312


def test_yi_34b_has_34_39_billion_parameters():
    assert parameters_total(YI_34B) == pytest.approx(34.39e9, rel=1e-3)


@pytest.mark.parametrize(
    ("tokens", "step_ms", "pct"),
    [
        (128, 48.09, 29.3),
        (256, 121.35, 23.3),
        (512, 105.58, 53.5),
        (1024, 214.30, 52.7),
        (2048, 366.03, 61.7),
        (4096, 757.60, 59.6),
        (8192, 1863.26, 48.5),
        (16384, 4407.50, 41.0),
    ],
)
def test_sarathi_prefill_mfu(tokens, step_ms, pct):
    """microsoft/sarathi-serve, osdi-experiments/figure-2/prefill.csv: Yi-34B on 2 A100-80GB, linear layers, per GPU."""
    ratio = ratios.mfu(2 * parameters_total(YI_34B) * tokens / 2, step_ms / 1e3, A100_TFLOPS)
    assert ratio.pct == pytest.approx(pct, abs=0.06)


@pytest.mark.parametrize(
    ("batch", "step_ms", "pct"),
    [
        (1, 46.80, 38.1),
        (2, 47.50, 37.7),
        (4, 48.85, 36.9),
        (8, 69.68, 26.3),
        (16, 77.25, 24.4),
        (32, 87.90, 22.6),
        (64, 127.81, 17.2),
        (128, 189.33, 13.8),
    ],
)
def test_sarathi_decode_mbu(batch, step_ms, pct):
    """osdi-experiments/figure-2/decode.csv: fp16 weights and the KV of 1,024 tokens a request, per GPU of two."""
    size = (2 * parameters_total(YI_34B) + batch * 1024 * kv_bytes_per_token(YI_34B)) / 2
    assert ratios.mbu(size, step_ms / 1e3, A100_PCIE_GBPS).pct == pytest.approx(pct, abs=0.06)


def test_databricks_example_is_half():
    """MosaicML, "LLM Inference Performance Engineering": 7B at 16 bit, 14 ms per token, 2 TB/s peak -> 50%."""
    assert ratios.mbu(7e9 * 2, 14e-3, 2000).pct == pytest.approx(50.0)


class TestGptFast:
    """pytorch-labs/gpt-fast README, 8x A100-80GB at batch 1: GB/s over tokens/s = bytes per token."""

    @pytest.mark.parametrize(
        ("model", "tokens_per_s", "gbps", "pct"),
        [("llama-2-7b", 104.9, 1397.31, 68.5), ("llama-3.1-8b", 93.89, 1410.76, 69.2)],
    )
    def test_16_bit_is_what_we_count_and_200_tokens_of_cache(self, model, tokens_per_s, gbps, pct):
        shape = load_model(model)
        weights = sum(2 * each.parameters for each in linear_maps(shape))
        size = weights + 200 * kv_bytes_per_token(shape)
        assert size / 1e9 == pytest.approx(gbps / tokens_per_s, rel=1e-3)
        assert ratios.mbu(size, 1 / tokens_per_s, A100_SXM_GBPS).pct == pytest.approx(pct, abs=0.1)

    @pytest.mark.parametrize(
        ("shape", "bits", "gb", "within"),
        [
            (load_model("llama-2-7b"), 8, 6.872, 1e-3),
            (load_model("llama-2-7b"), 4, 4.384, 3e-3),
            (LLAMA_2_70B, 8, 69.14, 2e-3),
            (LLAMA_2_70B, 4, 43.47, 1e-3),
        ],
    )
    def test_quantised_counts_scales_and_the_unquantised_table(self, shape, bits, gb, within):
        """Groups of 32 with a 16-bit scale and zero at 4 bit; the README's figure has the embedding table in it."""
        storage = Quantisation("gpt-fast", bits, group_size=32 if bits == 4 else -1, scale_bytes=4.0, excluded=())
        packed = replace(shape, quantisation=storage)
        size = sum(bytes_per_weight(packed, each.place) * each.parameters for each in linear_maps(packed))
        size += 2 * shape.vocab * shape.hidden
        assert size / 1e9 == pytest.approx(gb, rel=within)


class TestRefusals:
    def test_f9_is_refused_with_its_three_inputs(self):
        """users.md F9 (nsys-ai issue 385): 989e12 FLOP in 0.2709 s at 989 TFLOP/s reads 369%."""
        ratio = ratios.mfu(989e12, 0.2709, 989)
        assert ratio.pct is None
        assert "369%" in ratio.reason
        for part in ("FLOPs (9.89e+14)", "time (0.2709 s)", "peak (989 TFLOP/s)"):
            assert part in ratio.reason

    def test_a_boost_clock_explains_a_little(self):
        assert ratios.mfu(103, 1, 100e-12).pct == pytest.approx(103.0)
        assert "boost" in ratios.mfu(103, 1, 100e-12).reason
        assert ratios.mfu(103, 1, 100e-12, boost_pct=100.0).pct is None

    def test_l2_resident_is_not_a_bandwidth(self):
        """users.md M14 (TileGym PR 118): 64 MB at 13 TB/s on a GPU with 129 MB of L2."""
        ratio = ratios.mbu(64e6, 64e6 / 13e12, 8000, l2_bytes=129e6)
        assert ratio.pct is None
        assert ratio.l2_resident
        assert ratio.reason.startswith("l2_resident")

    def test_beyond_l2_the_inputs_are_named(self):
        ratio = ratios.mbu(640e6, 640e6 / 13e12, 8000, l2_bytes=129e6)
        assert ratio.pct is None
        assert "162%" in ratio.reason
        assert "bandwidth (8000 GB/s)" in ratio.reason

    def test_102_percent_is_noise_of_the_ceiling(self):
        """users.md M15 (VeloxQuant-MLX PR 293)."""
        assert ratios.mbu(1.02e9, 1e-3, 1000).pct == pytest.approx(102.0)

    def test_no_duration(self):
        assert ratios.mfu(1, 0, 100).pct is None
        assert ratios.mbu(1, 0, 100).pct is None


class TestVerdict:
    @pytest.mark.parametrize(
        ("seconds", "compute", "memory", "bound"),
        [
            (10e-3, 0.5e-3, 8e-3, "memory"),
            (10e-3, 7e-3, 1e-3, "compute"),
            (10e-3, 0.1e-3, 2.9e-3, "latency"),
            (10e-3, 0.1e-3, 3.1e-3, "memory"),
            (10e-3, None, 8e-3, "unknown"),
            (10e-3, 8e-3, None, "unknown"),
            (0.0, 1e-3, 1e-3, "unknown"),
        ],
    )
    def test_bound(self, seconds, compute, memory, bound):
        assert ratios.verdict(seconds, compute, memory).bound == bound

    def test_headroom_is_time_over_the_roofline(self):
        assert ratios.verdict(10e-3, 1e-3, 8e-3).headroom_ms == pytest.approx(2.0)

    def test_communication_has_none(self):
        assert ratios.verdict(10e-3, 1e-3, 1e-3, communication=True) == ratios.Verdict("communication", None)

    @given(st.floats(1e-6, 1), st.floats(1e-9, 1), st.floats(1e-9, 1))
    def test_memory_or_compute_agrees_with_the_ridge(self, seconds, compute, memory):
        found = ratios.verdict(seconds, compute, memory)
        if found.bound in ("memory", "compute"):
            assert (found.bound == "compute") == (compute > memory)


@given(st.floats(1e-3, 1e15), st.floats(1e-9, 1e3), st.floats(1e-3, 1e4))
def test_no_ratio_is_ever_clamped(work, seconds, peak):
    for ratio in (ratios.mfu(work, seconds, peak), ratios.mbu(work, seconds, peak)):
        if ratio.pct is None:
            assert ratio.reason
        else:
            assert ratio.pct <= 108.0
            assert ratio.pct < 100.0 or ratio.reason or ratio.pct == 100.0
