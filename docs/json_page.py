"""Reads docs/json.md: which keys each JSON document has, and of which type. Used by json_schema.py and the tests."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).with_name("json.md")
PARTS = {"The result": "result", "The comparison": "comparison", "The runs table": "runs"}

_NAMED_MAPS = {
    "distribution": ("n", "p50", "p95", "p99", "max"),
    "by phase": ("prefill", "decode", "mixed", "other", "unknown"),
    "by cause": ("launch_bound", "host_sync", "waiting_rank", "between_requests", "unknown"),
    "counted": ("counted", "of"),
}


@dataclass(frozen=True)
class Key:
    """One documented key. ``type`` is the word of the page without its suffixes."""

    path: str  # 'summary.stall_ms', 'steps[].index'
    type: str
    nullable: bool
    optional: bool
    meaning: str

    @property
    def parts(self) -> tuple[str, ...]:
        """The keys inside, for the types that name them."""
        return _NAMED_MAPS.get(self.type, ())


def read_page(text: str | None = None) -> dict[str, list[Key]]:
    """The keys of each document on the page, in its order. Raises ValueError for a row that cannot be read."""
    documents: dict[str, list[Key]] = {}
    document, prefix = "", ""
    for line in (PAGE.read_text("utf-8") if text is None else text).splitlines():
        if line.startswith("## "):
            document = PARTS[line[3:].strip()]
            documents[document] = []
        elif line.startswith("### "):
            named = re.search(r"`([^`]+)`", line)
            prefix = f"{named[1]}." if named else ""
        elif line.startswith("| `"):
            documents[document] += _keys(line, prefix)
    return documents


def _keys(line: str, prefix: str) -> list[Key]:
    cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
    if len(cells) != 3:
        raise ValueError(f"json.md: three cells expected: {line}")
    kind = cells[1]
    optional = kind.endswith(", optional")
    kind = kind.removesuffix(", optional")
    nullable = kind.endswith(" or null") or kind == "null"
    kind = kind.removesuffix(" or null")
    return [Key(f"{prefix}{name}", kind, nullable, optional, cells[2]) for name in re.findall(r"`([^`]+)`", cells[0])]
