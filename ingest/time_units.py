"""Times as people type them."""

from __future__ import annotations

import re

from ..analysis.records.errors import UsageError

_UNITS_NS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_LONGEST_NS = 2**62  # 146 years, and twice as much still fits a 64-bit integer
_TIME = re.compile(r"\s*(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)\s*(?P<unit>ns|us|ms|s)?\s*", re.IGNORECASE)


def parse_time_ns(text: str, flag: str, *, default_unit: str = "s") -> int:
    """Nanoseconds of ``'1.5'``, ``'1500ms'``, ``'2e6us'``. Raises UsageError naming ``flag``."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise UsageError(f"{flag}: {text!r} is not a time; write a number, alone or with ns, us, ms or s.")
    unit = (match["unit"] or default_unit).lower()
    nanoseconds = float(match["number"]) * _UNITS_NS[unit]
    if abs(nanoseconds) > _LONGEST_NS:
        raise UsageError(f"{flag}: {text!r} is longer than any capture.")
    return round(nanoseconds)


def parse_milliseconds(text: str, flag: str) -> float:
    """Milliseconds of ``'50'``, ``'50ms'``, ``'0.05s'``. Raises UsageError unless positive."""
    value = parse_time_ns(text, flag, default_unit="ms") / 1e6
    if value <= 0:
        raise UsageError(f"{flag}: {text!r} must be above 0.")
    return value


def parse_window(text: str) -> tuple[int | None, int | None]:
    """Both ends of ``A:B`` in ns from session start, None where a side is empty.

    Raises UsageError when there is no colon or A is not before B.
    """
    start_text, colon, end_text = text.partition(":")
    if not colon:
        raise UsageError(f"--window: {text!r} needs a colon: A:B, A: or :B (seconds, or with ns/us/ms/s).")
    start = parse_time_ns(start_text, "--window") if start_text.strip() else None
    end = parse_time_ns(end_text, "--window") if end_text.strip() else None
    if start is not None and end is not None and start >= end:
        raise UsageError(f"--window: {text!r} ends before it starts.")
    return start, end
