"""JSON keys as words, and their values with the unit that the key names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ..analysis.numeric.number_text import NOT_KNOWN, is_known, number, percent, scaled

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


def by_key(key: str, value: object) -> Text:
    """The text of a JSON value, its unit taken from its key: ``by_key('stall_ms', 240.0)`` -> ``240 ms``."""
    _, unit, kind = split_key(key)
    return by_unit(value, unit, kind)


def by_unit(value: object, unit: str, kind: str) -> Text:
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


def reason_for(record: Mapping[str, object], key: str) -> str:
    """Why ``record[key]`` is null: ``<key>_reason`` beside it."""
    return str(record.get(f"{key}_reason") or "")
