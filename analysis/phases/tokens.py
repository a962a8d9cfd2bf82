"""Tokens and requests of a step, from launch geometry.

Plain norm, rope, activation and KV-write kernels launch one block per token, so their grid is the token count of the
step (padded where a graph was captured at a larger size). The row gather before lm_head and the sampler launch one
block per request; so do several attention kernels.
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from ...ingest.trace import Trace
from .columns import OP, Columns, Ints

TOKEN_CLASSES = ("kv_write", "rope", "norm", "activation", "quantize")  # in order of trust
MIN_NORM_SHARE = 0.25  # per-head norms have more rows than tokens; the least grid seen this often is the token count


@cache
def geometry_rules(section: str) -> tuple[dict[str, Any], ...]:
    """Rows of one section of geometry.toml."""
    path = Path(__file__).with_name("geometry.toml")
    return tuple(tomllib.loads(path.read_text(encoding="utf-8"))[section])


def tokens_per_step(columns: Columns, step: Ints, steps: int) -> pl.Series:
    """Tokens the kernels of each step were launched for; null where no token-parallel kernel was seen."""
    classes = [OP[name] for name in TOKEN_CLASSES]
    rows = np.flatnonzero(columns.exact_tokens & (step >= 0) & np.isin(columns.op, classes) & (columns.grid_x > 0))
    frame = pl.DataFrame({"step": step[rows], "op": columns.op[rows], "tokens": columns.grid_x[rows]})
    votes = frame.group_by("step", "op", "tokens").len()
    share = pl.col("len") / pl.col("len").sum().over("step", "op")
    norm = pl.col("op") == OP["norm"]
    ranked = votes.with_columns(rank=pl.when(norm).then(-pl.col("tokens")).otherwise(pl.col("len")))
    usual = ranked.filter(~norm | (share >= MIN_NORM_SHARE)).sort("rank", "tokens", descending=[True, False])
    per_class = usual.group_by("step", "op", maintain_order=True).first()
    trust = pl.col("op").replace_strict(classes, range(len(classes)), return_dtype=pl.Int64)
    best = (
        per_class.with_columns(trust=trust)
        .group_by("step", "tokens")
        .agg(pl.len().alias("classes"), pl.col("trust").min())
        .sort("classes", "trust", descending=[True, False])
        .group_by("step", maintain_order=True)
        .first()
    )
    return spread(best, "tokens", steps)


def spread(frame: pl.DataFrame, value: str, steps: int) -> pl.Series:
    """A column of ``frame`` by its step number as a series with one entry per step, null where absent."""
    every = pl.DataFrame({"step": np.arange(steps)})
    joined = every.join(frame.select(pl.col("step").cast(pl.Int64), value), on="step", how="left")
    return joined[value].cast(pl.Int64)


def requests_per_step(
    trace: Trace, columns: Columns, step: Ints, steps: int, last_attention: Ints, batch: Ints
) -> pl.DataFrame:
    """Requests of each step: ``rows`` sampled at its end, ``batch`` of its attention kernels; null where not seen."""
    number = np.arange(columns.count)
    rows = grid_axis(trace, columns, "rows", None)
    tail = (step >= 0) & (number > last_attention[np.maximum(step, 0)]) & (rows > 0)
    chosen = np.flatnonzero(tail)
    sampled = pl.DataFrame({"step": step[chosen], "rows": rows[chosen]}).group_by("step").agg(pl.col("rows").first())
    seen = np.flatnonzero((step >= 0) & (batch > 0))
    batches = (
        pl.DataFrame({"step": step[seen], "batch": batch[seen]}).group_by("step").agg(pl.col("batch").mode().min())
    )
    return pl.DataFrame({"rows": spread(sampled, "rows", steps), "batch": spread(batches, "batch", steps)})


def attention_batch(trace: Trace, columns: Columns, name_facts: pl.DataFrame) -> Ints:
    """Requests in the batch of each attention kernel as its grid tells, 0 where the layout is not known."""
    return np.where(columns.is_op("attention"), grid_axis(trace, columns, "rule", name_facts["split_kv"]), 0)


def grid_axis(trace: Trace, columns: Columns, section: str, split: pl.Series | None) -> Ints:
    """For each kernel the size of the grid axis that the first matching rule of ``section`` names, 0 without one."""
    if columns.count == 0:
        return np.zeros(0, dtype=np.int64)
    axes = np.zeros(trace.names.height, dtype=np.int64)  # 0 unknown, 1..3 = x, y, z
    key = {"rule": "batch", "rows": "rows"}[section]
    for rule in reversed(geometry_rules(section)):
        matches = trace.names["name"].str.contains(rule["regex"])
        if "split" in rule and split is not None:
            matches &= (split == rule["split"]).fill_null(False)
        axes[matches.to_numpy()] = ("grid_x", "grid_y", "grid_z").index(rule[key]) + 1
    grids = np.stack([np.zeros(columns.count, np.int64), columns.grid_x, columns.grid_y, columns.grid_z])
    return np.asarray(grids[axes[columns.name], np.arange(columns.count)])
