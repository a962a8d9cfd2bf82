"""The summary: every number from hand-made runs, every null with its reason, the verdict and the sentence."""

from dataclasses import replace

import polars as pl
import pytest
from msgspec import structs

from trace_analyze.analysis.records.advice import Finding, RanksMissing
from trace_analyze.analysis.records.summary import ByPhase, Spread
from trace_analyze.analysis.records.trace import FRAMES, CaptureFacts, Diagnostic, ServingFacts
from trace_analyze.analysis.records.trust import Contradiction
from trace_analyze.analysis.summary.device_rows import device_rows
from trace_analyze.analysis.summary.step_numbers import spread
from trace_analyze.analysis.summary.summarise import summarise
from trace_analyze.analysis.summary.summary_input import SummaryInput
from trace_analyze.analysis.time.stalls import find_gaps_and_stalls
from trace_analyze.analysis.time.time_accounting import account_time
from trace_analyze.fixtures.hand_frames import A100, MS, NO_DOUBTS, HandRun, frame

KEYS = [
    "capture_ms",
    "window_ms",
    "gpu_busy_ms",
    "copy_only_ms",
    "gpu_idle_ms",
    "nvml_utilization_pct",
    "kernel_count",
    "step_count",
    "phase_ms",
    "phase_pct",
    "decode_step_ms",
    "inter_token_gap_ms",
    "decode_mbu_kernel_pct",
    "decode_mbu_wall_pct",
    "prefill_mfu_kernel_pct",
    "prefill_mfu_wall_pct",
    "stall_count",
    "stall_ms",
    "stall_max_ms",
    "stall_pct_of_window",
    "stall_episode_count",
    "stall_episode_max_ms",
    "prefill_without_waiters",
]


def summary_of(run: HandRun, *, opaque=False, doubts=(), **more):
    made = run.build()
    time = account_time(
        made.trace,
        made.kernels,
        made.steps,
        made.groups,
        made.window_start_ns,
        made.window_end_ns,
        opaque_graphs=opaque,
    )
    stalls = find_gaps_and_stalls(made.steps, made.groups, time)
    given = {"ceilings": (A100,), **more}
    trust = structs.replace(NO_DOUBTS, **dict(doubts))
    found = SummaryInput(made.trace, made.kernels, made.steps, made.groups, time, stalls, phase_trust=trust, **given)
    return found, summarise(found)


def serving(mbu=60.0, mfu=50.0) -> HandRun:
    """20 decode steps of 10 ms, a prefill step of 240 ms, 20 decode steps; 1 ms between all of them."""
    run = HandRun()
    for k in range(41):
        if k == 20:
            facts = {"prefill_tokens": 2048, "prefill_requests": 1, "prompts_finished": 1}
            run.step("prefill", 240, mfu_pct=mfu, mbu_pct=5.0, **facts)
        else:
            run.step("decode", 10, decode_requests=8 + (k > 20), mbu_pct=mbu, mfu_pct=1.0, kv_tokens_source="marker")
        run.idle(1)
    return run


def test_numbers_of_a_run():
    _, result = summary_of(serving())
    s = result.summary
    assert s["window_ms"] == 40 * 10 + 240 + 40
    assert s["gpu_busy_ms"] == 640
    assert s["gpu_idle_ms"] == pytest.approx(40)
    assert s["nvml_utilization_pct"] == pytest.approx(100 * 640 / 680)
    assert s.phase_ms == ByPhase(prefill=240, decode=400, mixed=0, other=0, unknown=0)
    assert s["phase_pct"]["prefill"] == 37.5
    assert s.decode_step_ms == Spread(n=40, p50=10, p95=10, p99=10, max=10)
    assert (s["inter_token_gap_ms"]["n"], s["inter_token_gap_ms"]["max"]) == (39, 252)
    assert (s["stall_count"], s["stall_ms"], s["stall_episode_count"]) == (1, 240, 1)
    assert s["stall_pct_of_window"] == pytest.approx(100 * 240 / 680)
    assert (s["kernel_count"], s["step_count"]) == (41, 41)
    # over kernel time each decode step is 10 ms; over wall time 11 ms passed since the one before it
    assert s["decode_mbu_kernel_pct"] == pytest.approx(60)
    assert s["decode_mbu_wall_pct"] == pytest.approx(60 * 10 / 11)
    assert s["prefill_mfu_kernel_pct"] == s["prefill_mfu_wall_pct"] == pytest.approx(50)
    assert (s["decode_tokens"], s["prefill_tokens"], s["decode_batch_p50"]) == (20 * 8 + 20 * 9, 2048, 8.5)
    assert s["decode_mbu_is_lower_bound"] is False
    assert s["reasons"] == {
        "capture_ms": "the capture does not record its own length",
        "mixed_mfu_kernel_pct": "there is no mixed step",
        "mixed_mfu_wall_pct": "there is no mixed step",
        "mixed_step_ms": "there is no mixed step",
    }
    assert (result.status, result.reasons) == ("ok", ())


