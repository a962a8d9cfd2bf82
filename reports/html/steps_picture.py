"""The picture people draw by hand: steps in time coloured by phase, the inter-token gap under them, stalls marked.

Static, so that it prints and needs no script: shapes in one stretched SVG, words and stall marks as HTML over it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from ...analysis.numeric import number_text as fmt
from ...analysis.numeric.covered_time import covered_shares
from ...analysis.records.analysis import Analysis
from ..first_screen.lines import percentiles

WIDTH = 1200  # columns of the drawing
LANE = 34
GAP_HEIGHT = 70
MAX_MARKS = 400  # stall marks; more of them share a mark
LABELS = 6
LABEL_WIDTH = 13.0  # percent of a laptop's width that a label takes
PHONE_LABEL_WIDTH = 47.0
EDGE = 7.0  # nearer to the edge than this a label is not centred on its mark
PHONE_EDGE = 22.0
MAX_GROUPS = 8


@dataclass(frozen=True)
class Mark:
    """One stall, or several that would lie on the same column, in percent of the width."""

    stall: int
    left: float
    width: float
    title: str
    label: str = ""  # '' where there is no room
    narrow: bool = False  # the label fits on a phone too


@dataclass(frozen=True)
class Lane:
    """One group's steps: a path per phase, the stalls on it, the gap line under it."""

    group: int
    label: str
    paths: Sequence[tuple[str, str]]
    marks: Sequence[Mark]
    gap_path: str
    gap_ticks: Sequence[tuple[float, str]]  # (percent from the top, text)


@dataclass(frozen=True)
class Picture:
    """Everything the template draws."""

    lanes: Sequence[Lane]
    ticks: Sequence[tuple[float, str]]
    summary: str
    groups_left_out: int = 0


def picture(analysis: Analysis) -> Picture | None:
    """The picture of the analysed window; None where there are no steps."""
    steps = analysis.steps.filter(~pl.col("excluded"))
    start, end = analysis.window.start_ns, analysis.window.end_ns
    if steps.is_empty() or end <= start:
        return None
    groups = steps["group"].unique().sort().to_list()
    lanes = [_lane(analysis, steps, group, start, end, len(groups) > 1) for group in groups[:MAX_GROUPS]]
    return Picture(lanes, time_ticks(end - start), _words(analysis), max(0, len(groups) - MAX_GROUPS))


def _lane(analysis: Analysis, steps: pl.DataFrame, group: int, start: int, end: int, several: bool) -> Lane:
    own = steps.filter(pl.col("group") == group).group_by("index", maintain_order=True).agg(
        pl.col("start_ns").min(), pl.col("end_ns").max(), pl.col("phase").first()
    )  # fmt: skip
    stalls = analysis.stalls.filter(pl.col("group") == group)
    gaps = analysis.gaps.filter((pl.col("group") == group) & pl.col("counted"))
    gap_path, gap_ticks = _gap_line(gaps, start, end)
    return Lane(group, f"group {group}" if several else "", _paths(own, start, end), _marks(stalls, start, end), gap_path, gap_ticks)  # fmt: skip


def _paths(steps: pl.DataFrame, start: int, end: int) -> list[tuple[str, str]]:
    """One SVG path per phase; with more steps than columns, columns stacked by their share of each phase."""
    phases = [str(p) for p in steps["phase"].unique(maintain_order=True)]
    if steps.height <= WIDTH:
        scale = WIDTH / (end - start)
        left = (steps["start_ns"].to_numpy() - start) * scale
        width = np.maximum((steps["end_ns"] - steps["start_ns"]).to_numpy() * scale, 0.3)
        phase = steps["phase"].cast(pl.String).to_numpy()
        return [
            (p, "".join(f"M{x:.2f} 0h{w:.2f}v{LANE}h-{w:.2f}z" for x, w in zip(left[phase == p], width[phase == p], strict=True)))
            for p in phases
        ]  # fmt: skip
    edges = np.linspace(start, end, WIDTH + 1)
    base, out = np.zeros(WIDTH), []
    for p in phases:
        rows = steps.filter(pl.col("phase") == p)
        share = covered_shares(rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy(), edges)
        top = np.minimum(base + share, 1)
        columns = np.flatnonzero(top - base > 0.004)
        high, low = (1 - top) * LANE, (1 - base) * LANE
        out.append((p, "".join(f"M{x} {low[x]:.1f}V{high[x]:.1f}h1V{low[x]:.1f}z" for x in columns)))
        base = top
    return out


def _gap_line(gaps: pl.DataFrame, start: int, end: int) -> tuple[str, list[tuple[float, str]]]:
    """The inter-token gap over time as a path of vertical extents, and its axis."""
    if gaps.is_empty():
        return "", []
    top = float(gaps["gap_ms"].max())  # type: ignore[arg-type]
    if top <= 0:
        return "", []
    times = np.stack([gaps["start_ns"].to_numpy(), gaps["end_ns"].to_numpy()], 1)
    x = np.clip((times - start) / (end - start) * WIDTH, 0, WIDTH)
    y = GAP_HEIGHT - np.clip(gaps["gap_ms"].to_numpy() / top, 0, 1) * (GAP_HEIGHT - 4)
    path = _gap_extents(x[:, 1], y) if len(x) > WIDTH else "".join(
        f"{'M' if i == 0 or a > x[i - 1, 1] + 0.01 else 'L'}{a:.2f} {v:.2f}H{b:.2f}"
        for i, ((a, b), v) in enumerate(zip(x, y, strict=True))
    )  # fmt: skip
    tick = nice(top)
    ticks = [
        ((GAP_HEIGHT - v / top * (GAP_HEIGHT - 4)) / GAP_HEIGHT * 100, f"{fmt.number(v)} ms") for v in (tick, tick / 2)
    ]
    return path, [*ticks, (100.0, "0")]


