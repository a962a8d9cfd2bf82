"""Prompts against decoding where no kernel tells tokens: a long pass, then many short ones that are all alike.

Plain PyTorch (Hugging Face generate) has no serving kernels: norms and rotations fall into elementwise kernels whose
grids grow with the tokens without stating them. A run of equal small passes behind a larger one of the same layers is
the decoding of its prompt, if each samples and reads an output matrix larger than any layer's (the vocabulary). An
encoder's batches have no such matrix, and diffusion samples nothing.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from ..kernel_arrays import Ints, KernelArrays, of_step

GROWS_WITH_TOKENS = (
    "elementwise",
    "activation",
    "norm",
    "index",
    "reduce",
    "rope",
    "copy",
)  # their grids grow with the tokens
MAX_SIZE_DIFFERENCE = 0.02  # relative difference of sizes up to which two passes count as equal
MAX_DECODE_SIZE_RATIO = 1.1  # passes up to so many times the smallest decode
MIN_PROMPT_SIZE_RATIO = 1.5  # a prompt's pass is so many times larger than the passes behind it
MIN_VOCABULARY_TIME_RATIO = 1.2  # the output matrix takes so many times as long as the longest GEMM of a layer
MIN_EQUAL_PASSES = 3  # in a row


def size_of_steps(columns: KernelArrays, step: Ints, last_attention: Ints, tokens: pl.Series) -> pl.DataFrame:
    """Per step: ``size``, mean blocks of its small kernels (null where tokens are known), and ``reads_vocabulary``."""
    steps = len(tokens)
    inside = of_step(tokens.is_null().to_numpy(), step, False)
    if not inside.any():
        nothing = pl.Series("size", [None] * steps, dtype=pl.Float64)
        return pl.DataFrame([nothing, pl.Series("reads_vocabulary", [False] * steps, dtype=pl.Boolean)])
    small = np.flatnonzero(inside & columns.is_op(*GROWS_WITH_TOKENS))
    blocks = columns.grid_x[small].astype(np.int64) * columns.grid_y[small] * columns.grid_z[small]
    count = np.bincount(step[small], minlength=steps)[:steps]
    total = np.bincount(step[small], weights=blocks, minlength=steps)[:steps]
    gemms = np.flatnonzero(inside & columns.is_op("gemm"))
    length, owner = (columns.end - columns.start)[gemms], step[gemms]
    behind = gemms > last_attention[owner]
    longest = np.zeros((2, steps), dtype=np.int64)
    np.maximum.at(longest[0], owner[~behind], length[~behind])
    np.maximum.at(longest[1], owner[behind], length[behind])
    size = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return pl.DataFrame(
        {
            "size": pl.Series(size).fill_nan(None),
            "reads_vocabulary": (longest[0] > 0) & (longest[1] > MIN_VOCABULARY_TIME_RATIO * longest[0]),
        }
    )


def plain_pytorch_phases(steps: pl.DataFrame, decodes: pl.Expr) -> pl.Series:
    """'prefill' or 'decode' of steps told apart as above, null for all others.

    ``decodes``: steps known to decode by other evidence. Needs lane, attention, closes, size, reads_vocabulary.
    """
    if steps["size"].null_count() == steps.height:
        return pl.Series("plain_pytorch", [None] * steps.height, dtype=pl.String)
    size, before = pl.col("size"), pl.col("size").shift(1).over("lane")
    alike = ((size - before).abs() <= MAX_SIZE_DIFFERENCE * size) & (
        pl.col("attention") == pl.col("attention").shift(1).over("lane")
    )
    frame = steps.with_columns(
        (~alike.fill_null(False)).cum_sum().alias("run"), decodes.fill_null(False).alias("decodes")
    )
    frame = frame.with_columns((pl.len().over("lane", "run") >= MIN_EQUAL_PASSES).alias("repeats"))
    repeats = pl.col("repeats") & pl.col("closes") & pl.col("reads_vocabulary")
    least = pl.when(repeats).then("size").min().over("lane")
    frame = frame.with_columns((repeats & (size <= MAX_DECODE_SIZE_RATIO * least)).fill_null(False).alias("small"))
    follows = (pl.col("small") | pl.col("decodes")).shift(-1).over("lane")
    same = pl.col("attention") == pl.col("attention").shift(-1).over("lane")
    larger = size > MIN_PROMPT_SIZE_RATIO * pl.col("size").shift(-1).over("lane")
    frame = frame.with_columns((follows & same & larger & pl.col("closes")).fill_null(False).alias("prompt"))
    decoding = pl.col("small") & pl.col("prompt").any().over("lane")
    word = pl.when("prompt").then(pl.lit("prefill")).when(decoding).then(pl.lit("decode"))
    return frame.select(word.alias("plain_pytorch")).to_series()
