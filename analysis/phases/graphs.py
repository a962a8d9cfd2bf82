"""Which captured graph each step replayed, how large it was captured, and what the padding costs."""

from __future__ import annotations

import numpy as np
import polars as pl

from ...ingest.trace import Trace
from ..result import GRAPHS
from .columns import Columns, Ints
from .link import LinkResult


def graph_of_replay(trace: Trace, columns: Columns, link: LinkResult) -> pl.DataFrame:
    """One row per replay: its graph (the recorded id, else its first node's, else its shape) and nodes."""
    rows = np.flatnonzero((link.replay >= 0) & (columns.kernel_row >= 0))
    kernels = trace.kernels.select("name_id", "graph_id", "graph_node_id", "device_index")[columns.kernel_row[rows]]
    frame = kernels.with_columns(pl.Series("replay", link.replay[rows]))
    replays = frame.group_by("replay", maintain_order=True).agg(
        pl.len().alias("nodes"),
        pl.col("graph_id").first(),
        pl.col("graph_node_id").min().alias("node"),
        pl.col("name_id").first().alias("name"),
        pl.col("name_id").cast(pl.Int64).sum().alias("names"),
        pl.col("device_index").first(),
    )
    shape = pl.struct("nodes", "name", "names").rank("dense").cast(pl.Int64)
    identity = pl.when(pl.col("graph_id") > 0).then("graph_id").when(pl.col("node") > 0).then("node").otherwise(shape)
    known = replays.select("replay", pl.col("nodes").cast(pl.Int64), "device_index", identity.alias("graph_id"))
    whole = np.flatnonzero(columns.graph_row >= 0)
    opaque = trace.graph_launches.select(pl.lit(None, dtype=pl.Int64).alias("nodes"), "device_index", "graph_id")[
        columns.graph_row[whole]
    ]
    return pl.concat(
        [known, opaque.select(pl.Series("replay", link.replay[whole]), "nodes", "device_index", "graph_id")]
    )


def graphs_of_steps(trace: Trace, columns: Columns, link: LinkResult, step: Ints, steps: int) -> pl.DataFrame:
    """Per step: ``graph_id`` of its largest replay (null without), ``full_graph`` (attention inside), graph time."""
    rows = np.flatnonzero((link.replay >= 0) & (step >= 0))
    every = pl.DataFrame({"step": np.arange(steps)})
    if len(rows) == 0:
        return every.with_columns(
            pl.lit(None, dtype=pl.Int64).alias("graph_id"),
            pl.lit(False).alias("full_graph"),
            pl.lit(0).alias("graph_ns"),
        )
    attention = columns.is_op("attention")
    frame = pl.DataFrame(
        {
            "step": step[rows],
            "replay": link.replay[rows],
            "attention": attention[rows].astype(np.int64),
            "ns": (columns.end - columns.start)[rows],
        }
    )
    sums = frame.group_by("step", "replay").agg(pl.len(), pl.col("attention").sum(), pl.col("ns").sum())
    named = sums.join(graph_of_replay(trace, columns, link).select("replay", "graph_id"), on="replay", how="left")
    best = (
        named.sort("len", "replay", descending=[True, False])
        .group_by("step", maintain_order=True)
        .agg(pl.col("graph_id").first(), pl.col("attention").sum(), pl.col("ns").sum().alias("graph_ns"))
    )
    total = np.bincount(step[attention & (step >= 0)], minlength=steps)
    joined = every.join(best, on="step", how="left").with_columns(pl.Series("total", total))
    full = (pl.col("attention") * 2 >= pl.col("total")) & (pl.col("attention") > 0)
    return joined.select("step", "graph_id", full.fill_null(False).alias("full_graph"), pl.col("graph_ns").fill_null(0))


def graph_table(trace: Trace, columns: Columns, link: LinkResult, steps: pl.DataFrame) -> pl.DataFrame:
    """GRAPHS: captured size, replays, nodes, the real batch and the time spent on padded rows."""
    counted = steps.filter(pl.col("graph_id").is_not_null() & ~pl.col("excluded") & pl.col("full_graph"))
    real = pl.col("prefill_tokens") + pl.col("decode_tokens")
    share = (pl.col("padded_tokens") - real) / pl.col("padded_tokens")
    batches = counted.group_by("graph_id", "device_index").agg(
        pl.col("device").first(),
        pl.col("padded_tokens").mode().min().alias("batch"),
        pl.col("decode_requests").median().alias("real_batch_median"),
        (share * pl.col("graph_ns") / 1e6).sum().alias("padding_sum"),
        share.is_not_null().any().alias("known"),
    )
    replays = (
        graph_of_replay(trace, columns, link)
        .group_by("graph_id", "device_index")
        .agg(pl.len().cast(pl.Int64).alias("replays"), pl.col("nodes").max().cast(pl.Int64))
    )
    devices = trace.devices.select("device_index", pl.col("device").alias("ordinal"))
    table = (
        replays.join(batches, on=["graph_id", "device_index"], how="left")
        .join(devices, on="device_index", how="left")
        .sort("device_index", "graph_id")
    )
    return table.select(
        pl.col("graph_id").cast(pl.Int64),
        pl.coalesce("device", "ordinal").cast(pl.Int32).alias("device"),
        pl.col("batch").cast(pl.Int64),
        "replays",
        "nodes",
        pl.col("real_batch_median").cast(pl.Float64),
        pl.when(pl.col("known")).then(pl.col("padding_sum")).alias("padding_ms"),
    ).select(list(GRAPHS))
