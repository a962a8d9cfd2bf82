"""The orders that the GEMMs of a decoder layer can have, between one anchor and the next.

A GEMM's name says how it computes, never what. But the order of a layer is fixed:

    norm  qkv  [q/k norm] rope kv-write ATTENTION  o  norm  gate_up  ACTIVATION  down  norm  qkv ...

so the GEMMs between two anchors (attention, activation, expert GEMMs, begin and end of the step) are told apart by
counting them. ``gemm_orders`` writes every order a layer can have; a span whose count fits none stays unnamed.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ...records.tables import OP_CLASSES
from .table_passes import PASS_PLACES

PLACES: tuple[str, ...] = (
    "",
    *("qkv", "q", "k", "v", "kv", "o", "gate_up", "gate", "up", "down", "lm_head"),
    *("q_a", "kv_a", "qkv_a", "q_b", "kv_b", "absorb_q", "absorb_o"),
    *("router", "experts", "expert_gate_up", "expert_down", "shared_gate", "shared_gate_up", "shared_down"),
    *("attention", "attention_prefill", "attention_decode"),
    *("norm", "qk_norm", "final_norm", "rope", "kv_write", "activation", "expert_activation", "shared_activation"),
    *("embedding", "row_gather", "quantize", "quantize_o", "quantize_down", "quantize_head", "expert_sum"),
    *("activation_alone", "gate_product"),
    *PASS_PLACES,
)
PLACE_CODE: dict[str, int] = {place: code for code, place in enumerate(PLACES)}
OP_CODE: dict[str, int] = {op: code for code, op in enumerate(OP_CLASSES.categories)}

BEFORE_ATTENTION = ("qkv", "q", "k", "v", "kv", "q_a", "kv_a", "qkv_a", "q_b", "kv_b", "absorb_q")
LAYER_STARTS = ("qkv", "q", "q_a", "qkv_a")

BEGIN, ATTENTION, ACTIVATION, EXPERTS, END = range(5)
MAX_GEMMS = 10  # between two anchors; beyond it nothing is named


_Orders: TypeAlias = "list[list[str]]"


def _join(*parts: _Orders) -> _Orders:
    return [[place for part in choice for place in part] for choice in product(*parts)]


# What a model's attention is made of, as far as the order of its GEMMs goes.
ORDINARY, LATENT, LATENT_DIRECT = range(3)  # LATENT_DIRECT: MLA without a low-rank query projection


@lru_cache(maxsize=3)
def gemm_orders(kind: int) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.int64]]:
    """Rows of places, and the row for (left, right, GEMMs, expert layer, norm before, decode before, decode after, split).

    ``decode before`` and ``after``: the attention kernel on that side computes decode, which matters to MLA alone.
    ``split``: the activation runs between gate and up, as in Hugging Face's eager code. Row 0 = unnamed. The first order of a given length wins, so orders are written commonest first.
    """
    rows: list[list[int]] = [[0] * MAX_GEMMS]
    table = np.zeros((5, 5, MAX_GEMMS + 1, 2, 2, 2, 2, 2), np.int64)
    for flags in product((0, 1), repeat=5):
        experts, norm_before, decoded, decodes, split = (bool(flag) for flag in flags)
        before, out, inside = _attention_orders(kind, decoded=decoded, decodes=decodes)
        found = _orders(before, out, experts=experts, norm_before=norm_before, split=split)
        found[ATTENTION, ATTENTION] = inside + found[ATTENTION, ATTENTION]
        for (left, right), orders in found.items():
            for places in orders:
                at = (left, right, len(places), *flags)
                if 0 < len(places) <= MAX_GEMMS and not table[at]:
                    table[at] = len(rows)
                    rows.append([PLACE_CODE[place] for place in places] + [0] * (MAX_GEMMS - len(places)))
    return np.array(rows, np.int16), table


def _attention_orders(kind: int, *, decoded: bool, decodes: bool) -> tuple[_Orders, _Orders, _Orders]:
    """GEMMs before attention, after it, and between the two attention kernels of one layer of a mixed step."""
    if kind == ORDINARY:
        return [["qkv"], ["q", "k", "v"], ["q", "kv"]], [["o"]], []
    cached = ["absorb_q"] if decodes else ["kv_b"]
    queries: _Orders = [["qkv_a", "q_b"], ["q_a", "kv_a", "q_b"]]
    if kind == LATENT_DIRECT:
        queries = [["q", "kv_a"]]
    before = [*_join(queries, [cached]), *queries]
    out: _Orders = [["absorb_o", "o"], ["o"]] if decoded else [["o"]]
    inside: _Orders = []
    if decoded and not decodes:
        inside = [["absorb_o", "kv_b"], ["kv_b"]]
    elif decodes and not decoded:
        inside = [["absorb_q"]]
    return before, out, inside


def _orders(
    before: _Orders, out: _Orders, *, experts: bool, norm_before: bool, split: bool
) -> dict[tuple[int, int], _Orders]:
    """What can stand between two anchors. ``norm_before``: a norm lies between the left activation and the GEMMs."""
    prefix = "shared_" if experts else ""
    mlp_in: _Orders = [[prefix + "gate_up"]] if experts else [["gate_up"], ["gate", "up"]]
    mlp_out: _Orders = [[prefix + "down"]]
    if split and not experts:
        mlp_in, mlp_out = [["gate"]], [["up", "down"]]
    router: _Orders = [["router"], []]
    head: _Orders = [["lm_head"], []]
    after_mlp = _join(mlp_out, before)
    mlp_end = _join(mlp_out, head)
    if norm_before:  # the down projection was before the norm, so it is not among these GEMMs
        after_mlp = before + after_mlp
        mlp_end = [["lm_head"], *_join(mlp_out, [["lm_head"]])]
    whole = _join(out, mlp_in, mlp_out)
    between = _join(out, router, mlp_in) + _join(out, mlp_in, router) if experts else _join(out, mlp_in)
    return {
        (BEGIN, ATTENTION): before,
        (BEGIN, END): [["lm_head"]],
        (ATTENTION, ACTIVATION): between if split else [*between, ["gate_up"]],
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
