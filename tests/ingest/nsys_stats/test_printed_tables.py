"""Tables of `nsys stats` as a terminal shows them, and numbers as locales write them, each worked out by hand."""

from __future__ import annotations

import polars as pl
import pytest

from trace_analyze import open_trace
from trace_analyze.analysis.records.errors import NotACaptureError
from trace_analyze.ingest.nsys_stats.printed_tables import with_plain_numbers
from trace_analyze.ingest.nsys_stats.reader import read, sniff

# 600,000,000 ns in 600 launches and 1,000,000 ns in 4,000: one name has a comma and spaces, the other is cut
WHOLE, CUT = "void norm<float, (int)8>(float *, int)", "void topKStage1<float, (int)128>(const…"
SUMS = [(WHOLE, 600, 600_000_000), (CUT, 4_000, 1_000_000)]

CSV = f"""Time (%),Total Time (ns),Instances,Avg (ns),Name
99.8,600000000,600,1000000.0,"{WHOLE}"
0.2,1000000,4000,250.0,"{CUT}"
"""
COLUMNS = f"""Generating SQLite file run.sqlite from run.nsys-rep
Processing [run.sqlite] with [cuda_gpu_kern_sum.py]...

 ** CUDA GPU Kernel Summary (cuda_gpu_kern_sum):

 Time (%)  Total Time (ns)  Instances   Avg (ns)                      Name
 --------  ---------------  ---------  -----------  --------------------------------------
     99.8      600,000,000        600  1,000,000.0  {WHOLE}
      0.2        1,000,000      4,000        250.0  {CUT}

Processing [run.sqlite] with [cuda_gpu_mem_time_sum.py]...
"""
BOX = f"""
 ** CUDA GPU Kernel Summary (cuda_gpu_kern_sum):

+----------+-----------------+-----------+-----------+-----------------------------------------+
| Time (%) | Total Time (ns) | Instances | Avg (ns)  |                  Name                   |
+----------+-----------------+-----------+-----------+-----------------------------------------+
|     99.8 |       600000000 |       600 | 1000000.0 | {WHOLE:<39} |
|      0.2 |         1000000 |      4000 |     250.0 | {CUT:<39} |
+----------+-----------------+-----------+-----------+-----------------------------------------+
"""
SPELLINGS = {
    "csv": CSV,
    "columns": COLUMNS,
    "box": BOX,
    "tabs": CSV.replace(", ", "~").replace(",", "\t").replace("~", ", "),
    "semicolons and decimal commas": CSV.replace(", ", "~").replace(",", ";").replace(".", ",").replace("~", ", "),
    "quoted, with thousands": CSV.replace("600000000,600", '"600,000,000",600').replace("1000000,4000", '"1,000,000","4,000"'),
    "columns, German": COLUMNS.translate(str.maketrans(",.", ".,")).replace("float. (int)", "float, (int)").replace("*. int", "*, int"),
    "columns, French": COLUMNS.replace("600,000,000", "600\u202f000\u202f000").replace("1,000,000.0", "1\u202f000\u202f000,0").replace("1,000,000", "1\u202f000\u202f000").replace("4,000", "4\u202f000").replace("99.8", "99,8").replace("0.2 ", "0,2 ").replace("250.0", "250,0"),
    "columns, Swiss": COLUMNS.replace("600,000,000", "600'000'000").replace("1,000,000", "1'000'000").replace("4,000", "4'000"),
    "columns in milliseconds": COLUMNS.replace("(ns)", "(ms)").replace("    600,000,000", "        600.000").replace("      1,000,000", "          1.000", 1).replace("1,000,000.0", "    1.00000").replace("250.0", "0.025"),
    "box, Windows": BOX.replace("\n", "\r\n"),
    "columns, indented": "\n".join(f"    {line}" if line.strip() else "" for line in COLUMNS.split("\n")),
}  # fmt: skip


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_says_the_same(tmp_path, spelling):
    path = tmp_path / "run.txt"
    path.write_bytes(SPELLINGS[spelling].encode())
    assert sniff(path, path.read_bytes()[:65536])
    trace = read(path)
    found = trace.kernels.hstack(trace.launch_counts).join(trace.names, on="name_id").group_by("name")
    sums = found.agg(pl.col("launch_count").sum(), (pl.col("end_ns") - pl.col("start_ns")).sum().alias("ns"))
    assert sorted(sums.rows()) == sorted(SUMS)
    assert trace.capture.notes[1].startswith("1 of 2 kernel names are cut in this table")
    assert "nsys stats --report cuda_gpu_kern_sum --format csv" in trace.capture.notes[1]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_what_powershell_writes(tmp_path, encoding):
    path = tmp_path / "run.txt"
    path.write_bytes(COLUMNS.encode(encoding))
    assert open_trace(path).kernel_count == 4_600


