"""What is no capture, or a broken one: one paragraph that says what it is and what to do, and nothing left on disk."""

import gzip
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from trace_analyze.analysis.records.errors import CannotAnswerError, NotACaptureError, TraceAnalyzeError
from trace_analyze.fixtures.writers.nsys_writer import KERNEL, Capture
from trace_analyze.ingest import open_trace


def small_capture(path: Path, *, kernels: int = 2000, **options) -> Path:
    """A sound capture of a few hundred pages."""
    capture = Capture("2025.6")
    capture.gpu("h100")
    starts = [10_000 + 1000 * number for number in range(kernels)]
    correlations = list(range(1, kernels + 1))
    capture.kernel_columns(
        ["void gemm<(int)64>(float *)", "void norm(float *)"],
        [number % 2 for number in range(kernels)],
        start=starts,
        end=[start + 900 for start in starts],
        deviceId=0,
        correlationId=correlations,
    )
    capture.nvtx("step", 0, 10_000 + 1000 * kernels)
    return capture.write(path, **options)


def message_of(path: Path, error: type[TraceAnalyzeError], exit_code: int) -> str:
    """The message of the refusal, after checking its form."""
    with pytest.raises(error) as caught:
        open_trace(path)
    message = str(caught.value)
    assert caught.value.exit_code == exit_code
    assert "\n" not in message and "Traceback" not in message
    assert 20 < len(message) < 900
    return message


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("empty.sqlite", b"", ["empty (0 bytes)", "nsys export"]),
        ("pointer.sqlite", LFS, ["Git LFS pointer", "git lfs pull"]),
        ("run.nsys-rep", b"\x00\x01binary", [".nsys-rep", "nsys export --type sqlite"]),
        ("run.qdrep", b"\x00\x01binary", ["nsys export"]),
        ("run.qdstrm", b"QDSTRM\x00\x00", ["qdstrm"]),
        ("notes.txt", b"these are my notes on the run\nof today\n", ["a text file", "nsys export"]),
        ("notes.sqlite", b"these are my notes on the run\nof today\n", ["a text file"]),
        ("page.sqlite", b"<!DOCTYPE html><html><body>404</body></html>", ["web page"]),
        ("table.csv", b"a,b,c\n1,2,3\n", ["CSV"]),
        ("other.json", b'{"traceEvents_": 1}', ["JSON"]),
        ("archive.zip", b"PK\x03\x04" + b"\x00" * 50, ["zip archive"]),
        ("run.sqlite.zst", b"\x28\xb5\x2f\xfd" + b"\x01" * 50, ["Zstandard"]),
        ("notes.txt.gz", gzip.compress(b"only notes\nof a day\n", mtime=0), ["a text file"]),
        ("cut.json.gz", gzip.compress(bytes(range(256)) * 9, mtime=0)[:9], ["damaged gzip"]),
        ("utf16.txt", "notes of a day\n".encode("utf-16"), ["a text file"]),
        ("run.tar", b"\x00" * 257 + b"ustar\x0000" + b"\x00" * 200, ["tar archive"]),
        ("table.parquet", b"PAR1" + b"\x00" * 50, ["Parquet", "parquetdir"]),
        ("encrypted.sqlite", bytes(range(0, 256, 3)) * 40, ["encrypted"]),
        ("blob.bin", bytes(range(0, 256, 3)) * 40, ["binary file of unknown kind"]),
        ("header-only.sqlite", b"SQLite format 3\x00" + b"\x10\x00", ["truncated"]),
    ],
)
def test_files_that_are_no_capture(tmp_path: Path, folder_stays_as_it_was, name: str, content: bytes, says: list[str]):
    path = write(tmp_path / name, content)
    folder_stays_as_it_was()
    message = message_of(path, NotACaptureError, 2)
    assert name in message
    for part in says:
        assert part in message


def test_a_missing_path_creates_nothing_and_names_what_is_near(tmp_path: Path):
    write(tmp_path / "run-2.sqlite", b"x")
    message = message_of(tmp_path / "run.sqlite", NotACaptureError, 2)
    assert "No such file" in message and "run-2.sqlite" in message
    assert [entry.name for entry in tmp_path.iterdir()] == ["run-2.sqlite"]
    assert "folder does not exist" in message_of(tmp_path / "no" / "run.sqlite", NotACaptureError, 2)


def test_a_folder(tmp_path: Path):
    assert "trace-analyze batch" in message_of(tmp_path, NotACaptureError, 2)


