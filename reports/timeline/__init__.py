"""The timeline of the HTML report: what a page can hold of a capture of any size."""

from __future__ import annotations

from typing import Any

from ...analysis.result import Analysis


def timeline_payload(analysis: Analysis) -> dict[str, Any] | None:
    """Placeholder until the level of detail stands."""
    return None
