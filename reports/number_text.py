"""How numbers read, the same in every report: units always, thousands separated, unknown said with its reason.

Nothing here computes: a value goes in, its text comes out. Three significant digits are shown, because a capture
does not hold more, and whole numbers in full.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NOT_KNOWN = "not known"
AT_LEAST = "≥ "
_SI = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
# from which size on a small number shows how many decimals; as in ``number`` by the rounded value: 9.999 is 10.0
_DECIMALS = ((0.09995, 3), (0.009995, 4), (0.0009995, 5))
# unit suffix of a JSON key -> (unit shown, kind of number); the longest suffix that fits wins
KEY_UNITS: Mapping[str, tuple[str, str]] = {
    "_tokens_per_s": ("token/s", "number"),
    "_flop_per_byte": ("FLOP/byte", "number"),
    "_request_ms": ("request·ms", "number"),
    "_gbps": ("GB/s", "number"),
    "_gb_per_s": ("GB/s", "number"),
    "_tflops": ("TFLOP/s", "number"),
    "_bytes": ("B", "si"),
    "_flop": ("FLOP", "si"),
    "_pct": ("%", "pct"),
    "_mhz": ("MHz", "number"),
    "_hz": ("Hz", "si"),
    "_gb": ("GB", "number"),
    "_ns": ("ms", "ns"),
    "_us": ("µs", "number"),
    "_ms": ("ms", "number"),
    "_s": ("s", "number"),
    "_w": ("W", "number"),
}
_RATE = re.compile(r"(?P<what>\w+?)_(?P<unit>bytes|flop|ms|us|ns)_per_(?P<per>(?!byte$)\w+)")
_WORDS = {
    "mfu": "MFU",
    "mbu": "MBU",
    "hfu": "HFU",
    "kv": "KV",
    "gpu": "GPU",
    "sm": "SM",
    "dram": "DRAM",
    "nvtx": "NVTX",
    "nvml": "NVML",
    "flop": "FLOP",
    "id": "id",
    "p50": "p50",
    "p95": "p95",
    "p99": "p99",
    "l2": "L2",
    "itl": "ITL",
    "cpu": "CPU",
    "r2": "R²",
    "n": "n",
}


@dataclass(frozen=True)
class Text:
    """A value ready to be shown: its text, its unit, and why it is not known where it is not."""

    text: str
    unit: str = ""
    reason: str = ""
    known: bool = True

    def __str__(self) -> str:
        """The text with its unit."""
        if not self.unit or not self.known:
            return self.text
        return f"{self.text}{self.unit}" if self.unit == "%" else f"{self.text} {self.unit}"


def is_known(value: Any) -> bool:
    """Whether ``value`` is a fact: neither None nor a not-a-number."""
    return value is not None and not (isinstance(value, float) and not math.isfinite(value))


def number(value: float | None) -> str:
    """Three significant digits with thousands separated: ``1,234``, ``61.2``, ``0.0371``; ``not known`` for None."""
    if value is None:
        return NOT_KNOWN
    if isinstance(value, int) or value == 0:
        return f"{int(value):,}"
    size = abs(value)
    if size >= 0.9995:  # by far the most numbers of a page: asked first
        decimals = 0 if size >= 99.95 else 1 if size >= 9.995 else 2
        return f"{value:,.{decimals}f}" if size < math.inf else NOT_KNOWN
    decimals = next((count for at_least, count in _DECIMALS if size >= at_least), -1)
    if decimals < 0:
        return f"{value:.1e}" if not math.isnan(size) else NOT_KNOWN
    return f"{value:.{decimals}f}"


def whole(value: float | None) -> str:
    """A count with thousands separated; ``not known`` for None."""
    return NOT_KNOWN if not is_known(value) else f"{round(value):,}"  # type: ignore[arg-type]


def scaled(value: float | None, unit: str) -> str:
    """A number with an SI prefix and its unit: ``13.3 GB``, ``2.15 TFLOP``; ``not known`` for None."""
    if not is_known(value):
        return NOT_KNOWN
    assert value is not None
    for factor, prefix in _SI:
        if abs(value) >= factor * 0.9995:
            return f"{number(float(value) / factor)} {prefix}{unit}"
    return f"{number(value)} {unit}"


def percent(value: float | None, *, at_least: bool = False) -> str:
    """A percentage with one decimal: ``61.2%``; ``≥ 61.2%`` for a lower bound; ``not known`` for None."""
    if not is_known(value):
        return NOT_KNOWN
    assert value is not None
    text = f"{value:.1f}%" if value == 0 or abs(value) >= 0.05 else f"{value:.2g}%"
    return AT_LEAST + text if at_least else text


def milliseconds(value: float | None, *, at_least: bool = False) -> str:
    """A duration in the unit that reads best: ``3.71 ms``, ``16.5 s``, ``41.2 µs``; ``not known`` for None."""
    if not is_known(value):
        return NOT_KNOWN
    assert value is not None
    if abs(value) >= 9999.5:
        text = f"{number(value / 1e3)} s"
    elif value == 0 or abs(value) >= 0.09995:
        text = f"{number(value)} ms"
    else:
        text = f"{number(value * 1e3)} µs"
    return AT_LEAST + text if at_least else text


def nanoseconds(value: float | None) -> str:
    """As :func:`milliseconds`, of a value in ns."""
    return milliseconds(value / 1e6) if value is not None else NOT_KNOWN


def plural(count: int, one: str, many: str = "") -> str:
    """``1 stall``, ``7 stalls``, ``2 batches``."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def split_key(key: str) -> tuple[str, str, str]:
    """A JSON key as (label, unit, kind): ``decode_step_ms`` -> ``('decode step', 'ms', 'number')``.

    A rate keeps its denominator in the unit: ``kv_bytes_per_token`` -> ``('KV', 'B/token', 'si')``.
    """
    rate = _RATE.fullmatch(key)
    if rate and rate["what"]:
        unit, kind = KEY_UNITS[f"_{rate['unit']}"]
        return label(rate["what"]), f"{unit}/{label(rate['per'])}", kind
    suffix = unit_suffix(key)
    if not suffix:
        return label(key), "", "plain"
    unit, kind = KEY_UNITS[suffix]
    return label(key[: -len(suffix)]), unit, kind


