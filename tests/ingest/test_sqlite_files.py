"""A database and what lies beside it is read as its writer left it, and stays as it was to the byte."""

import errno
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from trace_analyze.analysis.records.errors import NotACaptureError
from trace_analyze.fixtures.writers.nsys_writer import KERNEL, Capture
from trace_analyze.ingest import open_trace, sqlite_files
from trace_analyze.ingest.cache.fingerprint import fingerprint
from trace_analyze.ingest.ncu.csv_tables import sqlite_tables

KERNELS = 3000


def state(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Time, mode and bytes of all files of a folder."""
    return {
        entry.name: (entry.stat().st_mtime_ns, entry.stat().st_mode, entry.read_bytes()) for entry in folder.iterdir()
    }


def capture_of(path: Path) -> Path:
    capture = Capture("2025.6")
    starts = [10_000 + 1000 * number for number in range(KERNELS)]
    capture.kernel_columns(["gemm"], [0] * KERNELS, start=starts, end=[start + 900 for start in starts], deviceId=0)
    return capture.write(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder for the files that are read."""
    place = tmp_path / "captures"
    place.mkdir()
    return place


@pytest.fixture
def with_log(folder: Path, tmp_path: Path) -> Path:
    """A capture half of whose kernels were deleted by a transaction that is only in its write-ahead log."""
    path = capture_of(tmp_path / "run.sqlite")
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("PRAGMA journal_mode=WAL")
        writer.execute("PRAGMA wal_autocheckpoint=0")
        writer.execute(f"DELETE FROM {KERNEL} WHERE rowid % 2")
        for suffix in ("", "-wal", "-shm"):
            shutil.copyfile(tmp_path / f"run.sqlite{suffix}", folder / f"run.sqlite{suffix}")
    return folder / "run.sqlite"


@pytest.fixture
def with_journal(folder: Path, tmp_path: Path) -> Path:
    """A capture in the middle of a transaction that deletes half of its kernels and adds a table."""
    path = capture_of(tmp_path / "run.sqlite")
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("PRAGMA cache_size = 1")  # pages are written before the transaction ends
        writer.execute("PRAGMA cache_spill = 1")
        writer.execute("BEGIN")
        writer.execute(f"DELETE FROM {KERNEL} WHERE rowid % 2")
        writer.execute("CREATE TABLE filling (x)")
        writer.executemany("INSERT INTO filling VALUES (?)", [("y" * 3000,)] * 300)
        for suffix in ("", "-journal"):
            shutil.copyfile(tmp_path / f"run.sqlite{suffix}", folder / f"run.sqlite{suffix}")
        writer.execute("ROLLBACK")
    return folder / "run.sqlite"


def kernels_alone(path: Path) -> int:
    """What the file says without what lies beside it."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as connection:
        return connection.execute(f"SELECT count(*) FROM {KERNEL}").fetchone()[0]


@pytest.mark.parametrize("linked", [False, True])
def test_a_log_is_read_with_the_file_it_belongs_to(with_log: Path, tmp_path: Path, linked: bool):
    assert kernels_alone(with_log) == KERNELS
    before = state(with_log.parent)
    path = with_log
    if linked:
        path = tmp_path / "link.sqlite"
        path.symlink_to(with_log)
    trace = open_trace(path)
    assert trace.kernels.height == KERNELS // 2
    assert trace.capture.source_name == path.name
    assert any("-wal holds rows" in note for note in trace.capture.notes)
    assert state(with_log.parent) == before


@pytest.mark.parametrize("linked", [False, True])
def test_an_interrupted_transaction_is_rolled_back_in_a_copy(with_journal: Path, tmp_path: Path, linked: bool):
    assert 0 < kernels_alone(with_journal) < KERNELS
    before = state(with_journal.parent)
    path = with_journal
    if linked:
        path = tmp_path / "link.sqlite"
        path.symlink_to(with_journal)
    trace = open_trace(path)
    assert trace.kernels.height == KERNELS
    assert any("rolled back" in note for note in trace.capture.notes)
    assert state(with_journal.parent) == before


@pytest.mark.parametrize("content", [b"", bytes(512)])
def test_a_journal_that_was_ended_needs_no_copy(folder: Path, monkeypatch: pytest.MonkeyPatch, content: bytes):
    """journal_mode TRUNCATE leaves an empty one, PERSIST one whose beginning is zero."""
    path = capture_of(folder / "run.sqlite")
    (folder / "run.sqlite-journal").write_bytes(content)
    monkeypatch.setattr(sqlite_files, "_copy_together", None)
    assert open_trace(path).kernels.height == KERNELS


def test_a_journal_never_deletes_the_file_it_names(with_journal: Path, tmp_path: Path):
    """The name of a super-journal ends a journal; SQLite deletes that file once it has rolled back."""
    precious = tmp_path / "precious"
    precious.write_text("mine")
    name = os.fsencode(precious)
    journal = with_journal.with_name("run.sqlite-journal")
    with journal.open("ab") as file:
        checksum = sum(name) & 0xFFFFFFFF
        file.write(bytes(4) + name + len(name).to_bytes(4, "big") + checksum.to_bytes(4, "big"))
        file.write(sqlite_files.JOURNAL_END)
    before = state(with_journal.parent)
    with pytest.raises(NotACaptureError, match="several databases"):
        open_trace(with_journal)
    assert precious.read_text() == "mine"
    assert state(with_journal.parent) == before


@pytest.mark.parametrize("beside", ["-wal", "-journal"])
def test_a_log_beside_the_link_alone_is_refused(folder: Path, tmp_path: Path, beside: str):
    link = tmp_path / "link.sqlite"
    link.symlink_to(capture_of(folder / "run.sqlite"))
    (tmp_path / f"link.sqlite{beside}").write_bytes(b"\xd9" * 5000)
    with pytest.raises(NotACaptureError, match="is a link"):
        open_trace(link)


def test_a_log_that_both_link_and_file_have(with_log: Path, tmp_path: Path):
    link = tmp_path / "link.sqlite"
    link.symlink_to(with_log)
    (tmp_path / "link.sqlite-wal").symlink_to(with_log.with_name("run.sqlite-wal"))
    assert open_trace(link).kernels.height == KERNELS // 2


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def no_folder(*_: object, **__: object) -> None:
    raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")


def full_for_sqlite(*_: object) -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute("PRAGMA max_page_count = 2")
        connection.execute("CREATE TABLE t (x)")
        connection.execute("INSERT INTO t VALUES (zeroblob(100000))")


@pytest.mark.parametrize(
    ("what", "fails"),
    [
        ("shutil.copyfileobj", full),
        ("shutil.disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1)),
        ("tempfile.gettempdir", no_folder),
        ("tempfile.TemporaryDirectory", no_folder),
        ("_recover", full_for_sqlite),
    ],
)
@pytest.mark.parametrize("kind", ["with_log", "with_journal"])
def test_without_room_for_a_copy_the_file_is_refused(request, monkeypatch, what: str, fails, kind: str):
    path: Path = request.getfixturevalue(kind)
    before = state(path.parent)
    with monkeypatch.context() as patch:
        patch.setattr(f"{sqlite_files.__name__}.{what}", fails)
        with pytest.raises(NotACaptureError, match="TMPDIR") as caught:
            open_trace(path)
    assert caught.value.exit_code == 2
    message = str(caught.value)
    room = sum(entry.stat().st_size for entry in path.parent.iterdir() if not entry.name.endswith("-shm"))
    room += sqlite_files.SPARE_BYTES
    if kind == "with_log":
        room += path.with_name("run.sqlite-wal").stat().st_size
    assert f"{room / 1e6:.1f} MB" in message and "wal_checkpoint" in message
    assert state(path.parent) == before


def test_the_current_folder_is_no_temporary_folder(with_log: Path, monkeypatch: pytest.MonkeyPatch):
    """Python falls back to it where no other can be written."""
    monkeypatch.chdir(with_log.parent)
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setattr(sqlite_files.tempfile, "gettempdir", lambda: str(Path.cwd()))
    before = state(with_log.parent)
    with pytest.raises(NotACaptureError, match="no temporary folder"):
        open_trace(with_log)
    assert state(with_log.parent) == before


def test_a_file_that_is_being_written_to(with_log: Path, monkeypatch: pytest.MonkeyPatch):
    copy = shutil.copyfileobj

    def copy_while_written(reading, writing, block):
        copy(reading, writing, block)
        with with_log.with_name("run.sqlite-wal").open("ab") as log:
            log.write(b"more")

    monkeypatch.setattr(sqlite_files.shutil, "copyfileobj", copy_while_written)
    with pytest.raises(NotACaptureError, match="being written to"):
        open_trace(with_log)


@pytest.mark.parametrize("kind", ["with_log", "with_journal"])
@pytest.mark.parametrize("step", ["_copy_together", "_recover", "connect"])
def test_a_process_killed_midway_leaves_the_input_as_it_was(request, tmp_path: Path, kind: str, step: str):
    path: Path = request.getfixturevalue(kind)
    before = state(path.parent)
    script = (
        "import os, sys\n"
        "from trace_analyze.ingest import open_trace, sqlite_files\n"
        "import trace_analyze.ingest.nsys.sqlite_pages.database as database\n"
        f"step = sqlite_files.{step}\n"
        "def killed(*arguments):\n    step(*arguments)\n    os.kill(os.getpid(), 9)\n"
        f"sqlite_files.{step} = database.{step} = killed\n"
        "open_trace(sys.argv[1])\n"
    )
    (tmp_path / "tmp").mkdir()
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    done = subprocess.run([sys.executable, "-c", script, str(path)], env=environment, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL
    assert state(path.parent) == before


def test_no_private_copy_is_left_behind(with_log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setattr(sqlite_files.tempfile, "tempdir", str(place))
    open_trace(with_log)
    assert list(place.iterdir()) == []


def test_what_is_kept_for_a_file_is_not_what_it_is_with_a_log(with_log: Path, tmp_path: Path):
    alone = tmp_path / "alone.sqlite"
    shutil.copyfile(with_log, alone)
    assert fingerprint(with_log) != fingerprint(alone)
    link = tmp_path / "link.sqlite"
    link.symlink_to(with_log)
    assert fingerprint(link) == fingerprint(with_log)


def test_metrics_of_nsight_compute_are_read_with_their_log(folder: Path, tmp_path: Path):
    own = tmp_path / "ncu.sqlite"
    with closing(sqlite3.connect(own, isolation_level=None)) as writer:
        writer.execute("PRAGMA journal_mode=WAL")
        writer.execute('CREATE TABLE metrics ("ID", "Kernel Name")')
        writer.execute("INSERT INTO metrics VALUES (1, 'gemm')")
        for suffix in ("", "-wal"):
            shutil.copyfile(tmp_path / f"ncu.sqlite{suffix}", folder / f"ncu.sqlite{suffix}")
    before = state(folder)
    assert list(sqlite_tables(folder / "ncu.sqlite")) == [[["ID", "Kernel Name"], ["1", "gemm"]]]
    assert state(folder) == before


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT "
HOSTILE = {
    "rows without end": ENDLESS + "i AS start, i + 1 AS end, 0 AS deviceId, 1 AS demangledName FROM n",
    "a first row that never comes": ENDLESS + "i AS start, i AS end FROM n WHERE i < 0",
    "a sum without end": ENDLESS + "sum(i) AS start, 5 AS end FROM n",
    "long texts": ENDLESS + "i AS start, i + 1 AS end, hex(zeroblob(400000)) || i AS demangledName FROM n",
    "a text of a gigabyte": "SELECT 1 AS start, 2 AS end, hex(zeroblob(400000000)) AS demangledName",
}


def hostile(path: Path, view: str) -> Path:
    capture_of(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"DROP TABLE {KERNEL}")
        connection.execute(f"CREATE VIEW {KERNEL} AS {view}")
        connection.commit()
    return path


@pytest.mark.parametrize("view", HOSTILE.values(), ids=list(HOSTILE))
def test_a_view_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, view: str):
    monkeypatch.setattr(sqlite_files, "SECONDS", 0.5)
    monkeypatch.setattr(sqlite_files, "COMPUTED_BYTES", 8 << 20)
    monkeypatch.setattr(sqlite_files, "COMPUTED_SHARE", 1)
    path = hostile(tmp_path / "run.sqlite", view)
    began = time.monotonic()
    with pytest.raises(NotACaptureError, match="was not read to its end"):
        open_trace(path)
    assert time.monotonic() - began < 20


def test_a_long_text_in_a_table_is_refused(tmp_path: Path):
    path = capture_of(tmp_path / "run.sqlite")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE StringIds SET value = hex(zeroblob(10000000))")
        connection.commit()
    with pytest.raises(NotACaptureError, match="text too long"):
        open_trace(path)


def test_kernels_in_a_view_are_read(tmp_path: Path):
    path = capture_of(tmp_path / "run.sqlite")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"ALTER TABLE {KERNEL} RENAME TO base")
        connection.execute(f"CREATE VIEW {KERNEL} AS SELECT * FROM base WHERE rowid % 3")
        connection.commit()
    assert open_trace(path).kernels.height == KERNELS * 2 // 3


@pytest.mark.parametrize("view", ["a first row that never comes", "rows without end"])
def test_ctrl_c_is_heard_within_a_second(tmp_path: Path, view: str):
    path = hostile(tmp_path / "run.sqlite", HOSTILE[view])
    script = (
        "import sys\n"
        "from trace_analyze.ingest import open_trace\n"
        "import trace_analyze.ingest.nsys\n"
        "print('reading', flush=True)\n"
        "try:\n    open_trace(sys.argv[1])\n"
        "except KeyboardInterrupt:\n    print('heard', flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "reading\n"
        time.sleep(1)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "heard\n"
        assert time.monotonic() - began < 1


def test_ctrl_c_is_heard_while_a_log_is_worked_in(with_log: Path, tmp_path: Path):
    before = state(with_log.parent)
    (tmp_path / "tmp").mkdir()
    script = (
        "import sqlite3, sys, time\n"
        "from contextlib import closing\n"
        "from trace_analyze.ingest import open_trace, sqlite_files\n"
        "def endless(*_):\n"
        "    print('working', flush=True)\n"
        "    with closing(sqlite3.connect(':memory:')) as connection:\n"
        f'        connection.execute("{ENDLESS} sum(i) FROM n LIMIT 1").fetchone()\n'
        "sqlite_files._recover = endless\n"
        "try:\n    open_trace(sys.argv[1])\n"
        "except KeyboardInterrupt:\n    print('heard', flush=True)\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    command = [sys.executable, "-c", script, str(with_log)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "working\n"
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "heard\n"
        assert time.monotonic() - began < 1
        process.wait(5)
    assert list((tmp_path / "tmp").iterdir()) == []
    assert state(with_log.parent) == before
