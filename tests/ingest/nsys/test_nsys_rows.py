"""Oddities of rows and tables, one by one: the capture is read, and what was odd is counted or said."""

import sqlite3
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trace_analyze.analysis.records.errors import CannotAnswerError
from trace_analyze.analysis.records.trace import Trace
from trace_analyze.fixtures.writers.nsys_schema import GENERATIONS
from trace_analyze.fixtures.writers.nsys_writer import KERNEL, NVTX, RUNTIME, Capture, global_pid
from trace_analyze.ingest import open_trace


def small(generation: str = "2025.6", **options) -> Capture:
    """Two kernels of one process, each with its launch inside an NVTX range."""
    capture = Capture(generation, **options)
    capture.gpu("h100")
    capture.nvtx("execute_context_1(64)_generation_0(0)", 1_000, 9_000)
    capture.kernel(
        "void gemm<(int)64>(float *)", 10_000, 20_000, launched_at=2_000, grid=(7, 2, 1), dynamic_shared=1024
    )
    capture.kernel("void norm(float *)", 21_000, 22_000, launched_at=5_000, stream=13)
    return capture


def altered(capture: Capture, path: Path, *statements: str, **options) -> Trace:
    """The capture written, changed by SQL, and read."""
    capture.write(path, **options)
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()
    return open_trace(path)


def texts_of(trace: Trace, frame: str = "ranges") -> list[str]:
    return getattr(trace, frame).join(trace.texts, on="text_id", maintain_order="left")["text"].to_list()


@pytest.mark.parametrize("generation", GENERATIONS)
def test_every_schema_generation_gives_the_same_events(tmp_path: Path, generation: str):
    trace = open_trace(small(generation).write(tmp_path / "run.sqlite"))
    assert trace.kernels.select("start_ns", "end_ns", "stream", "grid_x", "grid_y", "shared_memory_bytes").rows() == [
        (10_000, 20_000, 7, 7, 2, 1024),
        (21_000, 22_000, 13, 1, 1, 0),
    ]
    names = trace.kernels.join(trace.names, on="name_id", maintain_order="left")
    assert names.select("name", "short_name").rows() == [
        ("void gemm<(int)64>(float *)", "gemm"),
        ("void norm(float *)", "norm"),
    ]
    assert texts_of(trace, "launches") == ["cudaLaunchKernel", "cudaLaunchKernel"]
    assert trace.launches["correlation_id"].to_list() == trace.kernels["correlation_id"].to_list()
    assert (
        trace.launches["process"].to_list()
        == trace.kernels["process"].to_list()
        == trace.ranges["process"].to_list() * 2
    )
    assert texts_of(trace) == ["execute_context_1(64)_generation_0(0)"]
    assert trace.devices["gpu_name"].to_list() == ["NVIDIA H100 80GB HBM3"]
    assert trace.devices["sm_count"].to_list() == [132]
    assert trace.capture.rejected_rows == {}


@pytest.mark.parametrize("generation", GENERATIONS)
def test_row_order_in_the_file_does_not_matter(tmp_path: Path, generation: str):
    capture = small(generation)
    for text, start in (("b", 500), ("a", 600), ("a", 500)):
        capture.nvtx(text, start, 900)
    straight = open_trace(capture.write(tmp_path / "a.sqlite"))
    shuffled = open_trace(capture.write(tmp_path / "b.sqlite", shuffle=3))
    for frame in ("kernels", "launches", "ranges", "names", "texts", "devices"):
        assert getattr(straight, frame).equals(getattr(shuffled, frame)), frame


def test_only_kernels_and_strings(tmp_path: Path):
    keep = {KERNEL, "StringIds"}
    path = small().write(tmp_path / "run.sqlite")
    connection = sqlite3.connect(path)
    for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        if table not in keep:
            connection.execute(f'DROP TABLE "{table}"')
    connection.commit()
    connection.close()
    trace = open_trace(path)
    assert trace.kernels.height == 2
    assert trace.launches.is_empty() and trace.ranges.is_empty() and trace.copies.is_empty()
    assert trace.devices.select("mapping", "gpu_name").rows() == [("none", None)]
    assert {gap.what for gap in trace.gaps_in_evidence} >= {"no NVTX ranges", "no launch calls", "no GPU table"}
    assert {RUNTIME, NVTX, "TARGET_INFO_GPU"} <= set(trace.capture.tables_missing)


