"""Steps without markers, read from the order of kernels on one device.

Attention marks the layers. Between two attention launches lies either the inside of a step (output projection, norms,
MLP, the next projections: the same few kernels every time) or the seam between two steps (last norm, lm_head, sampler,
then metadata, embedding and the first projections of the next step). A seam shows itself by kernels that do not
belong to a layer: a sampler, an embedding, another graph replay, else an extra GEMM or a copy to the host.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...numeric.intervals import idle_before
from ..kernel_arrays import Bools, Ints, KernelArrays

MAX_COMPARED_KERNELS = 64  # kernels between two attention launches that are compared to find where a layer begins
MIN_MOVING_GAP_NS = (
    20_000  # an idle gap longer than this, and three times the one at the sampler, ends the earlier step
)
MIN_LAYERS_OF_REPLAY = 16  # a replay recorded as one row stands for at least this many layers
MIN_REGULAR_SHARE = 0.98  # share of the layers in steps of the commonest size from which on weaker signs are believed
MIN_PARTING_GAP_NS = (
    20_000  # an idle gap longer than this, and than MIN_PARTING_GAP_RATIO usual ones, may part two steps
)
MIN_PARTING_GAP_RATIO = 5
MAX_STEP_SIGN_SHARE = (
    0.45  # a sampling or embedding kernel seen at more than this share of attention launches is part of a layer
)


@dataclass(frozen=True)
class SequenceSteps:
    """Steps of one lane: ``step`` per given row (-1 = outside), attention launches per step, layers of the model."""

    step: Ints
    attention: Ints
    layers: int | None
    seam_kind: str  # 'sign' | 'weak' | 'none': what the seams were found by


@dataclass(frozen=True)
class LaneView:
    """Arrays of one lane's kernels in GPU order, and running counts to ask any stretch of them."""

    start: Ints
    end: Ints
    name: Ints
    gemm: Bools
    attention: Bools
    between_layers: Bools
    sampling: Bools
    embedding: Bools
    helper: Bools  # metadata, copies, indexing: may stand on either side of a seam
    trailing: Bools  # reductions and collectives: behind a last GEMM they belong to it
    sendrecv: Bools
    grid: Ints
    stream: Ints
    replay: Ints
    host_copies: Ints  # times of copies to the host on this device, sorted

    def inside(self, flags: Bools, low: Ints, high: Ints) -> Ints:
        """How many of ``flags`` lie in each half-open stretch [low, high)."""
        total = np.concatenate([[0], np.cumsum(flags)])
        return np.asarray(total[high] - total[low])


@dataclass(frozen=True)
class LayerMarks:
    """What marks layers in the whole capture."""

    anchors: Bools  # attention, or softmax where none is fused
    starts: Bools  # the first of each layer
    every_layer: Bools  # sampling and embedding kernels that come with nearly every layer


def view_lane(columns: KernelArrays, rows: Ints, replay: Ints, marks_of: LayerMarks, copies: Ints) -> LaneView:
    """The lane's arrays in the order of ``rows``; ``copies``: start times of copies to the host."""
    marks, of_layer = marks_of.anchors[rows], marks_of.every_layer[rows]
    return LaneView(
        start=columns.start[rows],
        end=columns.end[rows],
        name=columns.name[rows],
        gemm=columns.is_op("gemm", "moe_gemm", rows=rows),
        attention=marks,
        between_layers=between_layers(columns, rows),
        sampling=columns.is_op("sampling", rows=rows) & ~marks & ~of_layer,
        embedding=columns.is_op("embedding", rows=rows) & ~of_layer,
        helper=columns.is_op(
            "step_metadata", "copy", "index", "elementwise", "embedding", "convolution", "other", "reduce", rows=rows
        ),
        trailing=columns.is_op("gemm_reduce", "collective", rows=rows),
        sendrecv=columns.is_op("collective", rows=rows),
        grid=columns.grid_x[rows],
        stream=columns.stream[rows],
        replay=replay[rows],
        host_copies=copies,
    )


def find_sequence_steps(lane: LaneView) -> SequenceSteps:
    """Cut one lane into steps. With no attention launch there is nothing to cut: no steps."""
    count = len(lane.start)
    first, last = layer_groups(lane.attention, np.cumsum(lane.between_layers), lane.replay)
    if len(first) == 0:
        return SequenceSteps(np.full(count, -1, np.int64), np.zeros(0, np.int64), None, "none")
    seam, kind = find_seams(lane, first, last)
    seam = mend_seams(lane, seam, first, last)
    seams = np.flatnonzero(seam)
    cut_off = int(latest(lane.sampling, first[:1], first[:1] * 0)[0]) + 1  # sampler of a step before the capture
    starts = np.concatenate([[cut_off], cut_seams(lane, first, last, seams)])
    step = np.searchsorted(starts, np.arange(count), side="right") - 1
    attention = np.diff(np.concatenate([[0], seams + 1, [len(first)]]))
    return SequenceSteps(step, attention, common_layers(attention), kind)


