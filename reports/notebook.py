"""How a result shows itself in a notebook: the sentence, the numbers, the top kernels; plain HTML, names escaped."""

from __future__ import annotations

from markupsafe import Markup, escape

from ..analysis.numeric.number_text import NOT_KNOWN, is_known, milliseconds, number, percent
from ..analysis.records.analysis import Analysis
from .first_screen_lines import gpu_line, model_line, ratios, stall_line
from .key_text import reason_for
from .short_names import distinct_names
from .terminal import plain

_TOP = 8


def notebook_html(analysis: Analysis) -> str:
    """A small HTML fragment; ``save_html`` writes the report."""
    summary = analysis.summary
    headline = summary.get("headline") or "; ".join(analysis.reasons) or "Nothing could be determined."

    def told(text: str, key: str) -> str:
        why = reason_for(summary, key)
        return f"{text}: {why}" if text == NOT_KNOWN and why else text

    rows = [
        ("GPU", gpu_line(analysis)),
        ("model", model_line(analysis)),
        ("trust", str(analysis.trust.get("verdict") or "not known")),
        ("decode step, p50", told(milliseconds((summary.get("decode_step_ms") or {}).get("p50")), "decode_step_ms")),
        *((ratio.label, ratio.text or f"not known: {ratio.why}") for ratio in ratios(summary)),
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
    top = analysis.kernel_table.head(_TOP)
    names = distinct_names([name or "" for name in top["short_name"]], top["name"].to_list(), 60)
    for name, row in zip(names, top.iter_rows(named=True), strict=True):
        values = [
            plain(name),
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
