"""What each distinct kernel name says: op class, library, data type, tiles, and its hint about the phase.

``kernels.toml`` holds the knowledge: ordered rules (the first match wins), extractors for what else is written in a name
(tiles, element types, flags) and readable labels for wrappers. The work here is per distinct name, never per kernel.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import polars as pl

from ..ingest.trace import Schema
from . import names as spelling
from .result import OP_CLASSES

NAME_FACTS: Schema = {  # one row per name, row-aligned with Trace.names
    "name_id": pl.UInt32,
    "short_name": pl.String,  # the function without template noise; a wrapper is shown by what it runs
    "op_class": OP_CLASSES,
    "fused_with": pl.String,  # op class fused into it, '' if none
    "library": pl.String,
    "dtype": pl.String,  # what it computes in: 'bf16' | 'fp16' | 'tf32' | 'fp32' | 'fp64' | 'fp8' | 'int8' | 'fp4'
    "weight_dtype": pl.String,  # only where it differs from dtype: packed or mixed weights ('int4', 'fp4', 'fp8', ...)
    "phase_hint": pl.String,  # 'prefill' | 'decode' | 'prefill_or_mixed' | 'mixed'
    "hint_strength": pl.String,  # 'sure' | 'likely'
    "tokens_from": pl.String,  # 'grid_x': one block per token | 'grid_x_approx'
    "tile_m": pl.Int32,  # as printed in the name (Marlin counts blocks of 16: 16 times what is printed)
    "tile_n": pl.Int32,
    "tile_k": pl.Int32,
    "shape_n": pl.Int64,  # exact
    "shape_k": pl.Int64,
    "is_causal": pl.Boolean,
    "attention_tile_q": pl.Int32,  # query rows of one block
    "split_kv": pl.Boolean,
    "rule": pl.Int32,  # order number of the matching rule, -1 = none
    "load_time": pl.Boolean,
    "head_dim": pl.Int32,  # of attention kernels
    "token_tile": pl.Int32,  # the tile side that runs along tokens
    "tokens_in_name": pl.Int32,  # exact tokens, where they are a template argument (llama.cpp ncols_dst)
}
_TEXT_GROUPS = frozenset({"dtype", "weight_dtype"})
_FLAGS = frozenset({"is_causal", "split_kv"})
_SIZES = ("tile_m", "tile_n", "tile_k", "shape_n", "shape_k", "attention_tile_q", "head_dim", "token_tile", "tokens")
_COLUMN_OF = {"tokens": "tokens_in_name"}
_TRUE = frozenset({"true", "1"})


@dataclass(frozen=True)
class Rule:
    """One row of the rule table."""

    order: int
    pattern: str
    op_class: str
    fused_with: str
    phase: str | None
    strength: str | None
    tokens_from: str | None
    dtype: str | None
    weight_dtype: str | None
    library: str
    note: str
    examples: tuple[str, ...]


@dataclass(frozen=True)
class Extractor:
    """One row of the extractor table: named groups of ``pattern`` become columns."""

    pattern: str
    classes: tuple[str, ...]  # () = all
    types: Mapping[str, str]
    constants: Mapping[str, str]
    scale: int
    token_side: str | None


@dataclass(frozen=True)
class Label:
    """A readable text for names whose function name says nothing."""

    pattern: str
    text: str


@dataclass(frozen=True)
class KernelTable:
    """Everything in kernels.toml."""

    rules: tuple[Rule, ...]
    extractors: tuple[Extractor, ...]
    labels: tuple[Label, ...]


@cache
def kernel_table() -> KernelTable:
    """kernels.toml, read once."""
    data = tomllib.loads(resources.files(__package__).joinpath("kernels.toml").read_text("utf-8"))
    return KernelTable(
        rules=tuple(_rule(order, row) for order, row in enumerate(data["rule"], start=1)),
        extractors=tuple(_extractor(row, data) for row in data["extract"]),
        labels=tuple(Label(row["pattern"], row["text"]) for row in data["label"]),
    )


def _rule(order: int, row: Mapping[str, Any]) -> Rule:
    return Rule(
        order=order,
        pattern=row["pattern"],
        op_class=row["op_class"],
        fused_with=row.get("fused_with", ""),
        phase=row.get("phase"),
        strength=row.get("strength"),
        tokens_from=row.get("tokens_from"),
        dtype=row.get("dtype"),
        weight_dtype=row.get("weight_dtype"),
        library=row.get("library", ""),
        note=row.get("note", ""),
        examples=tuple(row["examples"]),
    )


def _extractor(row: Mapping[str, Any], data: Mapping[str, Any]) -> Extractor:
    own: Mapping[str, str] = data[row["table"]] if "table" in row else row.get("types", {})
    return Extractor(
        pattern=row["pattern"],
        classes=tuple(row.get("classes", ())),
        types={**data["types"], **own},
        constants={group: row[group] for group in _TEXT_GROUPS if group in row},
        scale=row.get("scale", 1),
        token_side=row.get("token_side"),
    )


def classify_names(names: pl.DataFrame) -> pl.DataFrame:
    """Facts of each name: one row per row of ``names`` (columns of ``Trace.names``), in its order.

    Columns: ``NAME_FACTS``. A name that no rule matches is ``op_class`` 'other' with ``rule`` -1.
    """
    table = kernel_table()
    canonical = spelling.canonical(names["name"].fill_null(""))
    matched = _match_rules(canonical, table.rules)
    by_order = {rule.order: rule for rule in table.rules}
    rules = [by_order.get(order) for order in matched]
    found = _extract(canonical, rules, table.extractors)
    frame = pl.DataFrame(
        {
            "name_id": names["name_id"],
            "short_name": _short_names(canonical, table.labels),
            "op_class": [rule.op_class if rule else "other" for rule in rules],
            "fused_with": [rule.fused_with if rule else "" for rule in rules],
            "library": [rule.library if rule else "" for rule in rules],
            "phase_hint": [rule.phase if rule else None for rule in rules],
            "hint_strength": [rule.strength if rule else None for rule in rules],
            "tokens_from": [rule.tokens_from if rule else None for rule in rules],
            "rule": matched,
            "load_time": [rule is not None and rule.op_class == "load_time" for rule in rules],
            **found,
        },
        schema_overrides=dict(NAME_FACTS),
    )
    return frame.select(list(NAME_FACTS)).with_columns(
        weight_dtype=pl.when(pl.col("weight_dtype") != pl.col("dtype")).then("weight_dtype")
    )


def _match_rules(canonical: pl.Series, rules: Iterable[Rule]) -> list[int]:
    """Order number of the first rule that matches each name, -1 where none does."""
    orders = [-1] * len(canonical)
    rows = pl.Series(range(len(canonical)), dtype=pl.UInt32)
    texts = canonical
    for rule in rules:
        if not len(texts):
            break
        hit = texts.str.contains(rule.pattern)
        if not hit.any():
            continue
        for row in rows.filter(hit):
            orders[row] = rule.order
        rows, texts = rows.filter(~hit), texts.filter(~hit)
    return orders


def _short_names(canonical: pl.Series, labels: Iterable[Label]) -> pl.Series:
    short = spelling.short(canonical)
    pending = pl.Series([True] * len(canonical), dtype=pl.Boolean)
    for label in labels:
        hit = canonical.str.contains(label.pattern) & pending
        if hit.any():
            short = short.zip_with(~hit, canonical.str.replace(label.pattern, label.text))
            pending = pending & ~hit
    return short


def _extract(canonical: pl.Series, rules: list[Rule | None], extractors: Iterable[Extractor]) -> dict[str, list[Any]]:
    """Columns read out of the names; a value found by an earlier extractor stays."""
    found: dict[str, list[Any]] = {
        column: [None] * len(canonical)
        for column in ("dtype", "weight_dtype", *(_COLUMN_OF.get(size, size) for size in _SIZES), *sorted(_FLAGS))
    }
    for row, rule in enumerate(rules):
        if rule is not None:
            found["dtype"][row], found["weight_dtype"][row] = rule.dtype, rule.weight_dtype
    rows_of_class: dict[str, list[int]] = {}
    for row, rule in enumerate(rules):
        rows_of_class.setdefault(rule.op_class if rule else "other", []).append(row)
    for extractor in extractors:
        if extractor.classes:
            rows = [row for op_class in extractor.classes for row in rows_of_class.get(op_class, ())]
        else:
            rows = [row for row, dtype in enumerate(found["dtype"]) if dtype is None]
        if rows:
            _apply(extractor, canonical.gather(rows), rows, found)
    return found


def _apply(extractor: Extractor, texts: pl.Series, rows: list[int], found: dict[str, list[Any]]) -> None:
    hit = texts.str.contains(extractor.pattern)
    if not hit.any():
        return
    hit_rows = pl.Series(rows).filter(hit).to_list()
    groups: dict[str, list[Any]] = {group: [value] * len(hit_rows) for group, value in extractor.constants.items()}
    if re.search(r"\(\?P<", extractor.pattern):
        struct = texts.filter(hit).str.extract_groups(extractor.pattern)
        groups.update({group: _values(extractor, group, struct.struct.field(group)) for group in struct.struct.fields})
    if extractor.token_side is not None:
        groups["token_tile"] = groups[f"tile_{extractor.token_side}"]
    for group, values in groups.items():
        column = found[_COLUMN_OF.get(group, group)]
        for row, value in zip(hit_rows, values, strict=True):
            if column[row] is None:
                column[row] = value


def _values(extractor: Extractor, group: str, raw: pl.Series) -> list[Any]:
    if group in _TEXT_GROUPS:
        return [None if value is None else extractor.types.get(value) for value in raw]
    if group in _FLAGS:
        return [None if value is None else extractor.types.get(value, value) in _TRUE for value in raw]
    scale = extractor.scale if group.startswith("tile_") else 1
    return [int(value) * scale if value not in {None, "0"} else None for value in raw]