def layer_groups(attention: Bools, between: Ints, replay: Ints) -> tuple[Ints, Ints]:
    """First and last row of each layer's attention: launches with nothing ``between`` them (a running count) are one."""
    rows = np.flatnonzero(attention)
    if len(rows) == 0:
        return rows, rows
    passed = between[rows]
    replays = replay[rows]
    fresh = np.concatenate([[True], (passed[1:] != passed[:-1]) | (replays[1:] != replays[:-1])])
    begin = np.flatnonzero(fresh)
    return rows[begin], rows[np.concatenate([begin[1:] - 1, [len(rows) - 1]])]


def between_layers(columns: KernelArrays, rows: Ints) -> Bools:
    """Kernels that stand between the attention of two layers and never inside one layer's attention.

    Engines that attend for prompts and for decoding requests one after the other may rotate and write the cache before
    each, and a GEMM may stand inside (the up-projections of latent attention): so those count only where neither norms
    nor activations are known by their names. A whole replay counts always.
    """
    for classes in (("norm", "activation", "moe_gemm"), ("kv_write", "rope"), ("gemm",)):
        marks = columns.is_op(*classes, rows=rows)
        if marks.any():
            break
    return marks | columns.opaque[rows]


def find_seams(lane: LaneView, first: Ints, last: Ints) -> tuple[Bools, str]:
    """Which of the stretches between consecutive layers hold the seam of two steps."""
    if len(first) < 2:
        return np.zeros(0, dtype=bool), "none"
    low, high = last[:-1] + 1, first[1:]
    before, after = lane.replay[last[:-1]], lane.replay[first[1:]]
    in_one_replay = (before >= 0) & (before == after)
    changes_replay = before != after
    shown = (lane.inside(lane.sampling | lane.embedding, low, high) > 0) & ~in_one_replay
    sign = shown | changes_replay
    touching = changes_replay & ~shown & (before >= 0) & (after >= 0)
    if touching.any() and np.count_nonzero(shown) * 2 >= np.count_nonzero(touching):
        whole = sign & ~touching  # a step may replay several graphs, one behind the other
        sign = whole if regularity(whole) >= regularity(sign) else sign
    even = regularity(sign)
    copied, weak = weak_seams(lane, low, high, ~in_one_replay)
    for candidate in copied:  # logits that go to the host end a step, whatever else does
        if np.any(candidate & ~sign) and regularity(candidate | sign) >= MIN_REGULAR_SHARE:
            return candidate | sign, "weak"
    if even == 1:
        return sign, "sign"
    for candidate in (*weak, *weakest_seams(lane, low, high, ~in_one_replay)):
        if regularity(candidate | sign) >= max(MIN_REGULAR_SHARE, even):
            return candidate | sign, "weak"
    weak = [*copied, *weak]
    if sign.any():
        return sign, "sign"
    return (weak[0], "weak") if weak else (sign, "none")


def regularity(seam: Bools) -> float:
    """Share of the layers that lie in steps of the commonest size; 0 where no size comes twice.

    A first or last step that is smaller may be cut off by the capture and does not count.
    """
    sizes = np.diff(np.concatenate([[0], np.flatnonzero(seam) + 1, [len(seam) + 1]]))
    usual = common_layers(sizes) or 0
    if np.count_nonzero(sizes == usual) < 2:
        return 0.0
    ends = [end for end in (0, len(sizes) - 1) if sizes[end] < usual]
    return float(np.sum(sizes[sizes == usual]) / (sizes.sum() - sizes[ends].sum()))


def kernels_of_every_layer(columns: KernelArrays, starts: Bools) -> Bools:
    """Sampling and embedding kernels whose name comes with nearly every layer of their lane: a router's, no sampler.

    ``starts``: the first attention kernel of each layer.
    """
    suspects = columns.is_op("sampling", "embedding")
    result = np.zeros(columns.count, dtype=bool)
    for lane in range(len(columns.lane_device)):
        rows = columns.rows_of_lane(lane, suspects)
        if len(rows) == 0:
            continue
        own = columns.rows_of_lane(lane, starts)
        layers = len(own) + MIN_LAYERS_OF_REPLAY * np.count_nonzero(columns.opaque[own])
        counts = np.bincount(columns.name[rows])
        result[rows] = counts[columns.name[rows]] > MAX_STEP_SIGN_SHARE * layers
    return result


