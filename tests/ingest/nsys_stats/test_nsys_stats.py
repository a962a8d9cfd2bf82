"""Tables of `nsys stats` and `nsys recipe`, written here as those tools print them."""

from __future__ import annotations

import pandas as pd
import polars as pl
import pytest

from trace_analyze.analysis.records.errors import CannotAnswerError, NotACaptureError
from trace_analyze.ingest.nsys_stats import reader as nsys_stats
from trace_analyze.ingest.nsys_stats.reader import read

HEADER = "Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),DymSMem (MB),Bytes (MB),Throughput (MB/s),SrcMemKd,DstMemKd,Device,Ctx,GreenCtx,Strm,Name"  # fmt: skip
ROWS = [
    '1000,500,11,4,2,1,128,1,1,32,0.000,0.049,,,,,NVIDIA L4 (0),1,,7,"void gemm<(int)4, (bool)1>(float *, int)"',
    "900,50,10,,,,,,,,,,4.194,6337.593,Pinned,Device,NVIDIA L4 (0),1,,7,[CUDA memcpy Host-to-Device]",
    "1600,10,12,,,,,,,,,,0.001,1,,Device,NVIDIA L4 (0),1,,7,[CUDA memset]",
    "1700,30,13,1,1,1,32,1,1,16,0.000,0.000,,,,,NVIDIA L4 (1),2,,13,norm",
]
TRACE = "\n".join([HEADER, *ROWS]) + "\n"
SUMS = (
    "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name\n"
    '90.0,1001,10,100.1,90.0,80,200,1.0,"void gemm<(int)4>(float *, int)"\n'
    "10.0,100,2,50.0,50.0,50,50,0.0,norm\n"
)


