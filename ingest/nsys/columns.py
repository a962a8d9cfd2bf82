"""Columns of a table, read straight into numpy: connectorx on ranges of rows, two at a time, else ``sqlite3``.

Each range is copied into its place in the final column as soon as it is read, already narrowed, so a table is never
held twice and its rows keep the order of the file (connectorx's own partitions come back interleaved).

connectorx opens databases read-write unless the name is a URI, and loses a bare colon: hence the escaped
``file%3A...%3Fmode=ro``. It fails on cells that are not of their column's declared type and on text that is not
UTF-8, and knows only usual type names; every such table falls back to ``sqlite3``, which takes any SQLite value.
``benchmarks/read_columns.py`` measures the roads side by side.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import singledispatch
from types import ModuleType
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from .database import Database, decode, identifier

Integers = npt.NDArray[Any]  # int64 or int32
MISSING = int(np.iinfo(np.int64).min)  # NULL in a 64-bit column; 32-bit ones have -1
FAST_FROM_ROWS = 20_000  # below this, starting connectorx costs more than it saves
RANGE_ROWS = 50_000  # less than one batch of connectorx (65,536)
CHUNK_ROWS = 50_000  # rows at a time through sqlite3, whose cells are Python objects
LEAST_ROW_BYTES = 4
FAST_TYPES = frozenset({"INTEGER", "TEXT", "REAL"})

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


# ---------------------------------------------------------------------------------------------------- connectorx


def _fast(database: Database, table: str, present: Mapping[str, Wanted], where: str) -> _Built | None:
    """Through connectorx, or None where the table is small, has odd types or no row numbers, or connectorx fails."""
    ranges = _row_ranges(database, table, present)
    if not ranges:
        return None
    low = ranges[0][0]
    space = ranges[-1][1] - low + 1
    columns: dict[str, Any] = {
        name: np.empty(space, dtype=np.int64 if column.type == "i64" else np.int32) for name, column in present.items()
    }
    dictionaries: dict[str, dict[int, list[str]]] = {name: {} for name in present if present[name].type == "text"}
    too_wide: set[str] = set()
    query = _query(database, table, present)
    source = "sqlite://" + quote(database.uri, safe="/")
    connectorx = _connectorx()

    def read(first_last: tuple[int, int]) -> int:
        first, last = first_last
        condition = _where(f"rowid BETWEEN {first} AND {last}", where)
        arrow = connectorx.read_sql(source, f"{query} {condition}", return_type="arrow")
        for name, column in present.items():
            place = first - low
            if column.type == "text":
                encoded = arrow.column(name).combine_chunks().dictionary_encode()
                codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
                columns[name][place : place + len(codes)] = codes
                dictionaries[name][first] = encoded.dictionary.to_pylist()
                continue
            for chunk in arrow.column(name).chunks:
                if str(chunk.type) != "int64":
                    raise TypeError(f"{name} came as {chunk.type}")
                values = (chunk.fill_null(MISSING) if chunk.null_count else chunk).to_numpy(zero_copy_only=False)
                if column.type == "i32" and not _narrow_into(columns[name][place : place + len(values)], values):
                    too_wide.add(name)
                elif column.type == "i64":
                    columns[name][place : place + len(values)] = values
                place += len(values)
        return int(arrow.num_rows)

    try:
        with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
            counts = list(pool.map(read, ranges))
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # a panic of the Rust side derives from BaseException
        log.debug("connectorx could not read %s: %s", table, error)
        return None
    if too_wide:  # rare: read again, all of them 64 bits wide
        return _fast(
            database, table, {n: Wanted(c.source, "i64") if n in too_wide else c for n, c in present.items()}, where
        )
    firsts = [first - low for first, _ in ranges]
    texts = {
        name: _one_code(columns.pop(name), by_range, ranges, low, counts) for name, by_range in dictionaries.items()
    }
    rows = sum(counts)
    return _Built(
        rows,
        {name: _packed(column, firsts, counts) for name, column in columns.items()},
        {name: Coded(_packed(coded.codes, firsts, counts), coded.texts) for name, coded in texts.items()},
    )


def _narrow_into(target: npt.NDArray[np.int32], values: npt.NDArray[np.int64]) -> bool:
    """Copy into 32 bits, NULL as -1; False where a value does not fit."""
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


def _one_code(
    codes: npt.NDArray[np.int32],
    by_range: Mapping[int, list[str]],
    ranges: Sequence[tuple[int, int]],
    low: int,
    counts: Sequence[int],
) -> Coded:
    """Codes that were given range by range, as codes of one list of texts."""
    known: dict[str, int] = {}
    for (first, _), rows in zip(ranges, counts, strict=True):
        own = by_range.get(first, [])
        table = np.fromiter((known.setdefault(text, len(known)) for text in own), dtype=np.int32, count=len(own))
        table = np.append(table, np.int32(-1))  # code -1 (NULL) reads the last
        part = codes[first - low : first - low + rows]
        part[:] = table[part]
    return Coded(codes, list(known))


def _connectorx() -> ModuleType:
    """connectorx, whose own log on stderr (of failures we handle) is kept quiet."""
    level = os.environ.get("RUST_LOG")
    os.environ["RUST_LOG"] = "off"
    try:
        import connectorx
    finally:
        os.environ.pop("RUST_LOG")
        if level is not None:
            os.environ["RUST_LOG"] = level
    module: ModuleType = connectorx
    return module


def _row_ranges(database: Database, table: str, present: Mapping[str, Wanted]) -> list[tuple[int, int]]:
    """Ranges of row numbers to read; empty where the fast road does not apply."""
    execute = database.connection.execute
    declared = {str(row[1]).lower(): str(row[2]).upper() for row in execute(f"PRAGMA table_info({identifier(table)})")}
    if any(declared.get(column.source.lower()) not in FAST_TYPES for column in present.values()):
        return []
    if "rowid" in database.columns(table):
        return []
    try:  # asked apart, each is one step down the tree; together they scan the table
        (low,) = execute(f"SELECT min(rowid) FROM {identifier(table)}").fetchone()
        (high,) = execute(f"SELECT max(rowid) FROM {identifier(table)}").fetchone()
    except sqlite3.OperationalError:  # a view, or a table WITHOUT ROWID
        return []
    if low is None or high - low < FAST_FROM_ROWS:
        return []
    if high - low > database.path.stat().st_size // LEAST_ROW_BYTES:  # row numbers too sparse to reserve room for
        return []
    parts = max(2, (high - low) // RANGE_ROWS + 1)
    step = (high - low) // parts + 1
    return [(first, min(high, first + step - 1)) for first in range(low, high + 1, step)]


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
    try:
        return np.array(cells, dtype=np.int64)  # the usual case; a NULL, text or blob raises
    except (TypeError, ValueError, OverflowError):
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
    actual = database.columns(table)
    selected = [
        f"{identifier(actual[column.source.lower()])} AS {identifier(name)}" for name, column in present.items()
    ]
    return f"SELECT {', '.join(selected) or 'NULL'} FROM {identifier(table)}"


def _where(*conditions: str) -> str:
    given = [f"({condition})" for condition in conditions if condition]
    return f"WHERE {' AND '.join(given)}" if given else ""


__all__ = ["MISSING", "Coded", "Integers", "Table", "Wanted", "read_columns"]