def unit_suffix(key: str) -> str:
    """The suffix of a JSON key that names its unit, '' without one; the longest that fits wins."""
    fitting = [suffix for suffix in KEY_UNITS if key.endswith(suffix) and len(key) > len(suffix)]
    return max(fitting, key=len, default="")


def label(key: str) -> str:
    """A JSON key as words: ``decode_mbu_wall`` -> ``decode MBU wall``."""
    return " ".join(_WORDS.get(word, word) for word in key.split("_"))


def by_key(key: str, value: Any) -> Text:
    """The text of a JSON value, its unit taken from its key: ``by_key('stall_ms', 240.0)`` -> ``240 ms``."""
    _, unit, kind = split_key(key)
    return by_unit(value, unit, kind)


def by_unit(value: Any, unit: str, kind: str) -> Text:
    """The text of a value of ``unit``; ``kind`` is one of those of ``KEY_UNITS``, or 'plain'."""
    if not is_known(value):
        return Text(NOT_KNOWN, known=False)
    if isinstance(value, bool):
        return Text("yes" if value else "no")
    if not isinstance(value, int | float):
        return Text(str(value))
    if kind == "ns":
        return Text(number(value / 1e6), "ms")
    if kind == "si":
        return Text(scaled(value, unit).rstrip())
    return Text(percent(value)) if kind == "pct" else Text(number(value), unit)


def reason_for(mapping: Mapping[str, Any], key: str) -> str:
    """Why ``mapping[key]`` is null: ``<key>_reason`` beside it."""
    return str(mapping.get(f"{key}_reason") or "")


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
    for rows in _alike(texts):
        start = _parting([names[i] for i in rows])
        for i in rows:
            texts[i] = _cut_around(names[i], start, limit)
    most = max(4, limit // 3)
    for tell in (_differences, _numbers):
        for rows in _alike(texts):
            whole = list(dict.fromkeys(full[i] for i in rows))
            if len(whole) < 2:
                continue  # one kernel in two phases
            ends = dict(zip(whole, tell(whole, most), strict=True))
            for i in rows:
                end = ends[full[i]]
                texts[i] = f"{shorten(names[i], limit - len(end) - 1)}~{end}" if end else texts[i]
    return texts


def _alike(texts: Sequence[str]) -> list[list[int]]:
    """The places of every text that stands more than once."""
    places: dict[str, list[int]] = {}
    for at, text in enumerate(texts):
        places.setdefault(text, []).append(at)
    return [rows for rows in places.values() if len(rows) > 1]


def _parting(names: Sequence[str]) -> int:
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


def _differences(names: Sequence[str], most: int) -> list[str]:
    """The end of the word at which ``names`` part, at most ``most`` characters; '' where no word tells them all apart."""
    words = [re.findall(r"\w+", name) for name in names]
    for position in range(max(map(len, words), default=0)):
        found = [w[position][-most:] if position < len(w) else "" for w in words]
        if len(set(found)) == len(found) and all(found):
            return found
    return [""] * len(names)


def _numbers(names: Sequence[str], most: int) -> list[str]:
    """A number for each name; ``most`` characters are never needed."""
    del most
    return [str(number) for number in range(1, len(names) + 1)]
