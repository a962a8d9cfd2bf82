"""Sampled GPU metrics become one wide row per sample and GPU, whatever the names and the age of the export."""

import sqlite3
from pathlib import Path

import pytest

from trace_analyze.analysis.records.trace import Trace
from trace_analyze.fixtures.writers.nsys_writer import Capture
from trace_analyze.ingest import open_trace

HOPPER = {
    "GPC Clock Frequency [MHz]": [1_980_000_000, 1_410_000_000],  # Hz, whatever the name says
    "SMs Active [Throughput %]": [90, 10],
    "Tensor Active [Throughput %]": [45, 0],
    "DRAM Read Bandwidth [Throughput %]": [60, 5],
    "DRAM Write Bandwidth [Throughput %]": [20, 1],
    "Compute Warps in Flight [Avg]": [-3, 7_000_000],
}
ROWS = [
    (1_000, 0, 90.0, 45.0, 60.0, 20.0, 1.98e9),
    (101_000, 0, 10.0, 0.0, 5.0, 1.0, 1.41e9),
]


def capture_with(generation: str = "2025.6", metrics: dict | None = None) -> Capture:
    capture = Capture(generation)
    capture.gpu("h100")
    capture.kernel("gemm", 10_000, 200_000)
    capture.gpu_metrics([1_000, 101_000], HOPPER if metrics is None else metrics)
    return capture


def read(capture: Capture, path: Path, *statements: str) -> Trace:
    capture.write(path)
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()
    return open_trace(path)


@pytest.mark.parametrize("generation", ["2022", "2023.4", "2025.1", "2025.6", "2026.4"])
def test_samples_of_every_generation(tmp_path: Path, generation: str):
    # older exports hold them as JSON in GENERIC_EVENTS
    trace = open_trace(capture_with(generation).write(tmp_path / "run.sqlite"))
    assert trace.gpu_metrics.rows() == ROWS
    assert "no GPU metrics" not in {gap.what for gap in trace.gaps_in_evidence}


@pytest.mark.parametrize(
    "names",
    [
        ("gpc clock frequency [mhz]", "sms active [throughput %]", "tensor active [throughput %]"),
        ("GPC Clock Frequency", "SM Active", "Tensor Active / FP16 Active"),
    ],
)
def test_names_by_their_beginning_without_regard_to_case(tmp_path: Path, names: tuple[str, str, str]):
    values = [[1_980_000_000, 1_410_000_000], [90, 10], [45, 0]]
    trace = open_trace(capture_with(metrics=dict(zip(names, values, strict=True))).write(tmp_path / "run.sqlite"))
    rows = [(*row[:4], None, None, row[6]) for row in ROWS]
    assert trace.gpu_metrics.rows() == rows


def test_renamed_memory(tmp_path: Path):
    metrics = {"VRAM Read Bandwidth [Throughput %]": [60, 5], "VRAM Write Bandwidth [Throughput %]": [20, 1]}
    trace = open_trace(capture_with(metrics=metrics).write(tmp_path / "run.sqlite"))
    assert trace.gpu_metrics.select("dram_read_pct", "dram_write_pct").rows() == [(60.0, 20.0), (5.0, 1.0)]


def test_clocks_that_are_in_megahertz_after_all(tmp_path: Path):
    trace = open_trace(capture_with(metrics={"GPC Clock Frequency [MHz]": [1980, 1410]}).write(tmp_path / "run.sqlite"))
    assert trace.gpu_metrics["sm_clock_hz"].to_list() == [1.98e9, 1.41e9]


def test_values_that_are_no_percentage_are_null(tmp_path: Path):
    metrics = {"SMs Active [Throughput %]": [-5, 101], "Tensor Active [Throughput %]": [5_000, 50]}
    trace = open_trace(capture_with(metrics=metrics).write(tmp_path / "run.sqlite"))
    assert trace.gpu_metrics.select("sm_active_pct", "tensor_active_pct").rows() == [(None, None), (100.0, 50.0)]


def test_two_gpus_whose_metric_ids_repeat(tmp_path: Path):
    capture = Capture("2025.6")
    for gpu_id, ordinal in ((0, 1), (1, 0)):  # the sampler's GPU 0 is CUDA device 1
        capture.gpu("h100", gpu_id=gpu_id, cuda_device=ordinal)
        capture.kernel("gemm", 10_000 + ordinal, 200_000, device=ordinal)
        capture.gpu_metrics([1_000], {"SMs Active [Throughput %]": [10 + gpu_id]}, gpu_id=gpu_id)
    trace = open_trace(capture.write(tmp_path / "run.sqlite"))
    got = trace.gpu_metrics.join(trace.devices, on="device_index").select("device", "sm_active_pct").sort("device")
    assert got.rows() == [(0, 11.0), (1, 10.0)]


def test_metric_ids_that_differ_by_gpu(tmp_path: Path):
    capture = capture_with()
    swapped = "UPDATE {} SET metricId = CASE metricId WHEN 1 THEN 40 WHEN 2 THEN 1 ELSE metricId END"
    statements = [swapped.format(table) for table in ("GPU_METRICS", "TARGET_INFO_GPU_METRICS")]
    assert read(capture, tmp_path / "run.sqlite", *statements).gpu_metrics.rows() == ROWS


def test_samples_of_gpus_without_work_are_left_out_and_said(tmp_path: Path):
    capture = Capture("2025.6")
    capture.gpu("h100")
    capture.gpu("h100")
    capture.kernel("gemm", 10_000, 200_000)
    for gpu_id in (0, 1):
        capture.gpu_metrics([1_000], {"SMs Active [Throughput %]": [10 + gpu_id]}, gpu_id=gpu_id)
    trace = open_trace(capture.write(tmp_path / "a.sqlite"))
    assert trace.gpu_metrics["sm_active_pct"].to_list() == [10.0]
    capture = Capture("2025.6")
    capture.gpu("h100")
    capture.gpu("h100")
    capture.kernel("gemm", 10_000, 200_000)
    capture.gpu_metrics([1_000], {"SMs Active [Throughput %]": [11]}, gpu_id=1)
    trace = open_trace(capture.write(tmp_path / "b.sqlite"))
    assert trace.gpu_metrics.is_empty()
    assert any("without GPU work" in note for note in trace.capture.notes)


def test_samples_before_the_capture_and_normalized_times(tmp_path: Path):
    capture = capture_with()
    capture.gpu_metrics([-500], {"SMs Active [Throughput %]": [77]})
    trace = open_trace(capture.write(tmp_path / "run.sqlite"))
    assert trace.gpu_metrics["time_ns"].to_list() == [1_000, 101_000]
    assert trace.capture.rejected_rows == {"GPU metric: sampled before the capture (negative time)": 1}
    trace = open_trace(capture_with().write(tmp_path / "b.sqlite", normalize=True))
    assert trace.gpu_metrics.rows() == ROWS


@pytest.mark.parametrize("data", ["not json", "[1]", "{}", '{"SMs Active": "x"}', '{"SMs Active": null}', None])
def test_generic_events_of_any_shape(tmp_path: Path, data: str | None):
    capture = capture_with("2022")
    connection_statement = "UPDATE GENERIC_EVENTS SET data = " + ("NULL" if data is None else f"'{data}'")
    assert read(capture, tmp_path / "run.sqlite", connection_statement).gpu_metrics.is_empty()
