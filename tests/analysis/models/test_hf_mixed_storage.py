"""Checkpoints that store places differently: what each place's weights cost, by config and exclusion list."""

from __future__ import annotations

import json

import pytest

from trace_analyze.analysis.models.find_model import find_model, known_models
from trace_analyze.analysis.models.hf_config import shape_of
from trace_analyze.analysis.models.load_model import load_model
from trace_analyze.analysis.models.model_shape import bytes_per_weight, parameters_total
from trace_analyze.analysis.models.weight_places import bytes_read_per_step, stored_bytes, weights_by_place
from trace_analyze.analysis.work.operators.name_arrays import ggml_storage

DENSE = {
    "model_type": "qwen3", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 14336, "vocab_size": 151936,
}  # fmt: skip
HYBRID = {
    "model_type": "nemotron_h", "hidden_size": 2688, "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128,
    "vocab_size": 131072, "hybrid_override_pattern": "ME*EME*E", "mamba_num_heads": 64, "mamba_head_dim": 64, "n_groups": 8,
    "ssm_state_size": 128, "conv_kernel": 4, "intermediate_size": 1856, "n_routed_experts": 128, "num_experts_per_tok": 6,
    "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712, "n_shared_experts": 1,
}  # fmt: skip
GDN = {
    "model_type": "qwen3_5_text", "hidden_size": 5120, "num_hidden_layers": 8, "num_attention_heads": 24,
    "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 248320, "linear_num_key_heads": 16, "linear_num_value_heads": 48,
    "linear_key_head_dim": 128, "linear_value_head_dim": 128, "intermediate_size": 17408,
}  # fmt: skip


def bits(shape, *places):
    found = weights_by_place(shape)
    return {place: round(found[place].bits, 3) for place in places}


def group(bits_of, kind, size, targets, activations=None):
    return {
        "targets": targets,
        "weights": {"num_bits": bits_of, "type": kind, "group_size": size, "symmetric": True},
        "input_activations": activations,
    }


# -- whole models ------------------------------------------------------------------------------------------------------


def test_gpt_oss_reads_its_experts_at_4_bits_and_the_rest_at_16():
    """Experts 24 x 32 x (2880 x 5760 + 2880 x 2880) at 4.25 bits; attention, router, lm_head and all biases at 16."""
    shape = known_models()["gpt-oss-20b"]
    assert bits(shape, "qkv", "o", "router", "lm_head", "embedding") == dict.fromkeys(
        ("qkv", "o", "router", "lm_head", "embedding"), 16.0
    )
    assert bits(shape, "expert_gate_up", "expert_down") == {"expert_gate_up": 4.25, "expert_down": 4.25}
    experts = 24 * 32 * 3 * 2880 * 2880 * 4.25 / 8 + 24 * 32 * (5760 + 2880) * 2
    attention = 24 * (2880 * 5120 + 5120 + 4096 * 2880 + 2880) * 2
    rest = 24 * (2880 * 32 + 32) * 2 + 2880 * 201088 * 2
    assert bytes_read_per_step(shape) == pytest.approx(experts + attention + rest)
    assert bytes_read_per_step(shape) == pytest.approx(12.4e9, rel=0.02)
    assert bytes_read_per_step(known_models()["gpt-oss-120b"], tensor_parallel=8) == pytest.approx(8.0e9, rel=0.01)


@pytest.mark.parametrize(("name", "gigabytes"), [("gpt-oss-20b", 13.76), ("gpt-oss-120b", 65.25), ("Kimi-K2.5", 594.0)])
def test_checkpoint_sizes(name, gigabytes):
    assert stored_bytes(known_models()[name]) / 1e9 == pytest.approx(gigabytes, rel=1e-3)


def test_arithmetic_of_each_place():
    """FP4 weights under a bf16 MMA have the bf16 ceiling; DeepSeek-V4's run under fp8 activations."""
    oss, v4 = weights_by_place(known_models()["gpt-oss-20b"]), weights_by_place(known_models()["DeepSeek-V4-Flash"])
    assert (oss["expert_down"].weight_dtype, oss["expert_down"].arithmetic) == ("fp4", "bf16")
    assert (v4["expert_down"].weight_dtype, v4["expert_down"].arithmetic) == ("fp4", "fp8")
    assert (v4["q_b"].weight_dtype, v4["q_b"].arithmetic) == ("fp8", "fp8")
    assert (v4["o_a"].weight_dtype, v4["router"].arithmetic) == ("bf16", "bf16")
    assert v4["stream_mix"].bits == 32.0
    nvfp4 = find_model("nvidia/Llama-3.1-8B-Instruct-NVFP4")
    assert weights_by_place(nvfp4)["down"].arithmetic == "fp4"
    assert weights_by_place(nvfp4)["lm_head"].arithmetic == "bf16"


