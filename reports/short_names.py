"""Kernel names cut to the room there is, and still told apart."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence


def shorten(text: str, limit: int) -> str:
    """``text`` with its middle left out where it is longer than ``limit`` characters."""
    if len(text) <= limit:
        return text
    head = (limit - 1) * 2 // 3
    return f"{text[:head]}…{text[len(text) - (limit - 1 - head) :]}"


def distinct_names(short: Sequence[str], full: Sequence[str], limit: int) -> list[str]:
    """``short`` names cut to ``limit``, with what tells them apart where two different names would read the same.

    Names that part in the middle (tiles) are cut so that the part that differs stays. Variants of one function
    (``gemvx::kernel`` for two types) differ only in what a short name leaves out: the first word in which their full
    names differ stands at the end, else a number.
    """
    names = [s or f for s, f in zip(short, full, strict=True)]
    texts = [shorten(name, limit) for name in names]
    for rows in _standing_twice(texts):
        start = _first_difference([names[i] for i in rows])
        for i in rows:
            texts[i] = _cut_around(names[i], start, limit)
    word_length = max(4, limit // 3)
    for endings in (lambda whole: _differing_words(whole, word_length), _numbers):
        for rows in _standing_twice(texts):
            whole = list(dict.fromkeys(full[i] for i in rows))
            if len(whole) < 2:
                continue  # one kernel in two phases
            ends = dict(zip(whole, endings(whole), strict=True))
            for i in rows:
                end = ends[full[i]]
                texts[i] = f"{shorten(names[i], limit - len(end) - 1)}~{end}" if end else texts[i]
    return texts


def _standing_twice(texts: Sequence[str]) -> list[list[int]]:
    """The places of every text that stands more than once."""
    places: dict[str, list[int]] = {}
    for at, text in enumerate(texts):
        places.setdefault(text, []).append(at)
    return [rows for rows in places.values() if len(rows) > 1]


def _first_difference(names: Sequence[str]) -> int:
    """Where the word begins in which ``names`` first differ."""
    together = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    common = "".join(letters[0] for letters in together)
    return len(common) if len(set(names)) == 1 else max(common.rfind(mark) for mark in "_ :") + 1


def _cut_around(name: str, start: int, limit: int) -> str:
    """``name`` cut to ``limit`` with the text from ``start`` on kept as far as possible."""
    if len(name) <= limit or start >= len(name):
        return shorten(name, limit)
    room = max(limit // 2, limit - start)
    head = name[:start] if start <= limit - room else f"{name[: limit - room - 1]}…"
    return head + shorten(name[start:], room)


def _differing_words(names: Sequence[str], most: int) -> list[str]:
    """The end of the word at which ``names`` part, at most ``most`` characters; '' where no word tells them all apart."""
    words = [re.findall(r"\w+", name) for name in names]
    for position in range(max(map(len, words), default=0)):
        found = [w[position][-most:] if position < len(w) else "" for w in words]
        if len(set(found)) == len(found) and all(found):
            return found
    return [""] * len(names)


def _numbers(names: Sequence[str]) -> list[str]:
    """A number for each name."""
    return [str(number) for number in range(1, len(names) + 1)]
