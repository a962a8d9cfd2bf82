"""What each distinct kernel name says: op class, library, data type, tiles, and its hint about the phase.

``kernels.toml`` holds the knowledge: ordered rules (the first match wins), extractors for what else is written in a name
(tiles, element types, flags) and readable labels for wrappers. The work here is per distinct name, never per kernel.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import polars as pl

from ..facts.load import load_table
from ..records.tables import OP_CLASSES
from ..records.trace import Schema
from . import canonical_names as spelling

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
_BATCH = 60
_ASCII = {r"\w": "0-9A-Za-z_", r"\d": "0-9", r"\s": r" \t"}
_SHORTHAND = re.compile(r"\[(?:\\.|[^\]\\])*\]|\\.")


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

    function: str  # pattern on the bare function name
    pattern: str  # pattern on the canonical name
    text: str


@dataclass(frozen=True)
class KernelTable:
    """Everything in kernels.toml."""

    rules: tuple[Rule, ...]
    extractors: tuple[Extractor, ...]
    labels: tuple[Label, ...]


_Reading = tuple[Extractor, list[int], Mapping[str, pl.Series]]


@cache
def kernel_table() -> KernelTable:
    """kernels.toml, read once."""
    data = load_table("kernels")
    return KernelTable(
        rules=tuple(_rule(order, row) for order, row in enumerate(data["rule"], start=1)),
        extractors=tuple(_extractor(row, data) for row in data["extract"]),
        labels=tuple(Label(row["function"], ascii_only(row["pattern"]), row["text"]) for row in data["label"]),
    )


def _rule(order: int, row: Mapping[str, Any]) -> Rule:
    return Rule(
        order=order,
        pattern=ascii_only(row["pattern"]),
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
        pattern=ascii_only(row["pattern"]),
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


def _match_rules(canonical: pl.Series, rules: Sequence[Rule]) -> list[int]:
    """Order number of the first rule that matches each name, -1 where none does.

    Rules go in batches, so that one call tries many and names already matched leave the next batch.
    """
    pending = pl.DataFrame({"text": canonical}).with_row_index("row")
    found = []
    for start in range(0, len(rules), _BATCH):
        batch = rules[start : start + _BATCH]
        first = pl.coalesce(
            pl.when(pl.col("text").str.contains(rule.pattern)).then(pl.lit(rule.order)) for rule in batch
        )
        tried = pending.with_columns(rule=first.cast(pl.Int32))
        found.append(tried.filter(pl.col("rule").is_not_null()).select("row", "rule"))
        pending = tried.filter(pl.col("rule").is_null()).select("row", "text")
        if pending.is_empty():
            break
    found.append(pending.select("row", rule=pl.lit(-1, dtype=pl.Int32)))
    return pl.concat(found).sort("row")["rule"].to_list()


def _short_names(canonical: pl.Series, labels: Sequence[Label]) -> pl.Series:
    short = spelling.short(canonical)
    labelled = short.to_list()
    frame = pl.DataFrame({"text": canonical, "short": short}).with_row_index("row")
    for label in reversed(labels):  # the first label that fits is written last
        wrapped = frame.filter(pl.col("short").str.contains(label.function))
        if wrapped.is_empty():
            continue
        fitting = wrapped.filter(pl.col("text").str.contains(label.pattern))
        for row, text in zip(fitting["row"], fitting["text"].str.replace(label.pattern, label.text), strict=True):
            labelled[row] = text
    return pl.Series("short_name", labelled, dtype=pl.String)


def _extract(
    canonical: pl.Series, rules: Sequence[Rule | None], extractors: Sequence[Extractor]
) -> dict[str, list[Any]]:
    """Columns read out of the names; a value found by an earlier extractor stays."""
    found: dict[str, list[Any]] = {
        column: [None] * len(canonical)
        for column in ("dtype", "weight_dtype", *(_COLUMN_OF.get(size, size) for size in _SIZES), *sorted(_FLAGS))
    }
    for row, rule in enumerate(rules):
        if rule is not None:
            found["dtype"][row], found["weight_dtype"][row] = rule.dtype, rule.weight_dtype
    names = pl.DataFrame({"text": canonical, "op_class": [rule.op_class if rule else "other" for rule in rules]})
    names = names.with_row_index("row")
    specific = [extractor for extractor in extractors if extractor.classes]
    for extractor, rows, groups in _read_by_class(names, specific):
        _keep(extractor, rows, groups, found)
    for extractor in extractors:
        if not extractor.classes:
            untyped = names.filter(pl.Series([dtype is None for dtype in found["dtype"]], dtype=pl.Boolean))
            for _, rows, groups in _read(untyped, [extractor]):
                _keep(extractor, rows, groups, found)
    return found


def _read_by_class(names: pl.DataFrame, extractors: Sequence[Extractor]) -> list[_Reading]:
    """What the extractors read, in their order; those for the same op classes go through the names together."""
    readings: dict[int, _Reading] = {}
    for classes in dict.fromkeys(extractor.classes for extractor in extractors):
        chosen = [number for number, extractor in enumerate(extractors) if extractor.classes == classes]
        rows = names.filter(pl.col("op_class").is_in(classes))
        for number, reading in zip(chosen, _read(rows, [extractors[number] for number in chosen]), strict=True):
            readings[number] = reading
    return [readings[number] for number in sorted(readings)]


def _read(names: pl.DataFrame, extractors: Sequence[Extractor]) -> list[_Reading]:
    """For each extractor: the rows it matches and the text of its groups there."""
    if names.is_empty():  # compiling a pattern costs more than trying it
        return [(extractor, [], {}) for extractor in extractors]
    hits = names.select(
        pl.col("text").str.contains(extractor.pattern).alias(str(number)) for number, extractor in enumerate(extractors)
    )
    readings: list[_Reading] = []
    for number, extractor in enumerate(extractors):
        hit = names.filter(hits[str(number)])
        groups: Mapping[str, pl.Series] = {}
        if not hit.is_empty() and "(?P<" in extractor.pattern:
            fields = hit["text"].str.extract_groups(extractor.pattern).struct.unnest()
            groups = {group: fields[group] for group in fields.columns}
        readings.append((extractor, hit["row"].to_list(), groups))
    return readings


def _keep(extractor: Extractor, rows: list[int], groups: Mapping[str, pl.Series], found: dict[str, list[Any]]) -> None:
    """Write the values of one extractor where nothing was found before."""
    values: dict[str, list[Any]] = {group: [value] * len(rows) for group, value in extractor.constants.items()}
    values.update({group: _values(extractor, group, raw) for group, raw in groups.items()})
    if rows and extractor.token_side is not None:
        values["token_tile"] = values[f"tile_{extractor.token_side}"]
    for group, column_values in values.items():
        column = found[_COLUMN_OF.get(group, group)]
        for row, value in zip(rows, column_values, strict=True):
            if column[row] is None:
                column[row] = value


def _values(extractor: Extractor, group: str, raw: pl.Series) -> list[Any]:
    if group in _TEXT_GROUPS:
        return [None if value is None else extractor.types.get(value) for value in raw]
    if group in _FLAGS:
        return [None if value is None else extractor.types.get(value, value) in _TRUE for value in raw]
    scale = extractor.scale if group.startswith("tile_") else 1
    return [int(value) * scale if value not in {None, "0"} else None for value in raw]


def ascii_only(pattern: str) -> str:
    """The pattern with ``\\w``, ``\\d``, ``\\s`` and ``\\b`` read as ASCII: kernel names are, and it compiles and runs faster."""
    return _SHORTHAND.sub(_ascii_shorthand, pattern)


def _ascii_shorthand(match: re.Match[str]) -> str:
    whole = match[0]
    if whole.startswith("["):
        return re.sub(r"\\[wds]", lambda inner: _ASCII[inner[0]], whole)
    if whole == r"\b":
        return r"(?-u:\b)"
    return f"[{_ASCII[whole]}]" if whole in _ASCII else whole
