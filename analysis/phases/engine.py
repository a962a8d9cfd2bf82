"""Which engine ran, by its command line, its markers or the kernels only it has."""

from __future__ import annotations

from functools import cache

import polars as pl

from ..facts.load import load_rows
from ..facts.rows import EngineRow
from ..records.trace import Trace


@cache
def engine_rules() -> tuple[EngineRow, ...]:
    """Rows of engines.toml."""
    return load_rows("engines", "engine", EngineRow)


def recognise_engine(trace: Trace, texts: pl.DataFrame) -> str | None:
    """The engine's name, None where nothing tells: recorded options, then markers, then kernel names.

    ``texts``: the parsed marker texts. Where ranges of several engines' grammars stand in one capture (one borrows
    another's), kernel names decide.
    """
    if trace.capture.serving.engine:
        return trace.capture.serving.engine
    used = pl.concat([trace.ranges["text_id"], trace.marks["text_id"]]).unique()
    spoken = texts.filter(pl.col("text_id").is_in(used.implode()) & (pl.col("role") == "step"))["engine"]
    engines = spoken.drop_nulls().unique().sort().to_list()
    if len(engines) == 1:
        return str(engines[0])
    for rule in engine_rules():
        if rule.pattern and trace.names["name"].str.contains(rule.pattern).any():
            return rule.name
    return str(engines[0]) if engines else None


def engine_pads_graphs(engine: str | None) -> bool:
    """Whether the engine replays graphs captured for a larger batch than it has; assumed of an unknown engine."""
    return all(rule.pads_graphs for rule in engine_rules() if rule.name == engine)


def engine_mixes(engine: str | None) -> bool | None:
    """Whether the engine's scheduler mixes prompts with decoding requests by default; None for an unknown engine."""
    for rule in engine_rules():
        if rule.name == engine:
            return rule.mixes
    return None
