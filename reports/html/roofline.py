"""The roofline as an inline drawing: log-log, ceilings with their ridges, points sized by time, coloured by phase.

Reads ``Analysis.roofline``: ``ceilings`` (dtype, peak_tflops, bandwidth_gbps, ridge, source), ``points`` (op_class,
phase, flop, bytes, arithmetic_intensity, tflops, total_ms, bound) and ``centroids`` (phase, arithmetic_intensity,
tflops, total_ms). Only places things; every figure is the analysis's own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...analysis.gpus.run_ceilings import CeilingInUse, ceilings_in_use
from ...analysis.numeric import number_text as fmt
from ...analysis.records.analysis import Analysis
from .. import key_text

LEFT, RIGHT, TOP, BOTTOM = 62, 738, 22, 370
LARGEST = 17  # radius of the point that took the most time
SMALLEST = 2.5
SHAPES = {"decode": "circle", "prefill": "square", "mixed": "diamond"}  # colour is not the only sign


@dataclass(frozen=True)
class Axis:
    """A logarithmic axis from ``low`` to ``high`` (powers of ten) onto pixels."""

    low: float
    high: float
    first: float
    last: float

    def at(self, value: float) -> float:
        """The pixel of ``value``."""
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return round(self.first + share * (self.last - self.first), 1)

    def decades(self) -> list[tuple[float, str]]:
        """(pixel, text) of each power of ten."""
        return [(self.at(10.0**e), _power(e)) for e in range(math.ceil(self.low), math.floor(self.high) + 1)]


def _power(exponent: int) -> str:
    return f"{10**exponent:,}" if exponent >= 0 else f"{10.0**exponent:g}"


def roofline(analysis: Analysis) -> dict[str, Any] | None:
    """What the template draws; None where the analysis has no point with known work."""
    data = analysis.roofline
    points = [p for p in data.get("points") or () if _drawable(p)]
    ceilings = ceilings_in_use(analysis)
    if not points or not ceilings:
        return None
    x, y = _axes(points, ceilings)
    longest = max(p.get("total_ms") or 0 for p in points) or 1
    drawn = sorted((_point(p, x, y, longest) for p in points), key=lambda p: -p["r"])
    return {
        "x_ticks": x.decades(),
        "y_ticks": y.decades(),
        "ceilings": [_ceiling(c, x, y, i) for i, c in enumerate(ceilings)],
        "points": _placed_labels(drawn),
        "centroids": [_centroid(c, x, y) for c in data.get("centroids") or () if _drawable(c)],
        "left_out": len(data.get("points") or ()) - len(points),
        "box": {"left": LEFT, "right": RIGHT, "top": TOP, "bottom": BOTTOM},
        "phases": list(dict.fromkeys(p["phase"] for p in drawn)),
    }


def _drawable(point: Mapping[str, Any]) -> bool:
    values = (point.get("arithmetic_intensity"), point.get("tflops"))
    return all(fmt.is_known(v) and v > 0 for v in values)  # type: ignore[operator]


def _axes(points: Sequence[Mapping[str, Any]], ceilings: Sequence[CeilingInUse]) -> tuple[Axis, Axis]:
    intensities = [p["arithmetic_intensity"] for p in points] + [c.ridge * 3 for c in ceilings] + [1.0]
    rates = [p["tflops"] for p in points] + [c.peak_tflops * 1.4 for c in ceilings]
    low = [math.log10(min(v)) - 0.25 for v in (intensities, rates)]
    high = [math.log10(max(v)) + 0.2 for v in (intensities, rates)]
    floor = max(low[0], high[0] - 6), max(low[1], high[1] - 6)
    return Axis(floor[0], high[0], LEFT, RIGHT), Axis(floor[1], high[1], BOTTOM, TOP)


def _ceiling(ceiling: CeilingInUse, x: Axis, y: Axis, order: int) -> dict[str, Any]:
    ridge, peak, bandwidth = ceiling.ridge, ceiling.peak_tflops, ceiling.bandwidth_gbps
    # the slope starts where it enters the frame, from the left or from below
    start = max(10**x.low, 10**y.low * 1e3 / bandwidth)
    label = start * (ridge / start) ** 0.45
    names = "/".join(ceiling.dtypes)
    return {
        "path": f"M{x.at(start)} {y.at(start * bandwidth / 1e3)}L{x.at(ridge)} {y.at(peak)}H{RIGHT}",
        "ridge_x": x.at(ridge),
        "ridge_y": y.at(peak),
        "label": f"{fmt.number(peak)} TFLOP/s {names}",
        "ridge": f"ridge {ridge:.0f} FLOP/byte",
        "slope": f"{fmt.number(bandwidth)} GB/s",
        "slope_x": x.at(label),
        "slope_y": y.at(label * bandwidth / 1e3),
        "main": order == 0,
    }


def _point(point: Mapping[str, Any], x: Axis, y: Axis, longest: float) -> dict[str, Any]:
    ms = point.get("total_ms") or 0
    name = key_text.label(str(point.get("op_class") or "kernels"))
    phase = str(point.get("phase") or "unknown")
    intensity, rate = point["arithmetic_intensity"], point["tflops"]
    title = (
        f"{name}, {phase}: {fmt.number(intensity)} FLOP/byte, {fmt.number(rate)} TFLOP/s, {fmt.milliseconds(ms)}, "
        f"{fmt.scaled(point.get('flop'), 'FLOP')}, {fmt.scaled(point.get('bytes'), 'B')}, bound by {point.get('bound') or 'unknown'}"
    )
    return {
        "x": max(LEFT, x.at(intensity)),
        "y": min(BOTTOM, y.at(rate)),
        "r": round(max(SMALLEST, LARGEST * math.sqrt(ms / longest)), 1),
        "phase": phase,
        "shape": SHAPES.get(phase, "circle"),
        "name": name,
        "title": title,
    }


def _placed_labels(points: list[dict[str, Any]], most: int = 9) -> list[dict[str, Any]]:
    """Points with a label where it does not cover another one; the largest points choose first."""
    taken: list[tuple[float, float]] = []
    for point in points:
        # centre of the text, right of the point or left of it near the frame's edge
        width = 6.2 * len(point["name"])
        right = point["x"] + point["r"] + 4 + width < RIGHT
        centre = point["x"] + (1 if right else -1) * (point["r"] + 4 + width / 2)
        free = all(abs(centre - tx) > 62 or abs(point["y"] - ty) > 12 for tx, ty in taken)
        point["label"] = point["name"] if free and len(taken) < most else ""
        point["right"] = right
        if point["label"]:
            taken.append((centre, point["y"]))
    return points


def _centroid(point: Mapping[str, Any], x: Axis, y: Axis) -> dict[str, Any]:
    phase = str(point.get("phase"))
    title = (
        f"all of {phase}: {fmt.number(point['arithmetic_intensity'])} FLOP/byte, {fmt.number(point['tflops'])} TFLOP/s"
    )
    return {"x": x.at(point["arithmetic_intensity"]), "y": y.at(point["tflops"]), "phase": phase, "title": title}
