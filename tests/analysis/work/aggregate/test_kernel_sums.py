"""Sums by group: in which steps a group has a kernel."""

import numpy as np
import pytest

from trace_analyze.analysis.work.aggregate.kernel_sums import Lists, _steps_of_groups


def lists(found: Lists) -> list[list[int]]:
    return [found.of(group).tolist() for group in range(len(found.begins) - 1)]


@pytest.mark.parametrize("steps", [4, 4_000])  # with a table of groups by steps, and without
def test_steps_of_each_group_are_told_once_and_rising(steps):
    group = np.array([0, 1, 0, 0, 2, 1, 1, 0])
    step = np.array([3, -1, 0, 3, 2, 1, 1, -1], dtype=np.int32)  # -1: outside every step
    found = _steps_of_groups(group, step, 4, steps)
    assert lists(found) == [[0, 3], [1], [2], []]
    assert found.joined([0, 2]).tolist() == [0, 3, 2]


def test_a_capture_without_steps():
    found = _steps_of_groups(np.array([0, 1]), np.array([-1, -1], dtype=np.int32), 2, 0)
    assert lists(found) == [[], []]
