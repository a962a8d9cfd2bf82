"""Real captures made by others: single serving steps, and runs that are none. Skipped where the folder is absent."""

from dataclasses import replace

import polars as pl
import pytest

from trace_analyze.analysis.kernels.classify import classify_names
from trace_analyze.analysis.phases import find_phases
from trace_analyze.analysis.records.errors import CannotAnswerError
from trace_analyze.ingest import open_trace

COUNTS = ("phase", "prefill_requests", "prefill_tokens", "decode_requests", "decode_tokens")
STEPS = {
    "vllm-mixed-9-prefill-37-decode-piecewise-graph": (("mixed", 9, 8155, 37, 37), 42919, 24),
    "vllm-decode-full-graph-bs32": (("decode", 0, 0, 32, 32), 55086, 24),
    "sglang-qwen3-8b-decode-bs32-mi300x": (("decode", 0, 0, 32, 32), 32785, 36),
    "vllm-tp8-rank0-prefill-eager-b200": (("prefill", 1, 888, 0, 0), None, 36),
}
NO_PHASES = [
    "2020-rtx2070s-columns-added-by-other-tool",
    "2021-rtx3080-no-meta-table",
    "2022.2.1-a100-sxm-mpi",
    "2022.3.4-a100-export-meta-data",
    "2023.1.2-a100-quantised-gemm",
    "2023.2.3-a100x2-a40x2-ids-out-of-order",
    "2023.3.3-a30-mig-2g",
    "2024.5.4-orin",
    "2024.6.2-h100-nvjet",
    "2025.1.1-h200-nvjet-13k-nvtx",
    "2025.3.1-t4-nvtx-by-textid",
    "2025.5.1-rtx3090x2-9359-kernels",
    "2025.5.2-windows-intel-adapter",
    "2026.1.1-rtx4060ti-4-processes",
    "2026.2.1-h100x2-dit-nccl",
    "2026.2.1-h100x2-text-encoder-no-gpu-table",
]


@pytest.fixture
def step_of(shared_traces):
    """The one step of a PyTorch-profiler trace, with its annotations or with every range and mark removed."""

    def find(name, *, annotated):
        trace = open_trace(shared_traces / "kineto" / f"{name}.json.gz")
        if not annotated:
            trace = replace(trace, ranges=trace.ranges.clear(), marks=trace.marks.clear())
        return find_phases(trace, classify_names(trace.names))

    return find


@pytest.mark.parametrize("annotated", [True, False], ids=["annotated", "bare"])
@pytest.mark.parametrize("name", STEPS)
def test_one_serving_step(step_of, name, annotated):
    counts, kv, layers = STEPS[name]
    result = step_of(name, annotated=annotated)
    (step,) = result.steps.rows(named=True)
    assert tuple(step[column] for column in COUNTS) == counts
    assert step["kv_tokens"] == (kv if annotated else None)
    assert (step["evidence"] == "marker") is annotated
    assert result.layers == layers
    assert result.trust["contradictions"] == ()


def test_stray_kernel_long_before_its_step_does_not_stretch_it(step_of):
    result = step_of("sglang-qwen3-8b-decode-bs32-mi300x", annotated=True)
    (step,) = result.steps.rows(named=True)
    assert (step["kernel_count"], (result.kernels["step"] < 0).sum()) == (554, 1)
    assert 10e6 < step["end_ns"] - step["start_ns"] < 11e6


def test_same_stream_overlap_of_dependent_launches_is_counted_once(step_of):
    result = step_of("vllm-tp8-rank0-prefill-eager-b200", annotated=True)
    kernels = result.kernels.filter(pl.col("step") == 0)
    lengths = kernels.select((pl.col("end_ns") - pl.col("start_ns")).sum()).item()
    assert result.steps["busy_ns"][0] < lengths


def test_graph_capture_is_no_run(shared_traces):
    with pytest.raises(CannotAnswerError):
        open_trace(shared_traces / "kineto" / "vllm-graph-capture-not-a-run.json.gz")


@pytest.mark.parametrize("name", NO_PHASES)
def test_no_autoregressive_phases(shared_traces, name):
    trace = open_trace(shared_traces / "nsys" / f"{name}.sqlite")
    result = find_phases(trace, classify_names(trace.names))
    assert not result.autoregressive
    assert "no autoregressive phases found" in result.reasons
    assert result.steps.height == 0
    assert result.kernels.height == trace.kernels.height
    assert set(result.kernels["phase"].cast(pl.String)) <= {"unknown"}
    assert result.window_start_ns == trace.kernels["start_ns"].min()
    assert result.window_end_ns == trace.kernels["end_ns"].max()
