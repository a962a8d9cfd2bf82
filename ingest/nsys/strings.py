"""Names and texts: ids of ``StringIds`` and free text become dense ids of the Trace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from ...analysis.records.trace import NAMES, TEXTS
from .sqlite_pages.database import Database, as_int, as_text, identifier

IN_CHUNK = 500
MOST_LOOKED_UP = 10_000  # above this, one pass over the table is cheaper than looking up each id
LOOKUP_LIMIT = 8_000_000  # ids below this are mapped through a table instead of a sort


class Strings:
    """The ``StringIds`` of a file, looked up for the ids that are used (the table may hold a million symbols)."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._table = database.find("StringIds")

    def values(self, ids: npt.NDArray[Any]) -> dict[int, str]:
        """Text of each id that has a row; dangling ids are absent from the answer."""
        wanted = np.unique(ids[ids >= 0])
        if self._table is None or wanted.size == 0:
            return {}
        columns = self._database.columns(self._table)
        if "id" not in columns or "value" not in columns:
            return {}
        query = f"SELECT {identifier(columns['id'])}, {identifier(columns['value'])} FROM {identifier(self._table)}"
        if wanted.size > MOST_LOOKED_UP or not self._indexed():
            asked = set(wanted.tolist())
            return {key: text for key, text in self._texts(query) if key in asked}
        found: dict[int, str] = {}
        for begin in range(0, wanted.size, IN_CHUNK):
            chunk = ",".join(map(str, wanted[begin : begin + IN_CHUNK].tolist()))
            found.update(self._texts(f"{query} WHERE {identifier(columns['id'])} IN ({chunk})"))
        return found

    def _texts(self, query: str) -> Iterator[tuple[int, str]]:
        for key, value in self._database.connection.execute(query):
            number = as_int(key)
            if number is not None:
                yield number, as_text(value) or ""

    def _indexed(self) -> bool:
        info = self._database.connection.execute(f"PRAGMA table_info({identifier(str(self._table))})").fetchall()
        return any(str(row[1]).lower() == "id" and row[5] for row in info)


def dense(values: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32]]:
    """Distinct values in ascending order, and for each value its place among them (uint32)."""
    if values.size == 0:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.uint32)
    low, high = int(values.min()), int(values.max())
    if low == high:
        return np.array([low], dtype=np.int64), np.zeros(values.size, dtype=np.uint32)
    if high - low >= LOOKUP_LIMIT:
        distinct, codes = np.unique(values, return_inverse=True)
        return distinct.astype(np.int64), codes.astype(np.uint32)
    shifted = values - low
    seen = np.zeros(high - low + 1, dtype=bool)
    seen[shifted] = True
    place = np.cumsum(seen, dtype=np.uint32) - np.uint32(1)
    return np.flatnonzero(seen) + low, place[shifted]


class TextPool:
    """Collects texts from several frames under one dense numbering."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def add(self, texts: list[str]) -> npt.NDArray[np.uint32]:
        """The id of each text, new ones numbered on."""
        ids = self._ids
        return np.fromiter((ids.setdefault(text, len(ids)) for text in texts), dtype=np.uint32, count=len(texts))

    def frame(self) -> pl.DataFrame:
        """The TEXTS frame."""
        texts = list(self._ids)
        return pl.DataFrame({"text_id": np.arange(len(texts), dtype=np.uint32), "text": texts}, schema=dict(TEXTS))


def names_frame(names: list[tuple[str, str]]) -> pl.DataFrame:
    """The NAMES frame of (name, short name) pairs."""
    return pl.DataFrame(
        {
            "name_id": np.arange(len(names), dtype=np.uint32),
            "name": [name for name, _ in names],
            "short_name": [short for _, short in names],
        },
        schema=dict(NAMES),
    )
