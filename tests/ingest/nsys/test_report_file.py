"""Reports that only `nsys` can open: a small program stands in for it."""

from __future__ import annotations

import shutil
import sys

import pytest

from trace_analyze.analysis.records.errors import NotACaptureError
from trace_analyze.fixtures.writers.nsys_writer import Capture
from trace_analyze.ingest import open_trace, other_programs
from trace_analyze.ingest.nsys import report_file as nsys_rep

REPORT = b"\x00\x01 NVIDIA Nsight Systems\x00 report"


def report(tmp_path):
    capture = Capture("2025.6")
    capture.gpu("h100")
    capture.kernel("gemm", 0, 20_000, launched_at=1)
    capture.write(tmp_path / "made.sqlite")
    path = tmp_path / "run.nsys-rep"
    path.write_bytes(REPORT)
    return path


def install(tmp_path, monkeypatch, body):
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "nsys"
    program.write_text(f"#!{sys.executable}\nimport shutil, sys\narguments = sys.argv[1:]\n{body}")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(other_programs, "_POLL_SECONDS", 0.002)


EXPORT = """
assert arguments[:5] == ["export", "--type", "sqlite", "--force-overwrite", "true"], arguments
shutil.copy({made!r}, arguments[arguments.index("--output") + 1])
"""


def test_exported_and_read_leaving_nothing_behind(tmp_path, monkeypatch):
    path = report(tmp_path)
    install(tmp_path, monkeypatch, EXPORT.format(made=str(tmp_path / "made.sqlite")))
    before = sorted(tmp_path.iterdir())
    said = []
    trace = open_trace(path, progress=said.append)
    assert trace.kernels.height == 1
    assert (trace.capture.source_name, trace.capture.format) == ("run.nsys-rep", "nsys_rep")
    assert any(words.startswith("nsys export:") for words in said)
    assert sorted(tmp_path.iterdir()) == before


def test_the_cache_saves_the_second_export(tmp_path, monkeypatch):
    path = report(tmp_path)
    install(tmp_path, monkeypatch, EXPORT.format(made=str(tmp_path / "made.sqlite")))
    first = open_trace(path, cache=tmp_path / "cache")
    shutil.rmtree(tmp_path / "bin")
    assert open_trace(path, cache=tmp_path / "cache").kernels.equals(first.kernels)


def test_without_nsys_the_message_is_the_command(tmp_path, monkeypatch):
    path = report(tmp_path)
    monkeypatch.setattr(nsys_rep, "find_nsys", lambda: None)
    with pytest.raises(NotACaptureError, match=r"nsys export --type sqlite --output run.sqlite run.nsys-rep"):
        open_trace(path)


@pytest.mark.parametrize("body", ["sys.exit('unsupported version')", "print('unsupported version')"])
def test_an_export_that_fails_is_quoted(tmp_path, monkeypatch, body):
    path = report(tmp_path)
    install(tmp_path, monkeypatch, body)
    with pytest.raises(NotACaptureError, match=r"could not export run.nsys-rep .*unsupported version"):
        nsys_rep.read(path)


@pytest.mark.parametrize(
    ("name", "head", "taken"),
    [
        ("a.nsys-rep", REPORT, True),
        ("renamed.bin", REPORT, True),
        ("a.nsys-rep", b"\x12\x00\x34", True),
        ("a.nsys-rep", b"SQLite format 3\x00", False),
        ("a.nsys-rep", b"version https://git-lfs.github.com/spec/v1", False),
        ("a.bin", b"\x12\x00\x34", False),
    ],
)
def test_sniff(tmp_path, name, head, taken):
    assert nsys_rep.sniff(tmp_path / name, head) is taken