@pytest.mark.parametrize("stored", ["NVTX_EVENTS_V2", "NVTX_EVENTS_V3", "nvtx_events"])
def test_variants_of_table_names(tmp_path: Path, stored: str):
    plain = open_trace(small().write(tmp_path / "a.sqlite"))
    variant = open_trace(small().write(tmp_path / "b.sqlite", renamed={NVTX: stored, KERNEL: f"{KERNEL}_V2"}))
    assert variant.ranges.equals(plain.ranges) and variant.kernels.equals(plain.kernels)
    assert texts_of(variant) == texts_of(plain)


def test_an_empty_table_beside_its_filled_variant(tmp_path: Path):
    statements = (
        f"CREATE TABLE {NVTX}_V3 AS SELECT * FROM {NVTX}",
        f"DELETE FROM {NVTX}",
        f"CREATE TABLE {NVTX}_V10 AS SELECT * FROM {NVTX}_V3 WHERE 0",
    )
    assert altered(small(), tmp_path / "run.sqlite", *statements).ranges.height == 1


def test_all_tables_created_empty(tmp_path: Path):
    trace = open_trace(small().write(tmp_path / "run.sqlite", lazy=False))
    assert trace.kernels.height == 2 and trace.copies.is_empty()


def test_columns_and_indexes_added_by_other_tools(tmp_path: Path):
    added = {KERNEL: {"kernel_name": "TEXT", "nvtxRange": "TEXT", "Start2": "INTEGER"}, NVTX: {"depth": "INTEGER"}}
    path = small().write(tmp_path / "run.sqlite", extra_columns=added)
    trace = altered(small(), path, f"CREATE INDEX mine ON {KERNEL}(start)", extra_columns=added)
    assert trace.kernels.height == 2


def test_kernel_tables_of_other_column_order_case_and_type(tmp_path: Path):
    create = f"CREATE TABLE k2 AS SELECT streamId AS STREAMID, end, start, demangledName AS DemangledName, deviceId FROM {KERNEL}"
    trace = altered(
        small(), tmp_path / "run.sqlite", create, f"DROP TABLE {KERNEL}", f"ALTER TABLE k2 RENAME TO {KERNEL}"
    )
    assert trace.kernels.select("start_ns", "stream", "context", "correlation_id").rows() == [
        (10_000, 7, -1, -1),
        (21_000, 13, -1, -1),
    ]
    assert trace.names["short_name"].to_list() == ["gemm", "norm"]


def test_rows_without_process_take_the_only_one(tmp_path: Path):
    statements = (f"ALTER TABLE {KERNEL} DROP COLUMN globalPid", f"ALTER TABLE {KERNEL} DROP COLUMN contextId")
    trace = altered(small(), tmp_path / "run.sqlite", *statements)
    assert set(trace.kernels["process"]) == set(trace.launches["process"]) == {global_pid(4242) >> 24}
    assert trace.kernels["context"].to_list() == [-1, -1]


def test_calls_without_thread_take_the_only_process(tmp_path: Path):
    trace = altered(small(), tmp_path / "run.sqlite", f"ALTER TABLE {RUNTIME} DROP COLUMN globalTid")
    assert set(trace.launches["process"]) == {global_pid(4242) >> 24}
    assert set(trace.launches["thread"]) == {-1}


def test_two_processes_without_a_process_id_are_not_guessed(tmp_path: Path):
    capture = small()
    capture.call("cudaLaunchKernel_v7000", 100, 200, pid=77)
    trace = altered(capture, tmp_path / "run.sqlite", f"ALTER TABLE {KERNEL} DROP COLUMN globalPid")
    assert set(trace.kernels["process"]) == {-1}
    assert any("could not be tied to one of several processes" in note for note in trace.capture.notes)


