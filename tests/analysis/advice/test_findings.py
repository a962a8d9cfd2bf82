"""Findings: every rule fires on a run made for it, says its number, and is silent on a calm run."""

import polars as pl
import pytest

from trace_analyze.analysis.advice.findings import find_findings
from trace_analyze.analysis.advice.what_if import what_would_help
from trace_analyze.analysis.records.host import HostParts, HostSide
from trace_analyze.analysis.records.tables import COLLECTIVES, GRAPHS, KERNEL_TABLE
from trace_analyze.analysis.records.trace import CaptureFacts, ServingFacts
from trace_analyze.analysis.records.trust import Clocks
from trace_analyze.analysis.records.work import WorkTrust
from trace_analyze.analysis.summary.summary_input import SummaryInput
from trace_analyze.analysis.time.collectives import CollectiveResult, split_collectives
from trace_analyze.analysis.time.stalls import find_gaps_and_stalls
from trace_analyze.analysis.time.time_accounting import account_time
from trace_analyze.fixtures.hand_frames import A100, MS, NO_DOUBTS, HandRun, frame

BUSY_BATCH = 200  # above a quarter of the ridge batch of 153

NO_BUBBLES = HostSide(bubble_ms=None, bubble_ms_reason="no launches")


def bubbles(**parts_ms) -> HostSide:
    """80 ms of bubbles, a sixth of decode time, 2 ms per step."""
    return HostSide(
        bubble_ms=80.0,
        bubble_ms_per_decode_step=2.0,
        share_of_decode_pct=16.7,
        parts_ms=HostParts(**dict.fromkeys(HostParts.__struct_fields__, 0.0) | parts_ms),
    )


def findings_of(run: HandRun, *, host=None, collectives=None, opaque=False, target=None, **more):
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
    if collectives is None:
        collectives = split_collectives(made.kernels, made.steps, made.groups, made.trace.names, made.trace.devices)
    stalls = find_gaps_and_stalls(made.steps, made.groups, time, collectives.waits)
    given = {"ceilings": (A100,), **more}
    found = SummaryInput(
        made.trace, made.kernels, made.steps, made.groups, time, stalls, phase_trust=NO_DOUBTS, **given
    )
    what_if = what_would_help(found, itl_target_ms=target)
    return {f.id: f for f in find_findings(found, collectives, host or NO_BUBBLES, what_if)}


def calm(times=40) -> HandRun:
    return HandRun().step("decode", 10, times=times, decode_requests=BUSY_BATCH, decode_tokens=BUSY_BATCH)


def table(*rows) -> pl.DataFrame:
    plain = {"count": 100, "phase": "decode", "bound": "memory", "dtype": "bf16"}
    given = [plain | {"name": row["short_name"], **row} for row in rows]
    schema = {k: v for k, v in KERNEL_TABLE.items() if k != "evidence"}
    return frame(schema, given)


def test_a_calm_run_gives_no_finding():
    assert findings_of(calm()) == {}


def test_prefill_interference_names_the_chunk_and_the_fitted_step():
    run = HandRun()
    for size in (8184, 8184, 4000, 2000, 8184, 1000, 500, 300):
        run.step("decode", 10, times=8, decode_requests=8, decode_tokens=8)
        decode = {"decode_requests": 8, "decode_tokens": 8, "prefill_requests": 1, "prompts_finished": 0}
        run.step("mixed", 6 + 0.042 * (size + 8), prefill_tokens=size, **decode)
    finding = findings_of(run.step("decode", 10, decode_requests=8, decode_tokens=8))["prefill_interference"]
    assert finding.recoverable_ms == pytest.approx(
        sum(6 + 0.042 * (s + 8) - 10 for s in (8184, 8184, 4000, 2000, 8184, 1000, 500, 300))
    )
    assert finding.sentence.startswith(
        "Prefill held up to 8 requests for 1.33 s in 8 episodes: token gaps up to 350 ms"
    )
    assert "instead of 10 ms" in finding.sentence
    assert finding.lever == "a chunk of 8,192 tokens makes a 350 ms step; at 2,048 the fitted step time is 92.2 ms"
    target = findings_of(run, target=50.0)["prefill_interference"]
    assert "keep token gaps under 50 ms" in target.lever


