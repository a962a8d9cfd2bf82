"""SQLite files of other people, read so that nothing beside or in them changes.

``immutable=1`` makes SQLite skip locks, the write-ahead log (``-wal``) and the rollback journal (``-journal``), so files
in read-only folders and on network mounts open and no side file appears. Where one of the two holds something, the file
alone is not what its writer meant: file, log and journal are then copied to a private temporary folder and SQLite makes
them one there. Where no copy can be made, the file is refused.

What a file makes SQLite compute (views, generated columns) is bounded in time and size, and Ctrl-C is heard meanwhile.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from ..analysis.records.errors import NotACaptureError
from .temporary_copies import temporary_folder

SIDE_SUFFIXES = ("-wal", "-journal")
LOG_HEADER_BYTES = 32
JOURNAL_END = bytes.fromhex("d9d505f920a163d7")  # begins a journal; also ends one that names a super-journal
COPY_BLOCK = 1 << 20  # copied at once: Ctrl-C is heard between blocks
SPARE_BYTES = 1 << 20

STEPS_BETWEEN_LOOKS = 500  # instructions of SQLite; a few microseconds, more where each makes a long text
LOOKS_BETWEEN_CLOCKS = 16
SECONDS, BYTES_A_SECOND = 20.0, 2_000_000  # of processor time for one statement: 20 s and a second per 2 MB of file
LONGEST_TEXT = 16 << 20
LONGEST_COMPUTED_TEXT = 1 << 20
COMPUTED_BYTES, COMPUTED_SHARE = 256 << 20, 32  # what computed rows may hold: 256 MiB and 32 times the file
ROW_BYTES = 100  # of a row beside its texts
ROWS_AT_ONCE = 64  # of computed rows
COMPUTED = re.compile(r"\bAS\s*\(", re.IGNORECASE)  # of a generated column

Result = TypeVar("Result")


def changes_beside(path: Path) -> list[Path]:
    """The write-ahead log and the rollback journal that belong to the file behind ``path`` and hold something.

    SQLite looks for them beside the real file, not beside a link to it.
    """
    real = path.resolve()
    return [side for suffix in SIDE_SUFFIXES if _holds_changes(side := _side(real, suffix))]


def _side(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _holds_changes(side: Path) -> bool:
    """Whether SQLite would look into it: a log with pages, or a journal that was not ended (its first byte is not 0)."""
    try:
        if not side.is_file():
            return False
        if side.name.endswith("-wal"):
            return side.stat().st_size > LOG_HEADER_BYTES
        with side.open("rb") as file:
            return file.read(1) not in (b"", b"\0")
    except OSError as error:  # there, but not readable: reading it will say why; a name too long cannot be there
        return error.errno != errno.ENAMETOOLONG


@dataclass
class SettledFile:
    """A file to be read as immutable: the one that was given, or a private copy that holds its log too."""

    path: Path
    notes: list[str] = field(default_factory=list)
    folder: tempfile.TemporaryDirectory[str] | None = None

    def close(self) -> None:
        """Remove the private copy, if there is one."""
        if self.folder is not None:
            self.folder.cleanup()
            self.folder = None


def settle(path: Path) -> SettledFile:
    """``path`` itself where nothing lies beside it, else a private copy with log or journal worked in.

    Raises ``NotACaptureError`` where no copy can be made, ``sqlite3.Error`` where the copy is damaged.
    """
    _refuse_changes_beside_a_link(path)
    sides = changes_beside(path)
    if not sides:
        return SettledFile(path)
    for side in sides:
        _refuse_super_journal(path, side)
    real = path.resolve()
    folder: tempfile.TemporaryDirectory[str] | None = None
    needed = 0
    try:
        needed = real.stat().st_size + SPARE_BYTES
        needed += sum(side.stat().st_size * (2 if side.name.endswith("-wal") else 1) for side in sides)
        place = _temporary_folder()
        free = shutil.disk_usage(place).free
        if free < needed:
            raise OSError(errno.ENOSPC, f"{_size(free)} free in {place}")
        folder = temporary_folder(place)
        copy = Path(folder.name) / "capture.sqlite"
        _copy_together(path, {real: copy} | {side: _side(copy, side.name[len(real.name) :]) for side in sides})
        return SettledFile(copy, _interruptible(lambda: _recover(copy, path, sides)), folder)
    except BaseException as error:
        if folder is not None:
            folder.cleanup()
        if isinstance(error, OSError) or _is_out_of_room(error):
            raise _no_copy(path, sides, needed, error) from error
        raise


def _refuse_changes_beside_a_link(path: Path) -> None:
    """A log beside the link is not the log of the file to SQLite, but perhaps to whoever linked both."""
    real = path.resolve()
    for suffix in SIDE_SUFFIXES:
        beside, own = _side(path, suffix), _side(real, suffix)
        if _holds_changes(beside) and not (own.exists() and beside.samefile(own)):
            raise NotACaptureError(
                f"{path.name} is a link, and {beside.name} lies beside the link, not beside the file it leads to "
                f"({real}): whether it belongs to that file cannot be told. Copy both into one folder (cp -L) and give "
                "the copy, or give the file itself."
            )


def _refuse_super_journal(path: Path, side: Path) -> None:
    """SQLite deletes the file that a journal of several databases names, wherever it lies."""
    with suppress(OSError):
        if side.name.endswith("-journal"):
            with side.open("rb") as file:
                file.seek(max(0, side.stat().st_size - len(JOURNAL_END)))
                if file.read() == JOURNAL_END:
                    raise NotACaptureError(
                        f"{side.name} is of a transaction over several databases that was interrupted; {path.name} "
                        "alone cannot be brought back to a known state. Open it with the program that wrote it, or "
                        "export it again."
                    )


def _temporary_folder() -> Path:
    """Where temporary files go; Python's last resort, the current folder, may hold captures and is not taken."""
    place = Path(tempfile.gettempdir())
    named = {os.environ.get(name, "") for name in ("TMPDIR", "TEMP", "TMP")} | {"/tmp", "/var/tmp", "/usr/tmp"}
    if os.name == "posix" and place == Path.cwd() and str(place) not in named:
        raise OSError(errno.EACCES, "no temporary folder can be written")
    return place


