"""Work of an unknown model, bounded by tiles and grids: by hand, and on simulated runs whose model is in no table."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trace_analyze.analysis.kernels.classify import classify_names
from trace_analyze.analysis.records.trace import ServingFacts
from trace_analyze.analysis.work.assign_work import computed_work, recognise_model
from trace_analyze.analysis.work.kernel_work import NAME, KernelWork, gemm_rows
from trace_analyze.analysis.work.kv_lengths.step_kv_lengths import kv_lengths
from trace_analyze.analysis.work.model_choice import choose_model as choice
from trace_analyze.analysis.work.operators.gemm_orders import PLACE_CODE
from trace_analyze.analysis.work.unknown_model.matrix_bounds import WidthBounds
from trace_analyze.analysis.work.unknown_model.tile_bounds import (
    Heads,
    LayerWidths,
    WidthContradiction,
    bound_by_tiles,
    roundest,
)
from trace_analyze.analysis.work.unknown_model.tile_grids import common, outputs_of_launch, union
from trace_analyze.analysis.work.unknown_model.tile_rules import tile_rules


class TestOneLaunch:
    """Intervals of outputs, by hand."""

    def test_a_decode_launch_leaves_the_side_of_its_tile_open(self):
        """37 tokens lie in one tile row either way, so 18 blocks are 18 x 128 or 18 x 64 outputs at most."""
        assert outputs_of_launch(37, (18, 1), (128, 64)) == ((17 * 64 + 1, 18 * 64), (17 * 128 + 1, 18 * 128))

    def test_a_square_tile_leaves_one_interval(self):
        assert outputs_of_launch(8, (36, 1), (64, 64)) == ((2241, 2304),)

    def test_a_prompt_tells_which_way_the_tile_lies(self):
        """2,000 tokens in tiles of 128 are 16 rows, in tiles of 256 they are 8: (9, 16) blocks are both 9 x 256 outputs
        and, turned and with a swizzle of two, 17 or 18 x 128. (9, 17) would be none."""
        assert outputs_of_launch(2000, (9, 16), (256, 128)) == ((2049, 2304),)
        assert outputs_of_launch(2000, (9, 17), (256, 128)) == ()

    def test_a_swizzle_turns_rows_of_tiles_into_columns(self):
        """500 tokens are 4 rows of 128; four at a time they make 4 x 18 columns of one row."""
        assert (2177, 2304) in outputs_of_launch(500, (72, 1), (128, 128))

    def test_a_real_launch(self):
        """A text encoder's 4,096 to 10,240 outputs in tiles of 64 x 256, 256 along the outputs, in a public capture."""
        found = outputs_of_launch(64, (1, 40), (64, 256))
        assert any(low <= 10240 <= high for low, high in found)

    @given(
        outputs=st.integers(1, 40_000),
        tokens=st.integers(1, 9000),
        tile=st.sampled_from([(64, 64), (128, 64), (256, 128), (128, 256), (96, 64), (32, 128)]),
        log=st.integers(0, 3),
        turned=st.booleans(),
        first=st.sampled_from(["outputs", "tokens"]),
    )
    def test_what_was_launched_is_always_among_what_is_possible(self, outputs, tokens, tile, log, turned, first):
        along_outputs, along_tokens = tile[::-1] if turned else tile
        columns, rows = -(-outputs // along_outputs), -(-tokens // along_tokens)
        if first == "tokens":
            columns, rows = rows, columns
        swizzle = 2**log
        if swizzle >= 2 * rows:  # more than the next power of two would launch empty blocks only
            swizzle = 1
        grid = (columns * swizzle, -(-rows // swizzle))
        assert any(low <= outputs <= high for low, high in outputs_of_launch(tokens, grid, tile))


def test_launches_of_one_matrix_narrow_each_other():
    """2,304 outputs: open by a factor of two in decode, within 128 of 2,304 in the prompt, 64 with the small tile."""
    decode = outputs_of_launch(37, (18, 1), (128, 64))
    prompt = outputs_of_launch(2000, (9, 16), (256, 128))
    few = outputs_of_launch(8, (36, 1), (64, 64))
    assert common(decode, prompt) == ((2177, 2304),)
    assert common(common(decode, prompt), few) == ((2241, 2304),)
    assert common(few, ((1, 2240),)) == ()
    assert union([(5, 9), (1, 3), (4, 4), (20, 30)]) == ((1, 9), (20, 30))


@pytest.mark.parametrize(
    ("low", "high", "width"),
    [(2241, 2304, 2304), (13_761, 13_824, 13_824), (4033, 4096, 4096), (7169, 7424, 7168 + 256)],
)
def test_the_roundest_width_is_counted(low, high, width):
    assert roundest(low, high) == width


WIDTHS = {
    "qkv": ((3777, 3840),),
    "o": ((2177, 2304),),
    "down": ((2241, 2304),),
    "gate_up": ((13_761, 13_824),),
}
EIGHTEEN = Heads({"query": 18}, (104, 112, 120, 128))


class TestChain:
    """Hidden 2,304; 18 query and 6 KV heads of 128; MLP 6,912."""

    def test_outputs_of_one_gemm_are_inputs_of_others(self):
        found = LayerWidths(WIDTHS, EIGHTEEN, gated=True).bounds(((64_961, 65_024),))
        assert found.outputs["o"] == found.inputs["qkv"] == found.inputs["lm_head"] == WidthBounds(2241, 2304, 2304)
        assert found.inputs["down"] == WidthBounds(6881, 6912, 6912)
        assert found.outputs["gate_up"] == WidthBounds(13_761, 13_824, 13_824)
        # of 18 heads and dimensions from 104 to 128, only (18 + 2 x 6) x 128 lies in the bounds of qkv
        assert found.outputs["qkv"] == WidthBounds(3840, 3840, 3840)
        assert found.inputs["o"] == WidthBounds(2304, 2304, 2304)
        assert set(np.flatnonzero(found.close())) == {PLACE_CODE[p] for p in ("qkv", "o", "gate_up", "down", "lm_head")}
        down = PLACE_CODE["down"]
        assert found.weights("low")[down] == 2241 * 6881
        assert found.weights("high")[down] == 2304 * 6912  # 3.3% apart

    def test_bounds_that_are_apart_are_not_counted(self):
        """128 of 2,304 are 5.9%."""
        found = LayerWidths({**WIDTHS, "down": ((2177, 2304),)}, EIGHTEEN, gated=True).bounds(None)
        assert not found.close().any()
        assert found.weights("high")[PLACE_CODE["qkv"]] == 3840 * 2304

    def test_without_a_word_on_the_gate_the_mlp_is_open_by_a_factor_of_two(self):
        found = LayerWidths(WIDTHS, EIGHTEEN, gated=None).bounds(None)
        assert found.inputs["down"] == WidthBounds(6881, 13_824, 8192)
        assert not found.close()[PLACE_CODE["down"]]
        assert found.close()[PLACE_CODE["gate_up"]]

    def test_without_a_gate_the_mlp_is_as_wide_as_its_gemm(self):
        assert LayerWidths(WIDTHS, EIGHTEEN, gated=False).bounds(None).inputs["down"] == WidthBounds(
            13_761, 13_824, 13_824
        )

    def test_without_heads_attention_is_somewhere_in_qkv(self):
        found = LayerWidths(WIDTHS, None, gated=True).bounds(None)
        assert (found.inputs["o"].low, found.inputs["o"].high) == (945, 3840)
        assert not found.close()[PLACE_CODE["o"]]

    def test_heads_of_several_kernels_together(self):
        """24 query and KV heads on the rotary kernel's grid, 6 KV heads on that of attention."""
        heads = Heads({"both": 24, "kv": 6}, (128,))
        assert heads.possible() == [(18, 6, 128)]
        assert LayerWidths(WIDTHS, heads, gated=True).bounds(None).inputs["o"] == WidthBounds(2304, 2304, 2304)

    @pytest.mark.parametrize(
        ("changed", "heads", "said"),
        [
            ({"down": ((4033, 4096),)}, None, "o and down"),
            ({"gate_up": ()}, None, "gate_up do not fit"),
            ({"k": ((513, 576),), "v": ((4033, 4096),)}, None, "k and v"),  # latent attention read as ordinary
            ({"qkv": ((6081, 6144),)}, EIGHTEEN, "heads"),  # (2 x 18 + 2 x 6) x 128: an output gate beside q
        ],
    )
    def test_what_does_not_meet_is_a_contradiction(self, changed, heads, said):
        with pytest.raises(WidthContradiction, match=said):
            LayerWidths({**WIDTHS, **changed}, heads, gated=True)


@pytest.mark.parametrize(
    ("name", "gated"),
    [
        ("triton_poi_fused_mul_silu_slice_1", [True]),
        ("triton_poi_fused_gelu_mul_slice_3", [True]),
        ("triton_poi_fused__to_copy_gelu_mul_split_2", [True]),
        # GELU without a gate, times the scale of the 8-bit output: the MLP is as wide as its first GEMM
        ("triton_poi_fused__to_copy_clamp_gelu_mul_reciprocal_0", []),
        ("triton_poi_fused_gelu_0", []),
    ],
)
def test_a_product_behind_gelu_is_a_gate_only_where_halves_are_named(name, gated):
    assert [rule.gated for rule in tile_rules().mlp if pl.Series([name]).str.contains(rule.regex)[0]] == gated


@pytest.mark.parametrize("section", ["block_per_tile", "heads", "mlp"])
def test_rules_match_their_examples_and_no_persistent_kernel(section):
    rules = getattr(tile_rules(), section)
    plain = pl.Series([rule.example for rule in rules]).str.replace_all(r"\((?:unsigned )?int\)", "")
    for rule, example in zip(rules, plain, strict=True):
        assert rule.source
        assert pl.Series([example]).str.contains(rule.regex)[0], rule.name
        assert not pl.Series(["nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT"]).str.contains(rule.regex)[0]
        assert not pl.Series(["sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x256x64_x"]).str.contains(rule.regex)[
            0
        ]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("_lora_expand_kernel", "LoRA"),
        ("_sgemm_lora_a_kernel", "LoRA"),
        ("_sgmv_expand_slice_kernel", "LoRA"),
        ("chunk_gated_delta_rule_fwd_kernel_h_blockdim64", "linear attention"),
        ("_chunk_scan_fwd_kernel", "linear attention"),
        ("void flash::flash_fwd_splitkv_mla_kernel<Flash_fwd_kernel_traits_mla<576, 64, 64, 8>>", "latent"),
        ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn", None),
        ("void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4>>", None),
    ],
)
def test_kernels_of_layers_that_are_another_chain(name, said):
    facts = classify_names(pl.DataFrame({"name_id": [0], "name": [name]}, schema={"name_id": pl.UInt32, "name": str}))
    text = pl.Series([f"{facts['library'][0] or ''} {facts['short_name'][0] or ''}"])
    found = [rule.says for rule in tile_rules().no_chain if text.str.contains(rule.regex)[0]]
    assert len(found) == (said is not None)
    assert said is None or said in found[0]


@pytest.fixture
def nobody(monkeypatch):
    """No table of models: nothing is recognised."""
    monkeypatch.setattr(choice, "known_models", dict)


def silent(run):
    """The run without its command line."""
    return replace(run, trace=replace(run.trace, capture=replace(run.trace.capture, serving=ServingFacts())))


def assigned(run) -> KernelWork:
    """Work of every kernel, with its bounds."""
    chosen = recognise_model(run.given)
    assert chosen.shape is None
    return computed_work(run.given, chosen, kv_lengths(run.phases.steps))


TILED = [
    "vllm-unlisted-2b-a100-eager",
    "vllm-unlisted-2b-a100",
    "vllm-unlisted-2b-a100-wide-batch",
    "vllm-llama-8b-a100-async",
    "vllm-llama-8b-a100-lossy-2022",
    "vllm-llama-8b-a100-2020-unmarked",
    "vllm-llama-1b-l4-launch-bound",
    "vllm-llama-8b-a100-int4-unmarked",
    "vllm-llama-8b-l40s-fp8-async",
    "sglang-qwen3-8b-a100-roofline",
    "trtllm-llama-8b-a100-unmarked",
]


@pytest.mark.parametrize("name", TILED)
def test_the_truth_lies_within_the_bounds_and_what_is_counted_too(prepared, nobody, name):
    run = silent(prepared(name))
    work = assigned(run)
    assert work.bounds is not None
    kernels = run.phases.kernels.with_columns(
        row=pl.int_range(pl.len()),
        name=run.trace.names["name"].gather(run.phases.kernels["name_id"]),
        device=run.trace.devices["device"].gather(run.phases.kernels["device_index"]),
    )
    keys = ["start_ns", "device", "name"]
    truth = run.run.truth.kernels.filter(pl.col("recorded")).unique(keys)
    both = kernels.join(truth.select(*keys, true_flop="flop", true_weights="bytes_weights"), on=keys)
    rows, true = both["row"].to_numpy(), both["true_flop"].to_numpy()
    inside = np.append(work.countable, False)[work.step[rows]] & ~work.helper[rows]
    rows, true, weights = rows[inside], true[inside], both["true_weights"].to_numpy()[inside]
    useful, _ = gemm_rows(work, rows)
    low, high = (2.0 * useful * work.bounds.weights(end)[work.place[rows]] for end in ("low", "high"))
    bounded = ~np.isnan(low)
    assert ((low <= true) & (true <= high))[bounded].all()
    named = work.source[rows] == NAME
    counted = named & bounded
    flop = work.flop[rows]
    assert ((low <= flop) & (flop <= high) & (high <= 1.05 * low))[counted].all()
    assert (np.abs(work.weights[rows] - weights) <= 0.05 * weights)[named].all()


def test_an_unlisted_model_has_ratios(prepared):
    """Exact here: every width of the model is the roundest within its bounds. A step reads 3.15 GB of weights."""
    run = prepared("vllm-unlisted-2b-a100")
    result = run.work()
    assert result.model["name"] is None
    assert result.model["decode_bytes_are_lower_bound"] is True
    assert any("qkv 3,840 x 2,241 to 2,304; o 2,241 to 2,304 x 2,304" in note for note in result.model["notes"])
    kernels = run.against_truth(result).filter((pl.col("op_class") == "gemm") & (pl.col("true_flop") > 0))
    assert set(kernels["work_source"].cast(pl.String)) == {"name"}
    for own in ("flop", "bytes_weights"):
        assert ((kernels[own] - kernels[f"true_{own}"]).abs() <= 1e-9 * kernels[f"true_{own}"]).all()
    assert result.trust["gpu_time_by_work_source"]["name"] > 0.7
    decode = result.steps.filter((pl.col("phase") == "decode") & ~pl.col("partial"))
    layer = 3840 * 2304 + 2304 * 2304 + 13_824 * 2304 + 2304 * 6912
    assert decode["bytes_weights"].median() == pytest.approx(2 * (23 * layer + 65_024 * 2304), rel=1e-9)
    assert decode["mbu_pct"].null_count() == 0
    gemm = result.op_classes.row(
        by_predicate=(pl.col("op_class") == "gemm") & (pl.col("phase") == "decode"), named=True
    )
    assert gemm["work_source"] == "name"
    assert 60 < gemm["mbu_pct"] < 95
    assert "MFLOP per launch by tile and grid" in gemm["reason"]
    point = next(p for p in result.roofline["points"] if (p["op_class"], p["phase"]) == ("gemm", "decode"))
    assert 6 < point["arithmetic_intensity"] < 8  # one to eight requests, 16-bit weights


def test_wide_bounds_are_said_and_not_counted(prepared):
    """28 requests a step, decode alone: every tile is 128 x 64, and which side runs along the outputs is open."""
    result = prepared("vllm-unlisted-2b-a100-wide-batch").work()
    gemm = result.op_classes.row(by_predicate=pl.col("op_class") == "gemm", named=True)
    assert (gemm["flop"], gemm["bytes"], gemm["work_source"]) == (None, None, "unknown")
    assert "--model" in gemm["reason"]
    assert "MFLOP per launch by tile and grid" in gemm["reason"]
    assert result.steps["bytes"].null_count() == result.steps.height


@pytest.mark.parametrize(
    "name", ["vllm-unlisted-2b-h100", "vllm-qwen3-moe-h100", "vllm-deepseek-lite-h100-mla", "llamacpp-llama-8b-rtx4090"]
)
def test_persistent_kernels_experts_and_latent_attention_stay_unknown(prepared, nobody, name):
    work = assigned(silent(prepared(name)))
    assert work.bounds is None or not work.bounds.close().any()
    assert not (work.source == NAME).any()


def test_a_gemm_that_stands_elsewhere_in_the_layer_leaves_all_unknown(prepared):
    """Attention and MLP side by side, gate and up launched before attention: `o` then stands where they did."""
    run = prepared("vllm-unlisted-2b-a100-eager")
    work = assigned(run)
    moved = work.place == PLACE_CODE["o"]
    assert moved.any()
    work.place[moved] = PLACE_CODE["gate_up"]
    bounds = bound_by_tiles(run.given, work)
    assert not bounds.outputs
    assert "not every layer" in bounds.notes[0]


def test_lengths_that_are_known_do_not_make_unknown_attention_whole(prepared, nobody):
    """Markers tell the KV lengths, but not the width of the cache: the step's bytes stay a lower bound."""
    result = silent(prepared("vllm-llama-8b-a100-eager-detailed")).work()
    decode = result.steps.filter(pl.col("phase") == "decode")
    assert set(decode["kv_tokens_source"].cast(pl.String)) == {"marker"}
    assert decode["bytes_kv"].null_count() == decode.height
    assert result.model["decode_bytes_are_lower_bound"] is True
