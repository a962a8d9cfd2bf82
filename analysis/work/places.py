"""Which GEMM of a layer is which: by its place between attention, activation, norm and expert kernels.

A GEMM's name says how it computes, never what. But the order of a decoder layer is fixed:

    norm  qkv  [q/k norm] rope kv-write ATTENTION  o  norm  gate_up  ACTIVATION  down  norm  qkv ...

so the GEMMs between two anchors (attention, activation, expert GEMMs, begin and end of the step) are told apart by
counting them. ``_templates`` writes every order a layer can have; a span whose count fits none stays unnamed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ..result import OP_CLASSES

Ints: TypeAlias = "npt.NDArray[np.int64]"
Bools: TypeAlias = "npt.NDArray[np.bool_]"

PLACES: tuple[str, ...] = (
    "",
    *("qkv", "q", "k", "v", "kv", "o", "gate_up", "gate", "up", "down", "lm_head"),
    *("q_a", "kv_a", "qkv_a", "q_b", "kv_b", "absorb_q", "absorb_o"),
    *("router", "experts", "expert_gate_up", "expert_down", "shared_gate", "shared_gate_up", "shared_down"),
    *("attention", "attention_prefill", "attention_decode"),
    *("norm", "qk_norm", "final_norm", "rope", "kv_write", "activation", "expert_activation", "shared_activation"),
    *("embedding", "quantize"),
)
PLACE_CODE: dict[str, int] = {place: code for code, place in enumerate(PLACES)}
OP_CODE: dict[str, int] = {op: code for code, op in enumerate(OP_CLASSES.categories)}

_BEFORE_ATTENTION = ("qkv", "q", "k", "v", "kv", "q_a", "kv_a", "qkv_a", "q_b", "kv_b", "absorb_q")
_LAYER_STARTS = ("qkv", "q", "q_a", "qkv_a")
_LAYER_ENDS = ("down", "shared_down")

BEGIN, ATTENTION, ACTIVATION, EXPERTS, END = range(5)
_LONGEST = 10  # GEMMs between two anchors; beyond it nothing is named


@dataclass(frozen=True)
class Places:
    """Per kernel, in the order of ``kernels``: code of its place, its layer (-1 = none) and its part of the place.

    Several kernels that do one place's work together (split attention, two cache writes) share it by their time.
    """

    code: npt.NDArray[np.int16]
    layer: npt.NDArray[np.int16]
    share: npt.NDArray[np.float64]


def identify_places(
    step: npt.NDArray[np.int32],
    op: npt.NDArray[np.uint8],
    has_norm: Bools,
    own_part: npt.NDArray[np.int8],
    duration: Ints,
    decode_step: Bools,
    *,
    latent: bool = False,
) -> Places:
    """Name the place of every kernel that lies in a step.

    ``step`` row of steps per kernel (-1 = none), kernels sorted by start; ``op`` codes of OP_CLASSES; ``has_norm``
    the kernel is a norm or has one fused in; ``own_part`` 1 prefill, 2 decode where an attention kernel in a mixed
    step says which part it computes, else 0; ``decode_step`` per step; ``latent`` the model is MLA.
    """
    inside = np.flatnonzero(step >= 0)
    order = inside[np.argsort(step[inside], kind="stable")]
    ordered = _Ordered(step[order], op[order], has_norm[order])
    gemm_places = _gemm_places(ordered, decode_step, latent)
    code, layer = _place_all(ordered, gemm_places, own_part[order])
    share = _shares(ordered, code, layer, duration[order])
    result = Places(np.zeros(len(step), np.int16), np.full(len(step), -1, np.int16), np.ones(len(step), np.float64))
    result.code[order] = code
    result.layer[order] = layer
    result.share[order] = share
    return result


class _Ordered:
    """The kernels of all steps, step by step, and running counts of the anchors among them."""

    def __init__(self, step: npt.NDArray[np.int32], op: npt.NDArray[np.uint8], has_norm: Bools) -> None:
        self.step = step
        self.op = op
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


def _gemm_places(o: _Ordered, decode_step: Bools, latent: bool) -> npt.NDArray[np.int16]:
    """Codes of the places of ``o.gemm``."""
    g = o.gemm
    if not len(g):
        return np.zeros(0, np.int16)
    step = o.step[g]
    first = np.append(True, step[1:] != step[:-1])
    # counts at the step's begin stand in for "the GEMM before" where there is none
    begin = np.searchsorted(o.step, step, side="left")
    before = np.where(first, begin - 1, np.append(0, g[:-1]))
    before = np.where(first, before, np.maximum(before, 0))

    def between(count: npt.NDArray[np.int32]) -> Bools:
        earlier = np.where(before >= 0, count[np.maximum(before, 0)], 0)
        return np.asarray(count[g] - earlier > 0)

    attention, activation, experts = (
        between(count) for count in (o.attention_count, o.activation_count, o.expert_count)
    )
    kind = np.select([attention, experts, activation], [ATTENTION, EXPERTS, ACTIVATION], -1)
    kind = np.where(first & (kind < 0), BEGIN, kind)
    opens = kind >= 0
    span = np.cumsum(opens) - 1
    start = np.flatnonzero(opens)
    count = np.diff(np.append(start, len(g)))
    right = np.append(kind[start[1:]], END)
    last_of_step = np.append(first[start[1:]], True)
    right = np.where(last_of_step, _right_at_end(o, g, start, count), right)
    layer_has_experts = _layer_has_experts(o, g[start])
    norm_before = between(o.norm_count)[start]
    rows, table = _templates(latent)
    size = np.minimum(count, _LONGEST)
    decode = decode_step[step[start]]
    template = table[
        kind[start], right, size, layer_has_experts.astype(int), norm_before.astype(int), decode.astype(int)
    ]
    template = np.where(count > _LONGEST, 0, template)
    position = np.arange(len(g)) - start[span]
    return np.asarray(rows[template[span], np.minimum(position, _LONGEST - 1)], np.int16)


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
    before_attention = np.isin(last, _codes(_BEFORE_ATTENTION)) & (o.attention_count == attention_at_gemm[o.last_gemm])
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
    for op_class in ("rope", "kv_write", "embedding", "quantize"):
        put(op_class, op_class)
    _place_experts(o, code)
    activation = put("activation", "activation")
    last_experts = np.maximum.accumulate(np.where(o.op == OP_CODE["moe_gemm"], np.arange(n), -1))
    last_any_gemm = np.append(o.gemm, -1)[o.last_gemm]
    code[activation & (last_experts > last_any_gemm)] = PLACE_CODE["expert_activation"]
    shared = last == PLACE_CODE["shared_gate_up"]
    code[activation & shared & (last_experts <= last_any_gemm)] = PLACE_CODE["shared_activation"]
    reduces = o.op == OP_CODE["gemm_reduce"]
    code[reduces] = last[reduces]
    return code, layer


def _codes(places: Iterable[str]) -> npt.NDArray[np.int16]:
    return np.array([PLACE_CODE[place] for place in places], np.int16)


def _layers(
    o: _Ordered, gemm_places: npt.NDArray[np.int16], last: npt.NDArray[np.int16], after: npt.NDArray[np.int16]
) -> npt.NDArray[np.int16]:
    """Layer of each kernel: how many layer-opening GEMMs its step has had, less one."""
    opens = np.zeros(len(o.step), np.int32)
    starts = np.isin(gemm_places, _codes(_LAYER_STARTS))
    opens[o.gemm[starts]] = 1
    total = np.cumsum(opens)
    begin = np.searchsorted(o.step, o.step, side="left")
    layer = total - np.where(begin > 0, total[np.maximum(begin - 1, 0)], 0) - 1
    # what prepares a layer's first GEMM belongs to that layer already
    prepares = np.isin(o.op, [OP_CODE["norm"], OP_CODE["quantize"]]) & np.isin(after, _codes(_LAYER_STARTS))
    layer = layer + prepares
    outside = last == PLACE_CODE["lm_head"]
    outside |= (o.op == OP_CODE["norm"]) & (after == PLACE_CODE["lm_head"])
    outside |= np.isin(o.op, [OP_CODE["sampling"], OP_CODE["embedding"]])
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


def _shares(
    o: _Ordered, code: npt.NDArray[np.int16], layer: npt.NDArray[np.int16], duration: Ints
) -> npt.NDArray[np.float64]:
    """Share of each kernel in the work of its (step, layer, place), by its part of their time."""
    share = np.ones(len(code), np.float64)
    # a reduction adds time to its GEMM or attention, and no work
    helper = np.isin(o.op, [OP_CODE["gemm_reduce"], OP_CODE["attention_combine"]])
    share[helper] = 0.0
    for place in np.unique(code):
        if place == 0:
            continue
        members = np.flatnonzero((code == place) & ~helper)
        if len(members) < 2:
            continue
        opens = (np.diff(o.step[members]) != 0) | (np.diff(layer[members]) != 0)
        if PLACES[place] == "norm" or opens.all():
            continue  # the norms of a layer each do their own work
        start = np.flatnonzero(np.append(True, opens))
        of = np.cumsum(np.append(True, opens)) - 1
        time = np.maximum(duration[members], 1).astype(np.float64)
        share[members] = time / np.add.reduceat(time, start)[of]
    return share


_Orders: TypeAlias = "list[list[str]]"


def _join(*parts: _Orders) -> _Orders:
    return [[place for part in choice for place in part] for choice in product(*parts)]


@lru_cache(maxsize=2)
def _templates(latent: bool) -> tuple[npt.NDArray[np.int16], Ints]:
    """Rows of places, and the row for (left, right, GEMMs, expert layer, norm before, decode step); row 0 = unnamed.

    The first order of a given length wins, so orders are written commonest first.
    """
    rows: list[list[int]] = [[0] * _LONGEST]
    table = np.zeros((5, 5, _LONGEST + 1, 2, 2, 2), np.int64)
    for experts, norm_before, decode in product((0, 1), repeat=3):
        for (left, right), orders in _orders(latent, bool(experts), bool(norm_before), bool(decode)).items():
            for places in orders:
                at = (left, right, len(places), experts, norm_before, decode)
                if 0 < len(places) <= _LONGEST and not table[at]:
                    table[at] = len(rows)
                    rows.append([PLACE_CODE[place] for place in places] + [0] * (_LONGEST - len(places)))
    return np.array(rows, np.int16), table


def _orders(latent: bool, experts: bool, norm_before: bool, decode: bool) -> dict[tuple[int, int], _Orders]:
    before: _Orders = [["qkv"], ["q", "k", "v"], ["q", "kv"]]
    out: _Orders = [["o"]]
    if latent:
        cached = "absorb_q" if decode else "kv_b"
        before = [
            ["qkv_a", "q_b", cached],
            ["q_a", "kv_a", "q_b", cached],
            ["qkv_a", "q_b"],
        ]
        out = [["absorb_o", "o"], ["o"]] if decode else [["o"]]
    prefix = "shared_" if experts else ""
    mlp_in: _Orders = [[prefix + "gate_up"]] if experts else [["gate_up"], ["gate", "up"]]
    mlp_out: _Orders = [[prefix + "down"]]
    router: _Orders = [["router"], []]
    head: _Orders = [["lm_head"], []]
    after_mlp = _join(mlp_out, before)
    mlp_end = _join(mlp_out, head)
    if norm_before:  # the norm stands between the activation and this GEMM: its down projection is elsewhere
        after_mlp = before + after_mlp
        mlp_end = [["lm_head"], *_join(mlp_out, [["lm_head"]])]
    whole = _join(out, mlp_in, mlp_out)
    between = _join(out, router, mlp_in) + _join(out, mlp_in, router) if experts else _join(out, mlp_in)
    return {
        (BEGIN, ATTENTION): before,
        (BEGIN, END): [["lm_head"]],
        (ATTENTION, ACTIVATION): between + ([] if latent else [["gate_up"]]),
        (ACTIVATION, ATTENTION): after_mlp,
        (ACTIVATION, END): mlp_end,
        (ATTENTION, ATTENTION): _join(whole, before),
        (ATTENTION, END): _join(whole, head),
        (ATTENTION, EXPERTS): _join(out, router) + _join(out, [["router", "shared_gate"]]),
        (ACTIVATION, EXPERTS): _join(mlp_out, router),
        (EXPERTS, ACTIVATION): mlp_in,
        (EXPERTS, ATTENTION): before,
        (EXPERTS, END): [["lm_head"]],
    }
