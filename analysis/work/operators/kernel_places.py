"""Which kernel of a layer is which: GEMMs by the orders of ``gemm_orders``, the rest by the GEMMs around them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ...numeric.grouping import stable_order
from .gemm_orders import (
    ACTIVATION,
    ATTENTION,
    BEFORE_ATTENTION,
    BEGIN,
    END,
    EXPERTS,
    LAYER_STARTS,
    MAX_GEMMS,
    OP_CODE,
    ORDINARY,
    PLACE_CODE,
    PLACES,
    gemm_orders,
)
from .repeated_steps import repeated_steps

Ints: TypeAlias = "npt.NDArray[np.int64]"
Bools: TypeAlias = "npt.NDArray[np.bool_]"

# Of the spans of one kind: a number of GEMMs that fewer have, where more have another one, is a lost kernel's.
MAX_RARE_SHARE = 0.05
MIN_USUAL_SHARE = 0.8


@dataclass(frozen=True)
class KernelPlaces:
    """Per kernel, in the order of ``kernels``: code of its place, its layer (-1 = none) and its part of the place.

    Several kernels that do one place's work together (split attention, two cache writes) share it by their time.
    """

    code: npt.NDArray[np.int16]
    layer: npt.NDArray[np.int16]
    share: npt.NDArray[np.float64]
    adds_residual: Bools  # norms that must add the residual, because no kernel before them does


@dataclass(frozen=True)
class LaunchedKernels:
    """What the places of kernels are told from; kernels sorted by start, one entry each."""

    step: npt.NDArray[np.int32]  # row of the steps, -1 = none
    op: npt.NDArray[np.uint8]  # code of OP_CLASSES
    has_norm: Bools  # it is a norm or has one fused in
    own_part: npt.NDArray[np.int8]  # 1 prefill, 2 decode: what attention in a mixed step says it computes; else 0
    duration: Ints


@dataclass(frozen=True)
class StepKinds:
    """What the places need to know of each step."""

    part: npt.NDArray[np.int8]  # 1 pure prefill, 2 pure decode, else 0
    cut: Bools  # by the capture's edge


def identify_places(kernels: LaunchedKernels, steps: StepKinds, *, kind: int = ORDINARY) -> KernelPlaces:
    """Name the place of every kernel that lies in a step; ``kind`` of the model's attention (``gemm_orders``)."""
    step = kernels.step
    inside = np.flatnonzero(step >= 0)
    order = inside[stable_order(step[inside])]
    part_and_norm = kernels.own_part[order].astype(np.uint8) * 2 + kernels.has_norm[order]
    sort = part_and_norm * np.uint8(len(OP_CODE)) + kernels.op[order]
    repeated = repeated_steps(step[order], sort, steps.part * 2 + steps.cut)
    rows = order[repeated.rows]
    ordered = _Ordered(step[rows], kernels.op[rows], kernels.has_norm[rows], repeated.times)
    own = _parts(ordered, kernels.own_part[rows])
    whole = steps.part[ordered.step]
    gemm_places = _gemm_places(ordered, np.where(whole > 0, whole, own), kind, steps.cut)
    code, layer = _place_all(ordered, gemm_places, own)
    n, source = len(step), repeated.source
    result = KernelPlaces(
        np.zeros(n, np.int16), np.full(n, -1, np.int16), np.ones(n, np.float64), np.zeros(n, np.bool_)
    )
    result.adds_residual[order] = _adds_residual(ordered, code)[source]
    result.code[order] = code[source]
    result.layer[order] = layer[source]
    result.share[order] = _shares(_runs(ordered, code)[source], step[order], kernels.duration, order)
    return result


class _Ordered:
    """The kernels of all steps, step by step, and running counts of the anchors among them."""

    def __init__(self, step: npt.NDArray[np.int32], op: npt.NDArray[np.uint8], has_norm: Bools, times: Ints) -> None:
        self.step = step
        self.op = op
        self.times = times  # how many steps each kernel's step stands for
        self.norm_count = np.cumsum(has_norm, dtype=np.int32)
        self.has_norm = has_norm
        self.attention_count = self._count("attention")
        self.activation_count = self._count("activation")
        self.expert_count = self._count("moe_gemm")
        self.gemm = np.flatnonzero(op == OP_CODE["gemm"])
        # index into self.gemm of the last GEMM at or before each kernel, -1 before the first
        self.last_gemm = np.cumsum(op == OP_CODE["gemm"], dtype=np.int32) - 1

    def _count(self, op_class: str) -> npt.NDArray[np.int32]:
        return np.cumsum(self.op == OP_CODE[op_class], dtype=np.int32)


