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
    assert graph["padded_rows_pct"] == 25.0
    assert graph["padding_ms"] is None  # no smaller graph to compare with


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


def test_two_halves_of_a_batch_on_two_streams_are_one_step(mini):
    run = mini(layers=6)
    for _ in range(3):
        run.step("decode", 16, 16)
    run.steps.append("decode")
    common = {"phase": "decode"}
    run.kernel("embedding_kernel", (16, 1, 1), **common)
    rows = (8, 1, 1)
    layer = [("rms_norm", rows), ("gemm_qkv", (1, 1, 1)), ("rotary", rows), ("cache_write", rows), ("attention_any", (1, 8, 8)),
             ("gemm_o", (1, 1, 1)), ("rms_norm", rows), ("gemm_up", (1, 1, 1)), ("silu", rows), ("gemm_down", (1, 1, 1))]  # fmt: skip
    halves = layer * 6
    for place in range(len(halves) + 4):  # the second half runs four kernels behind the first
        if place < len(halves):
            run.kernel(*halves[place], stream=7, **common)
        if place >= 4:
            run.kernel(*halves[place - 4], stream=13, **common)
    run.kernel("rms_norm", (16, 1, 1), **common)
    run.kernel("gemm_lm_head", **common)
    run.kernel("sampler", (16, 1, 1), **common)
    for _ in range(3):
        run.step("decode", 16, 16)
    result = find_phases(*run.build())
    check_truth(run, result)
    assert result.steps["padded_tokens"].to_list() == [16] * 7
    assert result.layers == 6


def test_short_prompt_beside_decoding_requests_is_mixed_whatever_the_attention_tile(mini):
    run = mini()
    for _ in range(3):
        run.step("decode", 8, 8, attention="flash_attn_ext_vec<128, 1>")
    run.step("mixed", 13, 9, attention="flash_attn_ext_vec<128, 1>")  # a prompt's last five tokens
    for _ in range(3):
        run.step("decode", 9, 9, attention="flash_attn_ext_vec<128, 1>")
    result = find_phases(*run.build())
    check_truth(run, result)
    assert result.steps["prefill_tokens"].to_list() == [0, 0, 0, 5, 0, 0, 0]
    inside = result.kernels.filter(result.kernels["step"] == 3)
    assert set(inside["phase"].cast(str)) == {"mixed"}  # one launch serves both


def test_prompt_served_from_the_prefix_cache_is_prefill(mini):
    run = mini()
    for tokens in (4, 2):  # few tokens are left to compute
        run.step("prefill", tokens, 1, attention="flash_attn_ext_vec<128, 1>")
        run.step("decode", 1, 1, attention="flash_attn_ext_vec<128, 1>")
    check_truth(run, find_phases(*run.build()))


@pytest.mark.parametrize("kernel, phase", [("alloc_extend_kernel", "prefill"), ("alloc_decode_kernel", "decode")])
def test_one_token_prompt_is_told_from_a_decode_step_by_the_metadata_alone(mini, kernel, phase):
    run = mini()
    for _ in range(2):
        run.now += 60_000
        run.steps.append(phase)
        run.kernel(kernel, phase=phase)
        run.steps.pop()
        run.step(phase, 1, 1, idle_us=1)
    result = find_phases(*run.build())
    assert phases(result) == [phase] * 2


def test_sampler_nobody_knows_leaves_the_gather_and_the_copy_to_the_host(mini):
    run = mini(layers=6)
    for _ in range(4):
        run.step("decode", 8, 8, sampler=False, embedding=False, gather=False, attention="attention_decode")
        run.copy("d2h", 64)
    result = find_phases(*run.build())
    check_truth(run, result)


def test_encoder_with_attention_and_embedding_has_no_phases(mini):
    run = mini()
    for _ in range(4):
        run.step("unknown", 512, 8, sampler=False, lm_head=False, gather=False)
    for row in run.rows:
        row["name"] = "fill" if row["name"] == "cache_write" else row["name"]
    result = find_phases(*run.build())
    assert not result.autoregressive
    assert result.steps.height == 0


@pytest.mark.parametrize("attention", ["attention_decode", ("attention_decode", "attention_any")])
def test_one_name_that_no_rule_knows_vetoes_no_sure_decode_kernel(mini, attention):
    # neither the cache write nor the sampler is known, and a second attention kernel may say nothing
    run = mini()
    for _ in range(5):
        run.step("decode", 8, 8, sampler=False, attention=attention)
    for row in run.rows:
        row["name"] = "fill" if row["name"] == "cache_write" else row["name"]
    result = find_phases(*run.build())
    assert result.autoregressive
    check_truth(run, result)


def test_training_has_no_phases(mini):
    run = mini()
    for _ in range(3):
        run.step("unknown", 512, 512, attention=("attention_any", "flash_bwd_kernel"))
    assert find_phases(*run.build()).reasons == ("no autoregressive phases found",)


@pytest.mark.parametrize("phase, tokens", [("prefill", 900), ("decode", 24)])
def test_worker_that_only_prefills_or_only_decodes(mini, phase, tokens):
    run = mini()
    for n in range(5):
        run.step(phase, tokens + n, 1 if phase == "prefill" else tokens + n)
    result = find_phases(*run.build())
    check_truth(run, result)


def test_verify_steps_stay_decode_and_show_their_width(mini):
    run = mini(layers=12)
    for _ in range(3):
        for _ in range(2):
            run.step("other", 8, 8, layers=1, sampler=False, gather=False)
        run.step("decode", 24, 8, attention="attention_causal", sampler=False, gather=False)
        run.kernel("rejection_greedy_sample_kernel", (8, 1, 1), phase="decode")
    result = find_phases(*run.build())
    check_truth(run, result)
    verify = result.steps.filter(result.steps["phase"] == "decode")
    assert verify["verify_width"].to_list() == [3] * 3
    assert verify["decode_tokens"].to_list() == [24] * 3
    assert result.steps.filter(result.steps["phase"] == "other")["decode_tokens"].to_list() == [0] * 6


def test_prompt_chunked_over_steps_finishes_once(mini):
    run = mini()
    for _ in range(3):
        run.step("decode", 8, 8)
    for tokens in (2056, 2056, 700):
        run.step("mixed", tokens, 9)
    for _ in range(3):
        run.step("decode", 9, 9)
    result = find_phases(*run.build())
    check_truth(run, result)
    assert result.steps["prompts_finished"].to_list() == [0, 0, 0, 0, 0, 1, 0, 0, 0]
    assert result.steps["prefill_tokens"].to_list()[3:6] == [2048, 2048, 692]
    assert result.steps["decode_requests"].to_list()[3:6] == [8, 8, 8]
