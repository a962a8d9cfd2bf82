"""Graph replays recorded as one row each, or not at all, and what the graph table says of replays that are."""

import polars as pl
import pytest

from trace_analyze.analysis.phases import find_phases
from trace_analyze.analysis.phases.graph_replays import with_padding


def phases(result):
    return result.steps["phase"].cast(str).to_list()


def decode_step(run, requests, graph_id=1):
    """A decode step whose graph is one row: metadata before it, lm_head and sampler after it."""
    run.kernel("metadata", phase="decode")
    run.whole_graph(200_000, graph_id=graph_id)
    run.steps.pop()
    run.kernel("vectorized_gather_kernel", (requests, 2, 1), phase="decode")
    run.kernel("gemm_lm_head", phase="decode")
    run.kernel("sampler", (requests, 1, 1), phase="decode", gap=40_000)


def test_each_whole_graph_row_is_a_decode_step(mini):
    run = mini()
    run.step("prefill", 700, 1)
    for requests in (1, 2, 2, 3):
        decode_step(run, requests, graph_id=requests)
    result = find_phases(*run.build())
    assert phases(result) == ["prefill", "decode", "decode", "decode", "decode"]
    assert result.steps["evidence"].cast(str).to_list()[1:] == ["graph_replay"] * 4
    assert result.steps["decode_requests"].to_list() == [0, 1, 2, 2, 3]
    assert result.steps["graph_id"].to_list() == [None, 1, 2, 2, 3]
    assert result.opaque_graphs
    assert result.steps["kernel_count"].to_list()[1:] == [4] * 4
    assert all(busy >= 200_000 for busy in result.steps["busy_ns"].to_list()[1:])  # never idle inside a replay
    assert result.layers == 4  # what runs inside is not known: layers come from the prefill
    graphs = {row["graph_id"]: row for row in result.graphs.rows(named=True)}
    assert (graphs[2]["replays"], graphs[2]["nodes"], graphs[2]["padding_ms"]) == (2, None, None)


def test_whole_graph_rows_alone_keep_the_window_and_their_markers(mini):
    run = mini()
    for bs in (8, 8, 9):
        begin = run.cpu + 1
        run.whole_graph(300_000)
        run.range(f"step[DECODE bs={bs}]", begin, run.cpu + 1)
    result = find_phases(*run.build())
    assert phases(result) == ["decode"] * 3
    assert result.steps["decode_requests"].to_list() == [8, 8, 9]
    assert result.steps["kernel_count"].to_list() == [0, 0, 0]
    assert (
        result.window_end_ns - result.window_start_ns
        == run.whole_graphs[-1]["end_ns"] - run.whole_graphs[0]["start_ns"]
    )
    assert result.kernels.height == 0


def test_small_graphs_between_eager_attention_are_pieces_of_one_step(mini):
    run = mini()
    for _ in range(3):
        run.steps.append("mixed")
        for layer in range(4):
            run.whole_graph(20_000, graph_id=layer)
            run.steps.pop()
            run.kernel("cache_write", (300, 1, 1), phase="mixed")
            run.kernel("attention_causal", phase="mixed")
        run.whole_graph(20_000, graph_id=9)
        run.steps.pop()
        run.kernel("vectorized_gather_kernel", (5, 2, 1), phase="mixed")
        run.kernel("gemm_lm_head", phase="mixed")
        run.kernel("sampler", (5, 1, 1), phase="mixed", gap=40_000)
    result = find_phases(*run.build())
    assert result.steps.height == 3
    assert result.steps["padded_tokens"].to_list() == [None] * 3  # what the graphs were captured for is not recorded
    assert result.layers == 4


def test_replays_that_left_no_record_still_part_the_steps(mini):
    run = mini()
    run.step("prefill", 700, 1)
    for _ in range(4):
        run.steps.append("decode")
        run.kernel("metadata", phase="decode")
        run.correlation += 1
        run.call("graph", 0, run.correlation)
        run.now += 300_000
        run.kernel("gemm_lm_head", phase="decode")
        run.kernel("sampler", (1, 1, 1), phase="decode", gap=40_000)
    result = find_phases(*run.build())
    assert phases(result) == run.steps
    assert [step for step, _ in run.truth] == result.kernels["step"].to_list()
    assert result.opaque_graphs
    assert result.trust["launches_without_kernel"] == 4


def test_steps_that_fell_out_of_the_graphs_and_why(mini):
    run = mini()
    for _ in range(4):
        run.step("decode", 8, 7, graph=1000)
    run.step("prefill", 900, 1)
    run.step("decode", 8, 8, graph=1000)
    run.step("decode", 9, 9)  # above the largest graph replayed
    run.step("decode", 8, 8, graph=1000)
    result = find_phases(*run.build())
    assert phases(result) == run.steps
    outside = result.trust["steps_outside_graphs"]
    assert {why: found["steps"] for why, found in outside.items()} == {
        "batch above the largest graph replayed": 1,
        "holds a prompt": 1,
    }


def test_two_captured_sizes_are_two_graphs_with_their_own_padding(mini):
    run = mini()
    for requests in (7, 8):
        run.step("decode", 8, requests, graph=1000)
    for requests in (117, 120):
        run.step("decode", 128, requests, graph=5000)
    graphs = {row["batch"]: row for row in find_phases(*run.build()).graphs.rows(named=True)}
    assert sorted(graphs) == [8, 128]
    assert graphs[128]["real_batch_median"] == 118.5
    # both graphs take as long: the rows beyond eight cost nothing, padded or not
    assert graphs[128]["padding_ms"] == 0.0
    assert graphs[128]["padded_rows_pct"] == pytest.approx(100 * (11 + 8) / 256)
    # nothing smaller was replayed to compare with
    assert graphs[8]["padding_ms"] is None
    assert "no smaller graph" in graphs[8]["padding_reason"]
    assert graphs[8]["padded_rows_pct"] == pytest.approx(100 * 1 / 16)


def test_padded_rows_cost_what_rows_cost_between_two_captured_sizes():
    sizes = {"batch": [8, 16, 32], "padded_rows": [6, 20, 0], "rows": [80, 320, 320], "replay_ns": [10e6, 12e6, 11e6]}
    frame = pl.DataFrame({"graph_id": [1, 2, 3], "device_index": [0, 0, 0]} | sizes)
    found = with_padding(frame)
    # from 8 to 16 rows a replay takes 2 ms longer: 0.25 ms a row, 20 padded rows
    assert found["padding_ms"].to_list() == [None, pytest.approx(5.0), 0.0]
    assert found["padded_rows_pct"].to_list() == [7.5, 6.25, 0.0]
    assert [reason is not None for reason in found["padding_reason"]] == [True, False, False]
    # on another device the sizes are other graphs
    apart = with_padding(frame.with_columns(device_index=pl.Series([0, 1, 2])))
    assert apart["padding_ms"].to_list() == [None, None, 0.0]