def _parts(o: _Ordered, own: npt.NDArray[np.int8]) -> npt.NDArray[np.int8]:
    """Parts of attention kernels: where some of a step's kernels compute one part, the others compute the rest."""
    attention = o.op == OP_CODE["attention"]
    rest = own.copy()
    for part, other in ((2, 1), (1, 2)):
        steps = np.unique(o.step[attention & (own == part)])
        both = np.unique(o.step[attention & (own == other)])
        alone = np.isin(o.step, np.setdiff1d(steps, both))
        rest[attention & alone & (own == 0)] = other
    return rest


@dataclass(frozen=True)
class _Spans:
    """Runs of GEMMs between two anchors."""

    start: Ints  # index into the GEMMs
    count: Ints
    left: Ints
    right: Ints
    of: Ints  # span of each GEMM


def _spans(o: _Ordered) -> _Spans:
    g = o.gemm
    step = o.step[g]
    first = np.append(True, step[1:] != step[:-1])
    # the kernel before the step stands in for "the GEMM before" where there is none
    before = np.where(first, np.searchsorted(o.step, step, side="left") - 1, np.append(0, g[:-1]))

    def between(count: npt.NDArray[np.int32]) -> Bools:
        return np.asarray(count[g] > np.where(before >= 0, count[np.maximum(before, 0)], 0))

    anchors = [between(count) for count in (o.attention_count, o.expert_count, o.activation_count)]
    kind = np.select(anchors, [ATTENTION, EXPERTS, ACTIVATION], -1)
    kind = np.where(first & (kind < 0), BEGIN, kind)
    opens = kind >= 0
    start = np.flatnonzero(opens)
    count = np.diff(np.append(start, len(g)))
    last_of_step = np.append(first[start[1:]], True)
    right = np.where(last_of_step, _right_at_end(o, g, start, count), np.append(kind[start[1:]], END))
    return _Spans(start, count, kind[start], right, np.cumsum(opens) - 1)


def _gemm_places(o: _Ordered, part: npt.NDArray[np.int8], kind: int, cut_step: Bools) -> npt.NDArray[np.int16]:
    """Codes of the places of ``o.gemm``."""
    if not len(o.gemm):
        return np.zeros(0, np.int16)
    spans = _spans(o)
    begin, last = o.gemm[spans.start], o.gemm[spans.start + spans.count - 1]
    attention = np.append(np.flatnonzero(o.op == OP_CODE["attention"]), 0)
    earlier = np.searchsorted(attention[:-1], begin) - 1
    later = np.searchsorted(attention[:-1], last)
    decoded = (earlier >= 0) & (part[attention[earlier]] == 2)
    decodes = (later < len(attention) - 1) & (part[attention[later]] == 2)
    activations = np.append(np.flatnonzero(o.op == OP_CODE["activation"]), 0)
    last_activation = activations[np.searchsorted(activations[:-1], begin) - 1]
    norm_before = o.norm_count[begin] > o.norm_count[last_activation]
    features = [spans.left, spans.right, np.minimum(spans.count, MAX_GEMMS)]
    flags = [_layer_has_experts(o, begin), norm_before, decoded, decodes, _splits_gate(spans, o.step[begin])]
    rows, table = gemm_orders(kind)
    template = table[tuple(features) + tuple(flag.astype(int) for flag in flags)]
    kinds = spans.left * 5 + spans.right
    for flag in flags:
        kinds = kinds * 2 + flag
    odd = _odd_counts(kinds, spans.count, o.times[begin])
    # a step cut by the capture's edge may begin or end anywhere in a layer
    edge = cut_step[o.step[begin]] & ((spans.left == BEGIN) | (spans.right == END))
    template = np.where(odd | edge | (spans.count > MAX_GEMMS), 0, template)
    position = np.minimum(np.arange(len(o.gemm)) - spans.start[spans.of], MAX_GEMMS - 1)
    return np.asarray(rows[template[spans.of], position], np.int16)


