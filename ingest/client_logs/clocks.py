"""Which clock a time stems from, by its size."""

from __future__ import annotations

#: Seconds that a machine may have been up (three years), and Unix seconds of 2020 to 2033.
LONGEST_UPTIME_S = 1e8
UNIX_S = (1.577e9, 2.0e9)


def clock_of_seconds(first: float | None) -> str:
    """'wall' for Unix seconds, 'monotonic' for an uptime, 'unknown' for times that begin at 0 (or are none)."""
    if first is None or first < 1.0:
        return "unknown"
    if UNIX_S[0] <= first <= UNIX_S[1]:
        return "wall"
    return "monotonic" if first < LONGEST_UPTIME_S else "unknown"
