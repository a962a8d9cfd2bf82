"""Steps and phases without markers, from the order of kernels alone."""

import pytest

from trace_analyze.analysis.phases import find_phases


def phases(result):
    return result.steps["phase"].cast(str).to_list()


def check_truth(run, result):
    """Every kernel lies in its own step and has its step's phase; lists those that do not."""
    wrong = [
        (row, step, truth)
        for row, (step, truth) in enumerate(zip(result.kernels["step"].to_list(), run.truth, strict=True))
        if step != truth[0]
    ]
    assert wrong == []
    assert phases(result) == run.steps


def test_decode_steps_of_one_request_each_close_with_their_sampler(mini):
    run = mini()
    for _ in range(6):
        run.step("decode", 8, 8)
    result = find_phases(*run.build())
    check_truth(run, result)
    assert result.steps["decode_tokens"].to_list() == [8] * 6
    assert result.steps["decode_requests"].to_list() == [8] * 6
    assert result.steps["evidence"].cast(str).to_list() == ["launch_geometry"] * 6
    assert result.layers == 4


def test_prefill_between_decode_steps_of_an_engine_that_prefills_apart(mini):
    run = mini()
    for _ in range(4):
        run.step("decode", 8, 8)
    run.step("prefill", 2048, 2)
    for _ in range(4):
        run.step("decode", 10, 10)
    result = find_phases(*run.build())
    check_truth(run, result)
    assert result.steps["prefill_tokens"].to_list() == [0] * 4 + [2048] + [0] * 4
    assert result.steps["prefill_requests"][4] == 2


def test_chunk_mixed_with_decode_is_mixed_and_split_by_the_batch_before(mini):
    run = mini()
    for _ in range(4):
        run.step("decode", 8, 8)
    run.step("mixed", 2056, 9)
    for _ in range(4):
        run.step("decode", 9, 9)
    result = find_phases(*run.build())
    check_truth(run, result)
    mixed = result.steps.row(4, named=True)
    assert (mixed["prefill_requests"], mixed["prefill_tokens"]) == (1, 2048)
    assert (mixed["decode_requests"], mixed["decode_tokens"]) == (8, 8)


def test_attention_of_both_kinds_in_one_step_is_mixed_and_keeps_its_own_phase(mini):
    run = mini().step("decode", 4, 4, attention="attention_decode")
    run.step("mixed", 516, 5, attention=("attention_decode", "attention_context"))
    run.step("decode", 5, 5, attention="attention_decode")
    result = find_phases(*run.build())
    check_truth(run, result)
    inside = result.kernels.filter(result.kernels["step"] == 1)
    attention = inside.filter(inside["op_class"] == "attention")
    assert sorted(set(attention["phase"].cast(str))) == ["decode", "prefill"]
    assert set(attention["evidence"].cast(str)) == {"kernel_name"}
    others = inside.filter(inside["op_class"] != "attention")
    assert set(others["phase"].cast(str)) == {"mixed"}
    assert set(others["evidence"].cast(str)) == {"step_context"}


def test_graph_replay_is_one_decode_step_and_its_padding_is_not_prefill(mini):
    run = mini()
    for _ in range(5):
        run.step("decode", 8, 6, graph=1000)  # six requests in a graph captured for eight
    result = find_phases(*run.build())
    check_truth(run, result)
    assert set(result.steps["evidence"].cast(str)) == {"graph_replay"}
    assert result.steps["padded_tokens"].to_list() == [8] * 5
    assert result.steps["decode_requests"].to_list() == [6] * 5
    graph = result.graphs.row(0, named=True)
    assert (graph["batch"], graph["replays"], graph["nodes"], graph["real_batch_median"]) == (8, 5, 42, 6.0)
    assert graph["padding_ms"] == pytest.approx(5 * 42 * 0.005 * 2 / 8)


def test_single_user_prompts_between_their_own_decodes(mini):
    run = mini()
    for phase, tokens in [
        ("prefill", 100),
        ("decode", 1),
        ("decode", 1),
        ("prefill", 77),
        ("decode", 1),
        ("decode", 1),
    ]:
        run.step(phase, tokens, 1)
    result = find_phases(*run.build())
    check_truth(run, result)
    assert result.steps["prefill_tokens"].to_list() == [100, 0, 0, 77, 0, 0]


def test_router_softmax_of_every_layer_is_no_sampler(mini):
    run = mini(layers=6)
    for _ in range(3):
        run.step("decode", 8, 8, attention=("attention_any", "router_softmax"))
    result = find_phases(*run.build())
    check_truth(run, result)


def test_pipeline_stage_without_embedding_or_sampler_is_cut_at_its_sends(mini):
    run = mini(layers=6)
    for _ in range(4):
        run.step(
            "decode", 8, 8, embedding=False, sampler=False, gather=False, lm_head=False, attention="attention_decode"
        )
        run.kernel("send_recv", phase="decode")
    result = find_phases(*run.build())
    check_truth(run, result)


def test_no_attention_means_no_steps(mini):
    run = mini()
    for _ in range(30):
        run.steps.append("unknown")
        run.kernel("gemm_up")
        run.kernel("silu", (50, 1, 1))
    result = find_phases(*run.build())
    assert not result.autoregressive
    assert result.reasons == ("no autoregressive phases found",)
    assert result.steps.height == 0
    assert set(result.kernels["phase"].cast(str)) == {"unknown"}
