"""Counts of a marker: its key=value tail, what follows from what, and the phase they give."""

from __future__ import annotations

import re
from collections.abc import Mapping

import polars as pl

COUNTS = (
    "prefill_requests", "prefill_tokens", "decode_requests", "decode_tokens", "padded_requests", "prefill_kv",
    "prefill_qk", "prefill_qq", "decode_kv", "decode_qk", "verify_width", "step_index",
)  # fmt: skip
_PHASE_OF_MEANING = {"verify": "decode", "draft": "other"}


def read_pairs(frame: pl.DataFrame, keys: Mapping[str, str], keys_in: Mapping[str, Mapping[str, str]]) -> pl.DataFrame:
    """Add the columns that the words of ``pairs`` give.

    ``keys`` maps a key to its column; ``keys_in`` does so for texts of one phase (column ``meaning``). A value written
    ``117/128`` is the real and the padded number; the second goes to ``padded_requests``.
    """
    values: dict[str, list[pl.Expr]] = {}
    for phase, table in (("", keys), *keys_in.items()):
        for key, column in table.items():
            word = re.escape(key)
            value = pl.col("pairs").str.extract(rf"(?:^|[\s,;]){word}=(\d+)(?:[\s,;/]|$)", 1).cast(pl.Int64)
            padded = pl.col("pairs").str.extract(rf"(?:^|[\s,;]){word}=\d+/(\d+)", 1).cast(pl.Int64)
            if phase:
                here = pl.col("meaning").replace(_PHASE_OF_MEANING) == phase
                value, padded = pl.when(here).then(value), pl.when(here).then(padded)
            values.setdefault(column, []).append(value)
            if column in {"prefill_requests", "decode_requests", "requests"}:
                values.setdefault("padded_requests", []).append(padded)
    return frame.with_columns(**{column: pl.coalesce(found) for column, found in values.items()})


def finish_counts(frame: pl.DataFrame, phase: str | None, *, one_token_per_request: bool) -> pl.DataFrame:
    """Work out what the counts imply, and the phase.

    * a total of both phases minus one part is the other part;
    * in a mixed step whose decoding requests are known only by their tokens, each makes one token;
    * tokens per decoding request above one is speculative verification: ``verify_width``, rounded up;
    * ``phase``: a fixed one, ``by_counts`` (what has requests and tokens is in the step), ``by_new`` (vLLM 0.12: no new
      request leaves the phase open), or None: from the mode.
    """
    for column in (*COUNTS, "requests", "tokens"):
        if column not in frame.columns:
            frame = frame.with_columns(pl.lit(None, dtype=pl.Int64).alias(column))
    if "meaning" in frame.columns:
        frame = frame.with_columns(
            phase=pl.col("meaning").replace(_PHASE_OF_MEANING),
            **(
                {"part": pl.when(pl.col("meaning") == "draft").then(pl.lit("draft"))}
                if "part" not in frame.columns
                else {}
            ),
        )
    if phase is not None:
        frame = frame.with_columns(phase=_phase(phase))
    if "phase" not in frame.columns:
        return frame.with_columns(phase=pl.lit(None, dtype=pl.String))
    mixed = pl.col("phase") == "mixed"
    requests, tokens = pl.col("decode_requests"), pl.col("decode_tokens")
    frame = frame.with_columns(decode_requests=pl.when(mixed & requests.is_null()).then(tokens).otherwise(requests))
    if one_token_per_request:
        several = pl.col("meaning") == "verify" if "meaning" in frame.columns else pl.lit(value=False)
        frame = frame.with_columns(decode_tokens=pl.when(tokens.is_null() & ~several).then(requests).otherwise(tokens))
    return frame.with_columns(
        prefill_requests=pl.coalesce("prefill_requests", pl.when(mixed).then(pl.col("requests") - requests)),
        prefill_tokens=pl.coalesce("prefill_tokens", pl.when(mixed).then(pl.col("tokens") - tokens)),
        verify_width=pl.coalesce(
            "verify_width", pl.when((requests > 0) & (tokens > 0)).then((tokens + requests - 1) // requests)
        ),
    )


def _phase(rule: str) -> pl.Expr:
    if rule not in {"by_counts", "by_new"}:
        return pl.lit(rule)
    prefill = _present("prefill_requests", "prefill_tokens")
    decode = _present("decode_requests", "decode_tokens")
    alone = pl.lit("unknown") if rule == "by_new" else pl.lit("decode")
    return (
        pl.when(prefill & decode)
        .then(pl.lit("mixed"))
        .when(prefill)
        .then(pl.lit("prefill"))
        .when(decode)
        .then(alone)
        .otherwise(pl.lit("other"))
    )


def _present(requests: str, tokens: str) -> pl.Expr:
    """Whether a phase has work: requests where counted, and tokens where counted."""
    some_requests, some_tokens = pl.col(requests) > 0, pl.col(tokens) > 0
    return pl.coalesce(some_requests & some_tokens, some_requests, some_tokens, pl.lit(value=False))
