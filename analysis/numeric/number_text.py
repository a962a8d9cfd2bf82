"""How numbers read, the same in every report and sentence: units always, thousands separated, unknown said.

Nothing here computes: a value goes in, its text comes out. ``number``, ``percent`` and ``milliseconds`` keep three
significant digits with their zeros, so that columns of them compare; a capture does not hold more. Sentences say the
same values shorter, without zeros at the end: ``short_number``, ``short_percent`` and ``short_duration``.
"""

from __future__ import annotations

import math

NOT_KNOWN = "not known"
AT_LEAST = "≥ "
_SI = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
# from which size on a small number shows how many decimals; as in ``number`` by the rounded value: 9.999 is 10.0
_DECIMALS = ((0.09995, 3), (0.009995, 4), (0.0009995, 5))


def is_known(value: object) -> bool:
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


def plural(count: float, one: str, many: str = "") -> str:
    """``1 stall``, ``7 stalls``, ``2 batches``."""
    return f"{count:,.0f} {one if count == 1 else many or one + 's'}"


def short_duration(ms: float) -> str:
    """``ms`` in the unit that reads best: ``85 µs``, ``9.62 ms``, ``240 ms``, ``1.7 s``."""
    if ms >= 1000:
        return f"{short_number(ms / 1000)} s"
    if ms >= 1:
        return f"{short_number(ms)} ms"
    return f"{short_number(ms * 1000)} µs"


def short_number(value: float) -> str:
    """Three significant figures, thousands grouped, no exponent, no trailing zeros."""
    if not math.isfinite(value) or value == 0:
        return "0" if value == 0 else "unknown"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def short_percent(value: float) -> str:
    """A percentage: ``61%``, ``4.2%``, ``0.31%``."""
    return f"{value:.0f}%" if value >= 10 else f"{value:.1f}%" if value >= 1 else f"{value:.2g}%"
