"""The phase of each step, by the ladder of evidence: marker, kernel names, launch geometry, graph replay, context.

The input is one row per step with what each rung saw; the output adds ``phase``, ``evidence`` and ``beside``, the
number of requests that decode next to the prompts of a step.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from ...records.tables import EVIDENCE, PHASES
from ..kernel_arrays import HINT, Bools, Ints, KernelArrays
from .plain_pytorch import plain_pytorch_phases
from .scheduler_policy import decoding_beside, scheduler_mixes

MIN_HINTED_ATTENTION_SHARE = (
    0.2  # share of a step's attention launches that must carry a hint for the step to have that kind
)
MIN_NAMED_GEMM_SHARE = 0.6  # share of a step's GEMMs that must name few tokens (or many) before they speak for the step
MIN_STEADY_STEPS = 3  # a token count that this many steps in a row share is a decode batch where requests are not known
MAX_PADDING_TOKENS = 16  # captured sizes double at first, then grow by at most this much
MAX_BATCH = 512  # and no batch is larger than this


def name_evidence(columns: KernelArrays, preparing: Ints, step: Ints, layer: Ints, steps: int) -> pl.DataFrame:
    """Per step: which kinds its kernel names show.

    ``decode``, ``prefill``, ``several_tokens`` (prefill or mixed), ``both``: from attention names that are sure, and
    from metadata kernels that engines launch for one kind only (``preparing``, hint codes); ``second``: next to decode
    attention a layer launches one that says nothing, prompts' where tokens exceed requests; ``few``: attention for few
    query rows, decode unless counts say otherwise; ``many``: for many, whoever they belong to; ``verify``: a rejection
    sampler ran; ``likely``: 'prefill' | 'decode' | '' from the rest, GEMM names included (quantised vector kernels
    name few tokens).
    """
    attends = np.flatnonzero(columns.is_op("attention") & (step >= 0))
    multiplies = np.flatnonzero(columns.is_op("gemm", "moe_gemm") & (step >= 0) & (columns.hint > 0))
    prepares = np.flatnonzero((preparing > 0) & (step >= 0))
    rejects = np.flatnonzero(columns.is_op("sampling") & columns.hint_sure & (step >= 0))

    def count(rows: Ints, kept: Bools | None = None) -> Ints:
        return np.bincount(step[rows if kept is None else rows[kept]], minlength=steps)[:steps]

    hint, is_sure = columns.hint[attends], columns.hint_sure[attends]
    of_attention = np.maximum(count(attends), 1)
    of_gemm = np.maximum(count(np.flatnonzero(columns.is_op("gemm", "moe_gemm") & (step >= 0))), 1)

    def sure(kind: str) -> Bools:
        return count(attends, is_sure & (hint == HINT[kind])) / of_attention >= MIN_HINTED_ATTENTION_SHARE

    def likely(kind: str) -> Bools:
        weak = count(attends, ~is_sure & (hint == HINT[kind])) / of_attention
        return (
            np.maximum(weak, count(multiplies, columns.hint[multiplies] == HINT[kind]) / of_gemm) > MIN_NAMED_GEMM_SHARE
        )

    named = sure("decode") | sure("prefill") | sure("prefill_or_mixed") | sure("mixed")
    _, first = np.unique(layer[attends], return_index=True)
    heads = attends[first]
    layers = np.maximum(count(heads), 1)
    paired = count(heads, both_kinds(columns, layer)[heads]) / layers >= MIN_HINTED_ATTENTION_SHARE
    seconds = count(attends, second_kind(columns, layer)[attends]) / layers >= MIN_HINTED_ATTENTION_SHARE
    prepares_decode = ~named & (count(prepares, preparing[prepares] == HINT["decode"]) > 0)
    prepares_prompt = ~named & (count(prepares, preparing[prepares] == HINT["prefill_or_mixed"]) > 0)
    frame = pl.DataFrame(
        {
            "decode": sure("decode") | (prepares_decode & ~prepares_prompt),
            "prefill": sure("prefill"),
            "several_tokens": sure("prefill_or_mixed") | prepares_prompt,
            "both": sure("mixed") | paired,
            "second": seconds,
            "few": count(attends, columns.few[attends]) / of_attention >= MIN_HINTED_ATTENTION_SHARE,
            "many": count(attends, columns.many[attends]) / of_attention >= MIN_HINTED_ATTENTION_SHARE,
            "verify": count(rejects, columns.hint[rejects] == HINT["decode"]) > 0,
            "likely_decode": likely("decode"),
            "likely_prefill": likely("prefill"),
        }
    )
    word = (
        pl.when(pl.col("likely_decode")).then(pl.lit("decode")).when(pl.col("likely_prefill")).then(pl.lit("prefill"))
    )
    return frame.with_columns(likely=word.otherwise(pl.lit(""))).drop("likely_decode", "likely_prefill")


def both_kinds(columns: KernelArrays, layer: Ints) -> Bools:
    """Kernels of layers whose attention was launched twice, once for decoding requests and once for prompts.

    Kernels of different layers are not compared: models with sliding windows use another kernel in every other layer.
    """
    context = np.isin(columns.hint, [HINT["prefill"], HINT["prefill_or_mixed"]])
    return beside_decode(columns, layer, context)


def beside_decode(columns: KernelArrays, layer: Ints, other: Bools) -> Bools:
    """Kernels of layers that hold an attention kernel named for decoding and one of ``other``."""
    rows = np.flatnonzero(columns.is_op("attention") & (layer >= 0))
    count = int(layer.max(initial=-1)) + 2
    decode, beside = np.zeros(count, dtype=bool), np.zeros(count, dtype=bool)
    decode[layer[rows[columns.hint[rows] == HINT["decode"]]]] = True
    beside[layer[rows[other[rows]]]] = True
    return np.asarray((decode & beside)[layer])


def second_kind(columns: KernelArrays, layer: Ints) -> Bools:
    """Attention kernels whose name says nothing, alone beside one named for decoding in their layer."""
    attention = columns.is_op("attention") & (layer >= 0)
    silent: Bools = attention & (columns.hint == 0)
    if not silent.any():
        return silent
    count = int(layer.max(initial=-1)) + 2
    pairs = np.bincount(layer[np.flatnonzero(attention)], minlength=count) == 2
    return np.asarray(silent & beside_decode(columns, layer, silent) & pairs[layer])


def decide_phases(steps: pl.DataFrame, mixes: bool | None) -> pl.DataFrame:
    """Add ``phase``, ``evidence`` and ``beside`` to the step rows.

    ``mixes``: whether the engine is known to mix prompts with decoding requests. Needs the columns of
    ``name_evidence`` and lane, start_ns, end_ns, marker_phase, tokens, requests, full_graph, draft, continuing.
    """
    steps = steps.with_columns(steady_batch().fill_null(False).alias("steady"))
    own = steps.with_columns(named_phase().alias("named"), counted_phase().alias("counted"))
    first = pl.coalesce("named", "counted")
    serves = ~pl.col("draft") & ~pl.col("excluded") & pl.col("marker_phase").is_null()
    own = own.with_columns(
        several=(first.is_in(["several", "mixed"]) & ~pl.col("verify") & serves).fill_null(False),
        decoding=((first == "decode") | pl.col("full_graph") | (first.is_null() & pl.col("steady"))).fill_null(False),
    )
    named_mixed = bool((own["named"] == "mixed").any())
    own = own.with_columns(beside=decoding_beside(own, named_mixed or scheduler_mixes(own, mixes)))
    own = own.with_columns(
        plain_pytorch_phases(own, pl.col("decoding") | (first.is_null() & (pl.col("likely") == "decode")))
    )
    prompt_phase = pl.when(pl.col("beside") == 0).then(pl.lit("prefill")).otherwise(pl.lit("mixed"))
    verify = pl.col("verify") & (first.is_null() | first.is_in(["several", "decode"]))
    ladder = [
        (pl.col("excluded") & pl.col("marker_phase").is_null(), pl.lit("other"), "step_context"),
        (pl.col("excluded"), pl.lit("other"), "marker"),
        (pl.col("marker_phase").is_not_null(), pl.col("marker_phase"), "marker"),
        (pl.col("draft"), pl.lit("other"), "step_context"),
        (verify, pl.lit("decode"), "kernel_name"),
        (pl.col("named") == "several", prompt_phase, "kernel_name"),
        (pl.col("named").is_not_null(), pl.col("named"), "kernel_name"),
        (pl.col("counted") == "several", prompt_phase, "launch_geometry"),
        (pl.col("counted").is_not_null(), pl.col("counted"), "launch_geometry"),
        (pl.col("full_graph"), pl.lit("decode"), "graph_replay"),
        (pl.col("likely") != "", pl.col("likely"), "kernel_name"),
        (pl.col("plain_pytorch").is_not_null(), pl.col("plain_pytorch"), "launch_geometry"),
        (pl.col("steady"), pl.lit("decode"), "launch_geometry"),
    ]
    phase, evidence = pl.lit("unknown"), pl.lit("none")
    for holds, value, rung in reversed(ladder):
        phase = pl.when(holds.fill_null(False)).then(value).otherwise(phase)
        evidence = pl.when(holds.fill_null(False)).then(pl.lit(rung)).otherwise(evidence)
    return own.with_columns(phase.cast(PHASES).alias("phase"), evidence.cast(EVIDENCE).alias("evidence"))


def named_phase() -> pl.Expr:
    """What sure names say: a phase, 'several' (more than one token for some request), or null.

    In a full graph 'several' is no prompt: engines capture whole steps for decoding and verifying only.
    """
    context = pl.col("prefill") | pl.col("several_tokens")
    return (
        pl.when(pl.col("both") | (pl.col("decode") & context) | (pl.col("second") & (counted_phase() == "several")))
        .then(pl.lit("mixed"))
        .when(pl.col("decode"))
        .then(pl.lit("decode"))
        .when(pl.col("prefill"))
        .then(pl.lit("several"))
        .when(pl.col("several_tokens") & ~pl.col("full_graph"))
        .then(pl.lit("several"))
        .when(pl.col("many"))
        .then(pl.when(counted_phase() == "decode").then(None).otherwise(pl.lit("several")))
        .when(pl.col("few"))
        .then(pl.when(counted_phase() == "several").then(None).otherwise(pl.lit("decode")))
    )


def may_be_padding() -> pl.Expr:
    """Whether tokens beyond the requests may be a graph's padding: captured sizes are at most this far apart.

    Not where kernels outside the graph count the real tokens.
    """
    padded = pl.col("graph_id").is_not_null() & ~pl.col("unpadded")
    return padded & (pl.col("tokens") <= 2 * pl.col("requests") + MAX_PADDING_TOKENS)


def counted_phase() -> pl.Expr:
    """What tokens against requests say: equal = decode; more tokens = prefill or mixed ('several').

    Nothing in full graphs, and nothing where the tokens beyond the requests may be padding.
    """
    known = pl.col("tokens").is_not_null() & pl.col("requests").is_not_null() & ~pl.col("full_graph")
    return (
        pl.when(known & (pl.col("tokens") == pl.col("requests")))
        .then(pl.lit("decode"))
        .when(known & (pl.col("tokens") > pl.col("requests")) & ~may_be_padding().fill_null(False))
        .then(pl.lit("several"))
        .when((pl.col("tokens") == 1) & ~pl.col("full_graph"))
        .then(pl.lit("decode"))
        .when((larger_than_batches() | leaps()) & pl.col("requests").is_null() & ~pl.col("full_graph"))
        .then(pl.lit("several"))
    )


def larger_than_batches() -> pl.Expr:
    """More tokens than any batch has requests."""
    return pl.col("tokens") > MAX_BATCH


def leaps() -> pl.Expr:
    """Many more tokens than the steady batch just before it: only prompts make a batch grow."""
    before = pl.col("tokens").shift(1).over("lane")
    return pl.col("steady").shift(1).over("lane") & (pl.col("tokens") > 2 * before + MAX_PADDING_TOKENS)


def steady_batch() -> pl.Expr:
    """A token count shared by several steps in a row, small enough for a batch."""
    tokens = pl.col("tokens")
    run = (tokens != tokens.shift(1).over("lane")).fill_null(True).cum_sum()
    return (pl.len().over("lane", run) >= MIN_STEADY_STEPS) & (tokens <= MAX_BATCH)
