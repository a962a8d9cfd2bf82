"""The phase of each step, by the ladder of evidence: marker, kernel names, launch geometry, graph replay, context.

The input is one row per step with what each rung saw; the output adds ``phase``, ``evidence`` and the counts.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from ..result import EVIDENCE, PHASES
from .columns import HINT, Columns, Ints

ENOUGH = 0.2  # share of a step's attention launches that must carry a hint for the step to have that kind
MAX_VERIFY_WIDTH = 16  # more tokens per request than this are a prompt, not a speculative verify


def name_evidence(columns: Columns, step: Ints, steps: int) -> pl.DataFrame:
    """Per step: which kinds its kernel names show.

    ``decode``, ``prefill``, ``several_tokens`` (prefill or mixed), ``both``: from attention names that are sure;
    ``likely``: 'prefill' | 'decode' | '' from the rest, GEMM names included (quantised vector kernels name few tokens).
    """
    inside = step >= 0
    attention = columns.is_op("attention") & inside
    total = np.maximum(np.bincount(step[attention], minlength=steps), 1)[:steps]

    def share(rows: np.ndarray, of: np.ndarray) -> np.ndarray:
        return np.bincount(step[rows], minlength=steps)[:steps] / of

    sure = attention & columns.hint_sure
    kinds = {
        "decode": share(sure & (columns.hint == HINT["decode"]), total) >= ENOUGH,
        "prefill": share(sure & (columns.hint == HINT["prefill"]), total) >= ENOUGH,
        "several_tokens": share(sure & (columns.hint == HINT["prefill_or_mixed"]), total) >= ENOUGH,
        "both": share(sure & (columns.hint == HINT["mixed"]), total) >= ENOUGH,
    }
    weak = attention & ~columns.hint_sure
    gemm = columns.is_op("gemm", "moe_gemm") & inside
    gemms = np.maximum(np.bincount(step[gemm], minlength=steps), 1)[:steps]
    likely = {
        kind: np.maximum(
            share(weak & (columns.hint == HINT[kind]), total), share(gemm & (columns.hint == HINT[kind]), gemms)
        )
        for kind in ("prefill", "decode")
    }
    frame = pl.DataFrame(kinds)
    return frame.with_columns(
        likely=pl.when(pl.Series(likely["decode"] > 0.6))
        .then(pl.lit("decode"))
        .when(pl.Series(likely["prefill"] > 0.6))
        .then(pl.lit("prefill"))
        .otherwise(pl.lit(""))
    )


def decide_phases(steps: pl.DataFrame) -> pl.DataFrame:
    """Add ``phase`` and ``evidence`` (strings) to the step rows.

    Needs columns lane, marker_phase, decode, prefill, several_tokens, both, likely, tokens, requests, full_graph,
    draft, verify.
    """
    own = steps.with_columns(named_phase().alias("named"), counted_phase().alias("counted"))
    own = own.with_columns(settle_several(own).alias("settled"))
    phase = pl.coalesce(
        "marker_phase",
        pl.when(pl.col("draft")).then(pl.lit("other")),
        pl.when(pl.col("verify") & (pl.col("named").is_null() | (pl.col("named") == "several"))).then(pl.lit("decode")),
        pl.when(pl.col("named") == "several").then(pl.col("settled")).otherwise(pl.col("named")),
        pl.when(pl.col("counted") == "several").then(pl.col("settled")).otherwise(pl.col("counted")),
        pl.when(pl.col("full_graph")).then(pl.lit("decode")),
        pl.when(pl.col("likely") != "").then(pl.col("likely")),
        pl.lit("unknown"),
    )
    evidence = (
        pl.when(pl.col("marker_phase").is_not_null())
        .then(pl.lit("marker"))
        .when(pl.col("draft"))
        .then(pl.lit("step_context"))
        .when(pl.col("named").is_not_null())
        .then(pl.lit("kernel_name"))
        .when(pl.col("counted").is_not_null() | pl.col("verify"))
        .then(pl.lit("launch_geometry"))
        .when(pl.col("full_graph"))
        .then(pl.lit("graph_replay"))
        .when(pl.col("likely") != "")
        .then(pl.lit("kernel_name"))
        .otherwise(pl.lit("none"))
    )
    return own.with_columns(phase.cast(PHASES).alias("phase"), evidence.cast(EVIDENCE).alias("evidence"))


def named_phase() -> pl.Expr:
    """What sure attention names say: a phase, 'several' (more than one token for some request), or null."""
    context = pl.col("prefill") | pl.col("several_tokens")
    return (
        pl.when(pl.col("both") | (pl.col("decode") & context))
        .then(pl.lit("mixed"))
        .when(pl.col("decode"))
        .then(pl.lit("decode"))
        .when(pl.col("prefill"))
        .then(pl.lit("prefill"))
        .when(pl.col("several_tokens") & ~pl.col("full_graph"))
        .then(pl.lit("several"))
    )


def counted_phase() -> pl.Expr:
    """What tokens against requests say: equal = decode; more tokens = prefill or mixed ('several'), graphs excepted."""
    known = pl.col("tokens").is_not_null() & pl.col("requests").is_not_null() & ~pl.col("full_graph")
    return (
        pl.when(known & (pl.col("tokens") == pl.col("requests")))
        .then(pl.lit("decode"))
        .when(known & (pl.col("tokens") > pl.col("requests")))
        .then(pl.lit("several"))
    )


def settle_several(steps: pl.DataFrame) -> pl.Series:
    """For steps with several tokens per request: 'prefill' or 'mixed', from the decode steps around them.

    Rows sampled in the step against the batches before and after: an engine that mixes samples everyone in the step;
    one that prefills apart samples only the new prompts, and the next decode batch is the sum.
    """
    plain = pl.when((pl.col("requests") == pl.col("tokens")) | pl.col("full_graph") | pl.col("decode"))
    decoding = plain.then(pl.col("requests"))
    around = steps.select(
        "requests",
        decoding.forward_fill().over("lane").alias("before"),
        decoding.backward_fill().over("lane").alias("after"),
    )
    before, after, rows = pl.col("before").fill_null(0), pl.col("after"), pl.col("requests")
    apart = (after - (before + rows)).abs()
    together = (after - rows).abs()
    verdict = (
        pl.when(rows.is_null())
        .then(pl.lit("prefill"))
        .when(rows == 1)
        .then(pl.lit("prefill"))
        .when(before == 0)
        .then(pl.lit("prefill"))
        .when(after.is_null())
        .then(pl.when(rows > before).then(pl.lit("mixed")).otherwise(pl.lit("prefill")))
        .when((together <= apart) & (rows >= before * 0.5))
        .then(pl.lit("mixed"))
        .otherwise(pl.lit("prefill"))
    )
    return around.select(verdict.alias("settled")).to_series()
