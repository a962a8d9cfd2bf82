"""Columns of a table, read straight into polars: connectorx on two ranges of rows at once, else ``sqlite3``.

connectorx opens databases read-write unless the name is a URI, and loses a bare colon: hence the escaped
``file%3A...%3Fmode=ro``. It fails on cells that are not of their column's declared type and on text that is not
UTF-8, panics on some, and knows only usual type names; every such case falls back to ``sqlite3``, which takes any
SQLite value. ``benchmarks/read_columns.py`` measures the roads side by side.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Mapping
from urllib.parse import quote

import polars as pl

from .database import Database, identifier

FAST_FROM_ROWS = 20_000  # below this, starting connectorx costs more than it saves
CHUNK_ROWS = 250_000  # rows held as wide columns at once; narrowed before the next are read
FAST_TYPES = frozenset({"INTEGER", "TEXT", "REAL"})
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

log = logging.getLogger(__name__)


def read_columns(
    database: Database, table: str, wanted: Mapping[str, pl.DataType | type[pl.DataType]], *, where: str = ""
) -> pl.DataFrame:
    """The ``wanted`` columns of ``table`` (pl.Int64, pl.Float64 or pl.String), NULL as null; a column the table lacks
    is all null. ``where`` is a condition in SQL. Rows keep the order of the file."""
    actual = database.columns(table)
    present = {name: actual[name.lower()] for name in wanted if name.lower() in actual}
    if not present:
        count = database.connection.execute(f"SELECT count(*) FROM {identifier(table)} {_where(where)}").fetchone()[0]
        return pl.DataFrame({name: pl.Series(name, [None] * count, dtype=dtype) for name, dtype in wanted.items()})
    frame = _fast(database, table, present, wanted, where)
    if frame is None:
        frame = _slow(database, table, present, wanted, where)
    missing = [pl.lit(None, dtype=dtype).alias(name) for name, dtype in wanted.items() if name not in present]
    return frame.with_columns(missing).select(list(wanted))


def _where(*conditions: str) -> str:
    given = [f"({condition})" for condition in conditions if condition]
    return f"WHERE {' AND '.join(given)}" if given else ""


def _fast(
    database: Database, table: str, present: Mapping[str, str], wanted: Mapping[str, object], where: str
) -> pl.DataFrame | None:
    """Through connectorx, or None where the table is small, has odd types or no row numbers, or connectorx fails."""
    ranges = _row_ranges(database, table, present)
    if not ranges:
        return None
    selected = ", ".join(f"{identifier(column)} AS {identifier(name)}" for name, column in present.items())
    queries = [
        f"SELECT {selected} FROM {identifier(table)} {_where(f'rowid BETWEEN {low} AND {high}', where)}"
        for low, high in ranges
    ]
    source = "sqlite://" + quote(database.uri, safe="/")
    try:
        import connectorx

        arrow = connectorx.read_sql(source, queries, return_type="arrow")
        frame = pl.from_arrow(arrow)
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # a panic of the Rust side derives from BaseException
        log.debug("connectorx could not read %s: %s", table, error)
        return None
    assert isinstance(frame, pl.DataFrame)
    if any(frame.schema[name] != wanted[name] for name in present):
        return None
    return frame


def _row_ranges(database: Database, table: str, present: Mapping[str, str]) -> list[tuple[int, int]]:
    """Row-number ranges to read at once; empty where the fast road does not apply."""
    declared = {
        str(row[1]): str(row[2]).upper()
        for row in database.connection.execute(f"PRAGMA table_info({identifier(table)})").fetchall()
    }
    if any(declared.get(column) not in FAST_TYPES for column in present.values()):
        return []
    if "rowid" in database.columns(table):
        return []
    try:
        low, high = database.connection.execute(f"SELECT min(rowid), max(rowid) FROM {identifier(table)}").fetchone()
    except sqlite3.OperationalError:  # a view, or a table WITHOUT ROWID
        return []
    if low is None or high - low < FAST_FROM_ROWS:
        return []
    parts = max(1, min(os.cpu_count() or 1, 4))
    step = (high - low) // parts + 1
    return [(low + i * step, min(high, low + (i + 1) * step - 1)) for i in range(parts)]


def _slow(
    database: Database,
    table: str,
    present: Mapping[str, str],
    wanted: Mapping[str, pl.DataType | type[pl.DataType]],
    where: str,
) -> pl.DataFrame:
    selected = ", ".join(identifier(column) for column in present.values())
    cursor = database.connection.execute(f"SELECT {selected} FROM {identifier(table)} {_where(where)}")
    frames = []
    while rows := cursor.fetchmany(CHUNK_ROWS):
        columns = zip(*rows, strict=True)
        frames.append(
            pl.DataFrame([_series(name, wanted[name], cells) for name, cells in zip(present, columns, strict=True)])
        )
    if not frames:
        return pl.DataFrame(schema={name: wanted[name] for name in present})
    return pl.concat(frames)


def _series(name: str, dtype: pl.DataType | type[pl.DataType], cells: tuple[object, ...]) -> pl.Series:
    """A column of cells of any SQLite type; a cell that does not fit becomes null."""
    try:
        return pl.Series(name, cells, dtype=dtype, strict=True)
    except (TypeError, OverflowError, pl.exceptions.PolarsError):
        return pl.Series(name, [_fitted(cell, dtype) for cell in cells], dtype=dtype)


def _fitted(cell: object, dtype: pl.DataType | type[pl.DataType]) -> object:
    if cell is None:
        return None
    if dtype == pl.String:
        return cell.decode("utf-8", "replace") if isinstance(cell, bytes) else str(cell)
    try:
        number = float(cell) if dtype == pl.Float64 else int(float(cell) if isinstance(cell, float) else cell)  # type: ignore[arg-type, call-overload]
    except (TypeError, ValueError, OverflowError):
        return None
    return number if dtype == pl.Float64 or INT64_MIN <= number <= INT64_MAX else None
