"""The rows of ``vocabulary.toml``, read once."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import Any


@cache
def vocabulary() -> dict[str, Any]:
    """The tables of ``vocabulary.toml``."""
    return tomllib.loads(resources.files(__package__).joinpath("vocabulary.toml").read_text(encoding="utf-8"))
