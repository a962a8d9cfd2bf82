"""Which of the candidate models fits the launch grids: the tiles of a GEMM must cover M x N exactly.

Kernels that print their tile and launch one block per tile (cuBLAS before nvjet, CUTLASS 2) give
ceil(N / tile) x ceil(M / tile) blocks, up to the swizzle that rounds one side. Shapes recorded in the capture decide
first, where there are any.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import polars as pl

from ..models import ModelShape
from ..phases import PhaseResult
from .assign import KernelWork
from .layer_orders import PLACE_CODE, PLACES
from .matrices import RankShape, rank_matrices

_Launch: TypeAlias = tuple[str, int, int, int, int]  # place, tokens, blocks, tile, tile

SWIZZLES = (1, 2, 4, 8)
AGREES = 0.9  # share of distinct launches that must fit
PLACES_NEEDED = 2  # different matrices that must be seen


def keep_fitting(
    candidates: Sequence[ModelShape], tensor_parallel: int, phases: PhaseResult, facts: pl.DataFrame, work: KernelWork
) -> tuple[ModelShape, ...]:
    """The candidates whose matrices fit the launches seen, all of them where no launch tells anything."""
    exact = _exact_pairs(facts)
    if exact:
        return tuple(m for m in candidates if exact <= _pairs(RankShape(m, tensor_parallel)))
    launches = _launches(phases, facts, work)
    if not launches:
        return tuple(candidates)
    fits = {model: _fits(RankShape(model, tensor_parallel), launches) for model in candidates}
    # persistent kernels launch one block per SM whatever the shape: what no model explains says nothing
    telling = [any(fit[at] for fit in fits.values()) for at in range(len(launches))]
    places = {place for (place, *_), tells in zip(launches, telling, strict=True) if tells}
    if len(places) < PLACES_NEEDED:
        return tuple(candidates)
    kept = sum(telling) * AGREES
    return tuple(model for model, fit in fits.items() if sum(fit) >= kept)


def _exact_pairs(facts: pl.DataFrame) -> set[tuple[int, int]]:
    known = facts.filter(
        (pl.col("op_class") == "gemm") & pl.col("shape_n").is_not_null() & pl.col("shape_k").is_not_null()
    )
    return set(known.filter((pl.col("shape_n") > 0) & (pl.col("shape_k") > 0)).select("shape_n", "shape_k").iter_rows())


def _pairs(rank: RankShape) -> set[tuple[int, int]]:
    return {(round(matrix.outputs), round(matrix.inputs)) for matrix in rank_matrices(rank).values()}


def _launches(phases: PhaseResult, facts: pl.DataFrame, work: KernelWork) -> list[_Launch]:
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
    wanted = [PLACE_CODE[place] for place in ("qkv", "o", "gate_up", "gate", "up", "down", "lm_head")]
    tiles = facts.filter(
        (pl.col("op_class") == "gemm") & pl.col("tile_m").is_not_null() & pl.col("tile_n").is_not_null()
    )
    frame = frame.filter(pl.col("place").is_in(wanted) & (pl.col("tokens") > 0)).unique()
    frame = frame.join(tiles.select("name_id", "tile_m", "tile_n"), on="name_id")
    return [
        (PLACES[row["place"]], int(row["tokens"]), row["blocks"], row["tile_m"], row["tile_n"])
        for row in frame.iter_rows(named=True)
    ]


def _fits(rank: RankShape, launches: Sequence[_Launch]) -> list[bool]:
    """For each launch, whether its blocks are the tiles of this model's matrix."""
    matrices = rank_matrices(rank)
    return [
        place in matrices and blocks in _block_counts(round(matrices[place].outputs), tokens, tile_m, tile_n)
        for place, tokens, blocks, tile_m, tile_n in launches
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