def _copy_together(path: Path, copies: dict[Path, Path]) -> None:
    """Copy files as they were at one time; raises NotACaptureError where one changed meanwhile."""

    def state() -> list[tuple[int, int]]:
        return [(found.st_size, found.st_mtime_ns) for found in map(os.stat, copies)]

    before = state()
    for source, target in copies.items():
        with source.open("rb") as reading, target.open("wb") as writing:
            shutil.copyfileobj(reading, writing, COPY_BLOCK)
    if state() != before:
        raise NotACaptureError(f"{path.name} is being written to. Try again when its writer has ended.")


def _interruptible(work: Callable[[], Result]) -> Result:
    """The result of ``work``, done in a thread that Ctrl-C leaves behind: SQLite recovers a file in one long step."""
    done: Future[Result] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    while not done.done():  # in short waits: not every system ends a long one for a signal
        wait([done], timeout=0.1)
    return done.result()


def _recover(copy: Path, path: Path, sides: list[Path]) -> list[str]:
    """Let SQLite roll back and check-point the private copy; what happened, in sentences."""
    with closing(sqlite3.connect(copy, isolation_level=None)) as connection:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        busy, pages, _ = connection.execute("PRAGMA wal_checkpoint(FULL)").fetchone()
        if busy:
            raise sqlite3.OperationalError("its write-ahead log cannot be read")
    notes = []
    for side in sides:
        if side.name.endswith("-journal"):
            notes.append(f"{side.name} shows that writing {path.name} was interrupted: rolled back, in a copy.")
        elif pages > 0:
            notes.append(f"{side.name} holds rows that are not yet in the file: read together, from a copy.")
    return notes


def _is_out_of_room(error: BaseException) -> bool:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)


def _no_copy(path: Path, sides: list[Path], needed: int, error: BaseException) -> NotACaptureError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    names = " and ".join(side.name for side in sides)
    return NotACaptureError(
        f"{path.name} is not complete without {names} beside it, and the temporary copy in which they are read together "
        f"cannot be made ({reason}). It needs {_size(needed)}: set TMPDIR to a folder with that room. Or copy "
        f"{path.name} and {names} to another folder, run there: sqlite3 {path.name} 'PRAGMA wal_checkpoint(TRUNCATE)', "
        "and give that copy. Nothing was changed."
    )


