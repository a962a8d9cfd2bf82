"""Steps and phases: every kernel tagged prefill, decode, mixed or neither, each tag with its evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from ..records.trace import Trace

__all__ = ["PhaseResult", "find_phases"]


@dataclass(frozen=True)
class PhaseResult:
    """What the phase stage hands on."""

    kernels: pl.DataFrame  # Trace.kernels + KERNEL_TAGS, same rows, same order
    steps: pl.DataFrame  # STEPS, work columns null
    groups: pl.DataFrame  # GROUPS
    graphs: pl.DataFrame  # GRAPHS
    window_start_ns: int
    window_end_ns: int
    layers: int | None
    engine: str | None
    autoregressive: bool
    opaque_graphs: bool
    trust: Mapping[str, Any]
    reasons: tuple[str, ...]


def find_phases(
    trace: Trace,
    name_facts: pl.DataFrame,
    *,
    marker_file: Path | None = None,
    window: str | None = None,
    devices: tuple[Any, ...] = (),
) -> PhaseResult:
    """Find the steps of ``trace`` and the phase of each and of every kernel.

    ``name_facts`` is ``classify_names(trace.names)``; ``marker_file`` adds grammars to the built-in ones; ``window``
    is the command line's ``A:B``; ``devices`` is accepted so that callers may pass their ceilings, and not needed.

    Raises CannotAnswerError when no kernel starts inside ``window``, UsageError when it cannot be read.
    """
    from ..markers.grammar import parse_texts
    from .phase_pipeline import run_stages

    del devices
    return PhaseResult(**run_stages(trace, name_facts, parse_texts(trace.texts, marker_file), window))
