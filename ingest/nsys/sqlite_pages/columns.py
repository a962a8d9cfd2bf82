"""Columns of a table, read straight into numpy: from the table's pages, else cell by cell through ``sqlite3``.

Each stretch of pages is copied into its place in the final column as soon as it is read, already narrowed, so a table
is never held twice and its rows keep the order of the file. ``sqlite3`` takes what ``pages`` cannot: views, tables
without row numbers, generated columns, texts in UTF-16, and any table whose pages are not as expected; it also tells
damage.

``benchmarks/read_columns.py``, a million kernels, 23 columns, two cores, medians of three runs: CPU time 0.7 s from the
pages, 1.6 s by connectorx, 2.0 s by ADBC, 4.4 s by ``sqlite3`` and numpy; peak memory 244, 511, 531 and 391 MiB.
"""

from __future__ import annotations

import logging
import re
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import singledispatch
from typing import Any

import numpy as np
import numpy.typing as npt

from ...sqlite_files import decode
from .database import Database, identifier
from .pages import MISSING, Part, UnexpectedPage, find_leaves, read_parts

Integers = npt.NDArray[Any]  # int64 or int32; NULL is MISSING in a 64-bit column, -1 in a 32-bit one
FAST_FROM_ROWS = 2_000  # below this, one query is quicker than walking the tree
CHUNK_ROWS = 50_000  # rows at a time through sqlite3, whose cells are Python objects
IN_CHUNK = 500
MOST_ODD = 0.05  # a larger share of odd rows is read through sqlite3 as a whole
LEAST_ROW_BYTES = 4
CONDITION = re.compile(r"(\w+) IN \((-?\d+(?:,-?\d+)*)\)")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Wanted:
    """A column to read: its name in the file and what becomes of it: 'i64', 'i32' (NULL -1; stays 64 bits wide where
    a value does not fit) or 'text'."""

    source: str
    type: str


@dataclass(frozen=True)
class Coded:
    """A text column: a code per row (-1 for NULL) and the text of each code."""

    codes: npt.NDArray[np.int32]
    texts: list[str]


@dataclass(frozen=True)
class Table:
    """Columns of equal length by name."""

    rows: int
    integers: dict[str, Integers]
    texts: dict[str, Coded]


@singledispatch
def read_columns(database: Database, table: str, wanted: Mapping[str, Wanted], *, where: str = "") -> Table:
    """The ``wanted`` columns of ``table`` in the order of its rows; a column the table lacks reads as NULL in every
    row. ``where`` is a condition in SQL. A database that is no SQLite file registers its own way."""
    actual = database.columns(table)
    present = {name: column for name, column in wanted.items() if column.source.lower() in actual}
    builder = _fast(database, table, present, where) if present else None
    if builder is None:
        builder = _slow(database, table, present, where)
    rows = builder.rows
    absent = {name: column for name, column in wanted.items() if name not in present}
    for name, column in absent.items():
        if column.type == "text":
            builder.texts[name] = Coded(np.full(rows, -1, dtype=np.int32), [])
        else:
            builder.integers[name] = _constant(rows, column.type)
    return Table(rows, builder.integers, builder.texts)


def _constant(rows: int, kind: str) -> Integers:
    """A column that is NULL throughout; it takes no memory."""
    null = np.int32(-1) if kind == "i32" else np.int64(MISSING)
    column: Integers = np.broadcast_to(null, rows)
    return column


@dataclass
class _Built:
    rows: int
    integers: dict[str, Integers]
    texts: dict[str, Coded]


# --------------------------------------------------------------------------------------------------------- pages


