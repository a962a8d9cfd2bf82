"""Tokens, requests and KV lengths of each step: the marker's where it has them, else the launch geometry's."""

from __future__ import annotations

import polars as pl


def count_tokens(steps: pl.DataFrame, *, pads_graphs: bool) -> pl.DataFrame:
    """Add the count columns of STEPS to rows that carry ``phase``, ``tokens``, ``requests`` and the marker facts (m_*).

    In a mixed step without counts of its own the decoding requests are those of the step before that are still there:
    at most all rows but one; attention kernels of their own count them exactly. A decode step whose requests no kernel
    shows has as many as tokens, and a step's prompt the tokens that remain, unless the graph that counts them may have
    been captured for more (``pads_graphs``): the size it was captured for is then all that is known.
    """
    phase = pl.col("phase").cast(pl.String)
    marked = pl.col("marker") >= 0
    width = pl.col("width")
    beside = pl.coalesce(pl.when(pl.col("beside") > 0).then("beside"), pl.col("requests").shift(1).over("lane"))
    others = pl.when(beside.is_not_null()).then(pl.min_horizontal(beside, pl.col("requests") - 1))
    sure = pl.col("unpadded") | pl.lit(not pads_graphs)
    unpadded = pl.when(~pl.col("full_graph") | sure).then(pl.col("tokens") // width)
    decode_requests = (
        pl.when(phase == "decode")
        .then(pl.coalesce("m_decode_requests", "requests", unpadded))
        .when(phase.is_in(["prefill", "other"]))
        .then(pl.lit(0))
        .when(phase == "mixed")
        .then(pl.coalesce("m_decode_requests", "decode_batch", others))
    )
    steps = steps.with_columns(decode_requests.cast(pl.Int64).alias("decode_requests"))
    decode_tokens = pl.coalesce("m_decode_tokens", pl.col("decode_requests") * width)
    steps = steps.with_columns(decode_tokens.cast(pl.Int64).alias("decode_tokens"))
    unknown = phase == "unknown"
    has_prompt = phase.is_in(["prefill", "mixed"])
    padded_only = (marked & pl.col("full_graph")) | (pl.col("graph_sized") & ~sure)
    from_grid = pl.when(~padded_only).then(pl.col("tokens") - pl.col("decode_tokens"))
    prefill_tokens = pl.when(has_prompt).then(pl.coalesce("m_prefill_tokens", from_grid)).when(~unknown).then(pl.lit(0))
    prefill_requests = (
        pl.when(has_prompt)
        .then(pl.coalesce("m_prefill_requests", pl.col("requests") - pl.col("decode_requests")))
        .when(~unknown)
        .then(pl.lit(0))
    )
    steps = steps.with_columns(
        prefill_tokens.cast(pl.Int64).alias("prefill_tokens"), prefill_requests.cast(pl.Int64).alias("prefill_requests")
    )
    real = pl.col("prefill_tokens") + pl.col("decode_tokens")
    launched = pl.coalesce("launched", "m_padded_requests", pl.when(~pl.col("opaque")).then(real))
    seen = launched.is_not_null() & (pl.col("launched").is_not_null() | ~pl.col("unpadded"))
    padded = pl.when(seen).then(pl.max_horizontal(launched, real))
    kv = pl.sum_horizontal("m_prefill_kv", "m_decode_kv")
    has_kv = pl.col("m_prefill_kv").is_not_null() | pl.col("m_decode_kv").is_not_null()
    steps = steps.with_columns(
        padded.cast(pl.Int64).alias("padded_tokens"),
        pl.when(has_kv).then(kv).cast(pl.Int64).alias("kv_tokens"),
        pl.when(has_kv).then(pl.lit("marker")).alias("kv_tokens_source"),
        pl.col("m_prefill_kv").alias("prefill_kv_tokens"),
        pl.col("m_prefill_qk").cast(pl.Float64).alias("prefill_qk"),
        pl.col("m_prefill_qq").cast(pl.Float64).alias("prefill_qq"),
        pl.when(pl.col("decode_requests") > 0).then(width).cast(pl.Int64).alias("verify_width"),
    )
    return steps.with_columns(finished_prompts().cast(pl.Int64).alias("prompts_finished"))


def finished_prompts() -> pl.Expr:
    """Prompts whose last chunk ran in the step.

    A scheduler fills its token budget, so in a step below the largest one seen every prompt was finished; at the budget
    the last prompt goes on when the next step still prefills. Never less than what the next batch gained.
    """
    total = pl.coalesce(pl.col("prefill_tokens") + pl.col("decode_tokens"), "padded_tokens")
    full = (total >= total.max().over("lane")) & (pl.len().over("lane") > 1)
    prefills = pl.col("phase").cast(pl.String).is_in(["prefill", "mixed"])
    goes_on = prefills.shift(-1).over("lane").fill_null(False) & full
    gained = (pl.col("decode_requests").shift(-1).over("lane") - pl.col("decode_requests")).fill_null(0)
    prompts = pl.col("prefill_requests")
    likely = pl.max_horizontal(prompts - goes_on.cast(pl.Int64), pl.min_horizontal(gained, prompts), pl.lit(0))
    return pl.when(prompts == 0).then(0).when(total.is_null()).then(None).otherwise(likely)
