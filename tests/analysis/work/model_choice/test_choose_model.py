"""Which model, how many ranks, which data types; shapes that a capture records in its texts."""

from __future__ import annotations

import json
from dataclasses import replace

import polars as pl
import pytest

from trace_analyze.analysis.models.find_model import bytes_per_weight
from trace_analyze.analysis.models.load_model import load_model
from trace_analyze.analysis.models.usual_storage import arithmetic_dtype
from trace_analyze.analysis.records.errors import UsageError
from trace_analyze.analysis.records.options import Options
from trace_analyze.analysis.records.trace import ServingFacts
from trace_analyze.analysis.work.model_choice.choose_model import choose_model, normalise_dtype
from trace_analyze.analysis.work.model_choice.launch_grids import _block_counts
from trace_analyze.analysis.work.operators.layer_matrices import RankShape, places_of_shape, rank_matrices
from trace_analyze.analysis.work.operators.recorded_shapes import shapes_of_texts
from trace_analyze.analysis.work.work_input import WorkInput


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("aten::mm, seq = 12, op_id = 345, sizes = [[16, 4096], [4096, 6144]], input_op_ids = [(12,0),(0,-1)]", (16, 6144, 4096, 1)),
        ("aten::mm, sizes = [[16, 4096], [4096, 6144]]", (16, 6144, 4096, 1)),
        ("aten::addmm, op_id = 3, sizes = [[6144], [16, 4096], [4096, 6144], [], []]", (16, 6144, 4096, 1)),
        ("aten::bmm, op_id = 9, sizes = [[128, 4, 128], [128, 128, 512]]", (4, 512, 128, 128)),
        ("aten::_scaled_mm, sizes = [[16, 4096], [4096, 6144], [], []]", (16, 6144, 4096, 1)),
        ("{'Module': 'LlamaForCausalLM.model.layers.0.self_attn.qkv_proj', 'TrainableParams': {'weight': [6144, 4096]}, 'Inputs': [[16, 4096]]}", (16, 6144, 4096, 1)),
        ("{'Module': 'model.model.layers.0.self_attn.qkv_proj', 'TrainableParams': {'weight': [6144, 4096]}, 'Inputs': [[16, 4096], [16]]}", (16, 6144, 4096, 1)),
        ("aten::linear, sizes = [[16, 4096], [6144, 4096]]", None),  # holds the aten::mm that launches
        ("aten::mm, seq = 12", None),
        ("aten::add, sizes = [[16, 4096], [16, 4096]]", None),
        ("execute_context_0(0)_generation_8(8)", None),
    ],
)  # fmt: skip
def test_shapes_in_texts(text, shape):
    found = shapes_of_texts(pl.DataFrame({"text_id": pl.Series([7], dtype=pl.UInt32), "text": [text]}))
    assert found.select("m", "n", "k", "batch").rows() == ([shape] if shape else [])


@pytest.mark.parametrize(
    ("said", "meant"),
    [("bfloat16", "bf16"), ("half", "fp16"), ("fp8_e4m3", "fp8"), ("AWQ", "int4"), ("gptq_marlin", "int4"), ("auto", None), (None, None), ("bf16", "bf16")],
)  # fmt: skip
def test_dtypes(said, meant):
    assert normalise_dtype(said) == meant