def _gap_extents(x: np.ndarray, y: np.ndarray) -> str:
    """More gaps than columns: for each column the line from its shortest to its longest."""
    column = np.minimum(x.astype(np.int64), WIDTH - 1)
    lowest, highest = np.full(WIDTH, -np.inf), np.full(WIDTH, np.inf)
    np.maximum.at(lowest, column, y)
    np.minimum.at(highest, column, y)
    kept = np.flatnonzero(np.isfinite(lowest))
    return "M" + "L".join(f"{c + 0.5} {lowest[c]:.1f}V{highest[c]:.1f}" for c in kept)


def nice(top: float) -> float:
    """The largest of 1, 2, 5 × 10^n that is not above ``top``."""
    scale = 10.0 ** np.floor(np.log10(top))
    return float(max(m * scale for m in (1, 2, 5) if m * scale <= top * (1 + 1e-9)))


def _marks(stalls: pl.DataFrame, start: int, end: int) -> list[Mark]:
    """The stalls in time order; those that would share a column are one mark, named by the longest."""
    if stalls.is_empty():
        return []
    span = end - start
    cell = span / MAX_MARKS
    rows = (
        stalls.with_columns(cell=pl.when(pl.col("end_ns") - pl.col("start_ns") >= cell).then(-1 - pl.col("stall")).otherwise(((pl.col("start_ns") - start) / cell).floor()).cast(pl.Int64))
        .sort("stall_ms", descending=True, nulls_last=True)
        .group_by("cell", maintain_order=True)
        .agg(pl.all().first(), pl.len().alias("same"), pl.col("end_ns").max().alias("last"), pl.col("start_ns").min().alias("first"))
        .head(MAX_MARKS)
        .to_dicts()
    )  # fmt: skip
    marks: list[Mark] = []
    wide, phone = _Labels(LABEL_WIDTH, EDGE), _Labels(PHONE_LABEL_WIDTH, PHONE_EDGE)
    for row in rows:  # longest first: the longest get their labels
        left = max(0.0, (row["first"] - start) / span * 100)
        width = min(100.0, (row["last"] - start) / span * 100) - left
        middle = left + width / 2
        label = stall_words(row) if wide.place(middle) else ""
        narrow = bool(label) and phone.place(middle)
        more = f" (and {row['same'] - 1} more here)" if row["same"] > 1 else ""
        title = f"stall {row['stall']}: {stall_words(row)}, {_held(row['requests_held'])}{more}"
        marks.append(Mark(row["stall"], round(left, 3), round(max(width, 0.05), 3), title, label, narrow))
    return sorted(marks, key=lambda m: m.left)


class _Labels:
    """Places on the line of labels that are taken, in percent of its width."""

    def __init__(self, width: float, edge: float) -> None:
        self.width = width
        self.edge = edge
        self.taken: list[float] = []

    def place(self, middle: float) -> bool:
        """Take the place around ``middle`` (beside it near the picture's edges); False where it is not free."""
        begin = middle if middle < self.edge else middle - self.width * (1 if middle > 100 - self.edge else 0.5)
        free = len(self.taken) < LABELS and all(abs(begin - other) >= self.width for other in self.taken)
        if free:
            self.taken.append(begin)
        return free


def stall_words(row: dict[str, object]) -> str:
    """``72.6 ms · 2,048 tokens``."""
    tokens = row["prefill_tokens"]
    count = f"{tokens:,} tokens" if isinstance(tokens, int) else "tokens not known"
    length = row["stall_ms"]
    return f"{fmt.milliseconds(length) if isinstance(length, float) else 'ms not known'} · {count}"


def _held(held: object) -> str:
    return f"{fmt.plural(held, 'request')} held" if isinstance(held, int) else "requests held not known"


def time_ticks(span_ns: int, most: int = 8) -> list[tuple[float, str]]:
    """(percent, text) of round times since the window's start."""
    step = nice(span_ns / most) * (2 if span_ns / nice(span_ns / most) > 1.6 * most else 1)
    unit, name = (1e9, "s") if span_ns >= 2e9 else (1e6, "ms") if span_ns >= 2e6 else (1e3, "µs")
    return [(t / span_ns * 100, f"{t / unit:g} {name}") for t in np.arange(0, span_ns * 0.985, step)]


def _words(analysis: Analysis) -> str:
    """What the picture shows, for those who do not see it."""
    summary, gap = analysis.summary, analysis.summary.inter_token_gap_ms
    parts = [f"{fmt.plural(summary.step_count, 'step')} over {fmt.milliseconds(summary.window_ms)}"]
    if gap.n:
        parts.append(f"inter-token gap {', '.join(percentiles(gap, show=fmt.number))} ms (n = {fmt.whole(gap.n)})")
    parts.append(fmt.plural(analysis.stalls.height, "stall"))
    return "; ".join(parts)
