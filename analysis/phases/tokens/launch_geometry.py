"""Tokens and requests of a step, from launch geometry.

Plain norm, rope, activation and KV-write kernels launch one block per token, so their grid is the token count of the
step (padded where a graph was captured at a larger size). The row gather before lm_head and the sampler launch one
block per request; so do several attention kernels.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import polars as pl
from msgspec import UNSET, UnsetType, convert

from ...facts.load import load_table
from ...records.record import Record
from ...records.trace import Trace
from ..kernel_arrays import HINT, OP, Bools, Ints, KernelArrays

TOKEN_CLASSES = ("kv_write", "rope", "norm", "activation", "quantize")  # in order of trust
NO_LIMIT = 1 << 31  # of a grid axis
MIN_HALF_BATCH_SHARE = 0.8  # a stream with at least this share of the busiest one's kernels holds a half of the batch
MIN_NORM_SHARE = 0.25  # per-head norms have more rows than tokens; the least grid seen this often is the token count


class GeometryRule(Record, frozen=True, kw_only=True):
    """One row of launch_geometry.toml; its head says what the keys mean."""

    name: str
    regex: str
    example: str
    source: str
    batch: str = ""  # grid axis that counts requests of attention
    rows: str = ""  # grid axis that counts requests elsewhere
    tokens: str = ""  # grid axis that counts tokens
    split: bool | UnsetType = UNSET
    tail: bool = False
    minus: int = 0
    flat: bool = False
    most: int = NO_LIMIT
    phase: str = ""  # hint of kernels launched for one kind of step
    op_class: str = ""


class CopiesExample(Record, frozen=True, kw_only=True):
    """Sizes of copies seen before a replay, bytes, and the tokens they stand for."""

    copies: tuple[int, ...]
    tokens: int


class InputCopyRule(Record, frozen=True, kw_only=True):
    """One row of the ``input_copies`` of launch_geometry.toml."""

    name: str
    engine: str
    bytes: tuple[int, ...]  # per token, of inputs that are copied with every step
    kinds: tuple[str, ...]  # of copies
    example: CopiesExample
    source: str


@cache
def geometry_rules(section: str) -> tuple[GeometryRule, ...]:
    """Rows of one section of launch_geometry.toml that is about kernels."""
    return convert(load_table("launch_geometry")[section], tuple[GeometryRule, ...])


@cache
def input_copy_rules() -> tuple[InputCopyRule, ...]:
    """Which copies fill the inputs of a graph, by engine."""
    return convert(load_table("launch_geometry")["input_copies"], tuple[InputCopyRule, ...])


def tokens_per_step(trace: Trace, columns: KernelArrays, step: Ints, replay: Ints, steps: int) -> pl.DataFrame:
    """``launched``: tokens the kernels of each step were launched for; ``tokens``: those that are real.

    Where the cache is written outside a step's graphs (piecewise graphs), its kernels count real tokens while those of
    the graphs count padded ones (``unpadded`` is true); else both are the same. Null where no such kernel was seen.
    ``graph_sized``: such kernels ran inside a graph, so what they count is the size it was captured for.
    """
    classes = [OP[name] for name in TOKEN_CLASSES]
    marked = columns.exact_tokens | (grid_axis(trace, columns, "tokens") > 0)
    rows = np.flatnonzero(marked & (step >= 0) & np.isin(columns.op, classes) & (columns.grid_x > 0))
    launched = count_grids(columns, step, rows, steps)
    replayed = np.zeros(steps + 1, dtype=bool)
    replayed[step[replay >= 0]] = True
    sized = np.zeros(steps, dtype=bool)
    sized[step[rows[replay[rows] >= 0]]] = True
    graph_sized = pl.Series("graph_sized", sized)
    outside = rows[(columns.op[rows] == OP["kv_write"]) & (replay[rows] < 0) & replayed[step[rows]]]
    if len(outside) == 0:
        unpadded = pl.lit(False).alias("unpadded")
        return pl.select(launched.alias("tokens"), launched.alias("launched"), unpadded, graph_sized)
    written = count_grids(columns, step, outside, steps)
    inside = count_grids(columns, step, rows[replay[rows] >= 0], steps)
    real = pl.when(written <= launched).then(written)
    return pl.select(
        pl.coalesce(real, launched).alias("tokens"),
        pl.when(real.is_null()).then(launched).otherwise(inside).alias("launched"),
        real.is_not_null().alias("unpadded"),
        graph_sized,
    )


def count_grids(columns: KernelArrays, step: Ints, rows: Ints, steps: int) -> pl.Series:
    """Per step the grid.x that most classes of token-parallel kernels among ``rows`` agree on, null without any."""
    classes = [OP[name] for name in TOKEN_CLASSES]
    frame = pl.DataFrame(
        {"step": step[rows], "op": columns.op[rows], "stream": columns.stream[rows], "tokens": columns.grid_x[rows]}
    )
    votes = frame.group_by("step", "op", "stream", "tokens").len()
    share = pl.col("len") / pl.col("len").sum().over("step", "op", "stream")
    norm = pl.col("op") == OP["norm"]
    ranked = votes.with_columns(rank=pl.when(norm).then(-pl.col("tokens")).otherwise(pl.col("len")))
    usual = ranked.filter(~norm | (share >= MIN_NORM_SHARE)).sort("rank", "tokens", descending=[True, False])
    per_stream = usual.group_by("step", "op", "stream", maintain_order=True).first()
    busiest = pl.col("len").max().over("step", "op")  # halves of a batch on two streams have as many kernels each
    per_class = (
        per_stream.filter(pl.col("len") >= MIN_HALF_BATCH_SHARE * busiest)
        .group_by("step", "op")
        .agg(pl.col("tokens").sum())
    )
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
    trace: Trace, columns: KernelArrays, step: Ints, steps: int, last_attention: Ints, batch: Ints
) -> pl.DataFrame:
    """Requests of each step, by what shows them; null where not seen.

    ``sampled``: rows behind the last layer; ``prepared``: metadata before it; ``head``: rows in the name of the last
    GEMM (lm_head); ``batch``: of the attention kernels; ``decode_batch``: of those named for decoding.
    """
    number = np.arange(columns.count)
    behind = (step >= 0) & (number > last_attention[np.maximum(step, 0)])
    tail = np.where(behind, grid_axis(trace, columns, "rows"), 0)
    front = np.where(behind, 0, grid_axis(trace, columns, "rows", front=True))

    head = np.where(behind & columns.is_op("gemm"), columns.named_rows, 0)

    def per_step(value: Ints, name: str, how: pl.Expr) -> pl.Series:
        rows = np.flatnonzero((step >= 0) & (value > 0))
        frame = pl.DataFrame({"step": step[rows], name: value[rows]}).group_by("step").agg(how)
        return spread(frame, name, steps)

    return pl.DataFrame(
        {
            "sampled": per_step(tail, "rows", pl.col("rows").first()),
            "prepared": per_step(front, "rows", pl.col("rows").first()),
            "head": per_step(head, "rows", pl.col("rows").last()),
            "batch": per_step(batch, "batch", pl.col("batch").mode().min()),
            "decode_batch": per_step(
                np.where(columns.hint == HINT["decode"], batch, 0), "batch", pl.col("batch").mode().min()
            ).alias("decode_batch"),
        }
    )


def attention_batch(trace: Trace, columns: KernelArrays, name_facts: pl.DataFrame) -> Ints:
    """Requests in the batch of each attention kernel as its grid tells, 0 where the layout is not known."""
    return np.where(columns.is_op("attention"), grid_axis(trace, columns, "rule", split=name_facts["split_kv"]), 0)


def grid_axis(
    trace: Trace, columns: KernelArrays, section: str, *, split: pl.Series | None = None, front: bool = False
) -> Ints:
    """For each kernel what the first matching rule of ``section`` counts on its grid, 0 without one.

    ``front``: rules that hold only behind the last layer stay out.
    """
    if columns.count == 0 or trace.names.height == 0:
        return np.zeros(columns.count, dtype=np.int64)
    axes = np.zeros(trace.names.height, dtype=np.int64)  # 0 unknown, 1..3 = x, y, z
    minus = np.zeros(trace.names.height, dtype=np.int64)
    flat = np.zeros(trace.names.height, dtype=bool)
    most = np.full(trace.names.height, NO_LIMIT)
    key = {"rule": "batch", "rows": "rows", "tokens": "tokens"}[section]
    for rule in reversed(geometry_rules(section)):
        if front and rule.tail:
            continue
        matches = trace.names["name"].str.contains(rule.regex)
        if rule.split is not UNSET and split is not None:
            matches &= (split == rule.split).fill_null(False)
        hit = matches.to_numpy()
        axes[hit] = ("grid_x", "grid_y", "grid_z").index(rule[key]) + 1
        minus[hit], flat[hit], most[hit] = rule.minus, rule.flat, rule.most
    size = np.zeros(columns.count, dtype=np.int64)
    if not axes.any():
        return size
    axis = axes[columns.name]
    for number, grid in enumerate((columns.grid_x, columns.grid_y, columns.grid_z), start=1):
        rows = np.flatnonzero(axis == number)
        names = columns.name[rows]
        split_up = flat[names] & (columns.grid_y[rows] > 1)
        count = grid[rows] - minus[names]
        size[rows] = np.where(split_up | (count > most[names]), 0, count)
    return size


def names_like(trace: Trace, section: str) -> Bools:
    """Per name, whether a rule of ``section`` holds: attention kernels for 'few' query rows, or for 'many'."""
    found = np.zeros(trace.names.height, dtype=bool)
    for rule in geometry_rules(section):
        found |= trace.names["name"].str.contains(rule.regex).to_numpy()
    return found


def preparing_hint(trace: Trace, columns: KernelArrays) -> Ints:
    """For metadata kernels that one kind of step launches: the code of its hint, 0 for all others."""
    hints = np.zeros(trace.names.height, dtype=np.int64)
    for rule in geometry_rules("prepare"):
        hints[trace.names["name"].str.contains(rule.regex).to_numpy()] = HINT[rule.phase]
    return hints[columns.name] if len(hints) and columns.count else np.zeros(columns.count, dtype=np.int64)
