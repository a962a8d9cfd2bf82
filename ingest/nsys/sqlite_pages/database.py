"""A SQLite file opened so that nothing is ever written (see ``sqlite_files``), with its tables and columns."""

from __future__ import annotations

import re
import sqlite3
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from ....analysis.records.errors import NotACaptureError
from ...sniff import NSYS_EXPORT, SQLITE_MAGIC
from ...sqlite_files import SettledFile, connect, decode, settle

VARIANT = re.compile(r"_V(\d+)$", re.IGNORECASE)
HEADER_BYTES = 100


class Database:
    """A read-only connection with its table and column names; close it, or use it in a ``with``.

    ``notes`` says in one sentence each what was odd about the file itself.
    """

    def __init__(self, path: Path) -> None:
        """Open ``path``; raises ``NotACaptureError`` for a truncated, encrypted or damaged file, and for one that has a
        log beside it and cannot be copied."""
        self.original = path
        self._settled: SettledFile | None = None
        try:
            self._settled = settle(path)
            self.notes = self._settled.notes
            self.path = self._settled.path
            _check_size(self.path, path)
            self.connection = connect(self.path, path)
            self.tables = self._read_tables()
            self.encoding = str(self.connection.execute("PRAGMA encoding").fetchone()[0])
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter: a message of SQLite quoting damaged text
            self.close()
            raise damaged(path, error) from error
        except BaseException:
            self.close()
            raise
        self._columns: dict[str, dict[str, str]] = {}
        self._counts: dict[str, int] = {}

    def __enter__(self) -> Database:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection and remove the temporary copy, if one was made."""
        with suppress(AttributeError, sqlite3.Error):
            self.connection.close()
        if self._settled is not None:
            self._settled.close()

    def _read_tables(self) -> dict[str, str]:
        rows = self.connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')").fetchall()
        return {str(name).lower(): str(name) for (name,) in rows if name}

    def find(self, *names: str) -> str | None:
        """The table of the first of ``names`` that exists, or of its newest variant (``NAME_V3``, ``NAME_V2``) with
        rows, as the file spells it; a table without rows only where no variant has any."""
        empty: str | None = None
        for name in names:
            for candidate in self._variants(name.lower()):
                if self.has_rows(candidate):
                    return candidate
                empty = empty or candidate
        return empty

    def _variants(self, name: str) -> list[str]:
        found = [self.tables[name]] if name in self.tables else []
        versions = [
            (int(match[1]), actual)
            for lowered, actual in self.tables.items()
            if (match := VARIANT.search(lowered)) and lowered[: match.start()] == name
        ]
        return found + [actual for _, actual in sorted(versions, reverse=True)]

    def has_rows(self, table: str) -> bool:
        """Whether the table has any row."""
        return self.connection.execute(f"SELECT 1 FROM {identifier(table)} LIMIT 1").fetchone() is not None

    def columns(self, table: str) -> dict[str, str]:
        """Lower-case column name -> name as the table spells it."""
        if table not in self._columns:
            rows = self.connection.execute(f"PRAGMA table_xinfo({identifier(table)})").fetchall()
            self._columns[table] = {str(row[1]).lower(): str(row[1]) for row in rows}
        return self._columns[table]

    def rows(self, table: str | None, wanted: list[str], where: str = "") -> list[dict[str, object]]:
        """Rows of a *small* table as dicts keyed by the wanted names; a column that is missing gives None."""
        if table is None:
            return []
        actual = self.columns(table)
        selected = ", ".join(identifier(actual[name.lower()]) if name.lower() in actual else "NULL" for name in wanted)
        query = f"SELECT {selected} FROM {identifier(table)} {where}"
        return [dict(zip(wanted, row, strict=True)) for row in self.connection.execute(query)]


def identifier(name: str) -> str:
    """A table or column name quoted for SQL."""
    return '"' + name.replace('"', '""') + '"'


def as_int(value: object) -> int | None:
    """A cell as a 64-bit integer (exports hold some numbers as text), or None."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = int(value) if isinstance(value, (int, float)) else int(str(value).strip())
    except (ValueError, OverflowError):
        return None
    return number if -(2**63) <= number < 2**63 else None


def as_text(value: object) -> str | None:
    """A cell as stripped text, or None where it is NULL or blank."""
    if value is None:
        return None
    text = (decode(value) if isinstance(value, bytes) else str(value)).strip().strip("\x00")
    return text or None


def damaged(path: Path, error: BaseException, intact: str = "") -> NotACaptureError:
    """The error for a file that SQLite itself cannot read."""
    said = "" if isinstance(error, UnicodeDecodeError) else str(error)
    reason = " ".join("".join(letter if letter.isprintable() else " " for letter in said).split())[:120]
    reason = reason or "its schema is unreadable"
    message = f"{path.name} is damaged ({reason})."
    if "not a database" in reason:
        message = f"{path.name} begins like a SQLite database but is not readable as one: damaged or encrypted."
    if intact:
        message += f" {intact}"
    return NotACaptureError(f"{message} Copy it again from where it was made, or export it again: {NSYS_EXPORT}")


def is_sound(database: Database) -> bool:
    """Whether SQLite finds no fault in the structure of the file (it looks at all of it)."""
    try:
        return bool(database.connection.execute("PRAGMA quick_check(1)").fetchone() == ("ok",))
    except sqlite3.Error:
        return False


def _check_size(path: Path, original: Path) -> None:
    """Raise where the file is shorter than its own header says; the message names ``original``."""
    try:
        actual = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(HEADER_BYTES)
    except OSError as error:
        raise NotACaptureError(f"Cannot read {original}: {error.strerror or error}.") from error
    if len(head) < HEADER_BYTES or not head.startswith(SQLITE_MAGIC):
        raise NotACaptureError(
            f"{original.name} is truncated: {actual:,} bytes, less than the header of a SQLite database. "
            f"Copy it again, or export it again: {NSYS_EXPORT}"
        )
    page = int.from_bytes(head[16:18], "big")
    page = 65536 if page == 1 else page
    # The page count is only valid where the writer stamped it (bytes 92..95 equal the change counter 24..27).
    pages = int.from_bytes(head[28:32], "big") if head[24:28] == head[92:96] else 0
    if page and pages * page > actual:
        raise NotACaptureError(
            f"{original.name} is truncated: {actual:,} of {pages * page:,} bytes "
            f"({actual / (pages * page):.0%}). The copy or the export did not finish (disk full, killed, still running?): "
            f"copy it again, or export it again: {NSYS_EXPORT}"
        )