def write(tmp_path, text, name="run.csv"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_rows_of_the_gpu_trace(tmp_path):
    path = write(tmp_path, TRACE)
    assert nsys_stats.sniff(path, path.read_bytes())
    trace = read(path)
    assert trace.kernels.select("start_ns", "end_ns", "device_index", "stream", "context", "correlation_id").rows() == [
        (1000, 1500, 0, 7, 1, 11),
        (1700, 1730, 1, 13, 2, 13),
    ]
    assert trace.kernels.select("grid_x", "grid_y", "block_x", "registers").row(0) == (4, 2, 128, 32)
    assert sorted(trace.names["short_name"]) == ["gemm", "norm"]
    assert trace.copies.select("kind", "bytes").rows() == [("h2d", 4_194_000), ("memset", 1000)]
    assert trace.devices.select("device", "gpu_name", "mapping").rows() == [(0, "NVIDIA L4", "ordinal"), (1, "NVIDIA L4", "ordinal")]  # fmt: skip
    assert (trace.launches.height, trace.capture.format) == (0, "nsys_stats")


@pytest.mark.parametrize(("unit", "factor"), [("us", 1e-3), ("ms", 1e-6), ("s", 1e-9), ("nsec", 1)])
def test_any_time_unit(tmp_path, unit, factor):
    rows = [row.split(",", 2) for row in ROWS]
    lines = [f"{int(start) * factor:.9f},{int(length) * factor:.9f},{rest}" for start, length, rest in rows]
    path = write(tmp_path, "\n".join([HEADER.replace("(ns)", f"({unit})"), *lines]) + "\n")
    assert nsys_stats.sniff(path, path.read_bytes())
    assert read(path).kernels["end_ns"].to_list() == [1500, 1730]


def test_what_nsys_prints_around_tables_and_projected_ranges(tmp_path):
    ranges = "Name,Projected Start (ns),Projected Duration (ns),Orig Start (ns),Orig Duration (ns),Style,PID,TID,NumGPUOps,Lvl,NumChild,RangeId,ParentId,RangeStack\n:step[DECODE bs=1],1000,730,0,20,PushPop,53,53,2,0,0,5,,:5\n"  # fmt: skip
    printed = f"Generating SQLite file run.sqlite\nProcessing [run.sqlite] with [nvtx_gpu_proj_trace.py]... \n{ranges}\nProcessing [run.sqlite] with [cuda_gpu_trace.py]... \n{TRACE}\n"  # fmt: skip
    path = write(tmp_path, printed, "run.txt")
    assert nsys_stats.sniff(path, path.read_bytes())
    trace = read(path)
    assert trace.kernels.height == 2
    found = trace.ranges.join(trace.texts, on="text_id").row(0, named=True)
    assert (found["text"], found["start_ns"], found["end_ns"], found["stream"]) == ("step[DECODE bs=1]", 1000, 1730, 7)
    assert found["kind"] == "gpu_annotation"
    with pytest.raises(CannotAnswerError, match="ranges without kernels"):
        read(write(tmp_path, ranges))


def test_the_same_rows_as_parquet(tmp_path):
    path = tmp_path / "run.parquet"
    columns = ["Start (ns)", "Duration (ns)", "CorrId", "GrdX", "GrdY", "GrdZ", "Device", "Strm", "Name"]
    pd.DataFrame([[1000, 500, 11, 4.0, 2.0, 1.0, "NVIDIA L4 (0)", 7, "gemm"]], columns=columns).to_parquet(path)
    assert nsys_stats.sniff(path, path.read_bytes()[:16])
    trace = read(path)
    assert trace.kernels.select("start_ns", "grid_x", "stream", "block_x").rows() == [(1000, 4, 7, None)]


def test_sums_keep_counts_and_totals(tmp_path):
    path = write(tmp_path, SUMS)
    assert nsys_stats.sniff(path, path.read_bytes())
    trace = read(path)
    rows = trace.kernels.hstack(trace.launch_counts).join(trace.names, on="name_id")
    rows = rows.select("short_name", "start_ns", "end_ns", "launch_count").sort("start_ns")
    # 101 ns once and 100 ns nine times, then 50 ns twice
    assert rows.rows() == [("gemm", 0, 101, 1), ("gemm", 101, 1001, 9), ("norm", 1001, 1101, 2)]
    assert (trace.capture.duration_ns, trace.kernel_count, trace.holds_sums) == (1101, 12, True)
    assert "12 kernels" in repr(trace)
    assert trace.capture.format == "nsys_stats_summary"
    assert "medians, gaps, steps and stalls are not in the table" in trace.capture.notes[0]


def test_sums_by_grid_and_block(tmp_path):
    text = 'Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),GridXYZ,BlockXYZ,Name\n1,20,2,10,10,10,10,0," 896    1    1"," 128    2    1",k\n'  # fmt: skip
    trace = read(write(tmp_path, text))
    assert trace.kernels.select("grid_x", "grid_y", "block_x", "block_y").unique().rows() == [(896, 1, 128, 2)]


def recipe(folder, by_device=True):
    folder.mkdir()
    stats = pd.DataFrame({"Name": ["gemm", "norm"], "Time": [9.0, 1.0], "Total Time": [90, 10], "Instances": [3, 2], "Avg": [30.0, 5.0]}).set_index("Name")  # fmt: skip
    stats.to_parquet(folder / "all_stats.parquet")
    pd.concat([stats.assign(Rank=0), stats.assign(Rank=1)]).to_parquet(folder / "rank_stats.parquet")
    (folder / "kernels.nsys-analysis").write_text('{"RecipeName": "cuda_gpu_kern_sum"}')


def test_the_output_folder_of_a_recipe(tmp_path):
    folder = tmp_path / "recipe"
    recipe(folder)
    assert nsys_stats.sniff(folder, b"")
    trace = read(folder)
    counts = trace.kernels.hstack(trace.launch_counts).group_by("device_index").agg(pl.col("launch_count").sum())
    assert counts.sort("device_index").rows() == [(0, 5), (1, 5)]
    assert trace.devices["device"].to_list() == [0, 1]
    assert read(folder / "all_stats.parquet").kernel_count == 5
    (folder / "kernels.nsys-analysis").write_text('{"RecipeName": "cuda_api_sum"}')
    assert not nsys_stats.sniff(folder, b"")


def test_bad_rows_are_counted(tmp_path):
    bad = [
        "500,-5,1,1,1,1,1,1,1,1,,,,,,,NVIDIA L4 (0),1,,7,backwards",
        ",5,1,1,1,1,1,1,1,1,,,,,,,NVIDIA L4 (0),1,,7,never",
    ]
    trace = read(write(tmp_path, "\n".join([HEADER, *ROWS, *bad]) + "\n"))
    assert trace.kernels.height == 2
    assert trace.capture.rejected_rows == {
        "row without a start, a duration or a name": 1,
        "row with a negative duration": 1,
    }


@pytest.mark.parametrize(
    "text",
    [
        "Time (%),Total Time (ns),Instances,Avg (ns),Style,Range\n1,5,1,5,PushPop,step\n",  # nvtx_sum
        "Time (%),Total Time (ns),Instances,Avg (ns),Category,Operation\n1,5,1,5,CUDA_KERNEL,k\n",  # cuda_gpu_sum
        "Time (%),Total Time (ns),Num Calls,Avg (ns),Name\n1,5,1,5,cudaLaunchKernel\n",  # cuda_api_sum
    ],
)
def test_other_reports_are_refused_with_the_command(tmp_path, text):
    with pytest.raises(NotACaptureError, match="nsys stats --report cuda_gpu_trace"):
        read(write(tmp_path, text))


def test_copies_alone_are_no_answer(tmp_path):
    with pytest.raises(CannotAnswerError, match="without a single kernel"):
        read(write(tmp_path, "\n".join([HEADER, *ROWS[1:3]]) + "\n"))


@pytest.mark.parametrize(
    ("head", "taken"),
    [
        (HEADER.encode(), True),
        (b'"Time (%)","Total Time (ns)","Instances","Name"\n', True),
        (b"a,b\n1,2\n", False),
        (b"", False),
        (b"PAR1 but cut off", False),
    ],
)
def test_sniff(tmp_path, head, taken):
    path = tmp_path / "x"
    path.write_bytes(head)
    assert nsys_stats.sniff(path, head) is taken


def test_real_sums(shared_traces):
    folder = shared_traces / "nsys-stats"
    decode, prefill = (read(folder / f"dsocr-{phase}-cuda_gpu_kern_sum.csv") for phase in ("decode", "prefill"))
    # the sums of the columns Instances and Total Time (ns), by awk
    assert (decode.kernel_count, decode.capture.duration_ns) == (78_016, 179_072_697)
    assert (prefill.kernel_count, prefill.capture.duration_ns) == (6_660, 65_691_733)


def test_tables_without_a_blank_line_between_them(tmp_path):
    tables = list(nsys_stats._blocks(f"noise\n{SUMS}{TRACE}".encode()))
    assert [table.count(b"\n") for table in tables] == [3, 5]
    assert read(write(tmp_path, SUMS + TRACE)).kernels.height == 2  # rows say more than sums
