"""Finished rows, kept one by one while a batch runs, so that an interrupted batch can resume.

While it runs: ``DIR/.rows/<n>.json``, each written whole. When it is done they are all in ``DIR/runs.parquet`` and the
folder goes. ``--resume`` reads both. A row counts only while its report is there.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import polars as pl

from ..whole_files import remove_temporaries, write_whole


class RowStore:
    """The rows that a batch in ``folder`` has finished, by key."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rows = folder / ".rows"

    def load(self) -> dict[str, dict[str, Any]]:
        """Every row that an earlier batch kept, by its key; damaged ones are ignored (they are done again)."""
        kept: dict[str, dict[str, Any]] = {}
        table = self._folder / "runs.parquet"
        if table.exists():
            try:
                kept |= {row["key"]: row for row in pl.read_parquet(table).iter_rows(named=True) if row.get("key")}
            except (pl.exceptions.PolarsError, OSError, KeyError):
                kept = {}
        for path in sorted(self._rows.glob("*.json")) if self._rows.exists() else []:
            try:
                row = orjson.loads(path.read_bytes())
                kept[row["key"]] = row
            except (OSError, orjson.JSONDecodeError, KeyError, TypeError):
                continue
        return {k: row for k, row in kept.items() if self._has_report(row.get("report"))}

    def _has_report(self, report: object) -> bool:
        """Whether a row's report is there, as a file of this archive: a table of others may name any path."""
        if not isinstance(report, str) or not re.fullmatch(r"reports/[^/\\]+\.html", report):
            return False
        return (self._folder / report).is_file()

    def keep(self, row: dict[str, Any]) -> None:
        """Keep one finished row."""
        content = orjson.dumps(row, option=orjson.OPT_NON_STR_KEYS)
        write_whole(self._rows / f"{row['key']}.json", content, ours=lambda _: True)  # its name is a digest

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
