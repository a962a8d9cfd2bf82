"""Where outputs may go: never over an input or another's file, never out of their folder, whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from trace_analyze import analyze, cli
from trace_analyze.analysis.records.errors import UsageError
from trace_analyze.fixtures.writers.kineto_writer import write_kineto
from trace_analyze.fixtures.writers.parquet_writer import write_tables
from trace_analyze.reports.archive.finished_rows import RowStore
from trace_analyze.reports.whole_files import file_name, produce_whole, remove_temporaries, write_whole

CAPTURES = Path(__file__).parents[2] / "fixtures" / "captures"
SGLANG = CAPTURES / "sglang-qwen3-8b-h100.sqlite"
EVERY_FORMAT = ",".join(cli.FORMATS)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Path:
    """``trace.json`` (a PyTorch-profiler trace) and ``run/`` (a parquetdir) of one run."""
    folder = tmp_path_factory.mktemp("inputs")
    write_kineto(SGLANG, folder / "trace.json")
    write_tables(SGLANG, folder / "run")
    return folder


@pytest.fixture
def here(tmp_path, monkeypatch, inputs) -> Path:
    """The inputs in the folder in which the command runs."""
    shutil.copytree(inputs, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(*words: object) -> int:
    return cli.main([str(word) for word in words])


def test_a_report_never_replaces_the_capture(here, capsys, folder_stays_as_it_was):
    folder_stays_as_it_was()
    assert call("trace.json", "--format", "json") == 2
    assert "trace.json, which is an input: nothing was written" in capsys.readouterr().err


@pytest.mark.parametrize("link", ["hard", "symbolic", "folder"])
def test_another_name_of_the_capture_is_the_capture(here, capsys, link, folder_stays_as_it_was):
    if link == "hard":
        (here / "other.json").hardlink_to(here / "trace.json")
        words = ["other.json", "-o", "."]
    elif link == "symbolic":
        (here / "other.json").symlink_to("trace.json")
        words = ["other.json"]
    else:
        (here / "away").symlink_to(here, target_is_directory=True)
        words = ["trace.json", "-o", "away"]
    folder_stays_as_it_was()
    assert call(*words, "--format", "html,json") == 2
    assert "which is an input" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("--format", "parquet"), ("--format", "csv"), ("-o", "run"), ("-o", "run/reports")])
def test_nothing_is_written_into_a_folder_that_is_read(here, capsys, words, folder_stays_as_it_was):
    folder_stays_as_it_was()
    assert call("run", *words) == 2
    assert "run, which is an input" in capsys.readouterr().err
    assert call("run", "-q", "--cache", "run/cache", "-o", "out") == 2
    assert "--cache" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ("compare", "run", "trace.json", "-o", "run"),
        ("batch", "run", "-o", "run"),
        ("batch", ".", "-o", "run/out"),
    ],
)
def test_other_commands_write_into_no_input_either(here, capsys, words, folder_stays_as_it_was):
    folder_stays_as_it_was()
    assert call(*words) == 2
    assert "run, which is an input" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "name"), [("--dcgm", "report.md"), ("--markers", "report.html"), ("--ncu", "report.json")]
)
def test_a_side_file_is_an_input(here, capsys, option, name, folder_stays_as_it_was):
    shutil.copy(SGLANG, "report.sqlite")
    Path(name).write_text("")  # empty: only its being an input protects it
    folder_stays_as_it_was()
    assert call("report.sqlite", option, name, "--format", name.rpartition(".")[2]) == 2
    assert f"{name}, which is an input" in capsys.readouterr().err


def test_python_keeps_inputs_too(here, folder_stays_as_it_was):
    folder_stays_as_it_was()
    with pytest.raises(UsageError, match="which is an input"):
        analyze("trace.json").save_json("trace.json")


@pytest.mark.parametrize("output_format", cli.FORMATS)
def test_a_file_of_others_stays_and_one_of_ours_is_replaced(tmp_path, capsys, output_format):
    out = tmp_path / "out"
    assert call(SGLANG, "-q", "-o", out, "--format", output_format) == 0
    written = sorted(path for path in out.rglob("*") if path.is_file())
    first = {path: path.read_bytes() for path in written}
    assert call(SGLANG, "-q", "-o", out, "--format", output_format) == 0
    assert {path: path.read_bytes() for path in written} == first
    for path in written:
        path.write_text("theirs,\n1,\n")
    assert call(SGLANG, "-q", "-o", out, "--format", output_format) == 2
    assert "was not written by trace-analyze" in capsys.readouterr().err
    assert {path.read_text() for path in written} == {"theirs,\n1,\n"}


def test_compare_batch_and_demo_replace_their_own(tmp_path, capsys):
    for words in (("compare", SGLANG, SGLANG), ("batch", SGLANG), ("demo",)):
        for _ in range(2):
            assert call(*words, "-o", tmp_path / words[0]) == 0, capsys.readouterr().err
    for name, words in (
        ("compare/*.md", ("compare", SGLANG, SGLANG)),
        ("batch/index.html", ("batch", SGLANG)),
        ("batch/runs.csv", ("batch", SGLANG)),
    ):
        (theirs,) = tmp_path.glob(name)
        theirs.write_text("theirs")
        assert call(*words, "-o", theirs.parent) == 2
        assert theirs.read_text() == "theirs"
        theirs.unlink()


def test_an_archive_that_holds_its_own_reports(tmp_path):
    shutil.copy(SGLANG, tmp_path / "a.sqlite")
    for _ in range(2):
        assert call("batch", tmp_path, "-q", "-o", tmp_path) == 0
        assert pl.read_csv(tmp_path / "runs.csv")["file"].to_list() == ["a.sqlite"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with a name")
def test_a_file_that_is_no_file_stays(tmp_path):
    os.mkfifo(tmp_path / "pipe.html")
    (tmp_path / "folder.html").mkdir()
    for name in ("pipe.html", "folder.html"):
        with pytest.raises(UsageError, match="stays as it is"):
            write_whole(tmp_path / name, b"")


@pytest.mark.parametrize(
    "text",
    ["../../evil", "/abs/x", "..", ".", "", "...", "a\\b", "a/b", "nul\x00byte", "line\nfeed", "n" * 300, "é" * 200],
)
def test_names_stay_in_their_folder(tmp_path, text):
    name = file_name(text, ".html")
    (tmp_path / name).write_text("in the folder")
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert len(os.fsencode(name)) <= 255
    assert file_name(text) not in ("", ".", "..")


def test_names_that_are_names_stay_and_no_two_texts_share_one():
    assert file_name("run.v2 (copy)", ".html") == "run.v2 (copy).html"
    texts = ["a/b", "a\\b", "a_b", "..", "__", "n" * 300, "n" * 301]
    assert len({file_name(text, ".html") for text in texts}) == len(texts)


def test_a_capture_called_like_the_folder_above(tmp_path):
    shutil.copy(SGLANG, tmp_path / "...sqlite")
    assert call(tmp_path / "...sqlite", "-q", "--format", "csv,html", "-o", tmp_path / "a" / "out") == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["...sqlite", "a"]
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["out"]


def test_names_in_a_stored_table_lead_nowhere(tmp_path):
    archive = tmp_path / "deep" / "archive"
    assert call("batch", SGLANG, "-q", "-o", archive) == 0
    rows = pl.read_parquet(archive / "runs.parquet")
    evil = rows["profile"][0].replace(SGLANG.name, "../../evil")
    assert evil != rows["profile"][0]
    (tmp_path / "secret.html").write_text("theirs")
    rows.with_columns(profile=pl.lit(evil), report=pl.lit("../../secret.html")).write_parquet(archive / "runs.parquet")
    assert RowStore(archive).load() == {}
    assert call("compare", "-q", "--baseline", SGLANG.name, SGLANG, "-o", archive) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", "secret.html"]
    assert len(list(archive.glob(".._.._evil*.html"))) == 1


def test_only_temporaries_of_our_own_are_removed(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left = tmp_path / f".trace-analyze-{ended.pid}-{'0' * 32}.tmp"
    kept = [
        ".env.production.local", ".a.b.c.d", f".trace-analyze-{ended.pid}-notes.tmp",
        f".trace-analyze-{os.getpid()}-{'0' * 32}.tmp",
    ]  # fmt: skip
    for name in (left.name, *kept):
        (tmp_path / name).write_text("x")
    rows = tmp_path / ".rows"
    rows.mkdir()
    for name in (f"{'a' * 32}.json", "mine.json"):
        (rows / name).write_text("{}")
    store = RowStore(tmp_path)
    store.sweep()
    store.clear()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*kept, ".rows"])
    assert [path.name for path in rows.iterdir()] == ["mine.json"]
    remove_temporaries(tmp_path / "absent")


def test_a_failure_leaves_the_earlier_file(tmp_path):
    path = tmp_path / "a.html"
    path.write_text("")

    def half(temporary: Path) -> None:
        temporary.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(UsageError, match=r"No space left on device\. Choose another folder"):
        produce_whole(path, half)
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("a.html", b"")]


@pytest.mark.skipif(sys.platform == "win32", reason="no limit on the size of files")
@pytest.mark.parametrize(
    "words", [("demo", "-o", "out"), ("batch", SGLANG, "-o", "out"), (SGLANG, "--format", "parquet", "-o", "out")]
)
def test_a_full_disk_leaves_no_part_of_a_file(tmp_path, words):
    limit = (
        "import resource, sys; from trace_analyze import cli; resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000)); "
        "sys.exit(cli.main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", limit, *map(str, words)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode in (2, 3), done.stderr
    assert "fault of the tool" not in done.stderr
    sizes = {path.name: path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()}
    assert not [name for name in sizes if name.startswith(".") or name.endswith(".sqlite")], sizes
    assert all(pl.read_parquet(path) is not None for path in tmp_path.rglob("*.parquet"))
