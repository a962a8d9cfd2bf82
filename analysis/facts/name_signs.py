"""Patterns of what a name tells beside the kernel's class, from name_signs.toml."""

from __future__ import annotations

from functools import cache

from .load import load_rows
from .rows import NameSignRow


@cache
def name_signs() -> dict[str, NameSignRow]:
    """Rows of name_signs.toml by their sign."""
    return {row.sign: row for row in load_rows("name_signs", "sign", NameSignRow)}


def sign_pattern(sign: str) -> str:
    """The regular expression of names that show ``sign``. Raises KeyError for a sign in no row."""
    return name_signs()[sign].pattern
