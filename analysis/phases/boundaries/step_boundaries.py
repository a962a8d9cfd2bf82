"""Markers and kernel order together give the steps of every lane."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import polars as pl

from ...numeric.grouping import rows_by_key, split_by, stable_order
from ...records.trace import COPY_KINDS, Trace
from ..kernel_arrays import Bools, Ints, KernelArrays, column
from ..launch_links import LinkResult
from .marker_steps import MarkerSteps
from .sequence_steps import (
    LayerMarks,
    between_layers,
    common_layers,
    earliest,
    find_sequence_steps,
    kernels_of_every_layer,
    layer_groups,
    view_lane,
)

MIN_STRAY_GAP_NS = 2_000_000  # kernels before an idle gap longer than this and than half their step are not part of it
MAX_DRAFT_LAYER_SHARE = (
    1 / 3
)  # a pass with at most this share of the model's layers, next to full ones, is a draft model's


@dataclass(frozen=True)
class RawSteps:
    """Steps before phases: the step of each kernel and one row per step, sorted by (lane, start)."""

    step: Ints  # per kernel, row of ``frame``, -1 = outside every step
    layer: Ints  # per kernel: running number of the layer whose attention began last on its lane, -1 before the first
    frame: pl.DataFrame  # lane, marker (row of the marker frame, -1), attention
    layers: int | None


def assemble_steps(trace: Trace, columns: KernelArrays, link: LinkResult, markers: MarkerSteps) -> RawSteps:
    """Steps of every lane: those that markers name, and for kernels outside them those that their order shows."""
    code = np.full(columns.count, -1, dtype=np.int64)
    width = markers.frame.height
    marked = markers.step >= 0
    code[marked] = columns.lane[marked].astype(np.int64) * max(width, 1) + markers.step[marked]
    used = len(columns.lane_device) * max(width, 1)
    marks = mark_layers(trace, columns, link)
    unmarked = ~marked & ~columns.load_time
    copies_from = host_copies(trace)
    # sums stand in no order, so that nothing of a step could be read from it
    for lane in range(0 if trace.holds_sums else len(columns.lane_device)):
        rows = columns.rows_of_lane(lane, unmarked)
        if not marks.anchors[rows].any():
            continue
        copies = copies_from(columns.lane_device[lane])
        found = find_sequence_steps(view_lane(columns, rows, link.replay, marks, copies))
        inside = split_by_markers(found.step, columns, lane, rows, marked)
        code[rows] = np.where(inside >= 0, used + inside, -1)
        used += int(inside.max()) + 1
    own_starts = layer_starts(columns, link, marks.anchors, columns.stream)
    return number_steps(columns, markers, drop_strays(columns, code), marks, own_starts)


def mark_layers(trace: Trace, columns: KernelArrays, link: LinkResult) -> LayerMarks:
    """Find what marks the layers of every lane."""
    anchors = layer_anchors(trace, columns)
    starts = layer_starts(columns, link, anchors, columns.lane)
    return LayerMarks(anchors, starts, kernels_of_every_layer(columns, starts))


def layer_anchors(trace: Trace, columns: KernelArrays) -> Bools:
    """Kernels that mark layers: attention; where a lane has none, the softmax of unfused attention."""
    anchors = columns.is_op("attention")
    softmax = trace.names["name"].str.contains("(?i)softmax").to_numpy()
    if not softmax.any():
        return anchors
    for lane in range(len(columns.lane_device)):
        mine = columns.rows_of_lane(lane)
        if len(mine) and not anchors[mine].any():
            anchors = anchors.copy()
            anchors[mine] = softmax_of_attention(columns, mine, softmax[columns.name[mine]])
    return anchors


def softmax_of_attention(columns: KernelArrays, rows: Ints, softmax: Bools) -> Bools:
    """Softmax kernels that a GEMM follows (scores times values) before anything is sampled: the others are a sampler's."""
    gemm = columns.is_op("gemm", rows=rows)
    samples = columns.is_op("sampling", rows=rows) & ~softmax
    return np.asarray(softmax & (earliest(gemm, np.arange(len(rows))) < earliest(samples, np.arange(len(rows)))))


def layer_starts(columns: KernelArrays, link: LinkResult, anchors: Bools, key: Ints) -> Bools:
    """The first attention kernel of every layer, among the kernels of each lane or of each stream (``key``).

    A graph replay that began between two of them parts layers also where its kernels run on another stream.
    """
    starts = np.zeros(columns.count, dtype=bool)
    begun = replays_begun(columns, link.replay)
    for rows in rows_by_key(key, np.unique(key[anchors])):
        passed = np.cumsum(between_layers(columns, rows)) + begun[rows]
        first, _ = layer_groups(anchors[rows], passed, link.replay[rows])
        starts[rows[first]] = True
    return starts


def replays_begun(columns: KernelArrays, replay: Ints) -> Ints:
    """For each kernel how many graph replays have begun on its lane so far."""
    rows = np.flatnonzero(replay >= 0)
    first = np.full(int(replay.max(initial=-1)) + 1, -1, dtype=np.int64)
    first[replay[rows[::-1]]] = rows[::-1]
    flags = np.zeros(columns.count, dtype=bool)
    flags[first[first >= 0]] = True
    return counted_so_far(columns, flags)


def counted_so_far(columns: KernelArrays, flags: Bools) -> Ints:
    """For each kernel how many flagged ones its lane has had, itself included."""
    if len(columns.lane_device) == 1:
        return np.cumsum(flags)
    count = np.zeros(columns.count, dtype=np.int64)
    for lane in range(len(columns.lane_device)):
        rows = columns.rows_of_lane(lane)
        count[rows] = np.cumsum(flags[rows])
    return count


