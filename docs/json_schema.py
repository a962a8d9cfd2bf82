"""Writes docs/json.schema.json from docs/json.md.

python docs/json_schema.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from json_page import Key, read_page

TARGET = Path(__file__).with_name("json.schema.json")
_SIMPLE = {"string", "integer", "number", "boolean", "null", "object"}


def build() -> dict[str, Any]:
    """The schema of ``--format json``; the comparison's is under ``$defs``."""
    documents = read_page()
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


def text() -> str:
    """The file's content."""
    return json.dumps(build(), indent=1) + "\n"


if __name__ == "__main__":
    TARGET.write_text(text(), "utf-8")
