"""Real tokens of steps in padded graphs, from the copies that fill a graph's inputs just before its replay.

A graph reads its inputs from buffers of its own, so engines copy the token ids, positions and cache slots of the real
tokens into them: their sizes are the token count times a few bytes each (geometry.toml, ``[[input_copies]]``). One copy
of a fitting size is chance; a count stands where copies of different inputs agree on it and on no other.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import polars as pl

from ...numeric.grouping import rows_by_key
from ...numeric.intervals import latest_end_so_far
from ...records.trace import Trace
from ..graph_replays import Replays
from ..kernel_arrays import Ints, KernelArrays, copies_by_lane
from .launch_geometry import InputCopyRule, input_copy_rules

NEVER = np.iinfo(np.int64).max


def copied_tokens(
    trace: Trace, columns: KernelArrays, replays: Replays, step: Ints, steps: pl.DataFrame, engine: str | None
) -> pl.Series:
    """Tokens copied into each step's graph, null where copies do not tell or tell two counts.

    ``steps`` needs number, lane, end_ns, graph_id, full_graph and launched (the graph's size), sorted by lane and time.
    """
    nothing = pl.Series("copied", [None] * steps.height, dtype=pl.Int64)
    rules = [rule for rule in input_copy_rules() if rule.engine == engine]
    if not rules or trace.copies.height == 0 or steps.height == 0:
        return nothing
    sizes = sizes_before_replays(trace, columns, first_replays(columns, replays, step, steps.height), steps)
    agreed = pl.concat([agreed_counts(sizes, rule) for rule in rules]).unique()
    judged = agreed.join(possible_counts(steps), on="number").with_columns(
        fits=(pl.col("tokens") > pl.col("above")) & (pl.col("tokens") <= pl.col("most"))
    )
    # buffers that are copied whole before every step have sizes too: no count where they mostly cannot be one
    judged = judged.filter(pl.col("fits") & (pl.col("fits").mean().over("lane", "tokens") > 0.5))
    single = judged.group_by("number").agg(pl.col("tokens").first(), pl.len()).filter(pl.col("len") == 1)
    found = steps.select("number").join(single, on="number", how="left", maintain_order="left")
    return found["tokens"].cast(pl.Int64).alias("copied")


def with_copied_tokens(steps: pl.DataFrame, copied: pl.Series) -> pl.DataFrame:
    """``steps`` with the copied counts as their ``tokens``, which are then ``unpadded``.

    A marker's counts stay, so do those of kernels outside the graph; and a count below the rows that the step samples
    or prepares is none.
    """
    counted = pl.col("m_prefill_tokens").is_not_null() | pl.col("m_decode_tokens").is_not_null()
    rows = pl.max_horizontal("sampled", "prepared", "head").fill_null(0)
    use = (pl.col("copied") >= rows) & ~counted & ~pl.col("unpadded")
    return (
        steps.with_columns(copied.alias("copied"))
        .with_columns(use.fill_null(False).alias("use"))
        .with_columns(
            pl.when("use").then("copied").otherwise("tokens").alias("tokens"), pl.col("unpadded") | pl.col("use")
        )
        .drop("copied", "use")
    )


def first_replays(columns: KernelArrays, replays: Replays, step: Ints, steps: int) -> Ints:
    """When each step's first graph replay begins, NEVER without one."""
    first = np.full(steps, NEVER)
    owner = step[replays.first]
    inside = owner >= 0
    np.minimum.at(first, owner[inside], columns.start[replays.first[inside]])
    return first


def sizes_before_replays(trace: Trace, columns: KernelArrays, first: Ints, steps: pl.DataFrame) -> pl.DataFrame:
    """Copies between the end of the step before and a step's first replay: number (of the step), kind, bytes, len."""
    copies = trace.copies.filter(pl.col("graph_node_id") <= 0)
    lane_of_step, ends = steps["lane"].to_numpy(), steps["end_ns"].to_numpy()
    parts = []
    copies_of = copies_by_lane(copies, columns)
    for lane, own in enumerate(rows_by_key(lane_of_step, np.arange(len(columns.lane_device)))):
        before = np.concatenate([[np.iinfo(np.int64).min], latest_end_so_far(ends[own])])
        replayed = np.flatnonzero(first[own] < NEVER)
        mine = copies_of(lane)
        time = mine["start_ns"].to_numpy()
        begins = np.append(first[own[replayed]], NEVER)
        place = np.searchsorted(begins[:-1], time, side="right")
        opened = np.append(before[replayed], NEVER)  # nothing follows the last replay
        fits = time >= opened[place]
        numbers = pl.Series("number", own[replayed[place[fits]]], dtype=pl.Int64)
        parts.append(mine.filter(pl.Series(fits)).select(pl.col("kind").cast(pl.String), "bytes").with_columns(numbers))
    return pl.concat(parts).group_by("number", "kind", "bytes").len()


def agreed_counts(sizes: pl.DataFrame, rule: InputCopyRule) -> pl.DataFrame:
    """Counts on which the copies before a replay agree: one copy for each of the rule's element sizes."""
    own = sizes.filter(pl.col("kind").is_in(rule.kinds)).group_by("number", "bytes").agg(pl.col("len").sum())
    agreed = None
    for size, times in Counter(rule.bytes).items():
        fitting = own.filter((pl.col("bytes") % size == 0) & (pl.col("bytes") > 0) & (pl.col("len") >= times))
        counts = fitting.select("number", (pl.col("bytes") // size).alias("tokens"))
        agreed = counts if agreed is None else agreed.join(counts, on=["number", "tokens"])
    return own.select("number", pl.col("bytes").alias("tokens")).clear() if agreed is None else agreed


def possible_counts(steps: pl.DataFrame) -> pl.DataFrame:
    """Steps in graphs of known size with the counts they may hold: more than ``above``, at most ``most``.

    A batch that fits a smaller graph replays that one: of those seen in the capture, and of those not seen, because
    captured sizes double at most. Half the graph or less is no count either way: what engines copy beside the tokens is
    an entry a request, and a request that verifies drafts has two tokens or more.
    """
    inside = steps.filter(pl.col("graph_id").is_not_null() & pl.col("launched").is_not_null())
    seen = inside.select("lane", "full_graph", "launched").unique().sort("lane", "full_graph", "launched")
    seen = seen.with_columns(smaller=pl.col("launched").shift(1).over("lane", "full_graph").fill_null(0))
    joined = inside.select("number", "lane", "full_graph", "launched").join(
        seen, on=["lane", "full_graph", "launched"], how="left"
    )
    return joined.select(
        pl.col("number").cast(pl.Int64),
        "lane",
        pl.max_horizontal("smaller", pl.col("launched") // 2).alias("above"),
        pl.col("launched").alias("most"),
    )
