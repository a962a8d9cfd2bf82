"""Steps without markers, read from the order of kernels on one device.

Attention marks the layers. Between two attention launches lies either the inside of a step (output projection, norms,
MLP, the next projections: the same few kernels every time) or the seam between two steps (last norm, lm_head, sampler,
then metadata, embedding and the first projections of the next step). A seam shows itself by kernels that do not
belong to a layer: a sampler, an embedding, another graph replay, else an extra GEMM or a copy to the host.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .columns import Bools, Columns, Ints

LAYER_SHARE = (
    0.45  # a sampling or embedding kernel seen at more than this share of attention launches is part of a layer
)


@dataclass(frozen=True)
class Sequence:
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
    sampling: Bools
    embedding: Bools
    helper: Bools  # metadata, copies, indexing: may stand on either side of a seam
    sendrecv: Bools
    replay: Ints
    host_copies: Ints  # times of copies to the host on this device, sorted

    def inside(self, flags: Bools, low: Ints, high: Ints) -> Ints:
        """How many of ``flags`` lie in each half-open stretch [low, high)."""
        total = np.concatenate([[0], np.cumsum(flags)])
        return total[high] - total[low]


def view_lane(columns: Columns, rows: Ints, replay: Ints, anchors: Bools, copies: Ints) -> LaneView:
    """The lane's arrays; ``anchors`` are the kernels that mark layers (attention, or softmax where none is fused)."""
    marks = anchors[rows]
    return LaneView(
        start=columns.start[rows],
        end=columns.end[rows],
        name=columns.name[rows],
        gemm=columns.is_op("gemm", "moe_gemm")[rows],
        attention=marks,
        sampling=columns.is_op("sampling")[rows] & ~marks,
        embedding=columns.is_op("embedding")[rows],
        helper=columns.is_op("step_metadata", "copy", "index", "elementwise", "embedding", "other", "reduce")[rows],
        sendrecv=columns.is_op("collective")[rows],
        replay=replay[rows],
        host_copies=copies,
    )


def find_sequence_steps(lane: LaneView) -> Sequence:
    """Cut one lane into steps. With no attention launch there is nothing to cut: no steps."""
    count = len(lane.start)
    first, last = layer_groups(lane.attention, lane.gemm, lane.replay)
    if len(first) == 0:
        return Sequence(np.full(count, -1, np.int64), np.zeros(0, np.int64), None, "none")
    seam, kind = find_seams(lane, first, last)
    seam = mend_seams(lane, seam, first, last)
    seams = np.flatnonzero(seam)
    cuts = np.array([cut_in(lane, int(last[g]) + 1, int(first[g + 1])) for g in seams], dtype=np.int64)
    starts = np.concatenate([[0], cuts])
    step = np.searchsorted(starts, np.arange(count), side="right") - 1
    attention = np.diff(np.concatenate([[0], seams + 1, [len(first)]]))
    return Sequence(step, attention, common_layers(attention), kind)


def layer_groups(attention: Bools, gemm: Bools, replay: Ints) -> tuple[Ints, Ints]:
    """First and last row of each layer's attention: launches with no GEMM between them belong to one layer."""
    rows = np.flatnonzero(attention)
    if len(rows) == 0:
        return rows, rows
    gemms = np.cumsum(gemm)[rows]
    replays = replay[rows]
    fresh = np.concatenate([[True], (gemms[1:] != gemms[:-1]) | (replays[1:] != replays[:-1])])
    begin = np.flatnonzero(fresh)
    return rows[begin], rows[np.concatenate([begin[1:] - 1, [len(rows) - 1]])]


def find_seams(lane: LaneView, first: Ints, last: Ints) -> tuple[Bools, str]:
    """Which of the stretches between consecutive layers hold the seam of two steps."""
    if len(first) < 2:
        return np.zeros(0, dtype=bool), "none"
    low, high = last[:-1] + 1, first[1:]
    before, after = lane.replay[last[:-1]], lane.replay[first[1:]]
    in_one_replay = (before >= 0) & (before == after)
    changes_replay = before != after
    sign = changes_replay.copy()
    for flags in (lane.sampling, lane.embedding):
        sign |= lane.inside(flags & ~layer_names(lane, flags, len(first)), low, high) > 0
    sign &= ~in_one_replay
    if sign.any():
        return sign, "sign"
    weak = weak_seams(lane, low, high) & ~in_one_replay
    return weak, "weak" if weak.any() else "none"


