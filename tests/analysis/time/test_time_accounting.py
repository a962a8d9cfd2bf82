"""The time account: every example worked out by hand, every identity for random captures."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trace_analyze.analysis.records.tables import PHASES
from trace_analyze.analysis.time.time_accounting import TimeResult, account_time
from trace_analyze.fixtures.hand_frames import MS, HandMade, HandRun


def account(made: HandMade, **options) -> TimeResult:
    return account_time(
        made.trace, made.kernels, made.steps, made.groups, made.window_start_ns, made.window_end_ns, **options
    )


def test_two_streams_at_once_are_busy_once():
    # users' F1: two streams, each [0, 100 ms)
    run = HandRun().kernel(0, 100 * MS, stream=7).kernel(0, 100 * MS, stream=8)
    device = account(run.build()).devices[0]
    assert device.busy_ns == device.window_ns == 100 * MS
    assert device.kernel_time_sum_ns == 200 * MS
    assert (device.idle_ns, device.same_stream_overlap_ns) == (0, 0)


def test_a_stream_may_rest_while_the_device_works():
    # users' F2: s7 [0,1) [50,51) ms; s8 [0,51) ms
    run = HandRun().kernel(0, MS, stream=7).kernel(50 * MS, 51 * MS, stream=7).kernel(0, 51 * MS, stream=8)
    device = account(run.build()).devices[0]
    assert device.idle_ns == 0
    assert sum(device.idle_ns_by_cause.values()) == 0


def test_copies_alone_are_not_idle():
    # users' S09: kernel [0,10), copy [10,25), kernel [25,30)
    device = account(HandRun().kernel(0, 10).copy(10, 25).kernel(25, 30).build()).devices[0]
    assert (device.busy_ns, device.copy_only_ns, device.idle_ns) == (15, 15, 0)


def test_overlap_on_one_stream_is_legal_and_shown():
    # users' M27: [0,10) [8,20) [18,30) on stream 7; M22: the same stream number on another context is another stream
    run = HandRun().kernel(0, 10).kernel(8, 20).kernel(18, 30).kernel(0, 30, context=2)
    device = account(run.build()).devices[0]
    assert device.busy_ns == 30
    assert device.kernel_time_sum_ns == 64
    assert device.same_stream_overlap_ns == 4


def test_prefill_and_decode_at_once_is_mixed_and_bookkeeping_changes_nothing():
    run = (
        HandRun()
        .kernel(0, 10, step_phase="prefill")
        .kernel(5, 20, step_phase="decode", stream=8)
        .kernel(15, 25, step_phase="unknown", stream=9)
        .kernel(24, 30, step_phase="other", stream=9)
    )
    device = account(run.build()).devices[0]
    assert device.phase_ns == {"prefill": 5, "decode": 10, "mixed": 5, "other": 6, "unknown": 4}


def test_warm_up_inside_the_window_is_other():
    run = HandRun().kernel(0, 10, step_phase="decode", in_window=False).kernel(10, 30, step_phase="decode")
    device = account(run.build()).devices[0]
    assert (device.phase_ns["other"], device.phase_ns["decode"]) == (10, 20)


def test_the_window_cuts_kernels():
    run = HandRun().kernel(0, 10, step_phase="decode").kernel(20, 40, step_phase="prefill")
    device = account(run.build(window=(5, 30))).devices[0]
    assert (device.window_ns, device.busy_ns, device.idle_ns) == (25, 15, 10)
    assert device.kernel_count == 2


def test_whole_graph_rows_are_busy_and_forbid_idle():
    run = HandRun()
    run.step_rows.append(
        {"index": 0, "device": 0, "device_index": 0, "start_ns": 0, "end_ns": 50, "busy_ns": 50, "phase": "decode"}
    )
    result = account(run.graph(0, 50).kernel(90, 100, step_phase="prefill").build(), opaque_graphs=True)
    device = result.devices[0]
    assert (device.busy_ns, device.phase_ns["decode"], device.phase_ns["prefill"]) == (60, 50, 10)
    assert device.idle_ns is None
    assert device.idle_ns_by_cause is None
    assert "opaque" in device.reason
    assert result.idle.is_empty()


def causes(run: HandRun, **options) -> list[str]:
    return account(run.build(**options)).idle["cause"].to_list()


def test_idle_without_launch_rows_is_unknown():
    assert causes(HandRun().kernel(0, 100).kernel(400, 500)) == ["unknown"]


def test_a_late_launch_is_launch_bound():
    run = HandRun()
    run.kernel(0, 100_000, launch=run.launch(-10_000, -5_000))
    run.kernel(190_000, 200_000, launch=run.launch(170_000, 180_000))
    result = account(run.build())
    assert result.idle.select("start_ns", "end_ns", "cause").rows() == [(100_000, 190_000, "launch_bound")]


def test_a_thread_that_waited_for_the_device_could_not_run_ahead():
    run = HandRun()
    run.kernel(0, 100_000, launch=run.launch(-10_000, -5_000))
    run.call("sync", 20_000, 103_000)
    run.kernel(190_000, 200_000, launch=run.launch(170_000, 180_000))
    run.kernel(230_000, 240_000, launch=run.launch(220_000, 225_000))
    assert causes(run) == ["host_sync", "launch_bound"]


def test_a_sync_on_another_thread_does_not_excuse_the_launching_one():
    run = HandRun()
    run.kernel(0, 100_000)
    run.call("sync", 20_000, 103_000, thread=12)
    run.kernel(190_000, 200_000, launch=run.launch(170_000, 180_000))
    assert causes(run) == ["launch_bound"]


def test_a_copy_to_the_host_that_was_waited_for_is_a_synchronisation():
    run = HandRun()
    run.kernel(0, 100_000)
    run.copy(100_000, 102_000, kind="d2h", correlation_id=5)
    run.call("copy", 20_000, 104_000, correlation_id=5)
    run.kernel(190_000, 200_000, launch=run.launch(170_000, 180_000))
    assert causes(run) == ["host_sync"]


@pytest.mark.parametrize(("gap", "cause"), [(2_000, "launch_bound"), (50_000, "unknown")])
def test_queued_kernels_show_dispatch_or_something_unseen(gap, cause):
    run = HandRun()
    first, second = run.launch(0, 1_000), run.launch(1_000, 2_000)
    run.kernel(5_000, 10_000, launch=first).kernel(10_000 + gap, 90_000, launch=second)
    assert causes(run) == [cause]


def test_a_queued_kernel_waits_for_the_other_rank():
    run = HandRun(devices=2)
    first, second = run.launch(0, 1_000), run.launch(1_000, 2_000)
    run.kernel(5_000, 100_000, launch=first).kernel(900_000, 950_000, launch=second)
    run.kernel(5_000, 950_000, device_index=1)
    assert causes(run) == ["waiting_rank"]


def test_a_late_host_is_late_even_while_the_other_rank_spins():
    run = HandRun(devices=2)
    run.kernel(5_000, 100_000, launch=run.launch(0, 1_000))
    run.kernel(5_000, 950_000, device_index=1)
    run.kernel(900_000, 950_000, launch=run.launch(890_000, 895_000))
    assert causes(run) == ["launch_bound"]


def test_nobody_decoding_before_a_prefill_is_between_requests():
    # one user: D D, 300 ms of nothing, P D D
    run = HandRun().step("decode", 10, times=2, decode_requests=1)
    run.idle(300).step("prefill", 50, prefill_requests=1, prompts_finished=1, prefill_tokens=500)
    run.step("decode", 10, times=2, decode_requests=1)
    assert causes(run) == ["between_requests"]


def test_a_held_decode_request_is_not_between_requests():
    run = HandRun().step("decode", 10, times=2, decode_requests=4)
    run.idle(300).step("prefill", 50, prefill_requests=1, prompts_finished=1, prefill_tokens=500)
    run.step("decode", 10, times=2, decode_requests=5)
    assert causes(run) == ["unknown"]


KERNELS = st.lists(
    st.tuples(
        st.integers(0, 200),  # start
        st.integers(1, 60),  # duration
        st.integers(0, 2),  # device
        st.sampled_from(PHASES.categories.to_list()),
        st.integers(7, 9),  # stream
        st.booleans(),  # in the window
    ),
    min_size=1,
    max_size=12,
)
COPIES = st.lists(st.tuples(st.integers(0, 250), st.integers(0, 40), st.integers(0, 2)), max_size=5)
WINDOW = st.tuples(st.integers(-20, 120), st.integers(0, 200)).map(lambda w: (w[0], w[0] + w[1]))


@settings(max_examples=60)
@given(KERNELS, COPIES, WINDOW, st.permutations(range(3)), st.randoms(use_true_random=False))
def test_the_parts_are_the_window_whatever_the_rows(kernels, copies, window, renumbered, random):
    def result(rows, copy_rows, number):
        run = HandRun(devices=3)
        for start, length, device, phase, stream, counted in rows:
            run.kernel(start, start + length, device_index=number[device], step_phase=phase, stream=stream)
            run.kernel_rows[-1]["in_window"] = counted
        for start, length, device in copy_rows:
            run.copy(start, start + length, device_index=number[device])
        made = account(run.build(window=window))
        back = {number[d]: d for d in range(3)}
        return {back[d.device_index]: d for d in made.devices}

    straight = result(kernels, copies, range(3))
    shuffled = result(
        random.sample(kernels, len(kernels)), random.sample(copies, len(copies)), dict(enumerate(renumbered))
    )
    for index, device in straight.items():
        clock = range(window[0], window[1])
        running = {t for s, n, d, *_ in kernels if d == index for t in range(s, s + n)}
        copying = {t for s, n, d in copies if d == index for t in range(s, s + n)}
        assert device.busy_ns == sum(t in running for t in clock)
        assert device.copy_only_ns == sum(t in copying and t not in running for t in clock)
        assert device.busy_ns + device.copy_only_ns + device.idle_ns == device.window_ns == len(clock)
        assert sum(device.phase_ns.values()) == device.busy_ns
        assert sum(device.idle_ns_by_cause.values()) == device.idle_ns
        other = shuffled[index]
        assert (other.phase_ns, other.idle_ns_by_cause) == (device.phase_ns, device.idle_ns_by_cause)
        assert other.kernel_time_sum_ns == device.kernel_time_sum_ns


def test_graph_launches_that_left_no_kernels_forbid_idle_too():
    run = HandRun()
    for k in range(10):
        run.launch(k * 1000, k * 1000 + 10, kind="graph", correlation_id=k)
    result = account(run.kernel(0, 100).kernel(9_900, 10_000).build())
    assert result.opaque_graphs
    assert result.devices[0].idle_ns is None
    assert "no kernel records" in result.devices[0].reason
