"""The work of whole models by layer kind, against figures worked out by hand from the published shapes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from trace_analyze.analysis.models.find_model import known_models
from trace_analyze.analysis.models.hf_config import shape_of
from trace_analyze.analysis.models.model_shape import (
    kv_bytes_per_token,
    parameters_total,
    state_bytes_per_request,
    weight_bytes_per_token,
)
from trace_analyze.analysis.work.operators.layer_kind_formulas import Batch
from trace_analyze.analysis.work.operators.layer_work import model_work, part_work, total_work, unknown_layers

DECODE = Batch.of([1] * 32, [2048] * 32, "decode")
ONE = Batch.of([1], [8192], "decode")
PREFILL = Batch.of([8192], [8192], "prefill")


def kinds(name, batch=DECODE):
    """{kind: KindWork} of a model; kinds that come in several groups are joined by the first."""
    found = {}
    for each in model_work(known_models()[name], batch):
        found.setdefault(each.kind, each)
    return found


def operator(kind, name):
    return next(each for each in kind.operators if each.operator == name)


@pytest.mark.parametrize("name", known_models())
def test_parameters_by_kind_add_up_to_the_model(name):
    """Learned positions, embedding norms and biases of norms are in no layer (OPT, GPT-2, BLOOM: up to 1.3%)."""
    shape = known_models()[name]
    counted = sum(each.parameters for each in model_work(shape, ONE))
    assert counted == pytest.approx(parameters_total(shape), rel=2e-2 if shape.learned_positions else 2e-4)


@pytest.mark.parametrize(
    ("name", "recurrent", "conv"),
    [
        # layers x heads x their state in fp32, and (k - 1) columns of the convolution at 2 bytes
        ("Qwen3-Next-80B-A3B", 36 * 2_097_152, 36 * 8192 * 3 * 2),
        ("Nemotron-H-8B", 24 * 4_194_304, 24 * (8192 + 2 * 8 * 128) * 3 * 2),
        ("Kimi-Linear-48B-A3B", 20 * 2_097_152, 20 * 3 * 4096 * 3 * 2),
        ("Nemotron-3-Nano-30B-A3B", 23 * 2_097_152, 23 * (4096 + 2 * 8 * 128) * 3 * 2),
        ("Nemotron-H-56B", 54 * 16_777_216, 54 * (16384 + 2 * 8 * 256) * 3 * 2),
        ("Qwen3.5-397B-A17B", 45 * 4_194_304, 45 * (2 * 2048 + 8192) * 3 * 2),
        ("Jamba-v0.1", 28 * 8192 * 16 * 4, 28 * 8192 * 3 * 2),
        ("MiniMax-Text-01", 70 * 64 * 128 * 128 * 2, 0),
        ("LFM2-1.2B", 0, 10 * 2048 * 2 * 2),
        ("Llama-3.1-8B", 0, 0),
    ],
)
def test_state_of_a_request(name, recurrent, conv):
    assert state_bytes_per_request(known_models()[name]) == recurrent + conv


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("Qwen3-Next-80B-A3B", 12 * 2 * 2 * 256 * 2),  # full layers alone
        ("Nemotron-H-8B", 4 * 2 * 8 * 128 * 2),
        ("Kimi-Linear-48B-A3B", 7 * 576 * 2),
        ("MiMo-V2-Flash", (9 * 4 + 39 * 8) * (192 + 128) * 2),
        ("Gemma-4-31B", (50 * 16 * 512 + 10 * 4 * 1024) * 2),
        ("DeepSeek-V3.2", 61 * (576 * 2 + 132)),
        # a row of 584 bytes for every 4 tokens with its index key, or for every 128
        ("DeepSeek-V4-Flash", 21 * (584 + 64) / 4 + 20 * 584 / 128),
        ("mamba", 0),
    ],
)
def test_cache_that_a_token_adds(name, size):
    shape = known_models()["Mamba-Codestral-7B" if name == "mamba" else name]
    assert kv_bytes_per_token(shape) == pytest.approx(size)


def test_decode_of_gated_delta_net():
    """Qwen3-Next, 32 requests, one layer: every state is read and written, 2 x 32 x 2.1 MB; 7 FLOP an element."""
    delta = kinds("Qwen3-Next-80B-A3B")["gated DeltaNet"]
    state = operator(delta, "recurrence")
    assert delta.layers == 36
    assert state.work.flop == 32 * 7 * 32 * 128 * 128
    assert (state.state_read, state.state_written) == (32 * 2_097_152, 32 * 2_097_152)
    assert state.work.kv == 2 * 32 * 2_097_152
    assert state.work.activations == 32 * 2 * (2 * 2048 + 2 * 4096)
    conv = operator(delta, "convolution")
    assert conv.work.flop == 32 * 2 * 4 * 8192
    assert conv.work.kv == 2 * 32 * 8192 * 3 * 2
    # projections: hidden 2048 to 2 x 2048 + 2 x 4096 and to 2 x 32, and 4096 back
    weights = 2048 * (12288 + 64) + 4096 * 2048
    assert sum(each.work.weights for each in delta.operators) == 2 * weights + 2 * 4 * 8192
    gemms = sum(each.work.flop for each in delta.operators if each.operator.startswith("linear"))
    assert gemms == 2 * 32 * weights
    assert delta.state_bytes == 36 * 2 * 32 * (2_097_152 + 49_152)


def test_state_does_not_grow_and_the_cache_does():
    for lengths, cache in ((1000, 12 * 2048), (64_000, 12 * 2048)):
        batch = Batch.of([1], [lengths], "decode")
        found = model_work(known_models()["Qwen3-Next-80B-A3B"], batch)
        assert sum(each.state_bytes for each in found) == 36 * 2 * (2_097_152 + 49_152)
        attention = next(each for each in found if each.kind == "attention")
        assert attention.work.kv == cache * (lengths + 1)


def test_prefill_writes_a_state_once_a_request():
    """A fresh prompt has no state to read; a continued one has. Kernels execute more than the recurrence."""
    delta = kinds("Qwen3-Next-80B-A3B", Batch.of([8192, 100], [8192, 300], "prefill"))["gated DeltaNet"]
    state = operator(delta, "recurrence")
    assert (state.state_read, state.state_written) == (2_097_152, 2 * 2_097_152)
    assert state.executed_flop / state.work.flop == pytest.approx(1 / 0.63, rel=0.01)


def test_mamba2_of_nemotron_h():
    """Nemotron-H-8B: in_proj 4096 x (8192 + 10240 + 128), out_proj 8192 x 4096, state 128 x 64 x 128 in fp32."""
    mamba = kinds("Nemotron-H-8B")["Mamba-2"]
    assert operator(mamba, "mamba_in").work.weights == 2 * 4096 * 18_560
    assert operator(mamba, "mamba_out").work.weights == 2 * 8192 * 4096
    state = operator(mamba, "recurrence")
    assert state.work.flop == 32 * 5 * 1_048_576
    assert state.work.kv == 2 * 32 * 4 * 1_048_576
    assert state.work.activations == 32 * 2 * (2 * 8192 + 2 * 1024 + 128)
    assert mamba.layers == 24


def test_attention_of_gated_heads():
    """Qwen3-Next's q projection is twice as wide: 2048 x (2 x 4096 + 2 x 512)."""
    full = kinds("Qwen3-Next-80B-A3B")["attention"]
    assert operator(full, "qkv").work.weights == 2 * 2048 * 9216
    assert operator(full, "attention").work.flop == 4 * 16 * 256 * 32 * 2048


