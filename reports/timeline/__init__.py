"""The timeline of the HTML report: what one page can hold of a capture of any size.

``timeline_payload(analysis)`` makes lanes with two levels of detail: single kernels in the stretches of time that
matter (all of them where they fit), and for the whole window how much of each slice of time each phase covered. The
page (``assets``) draws whichever fits its pixels; stalls are carried and drawn apart, so they never vanish.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from ...analysis.numeric import number_text as fmt
from ...analysis.records.analysis import Analysis
from ...analysis.records.tables import EVIDENCE, OP_CLASSES, PHASES, WORK_SOURCES
from ...analysis.records.trace import COPY_KINDS
from .. import key_text

KERNELS_IN_PAGE = 240_000  # 1 to 1.5 MB of the page
MAX_BYTES = 3_000_000  # of the coded payload: 5 MB is the page's limit
COLUMNS = (
    *("start_ns", "end_ns", "device_index", "process", "context", "stream", "name_id", "op_class", "phase", "evidence"),
    *("grid_x", "grid_y", "grid_z", "block_x", "flop", "bytes", "work_source", "mfu_pct", "mbu_pct", "in_window"),
)


@dataclass(frozen=True)
class TimelinePayload:
    """What the template needs: the coded data and the line that says how much of the capture it holds."""

    data: str
    line: str


def timeline_payload(analysis: Analysis, *, budget: int = KERNELS_IN_PAGE) -> TimelinePayload | None:
    """The timeline of the analysed window; None where nothing ran in it or the input holds no times."""
    kernels = analysis.kernels.select(COLUMNS)
    inside = kernels["in_window"]
    kernels = kernels if inside.all() else kernels.filter(inside)
    if kernels.is_empty() or not analysis.trace.capture.has_timeline:
        return None
    window = _window(analysis, kernels)
    payload = _payload(analysis, kernels, window, budget)
    while len(payload.data) > MAX_BYTES and budget > 1_000:
        # kernels that are all different deflate badly: carry fewer of them one by one
        budget = int(0.9 * min(budget, kernels.height) * MAX_BYTES / len(payload.data))
        payload = _payload(analysis, kernels, window, budget)
    return payload


def _payload(analysis: Analysis, kernels: pl.DataFrame, window: tuple[int, int], budget: int) -> TimelinePayload:
    """The payload with at most ``budget`` kernels one by one."""
    from .byte_planes import Pack
    from .groups import group_lanes
    from .kernel_selection import choose
    from .lanes import bins_per_lane, copy_lanes, kernel_lanes, metric_lanes, range_lanes

    pack = Pack()
    detail = choose(kernels["start_ns"].to_numpy(), analysis.stalls, analysis.steps, window, budget)
    lanes, dictionary, streams_out = kernel_lanes(kernels, analysis, window, detail, pack)
    groups, groups_out = group_lanes(analysis, window, pack)
    ranges, ranges_out = range_lanes(analysis, window, pack)
    header: dict[str, Any] = {
        "start_ns": window[0],
        "span": window[1] - window[0],
        "whole": detail.whole,
        "windows": [[a - window[0], b - window[0]] for a, b in detail.windows],
        "groups": groups,
        "lanes": [*lanes, *copy_lanes(analysis, window, pack), *ranges, *metric_lanes(analysis, window, pack)],
        "kinds": dictionary,
        "words": {
            "phase": PHASES.categories.to_list(),
            "op": [key_text.label(x) for x in OP_CLASSES.categories],
            "evidence": [key_text.label(x) for x in EVIDENCE.categories],
            "source": WORK_SOURCES.categories.to_list(),
            "copy": COPY_KINDS.categories.to_list(),
        },
    }
    slice_ns = (window[1] - window[0]) / bins_per_lane(len(lanes))
    line = _line(analysis, kernels.height, detail, slice_ns)
    if streams_out or groups_out or ranges_out:
        missing = [(streams_out, "stream"), (groups_out, "group"), (ranges_out, "NVTX range")]
        line += " Not drawn: " + ", ".join(fmt.plural(n, word) for n, word in missing if n) + "."
    return TimelinePayload(pack.finish(header), line)


def _window(analysis: Analysis, kernels: pl.DataFrame) -> tuple[int, int]:
    """The analysed window, wide enough for every kernel drawn."""
    first, last = int(kernels["start_ns"].min()), int(kernels["end_ns"].max())  # type: ignore[arg-type]
    start = min(analysis.window.start_ns, first)
    return start, max(last, start + 1, analysis.window.end_ns)


def _line(analysis: Analysis, total: int, detail: Any, slice_ns: float) -> str:
    """How many of how many kernels are drawn."""
    outside = analysis.kernels.height - total
    beside = (
        f" {fmt.plural(outside, 'kernel')} outside the analysed window (warm-up, graph capture) are not drawn."
        if outside
        else ""
    )
    if detail.whole and total == 1:
        return f"The one kernel of the window is drawn.{beside}"
    if detail.whole:
        return f"All {fmt.plural(total, 'kernel')} of the window are drawn; zoom in to see them one by one.{beside}"
    where = " and ".join(
        text
        for text in (
            f"those in the {fmt.plural(detail.stalls, 'longest stall')}" if detail.stalls else "",
            f"those in {fmt.plural(detail.steps, 'step')} spread over the window" if detail.steps else "",
        )
        if text
    )
    return (
        f"{detail.kernels:,} of {total:,} kernels are drawn one by one: {where or 'those in evenly spread stretches of time'}. "
        f"Elsewhere the lanes show, for each {fmt.nanoseconds(slice_ns)}, the share of time in which kernels of each phase ran. "
        f"Steps, gaps and stalls are there at every zoom.{beside}"
    )
