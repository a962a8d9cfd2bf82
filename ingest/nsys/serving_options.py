"""Serving options from a recorded command line, by the allow-list of ``vocabulary.toml``; nothing else is kept.

A value is kept only where it reads as what the option takes (a count, a known word, a model's own name): the rest of
a command line, and anything that stands where a value should, stays behind.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from ...analysis.records.trace import ServingFacts
from .vocabulary import vocabulary

NO_SERVING = ServingFacts()
SCRIPT_SUFFIX = re.compile(r"\.(py|sh|exe|bin|out)$", re.IGNORECASE)
CACHED_MODEL = re.compile(r"models--([\w.-]+?)--([\w.-]+?)[/\\]snapshots")
MODEL_NAME = re.compile(r"[\w.+:@-]{1,120}")
COUNT = re.compile(r"(\d{1,9})([kKmM]?)")
MULTIPLES = {"": 1, "k": 1000, "K": 1024, "m": 1_000_000, "M": 1_048_576}
TRUTH = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
SERVE_VERBS = frozenset({"serve", "api_server", "api-server", "chat"})


def serving_facts(command_lines: Sequence[Sequence[str]]) -> ServingFacts:
    """The serving options of the first command line that names an engine or sets an option; empty where none does."""
    for words in command_lines:
        facts = _of_one(list(_flattened(words)))
        if facts != NO_SERVING:
            return facts
    return NO_SERVING


def model_name(text: str) -> str | None:
    """A model's own name: 'meta-llama/Llama-3.1-8B' -> 'Llama-3.1-8B'; a snapshot of the Hugging Face cache is named
    by its repository; what does not look like a name is dropped."""
    cached = CACHED_MODEL.search(text)
    name = cached[2] if cached else _parts(text)[-1] if _parts(text) else ""
    return name if MODEL_NAME.fullmatch(name) else None


def _parts(path: str) -> tuple[str, ...]:
    return PureWindowsPath(path).parts if "\\" in path else PurePosixPath(path).parts


def _flattened(words: Sequence[str]) -> Iterator[str]:
    """The words, a shell's ``-c`` argument split into its own."""
    for place, word in enumerate(words):
        if place and " " in word and re.fullmatch(r"-\w*c", words[place - 1]):
            try:
                yield from shlex.split(word)
            except ValueError:  # an unclosed quote
                yield from word.split()
        else:
            yield word


def _of_one(words: list[str]) -> ServingFacts:
    engine = _engine(words)
    found: dict[str, Any] = {}
    place = 0
    while place < len(words):
        place += _take(words, place, engine, found)
    if "model" not in found and engine is not None:
        found["model"] = _positional_model(words)
    return ServingFacts(engine=engine, **found)


def _engine(words: Sequence[str]) -> str | None:
    programs = [_parts(word) for word in words if not word.startswith("-") and "=" not in word and _parts(word)]
    for row in vocabulary()["engine"]:
        for parts in programs:
            name = SCRIPT_SUFFIX.sub("", parts[-1]).lower()
            if any(re.match(re.escape(start) + r"($|[._-])", name) for start in row["starts"]):
                return str(row["name"])
    for row in vocabulary()["engine"]:
        for parts in programs:
            folders = {part.lower() for part in parts[:-1]}
            if parts[-1].endswith(".py") and folders & set(row["folder"]):
                return str(row["name"])
    return None


@cache
def _options() -> dict[str, list[tuple[str, str, str | None]]]:
    """Flag -> (field, how its value is read, only for which engine)."""
    options: dict[str, list[tuple[str, str, str | None]]] = {}
    for row in vocabulary()["option"]:
        for flag in row["flags"]:
            options.setdefault(_normal(flag), []).append((row["field"], row["value"], row.get("engine")))
    return options


def _normal(flag: str) -> str:
    return flag.replace("_", "-").lower()


def _take(words: list[str], place: int, engine: str | None, found: dict[str, Any]) -> int:
    """Read the option at ``place`` into ``found``; how many words it took."""
    flag, has_value, value = words[place].partition("=")
    if not flag.startswith("-"):
        return 1
    following = words[place + 1] if place + 1 < len(words) else ""
    for field, how, only_for in _options().get(_normal(flag), ()):
        if only_for is not None and only_for != engine:
            continue
        if how in {"switch_on", "switch_off"}:
            if not has_value:
                found.setdefault(field, how == "switch_on")
                return 1
            continue
        read = _read(how, value if has_value else following)
        if read is None:
            continue
        if how == "chunk":  # more telling than any other limit of a batch
            found["chunked_prefill"] = read > 0
            if read > 0:
                found[field] = read
        else:
            found.setdefault(field, read)
        return 1 if has_value else 2
    return 1


def _read(how: str, text: str) -> Any:
    """The value of an option, or None where the text does not read as one."""
    if how == "chunk" and text == "-1":
        return -1
    if how in {"count", "chunk"}:
        match = COUNT.fullmatch(text)
        return int(match[1]) * MULTIPLES[match[2]] if match else None
    if how == "model":
        return None if text.startswith("-") else model_name(text)
    if how == "yes":
        return TRUTH.get(text.lower())
    if how == "json_method":
        try:
            text = str(json.loads(text)["method"])
        except (ValueError, TypeError, KeyError, RecursionError):
            return None
        how = "speculative"
    return text.lower() if re.fullmatch(vocabulary()["words"][how], text, re.IGNORECASE) else None


def _positional_model(words: Sequence[str]) -> str | None:
    """The model of ``vllm serve MODEL``, ``lmdeploy serve api_server MODEL`` and ``trtllm-serve MODEL``."""
    for place, word in enumerate(words[:-1]):
        following = words[place + 1]
        is_verb = word in SERVE_VERBS or _parts(word)[-1:] == ("trtllm-serve",)
        if is_verb and following not in SERVE_VERBS:
            return None if following.startswith("-") else model_name(following)
    return None