def _splits_gate(spans: _Spans, step: npt.NDArray[np.int32]) -> Bools:
    """Spans of steps whose activation runs between gate and up: two GEMMs more than attention's own follow it."""
    steps = int(step.max(initial=-1)) + 1
    own = np.zeros(steps, np.int64)  # GEMMs before the first attention: a layer's own
    first = (spans.left == BEGIN) & (spans.right == ATTENTION)
    own[step[first]] = spans.count[first]
    after = (spans.left == ACTIVATION) & (spans.right == ATTENTION) & (own[step] > 0)
    extra = spans.count - own[step]
    two, one = (np.bincount(step[after & (extra == each)], minlength=steps) for each in (2, 1))
    return np.asarray((two > one)[step])


def _odd_counts(kind: Ints, count: Ints, times: Ints) -> Bools:
    """Spans with a rare number of GEMMs among those of their kind: a kernel was lost, so the order says nothing."""
    pair = kind * (MAX_GEMMS + 2) + np.minimum(count, MAX_GEMMS + 1)
    often = np.bincount(pair, times, (int(kind.max(initial=0)) + 1) * (MAX_GEMMS + 2)).reshape(-1, MAX_GEMMS + 2)
    all_of_kind = np.maximum(often.sum(axis=1), 1)
    share = often[kind, np.minimum(count, MAX_GEMMS + 1)] / all_of_kind[kind]
    usual = often.max(axis=1) / all_of_kind
    return np.asarray((share < MAX_RARE_SHARE) & (usual[kind] > MIN_USUAL_SHARE))


def _right_at_end(o: _Ordered, g: Ints, start: Ints, count: Ints) -> Ints:
    """What follows a step's last GEMM: an anchor after it (an engine without lm_head in the step) or the end."""
    last = g[start + count - 1]
    stop = np.searchsorted(o.step, o.step[last], side="right") - 1
    attention = o.attention_count[stop] > o.attention_count[last]
    experts = o.expert_count[stop] > o.expert_count[last]
    activation = o.activation_count[stop] > o.activation_count[last]
    return np.select([attention, experts, activation], [ATTENTION, EXPERTS, ACTIVATION], END)


def _layer_has_experts(o: _Ordered, kernel: Ints) -> Bools:
    """Whether expert GEMMs run between the attention kernels on either side of ``kernel``."""
    if not o.expert_count[-1]:
        return np.zeros(len(kernel), np.bool_)
    bounds = np.flatnonzero(o.op == OP_CODE["attention"])
    edges = np.unique(np.concatenate([[0], bounds, np.flatnonzero(np.diff(o.step)) + 1, [len(o.step)]]))
    at = np.searchsorted(edges, kernel, side="right") - 1
    low = edges[at]
    high = edges[np.minimum(at + 1, len(edges) - 1)] - 1
    earlier = np.where(low > 0, o.expert_count[np.maximum(low - 1, 0)], 0)
    return np.asarray(o.expert_count[np.maximum(high, 0)] > earlier)