def _size(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"


class _Budget:
    """Called by SQLite every few instructions. True ends the statement; a signal's exception does too, unseen."""

    def __init__(self, path: Path, size: int) -> None:
        self.name = path.name
        self.seconds = SECONDS + size / BYTES_A_SECOND
        self.most_bytes = COMPUTED_BYTES + COMPUTED_SHARE * size
        self.begin()

    def begin(self) -> None:
        self.end = time.thread_time() + self.seconds
        self.looks = 0
        self.bytes = 0
        self.spent = False

    def __call__(self) -> bool:
        self.looks += 1
        if self.looks % LOOKS_BETWEEN_CLOCKS == 0:
            self.spent = time.thread_time() > self.end
        return self.spent

    def count(self, rows: list[Any]) -> None:
        """Add computed rows to what the statement gave."""
        texts = sum(len(cell) for row in rows for cell in row if isinstance(cell, (str, bytes)))
        self.bytes += texts + ROW_BYTES * len(rows)
        if self.bytes > self.most_bytes:
            raise self.refusal("gives more rows or longer texts than a file of its size can mean")

    def refusal(self, what: str) -> NotACaptureError:
        return NotACaptureError(
            f"{self.name} was not read to its end: a table, view or computed column in it {what}. If it is a capture, "
            "export it again, without views."
        )

    def ask(self, statement: Callable[[], Result]) -> Result:
        """Run a step of a statement; an interruption becomes what caused it."""
        try:
            return statement()
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorcode", 0) != sqlite3.SQLITE_INTERRUPT:
                raise
            if self.spent:
                raise self.refusal(f"takes more than {self.seconds:.0f} seconds") from error
            raise KeyboardInterrupt from error  # SQLite swallows what a signal raised in its callback
        except sqlite3.DataError as error:
            raise self.refusal("holds a text too long to be of a capture") from error


class _Cursor(sqlite3.Cursor):
    """Rows under a budget."""

    connection: Connection

    def execute(self, *arguments: Any) -> _Cursor:
        budget = self.connection.budget
        budget.begin()
        budget.ask(lambda: super(_Cursor, self).execute(*arguments))
        return self

    def fetchone(self) -> Any:
        return self.connection.budget.ask(super().fetchone)

    def fetchmany(self, size: int | None = 1000) -> list[Any]:
        size = size or 1000
        budget = self.connection.budget
        if not self.connection.computes:
            return budget.ask(lambda: super(_Cursor, self).fetchmany(size))
        rows: list[Any] = []
        while len(rows) < size:
            count = min(ROWS_AT_ONCE, size - len(rows))
            more = budget.ask(lambda count=count: super(_Cursor, self).fetchmany(count))  # type: ignore[misc]
            budget.count(more)
            rows += more
            if len(more) < count:
                break
        return rows

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        while rows := self.fetchmany():
            yield from rows

    def fetchall(self) -> list[Any]:
        return list(self)


class Connection(sqlite3.Connection):
    """A connection whose statements end; see ``connect``."""

    budget: _Budget
    computes: bool = False  # a view or a generated column makes rows of its own

    def cursor(self, factory: Any = _Cursor) -> Any:
        """A cursor whose rows are counted and whose statements can be interrupted."""
        return super().cursor(factory)

    def execute(self, *arguments: Any) -> Any:
        """Run a statement on a new cursor."""
        return self.cursor().execute(*arguments)


def connect(path: Path, original: Path) -> Connection:
    """A connection that writes nothing to a file from ``settle``; messages name ``original``.

    Statements raise ``NotACaptureError`` beyond the budget and ``KeyboardInterrupt`` on Ctrl-C.
    """
    uri = f"file:{quote(os.fsencode(path.absolute()))}?mode=ro&immutable=1"
    connection = sqlite3.connect(uri, uri=True, check_same_thread=False, factory=Connection)
    try:
        connection.budget = _Budget(original, path.stat().st_size)
        connection.text_factory = decode
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_TEXT)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 1000)
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        connection.set_progress_handler(connection.budget, STEPS_BETWEEN_LOOKS)
        connection.execute("PRAGMA trusted_schema = OFF")
        schema = connection.execute("SELECT type, sql FROM sqlite_master").fetchall()
        if any(kind == "view" or COMPUTED.search(str(sql)) for kind, sql in schema):
            connection.computes = True
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_COMPUTED_TEXT)
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def open_read_only(path: Path) -> Iterator[Connection]:
    """A connection to ``path`` and what lies beside it, for the ``with``; see ``settle`` and ``connect``."""
    settled = settle(path)
    try:
        with closing(connect(settled.path, path)) as connection:
            yield connection
    finally:
        settled.close()


def decode(raw: bytes) -> str:
    """Text as UTF-8; bytes that are not become the replacement character."""
    return raw.decode("utf-8", "replace")
