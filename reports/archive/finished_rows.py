"""Finished rows, kept one by one while a batch runs, so that an interrupted batch can resume.

While it runs: ``DIR/.rows/<n>.json``, each written whole. When it is done they are all in ``DIR/runs.parquet`` and the
folder goes. ``--resume`` reads both. A row counts only while its report is there.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import orjson
import polars as pl

from ..whole_files import write_whole


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
        return {k: row for k, row in kept.items() if row.get("report") and (self._folder / row["report"]).exists()}

    def keep(self, row: dict[str, Any]) -> None:
        """Keep one finished row."""
        write_whole(self._rows / f"{row['key']}.json", orjson.dumps(row, option=orjson.OPT_NON_STR_KEYS))

    def clear(self) -> None:
        """Forget the kept rows (all of them are in the table now, or a batch starts anew)."""
        shutil.rmtree(self._rows, ignore_errors=True)

    def sweep(self) -> None:
        """Remove temporary files that a killed batch left."""
        for folder in (self._folder, self._folder / "reports", self._rows):
            for path in folder.glob(".*.*") if folder.exists() else []:
                if path.is_file() and path.name.count(".") >= 3:
                    path.unlink(missing_ok=True)
