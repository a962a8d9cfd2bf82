"""How a result shows itself in a notebook: the sentence, the numbers, the top kernels; plain HTML, names escaped."""

from __future__ import annotations

from markupsafe import Markup, escape

from ..analysis.result import Analysis
from .format import is_known, milliseconds, number, percent
from .terminal import gpu_line, plain, stall_line

_TOP = 8


def notebook_html(analysis: Analysis) -> str:
    """A small HTML fragment; ``save_html`` writes the report."""
    summary = analysis.summary
    headline = summary.get("headline") or "; ".join(analysis.reasons) or "Nothing could be determined."
    rows = [
        ("GPU", gpu_line(analysis)),
        ("model", str(analysis.model.get("name") or "not known")),
        ("trust", str(analysis.trust.get("verdict") or "not known")),
        ("decode step, p50", milliseconds((summary.get("decode_step_ms") or {}).get("p50"))),
        ("decode MBU, kernel time", percent(summary.get("decode_mbu_kernel_pct"))),
        ("prefill MFU, kernel time", percent(summary.get("prefill_mfu_kernel_pct"))),
        ("stalls", stall_line(summary)),
    ]
    body = Markup("").join(Markup("<tr><th>{}</th><td>{}</td></tr>").format(k, plain(v)) for k, v in rows)
    return str(
        Markup("<div><p><strong>{}</strong></p><table>{}</table>{}</div>").format(
            plain(str(headline)), body, _kernels(analysis)
        )
    )


def _kernels(analysis: Analysis) -> Markup:
    cells = []
    for row in analysis.kernel_table.head(_TOP).iter_rows(named=True):
        values = [
            row["short_name"],
            row["phase"],
            milliseconds(row["total_ms"]),
            number(row["arithmetic_intensity"]) if is_known(row["arithmetic_intensity"]) else "",
            percent(row["mfu_pct"]) if is_known(row["mfu_pct"]) else "",
            percent(row["mbu_pct"]) if is_known(row["mbu_pct"]) else "",
            row["bound"] or "",
        ]
        cells.append(Markup("<tr>{}</tr>").format(Markup("").join(Markup("<td>{}</td>").format(v) for v in values)))
    head = Markup("").join(
        Markup("<th>{}</th>").format(escape(t)) for t in ("kernel", "phase", "time", "FLOP/B", "MFU", "MBU", "bound")
    )
    return Markup("<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>").format(head, Markup("").join(cells))
