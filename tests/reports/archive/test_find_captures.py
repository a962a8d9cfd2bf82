"""What lies in an archive: every oddity one entry with its reason, names of their own, and none of our own outputs."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from trace_analyze import cli
from trace_analyze.analysis.records.errors import NotACaptureError, UsageError
from trace_analyze.reports.archive.find_captures import Found, distinct_names, find_captures

CAPTURE = min((Path(__file__).parents[3] / "fixtures" / "captures").glob("*.sqlite"))
needs_unix = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes, sockets and links of Unix")


def batch(*words):
    return cli.main(["batch", *map(str, words), "--quiet"])


def names(*roots, out="out"):
    return [found.relative for found in find_captures(map(Path, roots), Path(out))]


def odd_things(folder):
    """What each odd thing in ``folder`` is called, and what the reason says of it."""
    os.mkfifo(folder / "pipe.sqlite")
    (folder / "zero.sqlite").symlink_to("/dev/zero")
    (folder / "loop.sqlite").symlink_to("loop.sqlite")
    (folder / "there.db").symlink_to("back.db")
    (folder / "back.db").symlink_to("there.db")
    (folder / "gone.json").symlink_to("nowhere")
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(folder)  # the path of a socket has to be short
        server.bind("socket.csv")
        os.chdir(here)
    return {
        "pipe.sqlite": "a pipe", "zero.sqlite": "a device", "socket.csv": "a socket", "gone.json": "link to nowhere",
        "loop.sqlite": "in a circle", "there.db": "in a circle", "back.db": "in a circle",
    }  # fmt: skip


def deeper_than_a_path_may_be(folder):
    """A capture at the end of a path that no call to the system takes whole; returns the name of the first folder."""
    here = Path.cwd()
    os.chdir(folder)
    try:
        for _ in range(20):
            Path("d" * 240).mkdir()
            os.chdir("d" * 240)
        shutil.copy(CAPTURE, "far.sqlite")
    finally:
        os.chdir(here)
    return "d" * 240


@needs_unix
def test_every_odd_thing_is_one_row_and_the_batch_goes_on(tmp_path):
    archive, out = tmp_path / "archive", tmp_path / "out"
    archive.mkdir()
    says = odd_things(archive)
    (archive / "itself").symlink_to(archive, target_is_directory=True)
    deep = deeper_than_a_path_may_be(archive)
    shutil.copy(CAPTURE, archive / "good.sqlite")
    words = [sys.executable, "-m", "trace_analyze.cli", "batch", str(archive), "-o", str(out), "--quiet"]
    for more in ([], ["--resume"]):
        done = subprocess.run([*words, *more], capture_output=True, timeout=120, check=False)
        assert (done.returncode, done.stderr) == (3, b"")
        rows = {row["file"]: row for row in pl.read_parquet(out / "runs.parquet").iter_rows(named=True)}
        (far,) = (file for file in rows if file.startswith(deep))
        assert "too long" in rows.pop(far)["reason"]
        assert rows.pop("good.sqlite")["state"] == "analysed"
        assert rows.keys() == says.keys()
        assert {file: says[file] in row["reason"] for file, row in rows.items()} == dict.fromkeys(says, True)
        assert {row["state"] for row in rows.values()} == {"unreadable"}
    shutil.rmtree(archive / deep)  # while its name is short enough for whoever cleans up


@needs_unix
def test_the_same_things_given_alone_are_refused_without_waiting(tmp_path):
    for name, says in odd_things(tmp_path).items():
        done = subprocess.run(
            [sys.executable, "-m", "trace_analyze.cli", name],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 2
        assert says in done.stderr
        assert done.stderr.count("\n") == 1
        assert len(find_captures([tmp_path / name], tmp_path / "out")) == 1


def test_a_folder_that_may_not_be_read_is_one_entry(tmp_path, monkeypatch):
    (tmp_path / "closed").mkdir()
    shutil.copy(CAPTURE, tmp_path / "good.sqlite")
    scandir = os.scandir

    def refuse(folder):
        if Path(folder).name == "closed":
            raise PermissionError(13, "Permission denied", str(folder))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refuse)  # as root everything may be read
    closed, good = find_captures([tmp_path], tmp_path / "out")
    assert (closed.relative, good.relative) == ("closed", "good.sqlite")
    with pytest.raises(NotACaptureError, match=r"No permission .*chmod u\+rx"):
        closed.fingerprint()
    assert batch(tmp_path, "-o", tmp_path / "out") == 3
    assert pl.read_parquet(tmp_path / "out" / "runs.parquet")["state"].to_list() == ["unreadable", "analysed"]


def test_folders_deeper_than_functions_call_each_other(tmp_path):
    folder = tmp_path.joinpath(*["d"] * 1200)
    here = Path.cwd()
    try:
        os.chdir(tmp_path)
        for _ in range(1200):
            Path("d").mkdir()
            os.chdir("d")
        Path("run.json").write_text("{}")
    finally:
        os.chdir(here)
    assert [found.path for found in find_captures([tmp_path], tmp_path / "out")] == [folder / "run.json"]
    while folder != tmp_path:  # shutil.rmtree calls itself
        shutil.rmtree(folder)
        folder = folder.parents[min(400, len(folder.parents) - len(tmp_path.parents) - 1)]


@pytest.mark.skipif(sys.platform != "linux", reason="file names are text elsewhere")
def test_names_that_are_no_text_or_mean_something_in_a_url_are_linked(tmp_path, page_links):
    archive, out = tmp_path / "archive", tmp_path / "out"
    folder = archive / os.fsdecode(b"day-\xff")
    folder.mkdir(parents=True)
    files = ["a%20b.sqlite", "a#b?c=d&e.sqlite", 'it\'s "so" <b>.sqlite', "한국어 é.sqlite", "a:b\\c.sqlite"]
    files += [os.fsdecode(b"\xff.sqlite"), os.fsdecode(b"\xfe.sqlite"), "\\xff.sqlite", "\n.sqlite"]
    for file in files:
        shutil.copy(CAPTURE, folder / file)
    assert batch(archive, "-o", out) == 0
    rows = pl.read_parquet(out / "runs.parquet")
    assert rows["file"].n_unique() == rows["report"].n_unique() == len(files)
    assert {f"day-\\xff/{file}" for file in ("\\xff.sqlite", "\\xfe.sqlite", "\\xff.sqlite (2)")} <= set(rows["file"])
    assert {out / link for link in page_links(out / "index.html")} == {out / report for report in rows["report"]}
    assert all((out / report).is_file() for report in rows["report"])


@pytest.fixture
def page_links():
    """What the links of a page lead to, as a browser reads them."""
    from html.parser import HTMLParser
    from urllib.parse import unquote, urljoin, urlsplit

    def links(page):
        found = []

        class Links(HTMLParser):
            def handle_starttag(self, tag, attrs):
                if tag == "a":
                    found.append(dict(attrs)["href"])

        Links().feed(page.read_text("utf-8"))
        parts = [urlsplit(urljoin("file:///", link)) for link in found]
        assert not any(part.query or part.fragment for part in parts)
        return {unquote(part.path).lstrip("/") for part in parts}

    return links


def test_roots_of_one_name_are_told_apart_by_the_folders_above(tmp_path):
    for folder in ("monday/archive", "tuesday/archive", "other"):
        (tmp_path / folder).mkdir(parents=True)
        shutil.copy(CAPTURE, tmp_path / folder / "run.sqlite")
    monday, tuesday, other = (tmp_path / name for name in ("monday/archive", "tuesday/archive", "other"))
    assert names(monday) == names(monday, monday / "." / "") == ["run.sqlite"]
    assert names(monday, other) == ["archive/run.sqlite", "other/run.sqlite"]
    assert names(monday, tuesday) == ["monday/archive/run.sqlite", "tuesday/archive/run.sqlite"]
    files = [folder / "run.sqlite" for folder in (monday, tuesday)]
    assert names(*files) == ["monday/archive/run.sqlite", "tuesday/archive/run.sqlite"]
    assert names(monday, files[1]) == ["run.sqlite", "run.sqlite (2)"]
    assert batch(monday, tuesday, "-o", tmp_path / "out") == 0
    assert sorted(path.name for path in (tmp_path / "out" / "reports").iterdir()) == [
        "monday__archive__run.sqlite.html", "tuesday__archive__run.sqlite.html",
    ]  # fmt: skip


def test_no_report_has_the_name_of_another(tmp_path):
    relatives = ["a/b.sqlite", "a__b.sqlite", "A__B.sqlite", "a/b.sqlite", "a/b.sqlite (2)", "é.csv", "e\u0301.csv"]
    captures = distinct_names(Found(tmp_path, relative) for relative in relatives)
    runs = distinct_names(
        [Found(tmp_path, "a__*.sqlite")], beside=[*captures, Found(tmp_path, "x", report_name="a__all.sqlite.html")]
    )
    found = [*captures, *runs]
    assert len({each.relative for each in found}) == len(found)
    assert len({each.report_name.lower() for each in found}) == len(found)
    assert captures[0].report_name == "a__b.sqlite.html"


def test_no_output_of_this_tool_is_a_capture(tmp_path):
    archive = tmp_path / "archive"
    archive.mkdir()
    shutil.copy(CAPTURE, archive / "run.sqlite")
    capture, formats = str(archive / "run.sqlite"), "html,json,md,csv,parquet,perfetto,svg,png"
    words = ["--step", "median-decode", "--cache", str(archive / "cache"), "-q"]
    assert cli.main([capture, "-o", str(archive / "reports"), "--format", formats, *words]) == 0
    assert cli.main(["compare", capture, capture, "-o", str(archive / "compared"), "-q"]) in (0, 3)
    assert batch(archive, "-o", archive) == 0
    shutil.copy(archive / "reports" / "run.json", archive / "copied.json")
    shutil.copy(archive / "runs.csv", archive / "copied.csv")
    assert len(list(archive.rglob("*.csv"))) > 10
    assert len(list(archive.rglob("*.json"))) > 2
    assert names(archive) == ["run.sqlite"]
    assert batch(archive, "-o", tmp_path / "elsewhere") == batch(archive, "-o", archive) == 0
    assert pl.read_parquet(archive / "runs.parquet")["file"].to_list() == ["run.sqlite"]


def test_tables_of_others_under_our_names_keep_their_rows(tmp_path):
    (tmp_path / "kernels.csv").write_text("Time (%),Total Time (ns),Instances,Name\n100,5,1,gemm\n")
    (tmp_path / "steps.csv").write_text("step,what\n1,2\n")
    (tmp_path / "runs.csv").write_text("file\nx\n")
    assert names(tmp_path) == ["kernels.csv", "runs.csv", "steps.csv"]


def test_a_root_that_is_not_there_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="no such file or folder"):
        find_captures([tmp_path / "no"], tmp_path)


@needs_unix
def test_a_pipe_among_the_options_of_a_batch_is_refused(tmp_path, capsys):
    os.mkfifo(tmp_path / "ncu.csv")
    assert batch(CAPTURE, "-o", tmp_path / "out", "--ncu", tmp_path / "ncu.csv") == 2
    assert "not a regular file" in capsys.readouterr().err