def _place_all(
    o: _Ordered, gemm_places: npt.NDArray[np.int16], own_part: npt.NDArray[np.int8]
) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.int16]]:
    """Places and layers of all kernels from those of the GEMMs around them."""
    n = len(o.step)
    code = np.zeros(n, np.int16)
    code[o.gemm] = gemm_places
    padded = np.append(gemm_places, 0)
    last = padded[o.last_gemm]  # -1 picks the appended 0
    gemm_step = np.append(o.step[o.gemm], -1)
    last = np.where(gemm_step[o.last_gemm] == o.step, last, 0)
    following = np.minimum(o.last_gemm + 1, len(gemm_places))
    after = np.where(gemm_step[following] == o.step, padded[following], 0)
    attention_at_gemm = np.append(o.attention_count[o.gemm], 0)
    before_attention = is_place(last, BEFORE_ATTENTION) & (o.attention_count == attention_at_gemm[o.last_gemm])
    layer = _layers(o, gemm_places, last, after)

    def put(op_class: str, place: str) -> Bools:
        chosen = np.asarray(o.op == OP_CODE[op_class])
        code[chosen] = PLACE_CODE[place]
        return chosen

    attention = put("attention", "attention") | (o.op == OP_CODE["attention_combine"])
    code[attention] = PLACE_CODE["attention"]
    code[attention & (own_part == 1)] = PLACE_CODE["attention_prefill"]
    code[attention & (own_part == 2)] = PLACE_CODE["attention_decode"]
    norm = put("norm", "norm")
    code[norm & before_attention] = PLACE_CODE["qk_norm"]
    code[norm & (after == PLACE_CODE["lm_head"])] = PLACE_CODE["final_norm"]
    for op_class in ("rope", "kv_write", "embedding"):
        put(op_class, op_class)
    gathers_rows = (o.op == OP_CODE["embedding"]) & (last > 0)  # rows that need logits, not the table's
    code[gathers_rows] = PLACE_CODE["row_gather"]
    quantize = o.op == OP_CODE["quantize"]
    for place, inputs in _QUANTIZED.items():
        code[quantize & is_place(after, inputs)] = PLACE_CODE[place]
    _place_experts(o, code)
    activation = put("activation", "activation")
    last_experts = np.maximum.accumulate(np.where(o.op == OP_CODE["moe_gemm"], np.arange(n), -1))
    last_any_gemm = np.append(o.gemm, -1)[o.last_gemm]
    code[activation & (last_experts > last_any_gemm)] = PLACE_CODE["expert_activation"]
    shared = last == PLACE_CODE["shared_gate_up"]
    code[activation & shared & (last_experts <= last_any_gemm)] = PLACE_CODE["shared_activation"]
    # between gate and up the activation works on the gate alone, and a kernel of its own multiplies the two
    code[activation & (last == PLACE_CODE["gate"])] = PLACE_CODE["activation_alone"]
    multiplies = (o.op == OP_CODE["elementwise"]) & (last == PLACE_CODE["up"]) & (after == PLACE_CODE["down"])
    code[multiplies & _after_activation_alone(o, code)] = PLACE_CODE["gate_product"]
    code[(o.op == OP_CODE["sampling"]) & (last == PLACE_CODE["lm_head"])] = PLACE_CODE["sampling"]
    reduces = o.op == OP_CODE["gemm_reduce"]
    code[reduces] = last[reduces]
    return code, layer


def _after_activation_alone(o: _Ordered, code: npt.NDArray[np.int16]) -> Bools:
    """Kernels whose last activation worked on the gate alone."""
    activations = np.append(np.flatnonzero(o.op == OP_CODE["activation"]), -1)
    last = activations[o.activation_count - 1]  # -1 picks the appended one
    return np.asarray((last >= 0) & (code[last] == PLACE_CODE["activation_alone"]))


# Where activations are quantised, by the GEMM that reads them: its inputs are as many elements a token.
_QUANTIZED = {
    "quantize": (
        *("qkv", "q", "k", "v", "kv", "gate_up", "gate", "up", "q_a", "kv_a", "qkv_a"),
        *("router", "shared_gate", "shared_gate_up"),
    ),
    "quantize_head": ("lm_head",),
    "quantize_o": ("o",),
    "quantize_down": ("down",),
}


def _adds_residual(o: _Ordered, code: npt.NDArray[np.int16]) -> Bools:
    """Norms that move the residual too: after a step's first norm, with no elementwise kernel since the last GEMM.

    The residual has to be added somewhere; where no kernel of its own does it, the norm does.
    """
    norm = is_place(code, ("norm", "final_norm"))
    adds = np.cumsum(o.op == OP_CODE["elementwise"], dtype=np.int32)
    work = (o.op == OP_CODE["gemm"]) | (o.op == OP_CODE["moe_gemm"])
    last = np.maximum.accumulate(np.where(work, np.arange(len(work)), -1))
    inside = (last >= 0) & (o.step[np.maximum(last, 0)] == o.step)
    return np.asarray(norm & inside & (adds == adds[np.maximum(last, 0)]))


def is_place(code: npt.NDArray[np.int16], places: Iterable[str]) -> Bools:
    """Which codes are one of ``places``: a look-up, a good deal faster than ``isin`` on a million rows."""
    table = np.zeros(len(PLACES), np.bool_)
    table[[PLACE_CODE[place] for place in places]] = True
    return np.asarray(table[code])


