"""Every row of vocabulary.toml is met: an engine, an option, a message, a metric or a foreign table that it takes."""

import re
import sqlite3
from dataclasses import fields
from pathlib import Path

import pytest

from trace_analyze.analysis.records.errors import NotACaptureError
from trace_analyze.analysis.records.trace import GPU_METRICS, ServingFacts
from trace_analyze.ingest import open_trace
from trace_analyze.ingest.nsys.facts import _messages
from trace_analyze.ingest.nsys.metrics import column_of
from trace_analyze.ingest.nsys.serving_options import serving_facts
from trace_analyze.ingest.nsys.vocabulary import vocabulary

TYPED = {
    "model": ("org/Some-Model-7B", "Some-Model-7B"),
    "count": ("16", 16),
    "chunk": ("2048", 2048),
    "yes": ("true", True),
    "dtype": ("fp8", "fp8"),
    "quantization": ("awq", "awq"),
    "speculative": ("eagle", "eagle"),
    "json_method": ('{"method": "ngram"}', "ngram"),
    "switch_on": (None, True),
    "switch_off": (None, False),
}
MESSAGES = [
    "Not all CUDA events might have been collected.",
    "No NVTX events collected. Does the process use NVTX?",
    "CUDA profiling might have not been started correctly.",
    "Installed CUDA driver version (13.1) is not supported by this build of Nsight Systems",
    "Couldn't allocate CUPTI bufer",
    "Reached the size limit on recording trace events for this process",
    "CUDA hardware tracing is not supported on this system. A legacy (software instrumented) trace was collected instead.",
    "A legacy (software instrumented) trace was collected instead.",
    "CUDA legacy/software instrumented trace was collected.",
    "CUDA hardware trace was collected.",
    "Number of CUDA events collected: \t12799.",
    "123 CUDA events were lost",
    "Some NVTX events were dropped",
    "Insufficient privilege to sample GPU metrics",
    "ERR_NVGPUCTRPERM",
    "GPU metrics sampling buffer overflow",
    "CUPTI buffer overflow",
]


@pytest.mark.parametrize("row", vocabulary()["option"], ids=lambda row: row["flags"][0])
def test_options(row: dict):
    text, expected = TYPED[row["value"]]
    assert row["field"] in {field.name for field in fields(ServingFacts)}
    program = ["llama-server"] if row.get("engine") == "llama.cpp" else ["python", "run.py"]
    for flag in row["flags"]:
        spellings = [[flag]] if text is None else [[flag, text], [f"{flag}={text}"]]
        spellings += [
            [flag.replace("-", "_").replace("__", "--", 1), *spelling[1:]]
            for spelling in spellings
            if flag.startswith("--") and "=" not in spelling[0]
        ]
        for spelling in spellings:
            assert getattr(serving_facts([[*program, *spelling]]), row["field"]) == expected, spelling


@pytest.mark.parametrize("row", vocabulary()["engine"], ids=lambda row: row["name"])
def test_engines(row: dict):
    for start in row["starts"]:
        assert serving_facts([[f"/opt/bin/{start}"]]).engine == row["name"]
        assert serving_facts([["python", "-m", f"{start}.launch"]]).engine == row["name"]
    for folder in row["folder"]:
        assert serving_facts([["python", f"/src/{folder}/examples/run.py"]]).engine == row["name"]
        assert serving_facts([["python", f"/src/my{folder}x/examples/run.py"]]).engine is None


def test_every_message_pattern_is_met():
    for pattern in vocabulary()["diagnostics"]["loss_and_state"]:
        assert any(re.search(pattern, message) for message in MESSAGES), pattern
    for message in MESSAGES:
        assert _messages().search(message), message


@pytest.mark.parametrize(
    "message",
    [
        "Profiling has started.",
        "Process was launched by the profiler, see /tmp/x/pid_1_stdout.log",
        "Loaded CUPTI library: /home/someone/libcupti.so",
    ],
)
def test_other_messages_are_not_kept(message: str):
    assert not _messages().search(message)


def test_metric_names():
    assert set(vocabulary()["gpu_metrics"]) == set(GPU_METRICS) - {"time_ns", "device_index"}
    for column, names in vocabulary()["gpu_metrics"].items():
        for rank, name in enumerate(names):
            assert column_of(f"{name.upper()} [Throughput %]") == (column, rank)
            assert column_of(f"{name} [Avg]") is None
    assert column_of("GR Active [Throughput %]") is None
    assert column_of("Unallocated Warps in Active SMs [Throughput %]") is None


@pytest.mark.parametrize(("table", "product"), vocabulary()["other_databases"].items())
def test_other_databases(tmp_path: Path, table: str, product: str):
    connection = sqlite3.connect(tmp_path / "run.sqlite")
    connection.execute(f"CREATE TABLE {table}(x)")
    connection.close()
    with pytest.raises(NotACaptureError, match=re.escape(product)):
        open_trace(tmp_path / "run.sqlite")
