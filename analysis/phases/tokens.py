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
def attention_grid_rules() -> tuple[dict[str, Any], ...]:
    """Rows of attention_grids.toml."""
    path = Path(__file__).with_name("attention_grids.toml")
    return tuple(tomllib.loads(path.read_text(encoding="utf-8"))["rule"])


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


def requests_per_step(columns: Columns, step: Ints, steps: int, last_attention: Ints, batch: Ints) -> pl.DataFrame:
    """Requests of each step: ``rows`` from the gather or sampler at its end, ``batch`` from attention grids."""
    number = np.arange(columns.count)
    tail = (step >= 0) & (number > last_attention[np.maximum(step, 0)]) & columns.exact_tokens & (columns.grid_x > 0)
    result = []
    for op in ("embedding", "sampling"):
        rows = np.flatnonzero(tail & (columns.op == OP[op]))
        frame = pl.DataFrame({"step": step[rows], "rows": columns.grid_x[rows]})
        result.append(spread(frame.group_by("step").agg(pl.col("rows").first()), "rows", steps))
    rows = np.flatnonzero((step >= 0) & (batch > 0))
    frame = pl.DataFrame({"step": step[rows], "batch": batch[rows]})
    seen = frame.group_by("step").agg(pl.col("batch").mode().min())
    gathered = pl.DataFrame({"gather": result[0], "sampler": result[1], "batch": spread(seen, "batch", steps)})
    return gathered.select(pl.coalesce("gather", "sampler").alias("rows"), "batch")


def attention_batch(trace: Trace, columns: Columns, name_facts: pl.DataFrame) -> Ints:
    """Requests in the batch of each attention kernel as its grid tells, 0 where the layout is not known."""
    axes = np.zeros(trace.names.height, dtype=np.int64)  # 0 unknown, 1..3 = x, y, z
    names = trace.names["name"]
    split = name_facts["split_kv"]
    for rule in reversed(attention_grid_rules()):
        matches = names.str.contains(rule["regex"])
        if "split" in rule:
            matches &= (split == rule["split"]).fill_null(False)
        axes[matches.to_numpy()] = ("grid_x", "grid_y", "grid_z").index(rule["batch"]) + 1
    axis = np.where(columns.is_op("attention"), axes[columns.name] if columns.count else 0, 0)
    grids = np.stack([np.zeros(columns.count, np.int64), columns.grid_x, columns.grid_y, columns.grid_z])
    return grids[axis, np.arange(columns.count)]
