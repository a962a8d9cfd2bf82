"""The command line where terminals, disks, file names and numbers are not as one would like."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trace_analyze import cli
from trace_analyze.analysis.records.errors import UsageError

CAPTURES = Path(__file__).parent.parent / "fixtures" / "captures"
SGLANG = CAPTURES / "sglang-qwen3-8b-h100.sqlite"


def call(
    *words: object, folder: Path, stdout=subprocess.PIPE, **environment: str
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "trace_analyze.cli", *map(os.fspath, words)],
        cwd=folder, env=os.environ | environment, stdout=stdout, stderr=subprocess.PIPE, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_a_terminal_without_unicode(tmp_path, encoding):
    done = call(SGLANG, folder=tmp_path, PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"SGLang" in done.stdout or b"sglang" in done.stdout


def test_plain_characters_keep_their_meaning(tmp_path):
    script = "from trace_analyze.reports.commands.command_ending import print_anything; print_anything(); print('\\u2265 5 \\xb5s\\u2026 \\u65e5')"
    done = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | {"PYTHONIOENCODING": "ascii"}, capture_output=True, check=True
    )
    assert done.stdout.strip() == b">= 5 us... ?"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
@pytest.mark.parametrize("words", [("--format", "json", "-o", "-"), ("-o", "out")])
def test_a_full_disk_behind_stdout(tmp_path, words):
    with Path("/dev/full").open("w") as full:
        done = call(SGLANG, *words, folder=tmp_path, stdout=full)
    assert done.returncode == 2
    assert done.stderr.decode().strip() == "trace-analyze: cannot write the output: No space left on device."


@pytest.mark.parametrize("output_format", ["csv", "parquet"])
def test_a_full_disk_while_a_table_is_written(tmp_path, monkeypatch, output_format):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    code = cli.main([str(SGLANG), "-q", "--format", output_format, "-o", str(tmp_path / "out")])
    assert code == 2
    assert [each for each in (tmp_path / "out").rglob("*") if each.is_file()] == []


@pytest.mark.skipif(sys.platform != "linux", reason="file names are text elsewhere")
def test_a_file_name_that_is_not_utf_8(tmp_path):
    name = os.fsdecode(b"run-\xff\xfe.sqlite")
    try:
        shutil.copy(SGLANG, tmp_path / name)
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    done = call(name, "--format", "html,json,md,csv,perfetto,svg", "-o", "out", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
    (report,) = (tmp_path / "out").glob("run-??.json")
    assert json.loads(report.read_text("utf-8"))["source"]["name"] == "run-??.sqlite"
    assert call("doctor", name, folder=tmp_path).returncode == 0


def test_a_name_as_long_as_names_may_be(tmp_path):
    name = "n" * 243 + ".sqlite"  # 250 of 255 bytes, and `.html` is shorter
    shutil.copy(SGLANG, tmp_path / name)
    done = call(name, folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / ("n" * 243 + ".html")).exists()


@pytest.mark.parametrize(
    "words",
    [
        ("--window", "0:1e99"),
        ("--window=-1e99:",),
        ("--itl-target", "1e400"),
        ("--tp", "99999999999999999999"),
    ],
)
def test_numbers_too_large_are_usage_errors(tmp_path, words):
    done = call(SGLANG, *words, folder=tmp_path)
    assert done.returncode == 2
    assert b"fault of the tool" not in done.stderr
    assert words[0].partition("=")[0].encode() in done.stderr
    assert list(tmp_path.iterdir()) == []


PATTERN = '[[grammar]]\nid = "x"\nengine = "x"\nrole = "step"\nphase = "decode"\npattern = %s\n'


def test_side_files_with_windows_line_ends_and_byte_order_mark(tmp_path):
    (tmp_path / "m.toml").write_bytes(b"\xef\xbb\xbf" + (PATTERN % "'mine'").replace("\n", "\r\n").encode())
    (tmp_path / "c.toml").write_bytes(b'\xef\xbb\xbf["*"]\r\nmemory_bandwidth_gbps = 3000\r\n')
    done = call(SGLANG, "--markers", "m.toml", "--ceilings", "c.toml", "-q", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("pattern", ["'('", "'(?=x)y'", "'(?P<part>a)(?P<part>b)'", "'a{1000}{1000}{1000}'"])
def test_a_wrong_pattern_is_told_in_one_line(tmp_path, pattern):
    from trace_analyze.analysis.markers.grammar import read_marker_file

    (tmp_path / "m.toml").write_text(PATTERN % pattern)
    with pytest.raises(UsageError, match="no regular expression") as caught:
        read_marker_file(tmp_path / "m.toml")
    assert "\n" not in str(caught.value)
    assert "expression:" not in str(caught.value).partition("no regular expression:")[2]
