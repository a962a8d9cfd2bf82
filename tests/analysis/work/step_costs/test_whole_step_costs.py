"""Steps in opaque graph replays: the whole model's work, held against steps whose kernels are all recorded."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from trace_analyze.analysis.models.load_model import load_model
from trace_analyze.analysis.work.kv_lengths.step_kv_lengths import kv_lengths
from trace_analyze.analysis.work.operators.layer_matrices import RankShape
from trace_analyze.analysis.work.step_costs.place_costs import step_sums
from trace_analyze.analysis.work.step_costs.whole_step_costs import kernels_per_step, whole_steps

OPAQUE = "vllm-llama-8b-h100-opaque-graphs"


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        ("vllm-llama-8b-a100-eager-detailed", 1),
        ("vllm-qwen3-moe-h100", 1),
        ("vllm-deepseek-lite-h100-mla", 1),
        ("vllm-llama-8b-h100-tp2", 2),
        ("vllm-llama-8b-h200-fp8-kv8", 1),
    ],
)
def test_the_whole_model_does_what_its_kernels_do(prepared, name, ranks):
    """Matrices and cache to 0.1%, activations within a fifth (quantisation and residuals are kernels of their own)."""
    run = prepared(name)
    result = run.with_model()
    shape = load_model(run.run.config.model)
    lengths = kv_lengths(run.phases.steps)
    sums = step_sums(run.phases.steps, lengths)
    device = run.phases.steps["device_index"].to_numpy()
    own = whole_steps(RankShape(shape, ranks), sums, device, run.devices)
    steps = result.steps.with_columns(
        **{f"whole_{each}": pl.Series(getattr(own, each)) for each in ("flop", "weights", "kv", "activations")}
    ).filter(~pl.col("partial") & ~pl.col("excluded") & pl.col("phase").is_in(["decode", "prefill", "mixed"]))
    assert steps.height > 30
    known = steps.filter(pl.col("bytes_kv").is_not_null())

    def far(frame, column, whole, tolerance):
        return frame.filter((pl.col(whole) / pl.col(column) - 1.0).abs() > tolerance).height

    assert far(steps, "flop", "whole_flop", 1e-3) == 0
    if run.run.config.weight_dtype == "bf16":
        assert far(steps, "bytes_weights", "whole_weights", 1e-3) == 0
        assert far(steps, "bytes_activations", "whole_activations", 0.2) == 0
    assert far(known, "bytes_kv", "whole_kv", 1e-3) == 0


def test_counts_of_a_dense_model():
    """Llama-3.1-8B: 32 layers of qkv, o, gate_up, down; two norms a layer that each count twice for the residual."""
    counts = kernels_per_step(load_model("llama-3.1-8b"))
    assert {place: counts[place] for place in ("qkv", "o", "gate_up", "down", "lm_head", "attention", "norm")} == {
        **dict.fromkeys(("qkv", "o", "gate_up", "down", "attention"), 32.0),
        **{"lm_head": 1.0, "norm": 128.0},
    }


def test_sliding_layers_attend_in_their_window():
    counts = kernels_per_step(load_model("gpt-oss-20b"))
    assert (counts["attention"], counts["attention/window"]) == (12.0, 12.0)


class TestOpaque:
    def test_decode_steps_have_the_models_work(self, prepared):
        run = prepared(OPAQUE)
        result = run.with_model()
        decode = result.steps.filter(pl.col("phase") == "decode")
        truth = run.run.truth.steps.filter((pl.col("phase") == "decode") & ~pl.col("excluded"))
        assert decode.height == truth.height == 61
        assert np.allclose(decode["bytes_weights"], truth["bytes_weights"], rtol=1e-3)
        assert (decode["flop"] <= truth["flop"]).all()  # attention's lengths are not known
        assert (decode["flop"] >= 0.95 * truth["flop"]).all()
        assert decode["bytes_kv"].null_count() == decode.height
        assert decode["mbu_pct"].median() == pytest.approx(78.7, abs=0.5)
        assert result.model["decode_bytes_are_lower_bound"] is True
        assert any("graph replays recorded as one row each" in note for note in result.model["notes"])

    def test_weights_have_a_bandwidth_from_the_batch(self, prepared):
        traffic = prepared(OPAQUE).with_model().traffic
        assert traffic["weights_fit_over"] == "steps at batch zero"
        assert traffic["weights_fitted_mbu_pct"] == pytest.approx(84, abs=2)

    def test_replays_without_a_row_leave_the_step_without_work(self, prepared):
        """The steps' time is not known either: work over what is left of it would be a ratio of nothing."""
        steps = prepared("vllm-llama-8b-h100-lost-graphs").with_model().steps.filter(pl.col("phase") == "decode")
        for column in ("flop", "bytes", "bytes_weights", "mfu_pct", "mbu_pct"):
            assert steps[column].null_count() == steps.height

    def test_without_a_model_there_is_no_work(self, prepared):
        from dataclasses import replace

        from trace_analyze.analysis.records.trace import ServingFacts

        run = prepared(OPAQUE)
        silent = replace(run.trace, capture=replace(run.trace.capture, serving=ServingFacts()))
        steps = replace(run, trace=silent).work().steps.filter(pl.col("phase") == "decode")
        assert steps["bytes"].null_count() == steps.height
