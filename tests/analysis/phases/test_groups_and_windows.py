"""Ranks that march together, replicas that do not, and the part of the capture that counts."""

import pytest

from trace_analyze.analysis.phases import find_phases
from trace_analyze.analysis.records.errors import CannotAnswerError, UsageError


def interleave(run, steps, devices, **common):
    """Run each step on every device at the same time."""
    for phase, tokens, requests in steps:
        now, cpu = run.now, run.cpu
        ends = []
        for device in devices:
            run.now, run.cpu = now + device * 700, cpu
            run.step(phase, tokens, requests, device=device, **common)
            ends.append((run.now, run.cpu))
        run.now, run.cpu = max(end for end, _ in ends), max(cpu for _, cpu in ends)


SERVING = [("decode", 8, 8)] * 4 + [("prefill", 600, 1)] + [("decode", 9, 9)] * 4


def test_ranks_with_collectives_that_march_together_are_one_group(mini):
    run = mini()
    interleave(run, SERVING, (0, 1), tensor_parallel=True)
    result = find_phases(*run.build())
    assert result.groups.rows() == [(0, [0, 1], "tensor_parallel")]
    assert result.steps["index"].to_list() == [n // 2 for n in range(18)]
    assert result.steps["device_index"].to_list() == [0, 1] * 9
    assert result.steps["phase"].cast(str).to_list() == [phase for phase, *_ in SERVING for _ in range(2)]


def test_rank_whose_first_step_is_missing_keeps_the_index_of_the_others(mini):
    run = mini()
    interleave(run, SERVING[:1], (0,), tensor_parallel=True)
    interleave(run, SERVING[1:], (0, 1), tensor_parallel=True)
    steps = find_phases(*run.build()).steps
    second = steps.filter(steps["device_index"] == 1)
    assert second["index"].to_list() == list(range(1, 9))


def test_replicas_without_collectives_are_groups_of_their_own(mini):
    run = mini()
    interleave(run, SERVING, (0, 1))
    result = find_phases(*run.build())
    assert result.groups["kind"].to_list() == ["single", "single"]
    assert result.steps.filter(result.steps["group"] == 1)["index"].to_list() == list(range(9))


def test_replicas_that_exchange_experts_but_hold_other_batches_are_apart(mini):
    run = mini()
    for a, b in [(8, 5), (8, 5), (9, 6), (9, 6), (9, 5)]:
        now, cpu = run.now, run.cpu
        for device, requests in enumerate((a, b)):
            run.now, run.cpu = now, cpu
            run.step("decode", requests, requests, device=device, tensor_parallel=True)
    assert find_phases(*run.build()).groups["kind"].to_list() == ["single", "single"]


def test_pipeline_stages_share_the_index_of_the_batch_they_hand_on(mini):
    run = mini()
    stage = {"embedding": False, "sampler": False, "gather": False, "lm_head": False}
    for n in range(5):
        tokens = 8 + n
        run.step("decode", tokens, tokens, device=0, attention="attention_decode", **(stage | {"embedding": True}))
        run.kernel("send_recv", device=0, phase="decode")
        run.step("decode", tokens, tokens, device=1, attention="attention_decode", embedding=False, idle_us=2)
        run.kernel("send_recv", device=1, phase="decode")
    result = find_phases(*run.build())
    assert result.groups.rows() == [(0, [0, 1], "pipeline_parallel")]
    assert result.steps["index"].to_list() == [n // 2 for n in range(10)]


def test_two_processes_on_one_device_are_cut_apart(mini):
    run = mini()
    for _ in range(3):
        run.step("prefill", 600, 1)
        run.step("decode", 8, 8, device=1)
    for row in run.rows:
        row["device_index"] = 0
    result = find_phases(*run.build())
    assert sorted(result.steps["phase"].cast(str).to_list()) == ["decode"] * 3 + ["prefill"] * 3
    assert result.steps["device_index"].unique().to_list() == [0]


@pytest.fixture
def ten_steps(mini):
    run = mini()
    for _ in range(10):
        run.step("decode", 8, 8)
    return run


def test_window_counts_kernels_that_start_inside_and_marks_cut_steps(ten_steps):
    whole = find_phases(*ten_steps.build())
    third, fifth = whole.steps["start_ns"][2] + 30_000, whole.steps["end_ns"][4]
    result = find_phases(*ten_steps.build(), window=f"{third}ns:{fifth}ns")
    assert result.steps["partial"].to_list() == [True, True, True, False, False, True, True, True, True, True]
    counted = result.kernels.filter("in_window")
    assert counted["start_ns"].min() >= third
    assert counted["start_ns"].max() < fifth
    assert (result.window_start_ns, result.window_end_ns) == (counted["start_ns"].min(), counted["end_ns"].max())


@pytest.mark.parametrize("window", ["0:", ":10", "0.0005:1", None])
def test_window_around_everything_changes_nothing(ten_steps, window):
    result = find_phases(*ten_steps.build(), window=window)
    assert result.kernels["in_window"].all()
    assert not result.steps["partial"].any()


def test_window_outside_the_capture_names_the_captures_own_span(ten_steps):
    with pytest.raises(CannotAnswerError, match=r"between 5\.000000 s and 6\.000000 s; the GPU works from 0\.0010"):
        find_phases(*ten_steps.build(), window="5:6")


def test_window_that_is_no_window(ten_steps):
    with pytest.raises(UsageError):
        find_phases(*ten_steps.build(), window="5")


def test_first_and_last_step_cut_by_the_capture_are_partial(ten_steps):
    rows = len(ten_steps.rows) // 10
    ten_steps.rows = ten_steps.rows[rows // 2 : -rows // 2]
    result = find_phases(*ten_steps.build())
    assert result.steps["partial"].to_list() == [True] + [False] * 8 + [True]


def test_weights_loaded_before_serving_do_not_count(mini):
    run = mini()
    run.kernel("repack", ns=5_000_000)
    run.now += 10_000_000
    for _ in range(3):
        run.step("decode", 8, 8)
    result = find_phases(*run.build())
    assert result.kernels["in_window"].to_list()[0] is False
    assert result.kernels["phase"].cast(str)[0] == "other"
    assert result.window_start_ns == result.steps["start_ns"][0]
