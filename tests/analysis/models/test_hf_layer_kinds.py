"""Which layer is what, by each architecture's own pattern keys."""

from __future__ import annotations

import pytest

from trace_analyze.analysis.models.find_model import known_models
from trace_analyze.analysis.models.hf_config import shape_of
from trace_analyze.analysis.models.layer_kinds import (
    Attention,
    CompressedAttention,
    Experts,
    GatedDelta,
    KimiDelta,
    LatentAttention,
    Lightning,
    Mamba1,
    Mamba2,
    Mlp,
    ShortConv,
    UnknownPart,
)
from trace_analyze.analysis.models.model_shape import layer_groups, parameters_total

COMMON = {
    "hidden_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 4096,
    "vocab_size": 32000,
}
MAMBA = {"mamba_num_heads": 16, "mamba_head_dim": 64, "ssm_state_size": 128}
DELTA = {
    **{
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 8,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
    },
    "num_hidden_layers": 8,
}


def layers_with(shape, kind):
    """Numbers of the layers that hold a part of ``kind``."""
    groups = layer_groups(shape)
    return sorted(
        layer for group in groups if any(isinstance(part, kind) for part in group.parts) for layer in group.layers
    )


def part_of(shape, kind):
    return next(part for group in layer_groups(shape) for part in group.parts if isinstance(part, kind))


@pytest.mark.parametrize(
    "pattern",
    [
        {"hybrid_override_pattern": "M-M*ME"},
        {"hybrid_layer_pattern": "M-M*ME"},
        {"layers_block_type": ["mamba", "mlp", "mamba", "attention", "mamba", "moe"]},
        {"layer_types": ["linear_attention", "mlp", "linear_attention", "full_attention", "linear_attention", "moe"]},
    ],
)
def test_nemotron_h_by_each_of_its_spellings(pattern):
    moe = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512, "moe_latent_size": 256}
    shape = shape_of({"model_type": "nemotron_h", **COMMON, **MAMBA, **moe, "num_hidden_layers": 6, **pattern})
    assert layers_with(shape, Mamba2) == [0, 2, 4]
    assert (layers_with(shape, Mlp), layers_with(shape, Attention), layers_with(shape, Experts)) == ([1], [3], [5])
    assert part_of(shape, Experts).latent == 256
    assert not part_of(shape, Mlp).gated
    assert shape.needs_layer_kinds


def test_a_block_that_nemotron_h_does_not_know():
    shape = shape_of({"model_type": "nemotron_h", **COMMON, **MAMBA, "layers_block_type": ["mamba", "new", "mlp"]})
    assert layers_with(shape, UnknownPart) == [1]
    assert any("'new' in 1 layers" in note for note in shape.notes)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"full_attention_interval": 4},
        {"layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 2},
    ],
)
def test_every_fourth_layer_of_qwen_is_full(more):
    shape = shape_of({"model_type": "qwen3_next", **COMMON, **DELTA, **more})
    assert layers_with(shape, Attention) == [3, 7]
    assert layers_with(shape, GatedDelta) == [0, 1, 2, 4, 5, 6]
    assert part_of(shape, Attention).output_gate == "element"
    assert part_of(shape, GatedDelta).state_dtype == "fp32"


