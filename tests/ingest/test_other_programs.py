"""NVIDIA's programs get a user's file as a file, whatever its name, and end when this program does."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from trace_analyze.ingest import other_programs, temporary_copies
from trace_analyze.ingest.nsys.report_file import export_command
from trace_analyze.ingest.other_programs import run_program, shell_name
from trace_analyze.ingest.temporary_copies import temporary_folder


def test_a_name_that_begins_with_a_dash_is_no_option(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    show = "import sys; print(sys.argv[1:]); print('no', file=sys.stderr); sys.exit(3)"
    done = run_program(sys.executable, ["-c", show, "export", Path("--force-x.nsys-rep")])
    assert done.output.decode().strip() == str(["export", str(tmp_path / "--force-x.nsys-rep")])
    assert (done.code, done.errors.strip()) == (3, b"no")


def test_the_command_to_copy_is_one_for_a_shell():
    assert export_command("--force x.nsys-rep").endswith("--output './--force x.sqlite' './--force x.nsys-rep'")
    assert [shell_name(name) for name in ("a.ncu-rep", "-a", "a;b")] == ["a.ncu-rep", "./-a", "'a;b'"]


def test_an_interrupt_ends_the_program(tmp_path, monkeypatch):
    monkeypatch.setattr(other_programs, "_POLL_SECONDS", 0.01)
    script = f"import os, pathlib, time; pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid())); time.sleep(60)"

    def interrupt(_seconds: float) -> None:
        if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text():
            raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_program(sys.executable, ["-c", script], while_running=interrupt)
    assert time.monotonic() - began < 30
    assert not temporary_copies.is_running(int((tmp_path / "pid").read_text()))


def test_copies_of_a_process_that_was_killed_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(temporary_copies.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(temporary_copies.tempfile, "tempdir", str(tmp_path))
    dead = run_program(sys.executable, ["-c", "import os; print(os.getpid())"]).output.decode().strip()
    for name in (f"trace-analyze-{dead}-abcd", f"trace-analyze-{os.getpid()}-abcd", "trace-analyze-notes", "else"):
        (tmp_path / name).mkdir()
    with temporary_folder() as folder:
        names = {path.name for path in tmp_path.iterdir()}
        assert names == {f"trace-analyze-{os.getpid()}-abcd", "trace-analyze-notes", "else", Path(folder).name}
    assert not Path(folder).exists()