def test_places_add_up_to_the_model():
    for name in ("Llama-3.1-8B", "Llama-3.2-1B", "gpt-oss-20b", "DeepSeek-V4-Flash", "Nemotron-3-Super-120B-A12B"):
        shape = known_models()[name]
        assert sum(each.parameters for each in weights_by_place(shape).values()) == parameters_total(shape)


# -- bits a weight -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "bits_of_down", "arithmetic"),
    [
        ({"quant_method": "mxfp4"}, 4.25, "bf16"),  # 4 + 8 / 32
        ({"quant_method": "gpt_oss_mxfp4"}, 4.25, "bf16"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}, 4.5, "fp4"),  # 4 + 8 / 16
        ({"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4", "group_size": 16}, 4.5, "bf16"),
        ({"quant_method": "modelopt", "quant_algo": "MXFP8"}, 8.25, "fp8"),  # 8 + 8 / 32
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, 4.125, "fp8"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 8.002, "fp8"),  # 8 + 32 / 16384
        ({"quant_method": "deepseek_v4_fp8", "weight_block_size": [128, 128]}, 8.002, "fp8"),
        ({"quant_method": "awq_marlin", "bits": 4, "group_size": 128, "zero_point": True}, 4.156, "bf16"),  # (16 + 4) / 128
        ({"quant_method": "compressed-tensors", "config_groups": {"g": group(4, "int", 32, ["Linear"])}}, 4.5, "bf16"),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": group(4, "float", 16, ["Linear"])}}, 4.5, "bf16"),
        (
            {"quant_method": "compressed-tensors", "config_groups": {
                "g": group(4, "int", 128, ["Linear"], {"num_bits": 8, "type": "float"})}}, 4.125, "fp8",
        ),
        (
            {"quant_method": "compressed-tensors", "config_groups": {
                "g": group(4, "int", 128, ["Linear"], {"num_bits": 8, "type": "int"})}}, 4.125, "int8",
        ),
        (
            {"quant_method": "quark", "global_quant_config": {
                "weight": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32}, "input_tensors": {"dtype": "fp4"}}}, 4.25, "fp4",
        ),
        (
            {"quant_method": "quark", "global_quant_config": {
                "weight": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32}, "input_tensors": {"dtype": "fp8_e4m3"}}}, 4.25, "fp8",
        ),
        (
            {"quant_method": "quark", "global_quant_config": {
                "weight": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}, "input_tensors": {"dtype": "fp8_e4m3"}}}, 8.0, "fp8",
        ),
    ],
)  # fmt: skip
def test_bits_and_arithmetic(stored, bits_of_down, arithmetic):
    down = weights_by_place(shape_of({**DENSE, "quantization_config": stored}))["down"]
    assert round(down.bits, 3) == bits_of_down
    assert down.arithmetic == arithmetic


@pytest.mark.parametrize(("number", "bits_of_it"), [(39, 4.25), (40, 4.5), (12, 4.5), (8, 8.5)])
def test_bits_of_four_bit_blocks_of_llama_cpp(number, bits_of_it):
    """MXFP4 17 bytes for 32, NVFP4 36 for 64, Q4_K 144 for 256, Q8_0 34 for 32."""
    assert 8 * ggml_storage()[number] == bits_of_it


# -- several storages in one checkpoint --------------------------------------------------------------------------------


def test_modelopt_mixed_precision():
    """Qwen3.6-27B's shape: attention of both kinds in FP8, MLPs in weight-only NVFP4; what is not listed stays."""
    layers = {}
    for layer in range(8):
        name = f"model.language_model.layers.{layer}"
        for projection in ("gate_proj", "up_proj", "down_proj"):
            layers[f"{name}.mlp.{projection}"] = {"quant_algo": "W4A16_NVFP4", "group_size": 16}
        if layer % 4 == 3:
            layers[f"{name}.self_attn.q_proj"] = {"quant_algo": "FP8"}
        else:
            layers[f"{name}.linear_attn.in_proj_qkv"] = {"quant_algo": "FP8"}
    stored = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    places = weights_by_place(shape_of({**GDN, "quantization_config": stored}))
    assert (places["down"].bits, places["down"].arithmetic) == (4.5, "bf16")
    assert (places["qkv"].bits, places["qkv"].arithmetic) == (8.0, "fp8")
    assert (places["linear_in"].bits, places["linear_in"].arithmetic) == (8.0, "fp8")
    assert {places[place].bits for place in ("o", "linear_out", "linear_gates", "lm_head")} == {16.0}