def test_sparse_attention_of_deepseek_v32():
    """One query at 8192 tokens: scores 2 x 64 x 128 x 8192, attention 2 x 128 x 1088 x 2048 on the latents."""
    sparse = kinds("DeepSeek-V3.2", ONE)["sparse latent attention"]
    index, attention = operator(sparse, "index_scores"), operator(sparse, "attention")
    assert index.work.flop == 2 * 64 * 128 * 8192
    assert index.work.kv == 132 * (8192 + 1)
    assert index.work.activations == 2 * 4 * 8192
    assert attention.work.flop == 2 * 128 * (512 + 64 + 512) * 2048
    assert attention.work.kv == 576 * 2 * 2048
    weights = sum(operator(sparse, place).work.weights for place in ("index_q", "index_k"))
    assert weights == pytest.approx((1536 * 8192 + 7168 * 128) * (1 + 4 / 16384))


def test_fp8_rows_of_sparse_attention():
    """656 bytes: 512 e4m3, 4 scales of fp32, 64 rope elements at 16 bit."""
    fp8 = replace(known_models()["DeepSeek-V3.2"], kv_dtype="fp8")
    assert kv_bytes_per_token(fp8) == 61 * (656 + 132)


def test_layers_of_glm_52_share_an_indexer():
    """21 of 78 layers choose; the others take that choice again and have no weights for it."""
    found = model_work(known_models()["GLM-5.2"], ONE)
    owners = [each for each in found if any(op.operator == "index_scores" for op in each.operators)]
    assert sum(each.layers for each in owners) == 21
    assert sum(each.layers for each in found if each.kind == "sparse latent attention") == 78


def test_compressed_attention_of_deepseek_v4():
    """V4-Flash at 8192 tokens: window 128, and 512 chosen of 2048 rows of 4, or all 64 rows of 128."""
    found = model_work(known_models()["DeepSeek-V4-Flash"], ONE)
    compressed = [each for each in found if each.kind == "compressed attention"]
    chosen = next(each for each in compressed if any(op.operator == "index_scores" for op in each.operators))
    all_read = next(each for each in compressed if all(op.operator != "index_scores" for op in each.operators))
    assert operator(chosen, "attention").work.flop == 4 * 64 * 512 * (128 + 512)
    assert operator(chosen, "attention").work.kv == 584 * (128 + 512)
    assert operator(chosen, "index_scores").work.flop == 2 * 64 * 128 * 2048
    assert operator(all_read, "attention").work.flop == 4 * 64 * 512 * (128 + 64)
    assert sum(each.layers for each in compressed) == 41


