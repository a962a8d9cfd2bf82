"""Simulated runs with the model given as a config.json, or not given and not in the table."""

from __future__ import annotations

import json
from dataclasses import replace

import polars as pl
import pytest

from trace_analyze.analysis.models.find_model import known_models
from trace_analyze.analysis.records.trace import ServingFacts
from trace_analyze.analysis.work.model_choice import choose_model as choice

LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "torch_dtype": "bfloat16",
}  # fmt: skip
QWEN_MOE = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32, "head_dim": 128,
    "num_key_value_heads": 4, "intermediate_size": 6144, "vocab_size": 151936, "num_experts": 128, "torch_dtype": "bfloat16",
    "num_experts_per_tok": 8, "moe_intermediate_size": 768, "decoder_sparse_step": 1,
}  # fmt: skip
DEEPSEEK_LITE = {
    "model_type": "deepseek_v2", "hidden_size": 2048, "num_hidden_layers": 27, "num_attention_heads": 16, "q_lora_rank": None,
    "num_key_value_heads": 16, "intermediate_size": 10944, "vocab_size": 102400, "n_routed_experts": 64,
    "num_experts_per_tok": 6, "moe_intermediate_size": 1408, "n_shared_experts": 2, "first_k_dense_replace": 1,
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "torch_dtype": "bfloat16",
}  # fmt: skip
GPTQ = {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}}
FP8 = {"quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"}}


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("vllm-llama-8b-h100-unmarked", LLAMA),
        ("vllm-llama-8b-a100-int4-unmarked", {**LLAMA, **GPTQ}),
        ("vllm-llama-8b-h200-fp8-kv8", {**LLAMA, **FP8}),
        ("vllm-qwen3-moe-h100", QWEN_MOE),
        ("sglang-qwen3-moe-h100-fp8", {**QWEN_MOE, **FP8}),
        ("vllm-deepseek-lite-h100-mla", DEEPSEEK_LITE),
    ],
)
def test_gemms_of_a_config_are_those_that_ran(prepared, tmp_path, name, config):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    run = prepared(name)
    kernels = run.against_truth(run.work(model=str(path), kv_dtype=run.run.config.kv_dtype))
    gemms = kernels.filter(pl.col("op_class").is_in(["gemm", "moe_gemm"]))
    assert gemms.height > 300
    for own in ("flop", "bytes_weights"):
        apart = (pl.col(own) - pl.col(f"true_{own}")).abs()
        assert gemms.filter(apart.fill_null(float("inf")) > 0.01 * pl.col(f"true_{own}")).is_empty()


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("sglang-qwen3-8b-a100-roofline", "Qwen3-8B"),  # Qwen3-4B has its layers, heads, qkv and vocabulary
        ("vllm-llama-8b-a100-async", "Llama-3.1-8B"),
        ("vllm-llama-1b-l4-launch-bound", "Llama-3.2-1B"),
    ],
)
def test_a_model_is_recognised_and_never_taken_for_its_sibling(prepared, monkeypatch, name, model):
    run = prepared(name)
    silent = replace(run, trace=replace(run.trace, capture=replace(run.trace.capture, serving=ServingFacts())))
    found = silent.work().model
    assert (found["name"], found["source"]) == (model, "recognised")
    others = {each: shape for each, shape in known_models().items() if each != model}
    monkeypatch.setattr(choice, "known_models", lambda: others)
    assert silent.work().model["name"] is None


def test_a_layer_count_alone_names_a_candidate_and_no_model(prepared):
    """One model of the table has 27 layers of latent attention, but no grid of these kernels tells its sizes."""
    run = prepared("vllm-deepseek-lite-h100-mla")
    silent = replace(run, trace=replace(run.trace, capture=replace(run.trace.capture, serving=ServingFacts())))
    found = silent.work().model
    assert found["name"] is None
    assert found["candidates"] == ("DeepSeek-V2-Lite",)
