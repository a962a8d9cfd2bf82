"""The comparison in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from ...analysis.compare import Comparison
from ...analysis.gates import GateResult
from ...analysis.numeric.number_text import number
from ..screen import Screen
from ..terminal import plain
from .comparison_markdown import SCOPE, deciding_changes, headline_rows


def print_comparison(
    comparison: Comparison, gates: Sequence[GateResult], written: Sequence[Path], *, color: bool = True
) -> None:
    """Print verdict, reasons, numbers and changes to stdout."""
    console = Screen(no_color=not color)
    names = f"{comparison.before.name} -> {comparison.after.name}"
    console.print(Text(plain(f"{comparison.verdict}: {names}"), style="bold"))
    for reason in comparison.reasons[:8]:
        console.print(Text(plain(f"  {reason}")))
    console.print(Text(f"  {SCOPE}", style="dim"))
    console.print()
    grid = _grid("as measured", "before", "after", "change")
    for row in headline_rows(comparison):
        grid.add_row(*(cell or "-" for cell in row.cells()))
    console.print(grid)
    changes = deciding_changes(comparison)
    if changes:
        console.print()
        grid = _grid("at equal batch and KV", "before, ms", "after, ms", "change", "matters")
        for c in changes:
            d = c.difference
            name = f"{c.phase} step" if c.kind == "step" else f"{plain(c.name)} ({c.phase})"
            grid.add_row(name, number(d.before), number(d.after), f"{d.change_pct:+.1f}%", "yes" if c.counts else "no")
        console.print(grid)
    for title, kernels in (("new", comparison.new_kernels), ("vanished", comparison.vanished_kernels)):
        for name, ms in kernels[:5]:
            console.print(Text(plain(f"{title} kernel: {name[:100]} ({number(ms)} ms)")))
    for result in gates:
        console.print(Text(f"gate  {result.sentence}"))
    for path in written:
        console.print(Text(f"Written {path}"), soft_wrap=True)


def _grid(*titles: str) -> Table:
    grid = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for i, title in enumerate(titles):
        grid.add_column(title, justify="left" if i == 0 else "right", overflow="fold")
    return grid
