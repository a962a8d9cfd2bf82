"""Devices that run one step together, and the index that a step has on all of them."""

from __future__ import annotations

import numpy as np
import polars as pl

from ..result import GROUPS
from .columns import Columns, Ints

SAME_SHARE = 0.8  # of the steps that two ranks must have in common, in count and in overlap


def group_lanes(columns: Columns, steps: pl.DataFrame) -> tuple[pl.DataFrame, Ints]:
    """Groups of devices, and the group of each lane.

    Tensor-parallel ranks run the same collectives and their steps march together: as many steps, each overlapping its
    counterpart, with the same tokens. Replicas share no such rhythm.
    """
    lanes = len(columns.lane_device)
    talks = np.bincount(columns.lane[columns.is_op("collective")], minlength=lanes) > 0
    group_of = np.full(lanes, -1, dtype=np.int64)
    heads: list[int] = []
    for lane in range(lanes):
        mine = steps.filter(pl.col("lane") == lane)
        for number, head in enumerate(heads):
            if talks[lane] and talks[head] and march_together(steps.filter(pl.col("lane") == head), mine):
                group_of[lane] = number
                break
        else:
            group_of[lane] = len(heads)
            heads.append(lane)
    rows = []
    for number in range(len(heads)):
        members = [columns.lane_device[lane] for lane in np.flatnonzero(group_of == number)]
        rows.append((number, sorted(set(members)), "tensor_parallel" if len(set(members)) > 1 else "single"))
    return pl.DataFrame(rows, schema=dict(GROUPS), orient="row"), group_of


def march_together(one: pl.DataFrame, other: pl.DataFrame) -> bool:
    """Whether most steps of two lanes overlap in time with a step of the other that carries the same tokens."""
    if one.height == 0 or other.height == 0:
        return False
    if min(one.height, other.height) < SAME_SHARE * max(one.height, other.height):
        return False
    partner = counterpart(one, other)
    known = partner >= 0
    if np.count_nonzero(known) < SAME_SHARE * other.height:
        return False
    pair = pl.DataFrame({"mine": other["tokens"].filter(pl.Series(known)), "theirs": one["tokens"][partner[known]]})
    both = pair.drop_nulls()
    return both.height == 0 or float((both["mine"] == both["theirs"]).mean() or 0.0) >= SAME_SHARE


def counterpart(one: pl.DataFrame, other: pl.DataFrame) -> Ints:
    """For each step of ``other`` the step of ``one`` that overlaps it longest, -1 where none overlaps by half."""
    starts, ends = one["start_ns"].to_numpy(), one["end_ns"].to_numpy()
    start, end = other["start_ns"].to_numpy(), other["end_ns"].to_numpy()
    place = np.searchsorted(starts, start, side="right") - 1
    best = np.full(len(start), -1, dtype=np.int64)
    most = np.zeros(len(start), dtype=np.int64)
    for offset in (0, 1):
        candidate = np.clip(place + offset, 0, len(starts) - 1)
        overlap = np.minimum(end, ends[candidate]) - np.maximum(start, starts[candidate])
        better = overlap > most
        best, most = np.where(better, candidate, best), np.where(better, overlap, most)
    return np.where(most * 2 >= end - start, best, -1)


def index_steps(steps: pl.DataFrame, group_of: Ints) -> pl.DataFrame:
    """Add ``group`` and ``index``: per group in time order, the same on every device for the steps run together."""
    steps = steps.with_columns(pl.Series("group", group_of[steps["lane"].to_numpy()], dtype=pl.Int32))
    parts = []
    for _, members in steps.group_by("group", maintain_order=True):
        lanes = members["lane"].unique(maintain_order=True).to_list()
        head = members.filter(pl.col("lane") == lanes[0])
        times = [head.with_columns(slot=head["start_ns"])]
        for lane in lanes[1:]:
            mine = members.filter(pl.col("lane") == lane)
            partner = counterpart(head, mine)
            slot = np.where(partner >= 0, head["start_ns"].to_numpy()[partner], mine["start_ns"].to_numpy())
            times.append(mine.with_columns(pl.Series("slot", slot)))
        parts.append(pl.concat(times).with_columns(index=pl.col("slot").rank("dense").cast(pl.Int32) - 1))
    if not parts:
        return steps.with_columns(pl.lit(0, dtype=pl.Int32).alias("index"))
    return pl.concat(parts).drop("slot")
