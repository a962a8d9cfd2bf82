"""The lanes a reader looks at first: each group's steps, the inter-token gap under them, the stalls on them."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from ...analysis.records.analysis import Analysis
from .byte_planes import Pack
from .covered_levels import levels_by_code
from .lanes import PHASE_CODES, edges_of

MAX_STEPS = 40_000
MAX_GAPS = 60_000
MAX_STALLS = 5_000
MAX_GROUPS = 16
BINS = 16_384
COUNTS = ("prefill_tokens", "decode_tokens", "prefill_requests", "decode_requests", "kv_tokens", "kernel_count")


def group_lanes(analysis: Analysis, window: tuple[int, int], pack: Pack) -> tuple[list[dict[str, Any]], int]:
    """(one entry per group, groups left out)."""
    steps = analysis.steps.filter(
        ~pl.col("excluded") & (pl.col("end_ns") > window[0]) & (pl.col("start_ns") < window[1])
    )
    groups = steps["group"].unique().sort().to_list()
    made = [_group(analysis, steps.filter(pl.col("group") == g), g, window, pack) for g in groups[:MAX_GROUPS]]
    return made, max(0, len(groups) - MAX_GROUPS)


def _group(analysis: Analysis, steps: pl.DataFrame, group: int, window: tuple[int, int], pack: Pack) -> dict[str, Any]:
    own = (
        steps.group_by("index")
        .agg(pl.col("start_ns").min(), pl.col("end_ns").max(), pl.col("phase", "evidence", *COUNTS).first(), pl.col("mfu_pct", "mbu_pct").mean())
        .sort("index")
    )  # fmt: skip
    starts, ends = own["start_ns"].to_numpy(), own["end_ns"].to_numpy()
    codes = own["phase"].to_physical().to_numpy().astype(np.uint8)
    bins = {code: pack.whole(level) for code, level in levels_by_code(starts, ends, codes, edges_of(window, BINS), len(PHASE_CODES)).items()}  # fmt: skip
    shown = own if own.height <= MAX_STEPS else _notable(own, analysis, group)
    begin = shown["start_ns"].to_numpy() - window[0]
    return {
        "group": group,
        "count": own.height,
        "steps": {
            **pack.intervals(begin, shown["end_ns"].to_numpy() - window[0]),
            "index": pack.whole(shown["index"].to_numpy()),
            "phase": pack.whole(shown["phase"].to_physical().to_numpy()),
            "evidence": pack.whole(shown["evidence"].to_physical().fill_null(0).to_numpy()),
            **{c: pack.maybe(shown[c].fill_null(0).to_numpy(), shown[c].is_not_null().to_numpy()) for c in COUNTS},
            "mfu": pack.floats(shown["mfu_pct"].fill_null(float("nan")).to_numpy()),
            "mbu": pack.floats(shown["mbu_pct"].fill_null(float("nan")).to_numpy()),
        },
        "bins": {"n": BINS, "layers": bins},
        "gaps": _gaps(analysis, group, window, pack),
        "stalls": _stalls(analysis, group, window),
        "stall_count": analysis.stalls.filter(pl.col("group") == group).height,
    }


def _notable(steps: pl.DataFrame, analysis: Analysis, group: int) -> pl.DataFrame:
    """The longest steps and an even sample of the rest, where a group has more than a page can hold."""
    half = MAX_STEPS // 2
    rows = steps.with_row_index("row")
    longest = rows.sort(pl.col("end_ns") - pl.col("start_ns"), descending=True).head(half)["row"]
    even = rows.gather_every(max(1, rows.height // half))["row"]
    return rows.filter(pl.col("row").is_in(pl.concat([longest, even]).unique().implode())).drop("row")


def _gaps(analysis: Analysis, group: int, window: tuple[int, int], pack: Pack) -> dict[str, Any]:
    """Ends and lengths of the counted gaps; where there are too many, the longest and shortest of each slice."""
    gaps = analysis.gaps.filter((pl.col("group") == group) & pl.col("counted")).sort("end_ns")
    if gaps.height > MAX_GAPS:
        slot = (pl.col("end_ns") - window[0]) * (MAX_GAPS // 2) // max(1, window[1] - window[0])
        by = gaps.with_columns(slot=slot)
        ends = [by.sort("gap_ms", descending=d).group_by("slot", maintain_order=True).first() for d in (True, False)]
        gaps = pl.concat(ends).unique("end_ns").sort("end_ns")
    return {
        **pack.intervals(gaps["start_ns"].to_numpy() - window[0], gaps["end_ns"].to_numpy() - window[0]),
        "index": pack.whole(gaps["index"].to_numpy()),
        "ms": pack.floats(gaps["gap_ms"].to_numpy()),
        "prefill_ms": pack.floats(gaps["prefill_ms"].fill_null(float("nan")).to_numpy()),
        "stall": pack.signed(gaps["stall"].to_numpy()),
    }


def _stalls(analysis: Analysis, group: int, window: tuple[int, int]) -> list[dict[str, Any]]:
    """The stalls in time order, the longest where there are too many."""
    stalls = analysis.stalls.filter(pl.col("group") == group)
    shown = stalls.sort("stall_ms", descending=True, nulls_last=True).head(MAX_STALLS).sort("start_ns")
    wanted = shown.select(
        "stall",
        (pl.col("start_ns") - window[0]).alias("start"),
        (pl.col("end_ns") - window[0]).alias("end"),
        pl.col("stall_ms").alias("ms"),
        pl.col("kind").cast(pl.String),
        "episode",
        "prefill_tokens",
        "requests_held",
        "baseline_ms",
        "gap_ms",
        "reason",
    )
    return wanted.to_dicts()
