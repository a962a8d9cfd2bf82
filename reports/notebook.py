"""How a result shows itself in a notebook: the sentence, the numbers, the top kernels; plain HTML, names escaped."""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import Markup

from ..analysis.numeric.number_text import milliseconds
from ..analysis.records.analysis import Analysis
from .first_screen.lines import gpu_line, model_line, not_known, ratio_lines, stall_line
from .first_screen.top_kernels import kernel_cells
from .short_names import distinct_names
from .terminal import plain

_TOP = 8
_HEADINGS = ("kernel", "phase", "time", "FLOP/B", "MFU", "MBU", "bound")


def notebook_html(analysis: Analysis) -> str:
    """A small HTML fragment; ``save_html`` writes the report."""
    summary = analysis.summary
    step = summary.decode_step_ms.p50
    rows = [
        ("GPU", gpu_line(analysis)),
        ("model", model_line(analysis)),
        ("trust", analysis.trust.verdict),
        (
            "decode step, p50",
            milliseconds(step) if step is not None else not_known(summary.reasons.get("decode_step_ms", "")),
        ),
        *((line.label, line.told()) for line in ratio_lines(summary)),
        ("stalls", stall_line(summary).told()),
    ]
    body = Markup("").join(Markup("<tr><th>{}</th><td>{}</td></tr>").format(k, plain(v)) for k, v in rows)
    return str(
        Markup("<div><p><strong>{}</strong></p><table>{}</table>{}</div>").format(
            plain(summary.headline), body, _kernels(analysis)
        )
    )


def _kernels(analysis: Analysis) -> Markup:
    kernels = kernel_cells(analysis.kernel_table.head(_TOP))
    names = distinct_names([k.short_name for k in kernels], [k.name for k in kernels], 60)
    rows = [
        (plain(name), k.phase, k.total, k.intensity, k.mfu, k.mbu, k.bound)
        for name, k in zip(names, kernels, strict=True)
    ]
    body = Markup("").join(Markup("<tr>{}</tr>").format(_cells("td", row)) for row in rows)
    head = _cells("th", _HEADINGS)
    return Markup("<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>").format(head, body)


def _cells(tag: str, texts: Iterable[str]) -> Markup:
    return Markup("").join(Markup("<{0}>{1}</{0}>").format(Markup(tag), text) for text in texts)
