"""Steps and phases: every kernel tagged prefill, decode, mixed or neither, each tag with its evidence."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from ..records.phases import PhaseResult
from ..records.trace import Trace

__all__ = ["PhaseResult", "find_phases"]


def find_phases(
    trace: Trace, name_facts: pl.DataFrame, *, marker_file: Path | None = None, window: str | None = None
) -> PhaseResult:
    """Find the steps of ``trace`` and the phase of each and of every kernel.

    ``name_facts`` is ``classify_names(trace.names)``; ``marker_file`` adds grammars to the built-in ones; ``window``
    is the command line's ``A:B``.

    Raises CannotAnswerError when no kernel starts inside ``window``, UsageError when it cannot be read.
    """
    from ..markers.grammar import parse_texts
    from .phase_pipeline import run_stages

    return run_stages(trace, name_facts, parse_texts(trace.texts, marker_file), window)