def test_rows_of_the_gpu_trace_in_columns(tmp_path):
    text = """
 Start (ns)  Duration (ns)  CorrId  GrdX  GrdY  BlkX   Device        Strm  Name
 ----------  -------------  ------  ----  ----  ----  -------------  ----  ---------------------------
      1,000            500      11     4     2   128  NVIDIA L4 (0)     7  void gemm<(int)4>(float *)
      1,600             10      12                    NVIDIA L4 (0)     7  [CUDA memset]
"""
    path = tmp_path / "run.txt"
    path.write_text(text)
    trace = open_trace(path)
    assert trace.kernels.select("start_ns", "end_ns", "grid_x", "grid_y", "block_x", "stream").rows() == [(1000, 1500, 4, 2, 128, 7)]  # fmt: skip
    assert trace.copies.select("start_ns", "kind").rows() == [(1600, "memset")]


@pytest.mark.parametrize(
    "damaged",
    [
        COLUMNS.replace("     99.8  ", "99.8  "),  # blanks lost in copying
        BOX.replace(f"| {CUT:<39} |", CUT),
    ],
)
def test_cells_that_left_their_columns_are_refused_with_the_command(tmp_path, damaged):
    path = tmp_path / "run.txt"
    path.write_text(damaged)
    with pytest.raises(NotACaptureError, match=r"--report cuda_gpu_kern_sum --format csv run\.nsys-rep > run\.csv"):
        open_trace(path)


def test_other_printed_reports_are_refused_with_the_command(tmp_path):
    path = tmp_path / "run.txt"
    path.write_text(" Time (%)  Total Time (ns)  Num Calls  Name\n --------  ---------------  ---------  ----\n    100.0               10          1  cudaLaunchKernel\n")  # fmt: skip
    with pytest.raises(NotACaptureError, match="--format csv"):
        open_trace(path)


@pytest.mark.parametrize(
    ("cells", "plain"),
    [
        (["1,000.0", "250"], ["1000.0", "250"]),
        (["1.000,0", "2.500"], ["1000.0", "2500"]),  # the first says what the point of the second is
        (["1.500", "2.250"], ["1.500", "2.250"]),  # nothing tells: as C writes it
        (["1.000.000", "2.500"], ["1000000", "2500"]),
        (["1,000,000", "0.1234"], ["1000000", "0.1234"]),
        (["1 000,25", "3,5"], ["1000.25", "3.5"]),
    ],
)
def test_separators_are_told_once_for_a_table(cells, plain):
    table = pl.DataFrame({"Total Time (ns)": cells, "Name": ["1,5", "x"]})
    assert with_plain_numbers(table).rows() == list(zip(plain, ["1,5", "x"], strict=True))


def test_two_decimal_signs_in_one_table_are_no_table():
    with pytest.raises(ValueError, match="decimal comma"):
        with_plain_numbers(pl.DataFrame({"Total Time (ns)": ["1,5", "2.5"]}))


@pytest.mark.parametrize(("name", "kernels", "cut"), [("box", 8_100, 3), ("columns", 4_600, 1)])
def test_tables_of_public_repositories(shared_traces, name, kernels, cut):
    path = shared_traces.parent / "cases" / f"nsys_stats_{name}.txt"
    if not path.is_file():
        pytest.skip(f"{path.name} is not here")
    trace = open_trace(path)
    assert (trace.kernel_count, trace.capture.duration_ns) == (kernels, 1_000_000_000)
    assert trace.capture.notes[1].startswith(f"{cut} of {trace.names.height} kernel names are cut")
