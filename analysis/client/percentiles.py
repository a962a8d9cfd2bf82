"""Percentiles as benchmark clients state them (linear between ranks), and the shares of causes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from .steps import Floats

#: Causes under this share of a list are left out of sentences, never of tables.
WORTH_SAYING_PCT = 1.0


@dataclass(frozen=True)
class Percentiles:
    """Of times in ms; ``n`` values."""

    p50: float
    p90: float
    p95: float
    p99: float
    max: float
    n: int

    def to_json(self) -> dict[str, object]:
        """The fields by name."""
        return asdict(self)


def percentiles(values_ns: Floats) -> Percentiles | None:
    """Of times in ns, NaN left out; None without any."""
    values = values_ns[~np.isnan(values_ns)]
    if not len(values):
        return None
    p50, p90, p95, p99 = (float(p) for p in np.percentile(values, [50, 90, 95, 99]) / 1e6)
    return Percentiles(p50, p90, p95, p99, float(values.max()) / 1e6, len(values))


@dataclass(frozen=True)
class CauseShare:
    """Time of one cause and its share of all (signed: delivery can also shorten a gap); shares sum to 100."""

    cause: str
    ms: float
    pct: float | None  # None: all together is 0

    def to_json(self) -> dict[str, object]:
        """The fields by name."""
        return asdict(self)


def shares(causes: Sequence[str], parts_ns: Floats) -> tuple[CauseShare, ...]:
    """Causes of some waits (rows) taken together, the longest first; those that nowhere occur are left out."""
    total = parts_ns.sum(axis=0)
    whole = float(total.sum())
    found = [
        CauseShare(cause, float(ns) / 1e6, 100 * float(ns) / whole if whole else None)
        for cause, ns, used in zip(causes, total, (parts_ns != 0).any(axis=0), strict=True)
        if used
    ]
    return tuple(sorted(found, key=lambda s: (-s.ms, s.cause)))
