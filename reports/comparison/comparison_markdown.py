"""The comparison as Markdown, for a merge request's comment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...analysis.compare import Comparison
from ...analysis.compare.compare_runs import Change
from ...analysis.compare.run_profile import JsonObject
from ...analysis.gates import GateResult
from ...analysis.numeric.number_text import AT_LEAST, is_known, number
from ...analysis.records.version import __version__
from ..markdown import escape, gate_lines, table

SCOPE = (
    "The verdict is on step times at equal batch and KV length; the numbers as measured also show what the runs served."
)
HEADLINE_KEYS = (
    (("decode_step_ms", "p50"), "decode step p50, ms"),
    (("decode_step_ms", "p99"), "decode step p99, ms"),
    (("inter_token_gap_ms", "p99"), "inter-token gap p99, ms"),
    (("decode_mbu_kernel_pct",), "decode MBU over kernel time, %"),
    (("prefill_mfu_kernel_pct",), "prefill MFU over kernel time, %"),
    (("stall_ms",), "stalls, ms"),
    (("gpu_idle_ms",), "GPU idle, ms"),
)


@dataclass(frozen=True)
class HeadlineRow:
    """One of the numbers people ask for first, as measured; '' where it is not known."""

    what: str
    before: str
    after: str
    change: str  # in %

    def cells(self) -> list[str]:
        """The row of a table."""
        return [self.what, self.before, self.after, self.change]


def headline_rows(comparison: Comparison) -> list[HeadlineRow]:
    """The numbers people ask for first, before and after."""
    rows = []
    for path, title in HEADLINE_KEYS:
        before, after = (_number_at(run.summary, path) for run in (comparison.before, comparison.after))
        change = _number_at(comparison.delta, path)
        rows.append(
            HeadlineRow(
                title,
                _shown(before, path, comparison.before.summary),
                _shown(after, path, comparison.after.summary),
                f"{change:+.1f}%" if change is not None else "",
            )
        )
    return rows


def _number_at(found: JsonObject, path: Sequence[str]) -> float | None:
    """The number under nested keys; None where there is none."""
    value: object = found
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, int | float) and is_known(value) else None


def _shown(value: float | None, path: Sequence[str], summary: JsonObject) -> str:
    """The number, '' where it is not known; a lower bound says so (KV lengths are not known)."""
    bound = path == ("decode_mbu_kernel_pct",) and summary.get("decode_mbu_is_lower_bound")
    return "" if value is None else (AT_LEAST if bound else "") + number(value)


def deciding_changes(comparison: Comparison, most: int = 12) -> list[Change]:
    """The step changes and the changes that count, largest effect first within each kind."""
    order = {"step": 0, "op_class": 1, "kernel": 2}
    chosen = [c for c in comparison.changes if c.kind == "step" or c.counts]
    chosen.sort(key=lambda c: (order[c.kind], -abs(c.difference.after - c.difference.before), c.name))
    return chosen[:most]


def comparison_markdown(comparison: Comparison, gates: Sequence[GateResult] = ()) -> str:
    """Verdict, reasons, the headline numbers, what changed, new and vanished kernels, gates."""
    before, after = escape(comparison.before.name), escape(comparison.after.name)
    lines = [f"### {comparison.verdict}: {before} → {after}", ""]
    lines += [f"- {escape(reason)}" for reason in comparison.reasons[:8]]
    lines += [
        "",
        SCOPE,
        "",
        *table(["As measured", "before", "after", "change"], [row.cells() for row in headline_rows(comparison)]),
    ]
    changes = deciding_changes(comparison)
    if changes:
        rows = [
            [
                escape(c.name if c.kind != "step" else f"{c.phase} step"),
                c.phase,
                number(c.difference.before),
                number(c.difference.after),
                f"{c.difference.change_pct:+.1f}% ({c.difference.low_pct:+.1f} to {c.difference.high_pct:+.1f})",
                "**yes**" if c.counts else "no",
            ]
            for c in changes
        ]
        lines += ["", *table(["At equal batch and KV", "phase", "before, ms", "after, ms", "change", "matters"], rows)]
    for title, kernels in (("New kernels", comparison.new_kernels), ("Vanished kernels", comparison.vanished_kernels)):
        if kernels:
            lines += ["", f"**{title}**", ""]
            lines += [f"- {escape(name[:160])} ({number(ms)} ms)" for name, ms in kernels[:8]]
    lines += gate_lines(gates)
    lines += [
        "",
        f"<sub>trace-analyze {__version__}; a change matters from {comparison.min_change_pct:g}% when it is beyond chance</sub>",
        "",
    ]
    return "\n".join(lines)