def test_a_multimodal_qwen_keeps_its_numbers_in_the_text_model():
    text = {"model_type": "qwen3_5_moe_text", "hidden_size": 2048, "num_hidden_layers": 40, "num_attention_heads": 16,
            "num_key_value_heads": 2, "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512}  # fmt: skip
    shape = shape_of({"model_type": "qwen3_5_moe", "text_config": text, "vision_config": {"hidden_size": 1152}})
    assert parameters_total(shape) == parameters_total(known_models()["Qwen3.5-35B-A3B"])
    assert any("language model alone" in note for note in shape.notes)


def test_layers_of_kimi_are_counted_from_one():
    shape = known_models()["Kimi-Linear-48B-A3B"]
    assert layers_with(shape, LatentAttention) == [3, 7, 11, 15, 19, 23, 26]
    assert len(layers_with(shape, KimiDelta)) == 20
    assert layers_with(shape, Mlp) == [0]
    assert part_of(shape, LatentAttention).q_lora_rank == 0


def test_kimi_k3_nests_a_kimi_linear_text_model():
    """Its 92 layers of 896 experts, 3 x 3584 x 3072 weights each, hold 2.72 trillion."""
    text = {
        "model_type": "kimi_linear", "hidden_size": 7168, "num_hidden_layers": 93, "num_attention_heads": 96, "vocab_size": 163840,
        "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "intermediate_size": 33792, "first_k_dense_replace": 1, "num_experts": 896, "num_experts_per_token": 16,
        "moe_intermediate_size": 3072, "num_shared_experts": 2, "routed_expert_hidden_size": 3584, "mla_use_output_gate": True,
        "linear_attn_config": {"full_attn_layers": list(range(4, 97, 4)), "head_dim": 128, "num_heads": 96,
                               "short_conv_kernel_size": 4, "use_full_rank_gate": True},
    }  # fmt: skip
    shape = shape_of({"model_type": "kimi_k3", "text_config": text})
    assert len(layers_with(shape, KimiDelta)) == 70
    experts = part_of(shape, Experts)
    routed = sum(each.parameters for each in experts.maps(7168, 92) if each.place.startswith("expert_"))
    assert routed == 92 * 896 * 3 * 3584 * 3072
    assert routed == pytest.approx(2.72e12, rel=2e-3)
    assert part_of(shape, KimiDelta).full_rank_gate
    assert part_of(shape, LatentAttention).output_gate


def test_minimax_by_its_list_and_by_default():
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "num_hidden_layers": 4, "head_dim": 128}
    listed = shape_of({"model_type": "minimax_text_01", **COMMON, **experts, "attn_type_list": [0, 0, 0, 1]})
    assert (layers_with(listed, Lightning), layers_with(listed, Attention)) == ([0, 1, 2], [3])
    default = shape_of({"model_type": "minimax", **COMMON, **experts})
    assert (layers_with(default, Lightning), layers_with(default, Attention)) == ([0, 2], [1, 3])


def test_jamba_has_attention_and_experts_by_period():
    shape = known_models()["Jamba-v0.1"]
    assert layers_with(shape, Attention) == [4, 12, 20, 28]
    assert layers_with(shape, Experts) == list(range(1, 32, 2))
    assert len(layers_with(shape, Mamba1)) == 28


def test_falcon_h1_has_both_in_every_layer():
    shape = known_models()["Falcon-H1-34B"]
    assert layers_with(shape, Attention) == layers_with(shape, Mamba2) == layers_with(shape, Mlp) == list(range(72))


def test_bamba_and_lfm2_list_their_attention_layers():
    mamba = {"mamba_n_heads": 32, "mamba_d_head": "auto", "num_hidden_layers": 6, "attn_layer_indices": [2, 5]}
    shape = shape_of({"model_type": "bamba", **COMMON, **mamba})
    assert (layers_with(shape, Attention), layers_with(shape, Mamba2)) == ([2, 5], [0, 1, 3, 4])
    assert part_of(shape, Mamba2).head_dim == 64  # 2 x 1024 over 32 heads
    lfm = shape_of(
        {
            "model_type": "lfm2",
            **COMMON,
            "num_hidden_layers": 4,
            "layer_types": ["conv", "conv", "full_attention", "conv"],
        }
    )
    assert (layers_with(lfm, ShortConv), layers_with(lfm, Attention)) == ([0, 1, 3], [2])
    assert part_of(lfm, Mlp).width == 2816  # 2/3 of 4096, rounded up to a multiple of 256


def test_granite_without_experts_has_its_shared_mlp_alone():
    shape = known_models()["Granite-4.0-H-Micro"]
    assert part_of(shape, Mlp).width == 8192
    assert layers_with(shape, Attention) == [5, 15, 25, 35]


def test_compressed_layers_of_deepseek_v4():
    shape = known_models()["DeepSeek-V4-Flash"]
    ratios = [
        part.ratio
        for group in shape.groups
        for part in group.parts
        if isinstance(part, CompressedAttention)
        for _ in group.layers
    ]
    assert (ratios.count(0), ratios.count(4), ratios.count(128)) == (2, 21, 20)
    hashed = [
        layer
        for group in shape.groups
        for part in group.parts
        if isinstance(part, Experts) and part.by_hash
        for layer in group.layers
    ]
    assert hashed == [0, 1, 2]


