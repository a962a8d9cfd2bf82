"""Rows taken a stretch at a time, so that what a long formula passes on stays small and in the processor's cache."""

from __future__ import annotations

from collections.abc import Iterator

ROWS_AT_ONCE = 1 << 16


def stretches(count: int) -> Iterator[slice]:
    """Slices that cover ``count`` rows one after the other."""
    return (slice(begin, min(begin + ROWS_AT_ONCE, count)) for begin in range(0, count, ROWS_AT_ONCE))