class TestRankMatrices:
    """Llama-3.1-70B: h 8192, 64 heads, 8 kv heads, d 128, I 28672, V 128256."""

    @pytest.mark.parametrize(
        ("ranks", "place", "outputs", "inputs"),
        [
            (1, "qkv", 64 * 128 + 2 * 8 * 128, 8192),
            (8, "qkv", 8 * 128 + 2 * 128, 8192),
            (8, "o", 8192, 1024),
            (8, "gate_up", 2 * 3584, 8192),
            (8, "down", 8192, 3584),
            (8, "lm_head", 16032, 8192),
            (16, "qkv", 4 * 128 + 2 * 128, 8192),  # kv heads are replicated, never less than one
        ],
    )
    def test_tensor_parallel(self, ranks, place, outputs, inputs):
        matrix = rank_matrices(RankShape(load_model("llama-3.1-70b"), ranks))[place]
        assert (matrix.outputs, matrix.inputs) == (outputs, inputs)

    def test_shapes_name_places(self):
        rank = RankShape(load_model("deepseek-v3"), 8)
        assert places_of_shape(rank, 2112, 7168) == ("qkv_a",)  # DeepGEMM's fused q_a and kv_a
        assert places_of_shape(rank, 3072, 1536) == ("q_b",)
        assert places_of_shape(rank, 17, 17) == ()

    def test_latent_cache_is_replicated(self):
        assert RankShape(load_model("deepseek-v3"), 8).kv_elements == 576


class TestStorage:
    @pytest.mark.parametrize(
        ("weight_dtype", "place", "size", "arithmetic"),
        [
            (None, "qkv", 2.0, "bf16"),
            ("fp8", "qkv", 1.0, "fp8"),
            ("fp8", "lm_head", 2.0, "bf16"),
            ("int4", "qkv", 0.5 + 2 / 128, "bf16"),  # weight-only: bf16 arithmetic (users.md M07)
            ("awq", "qkv", 0.5 + 2 / 128 + 0.5 / 128, "bf16"),
            ("int4", "lm_head", 2.0, "bf16"),
        ],
    )
    def test_bytes_and_arithmetic(self, prepared, weight_dtype, place, size, arithmetic):
        shape = choose(prepared, model="llama-3.1-8b", weight_dtype=weight_dtype).shape
        assert bytes_per_weight(shape, place) == pytest.approx(size)
        assert arithmetic_dtype(shape, place) == arithmetic

    def test_kv_dtype(self, prepared):
        assert choose(prepared, model="llama-3.1-8b", kv_dtype="fp8_e5m2").shape.kv_dtype == "fp8"


def test_fp8_attention_names_tell_the_cache(prepared):
    run = prepared("vllm-llama-8b-h100-marks")
    fp8 = pl.when(pl.col("op_class") == "attention").then(pl.lit("fp8")).otherwise(pl.col("dtype")).alias("dtype")
    facts = run.facts.with_columns(fp8)
    told = choose_model(WorkInput(run.trace, run.phases, facts, (), Options(model="llama-3.1-8b")))
    given = choose_model(WorkInput(run.trace, run.phases, facts, (), Options(model="llama-3.1-8b", kv_dtype="bf16")))
    assert (told.shape.kv_dtype, given.shape.kv_dtype) == ("fp8", "bf16")
    assert any("KV cache counted as fp8" in note for note in told.notes)


def choose(prepared, serving=None, groups=None, **options):
    run = prepared("vllm-llama-8b-h100-marks")
    facts = serving or ServingFacts()
    trace = replace(run.trace, capture=replace(run.trace.capture, serving=facts))
    phases = run.phases if groups is None else replace(run.phases, groups=groups)
    return choose_model(WorkInput(trace, phases, run.facts, (), Options(**options)))


