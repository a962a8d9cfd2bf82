"""Archives: one row a file whatever its state, the same content however it was made, and nothing lost to a kill."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

from trace_analyze import cli
from trace_analyze.fixtures import cases
from trace_analyze.reports.archive.archive_row import refused_row
from trace_analyze.reports.archive.batch import short_reason

CAPTURES = Path(__file__).parents[3] / "fixtures" / "captures"
SHIPPED = sorted(CAPTURES.glob("*.sqlite"))


def batch(*words):
    return cli.main(["batch", *map(str, words), "--quiet"])


def content(out):
    """Everything a batch wrote, by name."""
    return {p.relative_to(out).as_posix(): p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file()}


@pytest.fixture(scope="module")
def mixed_archive(tmp_path_factory):
    """Good, duplicate, empty, truncated, kernel-less and foreign files."""
    root = tmp_path_factory.mktemp("archive")
    (root / "chunk=512" / "bs=8").mkdir(parents=True)
    (root / "chunk=2048" / "bs=8").mkdir(parents=True)
    shutil.copy(SHIPPED[0], root / "chunk=512" / "bs=8" / "run.sqlite")
    shutil.copy(SHIPPED[1], root / "chunk=2048" / "bs=8" / "run.sqlite")
    shutil.copy(SHIPPED[1], root / "copy without suffix")
    (root / "empty.sqlite").touch()
    (root / "truncated.sqlite").write_bytes(SHIPPED[0].read_bytes()[:400_000])
    cases.no_kernels().write(root / "no-kernels.sqlite")
    (root / "notes.csv").write_text("when,what\n1,2\n")
    (root / "readme.txt").write_text("not a capture, and no known suffix: no row")
    return root


@pytest.fixture(scope="module")
def mixed_result(mixed_archive, tmp_path_factory):
    out = tmp_path_factory.mktemp("out") / "result"
    code = batch(
        mixed_archive, "-o", out, "--label", "chunk={chunk}/bs={bs}", "--gate", "stall_count >= 0", "--jobs", "2"
    )
    return code, out, pl.read_parquet(out / "runs.parquet")


def test_one_row_per_file_whatever_its_state(mixed_result):
    code, _, runs = mixed_result
    assert code == 3
    states = dict(zip(runs["file"], runs["state"], strict=True))
    assert states == {
        "chunk=2048/bs=8/run.sqlite": "analysed",
        "chunk=512/bs=8/run.sqlite": "analysed",
        "copy without suffix": "analysed",
        "empty.sqlite": "unreadable",
        "no-kernels.sqlite": "could not look",
        "notes.csv": "unreadable",
        "truncated.sqlite": "unreadable",
    }
    refused = runs.filter(pl.col("state").is_in(["unreadable", "could not look"]))
    assert refused["reason"].null_count() == 0
    assert refused["report"].null_count() == len(refused)


def test_a_listed_reason_repeats_neither_the_name_nor_the_formats():
    reason = (
        "notes.csv is a text file. Looked for: a folder of nsys export; a trace (*.pt.trace.json, gzipped). Export it."
    )
    assert short_reason(refused_row("chunk=512/notes.csv", None, "unreadable", reason)) == "is a text file. Export it."
    assert short_reason(refused_row("a.sqlite", None, "unreadable", "damaged. Looked for: anything.")) == "damaged."


def test_labels_duplicates_and_gates_are_columns(mixed_result):
    _, _, runs = mixed_result
    rows = {r["file"]: r for r in runs.iter_rows(named=True)}
    assert rows["chunk=512/bs=8/run.sqlite"]["chunk"] == 512.0
    assert rows["copy without suffix"]["duplicate_of"] == "chunk=2048/bs=8/run.sqlite"
    assert rows["copy without suffix"]["chunk"] is None
    assert rows["chunk=512/bs=8/run.sqlite"]["gate"] == "passed"
    assert rows["empty.sqlite"]["gate"] is None


def test_reports_lie_under_their_paths_and_the_index_links_them(mixed_result):
    _, out, _ = mixed_result
    reports = {p.name for p in (out / "reports").iterdir()}
    assert "chunk=512__bs=8__run.sqlite.html" in reports
    assert len(reports) == 3
    index = (out / "index.html").read_text()
    assert "chunk=512__bs=8__run.sqlite.html" in index
    assert "truncated" in index
    assert sorted(p.name for p in out.iterdir()) == ["index.html", "reports", "runs.csv", "runs.parquet"]


def test_csv_and_parquet_hold_the_same_rows(mixed_result):
    import pandas as pd

    _, out, runs = mixed_result
    csv = pd.read_csv(out / "runs.csv")
    assert list(csv["file"]) == runs["file"].to_list()
    assert list(pd.read_parquet(out / "runs.parquet")["state"]) == list(csv["state"])


def test_content_is_the_same_whatever_the_number_of_workers(mixed_archive, mixed_result, tmp_path):
    out = tmp_path / "one"
    words = [mixed_archive, "-o", out, "--label", "chunk={chunk}/bs={bs}", "--gate", "stall_count >= 0", "--jobs", "1"]
    assert batch(*words) == 3
    assert content(out) == content(mixed_result[1])


def test_output_folder_inside_the_archive_is_not_scanned(tmp_path):
    shutil.copy(SHIPPED[0], tmp_path / "run.sqlite")
    assert batch(tmp_path, "-o", tmp_path / "out") == 0
    assert batch(tmp_path, "-o", tmp_path / "out") == 0
    assert pl.read_parquet(tmp_path / "out" / "runs.parquet")["file"].to_list() == ["run.sqlite"]


def test_failed_gate_is_exit_1(tmp_path):
    assert batch(SHIPPED[0], "-o", tmp_path, "--gate", "decode_step_ms.p50 < 0.001") == 1
    assert pl.read_parquet(tmp_path / "runs.parquet")["gate"].to_list() == ["failed"]


def test_nothing_found_is_exit_3(tmp_path, capsys):
    assert batch(tmp_path, "-o", tmp_path / "out") == 3
    assert "no captures" in capsys.readouterr().err


def test_resume_does_only_what_is_missing_or_changed(tmp_path):
    archive, out = tmp_path / "archive", tmp_path / "out"
    archive.mkdir()
    for path in SHIPPED:
        shutil.copy(path, archive)
    batch(archive, "-o", out)
    undisturbed = content(out)
    reports = sorted((out / "reports").iterdir())
    reports[0].unlink()
    stamps = {p: p.stat().st_mtime_ns for p in reports[1:]}
    batch(archive, "-o", out, "--resume")
    assert content(out) == undisturbed
    assert {p: p.stat().st_mtime_ns for p in reports[1:]} == stamps
    # other options are another question: everything is done again
    batch(archive, "-o", out, "--resume", "--tp", "1")
    assert all(p.stat().st_mtime_ns != stamp for p, stamp in stamps.items())


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs POSIX process groups")
@pytest.mark.parametrize("rows_before_the_kill", [0, 1, 3])
def test_kill_then_resume_equals_an_undisturbed_run(tmp_path, rows_before_the_kill):
    archive = tmp_path / "archive"
    archive.mkdir()
    for copy in range(2):
        for path in SHIPPED:
            shutil.copy(path, archive / f"{copy}-{path.name}")
    batch(archive, "-o", tmp_path / "undisturbed")

    out = tmp_path / "out"
    words = [sys.executable, "-m", "trace_analyze.cli", "batch", str(archive), "-o", str(out), "--quiet", "--jobs", "2"]
    started = subprocess.Popen(words, start_new_session=True)
    deadline = time.monotonic() + 60
    while len(list(out.glob(".rows/*.json"))) < rows_before_the_kill and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.3 if rows_before_the_kill == 0 else 0.0)
    os.killpg(started.pid, signal.SIGKILL)
    started.wait()
    assert not (out / "runs.parquet").exists(), "the batch finished before it was killed: the test shows nothing"
    for report in out.glob("reports/*.html"):
        assert report.read_text().rstrip().endswith("</html>"), "half a report was shown"

    assert batch(archive, "-o", out, "--resume") == 0
    assert content(out) == content(tmp_path / "undisturbed")


def test_worker_that_takes_too_much_memory_costs_one_row(tmp_path):
    """A limit nothing can meet: the worker is stopped, the capture is tried alone, and the row says why."""
    from trace_analyze.analysis.records.options import Options
    from trace_analyze.reports.archive import local_workers as local
    from trace_analyze.reports.archive.find_captures import Found
    from trace_analyze.reports.archive.one_capture import Task

    if local._resident_memory(os.getpid()) == 0:
        pytest.skip("the system does not tell how much memory a process holds")
    runner = local.LocalRunner(jobs=2, memory_limit=1 << 20)
    tasks = [(i, Task(Found(SHIPPED[0], f"{i}.sqlite"), tmp_path / f"{i}.html", Options())) for i in range(2)]
    smallest, local._SMALLEST_LIMIT = local._SMALLEST_LIMIT, 1 << 20
    try:
        rows = dict(runner.run(tasks))
    finally:
        local._SMALLEST_LIMIT = smallest
    assert sorted(rows) == [0, 1]
    assert all(row["state"] == "could not look" and "memory" in row["reason"] for row in rows.values())


def test_baseline_by_name(tmp_path, capsys):
    out = tmp_path / "out"
    archive = tmp_path / "baseline=main"
    archive.mkdir()
    shutil.copy(SHIPPED[0], archive / "monday.sqlite")
    assert batch(tmp_path, "-o", out, "--label", "baseline={baseline}/") == 0
    for name in ("main", "monday"):
        assert cli.main(["compare", "--baseline", name, str(SHIPPED[0]), "-o", str(out)]) == 0
        assert capsys.readouterr().out.startswith("no change")
    assert cli.main(["compare", "--baseline", "tuesday", str(SHIPPED[0]), "-o", str(out)]) == 2
    assert "monday" in capsys.readouterr().err


def test_a_long_temporary_folder(tmp_path):
    """The workers' fork server is reached by a socket below it, whose path the system bounds."""
    deep = tmp_path / ("t" * 100)
    deep.mkdir()
    command = [sys.executable, "-m", "trace_analyze", "batch", str(CAPTURES / "tp2-collectives.sqlite"), "-o", "out"]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"TMPDIR": str(deep)}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "out" / "index.html").exists()
