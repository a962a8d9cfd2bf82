"""Nsight Compute results: both CSV pages, reports through what is installed, rows imported into SQLite."""

from __future__ import annotations

import csv
import io
import sqlite3
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from trace_analyze.analysis.facts.load import load_table
from trace_analyze.analysis.records.errors import CannotAnswerError, NotACaptureError
from trace_analyze.ingest.ncu import metrics as ncu_metrics
from trace_analyze.ingest.ncu import ncu_csv
from trace_analyze.ingest.ncu import report_file as ncu_rep
from trace_analyze.ingest.ncu.metrics import Launch, tensor_flop
from trace_analyze.ingest.ncu.ncu_csv import read_ncu
from trace_analyze.ingest.ncu.printed_values import Locale, base_unit, locale_of
from trace_analyze.ingest.short_names import short_name

IDENTITY = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size", "Device", "CC"]  # fmt: skip
GEMM = "void gemm<__nv_bfloat16, (int)128>(float *, int, int)"


def launch_cells(number=0, name=GEMM, grid="(32, 4, 1)", block="(128, 1, 1)"):
    return [str(number), "77", "python3", "127.0.0.1", name, "1", "7", block, grid, "0", "9.0"]


def raw_page(metrics, values=(), launches=None):
    """A raw page: ``metrics`` are (name, unit), ``values`` one list per launch."""
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL)
    writer.writerow([*IDENTITY, *(name for name, _ in metrics)])
    writer.writerow(["" for _ in IDENTITY] + [unit for _, unit in metrics])
    for number, row in enumerate(values):
        writer.writerow([*(launches[number] if launches else launch_cells(number)), *row])
    return text.getvalue()


def details_page(rows, identity=None):
    """A details page of one launch: ``rows`` are (section, label, unit, value)."""
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL)
    writer.writerow([*IDENTITY, "Section Name", "Metric Name", "Metric Unit", "Metric Value", "Rule Name", "Rule Type", "Rule Description"])  # fmt: skip
    for section, label, unit, value in rows:
        writer.writerow([*(identity or launch_cells()), section, label, unit, value])
    writer.writerow([*launch_cells(), "SpeedOfLight", "", "", "", "SOLBottleneck", "OPT", "first line,\nsecond line"])
    return text.getvalue()


def one(tmp_path, text, name="k.csv", encoding="utf-8"):
    path = tmp_path / name
    path.write_text(text, encoding=encoding)
    frame = read_ncu(path)
    assert frame.height == 1
    return frame.row(0, named=True)


DURATION = ("gpu__time_duration.sum", "ns")
READ, WRITTEN = ("dram__bytes_read.sum", "byte"), ("dram__bytes_write.sum", "byte")
BF16 = ("sm__ops_path_tensor_src_bf16_dst_fp32.sum", "")
FFMA = ("smsp__sass_thread_inst_executed_op_ffma_pred_on.sum", "inst")


def test_raw_page_with_its_row_of_units(tmp_path):
    text = raw_page(
        [("gpu__time_duration.sum", "usecond"), READ, ("dram__bytes_write.sum", "Kbyte"), BF16, ("sm__cycles_elapsed.avg.per_second", "Ghz"), ("launch__registers_per_thread", "register/thread")],
        [["12.5", "1,000,000", "8.5", "2,147,483,648", "1.41", "168"]],
    )  # fmt: skip
    row = one(tmp_path, text)
    assert row["duration_ns"] == 12_500
    assert (row["dram_read_bytes"], row["dram_write_bytes"], row["dram_bytes"]) == (1_000_000, 8_500, 1_008_500)
    # the counter counts FLOPs: a bf16 GEMM of 1024 x 1024 x 1024 has 2 x 1024^3 = 2,147,483,648
    assert (row["flop_tensor_bf16"], row["flop"]) == (2 * 1024**3, 2 * 1024**3)
    assert (row["sm_clock_hz"], row["registers"], row["reason"]) == (1.41e9, 168, "")
    assert (row["grid_x"], row["grid_y"], row["block_x"], row["compute_capability"]) == (32, 4, 128, "9.0")


