"""Progress of long work: on stderr, only on a terminal, with the time gone by; nothing for work under a second."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

_QUIET_SECONDS = 1.0


class Progress:
    """A line that names the stage under way. Short runs print nothing at all."""

    def __init__(self, *, enabled: bool = True) -> None:
        self._enabled = enabled and sys.stderr.isatty()
        self._started = time.monotonic()
        self._shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def stage(self, name: str) -> None:
        """Say that the stage ``name`` begins."""
        gone = time.monotonic() - self._started
        if not self._enabled or gone < _QUIET_SECONDS:
            return
        self._shown = True
        print(f"\r\x1b[K{gone:5.1f} s  {name} ...", end="", file=sys.stderr, flush=True)