def test_correlation_ids_repeat_across_processes(tmp_path: Path):
    capture = Capture("2025.6")
    for pid in (111, 112):
        capture.kernel("gemm", 5_000 * pid, 5_000 * pid + 900, pid=pid, correlation=9, launched_at=100)
    trace = open_trace(capture.write(tmp_path / "run.sqlite"))
    assert trace.kernels.join(trace.launches, on=["process", "correlation_id"]).height == 2
    assert trace.kernels["process"].n_unique() == 2


@pytest.mark.parametrize("value", ["NULL", "0"])
def test_kernels_without_correlation_are_kept(tmp_path: Path, value: str):
    trace = altered(small(), tmp_path / "run.sqlite", f"UPDATE {KERNEL} SET correlationId = {value}")
    assert trace.kernels["correlation_id"].to_list() == [-1, -1]


def test_negative_hardware_ids(tmp_path: Path):
    capture = Capture("2025.6")
    capture.gpu("h100")
    capture.kernel("gemm", 10_000, 20_000, launched_at=1_000)
    lift = -(1 << 63)  # hardware id 128: the sign bit of a SQLite integer
    trace = altered(
        capture,
        tmp_path / "run.sqlite",
        f"UPDATE {KERNEL} SET globalPid = globalPid + {lift}",
        f"UPDATE {RUNTIME} SET globalTid = globalTid + {lift}",
    )
    assert trace.kernels["process"].to_list() == trace.launches["process"].to_list()
    assert trace.kernels["process"][0] < 0 and trace.kernels["process"][0] & 0xFFFFFF == 4242


@pytest.mark.parametrize(
    ("start", "end", "reason"),
    [
        (0, 0, "kernel: timing not collected (start = end = 0)"),
        (500, 400, "kernel: ends before it starts"),
        (-900, -100, "kernel: starts before the capture (negative time)"),
        (700, 700, "kernel: zero duration"),
    ],
)
def test_impossible_times_are_counted_by_reason(tmp_path: Path, start: int, end: int, reason: str):
    capture = small()
    capture.kernel("broken", start, end)
    trace = open_trace(capture.write(tmp_path / "run.sqlite"))
    assert trace.kernels.height == 2
    assert trace.capture.rejected_rows == {reason: 1}


def test_rows_outside_the_capture_are_rejected_only_where_they_are_few(tmp_path: Path):
    def with_late(late: int) -> Trace:
        capture = Capture("2025.6", duration_ns=1_000_000)
        for number in range(200):
            capture.kernel("gemm", 1_000 * number + 10, 1_000 * number + 900)
        for number in range(late):
            capture.kernel("late", 3_000_000 + 1000 * number, 3_000_900 + 1000 * number)
        return open_trace(capture.write(tmp_path / "run.sqlite"))

    few, many = with_late(2), with_late(50)
    assert few.kernels.height == 200
    assert few.capture.rejected_rows == {"kernel: starts after the capture's end": 2}
    assert many.kernels.height == 250 and many.capture.rejected_rows == {}
    assert any("recorded end was not believed" in note for note in many.capture.notes)


def test_a_kernel_that_never_ends_is_rejected(tmp_path: Path):
    capture = Capture("2025.6", duration_ns=1_000_000)
    for number in range(200):
        capture.kernel("gemm", 1_000 * number + 10, 1_000 * number + 900)
    capture.kernel("endless", 5_000, 10**18)
    trace = open_trace(capture.write(tmp_path / "run.sqlite"))
    assert trace.kernels.height == 200
    assert trace.capture.rejected_rows == {"kernel: ends far beyond the capture's end": 1}


def test_a_row_exported_twice_counts_once(tmp_path: Path):
    trace = altered(small(), tmp_path / "run.sqlite", f"INSERT INTO {KERNEL} SELECT * FROM {KERNEL} LIMIT 1")
    assert trace.kernels.height == 2
    assert trace.capture.rejected_rows == {"kernel: the same row twice": 1}