def test_details_page_tells_equal_labels_apart_by_section_and_unit(tmp_path):
    row = one(
        tmp_path,
        details_page(
            [
                ("GPU Speed Of Light Throughput", "Memory Throughput", "%", "61.84"),
                ("GPU Speed Of Light Throughput", "Duration", "ns", "21,058,944"),
                ("GPU Speed Of Light Throughput", "SM Frequency", "Mhz", "585"),
                ("Memory Workload Analysis", "Memory Throughput", "Gbyte/second", "196.45"),
                ("Launch Statistics", "Registers Per Thread", "register/thread", "32"),
                ("Occupancy", "Achieved Occupancy", "%", "96.26"),
            ]
        ),
    )
    assert (row["memory_pct"], row["dram_pct"], row["occupancy_pct"]) == (61.84, None, 96.26)
    assert row["dram_bytes"] == pytest.approx(196.45e9 * 0.021058944)  # rate x duration
    assert row["sm_clock_hz"] == 585e6
    assert row["flop"] is None
    assert "no FLOP counters" in row["reason"]


def test_basic_set_says_what_it_lacks(tmp_path):
    row = one(tmp_path, raw_page([DURATION, ("gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", "%")], [["5000", "40.5"]]))  # fmt: skip
    assert (row["dram_pct"], row["dram_bytes"], row["flop"]) == (40.5, None, None)
    assert "no DRAM bytes" in row["reason"]


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        ({"dram__bytes.sum": "10"}, 10),
        ({"dram__bytes_read.sum": "6", "dram__bytes_write.sum": "4"}, 10),
        ({"dram__bytes_op_read.sum": "6", "dram__bytes_op_write.sum": "4"}, 10),  # renamed on GB20x
        ({"dram__bytes_read.sum": "n/a", "dram__bytes_write.sum": "n/a", "dram__bytes_op_read.sum": "6", "dram__bytes_op_write.sum": "4"}, 10),
        ({"dram__sectors_read.sum": "2", "dram__sectors_write.sum": "1"}, 96),  # of 32 bytes
        ({"dram__bytes_read.sum": "6"}, None),  # half an answer is none
        ({"dram__bytes.sum": "no data"}, None),
    ],
)  # fmt: skip
def test_dram_bytes_under_any_name(tmp_path, metrics, expected):
    names = [(name, "sector" if "sectors" in name else "byte") for name in metrics]
    row = one(tmp_path, raw_page([DURATION, *names], [["100", *metrics.values()]]))
    assert row["dram_bytes"] == expected


T = "sm__ops_path_tensor_"


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        # parent and children say the same: count one level
        ({f"{T}src_bf16_dst_fp32.sum": 100, f"{T}src_bf16_dst_fp32_sparsity_off.sum": 100, f"{T}src_bf16_dst_fp32_sparsity_on.sum": 0}, {"bf16": 100}),
        ({f"{T}src_bf16_dst_fp32_sparsity_off.sum": 60, f"{T}src_bf16_dst_fp32_sparsity_on.sum": 40}, {"bf16": 100}),
        # op_hmma reads 0 beside warp-group instructions on sm90
        ({f"{T}op_hmma_src_bf16_dst_fp32_sparsity_off.sum": 0, f"{T}op_hgmma_src_bf16_dst_fp32_sparsity_off.sum": 100}, {"bf16": 100}),
        ({f"{T}op_hmma_src_bf16_dst_fp32_sparsity_off.sum": 0, f"{T}src_bf16_dst_fp32.sum": 100}, {"bf16": 100}),
        # a grandparent, a parent of one result type, a child of the other
        ({f"{T}src_fp16.sum": 100, f"{T}src_fp16_dst_fp16.sum": 30, f"{T}src_fp16_dst_fp32_sparsity_off.sum": 70}, {"fp16": 100}),
        ({f"{T}src_fp16_dst_fp16.sum": 30, f"{T}src_fp16_dst_fp32_sparsity_off.sum": 70}, {"fp16": 100}),
        ({f"{T}src_fp8.sum": 5, f"{T}src_fp4_fp6_fp8_dst_fp32.sum": 5, f"{T}src_fp4_dst_fp32.sum": 7}, {"fp8": 5, "fp4": 7}),
        ({f"{T}op_utcqmma_src_fp4_fp6_fp8_dst_fp32": 9}, {"fp8": 9}),
        ({f"{T}src_int8.sum": 3, f"{T}src_tf32_dst_fp32.sum": 4}, {"int8": 3, "tf32": 4}),
        ({f"{T}src_bf16_dst_fp32.sum.peak_sustained": 1024, f"{T}src_bf16_dst_fp32.sum.per_second": 9}, {}),
    ],
)  # fmt: skip
def test_tensor_counters_are_a_tree(metrics, expected):
    launch = Launch(0, metrics={name: (str(value), "op") for name, value in metrics.items()})
    assert tensor_flop(launch, Locale()) == expected