def _fast(database: Database, table: str, present: Mapping[str, Wanted], where: str) -> _Built | None:
    """From the pages of the table, or None where that does not apply or the pages are not as expected."""
    condition = CONDITION.fullmatch(where)
    if where and condition is None:
        return None
    layout = _layout(database, table, present, condition)
    if layout is None:
        return None
    try:
        leaves = find_leaves(database.path, layout.root, layout.first_row, layout.last_row)
        sink = _Sink(layout, present, condition)
        read_parts(
            database.path,
            leaves,
            sorted({(layout.places[name], column.type == "text") for name, column in present.items()}),
            lambda begin, part: sink.take(int(leaves.ends[begin - 1]) if begin else layout.first_row - 1, part),
        )
        if sink.odd_rows > MOST_ODD * sink.rows + IN_CHUNK:
            return None
        if not sink.mend(database, table):  # rare: read again, those columns 64 bits wide
            wider = {
                name: Wanted(column.source, "i64") if name in sink.too_wide else column
                for name, column in present.items()
            }
            built = _fast(database, table, wider, where)
            if built is not None:
                for name in sink.too_wide:
                    whole = built.integers[name]
                    built.integers[name] = np.where(whole == MISSING, -1, whole)
            return built
        return sink.built()
    except (UnexpectedPage, OSError) as error:
        log.debug("%s is read through sqlite3: %s", table, error)
        return None


@dataclass(frozen=True)
class _Layout:
    """Where a table begins and how its columns lie."""

    root: int
    first_row: int
    last_row: int
    places: Mapping[str, int]  # name of the Trace -> place of the column in a row
    row_number: int | None  # the place whose value is the row number itself (INTEGER PRIMARY KEY)


def _layout(
    database: Database, table: str, present: Mapping[str, Wanted], condition: re.Match[str] | None
) -> _Layout | None:
    info = database.connection.execute(f"PRAGMA table_xinfo({identifier(table)})").fetchall()
    if any(row[6] for row in info) or "rowid" in database.columns(table):  # generated columns are not stored
        return None
    if any(column.type == "text" for column in present.values()) and database.encoding != "UTF-8":
        return None
    reach = _reach(database, table)
    if reach is None:
        return None
    places = {str(column[1]).lower(): number for number, column in enumerate(info)}
    layout = _Layout(
        *reach,
        {name: places[column.source.lower()] for name, column in present.items()},
        _row_number(database, table, [number for number, column in enumerate(info) if column[5]]),
    )
    as_texts = {layout.places[name] for name, column in present.items() if column.type == "text"}
    as_integers = {layout.places[name] for name, column in present.items() if column.type != "text"}
    if as_texts & as_integers or layout.row_number in as_texts:
        return None
    if condition is not None and places.get(condition[1].lower()) not in as_integers:
        return None
    return layout


def _row_number(database: Database, table: str, keys: list[int]) -> int | None:
    """The column that is the row number under another name and is not stored: a key of one column without an index.

    ``INTEGER PRIMARY KEY`` in any spelling is one; ``INT PRIMARY KEY`` and ``INTEGER PRIMARY KEY DESC`` have an index.
    """
    indexes = database.connection.execute(f"PRAGMA index_list({identifier(table)})").fetchall()
    return keys[0] if len(keys) == 1 and all(row[3] != "pk" for row in indexes) else None


