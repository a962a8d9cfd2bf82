"""Exit codes of closed pipes and signals: 1 is a gate or a regression and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trace_analyze.reports.commands.command_ending import StoppedError, reader_is_gone, signals_raise

CAPTURES = Path(__file__).parents[3] / "fixtures" / "captures"
SGLANG = str(CAPTURES / "sglang-qwen3-8b-h100.sqlite")
COMMANDS = [
    ("gpus",), ("models",), ("markers",), ("--help",), ("batch", "--help"), ("--version",), (SGLANG,),
    (SGLANG, "--format", "json", "-o", "-"), ("compare", SGLANG, SGLANG), ("doctor", SGLANG), ("batch", SGLANG, "-o", "out"),
]  # fmt: skip
TOOL = [sys.executable, "-m", "trace_analyze.cli"]

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="pipes and signals of POSIX")


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: Path(words[0]).name)
def test_a_reader_that_went_away_is_no_error(tmp_path, words):
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([*TOOL, *words], cwd=tmp_path, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: Path(words[0]).name)
def test_a_closed_stdout_is_no_error(tmp_path, words):
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *TOOL, *words], cwd=tmp_path, stderr=subprocess.PIPE, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_closed_streams_get_nothing_of_a_file(tmp_path):
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *TOOL, SGLANG, "--format", "md"], cwd=tmp_path, check=False
    )
    assert done.returncode == 0
    assert (tmp_path / "sglang-qwen3-8b-h100.md").read_text().startswith("### ")


def test_a_broken_pipe_that_is_not_stdout_is_told_apart(tmp_path):
    script = "from trace_analyze.reports.commands.command_ending import reader_is_gone; import sys; sys.exit(reader_is_gone())"
    with (tmp_path / "out").open("w") as file:
        assert subprocess.run([sys.executable, "-c", script], stdout=file, check=False).returncode == 0
    assert not reader_is_gone()  # pytest's stdout has no number, or a reader


def interrupted(folder: Path, words: list[str], number: int, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command, send it a signal once ``folder/started`` is there, and wait for its end."""
    variables = os.environ | {"TMPDIR": str(folder / "tmp")} | environment
    (folder / "tmp").mkdir()
    running = subprocess.Popen(
        [*TOOL, *words], cwd=folder, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not (folder / "started").exists() and running.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    running.send_signal(number)
    out, err = running.communicate(timeout=60)
    return subprocess.CompletedProcess(words, running.returncode, out, err)


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
@pytest.mark.parametrize("command", ["analyze", "batch"])
def test_a_signal_leaves_no_copy_behind(tmp_path, name, code, command):
    """While `nsys` (a stand-in) exports a report into a temporary folder."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "nsys"
    program.write_text(
        f"#!{sys.executable}\nimport pathlib, sys, time\n"
        "pathlib.Path(sys.argv[sys.argv.index('--output') + 1]).write_bytes(b'half')\n"
        f"pathlib.Path({str(tmp_path / 'started')!r}).touch()\ntime.sleep(60)\n"
    )
    program.chmod(0o755)
    (tmp_path / "run.nsys-rep").write_bytes(b"\x00\x01 NVIDIA Nsight Systems\x00 report")
    words = ["run.nsys-rep", "-o", "out"]
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    began = time.monotonic()
    done = interrupted(tmp_path, ["batch", *words] if command == "batch" else words, getattr(signal, name), PATH=path)
    said = "trace-analyze: interrupted; nothing partial was left behind.\n"
    assert (done.returncode, done.stdout, done.stderr) == (code, "", said)
    assert time.monotonic() - began < 45
    assert [path.name for path in (tmp_path / "tmp").iterdir() if path.name.startswith("trace-analyze")] == []
    assert [path for path in (tmp_path / "out").rglob("*") if path.is_file()] == []


def test_a_second_signal_does_not_interrupt_the_cleaning_up():
    cleaned = False
    with pytest.raises(StoppedError) as caught, signals_raise():
        try:
            signal.raise_signal(signal.SIGHUP)
        finally:
            signal.raise_signal(signal.SIGHUP)
            cleaned = True
    assert cleaned
    assert caught.value.exit_code == 129


def test_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals_raise():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
