"""docs/inputs.md names every reader and the commands that the code prints."""

from __future__ import annotations

from pathlib import Path

from trace_analyze.ingest import READERS, counters, nsys_rep

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "inputs.md").read_text(encoding="utf-8")


def test_commands_are_those_of_the_code():
    assert nsys_rep.export_command("run.nsys-rep") in GUIDE
    assert counters.HOW_DMON in GUIDE
    assert counters.HOW_DCGM in GUIDE


def test_every_reader_has_a_row():
    words = {
        ".nsys": "--type sqlite",
        ".nsys_tables": "parquetdir",
        ".nsys_rep": ".nsys-rep",
        ".nsys_stats": "cuda_gpu_kern_sum",
        ".kineto": "pt.trace.json",
        ".ncu_csv": "--page raw",
        ".ncu_rep": ".ncu-rep",
        ".multi": "One run in several files",
    }
    assert {module for _, module in READERS} == set(words)
    assert all(word in GUIDE for word in words.values())