def test_names_that_dangle_and_a_missing_string_table(tmp_path: Path):
    trace = altered(small(), tmp_path / "a.sqlite", "DELETE FROM StringIds WHERE value LIKE '%norm%'")
    assert trace.names["name"].to_list()[0] == "void gemm<(int)64>(float *)"
    assert "name not recorded" in trace.names["name"].to_list()[1]
    assert any("no text in StringIds" in note for note in trace.capture.notes)
    trace = altered(small(), tmp_path / "b.sqlite", "DROP TABLE StringIds")
    assert trace.names.height == 2 and trace.kernels["name_id"].n_unique() == 2


def test_a_name_that_is_only_mangled_or_only_short(tmp_path: Path):
    trace = altered(small(), tmp_path / "a.sqlite", f"ALTER TABLE {KERNEL} DROP COLUMN demangledName")
    assert trace.names["name"].to_list() == ["void gemm<(int)64>(float *)", "void norm(float *)"]
    drop = [f"ALTER TABLE {KERNEL} DROP COLUMN {column}" for column in ("demangledName", "mangledName")]
    trace = altered(small(), tmp_path / "b.sqlite", *drop)
    assert trace.names["name"].to_list() == ["gemm", "norm"]


def test_text_that_is_not_utf8(tmp_path: Path):
    trace = altered(
        small(),
        tmp_path / "run.sqlite",
        "UPDATE StringIds SET value = CAST(x'67656d6dff28' AS TEXT) WHERE value LIKE '%gemm%'",
        f"UPDATE {NVTX} SET text = CAST(x'73746570fe' AS TEXT)",
    )
    assert "gemm\N{REPLACEMENT CHARACTER}(" in trace.names["name"].to_list()
    assert texts_of(trace) == ["step\N{REPLACEMENT CHARACTER}"]


def test_text_and_text_id(tmp_path: Path):
    # NULL, 0 and '' all mean "look at the other column"
    capture = Capture("2025.6")
    capture.kernel("gemm", 10_000, 20_000)
    registered = capture.string("registered")
    for row, (text, text_id) in enumerate(
        [("a", None), (None, registered), ("", registered), ("b", 0), ("", 0), (None, None), (None, 999)]
    ):
        capture.nvtx(text, 100 * row, 100 * row + 50, text_id=text_id)
    trace = open_trace(capture.write(tmp_path / "run.sqlite"))
    assert texts_of(trace) == ["a", "registered", "registered", "b", "", "", ""]


def test_kinds_of_ranges(tmp_path: Path):
    capture = Capture("2025.6", duration_ns=10_000)
    capture.kernel("gemm", 5_000, 6_000)
    capture.nvtx("pushed", 100, 200)
    capture.nvtx("started", 300, 900, kind=60, tid=5, end_tid=6)
    capture.mark("mark", 0)
    capture.nvtx("still open", 400, None, kind=60, tid=5)
    capture.nvtx("raw push", 450, None, kind=35, tid=7)
    capture.nvtx("raw start", 460, None, kind=37, tid=8)
    trace = open_trace(capture.write(tmp_path / "run.sqlite"))
    rows = trace.ranges.select("start_ns", "end_ns", "kind").rows()
    assert rows == [
        (100, 200, "push_pop"),
        (300, 900, "start_end"),
        (400, 10_000, "start_end"),
        (450, 10_000, "push_pop"),
        (460, 10_000, "start_end"),
    ]
    started = trace.ranges.row(1, named=True)
    assert (started["thread"] & 0xFFFFFF, started["end_thread"] & 0xFFFFFF) == (5, 6)
    assert trace.marks["time_ns"].to_list() == [0] and texts_of(trace, "marks") == ["mark"]
    assert any("3 NVTX ranges were open when the capture ended" in note for note in trace.capture.notes)


