"""config.json of each architecture, as its authors publish it, against the published parameter count."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trace_analyze.analysis.models.find_model import known_models
from trace_analyze.analysis.models.hf_config import architectures, shape_of
from trace_analyze.analysis.models.load_model import load_model, read_config
from trace_analyze.analysis.models.model_shape import ModelShape, bytes_per_weight, parameters_total
from trace_analyze.analysis.records.errors import UsageError


def config(kind, hidden, layers, heads, kv_heads, intermediate, vocab, **more):
    """The keys most configs share."""
    return {
        "model_type": kind,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": intermediate,
        "vocab_size": vocab,
        "torch_dtype": "bfloat16",
        **more,
    }


LLAMA = config("llama", 4096, 32, 32, 8, 14336, 128256, attention_bias=False, tie_word_embeddings=False)
MLA = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
DEEPSEEK_V3 = config(
    "deepseek_v3", 7168, 61, 128, 128, 18432, 129280, **MLA, q_lora_rank=1536, n_routed_experts=256, num_experts_per_tok=8,
    moe_intermediate_size=2048, n_shared_experts=1, first_k_dense_replace=3, moe_layer_freq=1, topk_method="noaux_tc",
    num_nextn_predict_layers=1, tie_word_embeddings=False,
    quantization_config={"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]},
)  # fmt: skip
GPT_OSS = config(
    "gpt_oss", 2880, 24, 64, 8, 2880, 201088, head_dim=64, attention_bias=True, num_local_experts=32,
    num_experts_per_tok=4, sliding_window=128, layer_types=["sliding_attention", "full_attention"] * 12, tie_word_embeddings=False,
    quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]},
)  # fmt: skip
GEMMA3_4B = {  # stores only what differs from its class
    "model_type": "gemma3",
    "torch_dtype": "bfloat16",
    "text_config": {
        "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
        "sliding_window": 1024,
    },
    "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27},
}  # fmt: skip

# name of the row of models.toml (whose count is the published one) -> config.json
SAME_AS_TABLE = {
    "Llama-3.1-8B": LLAMA,
    "Llama-3.2-1B": config("llama", 2048, 16, 32, 8, 8192, 128256, head_dim=64, tie_word_embeddings=True),
    "Llama-2-7B": config("llama", 4096, 32, 32, 32, 11008, 32000, torch_dtype="float16"),
    "Mistral-7B": config("mistral", 4096, 32, 32, 8, 14336, 32000, sliding_window=None),
    "Mistral-7B-v0.1": config("mistral", 4096, 32, 32, 8, 14336, 32000, sliding_window=4096),
    "Mistral-Nemo-12B": config("mistral", 5120, 40, 32, 8, 14336, 131072, head_dim=128, sliding_window=None),
    "Mixtral-8x7B": config("mixtral", 4096, 32, 32, 8, 14336, 32000, num_local_experts=8, num_experts_per_tok=2, sliding_window=None),
    "Qwen2.5-7B": config("qwen2", 3584, 28, 28, 4, 18944, 152064, sliding_window=131072, max_window_layers=28, use_sliding_window=False),
    "Qwen2.5-0.5B": config("qwen2", 896, 24, 14, 2, 4864, 151936, tie_word_embeddings=True, use_sliding_window=False, sliding_window=32768),
    "Qwen1.5-MoE-A2.7B": config(
        "qwen2_moe", 2048, 24, 16, 16, 5632, 151936, num_experts=60, num_experts_per_tok=4, moe_intermediate_size=1408,
        shared_expert_intermediate_size=5632, decoder_sparse_step=1),
    "Qwen3-8B": config("qwen3", 4096, 36, 32, 8, 12288, 151936, head_dim=128, attention_bias=False, sliding_window=None),
    "Qwen3-0.6B": config("qwen3", 1024, 28, 16, 8, 3072, 151936, head_dim=128, tie_word_embeddings=True),
    "Qwen3-30B-A3B": config(
        "qwen3_moe", 2048, 48, 32, 4, 6144, 151936, head_dim=128, num_experts=128, num_experts_per_tok=8,
        moe_intermediate_size=768, decoder_sparse_step=1, mlp_only_layers=[]),
    "gemma-7b": config("gemma", 3072, 28, 16, 16, 24576, 256000, head_dim=256),
    "gemma-2-9b": config("gemma2", 3584, 42, 16, 8, 14336, 256000, head_dim=256, sliding_window=4096),
    "gemma-3-1b": config(
        "gemma3_text", 1152, 26, 4, 1, 6912, 262144, head_dim=256, sliding_window=512, sliding_window_pattern=6),
    "gemma-3-4b": GEMMA3_4B,
    "Phi-3-mini": config("phi3", 3072, 32, 32, 32, 8192, 32064, tie_word_embeddings=False, use_sliding_window=False, sliding_window=2047),
    "phi-4": config("phi3", 5120, 40, 40, 10, 17920, 100352, attention_bias=False, sliding_window=None),
    "Phi-4-mini": config("phi3", 3072, 32, 24, 8, 8192, 200064, tie_word_embeddings=True),
    "Phi-3.5-MoE": config(
        "phimoe", 4096, 32, 32, 8, 6400, 32064, attention_bias=True, lm_head_bias=True, num_local_experts=16, num_experts_per_tok=2),
    "phi-2": config("phi", 2560, 32, 32, 32, 10240, 51200, torch_dtype="float16"),
    "DeepSeek-V3": DEEPSEEK_V3,
    "DeepSeek-V2-Lite": config(
        "deepseek_v2", 2048, 27, 16, 16, 10944, 102400, **MLA, q_lora_rank=None, n_routed_experts=64, num_experts_per_tok=6,
        moe_intermediate_size=1408, n_shared_experts=2, first_k_dense_replace=1, moe_layer_freq=1, topk_method="greedy"),
    "gpt-oss-20b": GPT_OSS,
    "GLM-4-9B-0414": config("glm4", 4096, 40, 32, 2, 13696, 151552, attention_bias=True, head_dim=128),
    "GLM-4-9B": {
        "model_type": "chatglm", "hidden_size": 4096, "num_layers": 40, "num_attention_heads": 32, "kv_channels": 128,
        "multi_query_attention": True, "multi_query_group_num": 2, "ffn_hidden_size": 13696, "padded_vocab_size": 151552,
        "add_qkv_bias": True, "add_bias_linear": False, "torch_dtype": "bfloat16", "tie_word_embeddings": False},
    "GLM-4.5": config(
        "glm4_moe", 5120, 92, 96, 8, 12288, 151552, attention_bias=True, head_dim=128, use_qk_norm=True, n_routed_experts=160,
        num_experts_per_tok=8, moe_intermediate_size=1536, n_shared_experts=1, first_k_dense_replace=3),
    "command-r-plus": config("cohere", 12288, 64, 96, 8, 33792, 256000, use_qk_norm=True, torch_dtype="float16"),
    "starcoder2-7b": config("starcoder2", 4608, 32, 36, 4, 18432, 49152, use_bias=True),
    "OLMo-2-7B": config("olmo2", 4096, 32, 32, 32, 11008, 100352),
    "Seed-OSS-36B": config("seed_oss", 5120, 64, 80, 8, 27648, 155136, head_dim=128, attention_bias=True, attention_out_bias=False),
    "opt-1.3b": {
        "model_type": "opt", "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 32, "ffn_dim": 8192,
        "vocab_size": 50272, "max_position_embeddings": 2048, "torch_dtype": "float16", "word_embed_proj_dim": 2048},
    "gpt2": {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257, "torch_dtype": "float16"},
    "gpt-neox-20b": {
        "model_type": "gpt_neox", "hidden_size": 6144, "num_hidden_layers": 44, "num_attention_heads": 64,
        "intermediate_size": 24576, "vocab_size": 50432, "torch_dtype": "float16", "tie_word_embeddings": False},
    "falcon-7b": {
        "model_type": "falcon", "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71, "num_kv_heads": 71,
        "multi_query": True, "parallel_attn": True, "new_decoder_architecture": False, "bias": False, "vocab_size": 65024},
    "falcon-40b": {
        "model_type": "falcon", "hidden_size": 8192, "num_hidden_layers": 60, "num_attention_heads": 128, "num_kv_heads": 8,
        "parallel_attn": True, "new_decoder_architecture": True, "bias": False, "vocab_size": 65024},
    "mpt-7b": {"model_type": "mpt", "d_model": 4096, "n_layers": 32, "n_heads": 32, "expansion_ratio": 4, "no_bias": True, "vocab_size": 50432},
    "bloom-7b1": {"model_type": "bloom", "n_embed": 4096, "n_layer": 30, "num_attention_heads": 32, "vocab_size": 250880, "torch_dtype": "float16"},
    "Llama-4-Scout-17B-16E": {
        "model_type": "llama4", "torch_dtype": "bfloat16",
        "text_config": {
            "model_type": "llama4_text", "hidden_size": 5120, "num_hidden_layers": 48, "num_attention_heads": 40,
            "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
            "interleave_moe_layer_step": 1, "num_experts_per_tok": 1, "num_local_experts": 16, "vocab_size": 202048,
            "attention_chunk_size": 8192, "use_qk_norm": True, "attention_bias": False, "tie_word_embeddings": False}},
}  # fmt: skip


@pytest.mark.parametrize("name", SAME_AS_TABLE)
def test_a_config_gives_the_shape_of_the_table(name):
    shape = shape_of(SAME_AS_TABLE[name])
    row = known_models()[name]
    assert parameters_total(shape) == parameters_total(row)
    assert replace(shape, name=name, notes=()) == row


# Not in the table: architecture, what differs, and the published count.
@pytest.mark.parametrize(
    ("given_config", "parameters"),
    [
        ({"model_type": "gpt_bigcode", "n_embd": 6144, "n_layer": 40, "n_head": 48, "n_inner": 24576, "n_positions": 8192, "multi_query": True, "vocab_size": 49152}, 15_517_456_384),  # StarCoder
        ({"model_type": "gptj", "n_embd": 4096, "n_layer": 28, "n_head": 16, "n_positions": 2048, "vocab_size": 50400, "tie_word_embeddings": False}, 6_050_882_784),  # GPT-J-6B
        (config("cohere2", 4096, 32, 32, 8, 14336, 256000, sliding_window=4096), 8_028_033_024),  # Command R7B
        (config("granite", 4096, 40, 32, 8, 12800, 49155, tie_word_embeddings=True), 8_170_848_256),  # Granite 3.1 8B
    ],
)  # fmt: skip
def test_further_architectures(given_config, parameters):
    assert parameters_total(shape_of(given_config)) == parameters


def test_sliding_windows_by_layer():
    """Gemma 2 alternates, Gemma 3 and Command R7B look everywhere in every sixth and fourth layer."""
    assert known_models()["gemma-2-9b"].sliding_layers == tuple(range(0, 42, 2))
    assert shape_of(GEMMA3_4B).sliding_layers[:7] == (0, 1, 2, 3, 4, 6, 7)
    assert shape_of(GPT_OSS).sliding_layers == tuple(range(0, 24, 2))
    pattern = config("exaone4", 2048, 8, 16, 8, 8192, 100000, sliding_window=4096, sliding_window_pattern="LLLG")
    assert shape_of(pattern).sliding_layers == (0, 1, 2, 4, 5, 6)
    windowed = config(
        "qwen2", 3584, 28, 28, 4, 18944, 152064, sliding_window=4096, max_window_layers=20, use_sliding_window=True
    )
    assert shape_of(windowed).sliding_layers == tuple(range(20, 28))


def test_which_layers_have_experts():
    every_other = config("llama4_text", 5120, 48, 40, 8, 8192, 202048, intermediate_size_mlp=16384, interleave_moe_layer_step=2,
                         num_local_experts=128, num_experts_per_tok=1)  # fmt: skip
    assert [shape_of(every_other).is_moe_layer(layer) for layer in range(4)] == [False, True, False, True]
    listed = config("llama", 1024, 4, 8, 8, 4096, 1000, n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=512,
                    moe_layer_freq=[0, 1, 1, 0])  # fmt: skip
    assert [shape_of(listed).is_moe_layer(layer) for layer in range(4)] == [False, True, True, False]
    some_dense = {**SAME_AS_TABLE["Qwen3-30B-A3B"], "mlp_only_layers": [0, 5]}
    assert shape_of(some_dense).moe_layers == 46


def test_parameters_of_a_mistral_params_file():
    """Mistral's own params.json: other words, no model_type."""
    shape = shape_of(
        {
            "dim": 4096,
            "n_layers": 32,
            "head_dim": 128,
            "hidden_dim": 14336,
            "n_heads": 32,
            "n_kv_heads": 8,
            "vocab_size": 32768,
        }
    )
    assert parameters_total(shape) == 7_248_023_552
    assert "no model_type" in shape.notes[0]