def weak_seams(lane: LaneView, low: Ints, high: Ints, possible: Bools) -> tuple[list[Bools], list[Bools]]:
    """Seams where no sampler, embedding or graph shows one, the likeliest set first: by copies to the host, by others.

    Rare stretches between two layers: with an extra GEMM, a copy to the host, a transfer to the next pipeline stage.
    """
    gemms = lane.inside(lane.gemm, low, high)
    usual = np.bincount(gemms).argmax()
    extra = gemms > usual
    lengths = high - low
    rare = lengths > np.bincount(lengths).argmax()
    copied = np.searchsorted(lane.host_copies, lane.start[high]) > np.searchsorted(lane.host_copies, lane.end[low - 1])
    sends = lane.inside(lane.sendrecv, low, high)
    sending = sends > np.bincount(sends).argmax()
    by_copies = usable((extra & copied, copied & rare), possible)
    return by_copies, usable((extra & rare, sending & rare, copied), possible)


def weakest_seams(lane: LaneView, low: Ints, high: Ints, possible: Bools) -> list[Bools]:
    """Seams that count only where they cut steps of equal size: idle gaps, other kernels than usual."""
    idle, unlike = idles(lane, low, high), unlike_the_usual(lane, low, high)
    return usable((idle & unlike, idle, unlike), possible)


def usable(candidates: tuple[Bools, ...], possible: Bools) -> list[Bools]:
    """The candidates where they are possible, without those that mark nothing or most stretches."""
    found = [candidate & possible for candidate in candidates]
    return [seams for seams in found if 0 < float(seams.mean()) <= 0.5]


def idles(lane: LaneView, low: Ints, high: Ints) -> Bools:
    """Stretches [low, high] with an idle gap clearly longer than the usual one."""
    gap = idle_before(lane.start, lane.end)
    widest = np.maximum.reduceat(np.append(gap, 0), np.stack([low, high + 1], axis=1).ravel())[::2]
    return np.asarray(widest > max(MIN_PARTING_GAP_NS, MIN_PARTING_GAP_RATIO * int(np.median(widest))))


def unlike_the_usual(lane: LaneView, low: Ints, high: Ints) -> Bools:
    """Stretches [low, high) with other kernels, by name, than most have."""
    mark = np.random.default_rng(0).integers(1, 1 << 40, int(lane.name.max()) + 1)
    total = np.concatenate([[0], np.cumsum(mark[lane.name])])
    sums = total[high] - total[low]
    values, counts = np.unique(sums, return_counts=True)
    return np.asarray(sums != values[counts.argmax()])


def mend_seams(lane: LaneView, seam: Bools, first: Ints, last: Ints) -> Bools:
    """Use the layer count that most steps agree on to remove seams inside a step and to add missing ones."""
    pieces = np.diff(np.concatenate([[0], np.flatnonzero(seam) + 1, [len(first)]]))
    layers = common_layers(pieces)
    if layers is None or layers < 4 or np.count_nonzero(pieces == layers) < 3:
        return seam
    mended = seam.copy()
    ends = np.cumsum(pieces)
    forced = lane.replay[last[:-1]] != lane.replay[first[1:]]
    halves = np.flatnonzero((pieces[:-1] + pieces[1:] == layers) & (pieces[:-1] > 0))
    inner = ends[halves] - 1
    mended[inner[~forced[inner]]] = False
    for piece in np.flatnonzero((pieces > layers) & (pieces % layers == 0)):
        begin = int(ends[piece] - pieces[piece])
        if len(np.unique(lane.stream[first[begin : ends[piece]]])) > 1:
            continue  # two halves of a batch side by side launch every layer twice
        missing = np.arange(begin + layers, int(ends[piece]), layers) - 1
        same = (lane.replay[last[missing]] >= 0) & (lane.replay[last[missing]] == lane.replay[first[missing + 1]])
        mended[missing[~same]] = True
    return mended


def common_layers(attention: Ints) -> int | None:
    """The attention count that most attention launches agree on; ties go to the larger."""
    if len(attention) == 0:
        return None
    counts = np.bincount(attention)
    weight = counts * np.arange(len(counts))
    return int(len(weight) - 1 - weight[::-1].argmax()) or None