def _layers(
    o: _Ordered, gemm_places: npt.NDArray[np.int16], last: npt.NDArray[np.int16], after: npt.NDArray[np.int16]
) -> npt.NDArray[np.int16]:
    """Layer of each kernel: how many layer-opening GEMMs its step has had, less one."""
    opens = np.zeros(len(o.step), np.int32)
    starts = is_place(gemm_places, LAYER_STARTS)
    opens[o.gemm[starts]] = 1
    total = np.cumsum(opens)
    starts = np.append(0, np.flatnonzero(np.diff(o.step)) + 1)
    begin = np.repeat(starts, np.diff(np.append(starts, len(o.step))))
    layer = total - np.where(begin > 0, total[np.maximum(begin - 1, 0)], 0) - 1
    # what prepares a layer's first GEMM belongs to that layer already
    prepares = ((o.op == OP_CODE["norm"]) | (o.op == OP_CODE["quantize"])) & is_place(after, LAYER_STARTS)
    layer = layer + prepares
    outside = last == PLACE_CODE["lm_head"]
    outside |= (o.op == OP_CODE["norm"]) & (after == PLACE_CODE["lm_head"])
    outside |= (o.op == OP_CODE["sampling"]) | (o.op == OP_CODE["embedding"])
    return np.where(outside, -1, layer).astype(np.int16)


def _place_experts(o: _Ordered, code: npt.NDArray[np.int16]) -> None:
    """Expert GEMMs of one layer: gate_up before its activation, down after it; a lone one does both."""
    experts = np.flatnonzero(o.op == OP_CODE["moe_gemm"])
    if not len(experts):
        return
    group = np.stack([o.step[experts], o.attention_count[experts]])
    opens = np.append(True, np.any(group[:, 1:] != group[:, :-1], axis=0))
    start = np.flatnonzero(opens)
    count = np.diff(np.append(start, len(experts)))
    of = np.cumsum(opens) - 1
    position = np.arange(len(experts)) - start[of]
    activations = o.activation_count[experts]
    after_activation = activations > activations[start][of]
    has_activation = (activations[start + count - 1] > activations[start])[of]
    down = np.where(count[of] == 2, position == 1, after_activation)
    named = (count[of] == 2) | has_activation
    places = np.where(down, PLACE_CODE["expert_down"], PLACE_CODE["expert_gate_up"])
    code[experts] = np.where(named, places, PLACE_CODE["experts"])


ALONE, HELPER = -1, -2


def _runs(o: _Ordered, code: npt.NDArray[np.int16]) -> npt.NDArray[np.int32]:
    """Kernels that do the work of one place together, since the same GEMM: the number of their run, else ALONE.

    HELPER marks reductions, which add time to their GEMM or attention and no work.
    """
    run = np.full(len(code), ALONE, np.int32)
    helper = (o.op == OP_CODE["gemm_reduce"]) | (o.op == OP_CODE["attention_combine"])
    run[helper] = HELPER
    used = 0
    for place in np.flatnonzero(np.bincount(code, minlength=len(PLACES))):
        if place == 0:
            continue
        members = np.flatnonzero((code == place) & ~helper)
        if len(members) < 2:
            continue
        opens = (np.diff(o.step[members]) != 0) | (np.diff(o.last_gemm[members]) != 0)
        if PLACES[place] in ("norm", "sampling") or opens.all():
            continue  # the norms of a layer each do their own work, as do the passes over the logits
        run[members] = used + np.cumsum(np.append(True, opens)) - 1
        used = int(run[members[-1]]) + 1
    return run


def _shares(
    run: npt.NDArray[np.int32], step: npt.NDArray[np.int32], duration: Ints, order: Ints
) -> npt.NDArray[np.float64]:
    """Share of each kernel in the work of its place, with the others of its run and step, by its part of their time."""
    share = np.ones(len(run), np.float64)
    share[run == HELPER] = 0.0
    rows = np.flatnonzero(run >= 0)
    if len(rows):
        key = step[rows].astype(np.int64) * (int(run.max()) + 1) + run[rows]
        of = np.unique(key, return_inverse=True)[1].reshape(-1)
        time = np.maximum(duration[order[rows]], 1).astype(np.float64)
        share[rows] = time / np.bincount(of, time)[of]
    return share
