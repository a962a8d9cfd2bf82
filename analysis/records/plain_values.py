"""Records, numpy scalars, mappings and tuples as plain JSON data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def clean(value: Any) -> Any:
    """A copy of nested records, dictionaries and sequences in which every non-finite number is None."""
    if isinstance(value, Mapping):
        return {str(k): clean(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [clean(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if hasattr(value, "item"):  # numpy scalar
        return clean(value.item())
    return value
