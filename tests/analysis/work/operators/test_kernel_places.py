"""Places of kernels in a layer, from sequences written as one letter a kernel.

n norm, g gemm, r rope, k kv write, A attention, c combine, S activation, M expert gemm, t routing, q quantise,
e embedding, s split-K reduction, x sampling, + elementwise, l adapter (LoRA), v convolution; a space separates steps.
"""

from __future__ import annotations

import numpy as np
import pytest

from trace_analyze.analysis.work.operators.gemm_orders import (
    LATENT,
    LATENT_DIRECT,
    OP_CODE,
    ORDINARY,
    PLACES,
    gemm_orders,
)
from trace_analyze.analysis.work.operators.kernel_places import LaunchedKernels, StepKinds, identify_places

LETTERS = {
    "n": "norm",
    "g": "gemm",
    "r": "rope",
    "k": "kv_write",
    "A": "attention",
    "P": "attention",  # the prefill part of a mixed step
    "D": "attention",  # the decode part
    "c": "attention_combine",
    "S": "activation",
    "M": "moe_gemm",
    "t": "moe_routing",
    "q": "quantize",
    "e": "embedding",
    "s": "gemm_reduce",
    "x": "sampling",
    "+": "elementwise",
    "l": "lora",
    "v": "convolution",
}

NO_STEPS = StepKinds(np.zeros(0, np.int8), np.zeros(0, bool))


def places(sequence, kind=ORDINARY, phase="decode", durations=None, cut=()):
    steps = [(row, letter) for row, part in enumerate(sequence.split()) for letter in part]
    step = np.array([row for row, _ in steps], np.int32)
    op = np.array([OP_CODE[LETTERS[letter]] for _, letter in steps], np.uint8)
    part = np.array([{"P": 1, "D": 2}.get(letter, 0) for _, letter in steps], np.int8)
    code = {"prefill": 1, "decode": 2}.get(phase, 0)
    durations = np.array(durations or [10] * len(steps), np.int64)
    kernels = LaunchedKernels(step, op, op == OP_CODE["norm"], part, durations)
    kinds = StepKinds(np.full(step.max() + 1, code, np.int8), np.isin(np.arange(step.max() + 1), cut))
    return identify_places(kernels, kinds, kind=kind)


def gemms(sequence, **options):
    """Places of the GEMMs (g and M) of a sequence, in order."""
    found = places(sequence, **options)
    letters = sequence.replace(" ", "")
    return [PLACES[code] for code, letter in zip(found.code, letters, strict=True) if letter in "gM"]


LAYER = "ngrkAgngSg"


