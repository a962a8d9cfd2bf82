"""Stdout for tables and styled text. A reader that goes away is an error here as it is for ``print``: the caller's."""

from __future__ import annotations

import sys

from rich.console import Console


class Screen(Console):
    """Rich's console on stdout: texts as they are (no markup, emoji or highlighting), and no exit on its own."""

    def __init__(self, *, no_color: bool | None = None) -> None:
        super().__init__(file=sys.stdout, no_color=no_color, highlight=False, markup=False, emoji=False)

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError, where rich would end the process with exit code 1."""
        raise BrokenPipeError