@pytest.mark.parametrize(
    ("metrics", "flop", "reason"),
    [
        # 10 adds + 20 multiplies + 2 x 30 fused + 4 x 5 packed fused + half-precision pairs: 4 x 2
        ({BF16: "0", FFMA: "30", ("smsp__sass_thread_inst_executed_op_fadd_pred_on.sum", "inst"): "10", ("smsp__sass_thread_inst_executed_op_fmul_pred_on.sum", "inst"): "20", ("smsp__sass_thread_inst_executed_op_ffma2_pred_on.sum", "inst"): "5", ("smsp__sass_thread_inst_executed_op_hfma_pred_on.sum", "inst"): "2"}, 118, ""),
        ({BF16: "1,000", FFMA: "30"}, 1060, ""),
        ({BF16: "1,000"}, 1000, ""),
        ({BF16: "0"}, None, "tensor cores did nothing"),
        ({FFMA: "30"}, None, "CUDA cores only"),
        ({FFMA: "30", ("sm__inst_executed_pipe_tensor.sum", "inst"): "0"}, 60, ""),
        ({FFMA: "30", ("sm__inst_executed_pipe_tensor.sum", "inst"): "8"}, None, "CUDA cores only"),
        # rates per cycle: 1 GHz for 100 ns are 100 cycles; 0.5 x 100 x 2 FLOP
        ({BF16: "0", ("sm__cycles_elapsed.avg.per_second", "hz"): "1e9", ("smsp__sass_thread_inst_executed_op_ffma_pred_on.sum.per_cycle_elapsed", "inst/cycle"): "0.5"}, 100, ""),
        ({BF16: "0", ("sm__cycles_elapsed.avg.per_second", "hz"): "1e9", ("derived__smsp__sass_thread_inst_executed_op_ffma_pred_on_x2", "inst/cycle"): "1"}, 100, ""),
        # a peak is no count
        ({("derived__sm__sass_thread_inst_executed_op_ffma_pred_on_x2", "inst/cycle"): "33,792"}, None, "no FLOP counters"),
    ],
)  # fmt: skip
def test_executed_flop(tmp_path, metrics, flop, reason):
    row = one(tmp_path, raw_page([DURATION, *metrics], [["100", *metrics.values()]]))
    assert row["flop"] == flop
    assert reason in row["reason"]


@pytest.mark.parametrize(
    ("values", "text", "number"),
    [
        (["2,848", "1,215,000,000.00"], "2,848", 2848),
        (["2,848"], "2,848", 2848),  # nothing says otherwise
        (["9,00", "2,848"], "2,848", 2.848),
        (["9,00", "1.215.000,50"], "1.215.000,50", 1_215_000.5),
        (["0.30", "61.84", "2,848"], "2,848", 2848),
        (["9,00", "1\u202f215,5"], "1\u202f215,5", 1215.5),
        (["7.125"], "7.125", 7.125),
        (["9,5"], "n/a", None),
        ([], "", None),
        ([], "(!) nan", None),
        ([], "CachePreferNone", None),
    ],
)
def test_numbers_of_a_file(values, text, number):
    assert locale_of(values).number(text) == number


@pytest.mark.parametrize(
    ("unit", "base"),
    [
        ("ns", ("ns", 1)),
        ("usecond", ("ns", 1e3)),
        ("us", ("ns", 1e3)),
        ("msecond", ("ns", 1e6)),
        ("second", ("ns", 1e9)),
        ("byte", ("byte", 1)),
        ("Mbyte", ("byte", 1e6)),
        ("byte/block", ("byte", 1)),
        ("Gbyte/second", ("byte/s", 1e9)),
        ("Tbyte/s", ("byte/s", 1e12)),
        ("Ghz", ("hz", 1e9)),
        ("hz", ("hz", 1)),
        ("%", ("%", 1)),
        ("", ("count", 1)),
        ("inst", ("count", 1)),
        ("Minst", ("count", 1e6)),
        ("register/thread", ("count", 1)),
        ("inst/cycle", ("inst/cycle", 1)),
    ],
)
def test_units(unit, base):
    assert base_unit(unit) == base