def layer_names(lane: LaneView, flags: Bools, layers: int) -> Bools:
    """Rows of ``flags`` whose name comes with nearly every layer (a router's softmax is no sampler)."""
    if not flags.any():
        return flags
    counts = np.bincount(lane.name[flags], minlength=int(lane.name.max()) + 1)
    return flags & (counts[lane.name] > LAYER_SHARE * layers)


def weak_seams(lane: LaneView, low: Ints, high: Ints) -> Bools:
    """Seams where no sampler, embedding or graph shows one: rare stretches with an extra GEMM, or a host copy."""
    gemms = lane.inside(lane.gemm, low, high)
    usual = np.bincount(gemms).argmax()
    extra = gemms > usual
    lengths = high - low
    rare = lengths > np.bincount(lengths).argmax()
    copied = np.searchsorted(lane.host_copies, lane.start[high]) > np.searchsorted(lane.host_copies, lane.end[low - 1])
    sends = lane.inside(lane.sendrecv, low, high)
    sending = sends > np.bincount(sends).argmax()
    for candidate in (extra & copied, copied & rare, extra & rare, sending & rare, copied):
        share = float(candidate.mean())
        if 0 < share <= 0.5:
            return np.asarray(candidate)
    return np.zeros(len(low), dtype=bool)


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


def cut_in(lane: LaneView, low: int, high: int) -> int:
    """Row of the first kernel of the later step in the stretch [low, high) between two attention launches."""
    span = slice(low, high)
    gemm_rows = np.flatnonzero(lane.gemm[span]) + low
    limit = int(gemm_rows[-1]) if len(gemm_rows) else high
    sampler = np.flatnonzero(lane.sampling[low:limit]) + low
    replay = lane.replay
    if len(sampler):
        return after_gap(lane, int(sampler[-1]) + 1, first_work(lane, int(sampler[-1]) + 1, limit))
    if replay[low - 1] != replay[min(high, len(replay) - 1)]:
        own = np.flatnonzero(replay[span] == replay[high]) if replay[high] >= 0 else np.zeros(0, np.int64)
        limit = low + int(own[0]) if len(own) else limit
        gemm_rows = gemm_rows[gemm_rows < limit]
    embedding = np.flatnonzero(lane.embedding[low:limit]) + low
    if len(embedding) > 1 or (len(embedding) == 1 and count_between(gemm_rows, int(embedding[0]), limit) == 0):
        opening = int(embedding[-1])
        head = gemm_rows[gemm_rows < opening]
        return after_gap(lane, int(head[-1]) + 1 if len(head) else low, opening)
    closing = gemm_rows[gemm_rows < limit]
    return after_gap(lane, int(closing[-1]) + 1 if len(closing) else low, limit)


def count_between(rows: Ints, low: int, high: int) -> int:
    """How many of the sorted ``rows`` lie strictly between two rows."""
    return int(np.searchsorted(rows, high) - np.searchsorted(rows, low, side="right"))


def first_work(lane: LaneView, low: int, high: int) -> int:
    """First row from ``low`` on that is neither metadata nor copy: the step has begun by then."""
    work = np.flatnonzero(~lane.helper[low:high] | lane.embedding[low:high])
    return low + int(work[0]) if len(work) else high


def after_gap(lane: LaneView, low: int, high: int) -> int:
    """Cut at ``low``, or after a clearly larger idle gap between ``low`` and ``high``: what ran before it is the past."""
    if high <= low or low == 0:
        return low
    gaps = lane.start[low : high + 1][: high - low + 1] - np.maximum.accumulate(lane.end[low - 1 : high])
    widest = int(gaps.argmax())
    return low + widest if gaps[widest] > max(20_000, 3 * int(gaps[0])) else low
