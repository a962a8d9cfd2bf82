"""Tables as ``nsys stats`` shows them on a terminal, and numbers as a locale writes them.

``--format column`` (the default) puts each column under a run of dashes, ``--format table`` draws boxes. Cells are cut
from the lines by the places of the dashes or of the corners, so that a name may hold any text and a cell may be empty.
Numbers carry the separators of the locale: 1,000.0 or 1.000,0 or 1 000,0. One cell may be read two ways ("1.000"), a
whole table hardly ever, so the separators are told once per table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

import polars as pl

FIRST_COLUMN = r"(?:Time ?\(%\)|Start ?\((?:ns|nsec|us|usec|ms|msec|s|sec)\)|Name)"
_COLUMNS = re.compile(rf"^(?P<header>[ \t]*{FIRST_COLUMN} .*)\n(?P<rule>[ \t]*-{{2,}}(?: +-+)+)[ \t]*$", re.MULTILINE)
_BOX = re.compile(
    rf"^(?P<rule>[ \t]*\+-+(?:\+-+)+\+)[ \t]*\n(?P<header>[ \t]*\| *{FIRST_COLUMN} *\|.*)\n[ \t]*\+-+(?:\+-+)+\+[ \t]*$",
    re.MULTILINE,
)
_TEXTS = ("Name", "Device", "Style", "RangeStack", "GridXYZ", "BlockXYZ")  # what holds blanks and points by itself
_NUMBER = r"^[+-]?\d[\d.,'\u2019\s\u00a0\u202f]*$"
_NO_SEPARATOR = r"['\u2019\s\u00a0\u202f]"  # between thousands, and never a decimal sign
_DECIMAL = r"^[^{d}]*{d}(?:\d{{1,2}}|\d{{4,}})$|{t}\d{{3}}{d}|\d{t}\d{{3}}{t}\d{{3}}"


class MisalignedTableError(ValueError):
    """A table whose cells do not stand in its columns."""


def is_printed(head: str) -> bool:
    """Whether a table of either kind begins in this text."""
    return bool(_COLUMNS.search(head) or _BOX.search(head))


def printed_tables(text: str) -> Iterator[pl.DataFrame]:
    """The tables in what ``nsys stats`` printed, as text columns named by their headers; empty cells are null.

    Raises MisalignedTableError where cells do not stand in the columns, as in text whose blanks were lost.
    """
    found = [(match.start(), False, match) for match in _COLUMNS.finditer(text)]
    found += [(match.start(), True, match) for match in _BOX.finditer(text)]
    for _, boxed, match in sorted(found, key=lambda each: each[0]):
        rule = match["rule"]
        if boxed:
            corners = [at for at, sign in enumerate(rule) if sign == "+"]
            spans = [(left + 1, right) for left, right in pairwise(corners)]
        else:
            corners = []
            spans = [run.span() for run in re.finditer("-+", rule)]
        names = [match["header"][begin:end].strip() for begin, end in spans]
        if not boxed:  # the last column is as wide as its longest cell, which need not be the rule
            spans[-1] = (spans[-1][0], 1 << 30)
        yield _cells(_lines(text, match.end() + 1, boxed=boxed), names, spans, corners)


def _lines(text: str, begin: int, *, boxed: bool) -> pl.Series:
    """The lines of a table's body, from ``begin`` to an empty line or the lower edge of the box."""
    end = re.compile(r"^[ \t]*(?:\+-.*)?$" if boxed else r"^[ \t]*$", re.MULTILINE).search(text, begin)
    body = text[begin : end.start() if end else len(text)].rstrip("\n")
    return pl.Series("line", body.split("\n") if body else [], dtype=pl.String)


def _cells(lines: pl.Series, names: list[str], spans: list[tuple[int, int]], corners: list[int]) -> pl.DataFrame:
    """The cells of all lines by the places of the columns; what stands between columns must be blank or an edge."""
    edges = corners or [place for (_, end), (begin, _) in pairwise(spans) for place in range(end, begin)]
    allowed = "|" if corners else " "
    if edges and not lines.str.slice(0, edges[-1] + 1).str.len_chars().gt(edges[-1]).all():
        raise MisalignedTableError("a line of the table ends before its last column")
    for place in edges:
        if not (lines.str.slice(place, 1) == allowed).all():
            raise MisalignedTableError("cells do not stand under the headers of their columns")
    columns = [
        lines.str.slice(begin, end - begin).str.strip_chars().alias(name)
        for name, (begin, end) in zip(names, spans, strict=True)
    ]
    return pl.DataFrame(columns).with_columns(pl.all().replace("", None))


def with_plain_numbers(table: pl.DataFrame) -> pl.DataFrame:
    """The table with the numbers in its text columns written as Python writes them: 1.000,5 becomes 1000.5.

    Raises ValueError where some cells use a point and others a comma as the decimal sign.
    """
    columns = [
        column
        for column in table
        if column.dtype == pl.String and column.name not in _TEXTS and _all_numbers(column.str.strip_chars())
    ]
    if not columns:
        return table
    bare = [column.str.strip_chars().str.replace_all(_NO_SEPARATOR, "") for column in columns]
    cells = pl.concat([column.alias("cell") for column in bare])
    comma, point = (bool(cells.str.contains(_DECIMAL.format(d=d, t=t)).any()) for d, t in ((",", r"\."), (r"\.", ",")))
    if comma and point:
        raise ValueError("some numbers have a decimal comma and some a decimal point")
    thousands = "." if comma else ","
    return table.with_columns(
        column.str.replace_all(thousands, "", literal=True).str.replace(",", ".", literal=True) for column in bare
    )


def _all_numbers(column: pl.Series) -> bool:
    return column.null_count() < len(column) and bool(column.drop_nulls().str.contains(_NUMBER).all())