def layer_numbers(columns: KernelArrays, starts: Bools) -> Ints:
    """Number the layers of all lanes in one sequence; each kernel carries the one whose attention began last."""
    number = np.full(columns.count, -1, dtype=np.int32)
    used = 0
    for lane in range(len(columns.lane_device)):
        rows = columns.rows_of_lane(lane)
        begun = np.cumsum(starts[rows])
        number[rows] = np.where(begun > 0, used + begun - 1, -1)
        used += int(begun[-1]) if len(begun) else 0
    return number


def host_copies(trace: Trace) -> Callable[[int], Ints]:
    """For each device the start times of copies from it to the host, sorted."""
    to_host = trace.copies.filter(pl.col("kind") == pl.lit("d2h", dtype=COPY_KINDS))
    of_device = split_by(to_host.select("device_index", "start_ns"), "device_index")
    return lambda device: np.sort(column(of_device(device), "start_ns"))


def split_by_markers(step: Ints, columns: KernelArrays, lane: int, rows: Ints, marked: Bools) -> Ints:
    """Steps found among the kernels outside markers never reach across a marked step: cut them there."""
    others = columns.rows_of_lane(lane, marked)
    if len(others) == 0:
        return step
    stretch = np.searchsorted(others, rows)
    pairs = pl.DataFrame({"step": step, "stretch": stretch})
    dense = pairs.select(pl.struct("step", "stretch").rank("dense")).to_series().cast(pl.Int64).to_numpy() - 1
    return np.where(step >= 0, dense, -1)


def drop_strays(columns: KernelArrays, code: Ints) -> Ints:
    """Take small kernels that ran long before the first GEMM or attention of their step out of it.

    Engines launch a little bookkeeping right after the last step and then wait for work; the next step begins later.
    """
    rows = np.flatnonzero(code >= 0)
    if len(rows) < 2:
        return code
    owner = code[rows]
    if not bool(np.all(owner[1:] >= owner[:-1])):
        order = stable_order(owner)
        rows, owner = rows[order], owner[order]
    begins = np.flatnonzero(np.concatenate([[True], owner[1:] != owner[:-1]]))
    works = np.append(np.flatnonzero(columns.is_op("gemm", "moe_gemm", "attention")[rows]), len(rows))
    ends = np.append(begins[1:], len(rows))
    ahead = np.minimum(works[np.searchsorted(works, begins)], ends - 1)  # rows up to the step's first work
    last = np.maximum.reduceat(columns.end[rows], begins)
    lengths = ahead - begins
    step = np.repeat(np.arange(len(begins)), lengths)
    place = np.arange(len(step)) - np.repeat(np.cumsum(lengths) - lengths, lengths) + begins[step]
    following = columns.start[rows[place + 1]]
    gap = following - columns.end[rows[place]]
    wide = (gap > MIN_STRAY_GAP_NS) & (gap * 2 > last[step] - following)
    if not wide.any():
        return code
    until = np.full(len(begins), -1, dtype=np.int64)
    np.maximum.at(until, step[wide], place[wide])
    code = code.copy()
    code[rows[place[place <= until[step]]]] = -1
    return code


def number_steps(
    columns: KernelArrays, markers: MarkerSteps, code: Ints, marks: LayerMarks, stream_starts: Bools
) -> RawSteps:
    """Number the steps by (lane, first kernel) and keep of the unmarked ones only those with an attention launch.

    Layers are counted on the busiest stream of a step: two halves of a batch, or decoding requests and prompts, may
    run each layer side by side. A marked step may hold passes of a draft model behind its sampler: the longest counts.
    """
    rows = np.flatnonzero(code >= 0)
    width = max(markers.frame.height, 1)
    first = pl.DataFrame({"code": code[rows], "row": rows, "lane": columns.lane[rows]})
    frame = first.group_by("code").agg(pl.col("row").min(), pl.col("lane").first())
    heads = rows[stream_starts[rows]]
    sampled = counted_so_far(columns, columns.is_op("sampling") & ~marks.every_layer & ~marks.anchors)
    layers = (
        pl.DataFrame(
            {
                "code": code[heads],
                "stream": columns.stream[heads],
                "opaque": columns.opaque[heads],
                "sampled": np.where(code[heads] < len(columns.lane_device) * width, sampled[heads], 0),
            }
        )
        .group_by("code", "stream", "sampled")
        .agg(pl.len().cast(pl.Int64).alias("attention"), pl.col("opaque").any())
        .group_by("code")
        .agg(pl.col("attention").max(), pl.col("opaque").any())
    )
    marked = pl.col("code") < len(columns.lane_device) * width
    kept = (
        frame.join(layers, on="code", how="left")
        .with_columns(pl.col("attention").fill_null(0), pl.col("opaque").fill_null(False))
        .filter(marked | (pl.col("attention") > 0))
        .sort("lane", "row")
        .with_columns(marker=pl.when(marked & (markers.frame.height > 0)).then(pl.col("code") % width).otherwise(-1))
    )
    number = np.full(int(code.max(initial=-1)) + 2, -1, dtype=np.int32)
    number[kept["code"].to_numpy()] = np.arange(kept.height)
    step = number[code]  # -1 picks the last entry
    usual = common_layers(kept.filter(~pl.col("opaque"))["attention"].to_numpy())
    return RawSteps(step, layer_numbers(columns, marks.starts), kept.select("lane", "marker", "attention"), usual)