def _reach(database: Database, table: str) -> tuple[int, int, int] | None:
    """Root page, first and last row number; None for what is no table of rows, small, or too sparse to reserve room."""
    execute = database.connection.execute
    root = execute("SELECT rootpage FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)).fetchone()
    if root is None or not isinstance(root[0], int) or root[0] < 1:
        return None
    try:  # asked apart, each is one step down the tree; together they scan the table
        (first,) = execute(f"SELECT min(rowid) FROM {identifier(table)}").fetchone()
        (last,) = execute(f"SELECT max(rowid) FROM {identifier(table)}").fetchone()
    except sqlite3.OperationalError:  # a table WITHOUT ROWID
        return None
    worth_it = first is not None and last - first >= FAST_FROM_ROWS and first > MISSING + 1
    if not worth_it or last - first > database.path.stat().st_size // LEAST_ROW_BYTES:
        return None
    return root[0], first, last


@dataclass
class _Sink:
    """Takes parts of a table, in any order and from two threads, into whole columns."""

    layout: _Layout
    present: Mapping[str, Wanted]
    condition: re.Match[str] | None
    columns: dict[str, Any] = field(default_factory=dict)
    dictionaries: dict[str, dict[int, list[bytes]]] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)  # first row number of a part, less one -> its rows
    odd: list[tuple[int, int]] = field(default_factory=list)  # (place in the column, row number)
    too_wide: set[str] = field(default_factory=set)
    known: dict[str, dict[str, int]] = field(default_factory=dict)  # text columns: code of each text, once all are read
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        room = self.layout.last_row - self.layout.first_row + 1
        for name, column in self.present.items():
            self.columns[name] = np.empty(room, dtype=np.int64 if column.type == "i64" else np.int32)
            if column.type == "text":
                self.dictionaries[name] = {}

    @property
    def rows(self) -> int:
        return sum(self.counts.values())

    @property
    def odd_rows(self) -> int:
        return len(self.odd)

    def take(self, before: int, part: Part) -> None:
        """Copy a part, whose rows follow row number ``before``, into its place."""
        if not part.row_numbers.size:
            return
        first = before - self.layout.first_row + 1
        mask = self._mask(part)
        rows = part.row_numbers.size if mask is None else int(np.count_nonzero(mask))
        for name, column in self.present.items():
            place = self.layout.places[name]
            target = self.columns[name][first : first + rows]
            if column.type == "text":
                codes, texts = part.texts[place]
                target[:] = codes if mask is None else codes[mask]
                self.dictionaries[name][before] = texts
                continue
            values = part.integers[place]
            if place == self.layout.row_number:
                values = part.row_numbers  # whatever is stored there, as SQLite does
            if part.odd.size:
                values = values.copy()
                values[part.odd] = 0  # until they are mended
            values = values if mask is None else values[mask]
            if column.type == "i64":
                target[:] = values
            elif not _narrow_into(target, values):
                self.too_wide.add(name)
        with self.lock:
            self.counts[before] = rows
            self.odd.extend((first + int(row), int(part.row_numbers[row])) for row in part.odd)

    def _mask(self, part: Part) -> npt.NDArray[np.bool_] | None:
        if self.condition is None:
            return None
        if part.odd.size:
            raise UnexpectedPage("odd rows in a table that is read in part")
        name = next(name for name, column in self.present.items() if column.source.lower() == self.condition[1].lower())
        place = self.layout.places[name]
        values = part.row_numbers if place == self.layout.row_number else part.integers[place]
        mask: npt.NDArray[np.bool_] = np.isin(values, [*map(int, self.condition[2].split(","))])
        return mask

    def mend(self, database: Database, table: str) -> bool:
        """Ask SQLite for the odd rows; False where a column turned out too wide for 32 bits."""
        self._join_dictionaries()
        for begin in range(0, len(self.odd), IN_CHUNK):
            chunk = {row: place for place, row in self.odd[begin : begin + IN_CHUNK]}
            query = _query(database, table, {"__row": Wanted("rowid", "i64"), **self.present})
            for row, *cells in database.connection.execute(f"{query} WHERE rowid IN ({','.join(map(str, chunk))})"):
                for (name, column), cell in zip(self.present.items(), cells, strict=True):
                    self._put(name, column, chunk[row], cell)
        return not self.too_wide

    def _put(self, name: str, column: Wanted, place: int, cell: object) -> None:
        if column.type == "text":
            self.columns[name][place] = _code(cell, self.known[name])
            return
        value = _integer(cell)
        if column.type == "i32":
            value = -1 if value == MISSING else value
            if not -(2**31) <= value < 2**31:
                self.too_wide.add(name)
                return
        self.columns[name][place] = value

    def _join_dictionaries(self) -> None:
        """Codes that were given part by part, made codes of one list of texts."""
        for name, by_part in self.dictionaries.items():
            known = self.known[name] = {}
            for before in sorted(by_part):
                own = by_part.pop(before)
                table = np.fromiter((known.setdefault(decode(text), len(known)) for text in own), np.int32, len(own))
                first = before - self.layout.first_row + 1
                codes = self.columns[name][first : first + self.counts[before]]
                codes[:] = np.append(table, np.int32(-1))[codes]  # code -1 (NULL) reads the last

    def built(self) -> _Built:
        """The columns without the unused room that gaps between row numbers left."""
        firsts = [before - self.layout.first_row + 1 for before in sorted(self.counts)]
        counts = [self.counts[before] for before in sorted(self.counts)]
        packed = {name: _packed(column, firsts, counts) for name, column in self.columns.items()}
        texts = {name: Coded(packed.pop(name), list(self.known.pop(name))) for name in self.dictionaries}
        return _Built(self.rows, packed, texts)


