"""The rules of tile_rules.toml: which kernels launch a block per tile, which count heads, which make another chain."""

from __future__ import annotations

from functools import cache

import msgspec
import polars as pl

from ...facts.load import load_rows


class TileRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Kernels by a pattern of their plain names, an example of them, and where it is known from."""

    name: str
    example: str
    regex: str
    source: str


class HeadRule(TileRule, frozen=True, kw_only=True):
    """Kernels that launch a grid axis over heads."""

    axis: str  # 'grid_x' | 'grid_y' | 'grid_z'
    counts: str  # 'query' | 'kv' | 'both'
    causal: bool | None = None  # the rule holds only where the name says so; None: whatever it says
    split: bool | None = None
    head_dim: str | None = None  # pattern of the head dimension over ``times``; None: the one that kernels.toml reads
    times: int = 1
    rounded: int | None = None  # the name holds the dimension rounded up to a multiple of this


class ActivationRule(TileRule, frozen=True, kw_only=True):
    """Activation kernels by whether they halve the outputs of the GEMM before them."""

    gated: bool


class NoChainRule(TileRule, frozen=True, kw_only=True):
    """Kernels of layers that are another chain of GEMMs, by 'library short name'."""

    says: str


class TileRules(msgspec.Struct, frozen=True):
    """The whole table."""

    block_per_tile: tuple[TileRule, ...]
    heads: tuple[HeadRule, ...]
    mlp: tuple[ActivationRule, ...]
    no_chain: tuple[NoChainRule, ...]


@cache
def tile_rules() -> TileRules:
    """The table, read once."""
    return TileRules(
        block_per_tile=load_rows("tile_rules", "block_per_tile", TileRule),
        heads=load_rows("tile_rules", "heads", HeadRule),
        mlp=load_rows("tile_rules", "mlp", ActivationRule),
        no_chain=load_rows("tile_rules", "no_chain", NoChainRule),
    )


def plain_names(names: pl.Series) -> pl.Series:
    """Kernel names as the patterns of the table see them."""
    return names.str.replace_all(r"\((?:unsigned )?int\)", "")