def test_windows_and_sinks_of_gpt_oss():
    """Half of the layers read 128 tokens a request whatever the length."""
    found = kinds("gpt-oss-20b", Batch.of([1] * 4, [4096] * 4, "decode"))
    assert operator(found["window attention"], "attention").work.kv == 2 * 2 * 8 * 64 * 4 * 128
    assert operator(found["attention"], "attention").work.kv == 2 * 2 * 8 * 64 * 4 * 4096
    assert (found["window attention"].layers, found["attention"].layers) == (12, 12)


def test_chunks_of_llama_4():
    """36 of 48 layers see 10,000 mod 8192 + 1 tokens at length 10,001; every fourth sees all."""
    found = kinds("Llama-4-Scout-17B-16E", Batch.of([1], [10_001], "decode"))
    assert found["chunked attention"].layers == 36
    assert operator(found["chunked attention"], "attention").work.flop == 4 * 40 * 128 * 1809
    assert operator(found["attention"], "attention").work.flop == 4 * 40 * 128 * 10_001


def test_block_sparse_attention_of_minimax_m3():
    """16 chosen blocks of 128 and the query's own."""
    sparse = kinds("MiniMax-M3", ONE)["block-sparse attention"]
    assert operator(sparse, "attention").work.flop == 4 * 64 * 128 * 17 * 128
    assert operator(sparse, "index_scores").work.flop == 2 * 4 * 128 * 8192
    assert sparse.layers == 57


def test_latent_experts():
    """Nemotron-3-Super: experts of 1024 x 2688, up and down alone, after a projection 4096 to 1024."""
    experts = kinds("Nemotron-3-Super-120B-A12B", ONE)["experts"]
    assert operator(experts, "expert_gate_up").work.flop == 2 * 22 * 1024 * 2688
    assert operator(experts, "latent_in").work.flop == 2 * 4096 * 1024
    assert operator(experts, "shared_gate_up").work.flop == 2 * 4096 * 5376


def test_experts_without_weights():
    """LongCat-Flash: 12 choices of 768, 256 of which are identities: 8 real experts on average."""
    experts = kinds("LongCat-Flash", ONE)["experts"]
    assert operator(experts, "expert_gate_up").work.flop == pytest.approx(2 * 8 * 6144 * 4096)
    assert operator(experts, "router").work.flop == 2 * 6144 * 768


def test_decode_of_a_dense_model_is_the_known_sum():
    """Llama-3.1-8B: 2 FLOP a weight and 4 H d S a layer; each weight read once."""
    shape = known_models()["Llama-3.1-8B"]
    work = total_work(model_work(shape, ONE))
    matrices = weight_bytes_per_token(shape) / 2
    assert work.weights == pytest.approx(2 * matrices + 2 * 4096)  # and one row of the table
    small = 2 * matrices + 32 * 4 * 32 * 128 * 8192
    assert small < work.flop < 1.001 * small
    assert work.kv == 131_072 * (8192 + 1)


def test_prefill_computes_latents_and_decode_absorbs():
    prefill, decode = kinds("DeepSeek-V3", PREFILL)["latent attention"], kinds("DeepSeek-V3", ONE)["latent attention"]
    pairs = 8192 * 8193 / 2
    assert operator(prefill, "attention").work.flop == 2 * 128 * (192 + 128) * pairs
    assert operator(decode, "attention").work.flop == 2 * 128 * 1088 * 8192
    assert {"kv_b"} <= {each.operator for each in prefill.operators}
    assert {"absorb_q", "absorb_o"} <= {each.operator for each in decode.operators}


def test_a_kind_nobody_knows_is_left_out_and_said():
    config = {
        "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
        "layer_types": ["full_attention", "brand_new_mixer"] * 16,
    }  # fmt: skip
    shape = shape_of(config)
    found = model_work(shape, ONE)
    assert unknown_layers(found) == {"unknown (brand_new_mixer)": 16}
    assert any("'brand_new_mixer' in 16 layers" in note for note in shape.notes)
    assert sum(each.layers for each in found if each.kind == "MLP") == 32
    assert sum(each.layers for each in found if each.kind == "attention") == 16
    assert total_work(found).flop > 0
    assert parameters_total(shape) == 8_030_261_248 - 16 * (4096 * 6144 + 4096 * 4096)


def test_every_part_of_every_model_has_finite_work():
    for shape in known_models().values():
        for group in shape.groups:
            for part in group.parts:
                for batch in (ONE, PREFILL):
                    operators = list(part_work(shape, part, batch))
                    assert operators
                    assert all(np.isfinite([float(each.work.flop), float(each.work.bytes)]).all() for each in operators)
