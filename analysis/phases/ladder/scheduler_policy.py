"""Prefill or mixed? Steps whose kernels show several tokens per request, but not whether others decode beside them.

Two kinds of scheduler exist. One mixes: everyone samples in every step, so the rows sampled are the decoding requests
plus the prompts, and the next decode batch is no larger than that. The other prefills apart: only the prompts sample,
and the next decode batch is the batch before plus all of them. Which kind ran is decided once for the capture, by the
runs of such steps that lie between two decode steps.
"""

from __future__ import annotations

import polars as pl

MIN_GONE_REQUESTS_SHARE = 0.5  # share of the requests that are gone one step later where nobody decodes
MAX_DECODING_PAUSE_NS = 50_000_000  # after an idle time like this nobody was decoding any more


def scheduler_mixes(steps: pl.DataFrame, default: bool | None) -> bool | None:
    """Whether the scheduler mixes prompts with decoding requests, by the runs that tell; else ``default``.

    Needs columns lane, several, requests, decoding (boolean: a plain decode step).
    """
    marked = steps.with_columns(
        run=(pl.col("several") != pl.col("several").shift(1).over("lane")).fill_null(True).cum_sum(),
        before=pl.when(pl.col("decoding")).then("requests").otherwise(None).shift(1).over("lane"),
        after=pl.when(pl.col("decoding")).then("requests").otherwise(None).shift(-1).over("lane"),
    )
    runs = (
        marked.filter("several")
        .group_by("lane", "run")
        .agg(
            pl.col("before").first(),
            pl.col("after").last(),
            pl.col("requests").sum().alias("all"),
            pl.col("requests").last().alias("last"),
            pl.col("requests").null_count().alias("unknown"),
        )
        .filter((pl.col("unknown") == 0) & (pl.col("before") > 0) & pl.col("after").is_not_null())
    )
    together = (pl.col("after") - pl.col("last")).abs()
    apart = (pl.col("after") - pl.col("before") - pl.col("all")).abs()
    votes = runs.select(
        mixed=(together < apart).sum(),
        separate=(apart < together).sum(),
        never=(pl.col("last") < pl.col("before")).sum(),
    ).row(0, named=True)
    if votes["mixed"] == votes["separate"]:
        return default
    return bool(votes["mixed"] > votes["separate"])


def decoding_beside(steps: pl.DataFrame, mixes: bool | None) -> pl.Series:
    """For each step with several tokens per request, how many requests decode beside its prompts (0 = none).

    ``continuing`` (token ids of the step before copied on the device) counts them exactly where an engine does so.
    Else, where the scheduler mixes, those that sampled in the step before and are still there: all rows but one at
    most, and not the request whose prompt fills the token budget and goes on. Null where that is not known.
    """
    full = pl.col("tokens") >= pl.col("tokens").max().over("lane")
    goes_on = (pl.col("several") & full).cast(pl.Int64)
    sampled = pl.coalesce("requests", pl.when(pl.col("decoding") & ~pl.col("full_graph")).then("tokens"))
    first = pl.int_range(pl.len()).over("lane") == 0
    available = pl.when(first).then(0).otherwise((sampled - goes_on).shift(1).over("lane"))
    idle = pl.col("start_ns") - pl.col("end_ns").shift(1).over("lane")
    waiting = pl.when(idle.fill_null(0) > MAX_DECODING_PAUSE_NS).then(0).otherwise(available)
    # Nothing known before it: an engine that mixes and samples many rows in the middle of its work was mixing.
    alone = (pl.len().over("lane") == 1) | (pl.col("cut_short") & first)
    # An embedding server samples nothing, and a prefill worker's requests are gone in the next step.
    never = ~pl.col("decoding").any().over("lane") & (pl.len().over("lane") > 1)
    serves_prompts = never & (~pl.col("closes").any().over("lane") | vanish())
    alone |= never & first
    tracked = (
        pl.when(pl.lit(mixes is not True) | (pl.col("requests") <= 1) | serves_prompts)
        .then(0)
        .when(alone | waiting.is_null())
        .then(None)
        .otherwise(pl.min_horizontal(waiting, pl.col("requests") - 1))
    )
    return steps.select(
        pl.when(~pl.col("several")).then(None).otherwise(pl.coalesce("continuing", tracked)).alias("beside")
    ).to_series()


def vanish() -> pl.Expr:
    """Whether most requests of a lane are no longer there one step later: nobody decodes where they only pass through."""
    requests = pl.col("requests")
    gone = (requests - (requests.shift(-1).over("lane") - 1)).clip(lower_bound=0)
    kept = pl.when(requests.shift(-1).over("lane").is_not_null()).then(requests)
    return (gone.sum().over("lane") > MIN_GONE_REQUESTS_SHARE * kept.sum().over("lane")).fill_null(False)
