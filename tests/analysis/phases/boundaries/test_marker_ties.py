"""Markers: which kernels a step range holds, what its text says, and what happens when it cannot be believed."""

import pytest

from trace_analyze.analysis.phases import find_phases


def column(result, name):
    return result.steps[name].to_list()


def phases(result):
    return result.steps["phase"].cast(str).to_list()


def check_truth(run, result):
    wrong = [
        (row, step, truth)
        for row, (step, truth) in enumerate(zip(result.kernels["step"].to_list(), run.truth, strict=True))
        if step != truth[0]
    ]
    assert wrong == []


def test_text_gives_phase_requests_and_tokens(mini):
    run = mini()
    run.step("decode", 8, 8, marker="execute_context_0(0)_generation_8(8)")
    run.step("mixed", 2056, 9, marker="execute_context_1(2048)_generation_8(8)")
    run.step("decode", 32, 8, marker="execute_context_0(0)_generation_8(32)")
    result = find_phases(*run.build())
    check_truth(run, result)
    assert phases(result) == ["decode", "mixed", "decode"]
    assert column(result, "prefill_tokens") == [0, 2048, 0]
    assert column(result, "decode_tokens") == [8, 8, 32]
    assert column(result, "decode_requests") == [8, 8, 8]
    assert column(result, "verify_width") == [1, 1, 4]  # several tokens per request are speculation, not a prompt
    assert column(result, "label")[1] == "execute_context_1(2048)_generation_8(8)"
    assert set(result.kernels["evidence"].cast(str)) == {"marker"}
    assert result.trust["gpu_time_by_evidence"]["marker"] == 1.0
    assert result.engine == "vllm"


def test_detailed_text_gives_kv_lengths(mini):
    run = mini().step("decode", 32, 32, marker="step[DECODE bs=32 g_sq=32 g_sqsq=32 g_sqsk=50923 g_sk=50923]")
    result = find_phases(*run.build())
    assert column(result, "kv_tokens") == [50923]
    assert column(result, "kv_tokens_source") == ["marker"]


def test_lm_head_and_sampler_launched_after_the_range_belong_to_its_step(mini):
    run = mini()
    for _ in range(4):
        run.step("decode", 8, 8, marker="execute_context_0(0)_generation_8(8)", late_sampler=True)
    check_truth(run, find_phases(*run.build()))


def test_metadata_launched_before_the_range_belongs_to_the_step_it_opens(mini):
    run = mini()
    for _ in range(4):
        run.step("decode", 8, 8, marker="step[DECODE bs=8]", late_sampler=True, before_range=True)
    check_truth(run, find_phases(*run.build()))


def test_work_that_runs_a_whole_step_late_is_tied_by_its_launch(mini):
    run = mini(kernel_ns=90_000)  # the GPU falls behind: the ranges are long over when their kernels run
    for bs in (8, 8, 9):
        run.step("decode", bs, bs, marker=f"step[DECODE bs={bs}]", idle_us=0)
    trace, facts = run.build()
    assert trace.ranges["end_ns"].max() < trace.kernels["start_ns"].quantile(0.5)
    result = find_phases(trace, facts)
    check_truth(run, result)
    assert column(result, "decode_requests") == [8, 8, 9]


def test_two_scopes_with_one_index_are_one_step(mini):
    run = mini()
    text = "[Executor] _forward_step {}: 0 ctx reqs, {} gen reqs"
    run.step("decode", 8, 8, sampler=False)
    run.range(text.format(7, 8), 0, run.cpu)
    begin = run.cpu
    run.step("decode", 9, 9)
    run.range(text.format(8, 9), begin, run.cpu)
    begin = run.cpu
    run.kernel("sampler", (8, 1, 1))
    run.range(text.format(7, 8), begin, run.cpu)
    result = find_phases(*run.build())
    assert result.steps.height == 2
    assert column(result, "decode_requests") == [8, 9]
    assert result.kernels["step"].to_list()[-1] == 0


