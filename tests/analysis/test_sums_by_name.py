"""An input of sums by kernel name: its counts, totals and medians, and nothing that would need order or times."""

from __future__ import annotations

import json

import polars as pl
import pytest

from trace_analyze import analyze, open_trace
from trace_analyze.analysis.records.errors import CannotAnswerError
from trace_analyze.cli import main
from trace_analyze.fixtures.build import CAPTURES
from trace_analyze.fixtures.writers.stats_writer import kernel_summary_csv
from trace_analyze.reports.perfetto import to_perfetto
from trace_analyze.reports.table_files import kernel_rows

GEMM = "sm80_xmma_gemm_bf16bf16_bf16f32_f32_nn_n_tilesize256x128x32"
DECODE = "void paged_attention_v1_kernel<(int)1>(float *)"
NORM = "void vllm::rms_norm_kernel<float>(float *)"
# 5 launches of 11 ns and one of 12, 4 of 20 ns, 3 of 5 ns: 67 + 80 + 15 ns in 13 launches
SUMS = f"""Time (%),Total Time (ns),Instances,Avg (ns),Name
49.4,80,4,20.0,"{DECODE}"
41.4,67,6,11.2,"{GEMM}"
9.3,15,3,5.0,"{NORM}"
"""


@pytest.fixture
def sums(tmp_path):
    path = tmp_path / "run_kern_sum.csv"
    path.write_text(SUMS)
    return path


def test_counts_totals_and_medians(sums):
    result = analyze(open_trace(sums))
    table = result.kernel_table.select("name", "count", "total_ms", "median_us").rows()
    assert [(name, count, round(ms * 1e6), median) for name, count, ms, median in table] == [
        (DECODE, 4, 80, 0.020),
        (GEMM, 6, 67, 0.011),
        (NORM, 3, 15, 0.005),
    ]
    assert (result.summary["kernel_count"], result.devices[0]["kernel_count"]) == (13, 13)
    assert (result.summary["gpu_busy_ms"], result.trust["kernels_without_launch"]) == (162 / 1e6, 13)


def test_median_over_launches_of_several_names(tmp_path):
    # of one op class: 2 launches of 10 ns, 2 of 30, 2 of 50: the middle two last 30; without the last two 10 and 30
    names = [f"void vllm::rms_norm_kernel<(int){i}>(float *)" for i in range(3)]
    head = "Time (%),Total Time (ns),Instances,Avg (ns),Name\n"
    rows = [f'0,{2 * length},2,{length},"{name}"\n' for length, name in zip((10, 30, 50), names, strict=True)]
    for count, median in ((3, 0.030), (2, 0.020)):
        path = tmp_path / f"{count}_kern_sum.csv"
        path.write_text(head + "".join(rows[:count]))
        assert analyze(open_trace(path)).op_classes["median_us"].to_list() == [median]


def test_no_step_is_read_from_the_order_of_a_table(tmp_path):
    path = tmp_path / "run_kern_sum.csv"
    path.write_text(kernel_summary_csv(CAPTURES / "sglang-qwen3-8b-h100.sqlite"))
    result = analyze(open_trace(path), gpu="h100", model="qwen3-8b")
    assert (result.steps.height, result.collectives.height, result.summary["step_count"]) == (0, 0, 0)
    assert result.status == "partial"
    assert any("sums by kernel name" in reason for reason in result.reasons)
    assert result.summary["phase_pct"]["unknown"] == 100.0


def test_a_name_that_tells_its_phase_keeps_it(sums):
    result = analyze(open_trace(sums))
    tagged = result.kernel_table.select("name", pl.col("phase").cast(pl.String), "evidence").rows()
    assert tagged == [
        (DECODE, "decode", {"kernel_name": 1.0}),
        (GEMM, "unknown", {"none": 1.0}),
        (NORM, "unknown", {"none": 1.0}),
    ]
    assert result.trust["verdict"] == "good"  # nothing is claimed of the phases of the others


def test_every_kernel_is_on_the_first_screen_whatever_its_phase(sums, tmp_path, capsys):
    assert main([str(sums), "--format", "md", "-o", str(tmp_path / "out")]) == 0
    screen = capsys.readouterr().out
    page = next((tmp_path / "out").glob("*.md")).read_text().replace("\\", "")
    for name in ("paged_attention_v1_kernel", "rms_norm_kernel", "sm80_xmma_gemm"):
        assert name in screen
        assert name in page


def test_work_measured_for_one_launch_counts_for_all(tmp_path):
    path = tmp_path / "run_kern_sum.csv"
    grids = 'Time (%),Total Time (ns),Instances,Avg (ns),GridXYZ,BlockXYZ,Name\n1,60000,6,10000,"  4    2    1"," 128    1    1",'
    path.write_text(f'{grids}"{GEMM}"\n')
    ncu = tmp_path / "ncu.csv"
    identity = "ID,Process ID,Process Name,Host Name,Kernel Name,Context,Stream,Block Size,Grid Size,Device,CC"
    metrics = "gpu__time_duration.sum,dram__bytes_read.sum,dram__bytes_write.sum"
    ncu.write_text(
        f"{identity},{metrics}\n{',' * 11}ns,byte,byte\n"
        f'0,1,python,host,"{GEMM}",1,7,"(128, 1, 1)","(4, 2, 1)",0,8.0,9000,700,300\n'
    )
    result = analyze(open_trace(path), gpu="a100", ncu=[ncu])
    assert result.kernel_table.select("count", "bytes", "work_source").rows() == [(6, 6000.0, "measured")]
    assert result.measured["ncu"]["kernels"] == 6


def test_nothing_is_drawn_or_cut_on_a_timeline(sums, tmp_path):
    result = analyze(open_trace(sums))
    with pytest.raises(CannotAnswerError, match="there are no launches"):
        to_perfetto(result)
    with pytest.raises(CannotAnswerError, match="without times"):
        analyze(open_trace(sums), window="0:1s")
    rows = kernel_rows(result)
    assert sorted(rows["launch_count"].to_list()) == [1, 3, 4, 5]


def test_an_hour_of_serving_makes_no_row_a_launch(tmp_path):
    path = tmp_path / "hour_kern_sum.csv"
    path.write_text(SUMS.replace("80,4,", "3600000000000,900000000,"))
    assert main([str(path), "--format", "json", "-o", str(tmp_path), "--quiet"]) == 0
    found = json.loads((tmp_path / "hour_kern_sum.json").read_text())
    assert found["summary"]["kernel_count"] == 900_000_009
    assert found["kernels"][0]["median_us"] == 4.0
    assert open_trace(path).kernels.height == 4


def test_a_kept_analysis_is_the_same(sums, tmp_path):
    for _ in range(2):
        assert main([str(sums), "--cache", str(tmp_path / "kept"), "--format", "json", "-o", str(tmp_path)]) == 0
        found = json.loads((tmp_path / "run_kern_sum.json").read_text())
        assert [kernel["count"] for kernel in found["kernels"]] == [4, 6, 3]
    assert open_trace(sums, cache=tmp_path / "kept").kernel_count == 13
