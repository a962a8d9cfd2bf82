"""Markdown for a merge request: the first screen as text that every forge renders, names escaped."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import polars as pl

from ..analysis.gates import GateResult
from ..analysis.numeric.number_text import is_known, milliseconds, number, percent
from ..analysis.records.analysis import Analysis
from ..analysis.records.version import __version__
from .first_screen_lines import gpu_line, idle_told, model_line, ratios, stall_line
from .key_text import reason_for
from .short_names import distinct_names
from .terminal import plain

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
    trusted = str(trust.get("verdict") or "not known")
    reasons = [str(reason) for reason in trust.get("verdict_reasons") or ()]
    rows = [
        ["GPU", escape(gpu_line(analysis))],
        ["Model", escape(model_line(analysis))],
        ["Trust", escape(f"{trusted}: {'; '.join(reasons)}" if reasons else trusted)],
        *_number_rows(summary),
    ]
    lines += table(["", ""], rows)
    phases = ("decode", "prefill", "mixed") if summary.get("step_count") else ("unknown",)
    for phase in phases:
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

    def told(text: str, why: str) -> str:
        return escape(text or (f"not known: {why}" if why else "not known"))

    split = ", ".join(
        f"{phase} {percent((summary.get('phase_pct') or {}).get(phase))} ({milliseconds(ms)})"
        for phase, ms in (summary.get("phase_ms") or {}).items()
        if is_known(ms) and ms > 0
    )
    return [
        ["GPU time", split or f"not known{_reason(summary, 'phase_pct')}"],
        ["Decode step", spread("decode_step_ms")],
        ["Inter-token gap", spread("inter_token_gap_ms")],
        *([ratio.label, told(ratio.text, ratio.why)] for ratio in ratios(summary)),
        ["Stalls", escape(stall_line(summary))],
        ["GPU idle", told(*idle_told(summary))],
    ]


def _reason(summary: Any, key: str) -> str:
    reason = reason_for(summary, key)
    return f" ({escape(reason)})" if reason else ""


def _top(rows: pl.DataFrame, phase: str) -> list[str]:
    if not len(rows):
        return []
    title = "Top kernels" if phase == "unknown" else f"Top {phase} kernels"
    header = [title, "class", "n/step", "µs", "total", "FLOP/B", "MFU", "MBU", "bound"]
    top = rows.sort("total_ms", "name", descending=[True, False]).head(_TOP)
    names = distinct_names([row or "" for row in top["short_name"]], top["name"].to_list(), 60)
    body = [
        [
            escape(name),
            str(row["op_class"]),
            number(row["count_per_step"]) if is_known(row["count_per_step"]) else "",
            number(row["median_us"]) if is_known(row["median_us"]) else "",
            milliseconds(row["total_ms"]),
            number(row["arithmetic_intensity"]) if is_known(row["arithmetic_intensity"]) else "",
            percent(row["mfu_pct"]) if is_known(row["mfu_pct"]) else "",
            percent(row["mbu_pct"]) if is_known(row["mbu_pct"]) else "",
            str(row["bound"] or ""),
        ]
        for name, row in zip(names, top.iter_rows(named=True), strict=True)
    ]
    return ["", *table(header, body)]