def test_groups_of_compressed_tensors_by_target():
    """Experts of 4 bits by their pattern, every other Linear fp8."""
    config = {**HYBRID, "quantization_config": {"quant_method": "compressed-tensors", "config_groups": {
        "a": group(8, "float", None, ["Linear"], {"num_bits": 8, "type": "float"}),
        "b": group(4, "float", 16, ["re:.*mixer\\.experts\\..*"], {"num_bits": 4, "type": "float"})}}}  # fmt: skip
    shape = shape_of(config)
    assert bits(shape, "expert_gate_up", "expert_down", "mamba_in", "qkv") == {
        "expert_gate_up": 4.5, "expert_down": 4.5, "mamba_in": 8.0, "qkv": 8.0}  # fmt: skip


def test_quark_settings_by_layer():
    config = {**DENSE, "quantization_config": {"quant_method": "quark", "exclude": ["lm_head"],
        "global_quant_config": {"weight": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32}, "input_tensors": {"dtype": "fp4"}},
        "layer_quant_config": {"*.self_attn.*": {"weight": {"dtype": "fp8_e4m3"}, "input_tensors": {"dtype": "fp8_e4m3"}}}}}  # fmt: skip
    assert bits(shape_of(config), "down", "qkv", "o") == {"down": 4.25, "qkv": 8.0, "o": 8.0}


def test_fp4_experts_in_an_fp8_model():
    shape = known_models()["DeepSeek-V4-Pro"]
    assert bits(shape, "expert_gate_up", "shared_down", "q_a", "index_weights") == {
        "expert_gate_up": 4.25, "shared_down": 8.002, "q_a": 8.002, "index_weights": 16.0}  # fmt: skip
    assert bytes_per_weight(shape, "experts") == pytest.approx(4.25 / 8)


# -- exclusion lists ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "ignored", "places"),
    [
        (HYBRID, ["backbone.layers.*.mixer.q_proj", "backbone.layers.*.mixer.o_proj"], {"qkv", "o"}),
        (HYBRID, ["re:.*mixer.in_proj$", "lm_head"], {"mamba_in"}),
        (HYBRID, ["*.mixer.shared_experts*"], {"shared_gate_up", "shared_down"}),
        (HYBRID, ["*.mixer.experts*"], {"expert_gate_up", "expert_down"}),
        (GDN, ["*linear_attn*"], {"linear_in", "linear_gates", "linear_out"}),
        (GDN, ["model.language_model.layers.*.linear_attn.in_proj_ba"], {"linear_gates"}),
        (GDN, ["re:.*self_attn.*"], {"qkv", "o"}),
    ],
)
def test_modules_of_other_layer_kinds_are_left_out(config, ignored, places):
    stored = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "ignore": ignored}
    found = weights_by_place(shape_of({**config, "quantization_config": stored}))
    never = {"router", "lm_head", "embedding", "small"}
    assert {place for place, each in found.items() if each.bits == 16.0} - never == places


def test_some_layers_of_a_kind_are_counted_at_their_mean():
    """Nemotron-3-Nano keeps the Mamba layer before each attention at 16 bit: here one of two."""
    stored = {
        "quant_method": "modelopt",
        "quant_algo": "NVFP4",
        "group_size": 16,
        "ignore": ["backbone.layers.0.mixer.in_proj"],
    }
    place = weights_by_place(shape_of({**HYBRID, "quantization_config": stored}))["mamba_in"]
    assert place.bits == pytest.approx((16 + 4.5) / 2)
    assert place.share_16_bit == 0.5


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_list_by_module_beside_the_config(tmp_path):
    """hf_quant_config.json says more than the quant_method that config.json repeats."""
    folder = tmp_path / "Some-Model"
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps({**DENSE, "quantization_config": {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}})
    )
    listed = {
        f"model.layers.{layer}.mlp.{name}": {"quant_algo": "NVFP4"}
        for layer in range(32)
        for name in ("gate_proj", "down_proj")
    }
    (folder / "hf_quant_config.json").write_text(
        json.dumps({"quantization": {"quant_algo": "MIXED_PRECISION", "quantized_layers": listed}})
    )
    assert bits(load_model(str(folder)), "down", "gate_up", "qkv") == {"down": 4.5, "gate_up": 4.5, "qkv": 16.0}


def test_a_name_that_says_more_than_its_config(tmp_path):
    """NVFP4 checkpoints keep their storage in hf_quant_config.json: config.json alone gets a note."""
    folder = tmp_path / "Qwen3-8B-NVFP4"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(DENSE))
    shape = load_model(str(folder))
    assert shape.weight_dtype == "bf16"
    assert any("says fp4" in note and "hf_quant_config.json" in note for note in shape.notes)
