"""Secrets planted wherever an export holds environment, host, user, path or program output: none leaves ingest."""

import sqlite3
from pathlib import Path

import polars as pl
import pytest

from trace_analyze.analysis import road
from trace_analyze.analysis.records.errors import TraceAnalyzeError
from trace_analyze.analysis.records.options import Options
from trace_analyze.analysis.records.trace import FRAMES, Trace
from trace_analyze.fixtures.writers.nsys_writer import Capture, global_pid
from trace_analyze.ingest import open_trace

SECRET = "hunter2XYZZY"

PLANTS = [
    # (table, columns, values)
    ("META_DATA_CAPTURE", "name, value", ("PROCESS_0:ENVIRONMENT_VARIABLE", f"HF_TOKEN={SECRET}")),
    ("META_DATA_CAPTURE", "name, value", ("PROCESS_0:USER_NAME", SECRET)),
    ("META_DATA_CAPTURE", "name, value", ("PROCESS_0:WORKING_DIR", f"/home/{SECRET}/work")),
    ("META_DATA_CAPTURE", "name, value", ("DEVICE_DISPLAY_NAME", SECRET)),
    ("META_DATA_CAPTURE", "name, value", ("PROCESS_0:ARGUMENT_90", f"--api-key={SECRET}")),
    ("META_DATA_CAPTURE", "name, value", ("PROCESS_0:ARGUMENT_91", "--hf-token")),
    ("META_DATA_CAPTURE", "name, value", ("PROCESS_0:ARGUMENT_92", SECRET)),
    ("META_DATA_CAPTURE", "name, value", ("PROCESS_0:ARGUMENT_93", f"--dtype={SECRET}")),
    ("META_DATA_CAPTURE", "name, value", ("CUDA_GRAPH_TRACE_OPTIONS:MODE", SECRET)),
    ("META_DATA_EXPORT", "name, value", ("EXPORT_HOST", SECRET)),
    ("META_DATA_EXPORT", "name, value", ("EXPORT_USER", SECRET)),
    ("META_DATA_EXPORT", "name, value", ("EXPORT_PARAM_INPUT_PATH_ABS", f"/home/{SECRET}/run.nsys-rep")),
    ("META_DATA_EXPORT", "name, value", ("EXPORT_PARAM_TABLES_TO_EXPORT", SECRET)),
    ("TARGET_INFO_SYSTEM_ENV", "globalVid, devStateName, name, nameEnum, value", (0, "x", "Hostname", 619, SECRET)),
    ("TARGET_INFO_SYSTEM_ENV", "globalVid, devStateName, name, nameEnum, value", (0, SECRET, "DeviceEnvironment", 610, f"AWS={SECRET}")),
    ("PROCESSES", "globalPid, pid, name", (global_pid(4242), 4242, f"/opt/{SECRET}/python")),
    ("DIAGNOSTIC_EVENT", "timestamp, timestampType, source, severity, text", (0, 2, 3, 2, f"Process was launched, see /tmp/{SECRET}/stdout.log")),
    ("DIAGNOSTIC_EVENT", "timestamp, timestampType, source, severity, text", (0, 2, 3, 2, f"Not all CUDA events might have been collected. See {SECRET}.")),
]  # fmt: skip