def test_profiler_lines_program_output_and_a_byte_order_mark(tmp_path):
    page = raw_page([DURATION], [["100"], ["200"]]).splitlines(keepends=True)
    noise = ['==PROF== Connected to process 77\n', 'Loading "weights\n', *page[:2], '"0","77","python3","cut of\n', 'step 1: "hello"\n', page[2], '==PROF== Profiling "gemm" - 1: 0%\n', page[3], "done\n"]  # fmt: skip
    for encoding in ("utf-8-sig", "utf-16"):
        path = tmp_path / f"{encoding}.csv"
        path.write_text("".join(noise), encoding=encoding)
        assert ncu_csv.sniff(path, path.read_bytes()[:4096])
        assert read_ncu(path)["duration_ns"].to_list() == [100, 200]


def test_columns_that_other_versions_add_or_lack(tmp_path):
    old = 'ID,Process ID,Process Name,Host Name,Kernel Name,Kernel Time,Context,Stream,gpu__time_duration.sum\n,,,,,,,,nsecond\n"3","77","a","h","k(int, int)","2020-Jan-01 10:00:00","1","7","1,500"\n'  # fmt: skip
    row = one(tmp_path, old)
    assert (row["launch_id"], row["name"], row["duration_ns"], row["grid_x"]) == (3, "k(int, int)", 1500, None)
    dims = [
        ("launch__grid_dim_x", ""),
        ("launch__grid_dim_y", ""),
        ("launch__grid_dim_z", ""),
        ("something__new.sum", ""),
    ]
    row = one(tmp_path, raw_page([DURATION, *dims], [["1", "8", "2", "1", "5"]], [launch_cells(grid="", block="")]))
    assert (row["grid_x"], row["grid_y"], row["block_x"]) == (8, 2, None)


def test_two_outputs_of_one_launch_in_one_file_are_one_launch(tmp_path):
    metrics = details_page([("Command line profiler metrics", "dram__bytes_read.sum", "Mbyte", "2.33"), ("Command line profiler metrics", "dram__bytes_write.sum", "byte", "0")])  # fmt: skip
    details = details_page([("GPU Speed Of Light Throughput", "Duration", "us", "6.75")])
    row = one(tmp_path, metrics + details)
    assert (row["duration_ns"], row["dram_bytes"]) == (6750, 2_330_000)


def test_rows_imported_into_sqlite(tmp_path):
    path = tmp_path / "imported.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE notes (a)")
        connection.execute('CREATE TABLE ncu (id, process_id, kernel_name, block_size, grid_size, "Section Name", metric_name, metric_unit, metric_value)')  # fmt: skip
        cells = (0, 77, GEMM, "(128, 1, 1)", "(8, 1, 1)", "Command line profiler metrics")
        connection.execute("INSERT INTO ncu VALUES (?,?,?,?,?,?,'gpu__time_duration.sum','ns',1500.5)", cells)
        connection.execute("INSERT INTO ncu VALUES (?,?,?,?,?,?,'dram__bytes.sum','byte',4096)", cells)
    before = path.read_bytes()
    row = read_ncu(path).row(0, named=True)
    assert (row["duration_ns"], row["dram_bytes"], row["grid_x"]) == (1500.5, 4096, 8)
    assert path.read_bytes() == before
    assert [found.name for found in tmp_path.iterdir()] == ["imported.sqlite"]


@pytest.mark.parametrize(
    "text",
    ["a,b\n1,2\n", "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n", '"ID","Process ID"\n', ""],
)
def test_what_is_no_result_is_refused(tmp_path, text):
    path = tmp_path / "k.csv"
    path.write_text(text)
    with pytest.raises(NotACaptureError, match="no profiled launch was understood"):
        read_ncu(path)


