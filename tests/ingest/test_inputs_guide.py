"""docs/inputs.md names every reader and the commands that the code prints."""

from __future__ import annotations

from pathlib import Path

from trace_analyze.analysis.records.formats import readers
from trace_analyze.ingest import counters
from trace_analyze.ingest.nsys import report_file as nsys_rep

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "inputs.md").read_text(encoding="utf-8")


def test_commands_are_those_of_the_code():
    assert nsys_rep.export_command("run.nsys-rep") in GUIDE
    assert counters.HOW_DMON in GUIDE
    assert counters.HOW_DCGM in GUIDE


def test_every_reader_has_a_row():
    words = {
        "nsys": "--type sqlite",
        "nsys.table_folder": "parquetdir",
        "nsys.report_file": "nsys-rep",
        "nsys_stats.reader": "cuda_gpu_kern_sum",
        "kineto.reader": "pt.trace.json",
        "ncu.ncu_csv": "--page raw",
        "ncu.report_file": "ncu-rep",
        "run_of_files.open_run": "One run in several files",
    }
    assert {module for _, module in readers()} == set(words)
    assert all(word in GUIDE for word in words.values())
