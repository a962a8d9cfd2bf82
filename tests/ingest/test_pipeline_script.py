"""docs/pipeline.sh: its help, the commands it would run, and a whole run with programs standing in for nsys."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trace_analyze.fixtures.build import CAPTURES
from trace_analyze.fixtures.writers.parquet_writer import write_tables

SCRIPT = Path(__file__).resolve().parents[2] / "docs" / "pipeline.sh"
pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


def call(*arguments, cwd=None, path=None):
    environment = {**os.environ, **({"PATH": path} if path else {})}
    return subprocess.run(["bash", str(SCRIPT), *arguments], capture_output=True, text=True, cwd=cwd, env=environment, check=False)  # fmt: skip


def test_help_names_every_option():
    done = call("--help")
    assert done.returncode == 0
    options = ("--out", "--delay", "--time", "--capture-range", "--gpu-metrics", "--export", "--recipe", "--analyze", "--rep", "--dry-run")  # fmt: skip
    assert all(option in done.stdout for option in options)


def commands(*arguments):
    done = call("--dry-run", *arguments)
    assert done.returncode == 0, done.stderr
    return [line.removeprefix("+ ") for line in done.stderr.splitlines()]


def test_recording_by_time(tmp_path):
    assert commands("-o", "made", "-d", "60", "-t", "5", "-a", "--gpu h100", "--", "vllm", "serve", "a model") == [
        "mkdir -p made",
        "nsys profile --trace=cuda\\,nvtx --cuda-graph-trace=node --trace-fork-before-exec=true --sample=none --cpuctxsw=none --delay=60 --duration=5 --output=made/run --force-overwrite=true vllm serve a\\ model",
        "nsys export --type parquetdir --force-overwrite=true --output made/run_pqtdir made/run.nsys-rep",
        "trace-analyze made/run_pqtdir --gpu h100 -o made --format html\\,json",
    ]  # fmt: skip


def test_recording_a_range_with_metrics_and_recipes():
    found = commands("-c", "-m", "-e", "sqlite", "-r", "cuda_gpu_kern_sum", "-r", "nccl_sum", "--", "serve")
    assert "--capture-range=cudaProfilerApi --capture-range-end=stop" in found[1]
    assert "--gpu-metrics-devices=all" in found[1] and "--duration" not in found[1]
    assert [line.split()[2] for line in found if line.startswith("nsys recipe")] == ["cuda_gpu_kern_sum", "nccl_sum"]
    assert found[-1].startswith("trace-analyze trace-analyze-out/run.sqlite")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give a command after --"),
        (["--rep", "a.nsys-rep", "--", "serve"], "not both"),
        (["--rep", "absent.nsys-rep"], "no such report"),
        (["--export", "hdf", "--", "serve"], "choose parquetdir"),
        (["--out"], "--out needs a value"),
        (["--frobnicate"], "unknown option"),
        (["--", "serve"], "nsys is not on the PATH"),
    ],
)
def test_misuse_is_told_with_exit_2(tmp_path, arguments, words):
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in ("bash", "sed", "cat", "mkdir"):
        (folder / tool).symlink_to(shutil.which(tool))
    done = call(*arguments, cwd=tmp_path, path=str(folder))
    assert (done.returncode, words in done.stderr) == (2, True), done.stderr


def test_a_whole_run_from_a_report(tmp_path):
    (tmp_path / "run.nsys-rep").write_bytes(b"\0")
    tables = write_tables(CAPTURES / "tp2-collectives.sqlite", tmp_path / "tables")
    folder = tmp_path / "bin"
    folder.mkdir()
    programs = {
        "nsys": f"import shutil, sys\nshutil.copytree({str(tables)!r}, sys.argv[sys.argv.index('--output') + 1])",
        "trace-analyze": "import sys\nfrom trace_analyze import analyze, open_trace\nprint(analyze(open_trace(sys.argv[1])).steps.height, *sys.argv[2:])",
    }
    for name, body in programs.items():
        (folder / name).write_text(f"#!{sys.executable}\n{body}\n")
        (folder / name).chmod(0o755)
    done = call("--rep", "run.nsys-rep", "-o", "made", cwd=tmp_path, path=f"{folder}:{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["32", "-o", "made", "--format", "html,json"]
