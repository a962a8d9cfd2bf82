"""The comparison as one self-contained HTML page, the two runs side by side."""

from __future__ import annotations

from collections.abc import Sequence

from ...analysis.compare import Comparison
from ...analysis.gates import GateResult
from ...analysis.numeric.number_text import milliseconds, number
from ...analysis.records.version import __version__
from ..pages import render_page
from .comparison_json import ChangeRow, change_row
from .comparison_markdown import SCOPE, headline_rows

_SHOWN = 200  # changes; the JSON has all


def comparison_html(comparison: Comparison, gates: Sequence[GateResult] = ()) -> str:
    """The page as text."""
    changes = sorted(
        comparison.changes,
        key=lambda c: (c.kind != "step", not c.counts, -abs(c.difference.after - c.difference.before), c.name),
    )
    return render_page(
        "comparison.html.j2",
        version=__version__,
        verdict=comparison.verdict,
        reasons=comparison.reasons,
        before=comparison.before,
        after=comparison.after,
        identity=_identity(comparison),
        scope=SCOPE,
        numbers=[row.cells() for row in headline_rows(comparison)],
        min_change=f"{comparison.min_change_pct:g}",
        n_tests=len(changes),
        changes=[_shown(change_row(c)) for c in changes[:_SHOWN]],
        new=[{"name": n, "ms": milliseconds(ms)} for n, ms in comparison.new_kernels],
        vanished=[{"name": n, "ms": milliseconds(ms)} for n, ms in comparison.vanished_kernels],
        gates=[{"sentence": g.sentence, "passed": g.passed} for g in gates],
    )


def _identity(comparison: Comparison) -> list[tuple[str, str, str, bool]]:
    before, after = comparison.before, comparison.after
    rows = []
    sides = [dict(run.identity or {}) for run in (before, after)]
    for key in dict.fromkeys([*sides[0], *sides[1]]):
        a, b = (side.get(key) for side in sides)
        shown = ["not known" if v is None else str(v) for v in (a, b)]
        rows.append((key.replace("_", " "), shown[0], shown[1], None not in (a, b) and a != b))
    for phase in dict.fromkeys([*before.phases, *after.phases]):
        counts = [len(p.phases[phase].duration_ms) if phase in p.phases else 0 for p in (before, after)]
        rows.append((f"{phase} steps compared", str(counts[0]), str(counts[1]), False))
    return rows


def _shown(row: ChangeRow) -> dict[str, object]:
    return {
        **dict(row),
        "kind": row.kind.replace("_", " "),
        "before": number(row.before_ms),
        "after": number(row.after_ms),
        "change": f"{row.change_pct:+.1f}%",
        "interval": f"{row.low_pct:+.1f} to {row.high_pct:+.1f}%",
        "t_text": f"{row.t:+.1f}",
    }
