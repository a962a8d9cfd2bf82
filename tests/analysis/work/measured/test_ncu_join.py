"""Nsight Compute results on simulated kernels: bytes and FLOPs from there, durations from the capture."""

from __future__ import annotations

import csv

import polars as pl
import pytest

import trace_analyze
from trace_analyze.fixtures.writers.ncu_writer import write_ncu_csv

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


def test_counters_far_from_the_model_are_used_and_both_are_named(prepared, tmp_path):
    """Twice the bytes the model asks for: a warning with both figures, and the counters stand."""
    run = prepared("vllm-llama-8b-a100-eager-detailed")
    page = tmp_path / "raw.csv"
    write_ncu_csv(run.run, page, step=3, ops=("gemm",))
    with page.open(newline="", encoding="utf-8") as file:
        first, *rows = list(csv.reader(file))
    header = rows[0]
    reads = header.index("dram__bytes_read.sum")
    for row in rows[2:]:
        row[reads] = str(2 * int(row[reads]))
    with page.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([first, *rows])
    without, doubled = run.with_model(), run.with_model(ncu=(page,))
    measured = doubled.kernels["work_source"] == "measured"
    assert measured.sum() > 32
    ratio = doubled.kernels.filter(measured)["bytes"] / without.kernels.filter(measured)["bytes"]
    assert ratio.min() > 1.9
    said = [each for each in doubled.trust["contradictions"] if "by Nsight Compute" in each]
    assert said
    assert all("B by the model" in each for each in said)


class TestAlone:
    """Results of Nsight Compute without a capture: every kernel has its own counters and no other's."""

    def analyse(self, run, page, step, ops):
        profiled = write_ncu_csv(run.run, page, step=step, ops=ops)
        return profiled, trace_analyze.analyze(trace_analyze.open_trace(page), gpu="h100", ncu=[page])

    def test_launches_of_one_name_and_grid_keep_their_own(self, prepared, tmp_path):
        run = prepared(RUN)
        profiled, result = self.analyse(run, tmp_path / "alone.csv", 3, ("gemm", "attention"))
        size = (profiled["dram_read_bytes"] + profiled["dram_write_bytes"]).cast(pl.Float64)
        assert result.kernels["bytes"].to_list() == size.to_list()
        assert result.kernels["flop"].to_list() == profiled["tensor_flop"].cast(pl.Float64).to_list()
        assert set(result.kernels["work_source"]) == {"measured"}

    def test_ratios_and_bounds(self, prepared, tmp_path):
        """gate_up of a decode step: 117 million weights at 2 bytes and a little more, bound by memory."""
        run = prepared(RUN)
        profiled, result = self.analyse(run, tmp_path / "alone.csv", 3, ("gemm",))
        at = profiled["place"].to_list().index("gate_up")
        kernel = result.kernels.row(at, named=True)
        assert kernel["bytes"] == pytest.approx(2 * 4096 * 2 * 14336, rel=0.05)
        rate = kernel["bytes"] / profiled["duration_ns"][at]
        assert kernel["mbu_pct"] == pytest.approx(100 * rate / 3350, rel=0.01)
        assert set(result.kernel_table["bound"]) == {"memory"}
        assert "serving is faster" in result.measured["ncu"]["notes"][0]

    def test_a_real_page(self, shared_traces):
        """A decode GEMV of DeepSeek-OCR: 2.33 MB of DRAM traffic in 6.75 us; its FLOPs were not collected."""
        page = shared_traces / "ncu" / "dsocr-decode-kernel-0001.details.csv"
        result = trace_analyze.analyze(trace_analyze.open_trace(page), gpu="a100", ncu=[page])
        row = result.kernel_table.row(0, named=True)
        assert (row["op_class"], row["bytes"], row["work_source"]) == ("gemm", 2.33e6, "measured")
        assert row["total_ms"] == pytest.approx(0.00675)
        assert row["flop"] is None
        assert "not counted by Nsight Compute" in row["reason"]