def test_nested_grammars_count_once_and_complete_each_other(mini):
    run = mini()
    run.step("prefill", 100, 1, marker="step[EXTEND bs=1 toks=100]")
    run.range("execute_context_1(100)_generation_0(0)", run.ranges[0]["start_ns"] - 100, run.ranges[0]["end_ns"] + 100)
    result = find_phases(*run.build())
    assert result.steps.height == 1
    assert column(result, "prefill_tokens") == [100]


def test_open_range_of_another_thread_does_not_take_the_kernels(mini):
    run = mini()
    run.step("decode", 8, 8)
    run.range("execute_context_1(500)_generation_0(0)", 0, run.cpu + 1_000_000, thread=4242)
    result = find_phases(*run.build())
    assert phases(result) == ["decode"]
    assert result.steps["evidence"].cast(str).to_list() == ["launch_geometry"]
    assert any("step markers hold no kernels" in reason for reason in result.reasons)


def test_start_end_range_that_ends_on_another_thread(mini):
    run = mini()
    for bs in (8, 9):
        begin = run.cpu + 1
        run.step("decode", bs, bs)
        run.range(f"step[DECODE bs={bs}]", begin, run.cpu + 1, kind="start_end", thread=1, end_thread=2)
    result = find_phases(*run.build())
    check_truth(run, result)
    assert column(result, "decode_requests") == [8, 9]
    assert result.steps["evidence"].cast(str).to_list() == ["marker"] * 2


def test_pairs_of_marks_give_phases_and_kernel_order_gives_steps(mini):
    run = mini()
    run.mark("PrefillStart")
    run.step("prefill", 300, 1)
    run.mark("PrefillEnd")
    run.mark("DecodingStart")
    for _ in range(3):
        run.step("decode", 1, 1)
    run.mark("DecodingEnd")
    result = find_phases(*run.build())
    check_truth(run, result)
    assert phases(result) == run.steps
    assert result.steps["evidence"].cast(str).to_list() == ["marker"] * 4
    assert column(result, "prefill_tokens")[0] == 300


def test_range_around_a_generation_loop_is_no_step(mini):
    run = mini()
    run.step("prefill", 300, 1, marker="Prefill")
    begin = run.cpu + 1
    for _ in range(5):
        run.step("decode", 1, 1)
    run.range("Decode", begin, run.cpu + 1)
    result = find_phases(*run.build())
    check_truth(run, result)
    assert phases(result) == run.steps


def test_markers_without_correlation_ids_are_said_not_to_be_tied(mini):
    run = mini(with_launches=False)
    for _ in range(3):
        run.step("decode", 8, 8, marker="step[DECODE bs=8]")
    result = find_phases(*run.build())
    check_truth(run, result)  # the order of kernels still tells the steps
    assert result.steps["evidence"].cast(str).to_list() == ["launch_geometry"] * 3
    assert any("no correlation ids" in reason for reason in result.reasons)


def test_markers_and_kernels_that_are_nothing_but_loose_work(mini):
    run = mini(with_launches=False)
    for n in range(11):
        run.range("step[DECODE bs=8]", n * 1000, n * 1000 + 500)
    run.now = 1_000_000
    for _ in range(30):
        run.steps.append("unknown")
        run.kernel("gemm_up")
    result = find_phases(*run.build())
    assert result.steps.height == 0
    assert any("per-step times not available" in reason for reason in result.reasons)


def test_markers_of_which_most_hold_no_kernel_are_counted(mini):
    run = mini()
    for n in range(30):
        run.range("step[DECODE bs=8]", n * 1000, n * 1000 + 500)
    run.cpu += 10_000
    run.step("decode", 8, 8, marker="step[DECODE bs=8]")
    result = find_phases(*run.build())
    assert (result.trust["marker_ranges"], result.trust["marker_ranges_without_kernels"]) == (31, 30)
    assert any("30 of 31 step markers hold no kernels" in reason for reason in result.reasons)


