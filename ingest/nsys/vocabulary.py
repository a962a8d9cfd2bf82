"""The rows of ``vocabulary.toml``, read once."""

from __future__ import annotations

from functools import cache
from typing import Any

from ...analysis.facts.load import load_table


@cache
def vocabulary() -> dict[str, Any]:
    """The tables of ``vocabulary.toml``."""
    return load_table("nsys_vocabulary")
