"""Markdown for a merge request: the first screen as text that every forge renders, names escaped."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import polars as pl

from ..analysis.gates import GateResult
from ..analysis.numeric.number_text import is_known, number
from ..analysis.records.analysis import Analysis
from ..analysis.records.summary import Spread, Summary
from ..analysis.records.version import __version__
from .first_screen.lines import (
    gpu_line,
    idle_line,
    model_line,
    percentiles,
    phase_shares,
    ratio_lines,
    stall_line,
    trust_line,
)
from .first_screen.top_kernels import heaviest, kernel_cells, of_phase
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
    summary = analysis.summary
    lines = [f"### {escape(analysis.trace.capture.source_name)}", "", f"**{escape(summary.headline)}**", ""]
    rows = [
        ["GPU", escape(gpu_line(analysis))],
        ["Model", escape(model_line(analysis))],
        ["Trust", escape(trust_line(analysis.trust))],
        *_number_rows(summary),
    ]
    lines += table(["", ""], rows)
    if analysis.trace.holds_sums:  # a few names tell their phase: no reason to leave the others out
        lines += _top(analysis.kernel_table, "unknown")
    else:
        for phase in ("decode", "prefill", "mixed") if summary.step_count else ("unknown",):
            lines += _top(of_phase(analysis.kernel_table, phase), phase)
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
    split = ", ".join(f"{p.phase} {p.share} ({p.time})" for p in phase_shares(summary))
    return [
        ["GPU time", split or _not_known(summary, "phase_pct")],
        ["Decode step", _spread(summary, "decode_step_ms")],
        ["Inter-token gap", _spread(summary, "inter_token_gap_ms")],
        *([line.label, escape(line.told())] for line in ratio_lines(summary)),
        ["Stalls", escape(stall_line(summary).told())],
        ["GPU idle", escape(idle_line(summary).told())],
    ]


def _spread(summary: Summary, key: Literal["decode_step_ms", "inter_token_gap_ms"]) -> str:
    spread: Spread = summary[key]
    return f"{', '.join(percentiles(spread))} (n = {spread.n:,})" if spread.n else _not_known(summary, key)


def _not_known(summary: Summary, key: str) -> str:
    reason = summary.reasons.get(key, "")
    return "not known" + (f" ({escape(reason)})" if reason else "")


def _top(table_of_phase: pl.DataFrame, phase: str) -> list[str]:
    if table_of_phase.is_empty():
        return []
    title = "Top kernels" if phase == "unknown" else f"Top {phase} kernels"
    header = [title, "class", "n/step", "µs", "total", "FLOP/B", "MFU", "MBU", "bound"]
    kernels = kernel_cells(heaviest(table_of_phase, _TOP))
    names = distinct_names([k.short_name for k in kernels], [k.name for k in kernels], 60)
    body = [
        [escape(name), k.op_class, k.count_per_step, k.median_us, k.total, k.intensity, k.mfu, k.mbu, k.bound]
        for name, k in zip(names, kernels, strict=True)
    ]
    return ["", *table(header, body)]
