"""Operators that pass over one table of activations per step: they move its elements and compute next to nothing.

Which kernels do so, and how many bytes each moves per element, are rows of ``analysis/facts/memory_passes.toml``, whose
``of`` names a table here. A new operator of this kind is an entry of ``TABLE_PASSES`` and a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...models.model_shape import ModelShape
from .formulas import Number


@dataclass(frozen=True)
class StepRows:
    """Rows of a step that tables have: T tokens, and the rows that are sampled from. NaN where not known."""

    tokens: Number
    logits: Number


@dataclass(frozen=True)
class TablePass:
    """A table, the place of the operator that passes over it, and its elements in one step."""

    table: str
    place: str  # in the column ``place`` of the kernels
    op_class: str  # of the kernels whose names are looked up
    elements: Callable[[ModelShape, StepRows], Number]


TABLE_PASSES: tuple[TablePass, ...] = (
    TablePass("logits", "sampling", "sampling", lambda model, rows: rows.logits * float(model.vocab)),
    TablePass("scores", "routing_scores", "moe_routing", lambda model, rows: rows.tokens * float(model.experts)),
    TablePass(
        "choices", "routing_choices", "moe_routing", lambda model, rows: rows.tokens * float(model.experts_per_token)
    ),
)
PASS_PLACES: tuple[str, ...] = tuple(each.place for each in TABLE_PASSES)
PASS_OP_CLASSES: tuple[str, ...] = tuple(dict.fromkeys(each.op_class for each in TABLE_PASSES))
PLACE_OF_TABLE: dict[str, str] = {each.table: each.place for each in TABLE_PASSES}