# -- quantisation ------------------------------------------------------------------------------------------------------


def quantised(**stored):
    return shape_of({**LLAMA, "quantization_config": stored})


INT4_GROUP = {
    "targets": ["Linear"], "input_activations": None,
    "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True},
}  # fmt: skip
FP8_CHANNEL = {
    "targets": ["Linear"], "input_activations": {"num_bits": 8, "type": "float", "dynamic": True},
    "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True},
}  # fmt: skip
NVFP4 = {
    "targets": ["Linear"], "input_activations": {"num_bits": 4, "type": "float", "group_size": 16},
    "weights": {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True},
}  # fmt: skip


@pytest.mark.parametrize(
    ("stored", "dtype", "bytes_of_qkv", "weight_only"),
    [
        # scale and zero point in bytes over the weights that share them
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}, "int4", 0.5 + 2 / 128, True),
        ({"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False}, "int4", 0.5 + 2.5 / 32, True),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, "int8", 1.0, True),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}, "int4", 0.5 + 2.5 / 128, True),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "zero_point": True}, "int4", 0.5 + 2.5 / 64, True),
        ({"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}, "fp8", 1 + 4 / 16384, False),
        ({"quant_method": "fp8", "activation_scheme": "static"}, "fp8", 1.0, False),
        ({"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["lm_head"]}, "fp8", 1.0, False),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": INT4_GROUP}, "ignore": ["lm_head"]}, "int4", 0.5 + 2 / 128, True),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": FP8_CHANNEL}, "ignore": ["lm_head"]}, "fp8", 1.0, False),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": NVFP4}, "ignore": ["lm_head"]}, "fp4", 0.5 + 1 / 16, False),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8", 1.0, False),
        ({"quant_method": "modelopt", "quantization": {"quant_algo": "NVFP4", "group_size": 16}}, "fp4", 0.5 + 1 / 16, False),
        ({"quant_method": "mxfp4"}, "fp4", 0.5 + 1 / 32, True),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True}, "int4", 0.5 + (1 + 4 / 256) / 64, True),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, "int4", 0.5 + 4 / 64, True),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8", 1.0, False),
        ({"quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": True}, "int4", 0.5 + 2 / 128, True),
        ({"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 64}}}, "int4", 0.5 + 2 / 64, True),
        ({"quant_method": "torchao", "quant_type": "int8wo"}, "int8", 1.0, True),
    ],
)  # fmt: skip
def test_storage(stored, dtype, bytes_of_qkv, weight_only):
    shape = quantised(**stored)
    assert shape.weight_dtype == dtype
    assert bytes_per_weight(shape, "qkv") == pytest.approx(bytes_of_qkv)
    assert shape.quantisation.weight_only is weight_only
    assert bytes_per_weight(shape, "lm_head") == bytes_per_weight(shape, "embedding") == 2.0
    assert parameters_total(shape) == 8_030_261_248