def test_a_trace_without_a_timeline(tmp_path):
    path = tmp_path / "k.csv"
    names = [launch_cells(0), launch_cells(1, "void other(int)", "(1, 1, 1)"), launch_cells(2)]
    path.write_text(raw_page([DURATION], [["100"], ["50"], ["n/a"]], names))
    trace = ncu_csv.read(path)
    assert trace.kernels.select("start_ns", "end_ns", "grid_x").rows() == [(0, 100, 32), (100, 150, 1)]
    assert trace.names["short_name"].to_list() == ["gemm", "other"]
    assert trace.capture.format == "ncu_csv"
    assert "no timeline" in trace.capture.notes[0]
    assert trace.capture.rejected_rows == {"launch without a duration": 1}
    path.write_text(raw_page([DURATION], [["n/a"]]))
    with pytest.raises(CannotAnswerError, match="none with a duration"):
        ncu_csv.read(path)


def test_device_attributes_give_the_ceiling(tmp_path):
    attributes = [("device__attribute_display_name", ""), ("device__attribute_max_mem_frequency_khz", ""), ("device__attribute_global_memory_bus_width", ""), ("device__attribute_multiprocessor_count", "")]  # fmt: skip
    path = tmp_path / "k.csv"
    path.write_text(raw_page([DURATION, *attributes], [["100", "NVIDIA GeForce RTX 3070", "7,001,000", "256", "46"]]))
    device = ncu_csv.read(path).devices.row(0, named=True)
    # 2 x 7.001 GHz x 256 bit / 8 = 448.064 GB/s
    assert device["memory_bandwidth_bytes_per_s"] == 448_064_000_000
    assert (device["gpu_name"], device["sm_count"]) == ("NVIDIA GeForce RTX 3070", 46)


class FakeMetric:
    def __init__(self, value, unit):
        self._value, self._unit = value, unit

    def value(self):
        return self._value

    def unit(self):
        return self._unit


class FakeAction:
    NameBase_DEMANGLED = 1

    def __init__(self, kind, metrics):
        self._kind, self._metrics = kind, metrics

    def name(self, base=0):
        return GEMM if base == 1 else "gemm"

    def workload_type(self):
        return self._kind

    def metric_names(self):
        return [*self._metrics, "gone__since.sum"]

    def metric_by_name(self, name):
        return FakeMetric(*self._metrics[name]) if name in self._metrics else None


def report_module(actions):
    one_range = SimpleNamespace(num_actions=lambda: len(actions), action_by_idx=lambda place: actions[place])
    report = SimpleNamespace(num_ranges=lambda: 1, range_by_idx=lambda place: one_range)
    return SimpleNamespace(load_report=lambda path: report)


def test_a_report_through_an_installed_module(tmp_path, monkeypatch):
    path = tmp_path / "a.ncu-rep"
    path.write_bytes(b"NVR\0rest")
    metrics = {"gpu__time_duration.sum": (3232.0, "ns"), "launch__grid_dim_x": (8, ""), "dram__bytes.sum": (640.0, "byte"), "device__attribute_display_name": ("NVIDIA L4", "")}  # fmt: skip
    monkeypatch.setitem(sys.modules, "ncu_report", report_module([FakeAction(0, metrics), FakeAction(1, metrics)]))
    row = read_ncu(path).row(0, named=True)
    assert (row["name"], row["duration_ns"], row["dram_bytes"], row["grid_x"]) == (GEMM, 3232, 640, 8)
    assert (row["device_name"], read_ncu(path).height) == ("NVIDIA L4", 1)
    assert ncu_rep.read(path).capture.format == "ncu_rep"
    monkeypatch.setitem(sys.modules, "ncu_report", report_module([]))
    with pytest.raises(NotACaptureError, match="no profiled kernel"):
        read_ncu(path)


def stand_in(folder: Path, name: str, body: str) -> None:
    """A small program that stands where NVIDIA's would."""
    program = folder / name
    program.write_text(f"#!{sys.executable}\nimport sys\n{body}")
    program.chmod(0o755)


