"""What tile and grid of a GEMM say of its outputs: a kernel with one block per tile covers them with whole tiles.

The rows are known (the step's tokens), so the blocks leave an interval of outputs one tile wide, or several where tile
orientation or swizzle are open. The same matrix is launched with other tiles for other token counts; what all launches
of a place have in common is what is known of its outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from typing import Any, TypeAlias

import numpy as np
import polars as pl

from ...facts.load import load_table
from ..kernel_work import PlacedKernels
from ..model_choice.launch_grids import SWIZZLES
from ..operators.gemm_orders import PLACE_CODE, PLACES

Widths: TypeAlias = "tuple[tuple[int, int], ...]"  # disjoint intervals, ascending, both ends included; () = none

DENSE = ("qkv", "q", "k", "v", "kv", "o", "gate_up", "gate", "up", "down")


@cache
def tile_rules(section: str) -> tuple[Mapping[str, Any], ...]:
    """Rows of one section of tile_rules.toml."""
    return tuple(load_table("tile_rules")[section])


def plain_names(names: pl.Series) -> pl.Series:
    """Kernel names as the patterns of tile_rules.toml see them."""
    return names.str.replace_all(r"\((?:unsigned )?int\)", "")


def union(intervals: Iterable[tuple[int, int]]) -> Widths:
    """The intervals merged where they touch."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(intervals):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return tuple(merged)


def common(one: Widths, other: Widths) -> Widths:
    """What both hold."""
    return union((max(a, c), min(b, d)) for a, b in one for c, d in other if max(a, c) <= min(b, d))


@lru_cache(maxsize=4096)
def outputs_of_launch(tokens: int, grid: tuple[int, int], tile: tuple[int, int]) -> Widths:
    """Outputs that a GEMM of ``tokens`` rows can have, launched with ``grid`` (x, y) blocks of ``tile`` (M, N).

    Either side of the tile may run along the outputs, either axis of the grid may count them, and a swizzle may turn
    up to eight rows of tiles into columns. () where no arrangement gives this grid: the kernel is none of its kind.
    """
    found = []
    for along_outputs, along_tokens in {tile, tile[::-1]}:
        rows = -(-tokens // along_tokens)
        for least, most in _tiles(grid, rows):
            found.append(((least - 1) * along_outputs + 1, most * along_outputs))
    return union(found)


def _tiles(grid: tuple[int, int], rows: int) -> Iterator[tuple[int, int]]:
    """Fewest and most tiles along the outputs for every arrangement of ``rows`` tiles along the tokens."""
    for x, y in {grid, grid[::-1]}:
        for swizzle in SWIZZLES:
            if swizzle < 2 * rows and x % swizzle == 0 and y == -(-rows // swizzle):
                yield x // swizzle, x // swizzle
            if x == rows * swizzle:
                yield max((y - 1) * swizzle + 1, swizzle // 2 + 1), y * swizzle
        if y == 1 and x % rows == 0:
            yield x // rows, x // rows


def tiled_launches(
    names: pl.DataFrame, facts: pl.DataFrame, kernels: pl.DataFrame, work: PlacedKernels
) -> pl.DataFrame:
    """Distinct launches of GEMMs with a block per tile: place, tokens, or_tokens, grid_x, grid_y, tile_m, tile_n.

    ``or_tokens``: rows it may have instead (lm_head computes real or padded rows).
    """
    sized = (facts["op_class"] == "gemm") & facts["tile_m"].is_not_null() & facts["tile_n"].is_not_null()
    chosen = np.flatnonzero(sized.to_numpy())
    plain = plain_names(names["name"].gather(chosen))
    per_tile = np.zeros(names.height, np.bool_)
    for rule in tile_rules("block_per_tile"):
        per_tile[chosen[plain.str.contains(rule["regex"]).to_numpy()]] = True
    wanted = np.zeros(len(PLACES), np.bool_)
    wanted[[PLACE_CODE[place] for place in (*DENSE, "lm_head")]] = True
    rows = np.flatnonzero(per_tile[work.name] & wanted[work.place] & (work.step >= 0))
    rows = rows[work.countable[work.step[rows]]]
    place, step = work.place[rows], work.step[rows]
    head = place == PLACE_CODE["lm_head"]
    sums = work.sums
    frame = pl.DataFrame(
        {
            "place": place,
            "tokens": np.where(head, sums.logits_rows[step], sums.executed_tokens[step]),
            "or_tokens": np.where(head, sums.executed_logits_rows[step], sums.executed_tokens[step]),
            "name_id": work.name[rows],
            "grid_x": kernels["grid_x"].gather(rows),
            "grid_y": kernels["grid_y"].gather(rows),
        }
    )
    frame = frame.unique(maintain_order=True).filter(pl.col("tokens").is_not_nan() & (pl.col("tokens") > 0))
    frame = frame.with_columns(pl.col("or_tokens").fill_nan(pl.col("tokens")))
    return frame.join(facts.select("name_id", "tile_m", "tile_n"), on="name_id", maintain_order="left").unique(
        ["place", "tokens", "or_tokens", "grid_x", "grid_y", "tile_m", "tile_n"], maintain_order=True
    )


def outputs_of_places(launches: pl.DataFrame) -> dict[str, Widths]:
    """Outputs of each place that every launch of it allows; () where they contradict each other."""
    found: dict[str, Widths] = {}
    for row in launches.iter_rows(named=True):
        place = PLACES[row["place"]]
        grid, tile = (row["grid_x"], row["grid_y"]), (row["tile_m"], row["tile_n"])
        rows = {int(row["tokens"]), int(row["or_tokens"])}
        own = union(width for tokens in rows for width in outputs_of_launch(tokens, grid, tile))
        found[place] = common(found[place], own) if place in found else own
    return found