def test_every_key_is_there_and_every_null_has_a_reason():
    runs = {
        "serving": summary_of(serving())[1],
        "no gpu": summary_of(serving(None, None), ceilings=())[1],
        "prefill only": summary_of(HandRun().step("prefill", 50, times=4))[1],
        "no phases": summary_of(HandRun().kernel(0, MS), autoregressive=False)[1],
        "nothing": summary_of(HandRun())[1],
        "opaque": summary_of(HandRun().graph(0, MS).step("decode", 1, times=9, kernel=False), opaque=True)[1],
    }
    for name, result in runs.items():
        summary = result.summary
        assert set(KEYS) <= set(summary), name
        nulls = {k for k in KEYS if summary[k] is None}
        assert nulls <= set(summary["reasons"]), name
    assert runs["no gpu"].summary["reasons"]["decode_mbu_kernel_pct"] == "the GPU's peak is not known: give --gpu"
    assert runs["no gpu"].status == "partial"
    assert runs["prefill only"].summary["stall_count"] == 0
    assert runs["prefill only"].summary["reasons"]["decode_mbu_kernel_pct"] == "there is no decode step"
    assert runs["no phases"].summary["stall_count"] is None
    assert runs["no phases"].status == "partial"
    assert runs["nothing"].status == "could_not_look"


def test_opaque_graphs_give_no_idle_and_no_mbu():
    # users' F7: 128 decode steps, 6 kernels in each, 64 layers, graph replays opaque
    run = HandRun()
    for _ in range(128):
        run.graph(run.now_ns, run.now_ns + 9 * MS)
        run.step("decode", 10, decode_requests=4, kernel_count=6)
    result = summary_of(run, opaque=True, doubts={"kernels_per_step": 6, "layers": 64})[1]
    assert result.summary["gpu_idle_ms"] is None
    assert "opaque" in result.summary["reasons"]["gpu_idle_ms"]
    assert result.summary["decode_mbu_kernel_pct"] is None
    assert result.status == "could_not_look"
    assert "--cuda-graph-trace=node" in result.reasons[0]
    assert result.summary["headline"].startswith("Could not look: graph replays are opaque")


def test_opaque_decode_beside_recorded_prefill_still_answers_the_stalls():
    run = serving()
    run.graph(0, 1)
    result = summary_of(run, opaque=True, doubts={"kernels_per_step": 1, "layers": 32})[1]
    assert result.status == "partial"
    assert result.summary["stall_count"] == 1


def test_mixed_kv_knowledge_is_a_lower_bound():
    run = serving().step("decode", 10, decode_requests=8, mbu_pct=40.0)
    assert summary_of(run)[1].summary["decode_mbu_is_lower_bound"] is True


def test_stalls_without_baseline_are_not_zero():
    run = HandRun().step("decode", 10, times=2, decode_requests=2)
    run.step("mixed", 90, decode_requests=2, prefill_requests=1)
    summary = summary_of(run)[1].summary
    assert (summary["stall_count"], summary["stall_ms"], summary["stall_max_ms"]) == (1, None, None)
    assert "baseline" in summary["reasons"]["stall_ms"]


