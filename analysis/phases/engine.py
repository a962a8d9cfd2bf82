"""Which engine ran, by its command line, its markers or the kernels only it has."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl

from ...ingest.trace import Trace
from .marker_steps import MarkerSteps


@cache
def engine_rules() -> tuple[dict[str, Any], ...]:
    """Rows of engines.toml."""
    path = Path(__file__).with_name("engines.toml")
    return tuple(tomllib.loads(path.read_text(encoding="utf-8"))["engine"])


def recognise_engine(trace: Trace, markers: MarkerSteps) -> str | None:
    """The engine's name, None where nothing tells: recorded options, then markers, then kernel names."""
    if trace.capture.serving.engine:
        return trace.capture.serving.engine
    marked = markers.frame["engine"].drop_nulls() if markers.frame.height else pl.Series([], dtype=pl.String)
    if len(marked):
        known = marked.mode().sort()
        return str(known[0])
    for rule in engine_rules():
        if rule["regex"] and trace.names["name"].str.contains(rule["regex"]).any():
            return str(rule["name"])
    return None


def engine_mixes(engine: str | None) -> bool | None:
    """Whether the engine's scheduler mixes prompts with decoding requests by default; None for an unknown engine."""
    for rule in engine_rules():
        if rule["name"] == engine:
            return bool(rule["mixes"])
    return None
