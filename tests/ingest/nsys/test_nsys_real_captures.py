"""Captures made by others: counts as their README states them, GPUs and refusals as expected there."""

import sqlite3
from pathlib import Path

import polars as pl
import pytest

from trace_analyze.analysis.records.errors import CannotAnswerError, NotACaptureError
from trace_analyze.analysis.records.trace import FRAMES
from trace_analyze.ingest import open_trace

RANGE_OR_MARK = "(34, 35, 37, 59, 60)"


def readme_rows(shared_traces: Path) -> list[dict[str, str]]:
    """The table of the nsys captures in the README beside them."""
    text = (shared_traces / "README.md").read_text(encoding="utf-8")
    lines = [line for line in text.partition("## nsys/")[2].partition("## kineto/")[0].splitlines() if "|" in line]
    header = [cell.strip() for cell in lines[0].strip("|").split("|")]
    return [
        dict(zip(header, (cell.strip() for cell in line.strip().strip("|").split("|")), strict=True))
        for line in lines[2:]
    ]


def count(path: Path, query: str) -> int:
    connection = sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)
    try:
        return connection.execute(query).fetchone()[0]
    finally:
        connection.close()


def test_every_capture_gives_what_its_readme_says(shared_traces: Path):
    rows = readme_rows(shared_traces)
    assert len(rows) == len(list((shared_traces / "nsys").glob("*.sqlite"))) == 20
    for row in rows:
        path = shared_traces / "nsys" / f"{row['file']}.sqlite"
        if row["expected"].startswith("refusal"):
            error = NotACaptureError if "(exit 2)" in row["expected"] else CannotAnswerError
            with pytest.raises(error) as caught:
                open_trace(path)
            assert f"exit {caught.value.exit_code}" in row["expected"]
            continue
        trace = open_trace(path)
        assert trace.kernels.height == int(row["kernels"]), path.name
        assert trace.kernels["process"].n_unique() == int(row["processes"]), path.name
        assert trace.kernels["device_index"].n_unique() == int(row["devices with kernels"]), path.name
        assert trace.launches.height + trace.api_calls.height == int(row["launches (RUNTIME rows)"]), path.name
        if row["NVTX rows"] != "-":
            others = count(path, f"SELECT count(*) FROM NVTX_EVENTS WHERE eventType NOT IN {RANGE_OR_MARK}")
            assert trace.ranges.height + trace.marks.height + others == int(row["NVTX rows"]), path.name
        named = set() if row["GPUs named"] == "no table" else set(row["GPUs named"].split(", "))
        assert set(trace.capture.gpus_present) == {
            name for name in named if name.startswith(("NVIDIA", "Tesla", "Orin"))
        }


def test_frames_are_in_order_and_without_nulls_in_ids(shared_traces: Path):
    for path in sorted((shared_traces / "nsys").glob("*.sqlite")):
        try:
            trace = open_trace(path)
        except (CannotAnswerError, NotACaptureError):
            continue
        for name in ("kernels", "launches", "api_calls", "copies", "ranges", "marks"):
            frame = getattr(trace, name)
            assert frame.equals(frame.sort(frame.columns)), (path.name, name)
            assert not any(frame[column].null_count() for column in FRAMES[name]), (path.name, name)
        assert trace.kernels["name_id"].max() < trace.names.height
        assert trace.launches["text_id"].max() < trace.texts.height