def test_one_mixed_step_alone_is_not_a_run_without_stalls():
    result = summary_of(HandRun().step("mixed", 156, decode_requests=37, prefill_requests=9, prefill_tokens=8155))[1]
    assert result.summary["stall_count"] is None
    assert "follow each other" in result.summary["reasons"]["stall_count"]
    cut = summary_of(HandRun().step("decode", 156, decode_requests=37, partial=True))[1]
    assert cut.summary["stall_count"] is None
    assert cut.trust["partial_steps"] == 1
    assert result.summary["headline"] == "A mixed step takes 156 ms on A100-SXM4-80GB (median of 1)."
    assert result.status == "partial"


def test_two_groups_add_up_and_stand_alone():
    made = serving().build()
    steps = pl.concat([made.steps, made.steps.with_columns(group=1, device=1, device_index=1)], how="vertical_relaxed")
    steps = steps.with_columns(pl.int_range(pl.len(), dtype=pl.Int32).alias("step"))
    kernels = pl.concat([made.kernels, made.kernels.with_columns(pl.lit(1, pl.Int32).alias("device_index"))])
    groups = pl.concat(
        [
            made.groups,
            made.groups.with_columns(
                pl.lit(1, pl.Int32).alias("group"), devices=pl.Series([[1]], dtype=pl.List(pl.Int32))
            ),
        ]
    )
    steps = steps.cast(dict(made.steps.schema))
    time = account_time(made.trace, kernels, steps, groups, made.window_start_ns, made.window_end_ns)
    stalls = find_gaps_and_stalls(steps, groups, time)
    found = SummaryInput(made.trace, kernels, steps, groups, time, stalls, ceilings=(A100,), phase_trust=NO_DOUBTS)
    result = summarise(found)
    assert (result.summary["stall_count"], result.summary["stall_ms"]) == (2, 480)
    assert result.summary["gpu_busy_ms"] == 640
    assert result.summary["stall_pct_of_window"] == pytest.approx(100 * 240 / 680)
    assert [g["stall_ms"] for g in result.group_summaries] == [240, 240]
    assert "not detected" in result.summary["reasons"]["stalls_across_groups"]
    assert result.group_summaries[1]["decode_step_ms"]["n"] == 40


def test_device_rows_have_the_time_account_and_the_ceiling():
    found, _ = summary_of(serving())
    row = device_rows(found.trace, found.groups, found.time, found.ceilings)[0]
    assert row["busy_ns"] + row["copy_only_ns"] + row["idle_ns"] == row["window_ns"]
    assert (row["gpu_name"], row["memory_bandwidth_gbps"], row["group"]) == ("NVIDIA A100-SXM4-80GB", 2039.0, 0)
    assert sum(dict(row.phase_ns).values()) == row["busy_ns"]


def test_the_sentence_has_a_number_a_cause_and_a_lever():
    evidence = RanksMissing(ranks_expected=2, devices_with_kernels=1)
    lever = Finding(id="any", sentence="", recoverable_ms=200.0, evidence=evidence, lever="a chunk of 512 tokens")
    assert summary_of(serving(), findings=(lever,))[1].summary["headline"] == (
        "Decode is memory-bound at 60% MBU of A100-SXM4-80GB; 1 prefill step held up to 8 requests for 240 ms "
        "(35% of the window); the largest lever: a chunk of 512 tokens."
    )
    calm = HandRun().step("decode", 10, times=30, decode_requests=1)
    assert summary_of(calm, ceilings=())[1].summary["headline"] == (
        "A decode step takes 10 ms for 1 request on the GPU (median of 30); no decoding request waited for prefill."
    )
    encoder = summary_of(HandRun().kernel(0, 9 * MS).kernel(9 * MS, 10 * MS), autoregressive=False)[1]
    assert encoder.summary["headline"] == (
        "No autoregressive phases found; A100-SXM4-80GB ran kernels for 100% of 10 ms."
    )


def test_a_16_second_prefill_reads_as_one_episode():
    # users' S01
    run = HandRun().step("decode", 3.7, times=50, decode_requests=1)
    run.step("mixed", 150, times=110, decode_requests=1, prefill_requests=1, prefill_tokens=596)
    worst = summary_of(run.step("decode", 3.7, times=50, decode_requests=1))[1].summary["worst_episode"]
    assert (worst["stalls"], worst["steps"], worst["requests_held"]) == (110, 110, 1)
    assert worst["stall_ms"] == pytest.approx(110 * 146.3)
    assert (worst["gap_before_ms"], worst["gap_during_ms"], worst["gap_after_ms"]) == (3.7, 150, 3.7)
    assert worst["tokens_lost"] == pytest.approx(110 * 146.3 / 3.7)


