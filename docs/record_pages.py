"""Sections of docs/json.md from the records themselves: keys, types and meaning, in the order of the JSON.

A field's meaning is the comment ``#: ...`` behind it or above it in the source of its class; units are in the key.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec

from trace_analyze.analysis.records.advice import Finding
from trace_analyze.analysis.records.devices import Device, Window
from trace_analyze.analysis.records.host import HostSide
from trace_analyze.analysis.records.record import Record
from trace_analyze.analysis.records.summary import ByCause, ByPhase, GroupSummary, KnownSteps, Spread, Summary
from trace_analyze.analysis.records.trust import Trust
from trace_analyze.analysis.records.what_if import WhatIf
from trace_analyze.analysis.records.work import Measured, Model, Roofline, Traffic
from trace_analyze.analysis.records.workload import Workload

#: JSON object -> the record that it is made from.
RECORDS: dict[str, type[Record]] = {
    "devices[]": Device,
    "model": Model,
    "window": Window,
    "trust": Trust,
    "summary": Summary,
    "groups[]": GroupSummary,
    "findings[]": Finding,
    "roofline": Roofline,
    "traffic": Traffic,
    "host": HostSide,
    "what_if": WhatIf,
    "workload": Workload,
    "measured": Measured,
}
_SIMPLE = {str: "string", int: "integer", float: "number", bool: "boolean"}
_NAMED = {Spread: "distribution", ByPhase: "by phase", ByCause: "by cause", KnownSteps: "counted"}
_FIELD = re.compile(r"^    (\w+): [^#]*(?:#: (.*))?$")


@dataclass(frozen=True)
class Row:
    """One key of a record as the page has it."""

    key: str
    word: str  # 'number', 'list of object', ...
    nullable: bool
    optional: bool
    meaning: str
    records: tuple[type[Record], ...] = ()  # what the objects below it are made from

    @property
    def type_cell(self) -> str:
        """The second column."""
        null = " or null" if self.nullable and self.word != "null" else ""
        return f"{self.word}{null}{', optional' if self.optional else ''}"


def sections(path: str, records: tuple[type[Record], ...]) -> Iterator[str]:
    """The section of the object at ``path`` and those of the objects inside it, as Markdown."""
    rows = _merged([list(_rows(record)) for record in records])
    lines = [f"### `{path}`", ""]
    if len(records) == 1:
        lines += [_lead(records[0]), ""]
    lines += ["| key | type | meaning |", "|---|---|---|"]
    lines += [f"| `{row.key}` | {row.type_cell} | {row.meaning} |" for row in rows]
    yield "\n".join(lines) + "\n"
    for row in rows:
        if row.records and row.word in ("object", "list of object"):
            yield from sections(f"{path}.{row.key}{'[]' if row.word != 'object' else ''}", row.records)


def block(path: str) -> str:
    """Everything the page says of one of ``RECORDS``."""
    return "\n".join(sections(path, (RECORDS[path],)))


def _lead(record: type[Record]) -> str:
    text = inspect.getdoc(record) or ""
    return text.split("\n\n", 1)[0].replace("``", "`").replace("\n", " ")


def _merged(kinds: list[list[Row]]) -> list[Row]:
    """The keys of objects of several kinds; one that some kinds lack is optional."""
    merged: dict[str, Row] = {}
    for row in (row for rows in kinds for row in rows):
        seen = merged.get(row.key)
        missing = sum(row.key not in {each.key for each in rows} for rows in kinds) > 0
        optional = row.optional or missing or (seen is not None and seen.optional)
        nullable = row.nullable or (seen is not None and seen.nullable)
        merged[row.key] = replace(seen or row, optional=optional, nullable=nullable)
    return list(merged.values())


def _rows(record: type[Record]) -> Iterator[Row]:
    hints = typing.get_type_hints(record)
    meanings = {key: text for kind in reversed(record.__mro__) for key, text in _meanings(kind).items()}
    later = [key for key in record.__struct_fields__ if key not in record.FIRST_KEYS]
    for key in (*record.FIRST_KEYS, *later):
        yield _row(key, hints[key], meanings[key])


def _meanings(kind: type) -> dict[str, str]:
    """The ``#:`` comments of the fields that a class declares itself. Raises ValueError for a field without one."""
    if kind is Record or not issubclass(kind, Record):
        return {}
    found: dict[str, str] = {}
    above: list[str] = []
    for line in inspect.getsource(kind).splitlines():
        if line.startswith("    #: "):
            above.append(line[7:].strip())
        elif (field := _FIELD.match(line)) and field[1] in kind.__struct_fields__:
            found[field[1]] = field[2] or " ".join(above)
            above = []
            if not found[field[1]]:
                raise ValueError(f"{kind.__name__}.{field[1]} has no #: comment that says what it is")
        else:
            above = []
    return found


def _row(key: str, hint: object, meaning: str) -> Row:
    parts = _alternatives(hint)
    word, records = _word([part for part in parts if part not in (msgspec.UnsetType, type(None))])
    if len(records) > 1 and word == "object":
        word, records = "map of any", ()  # its keys depend on another one
    return Row(key, word, type(None) in parts, msgspec.UnsetType in parts, meaning, records)


def _alternatives(hint: object) -> list[object]:
    union = typing.get_origin(hint) in (types.UnionType, typing.Union)
    return list(typing.get_args(hint)) if union else [hint]


def _word(kinds: list[object]) -> tuple[str, tuple[type[Record], ...]]:
    """The page's word for a type, and the records of the objects in it."""
    if not kinds:
        return "null", ()
    if len(kinds) == 1:
        return _word_of_one(kinds[0])
    records = tuple(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Record))
    if len(records) == len(kinds):
        return "object", records
    return ("number" if set(kinds) == {int, float} else "any"), ()


def _word_of_one(kind: object) -> tuple[str, tuple[type[Record], ...]]:
    origin, inside = typing.get_origin(kind) or kind, typing.get_args(kind)
    simple = _NAMED.get(origin) or _SIMPLE.get(origin)
    if simple is not None:
        return simple, ()
    if origin in (dict, tuple):
        word, records = _word(_alternatives(inside[1] if origin is dict else inside[0]))
        if origin is tuple:
            return f"list of {word}", records
        return f"map of {'any' if word == 'object' else word}", ()
    if isinstance(origin, type) and issubclass(origin, Record):
        return "object", (origin,)
    raise ValueError(f"no word for {kind!r}")