def test_raw_pops_leave_their_pushes_unclear(tmp_path: Path):
    capture = Capture("2025.6", duration_ns=10_000)
    capture.kernel("gemm", 5_000, 6_000)
    capture.nvtx("raw push", 450, None, kind=35, tid=7)
    capture.nvtx(None, 470, None, kind=36, tid=7)
    capture.nvtx("raw push", 450, None, kind=35, tid=9)
    trace = open_trace(capture.write(tmp_path / "run.sqlite"))
    assert trace.ranges["end_ns"].to_list() == [10_000]
    assert trace.capture.rejected_rows == {
        "NVTX: a begin whose end cannot be told": 1,
        "NVTX: an end whose begin was not captured": 1,
    }


def test_a_range_that_was_open_before_the_capture_begins_with_it(tmp_path: Path):
    capture = small()
    capture.nvtx("cut", -5_000, 3_000)
    capture.nvtx("gone", -5_000, -3_000)
    trace = open_trace(capture.write(tmp_path / "run.sqlite"))
    assert trace.ranges.select("start_ns", "end_ns").row(0) == (0, 3_000)
    assert trace.capture.rejected_rows == {"NVTX: starts before the capture (negative time)": 1}


def test_a_thousand_processes_have_their_own_domains(tmp_path: Path):
    capture = Capture()
    capture.kernel("k", 0, 10)
    for pid in range(1, 1001):
        capture.nvtx("a", pid * 10, pid * 10 + 5, pid=pid, domain=f"domain of {pid}")
    trace = open_trace(capture.write(tmp_path / "t.sqlite"))
    domains = trace.ranges.join(trace.texts, left_on="domain_text_id", right_on="text_id", maintain_order="left")
    assert domains["text"].to_list() == [f"domain of {pid}" for pid in range(1, 1001)]


def test_domains_belong_to_their_process(tmp_path: Path):
    capture = Capture("2025.6")
    capture.kernel("gemm", 5_000, 6_000)
    capture.nvtx("a", 100, 200, pid=1, domain="NCCL")
    capture.nvtx("b", 300, 400, pid=2, domain="vllm")
    capture.nvtx("c", 500, 600, pid=2)
    trace = open_trace(capture.write(tmp_path / "run.sqlite"))
    domains = trace.ranges.join(trace.texts, left_on="domain_text_id", right_on="text_id", maintain_order="left")
    assert domains["text"].to_list() == ["NCCL", "vllm", ""]


def test_launch_names_of_both_apis(tmp_path: Path):
    capture = Capture("2025.6")
    capture.kernel("gemm", 50_000, 60_000)
    expected = {
        "cudaLaunchKernel_v7000": "kernel",
        "cuLaunchKernelEx": "kernel",
        "cudaLaunchKernelExC_v11060": "kernel",
        "cudaGraphLaunch_v10000": "graph",
        "cuGraphLaunch": "graph",
        "cudaMemcpyAsync_v3020": "copy",
        "cudaStreamSynchronize_v3020": "sync",
        "cudaEventRecord_v3020": "event",
        "cudaMalloc_v3020": "malloc",
        "cudaGetDevice_v3020": "other",
    }
    for row, name in enumerate(expected):
        capture.call(name, 100 * row, 100 * row + 50)
    trace = open_trace(capture.write(tmp_path / "run.sqlite"))
    kinds = dict(zip(texts_of(trace, "launches"), trace.launches["kind"].cast(pl.String), strict=True))
    kinds |= dict(zip(texts_of(trace, "api_calls"), trace.api_calls["kind"].cast(pl.String), strict=True))
    assert kinds == {name.partition("_v")[0]: kind for name, kind in expected.items()}


def test_one_graph_launch_many_kernels(tmp_path: Path):
    capture = small()
    kernels = [("void gemm<(int)64>(float *)", 30_000 + 1000 * node, 30_900 + 1000 * node) for node in range(5)]
    capture.graph_replay(3, kernels, launched_at=25_000)
    trace = open_trace(capture.write(tmp_path / "run.sqlite"))
    replay = trace.kernels.filter(pl.col("graph_node_id") >= 0)
    assert replay.height == 5 and replay["correlation_id"].n_unique() == 1
    assert replay["graph_id"].to_list() == [3] * 5
    assert trace.launches["kind"].cast(pl.String).to_list() == ["kernel", "kernel", "graph"]
    assert trace.capture.graph_trace_mode == "node"
    assert "graph replays are opaque" not in {gap.what for gap in trace.gaps_in_evidence}


