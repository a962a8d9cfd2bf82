"""Memory between stages: what a stage freed goes back to the system before the next one asks for more.

The C library keeps freed blocks for later requests, but a stage asks for other sizes than the one before, so the peak
of a run would be the sum of leftovers instead of the largest stage. It takes a millisecond a stage.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable


@functools.cache
def _trim() -> Callable[[int], int] | None:
    if sys.platform != "linux":
        return None
    import ctypes

    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):  # another C library than glibc
        return None
    trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
    return trim


def give_back() -> None:
    """Return freed memory to the system where the C library can (glibc)."""
    trim = _trim()
    if trim is not None:
        trim(0)
