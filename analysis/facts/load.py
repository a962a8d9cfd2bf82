"""The one road from a table of facts to Python: parsed once, from the folder of this file."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


@cache
def load_table(name: str) -> dict[str, Any]:
    """The content of ``name``.toml. Raises FileNotFoundError for a table that does not exist."""
    return tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