@pytest.mark.parametrize(
    ("what", "sequence", "options", "expected"),
    [
        ("dense, fused", f"e{LAYER}{LAYER}ngx", {}, ["qkv", "o", "gate_up", "down"] * 2 + ["lm_head"]),
        ("no norms seen", "egrkAggSggrkAggSgg", {}, ["qkv", "o", "gate_up", "down"] * 2 + ["lm_head"]),
        ("separate q, k, v and gate, up", "engggrkAgnggSgngx", {}, ["q", "k", "v", "o", "gate", "up", "down", "lm_head"]),
        ("activation fused into the GEMM", "engrkAgnggngrkAgnggngx", {}, ["qkv", "o", "gate_up", "down"] * 2 + ["lm_head"]),
        ("activation not recognised, all separate", "engggAgnggg" + "ngggA", {}, ["q", "k", "v", "o", "gate", "up", "down", "q", "k", "v"]),
        ("head outside the step", f"e{LAYER}n", {}, ["qkv", "o", "gate_up", "down"]),
        ("q/k norm", "engnrkAgngSgngx", {}, ["qkv", "o", "gate_up", "down", "lm_head"]),
        ("four norms (Gemma)", "engrkAgnngSgnngrkAgnngSgnngx", {}, ["qkv", "o", "gate_up", "down"] * 2 + ["lm_head"]),
        ("parallel attention and MLP", "engrkAggSgngrkAggSgngx", {}, ["qkv", "o", "gate_up", "down"] * 2 + ["lm_head"]),
        ("quantised activations", "enqgrkAqgnqgSqgnqgx", {}, ["qkv", "o", "gate_up", "down", "lm_head"]),
        ("experts, two kernels", "engrkAgngttMSMt" + "ngrkAgngttMSMtngx", {}, ["qkv", "o", "router", "expert_gate_up", "expert_down"] * 2 + ["lm_head"]),
        ("experts in one kernel", "engrkAgngtMtngrkAgngtMtngx", {}, ["qkv", "o", "router", "experts"] * 2 + ["lm_head"]),
        ("shared expert after the routed", "engrkAgngtMSMtgSgngx", {}, ["qkv", "o", "router", "expert_gate_up", "expert_down", "shared_gate_up", "shared_down", "lm_head"]),
        ("shared expert before the router", "engrkAgngSggtMSMtngx", {}, ["qkv", "o", "shared_gate_up", "shared_down", "router", "expert_gate_up", "expert_down", "lm_head"]),
        ("first layer dense", f"e{LAYER}ngrkAgngtMSMtngx", {}, ["qkv", "o", "gate_up", "down", "qkv", "o", "router", "expert_gate_up", "expert_down", "lm_head"]),
        ("MLA decode", "enggnngrkAcggngSgngx".replace("nngrk", "ngrkg"), {"kind": LATENT}, ["q_a", "kv_a", "q_b", "absorb_q", "absorb_o", "o", "gate_up", "down", "lm_head"]),
        ("MLA decode, fused", "engngrkgAcggngSgngx", {"kind": LATENT}, ["qkv_a", "q_b", "absorb_q", "absorb_o", "o", "gate_up", "down", "lm_head"]),
        ("MLA prefill", "engngrkgAgngSgngx", {"kind": LATENT, "phase": "prefill"}, ["qkv_a", "q_b", "kv_b", "o", "gate_up", "down", "lm_head"]),
        ("MLA mixed, decode first", "engngrkgDcggPgngSgngx", {"kind": LATENT, "phase": "mixed"}, ["qkv_a", "q_b", "absorb_q", "absorb_o", "kv_b", "o", "gate_up", "down", "lm_head"]),
        ("MLA mixed, prefill first", "engngrkgPgDcggngSgngx", {"kind": LATENT, "phase": "mixed"}, ["qkv_a", "q_b", "kv_b", "absorb_q", "absorb_o", "o", "gate_up", "down", "lm_head"]),
        ("MLA without a query rank", "enggnrkgAcggngSgngx", {"kind": LATENT_DIRECT}, ["q", "kv_a", "absorb_q", "absorb_o", "o", "gate_up", "down", "lm_head"]),
        ("activation between gate and up", "e++gggA+g+gSg+g++gggA+g+gSg+g++gx", {}, ["q", "k", "v", "o", "gate", "up", "down"] * 2 + ["lm_head"]),
        ("adapters beside every GEMM", "engllrkAgllngllSgllngx", {}, ["qkv", "o", "gate_up", "down", "lm_head"]),
        ("adapters beside expert GEMMs", "engllrkAgllngttMlSMltngx", {}, ["qkv", "o", "router", "expert_gate_up", "expert_down", "lm_head"]),
        ("patches of an image first", f"vve{LAYER}ngx", {}, ["qkv", "o", "gate_up", "down", "lm_head"]),
        ("a step cut in its first layer", f"gSgngrkAgngSgngx {LAYER}ngx", {"cut": (0,)}, ["", "down", "qkv", "o", "gate_up", "", "", "qkv", "o", "gate_up", "down", "lm_head"]),
        ("too many GEMMs", "en" + "g" * 12 + "A", {}, [""] * 12),
        ("no anchors", "ggg", {}, ["", "", ""]),
    ],
)  # fmt: skip
def test_gemms(what, sequence, options, expected):
    assert gemms(sequence, **options) == expected, what


