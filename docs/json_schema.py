"""docs/json.schema.json from docs/json.md; ``docs/refresh.py`` writes both."""

from __future__ import annotations

import json
from typing import Any

from json_page import Key, read_page

_SIMPLE = {"string", "integer", "number", "boolean", "null", "object"}


def build(page: str | None = None) -> dict[str, Any]:
    """The schema of ``--format json`` from the text of the page; the comparison's is under ``$defs``."""
    documents = read_page(page)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "trace-analyze --format json",
        "description": "Made from docs/json.md by docs/json_schema.py.",
        **_document(documents["result"]),
        "$defs": {"comparison": _document(documents["comparison"])},
    }


def _document(keys: list[Key]) -> dict[str, Any]:
    root: dict[str, Any] = {"type": "object", "properties": {}, "required": []}
    for key in keys:
        *parents, name = key.path.split(".")
        here = root
        for parent in parents:
            here = here["properties"][parent.removesuffix("[]")]
            if parent.endswith("[]"):
                here = here["items"]
            here.setdefault("properties", {})
            here.setdefault("required", [])
        here["properties"][name] = _with_null(_type(key.type, key), key) | {"description": key.meaning}
        if not key.optional:
            here["required"].append(name)
    return root


def _with_null(schema: dict[str, Any], key: Key) -> dict[str, Any]:
    if key.nullable and "type" in schema and schema["type"] != "null":
        return schema | {"type": [schema["type"], "null"]}
    return schema


def _type(word: str, key: Key) -> dict[str, Any]:
    if word == "any":
        return {}
    if word.startswith("list of "):
        return {"type": "array", "items": _type(word.removeprefix("list of "), key)}
    if word.startswith("map of "):
        return {"type": "object", "additionalProperties": _type(word.removeprefix("map of "), key)}
    if word == "distribution":
        numbers = {name: {"type": ["number", "null"]} for name in key.parts[1:]}
        return {"type": "object", "properties": {"n": {"type": "integer"}, **numbers}, "required": list(key.parts)}
    if key.parts:
        return {
            "type": "object",
            "properties": {name: {"type": "number"} for name in key.parts},
            "required": list(key.parts),
            "additionalProperties": False,
        }
    if word not in _SIMPLE:
        raise ValueError(f"json.md: {key.path}: unknown type {word!r}")
    return {"type": word}


def text(page: str | None = None) -> str:
    """The file's content."""
    return json.dumps(build(page), indent=1) + "\n"
