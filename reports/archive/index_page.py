"""The index of an archive: what was refused, outliers, trends as small multiples, and every run in one table."""

from __future__ import annotations

import datetime
import os
from collections import Counter
from typing import Any
from urllib.parse import quote

import numpy as np
import polars as pl

from ...analysis.numeric.number_text import AT_LEAST, is_known, number, plural
from ...analysis.records.version import __version__
from ..pages import render_page
from .archive_row import ANALYSED

METRICS = {
    "decode_step_p50_ms": "decode step p50, ms",
    "decode_step_p99_ms": "decode step p99, ms",
    "inter_token_gap_p99_ms": "inter-token gap p99, ms",
    "decode_mbu_kernel_pct": "decode MBU over kernel time, %",
    "prefill_mfu_kernel_pct": "prefill MFU over kernel time, %",
    "stall_pct_of_window": "stalls, % of the window",
    "decode_tokens_per_s": "decode tokens/s",
}
_TABLE = {
    "file": "file", "state": "state", "gpu_name": "GPU", "model": "model", "verdict": "trust",
    "window_ms": "window, ms", "step_count": "steps", **METRICS, "stall_ms": "stalls, ms", "gate": "gate",
}  # fmt: skip
_TEXT = ("file", "state", "gpu_name", "model", "verdict", "gate")
_OUTLIER = 3.5  # robust deviations
_FEWEST = 5
_LEFT, _RIGHT, _TOP, _BOTTOM = 50.0, 266.0, 18.0, 90.0
_MOST_LABEL_BLOCKS = 4


def render_index(frame: pl.DataFrame, labels: list[str]) -> str:
    """The index page of the runs table (see ``row.runs_frame``)."""
    states = Counter(frame["state"].to_list())
    outliers = find_outliers(frame)
    marked = {(o["file"], o["key"]) for o in outliers}
    return render_page(
        "index.html.j2",
        version=__version__,
        title=f"Archive of {plural(len(frame), 'capture')}",
        subtitle=", ".join(f"{count} {state}" for state, count in states.most_common()),
        refused=frame.filter(~pl.col("state").is_in(ANALYSED)).select("file", "state", "reason").to_dicts(),
        outliers=outliers,
        multiples=_multiples(frame, labels, marked),
        columns=[{"title": title, "text": key in _TEXT or key in labels} for key, title in _columns(labels).items()],
        rows=[_cells(row, labels) for row in frame.iter_rows(named=True)],
    )


def _link(report: str) -> str:
    """The path of a report as a URL: a name may hold what a URL gives a meaning (``%``, ``#``, ``?``)."""
    return quote(os.fsencode(report), safe="/=+,@")


def _columns(labels: list[str]) -> dict[str, str]:
    head, *rest = _TABLE.items()
    return dict([head, *((name, name) for name in labels), *rest])


def _cells(row: dict[str, Any], labels: list[str]) -> list[dict[str, Any]]:
    cells = []
    for key in _columns(labels):
        value = row[key]
        is_number = isinstance(value, int | float)
        at_least = AT_LEAST if key == "decode_mbu_kernel_pct" and row["decode_mbu_is_lower_bound"] else ""
        cells.append(
            {
                "shown": at_least + number(value)
                if is_number and is_known(value)
                else ""
                if value is None
                else str(value),
                "raw": value if is_number else None,
                "text_column": key in _TEXT or key in labels,
                "name": key == "file",
                "link": _link(row["report"]) if key == "file" and row["report"] else None,
                "bad": (key == "state" and value not in ANALYSED) or (key == "gate" and value not in (None, "passed")),
            }
        )
    return cells


def find_outliers(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """Runs far from the others of the same GPU and model, by median and median absolute deviation."""
    found = []
    usable = frame.filter(pl.col("state").is_in(ANALYSED) & pl.col("duplicate_of").is_null())
    for _, group in usable.group_by("gpu_name", "model", maintain_order=True):
        for key, title in METRICS.items():
            rows = group.filter(pl.col(key).is_not_null() & pl.col(key).is_finite())
            if len(rows) < _FEWEST:
                continue
            values = rows[key].to_numpy()
            median = float(np.median(values))
            deviation = 1.4826 * float(np.median(np.abs(values - median)))
            # a spread under 1% of the value is measurement, not variation worth a flag
            deviation = max(deviation, 0.01 * abs(median))
            if deviation == 0:
                continue
            for row, value in zip(rows.iter_rows(named=True), values, strict=True):
                if abs(value - median) > _OUTLIER * deviation:
                    found.append(
                        {
                            "file": row["file"],
                            "report": _link(row["report"]),
                            "key": key,
                            "metric": title,
                            "value": number(float(value)),
                            "median": number(median),
                            "n": len(rows),
                            "size": abs(value - median) / deviation,
                        }
                    )
    return sorted(found, key=lambda o: (-o["size"], o["file"], o["key"]))[:20]


def _multiples(frame: pl.DataFrame, labels: list[str], marked: set[tuple[str, str]]) -> list[dict[str, Any]]:
    usable = frame.filter(pl.col("state").is_in(ANALYSED))
    axes = [("captured_utc_ns", "Over time of capture")]
    axes += [(name, f"By {name}") for name in labels if usable[name].dtype == pl.Float64][:_MOST_LABEL_BLOCKS]
    blocks = []
    for axis, title in axes:
        charts = [
            chart
            for key, metric in METRICS.items()
            if (chart := _chart(usable.filter(pl.col(axis).is_not_null()), axis, key, metric, marked)) is not None
        ]
        if charts:
            blocks.append({"title": title, "charts": charts})
    return blocks


def _chart(frame: pl.DataFrame, axis: str, key: str, title: str, marked: set[tuple[str, str]]) -> dict[str, Any] | None:
    rows = frame.filter(pl.col(key).is_not_null() & pl.col(key).is_finite())
    if len(rows) < 2:
        return None
    x, y = rows[axis].cast(pl.Float64).to_numpy(), rows[key].to_numpy()
    low, high = min(float(y.min()), 0.0), float(y.max()) or 1.0
    left, right = float(x.min()), float(x.max())
    ends = [_axis_text(axis, value) for value in (left, right)]
    if ends[0] == ends[1]:
        return None  # every run stands at the same place: there is no trend to see
    at_x = _LEFT + (x - left) / ((right - left) or 1.0) * (_RIGHT - _LEFT)
    at_y = _BOTTOM - (y - low) / ((high - low) or 1.0) * (_BOTTOM - _TOP)
    dots = [
        {
            "x": f"{a:.1f}", "y": f"{b:.1f}", "file": row["file"], "report": _link(row["report"]),
            "value": number(float(value)), "outlier": (row["file"], key) in marked,
        }
        for a, b, value, row in zip(at_x, at_y, y, rows.iter_rows(named=True), strict=True)
    ]  # fmt: skip
    return {"title": title, "dots": dots, "low": number(low), "high": number(high), "left": ends[0], "right": ends[1]}


def _axis_text(axis: str, value: float) -> str:
    if axis != "captured_utc_ns":
        return number(value)
    return datetime.datetime.fromtimestamp(value / 1e9, tz=datetime.UTC).strftime("%Y-%m-%d %H:%M")