def test_graph_launches_without_their_kernels_are_opaque(tmp_path: Path):
    capture = small(graph_mode="graph")
    capture.call("cudaGraphLaunch_v10000", 3_000, 4_000)
    trace = open_trace(capture.write(tmp_path / "run.sqlite"))
    assert "graph replays are opaque" in {gap.what for gap in trace.gaps_in_evidence}
    assert trace.capture.graph_trace_mode == "graph"


def test_node_zero_of_old_exports_is_no_graph(tmp_path: Path):
    trace = altered(small("2020"), tmp_path / "run.sqlite", f"UPDATE {KERNEL} SET graphNodeId = 0")
    assert trace.kernels["graph_node_id"].to_list() == [-1, -1]


@pytest.mark.parametrize(
    ("kind", "kept"), [("h2d", "h2d"), ("d2h", "d2h"), ("d2d", "d2d"), ("p2p", "p2p"), ("memset", "memset")]
)
def test_copies(tmp_path: Path, kind: str, kept: str):
    capture = small()
    capture.copy(kind, 30_000, 31_000, 4096)
    trace = open_trace(capture.write(tmp_path / "run.sqlite"))
    assert trace.copies.select("kind", "bytes", "start_ns").rows() == [(kept, 4096, 30_000)]


def test_a_copy_between_devices_is_peer_to_peer(tmp_path: Path):
    capture = small()
    capture.copy("d2d", 30_000, 31_000, 4096)
    statement = "UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET srcDeviceId = 0, dstDeviceId = 1"
    assert altered(capture, tmp_path / "run.sqlite", statement).copies["kind"].to_list() == ["p2p"]


def test_numbers_beyond_32_bits(tmp_path: Path):
    trace = altered(small(), tmp_path / "a.sqlite", f"UPDATE {KERNEL} SET streamId = 4294967295 WHERE streamId = 13")
    assert trace.kernels["stream"].to_list() == [7, -1]
    trace = altered(small(), tmp_path / "b.sqlite", f"UPDATE {KERNEL} SET streamId = 1 << 40 WHERE streamId = 13")
    assert trace.kernels["stream"].n_unique() == 2
    assert any("beyond 32 bits" in note for note in trace.capture.notes)
    trace = altered(small(), tmp_path / "c.sqlite", f"UPDATE {KERNEL} SET correlationId = {2**62} + rowid")
    assert trace.kernels["correlation_id"].to_list() == [2**62 + 1, 2**62 + 2]


def test_cells_of_the_wrong_type(tmp_path: Path):
    trace = altered(
        small(),
        tmp_path / "run.sqlite",
        f"UPDATE {KERNEL} SET start = CAST(start AS REAL) + 0.25, gridX = 'x' WHERE streamId = 7",
        f"UPDATE {KERNEL} SET start = x'00ff' WHERE streamId = 13",
    )
    assert trace.kernels.select("start_ns", "grid_x").rows() == [(10_000, -1)]
    assert trace.capture.rejected_rows == {"kernel: time missing": 1}


SHIFT = 7_000_000_000


def test_times_as_utc_are_counted_from_session_start(tmp_path: Path):
    plain = open_trace(small().write(tmp_path / "a.sqlite"))
    normalized = open_trace(small().write(tmp_path / "b.sqlite", normalize=True))
    for frame in ("kernels", "launches", "ranges"):
        assert getattr(plain, frame).equals(getattr(normalized, frame)), frame
    assert normalized.capture.session_start_utc_ns == plain.capture.session_start_utc_ns == 1_765_000_000_000_000_000


