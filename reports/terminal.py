"""The first screen in the terminal: the same content and order as the HTML report's, in 24 to 40 lines.

Right at 80 columns, without colour and piped: phases carry their letter as well as their colour.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ..analysis.gates import GateResult
from ..analysis.numeric.covered_time import covered_shares
from ..analysis.numeric.number_text import is_known, milliseconds, number, percent, plural
from ..analysis.records.analysis import Analysis
from ..analysis.records.summary import Spread, Summary
from ..analysis.records.version import __version__
from .first_screen.lines import (
    batch_told,
    gpu_line,
    idle_line,
    model_line,
    not_known,
    percentiles,
    phase_shares,
    ratio_lines,
    stall_line,
    trust_line,
)
from .first_screen.top_kernels import KernelCells, heaviest, kernel_cells, of_phase
from .short_names import distinct_names

PHASE_STYLES = {"decode": "#0072B2", "prefill": "#D55E00", "mixed": "#CC79A7", "other": "grey50", "unknown": "grey50"}
PHASE_LETTERS = {"decode": "D", "prefill": "P", "mixed": "M", "other": "o", "unknown": "?"}
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_LABEL_WIDTH = 12
MIN_SHARE_TOLD = 0.005  # of kernel time; evidence with less is not worth the line
_WIDEST = 110  # columns; longer lines are hard to read
STEP_ROWS = 15
_NARROWEST = 40  # a terminal that claims less is taken for this
HEIGHT = 40  # lines; with the files it names, the screen keeps within them
# what gives way, in this order, where the screen would be longer: (kernels of the two phases, findings, blank lines)
_FITS = (
    (4, 3, 2, True),
    (3, 3, 2, True),
    (3, 2, 2, True),
    (3, 2, 1, True),
    (2, 2, 1, True),
    (2, 1, 1, False),
    (1, 1, 1, False),
)


def plain(text: str) -> str:
    """A recorded name made safe for a terminal: control characters (escape sequences too) become '?'."""
    return _UNPRINTABLE.sub("?", text)


def print_screen(
    analysis: Analysis, *, written: Sequence[Path] = (), gates: Sequence[GateResult] = (), color: bool = True
) -> None:
    """Print the first screen to stdout; ``written`` are the files to name, ``gates`` the checks to list."""
    # rendered to text first: grids pad their lines, and a piped screen should not end in spaces
    known = Console(file=sys.stdout)
    width = max(_NARROWEST, min(known.width, _WIDEST))
    style = {"force_terminal": known.is_terminal, "no_color": not color or known.no_color}
    checks = [_line("Gate", Text(r.sentence, style="bold" if r.passed is not True else "")) for r in gates]
    # a path is for copying: never folded
    files = [f"{'Written':<{_LABEL_WIDTH}} {plain(str(path))}" for path in written]
    lines: list[str] = []
    for fit in _FITS:
        lines = _rendered([*screen(analysis, width, fit), *checks], width, style) + files
        if len(lines) <= HEIGHT:
            break
    if analysis.step_table is not None:
        lines += ["", *_rendered([step_grid(analysis.step_table, width)], width, style)]
    print("\n".join(lines))


def step_grid(table: pl.DataFrame, width: int) -> Table:
    """``--step``: the kernels that take most of one step; the report and the JSON have all of them."""
    first = table.row(0, named=True)
    shown = table.head(STEP_ROWS)
    title = f"Step {first['index']}: {milliseconds(first['step_ms'])}"
    grid = Table(box=None, padding=(0, 1), pad_edge=False, show_edge=False, header_style="dim", width=width)
    grid.add_column(Text(title, style="bold"), no_wrap=True, ratio=1)
    grid.add_column("place", no_wrap=True)
    for heading in ("n", "µs", "%", "FLOP/B", "MFU", "MBU"):
        grid.add_column(heading, justify="right", no_wrap=True)
    for row in shown.iter_rows(named=True):
        known = (number(row[k]) if is_known(row[k]) else "-" for k in ("total_us", "time_pct", "arithmetic_intensity"))
        ratios = (percent(row[k]) if is_known(row[k]) else "-" for k in ("mfu_pct", "mbu_pct"))
        grid.add_row(plain(row["short_name"]), row["place"] or str(row["op_class"]), str(row["count"]), *known, *ratios)
    if len(table) > len(shown):
        grid.add_row(f"and {len(table) - len(shown)} more in the JSON", *[""] * 7)
    return grid


def _rendered(blocks: Sequence[RenderableType], width: int, style: Mapping[str, Any]) -> list[str]:
    buffer = io.StringIO()
    console = Console(file=buffer, width=width, highlight=False, markup=False, emoji=False, **style)
    for block in blocks:
        console.print(block)
    return [line.rstrip() for line in buffer.getvalue().splitlines()]


def screen(analysis: Analysis, width: int, fit: tuple[int, int, int, bool] = _FITS[0]) -> list[RenderableType]:
    """The blocks of the first screen, in order."""
    first, second, findings, airy = fit
    greyed = analysis.trust.verdict == "unreliable"
    blocks: list[RenderableType] = [_title(analysis, width), _headline(analysis)]
    blocks += _identity(analysis)
    blocks += _trust(analysis)
    if greyed:
        blocks.append(Text("The numbers below are not reliable:"))
    blocks += _numbers(analysis)
    blocks += _strip(analysis, width)
    air = [Text("")] if airy else []
    for more in (
        _top_kernels(analysis, width, (first, second)),
        [*_findings(analysis, findings), *_undetermined(analysis)],
    ):
        blocks += [*air, *more] if more else []
    return blocks


def _line(label: str, value: Text | str) -> Table:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=_LABEL_WIDTH, style="bold")
    grid.add_column(overflow="fold")
    grid.add_row(label, value if isinstance(value, Text) else Text(value))
    return grid


def _title(analysis: Analysis, width: int) -> Text:
    facts = analysis.trace.capture
    product = " ".join(x for x in (facts.product, facts.product_version) if x)
    name = f"trace-analyze {__version__}  {facts.source_name}"
    whole = f"{name}  ({product})" if product else name
    return Text(plain(whole if len(whole) <= width else name), style="dim")


def _headline(analysis: Analysis) -> Text:
    return Text(plain(analysis.summary.headline), style="bold")


def _identity(analysis: Analysis) -> list[Table]:
    return [
        _line("GPU", plain(gpu_line(analysis))),
        _line("Model", plain(model_line(analysis))),
        _line(*_window(analysis)),
    ]


def _window(analysis: Analysis) -> tuple[str, str]:
    summary, capture = analysis.summary, analysis.trace.capture
    if not capture.has_timeline:
        kernels = plural(summary.kernel_count, "kernel")
        return "Measured", f"{milliseconds(summary.gpu_busy_ms)} in {kernels}: durations without times"
    texts = [f"{milliseconds(summary.window_ms)} of {milliseconds(summary.capture_ms)} captured"]
    texts.append(plural(summary.step_count, "step") if summary.step_count else "no steps")
    steps = _steps_in_window(analysis)
    told = batch_told(summary)
    if told:
        texts.append(f"decode batch {told}")
    for column, what in (("excluded", "warm-up"), ("partial", "partial")):
        count = steps.filter(pl.col(column)).select("group", "index").n_unique() if len(steps) else 0
        if count:
            texts.append(f"{count:,} {what} left out")
    if capture.graph_trace_mode:
        texts.append(f"graph trace {capture.graph_trace_mode}")
    return "Window", ", ".join(texts)


def _steps_in_window(analysis: Analysis) -> pl.DataFrame:
    """The steps that lie in the analysed window, in part or whole; the table also has those outside of it."""
    window = analysis.window
    inside = (pl.col("end_ns") > window.start_ns) & (pl.col("start_ns") < window.end_ns)
    return analysis.steps.filter(inside | pl.col("excluded"))


def _trust(analysis: Analysis) -> list[Table]:
    trust = analysis.trust
    parts = [trust_line(trust, reasons=2)]
    told = sorted(((v, k) for k, v in trust.gpu_time_by_evidence.items() if v >= MIN_SHARE_TOLD), reverse=True)
    if told and analysis.summary.step_count:
        parts.append("phases by " + ", ".join(f"{_evidence(k)} {percent(100 * v)}" for v, k in told[:4]))
    if trust.kernels_per_step is not None:
        layers = f" ({trust.layers} layers)" if trust.layers else ""
        parts.append(f"{number(trust.kernels_per_step)} kernels a step{layers}")
    parts.append(f"{trust.devices_with_kernels} of {plural(trust.devices_present, 'device')}")
    if trust.node_tracing_inflates_decode:
        parts.append("node-level graph tracing slows decode")
    lines = [_line("Trust", Text(plain(", ".join(parts)), style="bold" if trust.verdict != "good" else ""))]
    return lines + [_line("", Text(plain(text), style="bold")) for text in trust.contradictions_in_words[:2]]


def _evidence(kind: str) -> str:
    return "nothing" if kind == "none" else kind.replace("_", " ")


def _numbers(analysis: Analysis) -> list[Table]:
    """The six numbers. Those that are not known for one and the same reason share a line."""
    summary = analysis.summary
    rows: list[tuple[str, Text | str, str]] = [("GPU time", *phase_split(summary))]
    for label, key in (("Decode step", "decode_step_ms"), ("Token gap", "inter_token_gap_ms")):
        spread = _spread(summary[key])
        rows.append((label, spread, "" if spread else summary.reasons.get(key, "")))
    told = (*ratio_lines(summary), stall_line(summary), idle_line(summary))
    rows += [(line.label, line.text, line.why) for line in told]
    shared = {why for _, text, why in rows if not text and [w for _, _, w in rows].count(why) > 1}
    lines, said = [], set()
    for label, text, why in rows:
        if text:
            lines.append(_line(label, text))
        elif why not in shared:
            lines.append(_line(label, not_known(why)))
        elif why not in said:
            said.add(why)
            names = [name for name, _, other in rows if other == why]
            lines.append(_line("Not known", f"{_joined(names)}{': ' + why if why else ''}"))
    return lines


def _joined(names: Sequence[str]) -> str:
    """``decode step, token gap and stalls``; MBU and MFU stay as they are."""
    low = [name[0].lower() + name[1:] for name in names]
    return f"{', '.join(low[:-1])} and {low[-1]}"


def phase_split(summary: Summary) -> tuple[Text, str]:
    """(share and time of each phase, empty where not known; why not)."""
    text = Text()
    for told in phase_shares(summary):
        if text:
            text.append("  ")
        text.append(f"{told.phase} ", style=PHASE_STYLES.get(told.phase, ""))
        text.append(f"{told.share} {told.time}")
    return text, "" if text else summary.reasons.get("phase_pct", "")


def _spread(spread: Spread) -> str:
    if not spread.n:
        return ""
    if spread.n == 1:
        return f"{milliseconds(spread.p50)}  (n = 1)"
    return f"{'  '.join(percentiles(spread))}  (n = {spread.n:,})"


def _strip(analysis: Analysis, width: int) -> list[Table]:
    """Steps over time as one line of letters; a second line marks the stalls."""
    steps = _steps_in_window(analysis)
    if not len(steps):
        return []
    first = steps.filter((pl.col("group") == steps["group"][0]) & ~pl.col("excluded"))
    if not len(first):
        return []
    first = first.filter(pl.col("device_index") == first["device_index"][0])
    cells = max(20, width - _LABEL_WIDTH - 2)
    start, end = int(first["start_ns"].min()), int(first["end_ns"].max())  # type: ignore[arg-type]
    start, end = max(start, analysis.window.start_ns), min(end, analysis.window.end_ns)
    letters = _cells(first, start, end, cells)
    text = Text()
    for phase in letters:
        text.append(PHASE_LETTERS.get(phase, "."), style=PHASE_STYLES.get(phase, "dim"))
    groups = steps["group"].n_unique()
    lines: list[Table] = [_line("Steps" if groups == 1 else f"Steps 1 of {groups}", text)]
    if len(analysis.stalls):
        marks = np.full(cells, " ", dtype=object)
        own = analysis.stalls.filter(pl.col("group") == first["group"][0])
        span = max(end - start, 1)
        for a, b in zip(own["start_ns"].to_list(), own["end_ns"].to_list(), strict=True):
            low = int((a - start) * cells // span)
            high = int((b - start) * cells // span)
            marks[max(low, 0) : min(max(high, low + 1), cells)] = "^"
        told = "".join(marks).rstrip()
        if told:
            lines.append(_line("  ^ stalled", Text(told)))
    return lines


def _cells(steps: pl.DataFrame, start: int, end: int, cells: int) -> list[str]:
    """The phase that covers most of each of ``cells`` equal parts of the time, '' where no step runs."""
    edges = np.linspace(start, end, cells + 1)
    phases = list(PHASE_LETTERS)
    cover = np.zeros((len(phases), cells))
    for row, phase in enumerate(phases):
        own = steps.filter(pl.col("phase") == phase).sort("start_ns")
        cover[row] = covered_shares(own["start_ns"].to_numpy(), own["end_ns"].to_numpy(), edges)
    best = cover.argmax(axis=0)
    return [phases[i] if cover[i, column] > 0 else "" for column, i in enumerate(best)]


_HEADINGS = ("n/step", "µs", "share", "FLOP/B", "MFU", "MBU", "bound")


def _top_kernels(analysis: Analysis, width: int, most: tuple[int, int]) -> list[Table]:
    table = analysis.kernel_table
    totals = table.group_by("phase").agg(pl.col("total_ms").sum()).sort("total_ms", "phase", descending=[True, False])
    present = [p for p in totals["phase"].to_list() if p in ("decode", "prefill", "mixed")]
    phases = present[:2] or totals["phase"].to_list()[:1]
    if not phases:
        return []
    alone = len(phases) == 1 or analysis.trace.holds_sums
    # of sums a few names tell their phase: no reason to leave the others out
    parts = [table] if analysis.trace.holds_sums else [of_phase(table, phase) for phase in phases]
    kernels: list[KernelCells] = []
    cells: list[tuple[str, ...]] = []
    for part, count in zip(parts, (sum(most) + 1,) if alone else most, strict=True):
        total, rows = float(part["total_ms"].sum() or 0.0), heaviest(part, count)
        shares = [percent(100 * ms / total) if total else "-" for ms in rows["total_ms"]]
        told = kernel_cells(rows)
        kernels += told
        cells += [_cells_of(kernel, share) for kernel, share in zip(told, shares, strict=True)]
    return [_kernel_grid(kernels, cells, width, opaque=analysis.trust.opaque_graphs)]


def _kernel_grid(
    kernels: Sequence[KernelCells], cells: Sequence[tuple[str, ...]], width: int, *, opaque: bool
) -> Table:
    headings = list(_HEADINGS)
    if opaque:  # what ran inside the replays is in no row
        headings[_HEADINGS.index("share")] = "of recorded"
    # a column without any number only takes the names' room
    shown = [i for i in range(len(headings)) if any(cell[i] not in ("-", "unknown") for cell in cells)]
    widths = [max(len(text) for text in (headings[i], *(cell[i] for cell in cells))) for i in shown]
    room = max(12, width - sum(widths) - 2 * len(widths) - 2)
    names = distinct_names([plain(k.short_name or k.name) for k in kernels], [k.name for k in kernels], room)
    grid = Table(box=None, padding=(0, 1), pad_edge=False, show_edge=False, header_style="dim", width=width)
    grid.add_column(Text("Top kernels", style="bold"), no_wrap=True, ratio=1)
    for i in shown:
        grid.add_column(headings[i], justify="left" if headings[i] == "bound" else "right", no_wrap=True)
    for kernel, name, cell in zip(kernels, names, cells, strict=True):
        told = Text(f"{PHASE_LETTERS.get(kernel.phase, ' ')} ", style=PHASE_STYLES.get(kernel.phase, ""))
        told.append(plain(name), style="default")
        grid.add_row(told, *(cell[i] for i in shown))
    return grid


def _cells_of(kernel: KernelCells, share: str) -> tuple[str, ...]:
    known = (kernel.count_per_step, kernel.median_us, share, kernel.intensity, kernel.mfu, kernel.mbu, kernel.bound)
    return tuple(text or "-" for text in known)


def _findings(analysis: Analysis, count: int) -> list[Table]:
    told = analysis.findings[:count]
    return [_line(f"Finding {order}", plain(finding.sentence)) for order, finding in enumerate(told, start=1)]


def _undetermined(analysis: Analysis) -> list[Table]:
    lines: list[Table] = []
    gaps = analysis.trace.gaps_in_evidence
    for gap in gaps[:1]:
        more = f" ({len(gaps) - 1} more in the report)" if len(gaps) > 1 else ""
        lines.append(_line("Not recorded", plain(f"{gap.what}: {gap.consequence}{more}")))
    recapture = next((g.recapture for g in gaps if g.recapture), "")
    if recapture:
        lines.append(_line("Recapture", plain(recapture)))
    return lines
