"""Which of the candidate models fits the launch grids: the tiles of a GEMM must cover M x N exactly.

Kernels that print their tile and launch one block per tile (cuBLAS before nvjet, CUTLASS 2) give
ceil(N / tile) x ceil(M / tile) blocks, up to the swizzle that rounds one side. Shapes recorded in the capture decide
first, where there are any.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import polars as pl

from ...models.find_model import ModelShape
from ...phases import PhaseResult
from ..kernel_work import PlacedKernels
from ..operators.gemm_orders import PLACE_CODE, PLACES
from ..operators.layer_matrices import RankShape, rank_matrices

_Launch: TypeAlias = tuple[str, int, int, int, int, int]  # place, tokens, blocks, tile, tile, name

_MATRICES = ("qkv", "q", "k", "v", "o", "gate_up", "gate", "up", "down", "router")
SWIZZLES = (1, 2, 4, 8)
AGREES = 0.9  # share of distinct launches that must fit
PLACES_NEEDED = 2  # different matrices that must be seen


@dataclass(frozen=True)
class Fitting:
    """Candidates that fit what was seen; ``confirmed``: shapes or tiles spoke for them, not the layer count alone."""

    models: tuple[ModelShape, ...]
    confirmed: bool


def keep_fitting(
    candidates: Sequence[ModelShape],
    tensor_parallel: int,
    phases: PhaseResult,
    facts: pl.DataFrame,
    work: PlacedKernels,
) -> Fitting:
    """The candidates that fit the norms, shapes and launches of the capture."""
    if _normalises_queries(work):
        candidates = [model for model in candidates if model.qk_norm or model.is_mla]
    ranks = {model: RankShape(model, tensor_parallel) for model in candidates}
    exact = _pairs_of_names(facts) or _recorded_pairs(work)
    if len(exact) >= PLACES_NEEDED:
        kept = [model for model, rank in ranks.items() if len(exact & _pairs(rank)) >= AGREES * len(exact)]
        return Fitting(tuple(kept), confirmed=True)
    launches = _launches(phases, facts, work)
    fits = {model: _fits(rank, launches) for model, rank in ranks.items()}
    telling = _telling(launches, fits.values())
    places = {place for (place, *_), tells in zip(launches, telling, strict=True) if tells}
    if len(places) < PLACES_NEEDED:
        return Fitting(tuple(candidates), confirmed=False)
    least = sum(telling) * AGREES
    return Fitting(tuple(model for model, fit in fits.items() if sum(fit) >= least), confirmed=True)


def _telling(launches: Sequence[_Launch], fits: Iterable[Sequence[bool]]) -> list[bool]:
    """Which launches speak: those of kernels that launch a block per tile, because some model explains one of theirs.

    A persistent kernel launches one block per SM whatever the shape, which says nothing. But where a kernel's grid is
    explained at one place and by no model at another, the model is none of the candidates, and that must count.
    """
    explained = [any(fit) for fit in zip(*fits, strict=True)]
    per_tile = {name for (*_, name), fits_one in zip(launches, explained, strict=False) if fits_one}
    return [name in per_tile for *_, name in launches]


def _normalises_queries(work: PlacedKernels) -> bool:
    """Whether nearly every attention kernel follows a norm of queries and keys."""
    norms = int(np.count_nonzero(work.place == PLACE_CODE["qk_norm"]))
    attention = int(np.count_nonzero((work.place == PLACE_CODE["attention"]) & ~work.helper))
    return attention > 0 and norms >= AGREES * attention


def _recorded_pairs(work: PlacedKernels) -> set[tuple[int, int]]:
    """(N, K) of the placed GEMMs whose shapes the capture records; lm_head is left out, its rows may be padded."""
    if work.recorded is None:
        return set()
    wanted = [PLACE_CODE[place] for place in _MATRICES]
    rows = np.flatnonzero(work.recorded.known & (work.recorded.batch == 1) & np.isin(work.place, wanted))
    pairs = np.unique(np.column_stack([work.recorded.outputs[rows], work.recorded.inputs[rows]]), axis=0)
    return {(int(n), int(k)) for n, k in pairs}


def _pairs_of_names(facts: pl.DataFrame) -> set[tuple[int, int]]:
    known = facts.filter(
        (pl.col("op_class") == "gemm") & pl.col("shape_n").is_not_null() & pl.col("shape_k").is_not_null()
    )
    return set(known.filter((pl.col("shape_n") > 0) & (pl.col("shape_k") > 0)).select("shape_n", "shape_k").iter_rows())


def _pairs(rank: RankShape) -> set[tuple[int, int]]:
    return {(round(matrix.outputs), round(matrix.inputs)) for matrix in rank_matrices(rank).values()}


def _launches(phases: PhaseResult, facts: pl.DataFrame, work: PlacedKernels) -> list[_Launch]:
    """Distinct launches of GEMMs that print their tile."""
    step = work.step
    inside = np.maximum(step, 0)
    head = work.place == PLACE_CODE["lm_head"]
    rows = [
        np.append(np.nan_to_num(each, nan=-1.0), -1.0) for each in (work.sums.executed_tokens, work.sums.logits_rows)
    ]
    tokens = np.where(step >= 0, np.where(head, rows[1][inside], rows[0][inside]), -1.0)
    kernels = phases.kernels
    frame = pl.DataFrame(
        {
            "place": work.place,
            "tokens": tokens,
            "name_id": kernels["name_id"],
            "blocks": kernels["grid_x"].cast(pl.Int64) * kernels["grid_y"].cast(pl.Int64),
            "device_index": kernels["device_index"],
        }
    )
    wanted = [PLACE_CODE[place] for place in (*_MATRICES, "lm_head")]
    tiles = facts.filter(
        (pl.col("op_class") == "gemm") & pl.col("tile_m").is_not_null() & pl.col("tile_n").is_not_null()
    )
    frame = frame.filter(pl.col("place").is_in(wanted) & (pl.col("tokens") > 0)).unique()
    frame = frame.join(tiles.select("name_id", "tile_m", "tile_n"), on="name_id")
    return [
        (PLACES[row["place"]], int(row["tokens"]), row["blocks"], row["tile_m"], row["tile_n"], row["name_id"])
        for row in frame.iter_rows(named=True)
    ]


def _fits(rank: RankShape, launches: Sequence[_Launch]) -> list[bool]:
    """For each launch, whether its blocks are the tiles of this model's matrix."""
    matrices = rank_matrices(rank)
    return [
        place in matrices and blocks in _block_counts(round(matrices[place].outputs), tokens, tile_m, tile_n)
        for place, tokens, blocks, tile_m, tile_n, _ in launches
    ]


def _block_counts(outputs: int, tokens: int, tile_m: int, tile_n: int) -> set[int]:
    """Blocks that cover outputs x tokens with this tile in either orientation and any swizzle."""
    counts = set()
    for along_outputs, along_tokens in ((tile_m, tile_n), (tile_n, tile_m)):
        one, other = -(-outputs // along_outputs), -(-tokens // along_tokens)
        for swizzle in SWIZZLES:
            counts.add(one * swizzle * -(-other // swizzle))
            counts.add(other * swizzle * -(-one // swizzle))
    return counts
