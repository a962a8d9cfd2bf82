"""Numbers as a sentence needs them: three significant figures, a unit, a plural."""

from __future__ import annotations

import math


def duration(ms: float) -> str:
    """``ms`` in the unit that reads best: ``85 µs``, ``9.62 ms``, ``240 ms``, ``1.7 s``."""
    if ms >= 1000:
        return f"{significant(ms / 1000)} s"
    if ms >= 1:
        return f"{significant(ms)} ms"
    return f"{significant(ms * 1000)} µs"


def significant(value: float) -> str:
    """Three significant figures, thousands grouped, no exponent, no trailing zeros."""
    if not math.isfinite(value) or value == 0:
        return "0" if value == 0 else "unknown"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def percent(value: float) -> str:
    """A percentage: ``61%``, ``4.2%``, ``0.31%``."""
    return f"{value:.0f}%" if value >= 10 else f"{value:.1f}%" if value >= 1 else f"{value:.2g}%"


def count(number: float, noun: str, plural: str = "") -> str:
    """``1 stall``, ``1,024 stalls``."""
    return f"{number:,.0f} {noun if number == 1 else plural or noun + 's'}"