def test_a_report_through_the_installed_program(tmp_path, monkeypatch):
    path = tmp_path / "a.ncu-rep"
    path.write_bytes(b"NVR\0rest")
    monkeypatch.setitem(sys.modules, "ncu_report", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    page = raw_page([DURATION], [["1500"]])
    stand_in(tmp_path, "ncu", f"assert sys.argv[1:] == ['--import', {str(path)!r}, '--csv', '--page', 'raw', '--print-units', 'base']\nprint({page!r})")  # fmt: skip
    assert read_ncu(path)["duration_ns"].to_list() == [1500]
    stand_in(tmp_path, "ncu", "sys.exit('unsupported report version')")
    with pytest.raises(NotACaptureError, match=r"exit 1.*unsupported report version"):
        read_ncu(path)


def test_a_report_that_nothing_can_read_gets_the_command(tmp_path, monkeypatch):
    path = tmp_path / "a.ncu-rep"
    path.write_bytes(b"NVR\0rest")
    assert ncu_rep.sniff(path, b"NVR\0rest")
    monkeypatch.setitem(sys.modules, "ncu_report", None)
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    with pytest.raises(NotACaptureError, match=r"ncu --import a.ncu-rep --csv --page raw"):
        read_ncu(path)


def quantities():
    return load_table("ncu_metrics")["quantity"]


PRINTED = {"ns": "ns", "byte": "byte", "byte/s": "byte/s", "hz": "hz", "%": "%", "count": "", "text": ""}


@pytest.mark.parametrize("quantity", quantities(), ids=lambda quantity: quantity["column"])
def test_every_name_in_the_data_file_gives_its_quantity(quantity):
    unit, text = quantity["unit"], "text" if quantity["unit"] == "text" else "8"
    for entry in quantity["metrics"]:
        parts = [entry] if isinstance(entry, str) else entry
        times = float(parts[0].partition(" * ")[2] or 1)
        printed = "sector" if times != 1 else PRINTED[unit]
        launch = Launch(0, metrics={part.partition(" * ")[0]: (text, printed) for part in parts})
        expected = "text" if unit == "text" else 8 * times * len(parts)
        assert ncu_metrics._quantity(launch, quantity, Locale()) == expected
        assert all(ncu_metrics.wanted(name) for name in launch.metrics)
    for section, label in quantity.get("labels", ()):
        launch = Launch(0, labels={(section + " (any version)", label): [("8", "wrong/unit"), ("8", PRINTED[unit])]})
        assert ncu_metrics._quantity(launch, quantity, Locale()) == 8


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("void ns::gemm<(int)64, (bool)1>(int *)", "gemm"),
        ("enable_if<!T7, void>::type kernel<int, float>(T13)", "kernel"),
        ("void (anonymous namespace)::elementwise<int>(int)", "elementwise"),
        ("nvjet_tst_128x64_64x6_4x1_v_bz_TNT", "nvjet_tst_128x64_64x6_4x1_v_bz_TNT"),
        ("Cijk_Alik_Bljk_BBS", "Cijk_Alik_Bljk_BBS"),
        ("copy_blocked[v1,cw51](Array<long long, 1>)", "copy_blocked"),
        ("", ""),
        ("<<<", "<<<"),
    ],
)
def test_short_names(name, short):
    assert short_name(name) == short


def test_real_results(shared_traces):
    folder = shared_traces / "ncu"
    copy = read_ncu(folder / "t4-copy-details-thousands-separators.csv").row(0, named=True)
    assert (copy["duration_ns"], copy["grid_x"], copy["sm_count"], copy["dram_pct"]) == (21_058_944, 1024, 40, 61.84)
    assert copy["dram_bytes"] == pytest.approx(196_456_177_859.63 * 0.021058944)
    found = {path.name: read_ncu(path).row(0, named=True) for path in sorted(folder.glob("dsocr-*.csv"))}
    assert {name: row["duration_ns"] for name, row in found.items() if "metrics" in name} == {
        "dsocr-decode-kernel-0001.metrics.csv": 6750,
        "dsocr-decode-kernel-0004.metrics.csv": 4700,
        "dsocr-decode-kernel-0012.metrics.csv": 4830,
    }
    gemv = found["dsocr-decode-kernel-0001.details.csv"]
    assert (gemv["dram_read_bytes"], gemv["dram_write_bytes"], gemv["grid_x"], gemv["block_y"]) == (
        2_330_000,
        0,
        224,
        4,
    )
    assert gemv["flop"] is None  # tensor cores idle, CUDA cores not counted: not zero
