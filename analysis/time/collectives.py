"""Collectives: the transfer against the wait for the last rank.

A collective kernel starts when its rank arrives and ends when all have met, so on an early rank it is mostly waiting.
With every rank of a group in the capture, the n-th call of a step on one rank is the n-th on the others: the shortest
of them is the transfer, the rest is waiting, and the rank that arrived last is the late one. With a single rank nothing
can be told apart, and nothing is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from ..numeric.intervals import Intervals, union
from ..records.tables import COLLECTIVES, PHASES

ONE_RANK = "one rank in the capture: its time includes waiting for ranks that are not"
UNMATCHED = "calls of the ranks could not be matched: the time includes waiting"


@dataclass(frozen=True)
class CollectiveResult:
    """The JSON table, and on each device the intervals in which a collective only waited."""

    table: pl.DataFrame  # COLLECTIVES
    waits: Mapping[int, Intervals]  # device_index -> waiting inside collectives


def split_collectives(
    kernels: pl.DataFrame, steps: pl.DataFrame, groups: pl.DataFrame, names: pl.DataFrame, devices: pl.DataFrame
) -> CollectiveResult:
    """Split every collective of the window into transfer and wait.

    ``kernels`` has KERNEL_TAGS, ``names`` and ``devices`` are the Trace's (``late_device`` is the CUDA ordinal). Times of the table are means over the ranks: ``total_ms`` = ``transfer_ms`` +
    ``wait_ms``, ``count`` counts a collective once however many ranks took part. ``transfer_ms`` and ``wait_ms`` are
    null, with the reason, where any call of the row could not be matched.
    """
    calls = _calls(kernels, steps, groups)
    if calls.is_empty():
        return CollectiveResult(pl.DataFrame(schema=dict(COLLECTIVES)), {})
    met = _match(calls)
    waiting = met.filter(pl.col("matched") & (pl.col("duration") > pl.col("transfer")))
    waits = {
        int(mine["device_index"][0]): union(mine["start_ns"].to_numpy(), (mine["end_ns"] - mine["transfer"]).to_numpy())
        for mine in waiting.partition_by("device_index")
    }
    return CollectiveResult(_table(met, names, devices), waits)


def _calls(kernels: pl.DataFrame, steps: pl.DataFrame, groups: pl.DataFrame) -> pl.DataFrame:
    """Collective kernels with their group, its number of ranks, the step index (-1 outside) and the occurrence."""
    ranks = groups.select("group", pl.col("devices").list.len().alias("ranks"), pl.col("devices").alias("device_index"))
    ranks = ranks.explode("device_index").with_columns(pl.col("device_index").cast(pl.Int32))
    return (
        kernels.filter((pl.col("op_class") == "collective") & pl.col("in_window"))
        .select("start_ns", "end_ns", "device_index", "name_id", "step", "step_phase")
        .join(ranks, on="device_index", how="inner")
        .join(steps.select("step", "index"), on="step", how="left")
        .with_columns(pl.col("index").fill_null(-1), (pl.col("end_ns") - pl.col("start_ns")).alias("duration"))
        .sort("start_ns", "end_ns", "device_index")
        .with_columns(pl.int_range(pl.len()).over("device_index", "index", "name_id").alias("occurrence"))
    )


def _match(calls: pl.DataFrame) -> pl.DataFrame:
    """Match the ranks' calls; adds ``matched``, ``transfer`` (ns) and ``late_device`` to every call.

    A step whose ranks made different numbers of calls matches nothing, nor do calls that never ran at the same time.
    """
    step = ["group", "index", "name_id"]
    call = [*step, "occurrence"]
    calls = calls.with_columns(pl.col("occurrence").max().over([*step, "device_index"]).alias("of_rank"))
    even = pl.col("of_rank").min().over(step) == pl.col("of_rank").max().over(step)
    together = pl.col("start_ns").max().over(call) < pl.col("end_ns").min().over(call)
    everyone = (pl.len().over(call) == pl.col("ranks")) & (pl.col("ranks") > 1)  # a rank has one call of each number
    last = pl.col("device_index").last().over(call)  # they are sorted by start
    return calls.with_columns(
        (even & together & everyone).alias("matched"),
        pl.col("duration").min().over(call).alias("transfer"),
        last.alias("late_device"),
    )


def _table(met: pl.DataFrame, names: pl.DataFrame, devices: pl.DataFrame) -> pl.DataFrame:
    row = ["name_id", "group", "step_phase"]
    ranks = pl.col("ranks").first()
    waited = (pl.col("duration") - pl.col("transfer")).sum()
    sums = met.group_by(row).agg(
        pl.len().alias("kernels"),
        ranks,
        pl.col("matched").all(),
        (pl.col("duration").sum() / ranks / 1e6).alias("total_ms"),
        ((pl.col("duration").sum() - waited) / ranks / 1e6).alias("transfer_ms"),
        (waited / ranks / 1e6).alias("wait_ms"),
    )
    # The late rank of a row is the one behind most of its waiting, not the one that was late most often.
    late = (
        met.filter("matched")
        .group_by([*row, "late_device"])
        .agg(waited.alias("caused"))
        .filter(pl.col("caused") > 0)
        .sort("caused", "late_device", descending=[True, False])
        .group_by(row, maintain_order=True)
        .agg(pl.col("late_device").first())
        .join(devices.select(pl.col("device_index").alias("late_device"), "device"), on="late_device", how="left")
    )
    known = pl.col("matched")
    return (
        sums.join(late, on=row, how="left")
        .join(names.select("name_id", "name"), on="name_id", how="left")
        .select(
            "name",
            pl.col("group").cast(pl.Int32),
            pl.col("step_phase").cast(PHASES).alias("phase"),
            (pl.when(known).then(pl.col("kernels") // pl.col("ranks")).otherwise("kernels"))
            .cast(pl.Int64)
            .alias("count"),
            pl.when(known).then("transfer_ms").alias("transfer_ms"),
            pl.when(known).then("wait_ms").alias("wait_ms"),
            pl.when(known).then("device").cast(pl.Int32).alias("late_device"),
            "total_ms",
            pl.when(pl.col("ranks") == 1)
            .then(pl.lit(ONE_RANK))
            .when(~known)
            .then(pl.lit(UNMATCHED))
            .cast(pl.String)
            .alias("reason"),
        )
        .sort("total_ms", "name", "group", "phase", descending=[True, False, False, False])
        .select(list(COLLECTIVES))
    )
