"""Folders of Parquet or Arrow files, one per table: ``nsys export --type parquetdir`` and ``--type arrowdir``.

The files have the names and columns of the SQLite export (Nsight Systems User Guide, "Exported Data"), so what is read
and what it means is the business of the ``nsys`` package; here a folder answers the questions that package puts to a
database. The fastest way in: columns are columns already.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import polars as pl

from ...analysis.records.errors import NotACaptureError, TraceAnalyzeError
from ...analysis.records.trace import Trace
from .reader import trace_of
from .sqlite_pages.columns import MISSING, Coded, Integers, Table, Wanted, read_columns
from .sqlite_pages.database import Database, identifier

FORMATS: Mapping[str, str] = MappingProxyType({".parquet": "nsys_parquet", ".arrow": "nsys_arrow"})
_TABLE = re.compile(r"^(?:StringIds|CUPTI_ACTIVITY_KIND_|TARGET_INFO_|NVTX_EVENTS|META_DATA_EXPORT)", re.IGNORECASE)
_PRAGMA = re.compile(r'PRAGMA table_info\("(?P<table>.*)"\)')
HOW_TO_EXPORT = "nsys export --type parquetdir --output run_pqtdir run.nsys-rep"


def sniff(path: Path, head: bytes) -> bool:
    """Whether ``path`` is a folder with a table of Nsight Systems as a Parquet or Arrow file."""
    return path.is_dir() and any(True for _ in _table_files(path))


def read(path: Path, *, progress: Callable[[str], None] | None = None) -> Trace:
    """Read the folder as a capture.

    Raises NotACaptureError when a file is damaged, CannotAnswerError when there are neither kernels nor whole-graph
    launches.
    """
    with Folder(path) as folder:
        try:
            trace = trace_of(folder, progress)
        except TraceAnalyzeError as error:
            raise folder.broken or error from error
        return replace(trace, capture=replace(trace.capture, format=folder.format))


def _table_files(path: Path) -> Iterator[Path]:
    for file in sorted(path.iterdir()):
        if file.suffix.lower() in FORMATS and _TABLE.match(file.stem) and file.is_file():
            yield file


class Folder(Database):
    """A folder of table files with the interface of a database."""

    def __init__(self, path: Path) -> None:
        """Look at the schemas of all files; raises NotACaptureError for one that cannot be opened."""
        self.original = self.path = path
        self.notes: list[str] = []
        self.broken: NotACaptureError | None = None  # the file that could not be read, once one was met
        self._copy = None
        self._frames: dict[str, pl.LazyFrame] = {}
        self._schemas: dict[str, pl.Schema] = {}
        files = sorted(file for file in path.iterdir() if file.suffix.lower() in FORMATS and file.is_file())
        self.format = FORMATS[next(_table_files(path)).suffix.lower()]
        for file in files:
            if FORMATS[file.suffix.lower()] == self.format:
                self._open(file)
        self.tables = {name.lower(): name for name in self._frames}

    def _open(self, file: Path) -> None:
        try:
            frame = pl.scan_parquet(file) if self.format == "nsys_parquet" else _scan_arrow(file)
            schema = frame.collect_schema()
        except (OSError, pl.exceptions.PolarsError) as error:
            raise self._damaged(file.name, error) from error
        self._frames[file.stem] = frame.select(
            _plain(pl.col(name), dtype).alias(name) for name, dtype in schema.items()
        )
        self._schemas[file.stem] = schema

    def _damaged(self, what: str, error: BaseException) -> NotACaptureError:
        return NotACaptureError(
            f"{self.original.name}: {what} is damaged or cut off ({error}). Copy the folder again, or export it again: "
            f"{HOW_TO_EXPORT}"
        )

    def __enter__(self) -> Folder:
        return self

    def close(self) -> None:
        """Nothing is held open."""

    def columns(self, table: str) -> dict[str, str]:
        """Lower-case column name -> name as the file spells it."""
        return {name.lower(): name for name in self._schemas[table]}

    def has_rows(self, table: str) -> bool:
        """Whether the table has any row."""
        return self.collect(self._frames[table].head(1)).height > 0

    def rows(self, table: str | None, wanted: list[str], where: str = "") -> list[dict[str, object]]:
        """Rows of a small table as dicts keyed by the wanted names; a column that is missing gives None."""
        if table is None:
            return []
        actual = self.columns(table)
        frame = self._frames[table]
        if where:
            frame = frame.filter(pl.sql_expr(where.removeprefix("WHERE ")))
        present = [pl.col(actual[name.lower()]).alias(name) for name in wanted if name.lower() in actual]
        absent = dict.fromkeys(wanted)
        found = self.collect(frame.select(present)) if present else pl.DataFrame()
        return [absent | row for row in found.iter_rows(named=True)]

    def collect(self, frame: pl.LazyFrame) -> pl.DataFrame:
        """Read; a file that turns out to be damaged is remembered for the message."""
        try:
            return frame.collect()
        except (OSError, pl.exceptions.ComputeError) as error:
            self.broken = self._damaged("a table", error)
            raise self.broken from error

    @cached_property
    def connection(self) -> Any:  # type: ignore[override]
        """Answers the few statements of SQL that the ``nsys`` package asks of small tables."""
        return _Connection(self)

    def column_values(self, table: str, present: Mapping[str, Wanted], where: str) -> pl.DataFrame:
        """The columns of ``table`` under the names asked for."""
        actual = self.columns(table)
        frame = self._frames[table]
        if where:
            frame = frame.filter(pl.sql_expr(where))
        return self.collect(
            frame.select(pl.col(actual[want.source.lower()]).alias(name) for name, want in present.items())
        )


class _Connection:
    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def execute(self, query: str) -> _Cursor:
        pragma = _PRAGMA.match(query)
        if pragma:
            names = self._folder.columns(pragma["table"]).values()
            return _Cursor([(place, name, "", 0, None, 0) for place, name in enumerate(names)])
        if query.startswith("PRAGMA"):  # the structure of a folder is sound when its files open
            return _Cursor([("ok",)])
        context = pl.SQLContext(frames=self._folder._frames)
        try:
            return _Cursor(self._folder.collect(context.execute(query)).rows())
        except pl.exceptions.SQLInterfaceError:  # what SQLite understands and this dialect does not
            return _Cursor(self._through_sqlite(query))

    def _through_sqlite(self, query: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(":memory:")) as connection:
            for name in self._folder.tables.values():
                if identifier(name) in query:
                    frame = self._folder.collect(self._folder._frames[name])
                    columns = ", ".join(identifier(column) for column in frame.columns)
                    connection.execute(f"CREATE TABLE {identifier(name)} ({columns})")
                    places = ", ".join("?" for _ in frame.columns)
                    connection.executemany(f"INSERT INTO {identifier(name)} VALUES ({places})", frame.iter_rows())
            return connection.execute(query).fetchall()


class _Cursor:
    def __init__(self, rows: list[tuple[Any, ...]]) -> None:
        self._rows = iter(rows)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return self._rows

    def fetchone(self) -> tuple[Any, ...] | None:
        return next(self._rows, None)

    def fetchall(self) -> list[tuple[Any, ...]]:
        return list(self._rows)


@read_columns.register
def _read_columns_of_folder(database: Folder, table: str, wanted: Mapping[str, Wanted], *, where: str = "") -> Table:
    actual = database.columns(table)
    present = {name: column for name, column in wanted.items() if column.source.lower() in actual}
    frame = database.column_values(table, present, where)
    rows = frame.height if present else database.collect(database._frames[table].select(pl.len())).item()
    integers: dict[str, Integers] = {}
    texts: dict[str, Coded] = {}
    for name, column in wanted.items():
        if column.type == "text":
            texts[name] = _coded(frame[name]) if name in present else Coded(np.full(rows, -1, dtype=np.int32), [])
        elif name in present:
            integers[name] = _integers(frame[name], column.type)
        else:  # NULL throughout, without taking memory
            integers[name] = np.broadcast_to(np.int32(-1) if column.type == "i32" else np.int64(MISSING), rows)
    return Table(rows, integers, texts)


def _integers(values: pl.Series, kind: str) -> Integers:
    """int32 with -1 for NULL where all values fit, else int64 with MISSING."""
    if values.dtype.is_integer() or values.dtype == pl.Boolean:
        wide = values.cast(pl.Int64)
    else:
        wide = values.cast(pl.Int64, strict=False)
    if kind == "i32":
        filled = wide.fill_null(-1)
        low, high = filled.min(), filled.max()
        if low is None or (int(low) >= -(1 << 31) and int(high) < 1 << 31):  # type: ignore[arg-type]
            return filled.cast(pl.Int32).to_numpy(writable=True)
        return filled.to_numpy(writable=True)
    return wide.fill_null(MISSING).to_numpy(writable=True)


def _coded(values: pl.Series) -> Coded:
    distinct = values.drop_nulls().unique(maintain_order=True)
    codes = values.replace_strict(
        distinct, pl.Series(range(len(distinct)), dtype=pl.Int32), default=-1, return_dtype=pl.Int32
    )
    return Coded(codes.fill_null(-1).to_numpy(writable=True), distinct.to_list())


def _plain(column: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """The column as SQLite would hold it: signed 64-bit numbers, and text."""
    if dtype == pl.UInt64:  # ids whose top bit is set are negative there
        return column.reinterpret(signed=True)
    if dtype.is_temporal():
        return column.to_physical()
    if dtype in (pl.Categorical, pl.Enum):
        return column.cast(pl.String)
    return column


def _scan_arrow(file: Path) -> pl.LazyFrame:
    try:
        frame = pl.scan_ipc(file)
        frame.collect_schema()
        return frame
    except (OSError, pl.exceptions.PolarsError):
        return pl.read_ipc_stream(file).lazy()  # the stream form of the format has no footer