class TestSources:
    def test_flag(self, prepared):
        choice = choose(prepared, model="llama-3.1-8b")
        assert (choice.source, choice.tensor_parallel, choice.tensor_parallel_source) == ("option", 1, "no_collectives")
        assert not choice.contradictions

    def test_layers_of_several_kinds_are_named_but_not_given_to_kernels(self, prepared):
        """Formulas for equal attention layers would count a hybrid wrongly: no rank, and the reason says why."""
        choice = choose(prepared, model="Nemotron-H-8B")
        assert (choice.shape.name, choice.rank) == ("Nemotron-H-8B", None)
        assert "several kinds" in choice.reason
        assert choose(prepared, model="DeepSeek-V3.2").rank is not None

    def test_unknown_flag_names_the_nearest(self, prepared):
        with pytest.raises(UsageError, match=r"Llama-3\.1-8B"):
            choose(prepared, model="llama-3.1-9b")

    def test_flag_against_command_line_is_said(self, prepared):
        choice = choose(prepared, ServingFacts(model="Llama-3.1-70B"), model="llama-3.1-8b")
        assert choice.shape.name == "Llama-3.1-8B"
        assert any("Llama-3.1-70B" in each for each in choice.contradictions)

    def test_the_recorded_name_tells_the_storage_that_the_flag_leaves_out(self, prepared):
        choice = choose(prepared, ServingFacts(model="Llama-3.1-8B-Instruct-AWQ-INT4"), model="llama-3.1-8b")
        assert choice.shape.weight_dtype == "int4"
        assert any("name ends in awq-int4" in note for note in choice.notes)
        assert not any("--model" in each for each in choice.contradictions)

    def test_a_config_beats_the_recorded_name_without_a_contradiction(self, prepared, tmp_path):
        gptq = {"quant_method": "gptq", "bits": 4, "group_size": 32}
        config = {
            **{"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32},
            **{"num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "quantization_config": gptq},
        }
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config))
        choice = choose(prepared, ServingFacts(model="Llama-3.1-8B-Instruct-AWQ-INT4"), model=str(path))
        assert (choice.shape.quantisation.method, choice.shape.quantisation.group_size) == ("gptq", 32)
        assert not any("--model" in each for each in choice.contradictions)

    def test_layers_against_model_are_said(self, prepared):
        choice = choose(prepared, model="llama-3.1-70b")
        assert any("32 layers seen" in each for each in choice.contradictions)

    def test_a_name_not_in_the_table_is_no_model(self, prepared):
        choice = choose(prepared, ServingFacts(model="my-finetune-v7"))
        assert choice.shape is None
        assert any("my-finetune-v7" in note for note in choice.notes)

    def test_command_line_sets_ranks_and_types(self, prepared):
        serving = ServingFacts(
            model="Llama-3.1-8B-Instruct", tensor_parallel=4, dtype="half", quantization="fp8", kv_cache_dtype="fp8"
        )
        choice = choose(prepared, serving)
        assert choice.rank.tensor_parallel == 4
        assert (choice.shape.activation_dtype, choice.shape.weight_dtype, choice.shape.kv_dtype) == (
            "fp16",
            "fp8",
            "fp8",
        )

    def test_ranks_of_a_group(self, prepared):
        groups = pl.DataFrame(
            {"group": [0], "devices": [[0, 1]], "kind": ["tensor_parallel"]},
            schema={"group": pl.Int32, "devices": pl.List(pl.Int32), "kind": pl.String},
        )
        assert choose(prepared, groups=groups, model="llama-3.1-8b").tensor_parallel == 2
        loud = choose(prepared, groups=groups, model="llama-3.1-8b", tensor_parallel=4)
        assert loud.tensor_parallel == 4
        assert any("2 devices" in each for each in loud.contradictions)


def test_one_rank_of_many_is_not_taken_for_the_whole(prepared):
    """One device with a collective in every layer: without --tp the work is unknown, not eight times too much."""
    run = prepared("vllm-llama-8b-h100-tp2")
    trace = replace(run.trace, capture=replace(run.trace.capture, serving=ServingFacts(), world_size=None))
    single = replace(run.phases, groups=run.phases.groups.clear())
    choice = choose_model(WorkInput(trace, single, run.facts, (), Options(model="llama-3.1-8b")))
    assert choice.rank is None
    assert "--tp" in choice.reason
    with_world = replace(trace, capture=replace(trace.capture, world_size=2))
    assert (
        choose_model(WorkInput(with_world, single, run.facts, (), Options(model="llama-3.1-8b"))).tensor_parallel == 2
    )


def test_tiles_cover_the_matrix():
    """cuBLAS 256x128 over 6144 x 2048: 24 x 16 tiles, either way round, swizzled or not."""
    counts = _block_counts(6144, 2048, 256, 128)
    assert 24 * 16 in counts
    assert 48 * 8 in counts
    assert 4096 not in counts