ATTENTION = ("qkv", "q", "k", "v", "kv", "o")


@pytest.mark.parametrize(
    ("ignored", "places"),
    [
        ({"modules_to_not_convert": ["lm_head"]}, ()),
        ({"modules_to_not_convert": ["self_attn"]}, ATTENTION),
        ({"modules_to_not_convert": ["down_proj"]}, ("down",)),
        ({"ignore": ["re:.*self_attn.*", "lm_head"]}, ATTENTION),
        ({"ignored_layers": [f"model.layers.{i}.mlp.down_proj" for i in range(32)]}, ("down",)),
        ({"exclude_modules": ["*.self_attn.o_proj", "lm_head*"]}, ("o",)),
        ({"ignore": ["model.layers.*.mlp"]}, ("gate_up", "gate", "up", "down")),
        ({"ignore": ["language_model.model.layers.*.self_attn.q_proj"]}, ("qkv", "q", "k", "v", "kv")),
        ({"dynamic": {"-:.*down_proj": {}}}, ("down",)),
        ({"ignore": ["re:(broken"]}, ()),
        ({"ignore": [f"model.layers.{i}" for i in range(32)]}, (*ATTENTION, "gate_up", "gate", "up", "down")),
    ],
)
def test_matrices_left_at_16_bit(ignored, places):
    shape = quantised(quant_method="gptq", bits=4, group_size=128, **ignored)
    candidates = (*ATTENTION, "gate_up", "gate", "up", "down")
    assert {place for place in candidates if bytes_per_weight(shape, place) == 2.0} == set(places)


