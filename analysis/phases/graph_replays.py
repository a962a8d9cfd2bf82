"""Which captured graph each step replayed, how large it was captured, and what the padding costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from ..records.tables import GRAPHS
from ..records.trace import Trace
from .kernel_arrays import Ints, KernelArrays, column, dense_pairs
from .launch_links import LinkResult

NO_SMALLER = "no smaller graph was replayed to compare with: weights are read whatever the batch"
NO_COUNTS = "the captured size or the real batch is not known"


@dataclass(frozen=True)
class Replays:
    """One entry per graph replay."""

    first: Ints  # row of its first kernel in the columns
    nodes: Ints  # kernels recorded, 0 for a replay recorded as a whole
    attention: Ints
    ns: Ints  # sum of its kernels' times
    attention_ns: Ints  # of ``ns``: attention, which reads the KV of real requests and so pays nothing for padding
    graph: Ints  # id of the graph: as recorded, else its first node's, else one per shape


def read_replays(trace: Trace, columns: KernelArrays, link: LinkResult) -> Replays:
    """Every replay with the graph it replays."""
    rows = np.flatnonzero(link.replay >= 0)
    number = link.replay[rows]
    count = int(number.max(initial=-1)) + 1
    first = np.full(count, -1, dtype=np.int64)
    first[number[::-1]] = rows[::-1]
    known = np.flatnonzero(first >= 0)
    lengths = (columns.end - columns.start)[rows]
    nodes = np.bincount(number[columns.kernel_row[rows] >= 0], minlength=count)[known]
    attends = columns.is_op("attention")[rows]
    attention = np.bincount(number[attends], minlength=count)[known]
    ns = np.bincount(number, weights=lengths, minlength=count)[known].astype(np.int64)
    own = np.bincount(number[attends], weights=lengths[attends], minlength=count)[known].astype(np.int64)
    return Replays(first[known], nodes, attention, ns, own, identify(trace, columns, first[known], nodes))


def identify(trace: Trace, columns: KernelArrays, first: Ints, nodes: Ints) -> Ints:
    """Which graph each replay replays, by its first row."""
    kernel, whole = columns.kernel_row[first], columns.graph_row[first]
    graph = np.full(len(first), -1, dtype=np.int64)
    is_kernel, is_whole = kernel >= 0, whole >= 0
    facts = trace.kernels.select("graph_id", "graph_node_id")[kernel[is_kernel]]
    recorded, node = column(facts, "graph_id"), column(facts, "graph_node_id")
    shape, _ = dense_pairs(nodes[is_kernel], columns.name[first[is_kernel]])
    graph[is_kernel] = np.where(recorded > 0, recorded, np.where(node > 0, node, shape + 1))
    graph[is_whole] = column(trace.graph_launches, "graph_id")[whole[is_whole]]
    return graph


def graphs_of_steps(columns: KernelArrays, replays: Replays, step: Ints, steps: int) -> pl.DataFrame:
    """Per step: ``graph_id`` of its largest replay (null without), ``full_graph`` (attention inside), graph time.

    ``graph_rows_ns`` is the graph time without attention: what can depend on the rows the graph was captured for.
    """
    frame = pl.DataFrame(
        {
            "step": step[replays.first],
            "graph_id": replays.graph,
            "nodes": replays.nodes,
            "attention": replays.attention,
            "graph_ns": replays.ns,
            "graph_rows_ns": replays.ns - replays.attention_ns,
        },
        schema_overrides={"step": pl.Int64},
    ).filter(pl.col("step") >= 0)
    best = (
        frame.sort("nodes", descending=True, maintain_order=True)
        .group_by("step", maintain_order=True)
        .agg(pl.col("graph_id").first(), pl.col("attention").sum(), pl.col("graph_ns", "graph_rows_ns").sum())
    )
    attention = np.flatnonzero(columns.is_op("attention") & (step >= 0))
    total = np.bincount(step[attention], minlength=steps)[:steps]
    every = pl.DataFrame({"step": np.arange(steps), "total": total})
    joined = every.join(best, on="step", how="left", maintain_order="left")
    full = (pl.col("attention") * 2 >= pl.col("total")) & (pl.col("attention") > 0)
    times = pl.col("graph_ns", "graph_rows_ns").fill_null(0)
    return joined.select("graph_id", full.fill_null(False).alias("full_graph"), times)


def graph_table(trace: Trace, columns: KernelArrays, replays: Replays, steps: pl.DataFrame) -> pl.DataFrame:
    """GRAPHS: captured size, replays, nodes, the real batch, the share of padded rows and what they cost."""
    counted = steps.filter(pl.col("graph_id").is_not_null() & ~pl.col("excluded") & pl.col("full_graph"))
    real = pl.col("prefill_tokens") + pl.col("decode_tokens")
    both = real.is_not_null() & pl.col("padded_tokens").is_not_null()
    batches = counted.group_by("graph_id", "device_index").agg(
        pl.col("device").first(),
        pl.col("padded_tokens").mode().min().alias("batch"),
        pl.col("decode_requests").median().alias("real_batch_median"),
        (pl.col("padded_tokens") - real).filter(both).sum().alias("padded_rows"),
        pl.col("padded_tokens").filter(both).sum().alias("rows"),
        pl.col("graph_rows_ns").median().alias("replay_ns"),
    )
    devices_of_lane = np.array(columns.lane_device, dtype=np.int64)
    seen = pl.DataFrame(
        {
            "graph_id": replays.graph,
            "device_index": devices_of_lane[columns.lane[replays.first]] if len(replays.first) else replays.first,
            "nodes": replays.nodes,
        }
    ).with_columns(pl.col("device_index").cast(pl.Int32))
    nodes = pl.when(pl.col("nodes").max() > 0).then(pl.col("nodes").max())
    counts = seen.group_by("graph_id", "device_index").agg(
        pl.len().cast(pl.Int64).alias("replays"), nodes.cast(pl.Int64).alias("nodes")
    )
    devices = trace.devices.select("device_index", pl.col("device").alias("ordinal"))
    table = (
        counts.join(with_padding(batches), on=["graph_id", "device_index"], how="left")
        .join(devices, on="device_index", how="left")
        .sort("device_index", "graph_id")
    )
    nothing_known = pl.when(pl.col("padding_ms").is_null()).then(pl.lit(NO_COUNTS))
    return table.select(
        pl.col("graph_id").cast(pl.Int64),
        pl.coalesce("device", "ordinal").cast(pl.Int32).alias("device"),
        pl.col("batch").cast(pl.Int64),
        "replays",
        "nodes",
        pl.col("real_batch_median").cast(pl.Float64),
        pl.col("padding_ms").cast(pl.Float64),
        pl.col("padded_rows_pct").cast(pl.Float64),
        pl.coalesce("padding_reason", nothing_known).alias("padding_reason"),
    ).select(list(GRAPHS))


def with_padding(batches: pl.DataFrame) -> pl.DataFrame:
    """``batches`` with ``padded_rows_pct``, ``padding_ms`` and, where that is null, ``padding_reason``.

    A padded row costs what a row costs between this captured size and the next smaller one that was replayed: the
    difference of their median replay times (attention apart) over the difference of their sizes. A share of the
    replay's time would charge it for weights that are read whatever the batch.
    """
    smaller = batches.filter(pl.col("batch").is_not_null()).sort("device_index", "batch", "graph_id")
    below = smaller.group_by("device_index", "batch", maintain_order=True).agg(pl.col("replay_ns").median())
    below = below.with_columns(
        pl.col("batch").shift(1).over("device_index").alias("batch_below"),
        pl.col("replay_ns").shift(1).over("device_index").alias("ns_below"),
    ).select("device_index", "batch", "batch_below", "ns_below")
    row_ns = (pl.col("replay_ns") - pl.col("ns_below")) / (pl.col("batch") - pl.col("batch_below"))
    cost = pl.when(pl.col("padded_rows") == 0).then(0.0).otherwise(pl.col("padded_rows") * row_ns.clip(0.0) / 1e6)
    known = pl.col("rows") > 0
    return batches.join(below, on=["device_index", "batch"], how="left", maintain_order="left").with_columns(
        pl.when(known).then(cost).alias("padding_ms"),
        pl.when(known).then(100.0 * pl.col("padded_rows") / pl.col("rows")).alias("padded_rows_pct"),
        pl.when(known & (pl.col("padded_rows") > 0) & pl.col("ns_below").is_null())
        .then(pl.lit(NO_SMALLER))
        .alias("padding_reason"),
    )