@pytest.mark.parametrize(
    ("name", "gpu", "mapping", "device", "sms", "bandwidth"),
    [
        ("2021-rtx3080-no-meta-table", "NVIDIA GeForce RTX 3080", "ordinal", 0, 68, 760_080_000_000),
        ("2023.2.3-a100x2-a40x2-ids-out-of-order", "NVIDIA A100-PCIE-40GB", "ordinal", 0, 108, 1_555_200_000_000),
        ("2023.3.3-a30-mig-2g", "NVIDIA A30 MIG 2g.12gb", "ordinal", 0, 28, 466_560_000_000),
        ("2025.1.1-h200-nvjet-13k-nvtx", "NVIDIA H200", "exact", 0, 132, 4_916_736_000_000),
        ("2025.5.1-rtx3090x2-9359-kernels", "NVIDIA GeForce RTX 3090", "exact", 0, 82, 936_096_000_000),
        ("2025.5.2-windows-intel-adapter", "NVIDIA GeForce RTX 5070 Ti Laptop GPU", "exact", 0, 46, 672_048_000_000),
    ],
)
def test_the_gpu_that_ran_the_kernels(
    shared_traces: Path, name: str, gpu: str, mapping: str, device: int, sms: int, bandwidth: int
):
    devices = open_trace(shared_traces / "nsys" / f"{name}.sqlite").devices
    assert devices.height == 1
    columns = ("gpu_name", "mapping", "device", "sm_count", "memory_bandwidth_bytes_per_s")
    assert devices.select(columns).row(0) == (gpu, mapping, device, sms, bandwidth)
    assert devices["mig"][0] == ("MIG" in gpu)


def test_a_capture_without_gpu_table_says_so(shared_traces: Path):
    trace = open_trace(shared_traces / "nsys" / "2026.2.1-h100x2-dit-nccl.sqlite")
    assert trace.devices["gpu_name"].to_list() == [None, None]
    assert trace.devices["mapping"].to_list() == ["none", "none"]
    assert "no GPU table" in {gap.what for gap in trace.gaps_in_evidence}
    assert trace.capture.product_version == "2026.2.1.210"
    assert trace.capture.graph_trace_mode == "graph"
    # 18,656 texts in the row, 462 registered: all resolved, one domain beside the default one
    assert trace.ranges.join(trace.texts, on="text_id").filter(pl.col("text") == "").is_empty()
    domains = trace.ranges["domain_text_id"].unique()
    assert "" in trace.texts.filter(pl.col("text_id").is_in(domains.implode()))["text"].to_list()


def test_registered_texts(shared_traces: Path):
    trace = open_trace(shared_traces / "nsys" / "2025.3.1-t4-nvtx-by-textid.sqlite")
    texts = trace.ranges.join(trace.texts, on="text_id")["text"]
    assert not (texts == "").any()
    assert texts.n_unique() > 3


def test_refusals_quote_the_profiler_and_name_causes(shared_traces: Path):
    with pytest.raises(CannotAnswerError, match="CUDA profiling might have not been started correctly"):
        open_trace(shared_traces / "nsys" / "2026.2.1-a100-no-cuda.sqlite")
    with pytest.raises(CannotAnswerError) as caught:
        open_trace(shared_traces / "nsys" / "2023.4.4-h100-runtime-but-no-kernels.sqlite")
    message = str(caught.value)
    assert "11 CUDA calls" in message
    for cause in (
        "VLLM_WORKER_MULTIPROC_METHOD=spawn",
        "--trace-fork-before-exec=true",
        "--cuda-graph-trace=node",
        "torch.profiler",
    ):
        assert cause in message
    with pytest.raises(NotACaptureError, match="DLProf"):
        open_trace(shared_traces / "nsys" / "not-nsys-dlprof-database.sqlite")


def test_launches_link_to_kernels_by_process_and_correlation_id(shared_traces: Path):
    # Two processes: 3,986 pairs on (process, correlation id), more on the correlation id alone.
    trace = open_trace(shared_traces / "nsys" / "2026.2.1-h100x2-dit-nccl.sqlite")
    launches = pl.concat(
        [trace.launches, trace.api_calls.with_columns(pl.lit("kernel", trace.launches.schema["kind"]).alias("kind"))]
    )
    right = trace.kernels.join(launches, on=["process", "correlation_id"]).height
    wrong = trace.kernels.join(launches, on="correlation_id").height
    assert right < wrong
    assert trace.kernels.join(launches, on=["process", "correlation_id"], how="semi").height == right
