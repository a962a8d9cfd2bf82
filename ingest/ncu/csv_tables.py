"""Nsight Compute results as text: ``ncu --csv --page raw`` and ``ncu --csv --page details``.

The raw page has one row per launch under two header rows (names, units); the details page has one row per launch and
metric, with display labels where a section defines them and raw names under ``Command line profiler metrics``. Neither
is specified beyond NVIDIA's Nsight Compute CLI guide, and both change columns between versions, so everything is read
by header name. The tool's ``==PROF==`` lines and the program's own output may stand before and between the rows; files
may be UTF-16 (written by a Windows shell) or written under a locale with decimal commas. Several outputs joined into
one file, and a SQLite database into which somebody imported such rows, are read too.
"""

from __future__ import annotations

import csv
import io
import re
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path

import polars as pl

from ...analysis.records.errors import NotACaptureError
from ..sqlite_files import open_read_only
from .metrics import Launch, frame_of, wanted
from .printed_values import locale_of

REPORT_MAGIC = b"NVR\x00"
HEADER = re.compile(r'^"?ID"?(?P<separator>[,;\t])"?Process ID"?', re.MULTILINE)
PROFILER_LINE = re.compile(r"^==(?:PROF|WARNING|ERROR)==", re.MULTILINE)
_ROW_START = re.compile(r'^"?\d*"?[,;\t]')
_FULL_ROW_START = re.compile(r'^"\d+"[,;\t]"\d+"[,;\t]"')
_TRIPLE = re.compile(r"\(?\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*\)?")

HOW_TO_EXPORT = "ncu --import FILE.ncu-rep --csv --page raw --print-units base > kernels.csv"


def launches_of(tables: Iterable[Iterable[list[str]]], source_name: str) -> pl.DataFrame:
    """Launches of tables of text (each a header row, then rows); the same launch in two tables is one."""
    launches: dict[tuple[object, ...], Launch] = {}
    for table in tables:
        rows = iter(table)
        header = [cell.strip() for cell in next(rows, [])]
        (_read_details if "Metric Name" in header else _read_raw)(header, rows, launches)
    if not launches:
        raise NotACaptureError(
            f"{source_name}: no profiled launch was understood as Nsight Compute output. Expected the CSV of "
            f'`{HOW_TO_EXPORT}` (header row beginning with "ID"). If ncu printed ERR_NVGPUCTRPERM, it had no '
            "permission to read counters: run it as root or allow it for all users."
        )
    found = list(launches.values())
    texts = [value for launch in found for value, _ in launch.metrics.values()]
    texts += [value for launch in found for values in launch.labels.values() for value, _ in values]
    return frame_of(found, locale_of(texts))


def decode(data: bytes) -> str:
    """Text of a file whose encoding is told by its byte-order mark, UTF-8 otherwise, Latin-1 as a last resort."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace")
    if data[1:2] == b"\x00" and data[:1].isascii():  # UTF-16 without a mark
        return data.decode("utf-16-le", "replace")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("utf-8-sig", "ignore") if len(data) == 65536 else data.decode("latin-1")


def csv_tables(text: str) -> Iterator[Iterator[list[str]]]:
    """The CSV tables of ``text``: from each header line to the next, without lines that are no rows."""
    headers = list(HEADER.finditer(text))
    ends = [*(match.start() for match in headers[1:]), len(text)]
    for match, end in zip(headers, ends, strict=False):
        body = "\n".join(_row_lines(text[match.start() : end]))
        yield csv.reader(io.StringIO(body), delimiter=match["separator"])


def _row_lines(text: str) -> Iterator[str]:
    """Lines that are rows. A quoted field may hold line breaks, so lines are joined until the quotes are even."""
    pending = ""
    for number, line in enumerate(text.splitlines()):
        if pending and not _FULL_ROW_START.match(line):  # else the row before was cut by other output
            pending += "\n" + line
        elif number == 0 or (_ROW_START.match(line) and not PROFILER_LINE.match(line)):
            pending = line
        else:
            continue
        if pending.count('"') % 2 == 0:
            yield pending
            pending = ""


def sqlite_tables(path: Path) -> Iterator[list[list[str]]]:
    """Tables and views of a SQLite file that look like imported CSV rows, as text with a header row."""
    try:
        with open_read_only(path) as connection:
            schema = connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
            for (name,) in schema.fetchall():
                quoted = name.replace('"', '""')
                cursor = connection.execute(f'SELECT * FROM "{quoted}" LIMIT 0')
                header = [_header_name(column[0]) for column in cursor.description]
                if "Kernel Name" in header and ("ID" in header or "Metric Name" in header):
                    rows = connection.execute(f'SELECT * FROM "{quoted}"')
                    yield [header, *([_cell(value) for value in row] for row in rows)]
    except sqlite3.Error as error:
        raise NotACaptureError(f"{path.name} is a SQLite file that cannot be read ({error}).") from error


_KNOWN = (
    "ID", "Process ID", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size", "Device", "CC", "Section Name",
    "Metric Name", "Metric Unit", "Metric Value",
)  # fmt: skip
_BY_PLAIN_NAME = {name.lower().replace(" ", "_"): name for name in _KNOWN}


def _header_name(column: str) -> str:
    """Nsight Compute's spelling of a column that an import may have put in lower case or with underscores."""
    return _BY_PLAIN_NAME.get(column.strip().lower().replace(" ", "_"), column)


