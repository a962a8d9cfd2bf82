"""Finished rows, kept one by one while a batch runs, so that an interrupted batch can resume.

While it runs: ``DIR/.rows/<n>.json``, each written whole. When it is done they are all in ``DIR/runs.parquet`` and the
folder goes. ``--resume`` reads both. A row counts only while its report is there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import polars as pl
from msgspec import DecodeError, ValidationError, convert
from msgspec.json import decode, encode

from ..whole_files import remove_temporaries, write_whole
from .archive_row import ArchiveRow


class RowStore:
    """The rows that a batch in ``folder`` has finished, by key."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rows = folder / ".rows"

    def load(self) -> dict[str, ArchiveRow]:
        """Every row that an earlier batch kept, by its key; damaged ones are ignored (they are done again)."""
        rows = [*self._rows_of_table(), *self._rows_of_files()]
        return {row.key: row for row in rows if row.key and self._has_report(row.report)}

    def _rows_of_table(self) -> list[ArchiveRow]:
        table = self._folder / "runs.parquet"
        if not table.exists():
            return []
        try:
            return convert(pl.read_parquet(table).to_dicts(), list[ArchiveRow])
        except (pl.exceptions.PolarsError, OSError, ValidationError):
            return []

    def _rows_of_files(self) -> Iterator[ArchiveRow]:
        for path in sorted(self._rows.glob("*.json")) if self._rows.exists() else []:
            with suppress(OSError, DecodeError):
                yield decode(path.read_bytes(), type=ArchiveRow)

    def _has_report(self, report: object) -> bool:
        """Whether a row's report is there, as a file of this archive: a table of others may name any path."""
        if not isinstance(report, str) or not re.fullmatch(r"reports/[^/\\]+\.html", report):
            return False
        return (self._folder / report).is_file()

    def keep(self, row: ArchiveRow) -> None:
        """Keep one finished row."""
        write_whole(self._rows / f"{row.key}.json", encode(row), ours=lambda _: True)  # its name is a digest

    def clear(self) -> None:
        """Forget the kept rows (all of them are in the table now, or a batch starts anew)."""
        for path in self._rows.glob("*.json"):
            if re.fullmatch(r"[0-9a-f]{32}\.json", path.name):
                path.unlink(missing_ok=True)
        with suppress(OSError):  # absent, or it holds what is not ours
            self._rows.rmdir()

    def sweep(self) -> None:
        """Remove temporary files that a killed batch left."""
        for folder in (self._folder, self._folder / "reports", self._rows):
            remove_temporaries(folder)
