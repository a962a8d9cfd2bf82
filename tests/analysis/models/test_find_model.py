"""Every row of models.toml against the parameter count its authors publish, and names against what people type."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trace_analyze.analysis.facts.load import load_table
from trace_analyze.analysis.models.find_model import (
    bytes_per_weight,
    find_model,
    fold_name,
    known_models,
    kv_bytes_per_token,
    linear_maps,
    list_models,
    name_endings,
    parameters_active,
    parameters_total,
    ridge_batch,
    weight_bytes_per_token,
)
from trace_analyze.analysis.models.load_model import load_model
from trace_analyze.analysis.models.model_shape import ModelShape, Quantisation
from trace_analyze.analysis.records.errors import UsageError

# Published totals: the parameter counts of the checkpoints (model cards, safetensors headers). Of Gemma 3 and Llama 4
# the language model alone: Gemma 3's total less its 416,866,032 of SigLIP and 1152 (h + 1) of projector.
PUBLISHED = {
    "Llama-3.1-8B": 8_030_261_248,
    "Llama-3.1-70B": 70_553_706_496,
    "Llama-3.1-405B": 405_853_388_800,
    "Llama-3.2-1B": 1_235_814_400,
    "Llama-3.2-3B": 3_212_749_824,
    "Llama-2-7B": 6_738_415_616,
    "Llama-2-13B": 13_015_864_320,
    "Llama-2-70B": 68_976_648_192,
    "CodeLlama-34B": 33_743_970_304,
    "TinyLlama-1.1B": 1_100_048_384,
    "Llama-4-Scout-17B-16E": 107_769_861_120,
    "Yi-6B": 6_061_035_520,
    "Yi-34B": 34_388_917_248,
    "deepseek-coder-6.7b": 6_740_512_768,
    "deepseek-coder-33b": 33_342_991_360,
    "SmolLM2-1.7B": 1_711_376_384,
    "internlm2.5-7b": 7_737_708_544,
    "OLMo-2-7B": 7_298_617_344,
    "Mistral-7B": 7_241_732_096,
    "Mistral-7B-v0.1": 7_241_732_096,
    "Mistral-7B-v0.3": 7_248_023_552,
    "Ministral-8B": 8_019_808_256,
    "Mistral-Nemo-12B": 12_247_782_400,
    "Mistral-Small-22B": 22_247_282_688,
    "Mistral-Small-24B": 23_572_403_200,
    "Mistral-Large-2": 122_610_069_504,
    "Mixtral-8x7B": 46_702_792_704,
    "Mixtral-8x22B": 140_620_634_112,
    "Qwen2.5-0.5B": 494_032_768,
    "Qwen2.5-1.5B": 1_543_714_304,
    "DeepSeek-R1-Distill-Qwen-1.5B": 1_777_088_000,
    "Qwen2.5-3B": 3_085_938_688,
    "Qwen2.5-7B": 7_615_616_512,
    "Qwen2.5-14B": 14_770_033_664,
    "Qwen2.5-32B": 32_763_876_352,
    "Qwen2.5-72B": 72_706_203_648,
    "Qwen1.5-MoE-A2.7B": 14_315_784_192,
    "Qwen3-0.6B": 596_049_920,
    "Qwen3-1.7B": 1_720_574_976,
    "Qwen3-4B": 4_022_468_096,
    "Qwen3-8B": 8_190_735_360,
    "Qwen3-14B": 14_768_307_200,
    "Qwen3-32B": 32_762_123_264,
    "Qwen3-30B-A3B": 30_532_122_624,
    "Qwen3-235B-A22B": 235_093_634_560,
    "Qwen3-Coder-480B-A35B": 480_154_875_392,
    "gemma-2b": 2_506_172_416,
    "gemma-7b": 8_537_680_896,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
    "gemma-3-1b": 999_885_952,
    "gemma-3-4b": 3_880_263_168,
    "gemma-3-12b": 11_766_034_176,
    "gemma-3-27b": 27_009_346_304,
    "phi-2": 2_779_683_840,
    "Phi-3-mini": 3_821_079_552,
    "Phi-3-medium": 13_960_238_080,
    "Phi-3.5-MoE": 41_873_153_344,
    "phi-4": 14_659_507_200,
    "Phi-4-mini": 3_836_021_760,
    "DeepSeek-V2-Lite": 15_706_484_224,
    "DeepSeek-V2": 235_741_434_880,
    "DeepSeek-V3": 671_026_419_200,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "GLM-4-9B": 9_399_951_360,
    "GLM-4-9B-0414": 9_400_279_040,
    "GLM-4-32B-0414": 32_566_081_536,
    "command-r": 34_980_831_232,
    "command-r-08-2024": 32_296_476_672,
    "command-r-plus": 103_810_674_688,
    "starcoder2-3b": 3_030_371_328,
    "starcoder2-7b": 7_173_923_840,
    "starcoder2-15b": 15_957_889_024,
    "Seed-OSS-36B": 36_151_104_512,
    "opt-125m": 125_239_296,
    "opt-1.3b": 1_315_758_080,
    "opt-2.7b": 2_651_596_800,
    "opt-6.7b": 6_658_473_984,
    "opt-13b": 12_853_473_280,
    "opt-30b": 29_974_540_288,
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "gpt-neox-20b": 20_554_567_680,
    "pythia-6.9b": 6_857_302_016,
    "falcon-7b": 6_921_720_704,
    "falcon-40b": 41_303_293_952,
    "mpt-7b": 6_649_286_656,
    "bloom-7b1": 7_069_016_064,
    "Mamba-Codestral-7B": 7_285_403_648,
    "falcon-mamba-7b": 7_272_665_088,
    "LFM2-1.2B": 1_170_340_608,
}
# Published rounded, or with parts that are not counted here (multi-token prediction, quantisation scales).
ROUNDED = {
    "Llama-4-Maverick-17B-128E": 400.7e9,
    "Qwen2-57B-A14B": 57.41e9,
    "Kimi-K2": 1_026_470_731_056,
    "GLM-4.5-Air": 106.9e9,
    "GLM-4.5": 352.8e9,
    "MiniMax-M2": 228.7e9,
}
# Rows read from a config: sums of all matrices by the shapes of their modelling files, done apart from this code; where
# authors say more digits (Falcon-H1's report, Jamba's, LFM2's and Granite's cards, MiMo's 309B), their figure.
BY_CONFIG = {
    "Nemotron-H-4B": 4.49e9,
    "Nemotron-H-8B": 8.10e9,
    "Nemotron-H-47B": 46.79e9,
    "Nemotron-H-56B": 56.32e9,
    "Nemotron-Nano-9B-v2": 8.89e9,
    "Nemotron-Nano-12B-v2": 12.31e9,
    "Nemotron-3-Nano-4B": 3.97e9,
    "Nemotron-3-Nano-30B-A3B": 31.58e9,
    "Nemotron-3-Super-120B-A12B": 120.67e9,
    "Nemotron-3-Ultra-550B-A55B": 549.3e9,
    "Granite-4.0-H-Small": 32.21e9,
    "Granite-4.0-H-Tiny": 6.94e9,
    "Granite-4.0-H-Micro": 3.19e9,
    "Falcon-H1-7B": 7.59e9,
    "Falcon-H1-34B": 33.6e9,
    "Jamba-v0.1": 51.6e9,
    "Jamba-1.5-Large": 398.6e9,
    "Qwen3-Next-80B-A3B": 79.67e9,
    "Qwen3.5-397B-A17B": 396.3e9,
    "Qwen3.5-122B-A10B": 122.1e9,
    "Qwen3.5-35B-A3B": 34.66e9,
    "Qwen3.5-27B": 26.90e9,
    "Qwen3.5-9B": 8.95e9,
    "Qwen3.5-4B": 4.21e9,
    "Qwen3.5-0.8B": 0.752e9,
    "Kimi-Linear-48B-A3B": 49.12e9,
    "MiniMax-Text-01": 456.1e9,
    "LFM2-8B-A1B": 8.34e9,
    "Olmo-Hybrid-7B": 7.43e9,
    "DeepSeek-V3.2": 671.9e9,
    "DeepSeek-V4-Flash": 284.3e9,
    "DeepSeek-V4-Pro": 1573e9,
    "GLM-5": 743.9e9,
    "GLM-5.2": 743.4e9,
    "GLM-4.7-Flash": 29.9e9,
    "MiniMax-M3": 426.2e9,
    "Kimi-K2.5": 1026.4e9,
    "Mistral-Small-4-119B": 119.0e9,
    "LongCat-Flash": 560.7e9,
    "Gemma-4-26B-A4B": 25.2e9,
    "Gemma-4-31B": 30.7e9,
    "MiMo-V2-Flash": 309e9,
    "Step-3.5-Flash": 197.0e9,
    "ERNIE-4.5-21B-A3B": 21.83e9,
    "Ministral-3-8B": 8.49e9,
    "Olmo-3-7B": 7.30e9,
    "Olmo-3-32B": 32.2e9,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_equal_the_published_count(name):
    assert parameters_total(known_models()[name]) == PUBLISHED[name]


@pytest.mark.parametrize("name", ROUNDED)
def test_parameters_meet_the_rounded_count(name):
    assert parameters_total(known_models()[name]) == pytest.approx(ROUNDED[name], rel=5e-4)


@pytest.mark.parametrize("name", BY_CONFIG)
def test_parameters_of_layers_of_several_kinds(name):
    assert parameters_total(known_models()[name]) == pytest.approx(BY_CONFIG[name], rel=5e-3)


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [
        ("Nemotron-3-Nano-30B-A3B", 31.6, 3.2),
        ("Nemotron-3-Super-120B-A12B", 120.7, 12.2),
        ("Nemotron-3-Ultra-550B-A55B", 549.3, 55.0),
        ("Granite-4.0-H-Small", 32.2, 8.8),
        ("Qwen3.5-397B-A17B", 396.3, 16.3),
        ("Kimi-Linear-48B-A3B", 49.1, 3.1),
        ("MiniMax-Text-01", 456.1, 47.2),
        ("DeepSeek-V4-Flash", 284.3, 13.3),
        ("DeepSeek-V4-Pro", 1573, 48.9),
        ("GLM-5", 743.9, 40.8),
        ("GLM-5.2", 743.4, 40.3),
        ("LongCat-Flash", 560.7, 27.1),
        ("Gemma-4-26B-A4B", 25.2, 3.8),
        ("Step-3.5-Flash", 197.0, 11.5),
    ],
)
def test_active_parameters_of_layers_of_several_kinds(name, billions, active):
    """Active ones with lm_head and without the looked-up table, as the model cards of most count them."""
    shape = known_models()[name]
    table = 0 if shape.tied_embeddings else shape.vocab * shape.hidden
    counted = parameters_active(shape) - table
    assert parameters_total(shape) / 1e9 == pytest.approx(billions, rel=2e-3)
    assert counted / 1e9 == pytest.approx(active, rel=0.01)


def test_every_row_has_a_published_count():
    assert set(known_models()) == {*PUBLISHED, *ROUNDED, *BY_CONFIG}


@pytest.mark.parametrize(
    ("name", "active"),
    [
        ("Qwen3-30B-A3B", 3.353e9),
        ("DeepSeek-V3", 37.55e9),
        ("Mixtral-8x7B", 12.88e9),
        ("Qwen3-235B-A22B", 22.19e9),
        ("Qwen3-Coder-480B-A35B", 35.45e9),
        ("gpt-oss-20b", 4.19e9),  # the card's 3.6 billion counts one of the two tables
        ("gpt-oss-120b", 5.7e9),
        ("DeepSeek-V2-Lite", 2.66e9),
        ("Llama-4-Scout-17B-16E", 17.17e9),
        ("Phi-3.5-MoE", 6.64e9),
        ("Kimi-K2", 32.9e9),
        ("Llama-3.1-8B", 8.03e9),
    ],
)
def test_active_parameters(name, active):
    assert parameters_active(known_models()[name]) == pytest.approx(active, rel=3e-3)


@pytest.mark.parametrize("name", known_models())
def test_counts_come_from_the_matrices_of_the_work(name):
    """The whole is the sum of the maps, the two tables and under 0.1% of small vectors (2% with learned positions, or decays of pure state-space models)."""
    shape = known_models()[name]
    maps = sum(each.parameters for each in linear_maps(shape) if each.place != "lm_head")
    tables = shape.vocab * shape.hidden * (1 if shape.tied_embeddings else 2)
    rest = parameters_total(shape) - maps - tables
    assert 0 <= rest <= (0.02 if shape.learned_positions or not shape.heads else 1e-3) * parameters_total(shape)


# -- bytes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("Llama-3.1-8B", 131_072),  # 2 x 32 layers x 8 heads x 128 x 2 bytes
        ("Llama-2-7B", 524_288),
        ("Llama-3.1-70B", 327_680),
        ("Qwen3-30B-A3B", 98_304),
        ("DeepSeek-V3", 70_272),  # 61 x (512 + 64) x 2
        ("falcon-7b", 8_192),  # one kv head
    ],
)
def test_kv_bytes_per_token(name, size):
    assert kv_bytes_per_token(known_models()[name]) == size


def gpt_fast(name, bits=16, group=-1):
    """A model as gpt-fast stores it: every matrix, lm_head too; int4 with 16-bit scales and zeros per group."""
    shape = known_models()[name]
    if bits == 16:
        return shape
    stored = Quantisation("gpt-fast", bits, group_size=group, scale_bytes=4.0 if group > 0 else 2.0, excluded=())
    return replace(shape, quantisation=stored, weight_dtype=f"int{bits}")


@pytest.mark.parametrize(
    ("name", "bits", "group", "gigabytes", "tables"),
    [
        # README of pytorch-labs/gpt-fast: GB/s over tokens/s. Its bf16 rows agree with the matrices and the KV of some
        # 208 tokens, its quantised rows with the matrices and the 16-bit embedding table.
        ("Llama-2-7B", 16, -1, 1397.31 / 104.90, 0),
        ("Llama-3.1-8B", 16, -1, 1410.76 / 93.89, 0),
        ("Llama-2-7B", 8, -1, 1069.20 / 155.58, 1),
        ("Llama-2-7B", 4, 32, 862.69 / 196.80, 1),
        ("Llama-2-70B", 8, -1, 1322.58 / 19.13, 1),
        ("Llama-2-70B", 4, 32, 1097.66 / 25.25, 1),
    ],
)
def test_bytes_per_token_of_gpt_fast(name, bits, group, gigabytes, tables):
    shape = gpt_fast(name, bits, group)
    size = weight_bytes_per_token(shape)
    size += 2 * shape.vocab * shape.hidden if tables else 208 * kv_bytes_per_token(shape)
    assert size / 1e9 == pytest.approx(gigabytes, rel=2e-3)


@pytest.mark.parametrize(("ranks", "gigabytes"), [(2, 7.00), (4, 3.76), (8, 2.14)])
def test_bytes_per_token_of_gpt_fast_on_several_gpus(ranks, gigabytes):
    """gpt-fast shards the layers and keeps both tables whole: 2.14 GB on each of eight, not 13.2 / 8 = 1.65."""
    shape = known_models()["Llama-2-7B"]
    table = 2 * shape.vocab * shape.hidden
    layers = weight_bytes_per_token(shape) - table
    assert (layers / ranks + 2 * table) / 1e9 == pytest.approx(gigabytes, rel=3e-3)


def test_group_scales_and_zero_points():
    """4 bits, a 16-bit scale and a 4-bit zero point in 128: (4 + 16/128 + 4/128) / 8 bytes."""
    shape = find_model("Llama-2-7B-AWQ")
    assert bytes_per_weight(shape, "qkv") == pytest.approx((4 + 16 / 128 + 4 / 128) / 8)
    assert bytes_per_weight(shape, "lm_head") == 2.0


def test_block_scales():
    shape = known_models()["DeepSeek-V3"]
    assert bytes_per_weight(shape, "expert_gate_up") == pytest.approx(1 + 4 / (128 * 128))
    assert bytes_per_weight(shape, "router") == 2.0


@pytest.mark.parametrize(
    ("name", "ridge", "batch"),
    [
        ("Llama-3.1-8B", 153.0, 153.0),  # two bytes and two FLOP a weight
        ("Llama-3.1-8B-FP8", 590.0, 315.5),  # lm_head at 16 bit: 295 and 7% of the weights twice as heavy
        ("Mixtral-8x7B", 153.0, 558.9),  # two of eight experts active
    ],
)
def test_ridge_batch(name, ridge, batch):
    assert ridge_batch(load_model(name), ridge) == pytest.approx(batch, rel=2e-3)


@given(batch=st.integers(1, 4096))
def test_more_touched_experts_read_more_but_never_more_than_all(batch):
    shape = known_models()["Qwen3-30B-A3B"]
    one, some, every = (weight_bytes_per_token(shape, touched=t) for t in (1.0, float(batch), 1e9))
    assert one <= some <= every
    assert every == pytest.approx(
        2 * sum(each.inputs * each.outputs * each.copies * each.layers for each in linear_maps(shape))
    )


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("llama-3.1-8b", "Llama-3.1-8B"),
        ("llama3.1-8b", "Llama-3.1-8B"),
        ("Llama 3.1 8B", "Llama-3.1-8B"),
        ("meta-llama/Llama-3.1-8B-Instruct", "Llama-3.1-8B"),
        ("meta-llama/Meta-Llama-3-8B", "Llama-3.1-8B"),
        ("/data/models/Llama-3.1-8B-Instruct/", "Llama-3.1-8B"),
        ("D:\\models\\Qwen3-8B", "Qwen3-8B"),
        ("meta-llama/Llama-2-7b-chat-hf", "Llama-2-7B"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "Qwen3-30B-A3B"),
        ("Qwen/Qwen2.5-Coder-32B-Instruct", None),  # a middle word is no ending
        ("mistralai/Mistral-7B-Instruct-v0.3", "Mistral-7B-v0.3"),
        ("mistralai/Mistral-7B-Instruct-v0.2", "Mistral-7B"),
        ("mistralai/Mistral-7B-v0.1", "Mistral-7B-v0.1"),
        ("mistralai/Mistral-Small-24B-Instruct-2501", "Mistral-Small-24B"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "Mixtral-8x7B"),
        ("microsoft/Phi-3-mini-4k-instruct", "Phi-3-mini"),
        ("google/gemma-2-9b-it", "gemma-2-9b"),
        ("deepseek-ai/DeepSeek-R1-0528", "DeepSeek-V3"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "Llama-3.1-70B"),
        ("openai/gpt-oss-20b", "gpt-oss-20b"),
        ("facebook/opt-1.3b", "opt-1.3b"),
        ("facebook/opt-13b", "opt-13b"),
        ("llama31-8b", "Llama-3.1-8B"),
        ("Llama-3.1-8B-it", "Llama-3.1-8B"),  # not 8-bit
        ("zai-org/GLM-4-9B-0414", "GLM-4-9B-0414"),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "Nemotron-3-Nano-30B-A3B"),
        ("nvidia/Nemotron-H-8B-Base-8K", "Nemotron-H-8B"),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "Qwen3-Next-80B-A3B"),
        ("Qwen/Qwen3.6-35B-A3B", "Qwen3.5-35B-A3B"),
        ("Qwen3.5-27B-Q4_K_M.gguf", "Qwen3.5-27B"),
        ("moonshotai/Kimi-K2-Thinking", "Kimi-K2.5"),
        ("moonshotai/Kimi-Linear-48B-A3B-Instruct", "Kimi-Linear-48B-A3B"),
        ("deepseek-ai/DeepSeek-V3.2-Exp", "DeepSeek-V3.2"),
        ("zai-org/GLM-4.6", "GLM-4.5"),
        ("zai-org/GLM-5.1-FP8", "GLM-5"),
        ("MiniMaxAI/MiniMax-M2.5", "MiniMax-M2"),
        ("gpt-oss:20b", "gpt-oss-20b"),
        ("google/gemma-4-26b-a4b-it", "Gemma-4-26B-A4B"),
        ("ibm-granite/granite-4.0-h-small", "Granite-4.0-H-Small"),
        ("Llama-3.1-8", None),
        ("GLM-4.5-9B", None),
        ("Phi-3-mini-128k-instruct", "Phi-3-mini"),
        ("Qwen3-8B-something-else", None),
        ("instruct", None),
        ("8B", None),
        ("", None),
    ],
)
def test_names_people_type(typed, name):
    found = find_model(typed)
    assert (found.name if found else None) == name


@pytest.mark.parametrize(
    ("typed", "weight_dtype", "method", "bits", "group"),
    [
        ("TheBloke/Llama-2-7B-Chat-AWQ", "int4", "awq", 4, 128),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "int4", "gptq", 4, 128),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8", "int8", "gptq", 8, 128),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16", "int4", "compressed-tensors", 4, 128),
        ("neuralmagic/Meta-Llama-3.1-8B-Instruct-FP8-dynamic", "fp8", "fp8", 8, -1),
        ("Qwen/Qwen3-8B-FP8", "fp8", "fp8", 8, -1),
        ("nvidia/Llama-3.1-8B-Instruct-NVFP4", "fp4", "modelopt", 4, 16),
        ("unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit", "int4", "bitsandbytes", 4, 64),
        ("hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4", "int4", "awq", 4, 128),
        ("qwen2.5-7b-instruct-q4_k_m.gguf", "int4", "gguf", 4.5, -1),
        ("mistral-7b-instruct-v0.2.Q8_0.gguf", "int8", "gguf", 8.5, -1),
        ("deepseek-ai/DeepSeek-V3", "fp8", "fp8", 8, 128),
        ("deepseek-ai/DeepSeek-V3-FP8", "fp8", "fp8", 8, 128),  # what it is anyway keeps its blocks
        ("openai/gpt-oss-20b", "fp4", "mxfp4", 4, 32),
    ],
)
def test_endings_tell_how_weights_are_stored(typed, weight_dtype, method, bits, group):
    shape = find_model(typed)
    stored = shape.quantisation
    assert (shape.weight_dtype, stored.method, stored.bits, stored.group_size) == (weight_dtype, method, bits, group)


def test_what_a_name_tells_is_said_to_be_from_the_name():
    (note,) = find_model("TheBloke/Llama-2-7B-Chat-AWQ").notes
    assert "name ends in awq" in note
    assert find_model("Llama-2-7B").notes == ()


def test_a_16_bit_copy_of_a_quantised_model_is_not_quantised():
    shape = find_model("unsloth/gpt-oss-20b-BF16")
    assert (shape.quantisation, shape.weight_dtype) == (None, "bf16")


def test_no_name_means_two_models():
    table = load_table("models")
    spellings = [
        fold_name(each)
        for name, row in table.items()
        for each in {fold_name(a): a for a in (name, *row.get("aliases", ()))}.values()
    ]
    assert len(spellings) == len(set(spellings))


@pytest.mark.parametrize("ending", name_endings())
def test_every_ending_is_understood(ending):
    assert find_model(f"Llama-3.1-8B-{ending}").hidden == 4096


@given(st.text(max_size=40))
def test_any_text_is_a_model_or_none(text):
    assert find_model(text) is None or isinstance(find_model(text), ModelShape)


def test_an_unknown_name_lists_the_nearest():
    with pytest.raises(UsageError, match=re.escape("Llama-3.1-8B")):
        load_model("llama-3.1-8bb")
    with pytest.raises(UsageError, match=re.escape("config.json")):
        load_model("our-own-model")


def test_a_config_that_does_not_exist(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        load_model(str(tmp_path / "config.json"))


# -- listings ----------------------------------------------------------------------------------------------------------


def test_list_of_models():
    rows = {row["name"]: row for row in list_models()}
    assert rows.keys() == known_models().keys()
    llama = rows["Llama-3.1-8B"]
    assert llama["parameters"] == 8_030_261_248
    assert llama["kv_bytes_per_token"] == 131_072
    assert llama["ridge_batch_a100"] == pytest.approx(312e12 / 2.039e12, rel=1e-3)
    assert llama["ridge_batch_h100"] == pytest.approx(295, rel=2e-3)
    # no fp8 arithmetic on an A100: its weights are unpacked to 16 bit, so the ridge comes at half the batch
    assert rows["DeepSeek-V3"]["ridge_batch_a100"] < rows["DeepSeek-V3"]["ridge_batch_h100"] / 2
    # an alias that differs in case and punctuation alone is no other name
    assert "llama3.1-8b" not in llama["aliases"]


@pytest.mark.parametrize("command", ["models", "markers", "gpus"])
def test_listings_in_a_pipe_are_one_line_a_row(command, capsys):
    from trace_analyze.reports.commands import listings

    getattr(listings, f"print_{command}")()
    lines = capsys.readouterr().out.splitlines()
    known = {"models": len(known_models()), "markers": None, "gpus": None}[command]
    assert known is None or len(lines) == known + 2
    assert all(line == line.rstrip() for line in lines)
    assert len(lines) > 20


@pytest.mark.parametrize("command", ["models", "markers"])
def test_listings_fit_eighty_columns(command, capsys, monkeypatch):
    import sys

    from trace_analyze.reports.commands import listings

    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    getattr(listings, f"print_{command}")()
    lines = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in capsys.readouterr().out.splitlines()]
    assert max(map(len, lines)) <= 80
    if command == "models":  # the numbers stay, further names go
        assert {"KV", "A100", "H100"} <= set(next(line for line in lines if line.startswith("model")).split())