def test_a_pipe(tmp_path: Path):
    os.mkfifo(tmp_path / "run.sqlite")
    assert "not a regular file" in message_of(tmp_path / "run.sqlite", NotACaptureError, 2)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("CREATE TABLE read_only_kernels(id)", "a DLProf database"),
        ("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL(_id_ INTEGER, name INTEGER, start INTEGER, end INTEGER)", "nvprof"),
        ("CREATE TABLE StringTable(_id_ INTEGER, value TEXT)", "nvprof"),
        ("CREATE TABLE rocpd_string(id)", "rocpd"),
        ("CREATE TABLE users(name TEXT)", "tables: users"),
        ("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL(deviceId INTEGER)", "lacks the column end and start"),
    ],
)
def test_databases_of_others(tmp_path: Path, folder_stays_as_it_was, table: str, says: str):
    path = tmp_path / "run.sqlite"
    connection = sqlite3.connect(path)
    connection.execute(table)
    connection.commit()
    connection.close()
    folder_stays_as_it_was()
    assert says in message_of(path, NotACaptureError, 2)


def test_a_database_without_tables(tmp_path: Path):
    connection = sqlite3.connect(tmp_path / "run.sqlite")
    connection.execute("PRAGMA user_version = 1")
    connection.close()
    assert "without tables" in message_of(tmp_path / "run.sqlite", NotACaptureError, 2)


@pytest.mark.parametrize("share", [0.6, 0.05, 0.999])
def test_truncated(tmp_path: Path, folder_stays_as_it_was, share: float):
    whole = small_capture(tmp_path / "run.sqlite").read_bytes()
    path = write(tmp_path / "run.sqlite", whole[: int(len(whole) * share)])
    folder_stays_as_it_was()
    message = message_of(path, NotACaptureError, 2)
    assert f"truncated: {int(len(whole) * share):,} of {len(whole):,} bytes" in message


