"""Wrong models, ranks and data types: what the kernels say against them is reported, and names win."""

from __future__ import annotations

import polars as pl
import pytest

RUN = "vllm-llama-8b-h100-marks"
MOE = "vllm-qwen3-moe-h100"
INT4 = "vllm-llama-8b-a100-int4-unmarked"


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        (RUN, {"model": "llama-3.1-8b", "tensor_parallel": 4}, "4 tensor-parallel ranks by --tp, but no step holds"),
        (RUN, {"model": "llama-3.1-8b", "weight_dtype": "fp8"}, "said to be fp8, but 100% of decode's GEMM time is in"),
        (RUN, {"model": "llama-3.1-8b", "weight_dtype": "int4"}, "said to be int4, but 100% of decode's GEMM time is"),
        (RUN, {"model": "mixtral-8x7b"}, "Mixtral-8x7B has experts, but no expert GEMM runs"),
        (MOE, {"model": "llama-3.1-8b"}, "expert GEMMs run in the steps, but Llama-3.1-8B has no experts"),
        ("vllm-deepseek-lite-h100-mla", {"model": "qwen3-30b-a3b"}, "latent caches (MLA) run, but Qwen3-30B-A3B has"),
        ("vllm-llama-8b-h100-tp2", {"tensor_parallel": 1}, "--tp 1, but 2 devices run one step together"),
        (INT4, {"model": "llama-3.1-8b", "weight_dtype": "bf16"}, "weights counted as int4 in the kernels whose names"),
        (RUN, {"model": "llama-3.1-70b"}, "32 layers seen in the capture, Llama-3.1-70B has 80"),
    ],
)
def test_what_the_kernels_contradict_is_said(prepared, name, options, words):
    said = prepared(name).work(**options).trust["contradictions"]
    assert any(words in each for each in said), said


@pytest.mark.parametrize(
    "name",
    [
        *(RUN, MOE, INT4, "vllm-llama-8b-h100-tp2", "vllm-deepseek-lite-h100-mla", "vllm-llama-8b-h200-fp8-kv8"),
        *("sglang-qwen3-moe-h100-fp8", "trtllm-llama-8b-h100", "llamacpp-llama-8b-rtx4090"),
    ],
)
def test_right_statements_are_not_contradicted(prepared, name):
    assert prepared(name).with_model().trust["contradictions"] == ()


@pytest.mark.parametrize("weight_dtype", ["fp8", "int4"])
def test_cublas_reads_16_bit_weights_whatever_is_said(prepared, weight_dtype):
    run = prepared(RUN)
    right, wrong = run.work(model="llama-3.1-8b"), run.work(model="llama-3.1-8b", weight_dtype=weight_dtype)
    assert wrong.kernels["bytes_weights"].equals(right.kernels["bytes_weights"])


def test_ratios_of_a_model_too_large_are_refused_with_their_inputs(prepared):
    table = prepared(RUN).work(model="llama-3.1-70b").kernel_table
    decode = table.filter((pl.col("op_class") == "gemm") & (pl.col("phase") == "decode"))
    assert decode["mbu_pct"].null_count() == decode.height
    assert all("check the bytes" in each and "the bandwidth (3352.32 GB/s)" in each for each in decode["reason"])
    assert set(decode["bound"]) == {"unknown"}
