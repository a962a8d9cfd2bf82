"""Markdown for a merge request: the first screen as text that every forge renders, names escaped."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import polars as pl

from .. import __version__
from ..analysis.gate import GateResult
from ..analysis.result import Analysis
from .format import is_known, milliseconds, number, percent, reason_for, shorten
from .terminal import gpu_line, plain, stall_line

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~])")
_TOP = 5


def escape(text: str) -> str:
    """Text in which nothing is Markdown or HTML."""
    return _SPECIAL.sub(r"\\\1", plain(text))


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A pipe table; cells are expected to be escaped."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def to_markdown(analysis: Analysis, *, gates: Sequence[GateResult] = ()) -> str:
    """The first screen of one result as Markdown."""
    summary, trust = analysis.summary, analysis.trust
    headline = summary.get("headline") or "; ".join(analysis.reasons) or "Nothing could be determined."
    lines = [f"### {escape(analysis.trace.capture.source_name)}", "", f"**{escape(str(headline))}**", ""]
    model = analysis.model.get("name") or "not known"
    rows = [
        ["GPU", escape(gpu_line(analysis))],
        ["Model", escape(str(model))],
        ["Trust", escape(str(trust.get("verdict") or "not known"))],
        *_number_rows(summary),
    ]
    lines += table(["", ""], rows)
    for phase in ("decode", "prefill"):
        lines += _top(analysis.kernel_table.filter(pl.col("phase") == phase), phase)
    if analysis.findings:
        lines += ["", "**Findings**", ""]
        lines += [f"{i}. {escape(f.sentence)}" for i, f in enumerate(analysis.findings[:_TOP], start=1)]
    lines += gate_lines(gates)
    lines += ["", f"<sub>trace-analyze {__version__}, status {analysis.status}</sub>", ""]
    return "\n".join(lines)


def gate_lines(gates: Sequence[GateResult]) -> list[str]:
    """The gates as a list, '' where there are none."""
    if not gates:
        return []
    marks = {True: "passed", False: "**failed**", None: "**could not look**"}
    rows = [
        [f"`{g.gate.text}`".replace("|", "\\|"), number(g.value) if is_known(g.value) else "", marks[g.passed]]
        for g in gates
    ]
    return ["", *table(["Gate", "found", "result"], rows)]


def _number_rows(summary: Any) -> list[list[str]]:
    def spread(key: str) -> str:
        values = summary.get(key) or {}
        if not values.get("n"):
            return f"not known{_reason(summary, key)}"
        told = ", ".join(
            f"{k} {milliseconds(values[k])}" for k in ("p50", "p95", "p99", "max") if is_known(values.get(k))
        )
        return f"{told} (n = {values['n']:,})"

    def ratio(name: str) -> str:
        kernel, wall = summary.get(f"{name}_kernel_pct"), summary.get(f"{name}_wall_pct")
        if not is_known(kernel) and not is_known(wall):
            return f"not known{_reason(summary, f'{name}_kernel_pct')}"
        bound = bool(name == "decode_mbu" and summary.get("decode_mbu_is_lower_bound"))
        return f"{percent(kernel, at_least=bound)} over kernel time, {percent(wall, at_least=bound)} over wall"

    split = ", ".join(
        f"{phase} {percent((summary.get('phase_pct') or {}).get(phase))} ({milliseconds(ms)})"
        for phase, ms in (summary.get("phase_ms") or {}).items()
        if is_known(ms) and ms > 0
    )
    return [
        ["GPU time", split or f"not known{_reason(summary, 'phase_ms')}"],
        ["Decode step", spread("decode_step_ms")],
        ["Inter-token gap", spread("inter_token_gap_ms")],
        ["Decode MBU", ratio("decode_mbu")],
        ["Prefill MFU", ratio("prefill_mfu")],
        ["Stalls", escape(stall_line(summary))],
        ["GPU idle", milliseconds(summary.get("gpu_idle_ms")) + _reason(summary, "gpu_idle_ms")],
    ]


def _reason(summary: Any, key: str) -> str:
    reason = reason_for(summary, key)
    return f" ({escape(reason)})" if reason else ""


def _top(rows: pl.DataFrame, phase: str) -> list[str]:
    if not len(rows):
        return []
    header = [f"Top {phase} kernels", "class", "n/step", "µs", "total", "FLOP/B", "MFU", "MBU", "bound"]
    body = [
        [
            escape(shorten(row["short_name"] or row["name"], 60)),
            str(row["op_class"]),
            number(row["count_per_step"]) if is_known(row["count_per_step"]) else "",
            number(row["median_us"]) if is_known(row["median_us"]) else "",
            milliseconds(row["total_ms"]),
            number(row["arithmetic_intensity"]) if is_known(row["arithmetic_intensity"]) else "",
            percent(row["mfu_pct"]) if is_known(row["mfu_pct"]) else "",
            percent(row["mbu_pct"]) if is_known(row["mbu_pct"]) else "",
            str(row["bound"] or ""),
        ]
        for row in rows.sort("total_ms", descending=True).head(_TOP).iter_rows(named=True)
    ]
    return ["", *table(header, body)]
