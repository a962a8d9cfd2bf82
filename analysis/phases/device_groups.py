"""Devices that run one step together, and the index that a step has on all of them."""

from __future__ import annotations

import numpy as np
import polars as pl

from ..facts.name_signs import sign_pattern
from ..numeric.grouping import split_by
from ..records.tables import GROUPS
from ..records.trace import Trace
from .kernel_arrays import Bools, Ints, KernelArrays

MIN_COMMON_SHARE = 0.8  # of the steps that two ranks must have in common, in count, in overlap and in tokens
KINDS = {"": "single", "tensor": "tensor_parallel", "pipeline": "pipeline_parallel"}


def group_lanes(trace: Trace, columns: KernelArrays, steps: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Groups of devices (GROUPS), and the steps with ``group`` and ``index``.

    Tensor-parallel ranks run collectives and their steps march together: as many steps, each overlapping its
    counterpart, with the same tokens. Pipeline stages only send and receive, and a step begins on the next stage when
    it has ended on the one before. Replicas share no such rhythm. Steps run together have one index.
    """
    lanes = len(columns.lane_device)
    steps_of = split_by(steps, "lane")
    own = [steps_of(lane) for lane in range(lanes)]
    reduces, sends = talking_lanes(trace, columns)
    group_of, kind_of = np.full(lanes, -1, dtype=np.int64), [""] * lanes
    heads: list[int] = []
    heights = np.array([frame.height for frame in own], dtype=np.int64)
    slots: list[Ints] = [frame["start_ns"].to_numpy() for frame in own]
    for lane in range(lanes):
        for number in possible_groups(heads, lane, heights, reduces, sends):
            head = heads[number]
            kind, partner = relation(
                own[head], own[lane], bool(reduces[head] and reduces[lane]), bool(sends[head] and sends[lane])
            )
            if kind:
                group_of[lane], kind_of[number] = number, kind_of[number] if kind_of[number] == "pipeline" else kind
                slots[lane] = np.where(partner >= 0, slots[head][np.maximum(partner, 0)], slots[lane])
                break
        else:
            group_of[lane] = len(heads)
            heads.append(lane)
    rows = []
    for number in range(len(heads)):
        members = sorted({columns.lane_device[lane] for lane in np.flatnonzero(group_of == number)})
        rows.append((number, members, KINDS[kind_of[number]] if len(members) > 1 else "single"))
    table = pl.DataFrame(rows, schema=dict(GROUPS), orient="row")
    if not own:
        return table, steps.with_columns(
            pl.lit(0, dtype=pl.Int32).alias("group"), pl.lit(0, dtype=pl.Int32).alias("index")
        )
    index = (pl.col("slot").rank("dense").over("group") - 1).cast(pl.Int32)
    indexed = pl.concat(own).with_columns(
        pl.Series("group", np.repeat(group_of, heights), dtype=pl.Int32), pl.Series("slot", np.concatenate(slots))
    )
    return table, indexed.with_columns(index.alias("index")).drop("slot")


def possible_groups(heads: list[int], lane: int, heights: Ints, reduces: Bools, sends: Bools) -> list[int]:
    """The groups, told by their first lanes, that a lane could belong to by what it runs and by how many steps it has."""
    if not (reduces[lane] or sends[lane]) or heights[lane] == 0:
        return []
    first = np.array(heads, dtype=np.int64)
    talk = (reduces[first] & reduces[lane]) | (sends[first] & sends[lane])
    least, most = np.minimum(heights[first], heights[lane]), np.maximum(heights[first], heights[lane])
    return np.flatnonzero(talk & (least > 0) & (least >= MIN_COMMON_SHARE * most)).tolist()


def talking_lanes(trace: Trace, columns: KernelArrays) -> tuple[Bools, Bools]:
    """Which lanes run collectives proper, and which send to or receive from one peer."""
    lanes = len(columns.lane_device)
    collective = columns.is_op("collective") & (columns.kernel_row >= 0)
    peer_names = trace.names["name"].str.contains(sign_pattern("point_to_point")).to_numpy()
    peer = collective & (peer_names[columns.name] if len(peer_names) and columns.count else False)
    return (
        np.bincount(columns.lane[collective & ~peer], minlength=lanes) > 0,
        np.bincount(columns.lane[peer], minlength=lanes) > 0,
    )


def relation(one: pl.DataFrame, other: pl.DataFrame, reduce_both: bool, send_both: bool) -> tuple[str, Ints]:
    """How two lanes belong together ('tensor', 'pipeline' or ''), and for each step of ``other`` its row in ``one``."""
    if reduce_both:
        partner = counterpart(one, other)
        if same_work(one, other, partner):
            return "tensor", partner
    if send_both:
        partner = next_stage(one, other)
        if same_work(one, other, partner):
            return "pipeline", partner
    return "", np.full(other.height, -1, dtype=np.int64)


def same_work(one: pl.DataFrame, other: pl.DataFrame, partner: Ints) -> bool:
    """Whether most steps have a counterpart, and the counterparts carry the same tokens."""
    known = partner >= 0
    if np.count_nonzero(known) < MIN_COMMON_SHARE * len(partner):
        return False
    both = pl.DataFrame(
        {"mine": other["tokens"].filter(pl.Series(known)), "theirs": one["tokens"].gather(partner[known])}
    ).drop_nulls()
    return (
        both.height == 0 or float(both.select((pl.col("mine") == pl.col("theirs")).mean()).item()) >= MIN_COMMON_SHARE
    )


def counterpart(one: pl.DataFrame, other: pl.DataFrame) -> Ints:
    """For each step of ``other`` the step of ``one`` it overlaps longest, -1 where none overlaps by half; one to one."""
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
    best = np.where(most * 2 >= np.minimum(end - start, (ends - starts)[np.maximum(best, 0)]), best, -1)
    return one_to_one(best)


def next_stage(one: pl.DataFrame, other: pl.DataFrame) -> Ints:
    """For each step of a later stage the last step of the earlier one that had ended when its own work began."""
    place = np.searchsorted(one["end_ns"].to_numpy(), other["work_ns"].to_numpy(), side="right") - 1
    return one_to_one(place.astype(np.int64))


def one_to_one(partner: Ints) -> Ints:
    """Keep the first of several steps that claim one partner."""
    _, first = np.unique(partner, return_index=True)
    kept = np.full(len(partner), -1, dtype=np.int64)
    kept[first] = partner[first]
    return kept
