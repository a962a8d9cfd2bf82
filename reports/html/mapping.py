"""Nested JSON objects as something to read: facts with units taken from their keys, lists of objects as tables.

Used for the parts of the Analysis whose keys differ from capture to capture (what-if, workload, host, evidence).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .. import format as fmt
from .tables import Column, Table, numbers, texts

Fact = tuple[str, fmt.Text]
_HIDDEN = ("_reason", "null_reasons")


def facts_of(mapping: Mapping[str, Any], *, prefix: str = "") -> list[Fact]:
    """The scalars of a nested mapping as (label, text) in order; lists of objects are left to ``tables_of``."""
    out: list[Fact] = []
    for key, value in mapping.items():
        name = str(key)
        if name.endswith(_HIDDEN) and (name == "null_reasons" or name.removesuffix("_reason") in mapping):
            continue
        heading = f"{prefix}{fmt.split_key(name)[0]}"
        if isinstance(value, Mapping):
            out += facts_of(_with_unit(name, value), prefix=f"{heading}: ")
        elif _is_list(value):
            if value and not isinstance(value[0], Mapping):
                out.append((heading, fmt.Text(_joined(name, value))))
        else:
            text = fmt.by_key(name, value)
            out.append((heading, fmt.Text(text.text, text.unit, fmt.reason_for(mapping, name), text.known)))
    return out


def tables_of(mapping: Mapping[str, Any], base: str, *, prefix: str = "") -> list[Table]:
    """Every list of objects inside ``mapping`` as a table, its id made from ``base`` and its key."""
    out: list[Table] = []
    for key, value in mapping.items():
        caption = f"{prefix}{fmt.label(str(key))}"
        if isinstance(value, Mapping):
            out += tables_of(value, f"{base}-{key}", prefix=f"{caption}: ")
        elif _is_list(value) and value and isinstance(value[0], Mapping):
            out.append(table_of(f"{base}-{key}", caption, value))
    return out


def table_of(table_id: str, caption: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """A list of objects as a table; its columns are the scalar keys of all rows, in order of first appearance."""
    keys = [k for k in dict.fromkeys(k for row in rows for k in row) if not str(k).endswith("_reason")]
    columns = [_column(str(key), rows) for key in keys if not any(isinstance(row.get(key), Mapping) for row in rows)]
    safe = "".join(c if c.isalnum() else "-" for c in table_id)
    return Table(safe, caption, columns, len(rows))


def _column(key: str, rows: Sequence[Mapping[str, Any]]) -> Column:
    label, unit, kind = fmt.split_key(key)
    values = [row.get(key) for row in rows]
    known = [v for v in values if v is not None]
    if known and all(isinstance(v, int | float) and not isinstance(v, bool) for v in known):
        if kind == "ns":
            values = [None if v is None else v / 1e6 for v in values]
        show = (lambda v: fmt.scaled(v, unit)) if kind == "si" else fmt.number
        reasons = [fmt.reason_for(row, key) or str(row.get("reason") or "") for row in rows]
        return numbers(key, label, values, unit="" if kind == "si" else unit, show=show, reasons=reasons)
    shown = [None if v is None else _joined(key, v) if _is_list(v) else fmt.by_key(key, v).text for v in values]
    return texts(key, label, shown, kind="phase" if key == "phase" else "text")


def _with_unit(key: str, value: Mapping[str, Any]) -> Mapping[str, Any]:
    """A mapping of numbers under a key with a unit (``phase_ms: {...}``): the unit goes to its members."""
    suffix = fmt.unit_suffix(key)
    return {k if k == "n" else f"{k}{suffix}": v for k, v in value.items()} if suffix else value


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _joined(key: str, values: Sequence[Any], limit: int = 40) -> str:
    shown = ", ".join(str(fmt.by_key(key, v)) for v in values[:limit])
    return shown + (f", … ({len(values)} in all)" if len(values) > limit else "")
