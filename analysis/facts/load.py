"""The one road from a table of facts to Python: parsed once, from the folder of this file, and checked row by row."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ..records.errors import UsageError

FOLDER = Path(__file__).parent

Row = TypeVar("Row", bound=msgspec.Struct)


@cache
def load_table(name: str) -> dict[str, Any]:
    """The content of ``name``.toml. Raises FileNotFoundError for a table that does not exist."""
    return tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))


def read_user_file(flag: str, path: Path) -> dict[str, Any]:
    """The content of a TOML file that the user named with ``flag``. Raises UsageError for one that cannot be read."""
    try:
        return tomllib.loads(path.read_text("utf-8-sig"))
    except OSError as error:
        raise UsageError(f"{flag} {path.name}: {error.strerror or error}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{flag} {path.name} is not TOML: {error}.") from error


def load_rows(name: str, section: str, kind: type[Row]) -> tuple[Row, ...]:
    """The rows ``[[section]]`` of ``name``.toml, each checked to be a ``kind``.

    Raises ValueError that says file, section, row (from 1), key and what was expected.
    """
    return check_rows(load_table(name).get(section), kind, f"{name}.toml, [[{section}]]")


def check_rows(rows: object, kind: type[Row], where: str) -> tuple[Row, ...]:
    """``rows`` of a parsed file as ``kind``. Raises ValueError, which begins with ``where`` and the row's number."""
    if not isinstance(rows, list):
        raise ValueError(f"{where}: no such list of rows")
    return tuple(_check_row(row, kind, f"{where} row {number}") for number, row in enumerate(rows, start=1))


def _check_row(row: object, kind: type[Row], where: str) -> Row:
    try:
        return msgspec.convert(row, kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"{where}: {error}") from error
