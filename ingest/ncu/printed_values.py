"""Numbers as Nsight Compute prints them: thousands separators, decimal commas, scaled units, words for no value."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_NO_VALUE = frozenset({"", "n/a", "no data", "nan", "-nan", "inf", "-inf", "none", "null", "(!) n/a", "(!) nan"})
_SPACES = re.compile(r"[\s\u00a0\u202f'\u2019]")  # also thousands separators of some locales

_COMMA_IS_DECIMAL = re.compile(r"^-?\d+,(?:\d{1,2}|\d{4,})$|^-?\d{1,3}(?:\.\d{3})+,\d+$|^-?\d{1,3}(?:\.\d{3}){2,}$")
_POINT_IS_DECIMAL = re.compile(r"^-?\d+\.(?:\d{1,2}|\d{4,})$|^-?\d{1,3}(?:,\d{3})+\.\d+$|^-?\d{1,3}(?:,\d{3}){2,}$")

_TIME_NS = {
    "ns": 1.0, "nsecond": 1.0, "us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6, "s": 1e9, "second": 1e9,
}  # fmt: skip
_PREFIXES = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30}
_COUNTED = frozenset(
    (
        *("", "inst", "op", "cycle", "warp", "thread", "block", "sector", "request", "cluster", "SM", "sample"),
        *("pass", "register", "register/thread", "khz"),
    )
)
_KINDS = {
    ("byte", ""): "byte",
    ("byte", "block"): "byte",
    ("byte", "s"): "byte/s",
    ("byte", "second"): "byte/s",
    ("hz", ""): "hz",
    ("inst", ""): "count",
    ("op", ""): "count",
    ("sector", ""): "count",
}


@dataclass(frozen=True)
class Locale:
    """How numbers of one file are written."""

    decimal: str = "."

    def number(self, text: str) -> float | None:
        """``text`` as a number, None for the words that stand for no value or for text."""
        plain = _SPACES.sub("", text)
        if plain.lower() in _NO_VALUE or text.strip().lower() in _NO_VALUE:
            return None
        plain = plain.replace(",", "") if self.decimal == "." else plain.replace(".", "").replace(",", ".")
        try:
            return float(plain)
        except ValueError:
            return None


def locale_of(values: Iterable[str]) -> Locale:
    """Decide from all values of a file whether a comma groups thousands or marks decimals.

    ``2,848`` alone says nothing; ``9,00`` and ``1.215,5`` can only be decimal commas, ``9.00`` and ``1,215.5`` only
    decimal points. The kind with more witnesses wins; without witnesses the comma groups thousands.
    """
    commas = points = 0
    for value in values:
        plain = _SPACES.sub("", value)
        commas += bool(_COMMA_IS_DECIMAL.match(plain))
        points += bool(_POINT_IS_DECIMAL.match(plain))
    return Locale("," if commas > points else ".")


def base_unit(unit: str) -> tuple[str, float]:
    """The kind of a unit and the factor to its base: ``'usecond'`` -> ``('ns', 1000.0)``.

    Kinds: ns, byte, byte/s, hz, %, count; a unit unknown here is returned as it is with factor 1.
    """
    unit = unit.strip()
    if unit in _TIME_NS:
        return "ns", _TIME_NS[unit]
    if unit == "%" or unit in _COUNTED:
        return ("%" if unit == "%" else "count"), 1.0
    head, _, per = unit.partition("/")
    for prefix, factor in (("", 1.0), *_PREFIXES.items()):
        kind = _KINDS.get((head.removeprefix(prefix).lower(), per)) if head.startswith(prefix) else None
        if kind is not None:
            return kind, factor
    return unit, 1.0