@pytest.mark.parametrize("kind", ["deepseek_v4", "deepseek_ref"])
def test_both_spellings_of_deepseek_v4_are_read(kind):
    config = {"model_type": kind, **COMMON, "num_hidden_layers": 3, "q_lora_rank": 256, "head_dim": 512, "o_groups": 2, "o_lora_rank": 64,
              "sliding_window": 128, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512,
              "n_shared_experts": 1, "compress_ratios": [0, 4, 128, 0]}  # fmt: skip
    assert layers_with(shape_of(config), CompressedAttention) == [0, 1, 2]


def test_indexers_of_glm_52():
    owns = [layer for group in known_models()["GLM-5.2"].groups if group.parts[0].index.own for layer in group.layers]
    assert owns == [0, 1, 2, *range(6, 78, 4)]
    assert len(owns) == 21


def test_a_list_of_indexer_types():
    more = {
        "kv_lora_rank": 512,
        "q_lora_rank": 1024,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "index_topk": 2048,
    }
    config = {
        "model_type": "glm_moe_dsa",
        **COMMON,
        **more,
        "num_hidden_layers": 4,
        "indexer_types": ["full", "shared", "full", "shared"],
    }
    shape = shape_of(config)
    assert [group.layers for group in shape.groups] == [(0, 2), (1, 3)]
    assert not shape.needs_layer_kinds  # counted as MLA by the formulas for equal layers, and a note says so


def test_heads_of_window_layers():
    mimo, step, gemma = (known_models()[name] for name in ("MiMo-V2-Flash", "Step-3.5-Flash", "Gemma-4-26B-A4B"))
    assert {(part.reach.window, part.kv_heads, part.sinks) for part in parts(mimo)} == {
        (None, 4, False),
        (128, 8, True),
    }
    assert {(part.reach.window, part.heads) for part in parts(step)} == {(None, 64), (512, 96)}
    assert {(part.reach.window, part.head_dim, part.key_is_value) for part in parts(gemma)} == {
        (1024, 256, False),
        (None, 512, True),
    }
    assert len([layer for group in mimo.groups if not group.parts[0].reach.window for layer in group.layers]) == 9


def parts(shape):
    return [part for group in shape.groups for part in group.parts if isinstance(part, Attention)]


def test_layers_that_borrow_a_cache():
    """Gemma-3n: the last 15 of 35 layers have no keys and values of their own; its streams are not counted, and said."""
    shape = shape_of(
        {"model_type": "gemma3n", "text_config": {"model_type": "gemma3n_text", "num_kv_shared_layers": 15}}
    )
    borrowing = [layer for group in shape.groups if group.parts[0].borrows_cache for layer in group.layers]
    assert sorted(borrowing) == list(range(20, 35))
    assert any("AltUp" in note for note in shape.notes)


def test_lists_of_dense_layers():
    moe = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512, "num_hidden_layers": 6}
    config = {"model_type": "qwen3_moe", **COMMON, **moe}
    by_type = shape_of({**config, "mlp_layer_types": ["dense", "dense", "sparse", "sparse", "dense", "sparse"]})
    assert [by_type.is_moe_layer(layer) for layer in range(6)] == [False, False, True, True, False, True]
    by_list = shape_of({**config, "model_type": "deepseek_v3", "moe_layer_freq": [0, 1, 1, 0, 1, 1]})
    assert by_list.moe_layers == 4


def test_longcat_has_two_of_each_and_one_set_of_experts():
    (group,) = known_models()["LongCat-Flash"].groups
    assert [type(part) for part in group.parts] == [LatentAttention, Mlp, LatentAttention, Mlp, Experts]


def test_an_unknown_architecture_with_keys_of_other_kinds_is_not_read_as_attention():
    """No list tells which layers are what: MLPs and tables are counted, the mixers are not, and that is said."""
    plain = shape_of({"model_type": "brand_new", **COMMON, "num_hidden_layers": 4})
    shape = shape_of({"model_type": "brand_new", **COMMON, "num_hidden_layers": 4, "mamba_d_state": 128})
    assert (plain.groups, layers_with(shape, UnknownPart)) == ((), [0, 1, 2, 3])
    assert any("mamba_d_state" in note and "not counted" in note for note in shape.notes)
    assert parameters_total(plain) - parameters_total(shape) == 4 * (1024 * 1536 + 1024 * 1024)