def test_a_chunk_of_8192_tokens_and_its_3500_ms_step():
    # users' S02: mixed steps of 3500 ms, decode steps of 33 ms
    run = HandRun().step("decode", 33, times=10, decode_requests=6, decode_tokens=6)
    mixed = {"decode_requests": 6, "decode_tokens": 6, "prefill_requests": 1}
    run.step("mixed", 3500, times=3, prefill_tokens=8186, **mixed)
    finding = findings_of(run.step("decode", 33, times=10, decode_requests=6, decode_tokens=6))["prefill_interference"]
    assert finding.lever == (
        "a step of 8,192 tokens takes 3.5 s; chunks of half that size about halve the token gap and delay the first token"
    )


def test_one_stall_has_a_lever_without_a_model():
    run = calm(20).step("prefill", 240, prefill_requests=1, prompts_finished=1, prefill_tokens=2048)
    finding = findings_of(run.step("decode", 10, times=20, decode_requests=BUSY_BATCH + 1))["prefill_interference"]
    assert finding.recoverable_ms == 240
    assert finding.lever == (
        "a step of 2,048 tokens takes 240 ms; chunks of half that size about halve the token gap and delay the first token"
    )


@pytest.mark.parametrize(
    ("tokens", "lever"),
    [
        (1024, "a step of 1,024 tokens takes 240 ms; chunks of half that size"),
        (512, "prefill on other devices than decode, as chunks of 512 tokens are small already"),
    ],
)
def test_chunks_down_to_512_tokens_can_be_halved(tokens, lever):
    run = calm(20).step("prefill", 240, prefill_requests=1, prompts_finished=1, prefill_tokens=tokens)
    run.step("decode", 10, times=20, decode_requests=BUSY_BATCH + 1)
    assert findings_of(run)["prefill_interference"].lever.startswith(lever)


def test_a_target_without_an_answer_is_not_passed_over():
    run = calm(20).step("prefill", 240, prefill_requests=1, prompts_finished=1, prefill_tokens=2048)
    run.step("decode", 10, times=20, decode_requests=BUSY_BATCH + 1)
    lever = findings_of(run, target=50.0)["prefill_interference"].lever
    assert "no chunk for gaps of 50 ms: the step-time model is refused: " in lever


def test_small_decode_batch():
    finding = findings_of(HandRun().step("decode", 10, times=40, decode_requests=4, decode_tokens=4))[
        "small_decode_batch"
    ]
    assert finding.sentence.startswith("Decode runs 4 requests a step, 2.6% of the ridge batch of 153")
    assert finding.recoverable_ms is None  # no model of the step time: nothing is promised


def test_padded_graphs():
    graphs = frame(
        GRAPHS,
        [
            {
                "graph_id": 3,
                "device": 0,
                "batch": 512,
                "replays": 40,
                "nodes": 500,
                "real_batch_median": 300.0,
                "padding_ms": 45.0,
            }
        ],
    )
    finding = findings_of(calm(), graphs=graphs)["padded_graphs"]
    assert finding.recoverable_ms == 45
    assert "graph of 512 rows served a median of 300 requests" in finding.sentence
    assert findings_of(calm(), graphs=graphs.with_columns(padding_ms=0.5)) == {}
    full = graphs.with_columns(real_batch_median=pl.lit(512.0))  # a size that fits is no finding
    assert findings_of(calm(), graphs=full) == {}
    unknown = graphs.with_columns(padding_ms=pl.lit(None, dtype=pl.Float64))
    assert findings_of(calm(), graphs=unknown) == {}


def test_a_speculating_batch_is_measured_by_its_tokens():
    drafted = HandRun().step("decode", 10, times=40, decode_requests=8, decode_tokens=32)
    sentence = findings_of(drafted)["small_decode_batch"].sentence
    assert sentence.startswith("Decode runs 8 requests (32 tokens) a step, 21% of the ridge batch of 153")
    wide = HandRun().step("decode", 10, times=40, decode_requests=8, decode_tokens=64)  # 42% of the ridge batch
    assert findings_of(wide) == {}