def test_a_few_layers_at_16_bit_are_mentioned():
    """FBGEMM leaves the first and the last layer alone."""
    shape = quantised(quant_method="fbgemm_fp8", modules_to_not_convert=["model.layers.0.mlp.down_proj", "lm_head"])
    assert bytes_per_weight(shape, "down") == pytest.approx(1.0 * 31 / 32 + 2.0 / 32)
    assert bytes_per_weight(shape, "gate_up") == 1.0
    assert any("down in 3%" in note for note in shape.notes)


def test_most_layers_at_16_bit_are_counted_at_their_mean():
    shape = quantised(quant_method="fp8", modules_to_not_convert=[f"model.layers.{i}" for i in range(24)])
    assert bytes_per_weight(shape, "qkv") == pytest.approx(2.0 * 24 / 32 + 1.0 * 8 / 32)


def test_experts_alone_are_packed_in_gpt_oss():
    shape = shape_of(GPT_OSS)
    assert bytes_per_weight(shape, "expert_gate_up") == pytest.approx(0.5 + 1 / 32)
    assert {bytes_per_weight(shape, place) for place in ("qkv", "o", "router", "lm_head")} == {2.0}


def test_experts_left_out_while_the_rest_is_packed():
    moe = {**SAME_AS_TABLE["Qwen3-30B-A3B"], "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128,
           "modules_to_not_convert": ["mlp.experts"]}}  # fmt: skip
    shape = shape_of(moe)
    assert {bytes_per_weight(shape, place) for place in ("expert_gate_up", "expert_down", "experts")} == {2.0}
    assert bytes_per_weight(shape, "qkv") < 1.0


