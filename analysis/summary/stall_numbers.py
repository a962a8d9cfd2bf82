"""The summary's numbers of stalls: how many, how long, who waited, and the worst of them."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl
from msgspec import UNSET, UnsetType

from ..records.summary import LongestRun, WorstEpisode
from ..time.stalls import StallResult

#: Keys of the numbers here, as ``summary.reasons`` names them.
STALL_KEYS = (
    "stall_count",
    "stall_ms",
    "stall_max_ms",
    "stall_pct_of_window",
    "stall_episode_count",
    "stall_episode_max_ms",
    "request_ms_lost",
    "prefill_without_waiters",
)
LENGTH_KEYS = ("stall_ms", "stall_max_ms", "stall_pct_of_window", "stall_episode_max_ms")


@dataclass(frozen=True)
class StallNumbers:
    """The summary's numbers of the same names with ``stall_`` before them; None where unknown."""

    count: int | None = None
    ms: float | None = None
    max_ms: float | None = None
    pct_of_window: float | None = None
    episode_count: int | None = None
    episode_max_ms: float | None = None
    request_ms_lost: float | None = None
    prefill_without_waiters: int | None = None
    ms_is_lower_bound: bool | UnsetType = UNSET


def stall_numbers(
    stalls: pl.DataFrame, prefill_without_waiters: int, window_ms: float, groups: int, reasons: dict[str, str]
) -> StallNumbers:
    """Of the stalls of ``groups`` groups; ``reasons`` is told why a number is null or a lower bound."""
    known = stalls["stall_ms"].drop_nulls()
    episodes = known  # none, where no gap stalled
    if stalls.height:
        episodes = stalls.group_by("episode").agg(pl.col("stall_ms").sum())["stall_ms"]
    missing = stalls.height - known.len()
    lengths_known = bool(known.len()) or not missing
    if not window_ms:
        reasons["stall_pct_of_window"] = "the window is empty"
    if missing:
        why = f"no decode-only baseline for {missing} of {stalls.height} stalls: what is known is a lower bound"
        reasons |= dict.fromkeys(("stall_ms",) if lengths_known else LENGTH_KEYS, why)
    lost = stalls["request_ms_lost"]
    if lost.null_count():
        reasons["request_ms_lost"] = "requests held or a baseline are not known for every stall"
    total = float(known.sum())
    return StallNumbers(
        count=stalls.height,
        ms=total if lengths_known else None,
        max_ms=_maximum(known) if lengths_known else None,
        pct_of_window=100 * total / (window_ms * groups) if window_ms and lengths_known else None,
        episode_count=episodes.len(),
        episode_max_ms=_maximum(episodes) if lengths_known else None,
        request_ms_lost=None if lost.null_count() else float(lost.sum()),
        prefill_without_waiters=prefill_without_waiters,
        ms_is_lower_bound=True if missing else UNSET,
    )


def _maximum(values: pl.Series) -> float:
    return float(values.to_numpy().max()) if values.len() else 0.0


def worst_episode(stalls: StallResult) -> WorstEpisode | None:
    """The episode with most stall time."""
    frame = stalls.stalls
    if frame.is_empty():
        return None
    episodes = frame.group_by("episode", maintain_order=True).agg(
        pl.col("group").first(),
        pl.col("start_ns").min(),
        pl.col("end_ns").max(),
        pl.len().alias("stalls"),
        pl.col("steps").list.len().sum().alias("steps"),
        pl.col("stall_ms").sum(),
        _sum_or_null("prefill_tokens"),
        pl.col("requests_held").max(),
        _sum_or_null("request_ms_lost"),
        pl.col("gap_before_ms").first(),
        pl.col("gap_ms").median().alias("gap_during_ms"),
        pl.col("gap_after_ms").last(),
    )
    worst = episodes.sort("stall_ms", "episode", descending=[True, False], nulls_last=True).row(0, named=True)
    calm, lost = worst["gap_before_ms"] or worst["gap_after_ms"], worst["request_ms_lost"]
    # One token per request and undisturbed gap is what the time would have given.
    return WorstEpisode(**worst, tokens_lost=None if not calm or lost is None else lost / calm)


def _sum_or_null(column: str) -> pl.Expr:
    return pl.when(pl.col(column).null_count() == 0).then(pl.col(column).sum()).otherwise(None).alias(column)


def longest_run(stalls: StallResult) -> LongestRun | None:
    """The longest run of prefill steps while requests waited."""
    run = stalls.longest_run
    if run is None:
        return None
    return LongestRun(
        group=run.group,
        steps=run.steps,
        ms=run.ms,
        start_ns=run.start_ns,
        end_ns=run.end_ns,
        requests_held=run.requests_held,
    )
