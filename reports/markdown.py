"""Markdown for a merge request: the first screen as text that every forge renders, names escaped."""

from __future__ import annotations

import re
from collections.abc import Sequence

import polars as pl

from ..analysis.gates import GateResult
from ..analysis.records.analysis import Analysis
from ..analysis.records.summary import Spread, Summary
from ..analysis.records.version import __version__
from .first_screen_lines import gpu_line, idle_told, model_line, ratios, stall_line
from .number_text import distinct_names, is_known, milliseconds, number, percent
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
    headline = summary.headline
    lines = [f"### {escape(analysis.trace.capture.source_name)}", "", f"**{escape(headline)}**", ""]
    trusted, reasons = trust.verdict, trust.verdict_reasons
    rows = [
        ["GPU", escape(gpu_line(analysis))],
        ["Model", escape(model_line(analysis))],
        ["Trust", escape(f"{trusted}: {'; '.join(reasons)}" if reasons else trusted)],
        *_number_rows(summary),
    ]
    lines += table(["", ""], rows)
    phases = ("decode", "prefill", "mixed") if summary.step_count else ("unknown",)
    if analysis.trace.holds_sums:  # a few names tell their phase: no reason to leave the others out
        lines += _top(analysis.kernel_table, "unknown")
    else:
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


def _number_rows(summary: Summary) -> list[list[str]]:
    def spread(key: str, values: Spread) -> str:
        if not values.n:
            return f"not known{_reason(summary, key)}"
        shown = (("p50", values.p50), ("p95", values.p95), ("p99", values.p99), ("max", values.max))
        return f"{', '.join(f'{name} {milliseconds(ms)}' for name, ms in shown)} (n = {values.n:,})"

    def told(text: str, why: str) -> str:
        return escape(text or (f"not known: {why}" if why else "not known"))

    shares = dict(summary.phase_pct or {})
    split = ", ".join(
        f"{phase} {percent(shares.get(phase))} ({milliseconds(ms)})" for phase, ms in summary.phase_ms.items() if ms > 0
    )
    return [
        ["GPU time", split or f"not known{_reason(summary, 'phase_pct')}"],
        ["Decode step", spread("decode_step_ms", summary.decode_step_ms)],
        ["Inter-token gap", spread("inter_token_gap_ms", summary.inter_token_gap_ms)],
        *([ratio.label, told(ratio.text, ratio.why)] for ratio in ratios(summary)),
        ["Stalls", escape(stall_line(summary))],
        ["GPU idle", told(*idle_told(summary))],
    ]


def _reason(summary: Summary, key: str) -> str:
    reason = summary.reasons.get(key, "")
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