def test_host_bound_decode_names_its_ms():
    host = bubbles(waiting=10.0, kernel_launch=70.0)
    finding = findings_of(calm(), host=host)["host_bound_decode"]
    assert finding.sentence == (
        "The GPU waits for the host for 80 ms, 17% of decode time; most of it is kernel launch (70 ms)"
    )
    assert finding.lever == "capture decode steps in CUDA graphs"
    graphs = HandRun().step("decode", 10, times=40, decode_requests=BUSY_BATCH, graph_id=3)
    assert "CUDA graphs" not in findings_of(graphs, host=host)["host_bound_decode"].lever
    assert findings_of(calm(), host=NO_BUBBLES) == {}


def test_collective_waiting_names_the_late_device():
    rows = [{"name": "all_reduce", "group": 0, "phase": "decode", "count": 9, "transfer_ms": 5.0, "wait_ms": 25.0}]
    rows[0] |= {"late_device": 3, "total_ms": 30.0}
    finding = findings_of(calm(), collectives=CollectiveResult(frame(COLLECTIVES, rows), {}))["collective_waiting"]
    assert finding.recoverable_ms == 25
    assert "device 3" in finding.sentence


def test_kernel_rules():
    attention = {"op_class": "attention", "short_name": "mmha", "total_ms": 60.0, "bound": "latency"}
    attention |= {"sm_coverage_pct": 30.0, "headroom_ms": 50.0, "blocks": 32}
    found = findings_of(
        calm(),
        kernel_table=table(
            attention,
            {"op_class": "elementwise", "short_name": "add", "total_ms": 40.0},
            {"op_class": "sampling", "short_name": "topk", "total_ms": 30.0},
            {"op_class": "gemm", "short_name": "sgemm", "total_ms": 20.0, "dtype": "fp32"},
            {"op_class": "gemm", "short_name": "hgemm", "total_ms": 200.0},
        ),
    )
    assert list(found) == [
        "low_occupancy_attention",
        "unfused_kernels",
        "sampling_on_critical_path",
        "wrong_dtype",
    ]
    assert [f.recoverable_ms for f in found.values()] == [50, 40, 30, 10]
    assert "covers 30% of the SMs" in found["low_occupancy_attention"].sentence
    assert found["wrong_dtype"].lever == "run sgemm in bf16"


def test_kernels_of_an_all_fp32_model_are_not_in_a_wrong_type():
    only = table({"op_class": "gemm", "short_name": "sgemm", "total_ms": 200.0, "dtype": "fp32"})
    assert findings_of(calm(), kernel_table=only) == {}


def test_capture_findings_follow_and_keep_their_place():
    run = calm().graph(0, MS)
    run.capture = CaptureFacts(source_name="x", format="nsys_sqlite", serving=ServingFacts(tensor_parallel=4))
    host = bubbles(waiting=80.0)
    found = findings_of(
        run,
        opaque=True,
        host=host,
        work_trust=clocked(1100.0),
        kernel_table=table(
            {"op_class": "elementwise", "short_name": "add", "total_ms": 40.0},
            {"op_class": "sampling", "short_name": "topk", "total_ms": 30.0},
            {"op_class": "gemm", "short_name": "sgemm", "total_ms": 20.0, "dtype": "fp32"},
            {"op_class": "gemm", "short_name": "hgemm", "total_ms": 200.0},
        ),
    )
    assert list(found)[-2:] == ["opaque_graphs", "ranks_missing"]
    assert len(found) == 5
    assert all(f.kind == "serving" for f in list(found.values())[:3])


def clocked(sm_clock_mhz: float) -> WorkTrust:
    return WorkTrust(gpu_time_by_work_source={}, clocks=Clocks(sm_clock_mhz=sm_clock_mhz), contradictions=())


def test_low_clocks():
    found = findings_of(calm(), work_trust=clocked(1100.0))
    assert "78% of the 1,410 MHz" in found["clocks_low"].sentence
    assert findings_of(calm(), work_trust=clocked(1380.0)) == {}


def test_every_rule_is_documented(request):
    text = (request.config.rootpath / "docs" / "findings.md").read_text()
    from trace_analyze.analysis.advice import findings

    for rule in (*findings.SERVING, *findings.CAPTURE):
        assert f"`{rule.__name__}`" in text