def test_marker_and_kernels_that_contradict_each_other(mini):
    run = mini()
    run.step("prefill", 500, 1, attention="attention_decode", marker="execute_context_1(500)_generation_0(0)")
    run.step("decode", 8, 8, attention="attention_decode", marker="execute_context_0(0)_generation_8(8)")
    result = find_phases(*run.build())
    assert phases(result) == ["prefill", "decode"]  # the marker wins, loudly
    (found,) = result.trust["contradictions"]
    assert (found["steps"], found["kernels"]) == (1, 4)
    assert found["gpu_ms"] == pytest.approx(4 * 0.005)
    assert "execute_context_1(500)_generation_0(0)" in found["examples"][0]


def test_marker_that_claims_more_tokens_than_were_launched(mini):
    run = mini().step("prefill", 100, 1, marker="execute_context_1(500)_generation_0(0)")
    (found,) = find_phases(*run.build()).trust["contradictions"]
    assert found["examples"] == ("execute_context_1(500)_generation_0(0): launched for 100 tokens",)


def test_warm_up_and_graph_capture_are_other_excluded_and_counted(mini):
    run = mini()
    run.step("other", 2048, 2048, marker="_dummy_run")
    run.step("other", 64, 64, marker="capture_64_FULL")
    for _ in range(3):
        run.step("decode", 8, 8, marker="execute_context_0(0)_generation_8(8)")
    result = find_phases(*run.build())
    check_truth(run, result)
    assert phases(result) == run.steps
    assert column(result, "excluded") == [True, True, False, False, False]
    assert result.trust["steps_excluded"] == 2
    counted = result.kernels.filter("in_window")
    assert result.window_start_ns == counted["start_ns"].min() == result.steps["start_ns"][2]


def test_draft_passes_between_marked_verify_steps_are_other(mini):
    run = mini(layers=12)
    for _ in range(3):
        for _ in range(2):
            run.step("other", 8, 8, layers=1, sampler=False, gather=False)
        run.step("decode", 24, 8, marker="execute_context_0(0)_generation_8(24)")
    result = find_phases(*run.build())
    check_truth(run, result)
    assert phases(result) == run.steps
    assert result.layers == 12


def test_lost_launch_calls_are_bridged_by_their_neighbours_and_called_ambiguous(mini):
    run = mini()
    for _ in range(4):
        run.step("decode", 8, 8, marker="execute_context_0(0)_generation_8(8)")
    for lost in (60, 61, 99):
        run.calls.pop(lost)
    result = find_phases(*run.build())
    check_truth(run, result)
    assert result.trust["kernels_without_launch"] == 3
    assert result.trust["ambiguous_pct"] == pytest.approx(100 * 3 / len(run.rows))


def test_text_that_leaves_the_phase_open_is_settled_by_the_kernels(mini):
    run = mini()
    run.step("decode", 8, 8, marker="execute_new_0_cached_8")
    run.step("mixed", 508, 9, marker="execute_new_1_cached_8")
    run.step("mixed", 308, 9, marker="execute_new_0_cached_9")  # a later chunk counts as cached
    run.step("decode", 9, 9, marker="execute_new_0_cached_9")
    result = find_phases(*run.build())
    check_truth(run, result)
    assert phases(result) == run.steps
    assert column(result, "prefill_tokens") == [0, 500, 300, 0]
    assert column(result, "decode_requests") == [8, 8, 8, 9]


def test_ranges_on_gpu_time_hold_kernels_where_no_cpu_range_does(mini):
    run = mini(with_launches=False)
    for bs in (8, 9):
        begin = run.now
        run.step("decode", bs, bs)
        run.range(f"step[DECODE bs={bs}]", begin, run.now)
        run.ranges[-1] |= {"kind": "gpu_annotation", "thread": -1, "device_index": 0, "stream": 7}
    result = find_phases(*run.build())
    check_truth(run, result)
    assert column(result, "decode_requests") == [8, 9]
    assert set(result.steps["evidence"].cast(str)) == {"marker"}
