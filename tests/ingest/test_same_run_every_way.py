"""One simulated run, read from every format it can be kept in: the same steps, phases and stalls.

The GPU trace of `nsys stats` has no markers and no launches; it is held to the runs whose kernels alone tell the counts.
"""

from __future__ import annotations

import pytest

from trace_analyze import analyze, open_trace
from trace_analyze.fixtures.build import CAPTURES, SHIPPED
from trace_analyze.fixtures.matrix import MATRIX
from trace_analyze.fixtures.simulator.serving import simulate
from trace_analyze.fixtures.writers.kineto_writer import write_kineto
from trace_analyze.fixtures.writers.parquet_writer import write_tables
from trace_analyze.fixtures.writers.stats_writer import gpu_trace_csv, kernel_summary_csv

STEPS = ["device", "group", "start_ns", "end_ns", "phase", "prefill_tokens", "decode_tokens", "prefill_requests", "decode_requests"]  # fmt: skip
STALLS = ["start_ns", "end_ns", "stall_ms", "kind", "group", "prefill_tokens", "requests_held"]

# Runs beside the shipped ones; with whether the kernels alone (CSV) tell everything.
RUNS = {"vllm-llama-1b-h100-autograd": True, "trtllm-llama-8b-h100": False}


def ways(sqlite, folder, csv):
    yield "parquetdir", write_tables(sqlite, folder / "run_pqtdir")
    yield "arrowdir", write_tables(sqlite, folder / "run_arwdir", kind="arrow")
    yield "kineto", write_kineto(sqlite, folder / "run.pt.trace.json.gz")
    if csv:
        path = folder / "run_cuda_gpu_trace.csv"
        path.write_text(gpu_trace_csv(sqlite))
        yield "csv", path


def assert_same_everywhere(sqlite, folder, csv):
    expected = analyze(open_trace(sqlite))
    assert expected.steps.height > 0
    for way, path in ways(sqlite, folder, csv):
        found = analyze(open_trace(path))
        for name, columns in (("steps", STEPS), ("stalls", STALLS)):
            one, other = getattr(expected, name).select(columns), getattr(found, name).select(columns)
            assert other.equals(one), f"{way}: {name} differ"
        for key in ("stall_ms", "stall_count", "phase_ms", "gpu_busy_ms", "kernel_count"):
            assert found.summary[key] == expected.summary[key], f"{way}: {key}"


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_captures(tmp_path, name):
    assert_same_everywhere(CAPTURES / f"{name}.sqlite", tmp_path, csv=True)


@pytest.mark.parametrize("name", RUNS)
def test_runs_of_the_matrix(tmp_path, name):
    assert_same_everywhere(simulate(MATRIX[name]).write(tmp_path / "run.sqlite"), tmp_path, csv=RUNS[name])


def test_sums_by_kernel_name_keep_counts_and_time(tmp_path):
    sqlite = CAPTURES / "sglang-qwen3-8b-h100.sqlite"
    path = tmp_path / "run_cuda_gpu_kern_sum.csv"
    path.write_text(kernel_summary_csv(sqlite))
    rows, sums = open_trace(sqlite), open_trace(path)
    assert sums.kernel_count == rows.kernel_count == rows.kernels.height
    assert sums.kernels.height <= 2 * sums.names.height  # no row is made up for a launch
    assert (sums.kernels["end_ns"] - sums.kernels["start_ns"]).sum() == (rows.kernels["end_ns"] - rows.kernels["start_ns"]).sum()  # fmt: skip
