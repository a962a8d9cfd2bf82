"""Repeated steps: found once, told of all; nothing else about a kernel's place changes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trace_analyze.analysis.work.operators import kernel_places as places
from trace_analyze.analysis.work.operators.gemm_orders import OP_CODE
from trace_analyze.analysis.work.operators.repeated_steps import RepeatedSteps, repeated_steps


def rows_of(steps: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """(step, kind) per kernel of steps given as lists of kinds."""
    step = np.repeat(np.arange(len(steps), dtype=np.int32), [len(each) for each in steps])
    return step, np.array([kind for each in steps for kind in each], np.uint8)


def test_two_of_three_steps_are_alike():
    step, kind = rows_of([[1, 2, 3], [1, 3, 2], [1, 2, 3]])
    found = repeated_steps(step, kind, np.zeros(3, np.int8))
    assert found.rows.tolist() == [0, 1, 2, 3, 4, 5]
    assert found.source.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2]
    assert found.times.tolist() == [2, 2, 2, 1, 1, 1]


def test_steps_that_differ_in_phase_are_not_alike():
    step, kind = rows_of([[1, 2], [1, 2]])
    assert repeated_steps(step, kind, np.array([0, 1])).rows.tolist() == [0, 1, 2, 3]


@given(st.lists(st.tuples(st.lists(st.integers(0, 3), min_size=1, max_size=4), st.integers(0, 1)), max_size=12))
def test_every_kernel_finds_its_like(steps):
    step, kind = rows_of([kinds for kinds, _ in steps])
    of_step = np.array([number for _, number in steps], np.int64)
    found = repeated_steps(step, kind, of_step)
    assert kind[found.rows][found.source].tolist() == kind.tolist()
    assert of_step[step[found.rows]][found.source].tolist() == of_step[step].tolist()
    different = {(tuple(kinds), number) for kinds, number in steps}
    assert len(found.rows) == sum(len(kinds) for kinds, _ in different)
    assert int(found.times.sum()) == len(step)  # each kept kernel stands for one in every step alike


LAYER = ["norm", "gemm", "rope", "kv_write", "kv_write", "attention", "gemm", "norm", "gemm", "activation", "gemm"]
ENDS = ["embedding", "norm", "gemm", "gemm_reduce", "sampling", "elementwise", "moe_gemm", "attention_combine"]


@given(st.lists(st.lists(st.sampled_from([*LAYER, *ENDS]), min_size=1, max_size=8), min_size=1, max_size=4), st.data())
def test_places_are_those_found_step_by_step(kinds, data):
    order = data.draw(st.lists(st.integers(0, len(kinds) - 1), min_size=1, max_size=6))
    steps = [LAYER + kinds[number] + LAYER for number in order]
    step, op = rows_of([[OP_CODE[name] for name in names] for names in steps])
    own = np.zeros(len(op), np.int8)
    kernels = places.LaunchedKernels(step, op, op == OP_CODE["norm"], own, np.arange(1, len(op) + 1))
    kinds_of_steps = places.StepKinds(np.full(len(steps), 2, np.int8), np.zeros(len(steps), bool))
    found = places.identify_places(kernels, kinds_of_steps)
    alone = RepeatedSteps(np.arange(len(op)), np.arange(len(op), dtype=np.int32), np.ones(len(op), np.int64))
    grouped, places.repeated_steps = places.repeated_steps, lambda *_: alone
    try:
        expected = places.identify_places(kernels, kinds_of_steps)
    finally:
        places.repeated_steps = grouped
    assert found.code.tolist() == expected.code.tolist()
    assert found.layer.tolist() == expected.layer.tolist()
    assert found.share.tolist() == expected.share.tolist()
    assert found.adds_residual.tolist() == expected.adds_residual.tolist()