def cut_seams(lane: LaneView, first: Ints, last: Ints, seams: Ints) -> Ints:
    """For each seam the row of the later step's first kernel.

    The later step has begun where the kernels before its attention are those of its other layers (``opening``), where
    its graph replay starts, or at its embedding. The earlier step has ended with its sampler, else with its last GEMM
    (lm_head) and what belongs to it, or with its replay. Between the two stand metadata and copies: they belong to
    the later step, unless a clearly larger idle gap lies behind them.
    """
    low, high = last[seams] + 1, first[seams + 1]
    opening = head_of_layer(lane, first, last, seams, low, high)
    before, after = lane.replay[low - 1], lane.replay[high]
    rows = np.arange(len(lane.start))
    changed = before != after
    begins = np.full(int(lane.replay.max(initial=-1)) + 2, len(rows))
    np.minimum.at(begins, lane.replay, rows)
    ends = np.full(int(lane.replay.max(initial=-1)) + 2, -1)
    np.maximum.at(ends, lane.replay, rows)
    opening = np.where(changed & (after >= 0), np.maximum(begins[after], low), opening)
    sampler = latest(lane.sampling, opening, low)
    gemm = latest(lane.gemm, opening, low)
    replayed = np.where(changed & (before >= 0), np.minimum(ends[before], opening - 1), -1)
    base = np.where(sampler >= 0, np.maximum(sampler, replayed), np.maximum(gemm, replayed)) + 1
    base = np.maximum(base, low)
    base = np.where(sampler >= 0, base, np.minimum(earliest(~lane.trailing, base), opening))
    begun = np.where(sampler >= 0, earliest(lane.embedding | ~lane.helper, base), earliest(lane.embedding, base))
    opening = np.maximum(np.minimum(opening, begun), base)
    return behind_gaps(lane, base, opening)


def head_of_layer(lane: LaneView, first: Ints, last: Ints, seams: Ints, low: Ints, high: Ints) -> Ints:
    """Where the kernels before a step's first attention begin to be those before its second one (same name and grid).

    Where a step has one layer only, or nothing matches, the last GEMM before the attention.
    """
    following = np.minimum(seams + 2, len(first) - 1)
    floor, other = last[seams + 1] + 1, first[following]
    layered = (seams + 2 < len(first)) & ~np.isin(seams + 1, seams)  # a second layer of the same step follows
    alive = layered & (lane.replay[high] == lane.replay[other])
    length = np.zeros(len(seams), dtype=np.int64)
    for back in range(1, MAX_COMPARED_KERNELS + 1):
        mine, theirs = high - back, other - back
        alive = alive & (mine >= low) & (theirs >= floor)
        if not alive.any():
            break
        mine, theirs = np.maximum(mine, 0), np.maximum(theirs, 0)
        alive &= (lane.name[mine] == lane.name[theirs]) & (lane.grid[mine] == lane.grid[theirs])
        length += alive
    matched = high - length
    gemm = latest(lane.gemm, high, low)
    fallback = np.where(gemm >= 0, gemm, high)
    return np.where(lane.gemm[matched] | (latest(lane.gemm, high, matched) >= 0), matched, fallback)


def latest(flags: Bools, before: Ints, floor: Ints) -> Ints:
    """The last flagged row in [floor, before) for each pair, -1 where none is."""
    seen = np.maximum.accumulate(np.where(flags, np.arange(len(flags)), -1))
    found = np.where(before > 0, seen[np.maximum(before - 1, 0)], -1)
    return np.where(found >= floor, found, -1)


def earliest(flags: Bools, start: Ints) -> Ints:
    """The first flagged row from each start on, the number of rows where none is."""
    count = len(flags)
    marks = np.where(flags, np.arange(count), count)
    ahead = np.append(np.minimum.accumulate(marks[::-1])[::-1], count)
    return ahead[np.minimum(start, count)]


def behind_gaps(lane: LaneView, base: Ints, opening: Ints) -> Ints:
    """Cut at ``base``, or behind a clearly larger idle gap between it and ``opening``: what ran before it is the past."""
    gap = np.append(idle_before(lane.start, lane.end), 0)
    stretch = np.stack([base, np.minimum(opening, len(lane.start) - 1) + 1], axis=1).ravel()
    widest = np.maximum.reduceat(gap, np.minimum(stretch, len(gap) - 1))[::2] if len(base) else base
    cuts = base.copy()
    for seam in np.flatnonzero((widest > np.maximum(MIN_MOVING_GAP_NS, 3 * gap[base])) & (opening > base)):
        cuts[seam] = base[seam] + int(gap[base[seam] : opening[seam] + 1].argmax())
    return cuts