@pytest.mark.parametrize("recorded", [True, False])
def test_shifted_times(tmp_path: Path, recorded: bool):
    parameter = "UPDATE META_DATA_EXPORT SET value = '{}' WHERE name = 'EXPORT_PARAM_TIME_SHIFT'"
    moves = [f"UPDATE {table} SET start = start + {SHIFT}, end = end + {SHIFT}" for table in (KERNEL, RUNTIME, NVTX)]
    trace = altered(
        small(duration_ns=10**10), tmp_path / "run.sqlite", parameter.format(SHIFT if recorded else 0), *moves
    )
    assert trace.kernels["start_ns"].to_list() == [
        10_000 + (0 if recorded else SHIFT),
        21_000 + (0 if recorded else SHIFT),
    ]


def test_utc_times_that_nothing_declares(tmp_path: Path):
    path = small().write(tmp_path / "run.sqlite", normalize=True, without=["META_DATA_EXPORT"])
    assert open_trace(path).kernels["start_ns"].to_list() == [10_000, 21_000]
    without = ["META_DATA_EXPORT", "TARGET_INFO_SESSION_START_TIME", "ANALYSIS_DETAILS"]
    trace = open_trace(small().write(tmp_path / "run.sqlite", normalize=True, without=without))
    assert trace.kernels["start_ns"].to_list() == [0, 11_000]  # counted from the first kernel


@pytest.mark.parametrize(
    ("said", "column", "expected"),
    [
        ("CUDA legacy/software instrumented trace was collected.", "NULL", False),
        ("CUDA hardware trace was collected.", "NULL", True),
        (None, "17", True),
        (None, "NULL", None),
    ],
)
def test_who_took_the_times(tmp_path: Path, said: str | None, column: str, expected: bool | None):
    capture = small()
    if said:
        capture.diagnostic(said, severity=1)
    trace = altered(capture, tmp_path / "run.sqlite", f"UPDATE {KERNEL} SET qmdLastCtaDone = {column}")
    assert trace.capture.hardware_trace is expected


def test_partial_exports_are_said(tmp_path: Path):
    statement = "UPDATE META_DATA_EXPORT SET value = 'CUPTI_ACTIVITY_KIND_KERNEL' WHERE name LIKE '%TABLES_TO_EXPORT'"
    trace = altered(small(), tmp_path / "run.sqlite", statement)
    assert "partial export (some tables only)" in {gap.what for gap in trace.gaps_in_evidence}
    with pytest.raises(CannotAnswerError, match="limited to some tables"):
        altered(small(), tmp_path / "b.sqlite", statement, f"DROP TABLE {KERNEL}")


def test_progress_names_the_parts(tmp_path: Path):
    said: list[str] = []
    open_trace(small().write(tmp_path / "run.sqlite"), progress=said.append)
    assert said[0] == "2 kernels" and "1 NVTX ranges" in said


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    times=st.lists(st.tuples(st.integers(-50, 300), st.integers(-50, 300), st.integers(0, 3)), min_size=1, max_size=40),
)
def test_every_row_is_kept_or_counted(tmp_path: Path, times: list[tuple[int, int, int]]):
    capture = Capture("2025.6", duration_ns=10_000)
    capture.kernel("anchor", 9_000, 9_500)
    for start, end, stream in times:
        capture.kernel("gemm", start, end, stream=stream)
        capture.nvtx("range", start, end, tid=stream)
    trace = open_trace(capture.write(tmp_path / "run.sqlite"))
    rejected = trace.capture.rejected_rows
    kernels = sum(count for reason, count in rejected.items() if reason.startswith("kernel"))
    ranges = sum(count for reason, count in rejected.items() if reason.startswith("NVTX"))
    assert trace.kernels.height + kernels == len(times) + 1
    assert trace.ranges.height + ranges == len(times)
    assert (trace.kernels["end_ns"] > trace.kernels["start_ns"]).all()
    assert (trace.kernels["start_ns"] >= 0).all()
    assert trace.kernels.equals(trace.kernels.sort(trace.kernels.columns))