def planted(tmp_path: Path, **options) -> Path:
    capture = Capture(
        "2025.6",
        command=("vllm", "serve", f"/home/{SECRET}/models/Llama-3.1-8B", "--tensor-parallel-size", "2"),
        environment={"OPENAI_API_KEY": SECRET, SECRET: "1"},
        **options,
    )
    capture.gpu("h100", busLocation=SECRET, ctrlDevPath=f"/dev/{SECRET}")
    capture.diagnostic(f"Loaded CUPTI library: /home/{SECRET}/libcupti.so", severity=1)
    capture.kernel("void gemm<(int)64>(float *)", 10_000, 20_000, launched_at=2_000)
    capture.nvtx("execute_context_1(64)_generation_0(0)", 1_000, 9_000)
    folder = tmp_path / SECRET
    folder.mkdir()
    path = capture.write(folder / "run.sqlite")
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE ProcessStreams (globalPid INTEGER, filenameId INTEGER, contentId INTEGER)")
    for number, text in ((900001, f"/tmp/{SECRET}.log"), (900002, f"password={SECRET}"), (900003, SECRET)):
        connection.execute("INSERT INTO StringIds VALUES (?, ?)", (number, text))
    connection.execute("INSERT INTO ProcessStreams VALUES (?, 900001, 900002)", (global_pid(4242),))
    connection.execute("UPDATE ThreadNames SET nameId = 900003")
    for table, columns, values in PLANTS:
        places = ", ".join("?" * len(values))
        connection.execute(f"INSERT INTO {table} ({columns}) VALUES ({places})", values)
    connection.commit()
    connection.close()
    return path


def everything_in(trace: Trace) -> str:
    """All text a Trace holds: its facts, and every text cell of every frame."""
    texts = [repr(trace.capture), repr(trace.gaps_in_evidence)]
    for name in FRAMES:
        frame = getattr(trace, name)
        for column in frame.select(pl.selectors.string() | pl.selectors.enum() | pl.selectors.categorical()).columns:
            texts.extend(map(str, frame[column].unique().to_list()))
    return "\n".join(texts)


def test_the_plants_are_in_the_file_and_not_in_the_trace(tmp_path: Path):
    path = planted(tmp_path)
    assert path.read_bytes().count(SECRET.encode()) > 20
    said: list[str] = []
    trace = open_trace(path, progress=said.append)
    assert SECRET not in everything_in(trace)
    assert SECRET not in "\n".join(said)
    # what may be seen was seen
    assert trace.capture.serving.model == "Llama-3.1-8B" and trace.capture.serving.tensor_parallel == 2
    assert "Not all CUDA events might have been collected" in {message.text for message in trace.capture.diagnostics}
    assert trace.capture.graph_trace_mode == "node"
    assert "partial export (some tables only)" in {gap.what for gap in trace.gaps_in_evidence}


def test_the_cell_search_would_find_a_secret(tmp_path: Path):
    capture = Capture("2025.6")
    capture.kernel(f"void {SECRET}(int)", 10_000, 20_000)  # kernel and NVTX names are shown
    assert SECRET in everything_in(open_trace(capture.write(tmp_path / "run.sqlite")))


@pytest.mark.parametrize("table", ["CUPTI_ACTIVITY_KIND_KERNEL", "StringIds", "NVTX_EVENTS"])
def test_refusals_hold_no_secret_either(tmp_path: Path, table: str):
    path = planted(tmp_path)
    connection = sqlite3.connect(path)
    if table == "CUPTI_ACTIVITY_KIND_KERNEL":
        connection.execute(f"DELETE FROM {table}")
        connection.commit()
        connection.close()
    else:
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
        connection.close()
        content = bytearray(path.read_bytes())
        page = int.from_bytes(content[16:18], "big")
        content[(root - 1) * page : root * page] = bytes(page)
        path.write_bytes(bytes(content))
    with pytest.raises(TraceAnalyzeError) as caught:
        open_trace(path)
    assert SECRET not in str(caught.value)


def test_the_cache_holds_no_more_than_the_trace(tmp_path):
    path = planted(tmp_path)
    road.analyze_capture(road.Capture(path), Options(gpu="h100"), cache=tmp_path / "cache")
    files = [file for file in (tmp_path / "cache").rglob("*") if file.is_file()]
    assert len({file.parent for file in files}) == 2  # the Trace and its Analysis
    for file in files:
        text = str(pl.read_parquet(file).to_dict(as_series=False)) if file.suffix else file.read_text("utf-8")
        assert SECRET not in text, file.name
        assert SECRET not in file.as_posix().removeprefix(tmp_path.as_posix())