def test_a_quantised_lm_head():
    assert bytes_per_weight(quantised(quant_method="gptq", bits=4, group_size=128, lm_head=True), "lm_head") < 1.0


def test_an_unknown_quantisation_counts_16_bit_and_says_so():
    shape = quantised(quant_method="brand_new")
    assert bytes_per_weight(shape, "qkv") == 2.0
    assert any("brand-new" in note and "--weight-dtype" in note for note in shape.notes)


def test_a_kv_cache_scheme_is_mentioned():
    shape = quantised(quant_method="fp8", kv_cache_scheme={"num_bits": 8, "type": "float"})
    assert shape.kv_dtype == "bf16"
    assert any("--kv-dtype fp8" in note for note in shape.notes)


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    """A folder with a config.json of what is given."""

    def make(content, name="model", **beside):
        place = tmp_path / name
        place.mkdir(parents=True)
        (place / "config.json").write_text(content if isinstance(content, str) else json.dumps(content))
        for file, inner in beside.items():
            (place / f"{file}.json").write_text(json.dumps(inner))
        return place

    return make


def test_a_file_and_a_folder_with_one(folder):
    place = folder(LLAMA)
    assert load_model(str(place)) == load_model(str(place / "config.json")) == read_config(place / "config.json")
    assert parameters_total(load_model(str(place))) == 8_030_261_248