def test_zeroed_pages_name_what_was_intact(tmp_path: Path, folder_stays_as_it_was):
    content = bytearray(small_capture(tmp_path / "run.sqlite").read_bytes())
    page = int.from_bytes(content[16:18], "big")
    for damaged in range(len(content) // page // 2, len(content) // page, 7):  # NVTX and strings lie behind the kernels
        content[damaged * page : (damaged + 1) * page] = bytes(page)
    path = write(tmp_path / "run.sqlite", bytes(content))
    folder_stays_as_it_was()
    message = message_of(path, NotACaptureError, 2)
    assert "damaged" in message and "export it again" in message


def test_a_zeroed_page_behind_the_kernels_tells_what_was_read(tmp_path: Path):
    path = small_capture(tmp_path / "run.sqlite")
    connection = sqlite3.connect(path)
    (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'NVTX_EVENTS'").fetchone()
    connection.close()
    content = bytearray(path.read_bytes())
    page = int.from_bytes(content[16:18], "big")
    content[(root - 1) * page : root * page] = bytes(page)
    message = message_of(write(path, bytes(content)), NotACaptureError, 2)
    assert "damaged" in message and "Readable before that: 2,000 kernels" in message


def test_encrypted_body_behind_a_plain_header(tmp_path: Path):
    content = bytearray(small_capture(tmp_path / "run.sqlite").read_bytes())
    content[100:] = bytes((7 * number + number // 250) % 256 for number in range(len(content) - 100))
    path = write(tmp_path / "run.sqlite", bytes(content))
    assert "damaged" in message_of(path, NotACaptureError, 2)


def test_no_kernels_is_readable_but_cannot_answer(tmp_path: Path, folder_stays_as_it_was):
    path = small_capture(tmp_path / "run.sqlite")
    connection = sqlite3.connect(path)
    connection.execute(f"DELETE FROM {KERNEL}")
    connection.commit()
    connection.close()
    folder_stays_as_it_was()
    message = message_of(path, CannotAnswerError, 3)
    assert "without kernels" in message and "NVTX ranges" in message and "VLLM_WORKER_MULTIPROC_METHOD=spawn" in message


def test_kernels_without_usable_times_are_named_with_their_reason(tmp_path: Path):
    capture = Capture("2025.6")
    capture.kernel("gemm", 0, 0)
    capture.kernel("gemm", 500, 400)
    message = message_of(capture.write(tmp_path / "run.sqlite"), CannotAnswerError, 3)
    assert "none of its 2 GPU rows has a usable time" in message
    assert "1 kernel: timing not collected" in message and "1 kernel: ends before it starts" in message


def test_whole_graphs_only_is_a_trace(tmp_path: Path):
    capture = Capture("2025.6", graph_mode="graph")
    capture.graph_launch(4, 10_000, 90_000, launched_at=5_000)
    trace = open_trace(capture.write(tmp_path / "run.sqlite"))
    assert trace.kernels.is_empty() and trace.graph_launches.height == 1
    gap = next(gap for gap in trace.gaps_in_evidence if gap.what == "graph replays are opaque")
    assert "--cuda-graph-trace=node" in gap.recapture


def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = small_capture(tmp_path / "run.sqlite", kernels=3)

    def refuse(*_: object, **__: object):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    assert "No permission to read" in message_of(path, NotACaptureError, 2)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user to become")
def test_no_permission_as_another_user(tmp_path: Path):
    path = small_capture(tmp_path / "run.sqlite", kernels=3)
    path.chmod(0o600)
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    script = (
        "import os, sys\n"
        "from trace_analyze.ingest import open_trace\n"
        "from trace_analyze.analysis.records.errors import NotACaptureError\n"
        "import trace_analyze.ingest.nsys, trace_analyze.ingest.sniff\n"
        "os.setuid(65534)\n"
        "try:\n    open_trace(sys.argv[1])\n"
        "except NotACaptureError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False)
    assert "No permission to read" in done.stdout or "Cannot read" in done.stdout, done.stderr


def checksum_and_listing(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {entry.name: (entry.stat().st_mtime_ns, entry.read_bytes()) for entry in folder.iterdir()}


@pytest.mark.parametrize("rows", [50, 60_000])
def test_a_read_only_file_in_a_read_only_folder_is_read_and_left_as_it_was(tmp_path: Path, rows: int):
    folder = tmp_path / "archive"
    folder.mkdir()
    path = small_capture(folder / "run #1?50%.sqlite", kernels=rows)  # names that a URI must escape
    path.chmod(0o444)
    before = checksum_and_listing(folder)
    folder.chmod(0o555)
    try:
        assert open_trace(path).kernels.height == rows
    finally:
        folder.chmod(0o755)
    assert checksum_and_listing(folder) == before


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_no_road_opens_the_capture_for_writing(tmp_path: Path):
    path = small_capture(tmp_path / "run.sqlite", kernels=60_000)
    script = "import sys; from trace_analyze.ingest import open_trace; print(open_trace(sys.argv[1]).kernels.height)"
    trace = [
        "strace",
        "-f",
        "-qq",
        "-e",
        "trace=open,openat,creat,unlink,unlinkat,rename",
        "-o",
        str(tmp_path / "calls"),
    ]
    done = subprocess.run(
        [*trace, sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False
    )
    if done.returncode and "ptrace" in done.stderr:
        pytest.skip("strace is not permitted here")
    assert done.stdout.strip() == "60000"
    calls = [line for line in (tmp_path / "calls").read_text().splitlines() if "run.sqlite" in line and "open" in line]
    assert len(calls) >= 3  # the head, sqlite3, the pages
    assert not [line for line in calls if "O_RDWR" in line or "O_WRONLY" in line or "O_CREAT" in line]


def test_a_file_in_wal_mode_without_its_log(tmp_path: Path, folder_stays_as_it_was):
    path = small_capture(tmp_path / "run.sqlite", kernels=50)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.close()
    assert path.read_bytes()[18] == 2
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.sqlite"]
    folder_stays_as_it_was()
    assert open_trace(path).kernels.height == 50


@pytest.mark.parametrize("rows", [50, 60_000])
def test_rows_that_are_still_in_the_log_are_read(tmp_path: Path, folder_stays_as_it_was, rows: int):
    path = small_capture(tmp_path / "run.sqlite", kernels=rows)
    writer = sqlite3.connect(path)
    writer.execute("PRAGMA journal_mode=WAL")
    writer.execute("PRAGMA wal_autocheckpoint=0")
    writer.execute(f"UPDATE {KERNEL} SET end = end + 1")
    writer.commit()
    folder = tmp_path / "copied while open"
    folder.mkdir()
    for name in ("run.sqlite", "run.sqlite-wal"):
        shutil.copyfile(tmp_path / name, folder / name)
    writer.close()
    folder_stays_as_it_was()
    trace = open_trace(folder / "run.sqlite")
    assert (trace.kernels["end_ns"] - trace.kernels["start_ns"]).unique().to_list() == [901]
    assert any("-wal holds rows" in note for note in trace.capture.notes)
    assert trace.capture.source_name == "run.sqlite"
