"""Columns taken from paths: ``--label 'chunk={chunk}/bs={bs}'`` over ``a/chunk=512/bs=8/run.sqlite``."""

from __future__ import annotations

import re

from ...ingest.errors import UsageError
from .row import COLUMNS

_FIELD = re.compile(r"\{(\w+)\}")


class LabelPattern:
    """A pattern whose ``{name}`` parts become columns; it may match anywhere in the relative path."""

    def __init__(self, pattern: str) -> None:
        self.names = _FIELD.findall(pattern)
        if not self.names:
            raise UsageError(f"--label: {pattern!r} has no {{name}} part, e.g. 'chunk={{chunk}}/bs={{bs}}'.")
        clash = [n for n in self.names if n in COLUMNS]
        if clash or len(set(self.names)) != len(self.names):
            raise UsageError(f"--label: {', '.join(clash) or 'a name'} is taken or used twice; choose other names.")
        pieces = _FIELD.split(pattern)
        parts = [re.escape(p) if i % 2 == 0 else f"(?P<{p}>[^/]+?)" for i, p in enumerate(pieces)]
        self._regex = re.compile("".join(parts) + (r"(?=[/._-]|$)" if pieces[-1] == "" else ""))

    def match(self, relative: str) -> dict[str, str | None]:
        """The labels of one relative path, all None where the pattern does not match."""
        match = self._regex.search(relative)
        return {name: match[name] if match else None for name in self.names}