@pytest.mark.parametrize(
    ("place", "said", "name"),
    [
        ("secret-project/checkpoint-final", None, "llama"),
        ("secret-project/Llama-3.1-8B-Instruct", None, "Llama-3.1-8B-Instruct"),
        ("models--meta-llama--Llama-3.1-8B/snapshots/0e9e39f2", None, "Llama-3.1-8B"),
        ("x", "meta-llama/Llama-3.1-8B", "Llama-3.1-8B"),
        ("x", "/home/someone/weights/ours", "ours"),
    ],
)
def test_the_name_is_no_path(folder, place, said, name):
    config_path = folder({**LLAMA, **({"_name_or_path": said} if said else {})}, place) / "config.json"
    assert read_config(config_path).name == name


@pytest.mark.parametrize(
    ("file", "content", "dtype", "method"),
    [
        ("hf_quant_config", {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}, "fp8", "modelopt"),
        ("quantize_config", {"bits": 4, "group_size": 128, "sym": True}, "int4", "gptq"),
        ("quant_config", {"w_bit": 4, "q_group_size": 128, "zero_point": True}, "int4", "awq"),
    ],
)  # fmt: skip
def test_quantisation_in_a_file_beside(folder, file, content, dtype, method):
    shape = load_model(str(folder(LLAMA, **{file: content})))
    assert (shape.weight_dtype, shape.quantisation.method) == (dtype, method)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("not json", "not JSON"),
        ("[1, 2]", "one JSON object"),
        ("\ufeff", "not JSON"),
        ({}, "no hidden_size"),
        ({k: v for k, v in LLAMA.items() if k != "num_hidden_layers"}, "no num_hidden_layers"),
        ({k: v for k, v in LLAMA.items() if k != "vocab_size"}, "vocab_size"),
        ({k: v for k, v in LLAMA.items() if k != "intermediate_size"}, "no intermediate_size"),
        ({**LLAMA, "hidden_size": "4096"}, 'hidden_size is "4096"'),
        ({**LLAMA, "hidden_size": 4097}, "no head_dim"),
        ({**LLAMA, "num_attention_heads": 0}, "above 0"),
        ({**LLAMA, "num_local_experts": 8}, "no num_experts_per_tok"),
        ({**LLAMA, "kv_lora_rank": 512}, "no qk_nope_head_dim"),
        ({**LLAMA, "model_type": "rwkv"}, "recurrent model"),
        ({**LLAMA, "model_type": "zamba2"}, "state-space"),
        ({**LLAMA, "is_encoder_decoder": True}, "encoder-decoder"),
        ({**LLAMA, "model_type": "nemotron_h", "hybrid_override_pattern": "M-"}, "no mamba_num_heads"),
        ({**LLAMA, "model_type": "deepseek_v4"}, "no q_lora_rank"),
        ({**LLAMA, "model_type": "nemotron_h"}, "layers between 1 and"),
        ({"peft_type": "LORA", "base_model_name_or_path": "x"}, "LoRA adapter"),
        ({"model_type": "clip", "vision_config": {"hidden_size": 768}}, "no hidden_size"),
    ],
)
def test_a_config_that_cannot_be_understood_names_the_key(folder, content, said):
    with pytest.raises(UsageError, match=said):
        load_model(str(folder(content)))


