"""Nsight Compute results on simulated kernels: bytes and FLOPs from there, durations from the capture."""

from __future__ import annotations

import polars as pl
import pytest

from trace_analyze.fixtures.ncu_writer import write_ncu_csv

RUN = "vllm-llama-8b-h100-decode-only"


@pytest.fixture(scope="module")
def results(prepared, tmp_path_factory):
    """The run analysed without and with the counters of one decode step."""
    run = prepared(RUN)
    page = tmp_path_factory.mktemp("ncu") / "raw.csv"
    write_ncu_csv(run.run, page, step=3)
    return run.with_model(), run.with_model(ncu=(page,))


def test_gemms_get_measured_bytes(results):
    without, measured = results
    gemms = measured.kernels.filter(pl.col("op_class") == "gemm")
    assert (gemms["work_source"] == "measured").mean() > 0.4  # the steps of the same batch: tiles change with it
    before = without.kernels.filter(pl.col("op_class") == "gemm")
    ratio = gemms["bytes"] / before["bytes"]
    assert ratio.max() < 1.5
    assert ratio.min() > 1 / 1.5


def test_launches_of_one_grid_go_to_their_own_matrices(results):
    """nvjet's persistent kernels share name and grid between qkv and gate_up: each gets its own counters."""
    _, measured = results
    gemms = measured.kernels.filter((pl.col("op_class") == "gemm") & (pl.col("work_source") == "measured"))
    by_place = dict(gemms.group_by("place").agg(pl.col("bytes").median()).iter_rows())
    assert by_place["gate_up"] > 4 * by_place["qkv"]


def test_useful_flops_stay_the_models_and_executed_ones_are_counted(results):
    without, measured = results
    assert measured.kernels["flop"].equals(without.kernels["flop"])
    gemm = measured.kernels.filter((pl.col("op_class") == "gemm") & (pl.col("work_source") == "measured"))
    assert (gemm["flop_executed"] >= 0.99 * gemm["flop"]).all()


def test_durations_stay_those_of_the_capture(results):
    without, measured = results
    times = ["name", "phase", "total_ms"]
    assert without.kernel_table.select(times).equals(measured.kernel_table.select(times))


def test_unknown_attention_is_not_filled_from_another_length(results):
    """Attention's grid is the same at every cache length, so one profiled length says nothing of the others."""
    _, measured = results
    attention = measured.kernels.filter(pl.col("op_class") == "attention")
    assert attention["bytes"].null_count() == attention.height
    assert measured.measured["ncu"]["joined_launches"] > 3
    assert any("durations are those of Nsight Systems" in note for note in measured.measured["ncu"]["notes"])


def test_results_of_other_kernels_say_so(prepared, tmp_path):
    run = prepared("vllm-llama-8b-h100-marks")
    other = prepared("vllm-llama-8b-a100-eager-detailed")
    page = tmp_path / "other.csv"
    write_ncu_csv(other.run, page, step=3)
    result = run.with_model(ncu=(page,))
    assert result.measured["ncu"]["kernels"] == 0
    assert "no profiled launch" in result.measured["ncu"]["notes"][0]