def contradiction(gpu_ms):
    return Contradiction(what="x", steps=1, kernels=1, gpu_ms=gpu_ms, examples=())


def trust_of(run: HandRun, **more):
    return summary_of(run, **more)[1].trust


@pytest.mark.parametrize(
    ("change", "verdict", "why"),
    [
        ({}, "good", ""),
        ({"gpu_time_by_evidence": {"none": 0.05}}, "read with care", "5% of GPU time has no evidence"),
        ({"gpu_time_by_evidence": {"none": 0.3}}, "unreliable", "30% of GPU time has no evidence"),
        ({"kernels_per_step": 12.0, "layers": 32}, "unreliable", "12 kernels per step for 32 layers"),
        ({"contradictions": (contradiction(5.0),)}, "read with care", "1 contradiction"),
        ({"contradictions": (contradiction(500.0),)}, "unreliable", "1 contradiction"),
    ],
)
def test_the_verdict_follows_stated_rules(change, verdict, why):
    trust = trust_of(serving(), doubts=change)
    assert trust["verdict"] == verdict
    assert why in " ".join(trust["verdict_reasons"])


def test_missing_ranks_lost_events_and_one_giant_kernel():
    run = serving()
    run.capture = CaptureFacts(
        source_name="x",
        format="nsys_sqlite",
        serving=ServingFacts(tensor_parallel=4),
        diagnostics=(Diagnostic("warning", "Not all events were collected"),),
        rejected_rows={"end before start": 3},
    )
    trust = trust_of(run)
    assert (trust["ranks_expected"], trust["devices_with_kernels"]) == (4, 1)
    assert trust["verdict"] == "read with care"
    assert len(trust["verdict_reasons"]) == 3
    giant = trust_of(HandRun().kernel(0, 99 * MS).kernel(99 * MS, 100 * MS))
    assert giant["verdict"] == "unreliable"


def test_sampled_activity_stands_under_its_dcgm_names():
    utilization = summary_of(serving())[1].summary["utilization"]
    assert utilization["dcgm_fi_prof_sm_active_pct"] is None
    assert "not sampled" in utilization["dcgm_fi_prof_sm_active_pct_reason"]
    found, _ = summary_of(serving())
    rows = [
        {"time_ns": t * MS, "device_index": 0, "sm_active_pct": 80.0, "dram_read_pct": 50.0, "dram_write_pct": 2.0}
        for t in (10, 20, 9_999)
    ]
    counted = [{"time_ns": 10 * MS, "device_index": 0, "source": "dmon", "utilization_pct": 97.0}]
    trace = replace(
        found.trace, gpu_metrics=frame(FRAMES["gpu_metrics"], rows), counters=frame(FRAMES["counters"], counted)
    )
    sampled = summarise(replace(found, trace=trace)).summary["utilization"]
    assert sampled["dcgm_fi_prof_sm_active_pct"] == 80
    assert sampled["dcgm_fi_prof_dram_active_pct"] == 52
    assert sampled["dcgm_fi_prof_dram_active_pct_source"] == "gpu_metrics"
    assert sampled["dcgm_fi_prof_pipe_tensor_active_pct"] is None
    assert sampled["nvidia_smi_measured_pct"] == 97


def test_chunked_prefill_has_its_mfu_in_mixed_steps():
    run = HandRun().step("decode", 10, times=9, decode_requests=8)
    for mfu in (40.0, 60.0):
        run.step("mixed", 100, decode_requests=8, prefill_requests=1, prefill_tokens=2000, mfu_pct=mfu)
    summary = summary_of(run)[1].summary
    assert summary["mixed_mfu_kernel_pct"] == summary["mixed_mfu_wall_pct"] == pytest.approx(50)
    assert summary["reasons"]["prefill_mfu_kernel_pct"] == "there is no prefill step"


def test_spread():
    assert spread([1, 2, 3, 4])["p50"] == 2.5
    assert spread([])["p99"] is None