def test_layers_count_from_zero_and_the_head_has_none():
    found = places(f"e{LAYER}{LAYER}ngx")
    assert found.layer.tolist() == [-1, *[0] * 10, *[1] * 10, -1, -1, -1]


def test_norms_are_told_apart():
    sequence = "engnrkAgngSgngx"
    found = places(sequence)
    norms = [PLACES[code] for code, letter in zip(found.code, sequence, strict=True) if letter == "n"]
    assert norms == ["norm", "qk_norm", "norm", "final_norm"]


def test_the_residual_is_added_by_the_norm_unless_a_kernel_does():
    fused = places("engrkAgngSgngx")
    apart = places("engrkAg+ngSg+ngx")
    assert fused.adds_residual.sum() == 2  # after o and the final one; the first norm has nothing to add
    assert apart.adds_residual.sum() == 0


def test_a_reduction_belongs_to_its_gemm_and_has_no_work_of_its_own():
    sequence = "engrkAgsngSgsngx"
    found = places(sequence)
    reduced = [index for index, letter in enumerate(sequence) if letter == "s"]
    assert [PLACES[found.code[index]] for index in reduced] == ["o", "down"]
    assert found.share[reduced].tolist() == [0.0, 0.0]


def test_kernels_of_one_place_share_its_work_by_their_time():
    durations = [1] * 15
    sequence = "engrkkAAgngSgng"
    durations[4], durations[5], durations[6], durations[7] = 30, 10, 90, 10
    found = places(sequence, durations=durations)
    assert found.share[4:8].tolist() == [0.75, 0.25, 0.9, 0.1]


def test_parts_of_a_mixed_step():
    sequence = "engrkPAgngSgngrkPAgngSgngx"
    found = places(sequence, phase="mixed")
    attention = [PLACES[code] for code, letter in zip(found.code, sequence, strict=True) if letter in "PA"]
    assert attention == ["attention_prefill", "attention_decode"] * 2


def test_row_gather_is_no_embedding():
    sequence = f"e{LAYER}negx"
    found = places(sequence)
    assert [PLACES[code] for code, letter in zip(found.code, sequence, strict=True) if letter == "e"] == [
        "embedding",
        "row_gather",
    ]


@pytest.mark.parametrize("lost", ["g", "A", "S", "n"])
def test_a_lost_kernel_never_gives_a_neighbour_its_name(lost):
    """Dropping one kernel may leave GEMMs unnamed; those that are named keep the name they have without the loss."""
    whole = f"e{LAYER * 32}ngx"
    full = gemms(whole)
    for at in [index for index, letter in enumerate(whole) if letter == lost][8:12]:
        cut = whole[:at] + whole[at + 1 :]
        steps = " ".join([whole] * 12 + [cut])
        named = gemms(steps)[len(full) * 12 :]
        expected = [place for index, place in _gemms_of(whole, full) if index != at]
        assert all(got in ("", want) for got, want in zip(named, expected, strict=True))
        assert named.count("") <= 4


def _gemms_of(whole, names):
    return list(zip([index for index, letter in enumerate(whole) if letter == "g"], names, strict=True))


@pytest.mark.parametrize("kind", [ORDINARY, LATENT, LATENT_DIRECT])
def test_orders_name_known_places(kind):
    rows, table = gemm_orders(kind)
    assert rows.max() < len(PLACES)
    assert table.max() < len(rows)
    assert not rows[0].any()


def test_no_kernels():
    nothing = np.zeros(0)
    types = (np.int32, np.uint8, bool, np.int8, np.int64)
    found = identify_places(LaunchedKernels(*map(nothing.astype, types)), NO_STEPS)
    assert len(found.code) == 0


def test_kernels_outside_steps_have_no_place():
    n = 4
    gemms = np.full(n, OP_CODE["gemm"], np.uint8)
    kernels = LaunchedKernels(
        np.full(n, -1, np.int32), gemms, np.zeros(n, bool), np.zeros(n, np.int8), np.ones(n, np.int64)
    )
    found = identify_places(kernels, NO_STEPS)
    assert not found.code.any()
    assert (found.layer == -1).all()
