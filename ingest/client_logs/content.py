"""The bytes of a log as text or JSON, forgiving what the programs write: gzip, several objects, bare Infinity."""

from __future__ import annotations

import ast
import gzip
import json
import re
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import orjson

from ...analysis.records.errors import UsageError

Object = Mapping[str, Any]
LARGEST = 4e18
MOST_SECONDS = 4.1e9
MOST_TOKENS = 2e9
_NOT_FINITE = re.compile(rb"(?<=[:,\[])(\s*)-?(?:Infinity|NaN)(?=\s*[,}\]])")


def read_content(path: Path) -> bytes:
    """The file's bytes, unpacked where it is gzipped. Raises UsageError where it cannot be read."""
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"--client {path.name}: the file cannot be read ({type(error).__name__}).") from error


def json_objects(content: bytes) -> list[Any] | None:
    """The JSON values of a file: one value, one a line, or objects one after the other. None: it is not JSON.

    Infinity and NaN become null; a last line that was cut off is left out.
    """
    if content.lstrip()[:1] not in (b"{", b"["):
        return None
    if b"Infinity" in content or b"NaN" in content:
        content = _NOT_FINITE.sub(rb"\1null", content)
    try:
        return [orjson.loads(content)]
    except orjson.JSONDecodeError:
        pass
    lines = [line for line in content.splitlines() if line.strip()]
    found = []
    for number, line in enumerate(lines):
        try:
            found.append(orjson.loads(line))
        except orjson.JSONDecodeError:
            if number == len(lines) - 1 and found:
                return found
            return _one_after_the_other(content)
    return found


def _one_after_the_other(content: bytes) -> list[Any] | None:
    decoder, text, at = json.JSONDecoder(), content.decode("utf-8", "replace"), 0
    found: list[Any] = []
    while at < len(text):
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
        if at == len(text):
            break
        try:
            value, at = decoder.raw_decode(text, at)
        except ValueError:
            return found or None
        found.append(value)
    return found


def text_lines(content: bytes) -> list[str]:
    """The file's lines as text."""
    return content.decode("utf-8", "replace").splitlines()


def objects_only(values: Iterable[Any]) -> list[Object]:
    """The JSON objects among some values, lists of objects opened."""
    found: list[Object] = []
    for value in values:
        if isinstance(value, dict):
            found.append(value)
        elif isinstance(value, list):
            found += [v for v in value if isinstance(v, dict)]
    return found


def python_dict(text: str) -> Object | None:
    """A dict in Python's notation (TensorRT-LLM writes its log lines so); None where it is none."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return cast(Object, value) if isinstance(value, dict) else None


def number(value: Any, most: float = LARGEST) -> float | None:
    """A number of at most ``most`` either side of 0, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) <= most else None


def whole(value: Any) -> int | None:
    """A whole number that fits into 62 bits, or None for anything else; integers keep all their digits."""
    return None if number(value) is None else int(value)


def count(value: Any) -> int | None:
    """A number of tokens or requests, or None for anything else."""
    found = number(value, MOST_TOKENS)
    return None if found is None or found < 0 else int(found)


def seconds_as_ns(value: Any) -> int | None:
    """Seconds as whole ns, None where it is no number of seconds this side of the year 2100."""
    found = number(value, MOST_SECONDS)
    return None if found is None else round(found * 1e9)
