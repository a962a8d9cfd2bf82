"""The batch that still grows when a capture begins."""

import pytest

from trace_analyze.analysis.summary.batch_ramp import decode_ramp
from trace_analyze.analysis.time.group_steps import split_groups
from trace_analyze.fixtures.hand_frames import HandRun


def ramp_of(batches):
    run = HandRun()
    for batch in batches:
        run.step("decode", 10, decode_requests=batch, decode_tokens=batch)
    made = run.build()
    return decode_ramp(list(split_groups(made.steps, made.groups)))


@pytest.mark.parametrize(
    ("batches", "steps", "to"),
    [
        # the capture began with the first decode batch while admission ramped: 80% of 32 is reached with 31
        ([1, 3, 9, 20, 31, 32, 32, 32, 32, 32, 32, 32], 4, 32),
        ([2, 4, 6, 8, 10, 10, 10, 10], 3, 10),  # 8 is 80% of 10
    ],
)
def test_a_growing_batch_is_a_ramp(batches, steps, to):
    found = ramp_of(batches)
    assert (found["steps"], found["from_requests"], found["to_requests"]) == (steps, batches[0], to)
    assert found["ms"] >= steps * 10


@pytest.mark.parametrize(
    "batches",
    [
        [32] * 12,
        [20, 24, 28, 31, 32, 32, 32, 32],  # starts above half of the steady batch
        [1, 9, 3, 20, 31, 32, 32, 32, 32, 32],  # requests finish in between: the run is short, not ramping
        [1, 32, 32, 32, 32, 32, 32, 32],  # one step is no ramp
        [32, 24, 9, 3, 1, 1, 1, 1],  # the end of a run
        [1, 3, 9, 20],  # too short to know what is steady
        [1, 3, None, 20, 31, 32, 32, 32, 32],  # not known for every step
    ],
)
def test_other_batches_are_none(batches):
    assert ramp_of(batches) is None
