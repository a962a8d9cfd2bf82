"""Nested JSON objects as something to read: facts with units taken from their keys, lists of objects as tables.

Used for the parts of the Analysis whose keys differ from capture to capture (what-if, workload, host, evidence).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...analysis.numeric import number_text as fmt
from .. import key_text
from .labels import HIDDEN, LABELS
from .sortable_tables import Column, Table, numbers, texts

Fact = tuple[str, key_text.Text]
MANY = 4  # rows from which on a column of mostly dashes is not worth its width


def key_words(key: str) -> tuple[str, str, str]:
    """(label, unit, kind of number) of a JSON key."""
    return LABELS.get(key) or key_text.split_key(key)


def shown(key: str, value: Any) -> key_text.Text:
    """The text of a value under its key."""
    _, unit, kind = key_words(key)
    if isinstance(value, str) and key.endswith(("source", "schedule", "not_used")):
        return key_text.Text(key_text.label(value))
    return key_text.by_unit(value, unit, kind)


def _is_hidden(key: str, mapping: Mapping[str, Any]) -> bool:
    """Keys of no use to a reader, and reasons that stand beside their null or have nothing to say."""
    if key in HIDDEN:
        return True
    return key.endswith("_reason") and (key.removesuffix("_reason") in mapping or mapping[key] is None)


def facts_of(mapping: Mapping[str, Any], *, prefix: str = "") -> list[Fact]:
    """The scalars of a nested mapping as (label, text) in order; lists of objects are left to ``tables_of``."""
    out: list[Fact] = []
    for key, value in mapping.items():
        name = str(key)
        if _is_hidden(name, mapping) or (name == "reason" and value is None):
            continue
        heading = f"{prefix}{key_words(name)[0]}"
        if isinstance(value, Mapping):
            out += facts_of(_with_unit(name, value), prefix=f"{heading}: ")
        elif _is_list(value):
            if value and not isinstance(value[0], Mapping):
                out.append((heading, key_text.Text(_joined(name, value))))
        else:
            text, why = shown(name, value), key_text.reason_for(mapping, name)
            if not text.known and not why:
                continue  # nothing is known and nothing is said
            out.append((heading, key_text.Text(text.text, text.unit, why, text.known)))
    return out


def grouped(facts: Sequence[Fact]) -> list[tuple[str, list[Fact]]]:
    """Facts under the heading they share (``fit: base`` under ``fit``), those without one first."""
    groups: dict[str, list[Fact]] = {"": []}
    for label, text in facts:
        heading, colon, rest = label.partition(": ")
        if colon:
            groups.setdefault(heading, []).append((rest, text))
        else:
            groups[""].append((label, text))
    small = [h for h, members in groups.items() if h and len(members) < MANY - 1]
    for heading in small:  # too few for a heading of their own
        groups[""] += [(f"{heading}: {label}", text) for label, text in groups.pop(heading)]
    return [(heading, members) for heading, members in groups.items() if members]


def tables_of(mapping: Mapping[str, Any], base: str, *, prefix: str = "") -> list[Table]:
    """Every list of objects inside ``mapping`` as a table, its id made from ``base`` and its key."""
    out: list[Table] = []
    for key, value in mapping.items():
        caption = f"{prefix}{key_words(str(key))[0]}"
        if isinstance(value, Mapping):
            out += tables_of(value, f"{base}-{key}", prefix=f"{caption}: ")
        elif _is_list(value) and value and isinstance(value[0], Mapping):
            out.append(table_of(f"{base}-{key}", caption, value))
    return out


def table_of(table_id: str, caption: str, rows: Sequence[Mapping[str, Any]], *, fold: bool = True) -> Table:
    """A list of objects as a table; its columns are the scalar keys of all rows, in order of first appearance.

    With ``fold``, keys that few rows have share one last column, so that a table is not made of dashes.
    """
    keys = list(dict.fromkeys(str(k) for row in rows for k in row))
    keys = [k for k in keys if not k.endswith("_reason") and k not in HIDDEN]
    keys = [k for k in keys if not any(isinstance(row.get(k), Mapping) for row in rows)]
    rare = [
        k for k in keys if fold and len(rows) >= MANY and sum(row.get(k) is not None for row in rows) * 2 < len(rows)
    ]
    kept = [k for k in keys if k not in rare or len(rare) < 2]
    columns = [_column(key, rows) for key in kept]
    if len(kept) < len(keys):
        columns.append(texts("also", "also", [_also(row, rare) for row in rows]))
    safe = "".join(c if c.isalnum() else "-" for c in table_id)
    return Table(safe, caption, columns, len(rows))


def _also(row: Mapping[str, Any], keys: Sequence[str]) -> str:
    known = [k for k in keys if row.get(k) is not None and row[k] is not False]
    return ", ".join(key_words(k)[0] if row[k] is True else f"{key_words(k)[0]} {shown(k, row[k])}" for k in known)


def _column(key: str, rows: Sequence[Mapping[str, Any]]) -> Column:
    label, unit, kind = key_words(key)
    values = [row.get(key) for row in rows]
    known = [v for v in values if v is not None]
    if known and all(isinstance(v, int | float) and not isinstance(v, bool) for v in known):
        if kind == "ns":
            values = [None if v is None else v / 1e6 for v in values]
        show = (lambda v: fmt.scaled(v, unit)) if kind == "si" else fmt.number
        reasons = [key_text.reason_for(row, key) or str(row.get("reason") or "") for row in rows]
        return numbers(key, label, values, unit="" if kind == "si" else unit, show=show, reasons=reasons)
    words = [None if v is None else _joined(key, v) if _is_list(v) else shown(key, v).text for v in values]
    return texts(key, label, words, kind="phase" if key == "phase" else "text")


def _with_unit(key: str, value: Mapping[str, Any]) -> Mapping[str, Any]:
    """A mapping of numbers under a key with a unit (``phase_ms: {...}``): the unit goes to its members."""
    suffix = key_text.unit_suffix(key)
    return {k if k == "n" else f"{k}{suffix}": v for k, v in value.items()} if suffix else value


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _joined(key: str, values: Sequence[Any], limit: int = 40) -> str:
    text = ", ".join(str(shown(key, v)) for v in values[:limit])
    return text + (f", … ({len(values)} in all)" if len(values) > limit else "")