def _cell(value: object) -> str:
    return "" if value is None else value if isinstance(value, str) else repr(value)


def _read_details(header: list[str], rows: Iterator[list[str]], launches: dict[tuple[object, ...], Launch]) -> None:
    place = {name: index for index, name in enumerate(header)}
    section, name, unit, value = (place.get(f"{what}", -1) for what in ("Section Name", "Metric Name", "Metric Unit", "Metric Value"))  # fmt: skip
    if value < 0:
        return
    for row in rows:
        if len(row) <= value or not row[name]:  # rows of rules have no metric
            continue
        launch = _launch(row, place, launches)
        if launch is None:
            continue
        entry = (row[value], row[unit] if unit >= 0 else "")
        if "__" in row[name]:
            if wanted(row[name]):
                launch.metrics.setdefault(row[name], entry)
        else:
            launch.labels.setdefault((row[section] if section >= 0 else "", row[name]), []).append(entry)


def _read_raw(header: list[str], rows: Iterator[list[str]], launches: dict[tuple[object, ...], Launch]) -> None:
    place = {name: index for index, name in enumerate(header)}
    metrics = [(index, name) for index, name in enumerate(header) if "__" in name and wanted(name)]
    units = [""] * len(header)
    for row in rows:
        if len(row) < len(header):
            continue
        if "ID" in place and not row[place["ID"]].strip():  # the second header row
            units = row
            continue
        launch = _launch(row, place, launches)
        if launch is not None:
            for index, name in metrics:
                launch.metrics.setdefault(name, (row[index], units[index]))


def _launch(row: list[str], place: dict[str, int], launches: dict[tuple[object, ...], Launch]) -> Launch | None:
    """The launch a row belongs to, made when it is new; None for a row that is none."""

    def cell(name: str) -> str:
        index = place.get(name, -1)
        return row[index].strip() if 0 <= index < len(row) else ""

    identity = _int(cell("ID"))
    if identity is None or not cell("Kernel Name"):
        return None
    key = (identity, cell("Process ID"), cell("Kernel Name"), cell("Grid Size"), cell("Block Size"))
    if key not in launches:
        launches[key] = Launch(
            launch_id=identity,
            process=_int(cell("Process ID")) or 0,
            device=_int(cell("Device")) or 0,
            context=_or_absent(_int(cell("Context"))),
            stream=_or_absent(_int(cell("Stream"))),
            name=cell("Kernel Name"),
            grid=_triple(cell("Grid Size")),
            block=_triple(cell("Block Size")),
            compute_capability=cell("CC") or None,
        )
    return launches[key]


def _int(text: str) -> int | None:
    try:
        number = int(text)
    except ValueError:
        return None
    return number if abs(number) < 1 << 31 else None  # ids and ordinals are 32-bit numbers


def _or_absent(value: int | None) -> int:
    return -1 if value is None else value


def _triple(text: str) -> tuple[int, int, int] | None:
    match = _TRIPLE.fullmatch(text)
    if match is None:
        return None
    axes = (int(match[1]), int(match[2]), int(match[3]))
    return axes if max(axes) < 1 << 31 else None
