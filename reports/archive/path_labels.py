"""Columns taken from paths: ``--label 'chunk={chunk}/bs={bs}'`` over ``a/chunk=512/bs=8/run.sqlite``."""

from __future__ import annotations

import re

from ...analysis.records.errors import UsageError
from .archive_row import COLUMNS

_FIELD = re.compile(r"\{(\w+)\}")


class LabelPattern:
    """A pattern whose ``{name}`` parts become columns; it may match anywhere in the relative path."""

    def __init__(self, pattern: str) -> None:
        fields = _FIELD.findall(pattern)
        if not fields or len(set(fields)) != len(fields):
            raise UsageError(f"--label: {pattern!r} needs {{name}} parts, each once, e.g. 'chunk={{chunk}}/bs={{bs}}'.")
        # a label named like a column of the table stands beside it, not in its place
        self._columns = {name: f"label_{name}" if name in COLUMNS else name for name in fields}
        self.names = list(self._columns.values())
        pieces = _FIELD.split(pattern)
        parts = [re.escape(p) if i % 2 == 0 else f"(?P<{p}>[^/]+?)" for i, p in enumerate(pieces)]
        self._regex = re.compile("".join(parts) + (r"(?=[/._-]|$)" if pieces[-1] == "" else ""))

    def match(self, relative: str) -> dict[str, str | None]:
        """The labels of one relative path, all None where the pattern does not match."""
        match = self._regex.search(relative)
        return {column: match[name] if match else None for name, column in self._columns.items()}
