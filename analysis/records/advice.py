"""JSON ``findings[]``: what limits a run and what would help, with the numbers behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Finding:
    """One sentence with a number, a cause and a lever, and the evidence behind it."""

    id: str  # stable, e.g. 'prefill_interference'
    sentence: str
    recoverable_ms: float | None
    evidence: Mapping[str, Any]
    lever: str
    kind: str = "serving"  # 'serving' | 'capture'
