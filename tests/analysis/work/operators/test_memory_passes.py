"""Kernels beside the layers' own: passes over logits and router scores, gates of their own, quantised inputs."""

from __future__ import annotations

import re

import numpy as np
import polars as pl
import pytest

from trace_analyze.analysis.kernels.classify import classify_names
from trace_analyze.analysis.work.operators.gemm_orders import PLACES
from trace_analyze.analysis.work.operators.name_arrays import memory_passes, name_columns
from trace_analyze.analysis.work.operators.table_passes import PLACE_OF_TABLE


def columns(names):
    frame = pl.DataFrame({"name_id": pl.Series(range(len(names)), dtype=pl.UInt32), "name": names})
    frame = frame.with_columns(short_name=pl.col("name"))
    return name_columns(frame, classify_names(frame), None)


def test_every_row_is_met_by_its_example_first():
    for row in memory_passes():
        for example in row.examples:
            assert next(each for each in memory_passes() if re.search(each.pattern, example)) is row


def test_names_tell_place_and_bytes():
    rows = memory_passes()
    found = columns([row.examples[0] for row in rows])
    assert [PLACES[code] for code in found.pass_place] == [PLACE_OF_TABLE[row.of] for row in rows]
    assert found.pass_bytes.tolist() == [row.bytes for row in rows]


def test_other_kernels_pass_over_nothing():
    found = columns(
        ["void at::native::mbtopk::gatherTopK<float, unsigned int, -1>(T1)", "nvjet_tst_64x8_64x16_4x1_v_bz_TNT"]
    )
    assert found.pass_place.tolist() == [0, 0]
    assert np.isnan(found.pass_bytes).all()


def rows_of(prepared, name, place):
    kernels = prepared(name).with_model().kernels
    return kernels.filter(pl.col("place") == place)


def test_sampling_reads_the_logits(prepared):
    """vLLM samples at random with fp32 softmax (8 B a logit) and argmax (4 B) over 128,256 entries of 8 requests."""
    kernels = rows_of(prepared, "vllm-llama-8b-h100-unmarked", "sampling")
    first = kernels.filter(pl.col("step") == kernels["step"][0])
    assert sorted(first["bytes"].drop_nulls().to_list()) == [4.0 * 8 * 128256, 8.0 * 8 * 128256]
    assert first["bytes"].null_count() == 1  # the random draws: what they read is not known


def test_routing_reads_scores_and_choices(prepared):
    """Qwen3-30B-A3B: 128 experts of which 8 a token; 8 tokens in the first decode step."""
    for place, size in (("routing_scores", 4.0 * 8 * 128), ("routing_choices", 8.0 * 8 * 8)):
        kernels = rows_of(prepared, "vllm-qwen3-moe-h100", place)
        assert set(kernels.filter(pl.col("step") == 0)["bytes"]) == {size}


def test_a_gate_of_its_own_reads_no_up(prepared):
    """Hugging Face's eager MLP: SiLU on the gate reads and writes T I, the product reads both and writes one."""
    for place, size in (("activation_alone", 2 * 2 * 14336), ("gate_product", 3 * 2 * 14336)):
        kernels = rows_of(prepared, "hf-llama-8b-a100-one-user", place)
        assert kernels.height == 32 * 28
        assert set(kernels.filter(pl.col("step_phase") == "decode")["bytes"]) == {float(size)}


def test_every_quantised_input_has_its_bytes(prepared):
    """llama.cpp quantises the input of each GEMM by itself; lm_head's is one row of 4,096."""
    run = prepared("llamacpp-llama-8b-rtx4090")
    kernels = run.against_truth(run.with_model()).filter(pl.col("op_class") == "quantize")
    assert kernels["bytes"].null_count() == 0
    assert ((kernels["bytes"] - kernels["true_bytes"]).abs() <= 0.01 * kernels["true_bytes"]).all()


@pytest.mark.parametrize("op_class", ["copy", "step_metadata", "sampling"])
def test_what_has_no_formula_says_so(prepared, op_class):
    table = prepared("vllm-llama-8b-h100-unmarked").with_model().kernel_table
    unknown = table.filter((pl.col("op_class") == op_class) & pl.col("bytes").is_null())
    assert unknown.height
    assert all(reason.startswith("no formula: ") for reason in unknown["reason"])
    assert unknown["flop"].null_count() == unknown.height


def test_draft_steps_have_no_work_and_say_why(prepared):
    """Speculation: the draft's own layers are not the model's, and its sizes are not in the capture."""
    table = prepared("vllm-llama-8b-h100-speculative").with_model().kernel_table
    draft = table.filter((pl.col("phase") == "other") & (pl.col("op_class") == "gemm"))
    assert draft.height
    assert draft["flop"].null_count() == draft["bytes"].null_count() == draft.height
    assert all("warm-up, graph capture or a draft" in reason for reason in draft["reason"])
