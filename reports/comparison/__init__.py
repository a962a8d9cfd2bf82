"""Two runs side by side: the screen, the HTML, JSON and Markdown, and the exit code."""

from __future__ import annotations

from ..commands.compare_command import CompareRequest, run_compare

__all__ = ["CompareRequest", "run_compare"]
