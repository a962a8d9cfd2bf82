"""The documents and their fenced blocks, for the tests that try them."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parent
REPOSITORY = DOCS.parent
PAGES = [REPOSITORY / "README.md", REPOSITORY / "CHANGELOG.md", *sorted(DOCS.glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of one language, without their fences."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
