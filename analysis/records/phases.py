"""What the phase stage hands on to the work and time stages."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from .trust import PhaseTrust


@dataclass(frozen=True)
class PhaseResult:
    """Steps and phases of a capture: every kernel and step tagged, and how far the tags can be trusted."""

    kernels: pl.DataFrame  # Trace.kernels + KERNEL_TAGS, same rows, same order
    steps: pl.DataFrame  # STEPS, work columns null
    groups: pl.DataFrame  # GROUPS
    graphs: pl.DataFrame  # GRAPHS
    window_start_ns: int
    window_end_ns: int
    layers: int | None  # transformer layers seen: attention launches per step
    engine: str | None
    autoregressive: bool
    opaque_graphs: bool
    trust: PhaseTrust
    reasons: tuple[str, ...]  # what could not be seen, as sentences
