"""Tables: columns of text with the raw values beside them, so that a page can sort, filter and copy them.

A table shows its first rows in the page itself (print, no script) and ships all its rows, up to a budget, in one
compressed block that the page unpacks. Nothing of it is markup: names stay text on both roads.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any

import orjson

from ...analysis.numeric import number_text as fmt
from ..short_names import distinct_names, shorten

ROWS_IN_PAGE = 25  # rows that are there without script and in print
MAX_ROWS = 5_000
MAX_BYTES = 1_200_000  # of one table's text before compression
MAX_NAME = 1_000  # characters of a kernel name that a page carries


@dataclass(frozen=True)
class Column:
    """One column: its texts, and where they are numbers the raw values that sort and copy.

    ``kind``: 'text', 'number', 'phase' (shown with its colour), 'name' (title on hover), 'link' (to ``#text``).
    """

    key: str
    label: str
    unit: str = ""
    kind: str = "text"
    text: Sequence[str] = ()
    raw: Sequence[float | int | None] | None = None
    title: Sequence[str] | None = None  # hover: raw name, or why a number is not known
    help: str = ""
    minor: bool = False  # left out in print, where the width is short

    @property
    def is_number(self) -> bool:
        """Whether the column is right-aligned and sorts by value."""
        return self.raw is not None


@dataclass(frozen=True)
class Table:
    """A table of equally long columns. ``anchors`` give rows an id that a link can name."""

    id: str
    caption: str
    columns: Sequence[Column]
    total: int  # rows there are; more than rows shipped where the budget cut them
    anchors: Sequence[str] | None = None
    note: str = ""
    rows_in_page: int = ROWS_IN_PAGE
    plain: bool = False  # no toolbar, nothing shipped: a short table that only reads
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def height(self) -> int:
        """Rows shipped."""
        return len(self.columns[0].text) if self.columns else 0

    def page_rows(self) -> Iterable[tuple[str, list[dict[str, str]]]]:
        """(anchor, cells) of the rows that stand in the page."""
        for row in range(min(self.height, self.rows_in_page)):
            yield (self.anchors[row] if self.anchors else ""), [cell(column, row) for column in self.columns]


def cell(column: Column, row: int) -> dict[str, str]:
    """What the template needs to draw one cell."""
    return {
        "text": column.text[row],
        "title": column.title[row] if column.title else "",
        "kind": column.kind,
        "class": "n" if column.is_number else "name" if column.kind == "name" else "text",
        "minor": " minor" if column.minor else "",
    }


def numbers(
    key: str,
    label: str,
    values: Sequence[Any],
    *,
    unit: str = "",
    show: Callable[[Any], str] = fmt.number,
    reasons: Sequence[str] | None = None,
    help: str = "",
) -> Column:
    """A column of numbers; a null shows as a dash whose hover text is the reason."""
    clean = list(values)
    if not all(type(v) is int or (type(v) is float and isfinite(v)) for v in clean):
        clean = [v if fmt.is_known(v) else None for v in clean]
    title = None
    if None not in clean:
        text = list(map(show, clean))
    else:
        text = ["–" if v is None else show(v) for v in clean]
        why = reasons or [""] * len(clean)
        title = [
            (fmt.NOT_KNOWN + (f": {w}" if w else "")) if v is None else "" for v, w in zip(clean, why, strict=True)
        ]
    return Column(key, label, unit, "number", text, clean, title, help)


def texts(key: str, label: str, values: Sequence[Any], *, kind: str = "text", help: str = "") -> Column:
    """A column of words; null and '' show as a dash."""
    return Column(key, label, "", kind, ["–" if v is None or v == "" else str(v) for v in values], help=help)


def names(key: str, label: str, short: Sequence[str], full: Sequence[str], *, limit: int = 60) -> Column:
    """A column of kernel names: the readable name cut to ``limit`` and told apart, the whole one on hover."""
    text = distinct_names(short, full, limit)
    return Column(key, label, "", "name", text, title=[shorten(f, MAX_NAME) for f in full])


def minor(columns: Iterable[Column], *keys: str) -> list[Column]:
    """The columns, those with these keys marked as left out in print."""
    return [replace(column, minor=True) if column.key in keys else column for column in columns]


def si(unit: str) -> Callable[[Any], str]:
    """How a column of large amounts shows: with an SI prefix and ``unit``."""
    return lambda value: fmt.scaled(value, unit)


def within_budget(widths: Iterable[int], *, rows: int = MAX_ROWS, size: int = MAX_BYTES) -> int:
    """How many leading rows fit: ``widths`` are the rows' sizes in bytes."""
    used = count = 0
    for width in widths:
        used += width
        if count >= rows or used > size:
            break
        count += 1
    return count


def packed(tables: Iterable[Table]) -> str:
    """All tables as deflated JSON in base64; the page's ``tables.js`` is the other end."""
    content = {table.id: _payload(table) for table in tables if not table.plain and table.height}
    return base64.b64encode(zlib.compress(orjson.dumps(content), 6)).decode("ascii")


def _payload(table: Table) -> dict[str, Any]:
    columns = []
    for column in table.columns:
        entry: dict[str, Any] = {"key": column.key, "kind": column.kind, "text": column.text}
        if column.minor:
            entry["minor"] = True
        if column.raw is not None:
            entry["raw"] = column.raw
        if column.title is not None:
            entry["title"] = column.title
        columns.append(entry)
    return {"columns": columns, "anchors": table.anchors, "total": table.total}