def test_an_unknown_architecture_is_read_as_a_llama_with_a_note():
    shape = shape_of({**LLAMA, "model_type": "brand_new"})
    assert parameters_total(shape) == 8_030_261_248
    assert "brand_new" in shape.notes[0]


@pytest.mark.parametrize("kind", architectures()["architecture"])
def test_every_architecture_row_is_read(kind):
    more = {
        **{"n_positions": 1024, "max_position_embeddings": 1024, "num_experts_per_tok": 1, "sliding_window": 128},
        **(
            {"num_experts": 4, "moe_intermediate_size": 512} if "kinds" in architectures()["architecture"][kind] else {}
        ),
        **{"hybrid_override_pattern": "M-M*M-ME", "mamba_num_heads": 8, "mamba_head_dim": 64, "moe_topk": 1},
        **MLA,
        **{"linear_attn_config": {"num_heads": 8, "head_dim": 64, "full_attn_layers": [4, 8]}, "num_layers": 8},
        **{"q_lora_rank": 256, "o_groups": 2, "o_lora_rank": 64, "compress_ratios": [0, 4, 128, 4, 128, 4, 128, 4]},
    }
    if "kinds" not in architectures()["architecture"][kind]:
        more = {key: value for key, value in more.items() if key not in (*MLA, "q_lora_rank")}
    if architectures()["architecture"][kind].get("kinds") == "deepseek_v4":
        more["head_dim"] = 512
    shape = shape_of(config(kind, 1024, 8, 8, 8, 4096, 32000, **more))
    assert shape.layers == 8
    assert parameters_total(shape) > 8 * 1024 * 1024


@pytest.mark.parametrize("kind", architectures()["refused"])
def test_every_refusal_says_why(kind):
    with pytest.raises(UsageError, match="Run without --model"):
        shape_of({**LLAMA, "model_type": kind})


def test_rows_name_fields_that_exist():
    known = {
        *ModelShape.__dataclass_fields__,
        "keys",
        "absent",
        "absent_nested",
        "positions",
        "times_hidden",
        "multi_query",
        "about",
        "sliding_period",
        "kinds",
        "indexer",
        "chunked",
    }
    rows = architectures()["architecture"]
    assert {kind: set(row) - known for kind, row in rows.items() if set(row) - known} == {}


VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-3, 5000)
    | st.floats()
    | st.text(max_size=6)
    | st.lists(st.integers(0, 3), max_size=3)
    | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)
)


@settings(max_examples=60)
@given(st.dictionaries(st.sampled_from([*LLAMA, *DEEPSEEK_V3, *GPT_OSS, "text_config", "mlp_only_layers", "sliding_window_pattern", "expansion_ratio",
                                        "max_window_layers", "use_sliding_window", "num_ln_in_parallel_attn", "parallel_attn", "new_decoder_architecture"]),
                       VALUES), st.sampled_from([LLAMA, DEEPSEEK_V3, GPT_OSS]))  # fmt: skip
def test_odd_values_are_refused_or_read_never_a_crash(odd, base):
    try:
        shape = shape_of({**base, **odd})
    except UsageError:
        return
    assert parameters_total(shape) > 0


@settings(max_examples=60)
@given(st.recursive(VALUES, lambda inner: st.dictionaries(st.sampled_from(
    ["quant_method", "bits", "group_size", "ignore", "config_groups", "weights", "weight_block_size", "quantization", "dynamic", "modules_to_not_convert",
     "quant_algo", "num_bits", "type", "input_activations", "targets", "sparsity_config", "group_0"]), inner, max_size=5), max_leaves=12),
    st.sampled_from(["gptq", "awq", "fp8", "compressed-tensors", "modelopt", "bitsandbytes", "mxfp4", "hqq", "x"]))  # fmt: skip
def test_odd_quantisation_is_read_or_noted_never_a_crash(stored, method):
    inner = {**stored, "quant_method": method} if isinstance(stored, dict) else stored
    shape = shape_of({**LLAMA, "quantization_config": inner})
    assert 0 < bytes_per_weight(shape, "qkv") < 1000