def _narrow_into(target: npt.NDArray[np.int32], values: Integers) -> bool:
    """Copy into 32 bits, NULL as -1; False where a value does not fit."""
    if values.dtype.itemsize <= target.dtype.itemsize:
        target[:] = values
        return True
    if values.size and values.strides == (0,):  # one value
        values = values[:1]
    if values.size and int(values.min()) == MISSING:
        values = np.where(values == MISSING, -1, values)
    if values.size and (int(values.min()) < -(2**31) or int(values.max()) >= 2**31):
        return False
    np.copyto(target, values, casting="unsafe")
    return True


def _packed(column: Any, firsts: Sequence[int], counts: Sequence[int]) -> Any:
    """``column`` without the unused room between ranges (row numbers may have gaps)."""
    place = 0
    for first, rows in zip(firsts, counts, strict=True):
        if first != place and rows:
            column[place : place + rows] = column[first : first + rows]
        place += rows
    return column[:place]


# ------------------------------------------------------------------------------------------------------ sqlite3


def _slow(database: Database, table: str, present: Mapping[str, Wanted], where: str) -> _Built:
    chunks: dict[str, list[Any]] = {name: [] for name in present}
    known: dict[str, dict[str, int]] = {name: {} for name, column in present.items() if column.type == "text"}
    rows = 0
    for cells in _cells(database, table, present, where):
        rows += len(cells)
        for (name, column), values in zip(present.items(), zip(*cells, strict=True), strict=False):
            if column.type == "text":
                codes = known[name]
                chunks[name].append(np.fromiter((_code(cell, codes) for cell in values), np.int32, len(cells)))
            else:
                chunks[name].append(_integers(values))
    integers: dict[str, Integers] = {}
    texts: dict[str, Coded] = {}
    for name, column in present.items():
        whole = np.concatenate(chunks.pop(name)) if rows else np.empty(0, dtype=np.int64)
        if column.type == "text":
            texts[name] = Coded(whole.astype(np.int32, copy=False), list(known[name]))
            continue
        integers[name] = whole
        if column.type == "i32":
            narrow = np.empty(whole.size, dtype=np.int32)
            fits = _narrow_into(narrow, whole)
            integers[name] = narrow if fits else np.where(whole == MISSING, -1, whole)
    return _Built(rows, integers, texts)


def _cells(database: Database, table: str, present: Mapping[str, Wanted], where: str) -> Iterator[list[Any]]:
    cursor = database.connection.execute(f"{_query(database, table, present)} {_where(where)}")
    while rows := cursor.fetchmany(CHUNK_ROWS):
        yield rows


def _integers(cells: tuple[Any, ...]) -> npt.NDArray[np.int64]:
    """Cells of any SQLite type as int64; what is no integer, or none that fits, becomes MISSING."""
    if set(map(type, cells)) == {int}:  # the usual case; numpy would read a blob as the number it spells
        return np.array(cells, dtype=np.int64)
    return np.fromiter((_integer(cell) for cell in cells), np.int64, len(cells))


def _integer(cell: object) -> int:
    if isinstance(cell, int):
        return cell
    if cell is None or isinstance(cell, bytes):
        return MISSING
    try:
        number = int(cell) if isinstance(cell, float) else int(str(cell))
    except (ValueError, OverflowError):
        return MISSING
    return number if -(2**63) <= number < 2**63 else MISSING


def _code(cell: object, known: dict[str, int]) -> int:
    if cell is None:
        return -1
    text = decode(cell) if isinstance(cell, bytes) else str(cell)
    return known.setdefault(text, len(known))


# -------------------------------------------------------------------------------------------------------- shared


def _query(database: Database, table: str, present: Mapping[str, Wanted]) -> str:
    actual = {"rowid": "rowid", **database.columns(table)}
    selected = [
        f"{identifier(actual[column.source.lower()])} AS {identifier(name)}" for name, column in present.items()
    ]
    # An index that somebody added has another order than the rows.
    return f"SELECT {', '.join(selected) or 'NULL'} FROM {identifier(table)} NOT INDEXED"


def _where(*conditions: str) -> str:
    given = [f"({condition})" for condition in conditions if condition]
    return f"WHERE {' AND '.join(given)}" if given else ""


__all__ = ["MISSING", "Coded", "Integers", "Table", "Wanted", "read_columns"]
