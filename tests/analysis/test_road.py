"""Python, the command line, the cache and a batch worker say the same of one input, whatever its format."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import trace_analyze as ta
from trace_analyze.analysis.records.formats import FORMATS, RUN_OF_FILES
from trace_analyze.analysis.records.options import Options
from trace_analyze.analysis.road import Capture, analyze_capture, read_capture
from trace_analyze.cli import main
from trace_analyze.fixtures.build import CAPTURES
from trace_analyze.fixtures.matrix import MATRIX
from trace_analyze.fixtures.simulator.serving import simulate
from trace_analyze.fixtures.writers.kineto_writer import write_kineto
from trace_analyze.fixtures.writers.ncu_writer import write_ncu_csv
from trace_analyze.fixtures.writers.parquet_writer import write_tables
from trace_analyze.fixtures.writers.stats_writer import gpu_trace_csv, kernel_summary_csv
from trace_analyze.reports.archive.find_captures import Found
from trace_analyze.reports.archive.one_capture import Task, analyse_capture
from trace_analyze.reports.json_report import to_dict

SGLANG = CAPTURES / "sglang-qwen3-8b-h100.sqlite"
NEEDS_PROGRAMS = {"nsys_rep", "ncu_rep"}  # read by way of NVIDIA's own programs, which tests do not have


def _written(text: str, path: Path) -> Path:
    path.write_text(text)
    return path


def _measured(folder: Path) -> Path:
    path = folder / "kernels.details.csv"
    write_ncu_csv(simulate(MATRIX["vllm-llama-8b-h100"]), path, step=3, page="details")
    return path


MAKERS: dict[str, Callable[[Path], Path]] = {
    "nsys_sqlite": lambda folder: Path(shutil.copy(SGLANG, folder / "run.sqlite")),
    "nsys_parquet": lambda folder: write_tables(SGLANG, folder / "run_pqtdir"),
    "nsys_arrow": lambda folder: write_tables(SGLANG, folder / "run_arwdir", kind="arrow"),
    "kineto_json": lambda folder: write_kineto(SGLANG, folder / "run.pt.trace.json.gz"),
    "ncu_csv": _measured,
    "nsys_stats": lambda folder: _written(gpu_trace_csv(SGLANG), folder / "run_cuda_gpu_trace.csv"),
    "nsys_stats_summary": lambda folder: _written(kernel_summary_csv(SGLANG), folder / "run_cuda_gpu_kern_sum.csv"),
}


def test_every_format_is_walked():
    assert set(MAKERS) | NEEDS_PROGRAMS == {each.key for each in FORMATS}
    assert RUN_OF_FILES[1] == "run_of_files.open_run"  # walked in tests/analysis/cache and tests/ingest/run_of_files


@pytest.mark.parametrize("key", MAKERS)
def test_all_doors_lead_to_one_analysis(key, tmp_path, capfd):
    path = MAKERS[key](tmp_path)
    from_python = ta.analyze(path, gpu="h100").to_dict()
    assert from_python["source"]["format"] == key

    assert ta.analyze(ta.open_trace(path), gpu="h100").to_dict() == from_python
    options = Options(gpu="h100")
    for _ in ("made", "taken from the cache"):
        assert to_dict(analyze_capture(Capture(path), options, cache=tmp_path / "kept")) == from_python

    capfd.readouterr()
    code = main([str(path), "--gpu", "h100", "--format", "json", "-o", "-"])
    from_command_line = json.loads(capfd.readouterr().out)
    assert from_command_line == from_python
    assert code == (3 if from_python["status"] == "could_not_look" else 0)

    row = analyse_capture(Task(Found(path, path.name), tmp_path / "reports" / "run.html", options))
    assert (row["format"], row["kernel_count"]) == (key, from_python["summary"]["kernel_count"])
    assert read_capture(Capture(path)).kernels.height == ta.open_trace(path).kernels.height


def test_python_measures_where_the_command_line_does(tmp_path):
    """Launches that Nsight Compute measured have measured work, with no option given."""
    analysis = ta.analyze(_measured(tmp_path), gpu="h100")
    sources = dict(analysis.kernels.group_by("work_source").len().iter_rows())
    assert sources["measured"] > 0.9 * analysis.kernels.height
