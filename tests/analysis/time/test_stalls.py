"""Gaps and stalls: published examples to the digit, then the corners of the definition."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trace_analyze.analysis.time.collectives import split_collectives
from trace_analyze.analysis.time.stalls import StallResult, find_gaps_and_stalls
from trace_analyze.analysis.time.time_accounting import account_time
from trace_analyze.fixtures.hand_frames import MS, HandRun

PARTS = [
    "decode_ms",
    "prefill_ms",
    "collective_wait_ms",
    "copy_ms",
    "idle_launch_bound_ms",
    "idle_host_sync_ms",
    "idle_waiting_rank_ms",
    "idle_between_requests_ms",
    "idle_unknown_ms",
]


def find(run: HandRun) -> StallResult:
    made = run.build()
    time = account_time(made.trace, made.kernels, made.steps, made.groups, made.window_start_ns, made.window_end_ns)
    waits = split_collectives(made.kernels, made.steps, made.groups, made.trace.names, made.trace.devices).waits
    return find_gaps_and_stalls(made.steps, made.groups, time, waits)


def decode(run: HandRun, times: int, requests: int = 8, ms: float = 10.0, **facts) -> HandRun:
    return run.step("decode", ms, times=times, decode_requests=requests, padded_tokens=requests, **facts)


def test_one_mixed_step_among_forty():
    # users' F4: 20 x 10 ms, execute_context_1(2048)_generation_8(8) of 250 ms, 20 x 10 ms
    run = decode(HandRun(), 20)
    run.step("mixed", 250, decode_requests=8, prefill_requests=1, prefill_tokens=2048, prompts_finished=1)
    found = find(decode(run, 20))
    assert found.stalls.height == 1
    stall = found.stalls.row(0, named=True)
    assert stall["stall_ms"] == 240.0
    assert (stall["kind"], stall["requests_held"], stall["request_ms_lost"]) == ("mixed_step", 8, 1920.0)
    assert (stall["gap_before_ms"], stall["gap_ms"], stall["gap_after_ms"]) == (10.0, 250.0, 10.0)
    assert (stall["baseline_ms"], stall["baseline_n"], stall["reason"]) == (10.0, 40, "baseline: same padded size")
    assert (stall["prefill_tokens"], stall["prefill_requests"], stall["steps"]) == (2048, 1, [20])
    gap = found.gaps.filter(stall=0).row(0, named=True)
    assert (gap["decode_ms"], gap["prefill_ms"]) == (10.0, 240.0)
    assert found.gaps.height == 40  # the first decode-bearing step has none


def test_one_prefill_step_between_decode_steps():
    # users' F5 and S05: the prefill is its own step of 240 ms between two decode steps
    run = decode(HandRun(), 20)
    run.step("prefill", 240, prefill_requests=1, prefill_tokens=2048, prompts_finished=1)
    found = find(decode(run, 20, requests=9))
    stall = found.stalls.row(0, named=True)
    assert found.stalls.height == 1
    assert (stall["stall_ms"], stall["kind"]) == (240.0, "prefill_step")
    assert (stall["requests_held"], stall["request_ms_lost"]) == (8, 1920.0)
    assert (stall["start_ns"], stall["end_ns"]) == (200 * MS, 440 * MS)
    assert (stall["gap_before_ms"], stall["gap_ms"], stall["gap_after_ms"]) == (10.0, 250.0, 10.0)
    assert (stall["baseline_ms"], stall["reason"]) == (None, None)


def test_a_verify_step_is_not_a_stall():
    # users' F12: execute_context_0(0)_generation_8(32) is decode of width 4, among decode steps of width 1
    run = decode(HandRun(), 10, decode_tokens=8, verify_width=1)
    run.step("decode", 14, times=10, decode_requests=8, decode_tokens=32, padded_tokens=32, verify_width=4)
    found = find(run)
    assert found.stalls.is_empty()
    assert found.gaps["gap_ms"].max() == 14.0


def test_a_16_second_prefill_in_110_mixed_steps_is_one_episode():
    # users' S01: 3.7 ms decode steps; 16.5 s of mixed steps of 0.15 s for one 65,535-token prompt; then 3.7 ms
    run = decode(HandRun(), 50, requests=1, ms=3.7)
    for k in range(110):
        tokens = 65535 - 109 * 596 if k == 109 else 596
        run.step(
            "mixed", 150, decode_requests=1, prefill_requests=1, prefill_tokens=tokens, prompts_finished=int(k == 109)
        )
    found = find(decode(run, 50, requests=1, ms=3.7))
    stalls = found.stalls
    assert (stalls.height, stalls["episode"].n_unique()) == (110, 1)
    assert stalls["stall_ms"].sum() == pytest.approx(110 * (150 - 3.7))
    assert stalls["prefill_tokens"].sum() == 65535
    assert set(stalls["gap_before_ms"]) == set(stalls["gap_after_ms"]) == {3.7}
    assert set(stalls["gap_ms"]) == {150.0}
    assert set(stalls["requests_held"]) == {1}


def test_a_chunk_of_8192_tokens_takes_3500_ms():
    # users' S02: mixed steps 3500 ms, decode steps 33 ms
    run = decode(HandRun(), 10, requests=6, ms=33)
    run.step("mixed", 3500, times=4, decode_requests=6, prefill_requests=1, prefill_tokens=8192)
    found = find(decode(run, 10, requests=6, ms=33))
    assert found.stalls["stall_ms"].to_list() == [3467.0] * 4
    assert found.stalls["episode"].n_unique() == 1


def test_a_single_user_holds_nobody():
    run = decode(HandRun(), 2, requests=1)
    run.step("prefill", 240, prefill_requests=1, prefill_tokens=2048, prompts_finished=1)
    found = find(decode(run, 2, requests=1))
    assert found.stalls.is_empty()
    assert found.prefill_without_waiters == {0: 1}
    assert found.gaps["counted"].to_list() == [True, False, True]


def test_a_chunked_prompt_counts_once_where_it_can_be_seen():
    def chunks(**facts):
        run = decode(HandRun(), 5, requests=3)
        for k in range(3):
            run.step("prefill", 100, prefill_requests=1, prefill_tokens=512, **{n: v[k] for n, v in facts.items()})
        return find(decode(run, 5, requests=4)).stalls.row(0, named=True)

    seen = chunks(prompts_finished=[0, 0, 1])
    assert (seen["requests_held"], seen["prefill_requests"], seen["reason"]) == (3, 1, None)
    unseen = chunks()
    assert unseen["requests_held"] == 1
    assert "lower bound" in unseen["reason"]
    assert (seen["stall_ms"], unseen["stall_ms"]) == (300.0, 300.0)
    assert seen["steps"] == [5, 6, 7]


def test_unknown_counts_keep_the_stall_and_say_so():
    run = HandRun().step("decode", 10, times=3).step("prefill", 240).step("decode", 10, times=3)
    stall = find(run).stalls.row(0, named=True)
    assert (stall["stall_ms"], stall["requests_held"], stall["request_ms_lost"]) == (240.0, None, None)
    assert "unknown" in stall["reason"]


def test_without_five_decode_steps_there_is_no_baseline():
    run = decode(HandRun(), 2).step("mixed", 250, decode_requests=8, prefill_tokens=100)
    found = find(decode(run, 2))
    stall = found.stalls.row(0, named=True)
    assert (stall["stall_ms"], stall["baseline_ms"], stall["baseline_n"]) == (None, None, 4)
    assert stall["requests_held"] == 8
    assert "only 4 pure decode steps" in stall["reason"]
    gap = found.gaps.filter(stall=0).row(0, named=True)
    assert (gap["decode_ms"], gap["prefill_ms"], gap["copy_ms"]) == (None, None, 0.0)
    assert "no baseline" in gap["reason"]


def test_a_mixed_step_no_slower_than_decode_kept_nobody_waiting():
    run = decode(HandRun(), 5).step("mixed", 9, decode_requests=8, prefill_requests=1, prefill_tokens=16)
    found = find(decode(run, 5))
    assert found.stalls.is_empty()
    assert found.gaps["decode_ms"].to_list()[4] == 9.0


def test_idle_between_prefill_steps_stays_idle():
    run = decode(HandRun(), 5)
    run.step("prefill", 100, prefill_requests=1, prompts_finished=1).idle(30)
    run.step("prefill", 50, prefill_requests=1, prompts_finished=1).idle(5)
    found = find(decode(run, 5, requests=10))
    stall = found.stalls.row(0, named=True)
    assert (stall["stall_ms"], stall["gap_ms"]) == (150.0, 195.0)
    assert found.gaps.filter(stall=0)["idle_unknown_ms"].to_list() == [35.0]
    assert (stall["requests_held"], stall["prefill_requests"]) == (8, 2)


def test_prefill_and_a_mixed_step_in_one_gap_add_up():
    run = decode(HandRun(), 10)
    run.step("prefill", 100, prefill_requests=1, prompts_finished=1, prefill_tokens=1000)
    run.step("mixed", 60, decode_requests=9, prefill_requests=1, prompts_finished=1, prefill_tokens=500)
    found = find(decode(run, 10, requests=10))
    stall = found.stalls.row(0, named=True)
    assert found.stalls.height == 1
    assert (stall["kind"], stall["stall_ms"], stall["prefill_tokens"]) == ("prefill_step", 150.0, 1500)
    assert stall["request_ms_lost"] == 8 * 100 + 9 * 50
    assert stall["steps"] == [10, 11]


def test_nobody_decoding_before_the_prefill_is_held_only_by_the_mixed_step():
    # two prompts are prefilled with nobody else alive, then decode beside a third prompt's chunk
    run = decode(HandRun(), 10).idle(500)
    run.step("prefill", 100, prefill_requests=2, prompts_finished=2, prefill_tokens=1000)
    run.step("mixed", 60, decode_requests=2, prefill_requests=1, prompts_finished=1, prefill_tokens=500)
    found = find(run)
    stall = found.stalls.row(0, named=True)
    assert (stall["kind"], stall["stall_ms"], stall["requests_held"]) == ("mixed_step", 50.0, 2)
    assert found.gaps["counted"].to_list()[-1] is False


def test_consecutive_prefill_interruptions_share_an_episode():
    run = decode(HandRun(), 6)
    for k in range(3):
        run.step("prefill", 50, prefill_requests=1, prompts_finished=1)
        decode(run, 1, requests=9 + k)
    decode(run, 4, requests=11).step("prefill", 50, prefill_requests=1, prompts_finished=1)
    found = find(decode(run, 3, requests=12))
    assert found.stalls["episode"].to_list() == [0, 0, 0, 1]
    assert found.stalls["gap_before_ms"].to_list() == [10.0] * 4


def test_the_longest_run_without_a_decode_token():
    # users' S06: P P D P P D D, and the run before anybody decoded keeps nobody waiting
    run = HandRun().step("prefill", 20, times=3, prefill_requests=1, prompts_finished=1)
    decode(run, 1, requests=3).step("prefill", 30, times=2, prefill_requests=1, prompts_finished=1)
    decode(run, 2, requests=5)
    longest = find(run).longest_run
    assert (longest.steps, longest.ms, longest.requests_held) == (2, 60.0, 3)


def test_partial_and_excluded_steps_are_out():
    run = decode(HandRun(), 1, partial=True)
    decode(run, 3).step("other", 500, excluded=True)
    found = find(decode(run, 3))
    assert found.gaps["index"].to_list() == [2, 3, 6, 7]


def test_decode_only_and_prefill_only_have_no_stalls():
    assert find(decode(HandRun(), 30)).stalls.is_empty()
    alone = find(HandRun().step("prefill", 100, times=9, prefill_requests=1, prompts_finished=1))
    assert alone.stalls.is_empty()
    assert alone.gaps.is_empty()
    assert alone.longest_run is None


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (13, ("same padded size", 16.0, 6)),
        (40, ("within 12.5% of the decode requests", 40.0, 5)),
        (100, ("nearest batches, beyond 12.5% of the decode requests", 40.0, 5)),
    ],
)
def test_the_baseline_rule(batch, expected):
    run = HandRun()
    for real in (9, 11, 12, 13, 14, 16):
        run.step("decode", 16, decode_requests=real, padded_tokens=16)
    for k, real in enumerate((38, 39, 40, 41, 42)):
        run.step("decode", 38 + k, decode_requests=real, padded_tokens=real)
    run.step("mixed", 200, decode_requests=batch, prefill_requests=1, prefill_tokens=64)
    rule, baseline, n = expected
    stall = find(run).stalls.row(0, named=True)
    assert (stall["reason"], stall["baseline_ms"], stall["baseline_n"]) == (f"baseline: {rule}", baseline, n)


def test_a_larger_captured_size_is_no_baseline_for_a_batch_that_never_took_it():
    run = HandRun().step("decode", 90, times=9, decode_requests=60, padded_tokens=64)
    run.step("decode", 12, times=5, decode_requests=9, padded_tokens=9)
    run.step("mixed", 200, decode_requests=10, prefill_requests=1, prefill_tokens=64)
    assert find(run).stalls["baseline_ms"].to_list() == [12.0]


def test_a_gap_beyond_the_window_is_not_divided():
    run = decode(HandRun(), 9)
    made = run.build(window=(0, 85 * MS))
    time = account_time(made.trace, made.kernels, made.steps, made.groups, 0, 85 * MS)
    gaps = find_gaps_and_stalls(made.steps, made.groups, time).gaps
    assert gaps["decode_ms"].to_list() == [10.0] * 7 + [None]
    assert "beyond the analysed window" in gaps["reason"].to_list()[-1]


def test_waiting_inside_collectives_is_its_own_part():
    run = HandRun(devices=2)
    for index in range(4):
        begin = run.now_ns
        for d in range(2):
            # rank 0 arrives after 4 ms and waits for rank 1, which arrives after 7 ms; the transfer takes 1 ms
            arrive = begin + (4 + 3 * d) * MS
            facts = {"device_index": d, "step_index": index, "step_phase": "decode"}
            run.kernel(begin, arrive, **facts)
            run.kernel(arrive, begin + 8 * MS, name="all_reduce", op_class="collective", **facts)
        run.step("decode", 8, kernel=False, decode_requests=4)
    gaps = find(run).gaps
    assert gaps["collective_wait_ms"].to_list() == [1.5] * 3
    assert gaps["decode_ms"].to_list() == [6.5] * 3


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["decode", "prefill", "mixed", "other"]),
        st.integers(1, 50),  # ms
        st.integers(0, 20),  # idle after
        st.integers(0, 12),  # decode requests
        st.integers(0, 3),  # prompts finished
        st.integers(0, 30),  # copy length beside the idle
    ),
    max_size=25,
)


@settings(max_examples=60)
@given(STEPS)
def test_gap_parts_sum_and_stalls_fit_in_their_gaps(rows):
    run = HandRun()
    for phase, ms, idle, requests, finished, copy in rows:
        run.step(phase, ms, decode_requests=requests, prefill_requests=finished, prompts_finished=finished)
        run.copy(run.now_ns - 2, run.now_ns + copy * 100_000).idle(idle)
    found = find(run)
    gaps = found.gaps.drop_nulls(PARTS)
    total = gaps.select(PARTS).sum_horizontal()
    assert total.to_list() == pytest.approx(gaps["gap_ms"].to_list())
    stalls = found.stalls
    assert ((stalls["stall_ms"] <= stalls["gap_ms"] + 1e-9) | stalls["stall_ms"].is_null()).all()
    assert found.gaps.filter(found.gaps["stall"] >= 0)["stall"].to_list() == list(range(stalls.height))
    assert (stalls["requests_held"].drop_nulls() > 0).all()


def test_a_published_hybrid_step_and_the_residual_of_a_decode_step():
    # figures.md, section 1, table 2: decode only 68.12 ms (linear 25.50 + attention 3.00), hybrid with 3 decodes 217.65 ms
    run = HandRun()
    for index in range(12):
        hybrid = index == 6
        linear, attention, whole = (159.00, 3.99, 217.65) if hybrid else (25.50, 3.00, 68.12)
        begin, phase = run.now_ns, "mixed" if hybrid else "decode"
        middle, end = begin + round(linear * MS), begin + round((linear + attention) * MS)
        at = {"step_index": index, "step_phase": phase}
        run.kernel(begin, middle, **at).kernel(middle, end, op_class="attention", **at)
        facts = {"prefill_tokens": 1021, "prefill_requests": 1} if hybrid else {}
        run.step(phase, whole, kernel=False, decode_requests=3 if hybrid else 4, padded_tokens=4, **facts)
    run.kernel(run.now_ns, run.now_ns + 1, step_phase="other")
    found = find(run)
    assert found.stalls["stall_ms"].to_list() == pytest.approx([217.65 - 68.12])
    calm = found.gaps.row(0, named=True)
    # 28.5 of 68.12 ms is work of the kernels; the residual is shown as idle, not spread over the work
    assert calm["decode_ms"] == pytest.approx(28.50)
    assert calm["idle_unknown_ms"] == pytest.approx(68.12 - 28.50)
