"""Hand-made Analyses for the report's tests: a serving run, a minimal one, a hostile one, a big one.

The figures are invented but hang together (parts sum, ratios follow), so that a page made from them can be judged.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import polars as pl
from msgspec import structs

from trace_analyze.analysis.records import tables
from trace_analyze.analysis.records import trace as t
from trace_analyze.analysis.records.advice import ClocksLow, Finding, PrefillInterference, SmallDecodeBatch, WrongDtype
from trace_analyze.analysis.records.analysis import Analysis
from trace_analyze.analysis.records.devices import Device, Window
from trace_analyze.analysis.records.host import HostParts, HostSide, LaunchesInFlight
from trace_analyze.analysis.records.options import Options
from trace_analyze.analysis.records.summary import ByCause, ByPhase, GroupSummary, Spread, Summary, Utilization
from trace_analyze.analysis.records.trust import Clocks, Trust
from trace_analyze.analysis.records.what_if import (
    BatchPrediction,
    ChunkPrediction,
    Disaggregation,
    StepFit,
    VerifyPrediction,
    WhatIf,
)
from trace_analyze.analysis.records.workload import StepTechnique, Workload

MS = 1_000_000
LAYER = (  # op class, short name, place, us in decode, us per 1,000 prefill tokens, library
    ("norm", "fused_add_rms_norm_kernel", "", 4, 30, "vllm"),
    ("gemm", "ampere_bf16_s16816gemm_bf16_64x64_ldg8_f2f_stages_64x6_tn", "qkv", 48, 900, "cublas"),
    ("rope", "rotary_embedding_kernel", "", 4, 40, "vllm"),
    ("kv_write", "reshape_and_cache_flash_kernel", "", 3, 20, "vllm"),
    ("attention", "flash_fwd_splitkv_kernel", "attention", 60, 800, "flash_attention"),
    ("gemm", "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn", "o", 36, 600, "cublas"),
    ("collective", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "", 22, 300, "nccl"),
    ("norm", "fused_add_rms_norm_kernel", "", 4, 30, "vllm"),
    ("gemm", "ampere_bf16_s16816gemm_bf16_64x64_ldg8_f2f_stages_64x6_tn", "gate_up", 190, 4000, "cublas"),
    ("activation", "act_and_mul_kernel", "", 5, 60, "vllm"),
    ("gemm", "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn", "down", 96, 2000, "cublas"),
    ("collective", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "", 22, 300, "nccl"),
)
TAIL = (
    ("gemm", "ampere_bf16_s16816gemm_bf16_64x64_ldg8_f2f_stages_64x6_tn", "lm_head", 150, 160, "cublas"),
    ("sampling", "_topk_topp_kernel", "", 40, 40, "vllm"),
)
LAYERS = 4
# (phase, prefill tokens, prefill requests, decode requests)
Timed: TypeAlias = tuple[str, int, int, int, int, int]  # phase, tokens, prompts, requests held, start, end
PATTERN = (
    [("decode", 0, 0, 8)] * 20
    + [("prefill", 2048, 1, 0)]
    + [("decode", 0, 0, 9)] * 20
    + [("mixed", 512, 1, 9)] * 5
    + [("decode", 0, 0, 10)] * 14
)


def frame(schema: t.Schema, **columns: Any) -> pl.DataFrame:
    """A frame with exactly ``schema``; columns that are not given are null."""
    height = max((len(c) for c in columns.values() if not np.isscalar(c) and c is not None), default=0)
    data = {
        name: columns[name]
        if not (name not in columns or columns[name] is None or np.isscalar(columns[name]))
        else [columns.get(name)] * height
        for name in schema
    }
    return pl.DataFrame(data, schema=dict(schema), strict=False)


def steps_of(pattern: Sequence[tuple[str, int, int, int]]) -> list[Timed]:
    """Times of the steps of ``pattern``: (phase, prefill tokens, prefill requests, decode requests, start, end)."""
    out, clock = [], 1_000_000
    for phase, tokens, prompts, held in pattern:
        span = sum(d for *_, d in kernel_plan(tokens, held)) + 60_000
        out.append((phase, tokens, prompts, held, clock, clock + span))
        clock += span + 180_000
    return out


def kernel_plan(tokens: int, held: int) -> list[tuple[str, str, str, str, int]]:
    """(op, short, place, library, ns) of a step's kernels."""
    plan = []
    for part, times in ((LAYER, LAYERS), (TAIL, 1)):
        for _ in range(times):
            for op, short, place, decode_us, per_1000, library in part:
                us = (decode_us if held else 0) + per_1000 * tokens / 1000
                plan.append((op, short, place, library, int(max(us, 2) * 1000)))
    return plan


def serving_run() -> Analysis:
    """Two A100s, tensor parallel, 60 steps: decode, one prefill of 2,048 tokens, five mixed steps."""
    times = steps_of(PATTERN)
    rows = []  # start, end, device, stream, name, op, place, phase, step phase, step row, node
    step_rows: list[tuple[Any, ...]] = []
    names: dict[tuple[str, str], int] = {}
    for index, (phase, tokens, prompts, held, start, _) in enumerate(times):
        for device in range(2):
            clock = start + device * 4_000
            row = len(step_rows)
            for op, short, place, _library, ns in kernel_plan(tokens, held):
                own = phase
                if phase == "mixed" and op == "attention":
                    own = "decode"
                name = names.setdefault((f"void {short}<cutlass::bf16_t, {place or op}>(Params)", short), len(names))
                rows.append((clock, clock + ns, device, 7, name, op, place, own, phase, row, held if held else tokens))
                clock += ns + 1_000
            step_rows.append((index, device, phase, tokens, prompts, held, start, clock))
    kernel_rows = sorted(rows)
    k = list(zip(*kernel_rows, strict=True))
    n = len(kernel_rows)
    duration = np.array(k[1]) - np.array(k[0])
    is_gemm = np.array([op == "gemm" for op in k[5]])
    is_attention = np.array([op == "attention" for op in k[5]])
    flop = np.where(is_gemm, np.array(k[10]) * 2.0 * 4096 * 6144, np.where(is_attention, 3.2e8, np.nan))
    bytes_ = np.where(is_gemm, 5.03e7, np.where(is_attention, 6.4e7, np.nan))
    trace_kernels = frame(
        t.KERNELS,
        start_ns=k[0], end_ns=k[1], device_index=k[2], process=1, context=1, stream=k[3], correlation_id=list(range(n)),
        name_id=k[4], grid_x=[128 if g else 9 for g in is_gemm], grid_y=1, grid_z=1, block_x=256, block_y=1, block_z=1,
        registers=128, shared_memory_bytes=49152, cluster_size=0, graph_node_id=-1, graph_id=-1,
    )  # fmt: skip
    with np.errstate(invalid="ignore"):
        mfu = flop / duration / 312e12 * 1e9 * 100
        mbu = bytes_ / duration / 2039e9 * 1e9 * 100
    kernels = trace_kernels.with_columns(
        pl.Series("launch", list(range(n)), pl.Int32),
        pl.Series("op_class", k[5], tables.OP_CLASSES),
        pl.Series("phase", k[7], tables.PHASES),
        pl.Series("step_phase", k[8], tables.PHASES),
        pl.Series("evidence", ["kernel_name" if o == "attention" else "marker" for o in k[5]], tables.EVIDENCE),
        pl.Series("step", k[9], pl.Int32),
        pl.lit(True).alias("in_window"),
        pl.Series("place", k[6]),
        pl.lit(0, pl.Int16).alias("layer"),
        pl.Series("flop", flop).fill_nan(None),
        pl.Series("flop_executed", flop * 1.02).fill_nan(None),
        pl.Series("bytes", bytes_).fill_nan(None),
        pl.Series("bytes_weights", np.where(is_gemm, 4.9e7, np.nan)).fill_nan(None),
        pl.Series("bytes_kv", np.where(is_attention, 6.2e7, np.nan)).fill_nan(None),
        pl.Series("work_source", ["model" if g or a else "unknown" for g, a in zip(is_gemm, is_attention, strict=True)], tables.WORK_SOURCES),
        pl.Series("mfu_pct", mfu, pl.Float32).fill_nan(None),
        pl.Series("mbu_pct", mbu, pl.Float32).fill_nan(None),
    )  # fmt: skip
    s = list(zip(*step_rows, strict=True))
    m = len(step_rows)
    phases = list(s[2])
    kv = np.cumsum([0 if p != "decode" else 9 for p in phases]) + 9000
    steps = frame(
        tables.STEPS,
        step=list(range(m)), index=s[0], device=s[1], device_index=s[1], group=0, start_ns=s[6], end_ns=s[7],
        busy_ns=[e - b - 50_000 for b, e in zip(s[6], s[7], strict=True)], phase=phases,
        evidence="marker", partial=[i == 0 for i in s[0]], excluded=False,
        prefill_tokens=s[3], decode_tokens=s[5], prefill_requests=s[4], decode_requests=s[5],
        padded_tokens=[max(16, x + y) for x, y in zip(s[3], s[5], strict=True)], prompts_finished=s[4],
        kv_tokens=[int(v) if p != "prefill" else None for v, p in zip(kv, phases, strict=True)],
        kv_tokens_source=["tracked" if p != "prefill" else None for p in phases],
        verify_width=1, kernel_count=50, label=[f"execute_context_{b}({a})_generation_{c}({c})" for a, b, c in zip(s[3], s[4], s[5], strict=True)],
        flop=2.1e11, bytes=1.6e10, bytes_weights=1.5e10, bytes_kv=6e8, bytes_activations=4e8, mfu_pct=1.8, mbu_pct=62.4,
    ).sort("group", "index", "device_index")  # fmt: skip
    stalls, gaps = stalls_and_gaps(times)
    table = kernel_table(kernels, names)
    return Analysis(
        trace=serving_trace(trace_kernels, names, times),
        options=Options(gpu="a100-80gb", model="llama-3.1-8b"),
        status="ok",
        reasons=(),
        kernels=kernels,
        devices=tuple(device_row(d, times) for d in range(2)),
        model={
            "name": "llama-3.1-8b", "source": "command line", "layers": 32, "hidden_size": 4096, "heads": 32,
            "kv_heads": 8, "head_dim": 128, "parameters": 8_030_261_248, "weight_dtype": "bf16", "kv_dtype": "bf16",
            "tensor_parallel": 2, "kv_bytes_per_token": 131072,
        },
        window=Window(start_ns=times[0][4], end_ns=times[-1][5], source="capture"),
        trust=TRUST,
        summary=summary_of(times),
        groups=frame(tables.GROUPS, group=[0], devices=[[0, 1]], kind=["tensor_parallel"]),
        group_summaries=(GroupSummary(group=0, kind="tensor_parallel", devices=(0, 1), reasons={}, **step_numbers()),),
        steps=steps,
        stalls=stalls,
        gaps=gaps,
        kernel_table=table,
        op_classes=op_class_table(table),
        idle=frame(tables.IDLE, device=[0, 0, 1], device_index=[0, 0, 1], start_ns=[times[3][5], times[9][5], times[3][5]], end_ns=[times[4][4], times[10][4], times[4][4]], cause=["host_sync", "launch_bound", "unknown"]),
        graphs=frame(tables.GRAPHS, graph_id=[3, 4], device=[0, 0], batch=[8, 16], replays=[20, 34], nodes=[50, 50], real_batch_median=[8.0, 9.5], padding_ms=[0.0, None]),
        collectives=frame(tables.COLLECTIVES, name=["ncclDevKernel_AllReduce_Sum_bf16_RING_LL"] * 2, group=0, phase=["decode", "prefill"], count=[432, 8], transfer_ms=[9.1, 4.9], wait_ms=[1.7, 0.2], late_device=[1, 0], total_ms=[10.8, 5.1]),
        findings=FINDINGS,
        step_table=None,
        measured={},
        roofline=ROOFLINE,
        traffic={"weights_bytes_per_step": 15.0e9, "kv_bytes_per_step": 0.6e9, "activations_bytes_per_step": 0.4e9, "bandwidth_from_kv_growth_gbps": None, "bandwidth_from_kv_growth_gbps_reason": "KV grew by less than 1% over the capture", "bandwidth_from_batch_gbps": 1260.0},
        host=HostSide(
            bubble_ms=10.6, bubble_count=58, bubble_ms_per_decode_step=0.18, share_of_decode_pct=8.1,
            parts_ms=HostParts(waiting=1.7, graph_launch=0.0, kernel_launch=3.5, copies=0.0, sampling=2.3, input_preparation=0.0, scheduling=2.9, unnamed_host_code=0.2),
            dispatch_ms=0.4, scopes_seen=True, launches_in_flight=LaunchesInFlight(p50=3.0, max=12),
        ),
        what_if=WHAT_IF,
        workload=WORKLOAD,
    )  # fmt: skip


def stalls_and_gaps(times: Sequence[Timed]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The inter-token gaps of ``times`` and the stalls among them."""
    bearing = [i for i, s in enumerate(times) if s[3]]
    gaps: list[tuple[Any, ...]] = []
    stalls: list[tuple[Any, ...]] = []
    episode = -1
    previous_stalled = False
    for before, now in itertools.pairwise(bearing):
        start, end = times[before][5], times[now][5]
        gap = (end - start) / MS
        between = list(range(before + 1, now))
        base = 2.05
        ms = sum((times[i][5] - times[i][4]) / MS for i in between)
        closing = times[now]
        if closing[0] == "mixed":
            ms += max(0.0, (closing[5] - closing[4]) / MS - base)
        row = -1
        if ms > 0:
            row = len(stalls)
            episode += not previous_stalled
            stalls.append((row, start, end, ms, "prefill_step" if between else "mixed_step", episode,
                           sum(times[i][1] for i in [*between, now]), closing[3] - (1 if between else 0), base, gap, [*between] or [now]))  # fmt: skip
        previous_stalled = ms > 0
        gaps.append((now, start, end, gap, gap - ms - 0.18, ms, row, closing[3]))
    st = list(zip(*stalls, strict=True))
    g = list(zip(*gaps, strict=True))
    stall_frame = frame(
        tables.STALLS, stall=st[0], group=0, start_ns=st[1], end_ns=st[2], stall_ms=st[3], kind=st[4], episode=st[5], prefill_tokens=st[6],
        prefill_requests=1, requests_held=st[7], request_ms_lost=[a * b for a, b in zip(st[3], st[7], strict=True)], baseline_ms=st[8], baseline_n=52,
        gap_before_ms=2.23, gap_ms=st[9], gap_after_ms=2.23, steps=st[10], reason="",
    )  # fmt: skip
    gap_frame = frame(
        tables.GAPS, group=0, index=g[0], start_ns=g[1], end_ns=g[2], gap_ms=g[3], decode_ms=g[4], prefill_ms=g[5], collective_wait_ms=0.0, copy_ms=0.0,
        idle_launch_bound_ms=0.06, idle_host_sync_ms=0.12, idle_waiting_rank_ms=0.0, idle_between_requests_ms=0.0, idle_unknown_ms=0.0,
        counted=True, stall=g[6], decode_requests=g[7],
    ) if gaps else t.empty(tables.GAPS)  # fmt: skip
    return stall_frame, gap_frame


def kernel_table(kernels: pl.DataFrame, names: Mapping[tuple[str, str], int]) -> pl.DataFrame:
    by_id = {i: pair for pair, i in names.items()}
    grouped = (
        kernels.with_columns(dur=(pl.col("end_ns") - pl.col("start_ns")) / 1e6)
        .group_by("name_id", "phase", "op_class")
        .agg(pl.len().alias("count"), pl.col("dur").sum().alias("total_ms"), (pl.col("dur").median() * 1e3).alias("median_us"),
             pl.col("flop").sum(), pl.col("bytes").sum(), pl.col("flop").null_count().alias("nulls"))
        .sort("total_ms", descending=True)
    )  # fmt: skip
    rows = grouped.to_dicts()
    unknown = [row["nulls"] == row["count"] for row in rows]
    collective = [row["op_class"] == "collective" for row in rows]

    def column(value: Callable[[dict[str, Any], bool], object]) -> list[Any]:
        return [value(row, u) for row, u in zip(rows, unknown, strict=True)]

    return frame(
        tables.KERNEL_TABLE,
        name=[by_id[row["name_id"]][0] for row in rows], short_name=[by_id[row["name_id"]][1] for row in rows],
        op_class=[row["op_class"] for row in rows], phase=[row["phase"] for row in rows],
        evidence=[{"marker": 0.9, "step_context": 0.1} for _ in rows], count=[row["count"] for row in rows],
        count_per_step=[4.0 for _ in rows], total_ms=[row["total_ms"] for row in rows], in_mixed_ms=0.0,
        median_us=[row["median_us"] for row in rows],
        flop=column(lambda row, u: None if u else row["flop"]), flop_executed=column(lambda row, u: None if u else row["flop"] * 1.02),
        bytes=column(lambda row, u: None if u else row["bytes"]), work_source=column(lambda row, u: "unknown" if u else "model"),
        arithmetic_intensity=column(lambda row, u: None if u else row["flop"] / row["bytes"]),
        mfu_pct=column(lambda row, u: None if u else row["flop"] / (row["total_ms"] / 1e3) / 312e12 * 100),
        mbu_pct=column(lambda row, u: None if u else min(99, row["bytes"] / (row["total_ms"] / 1e3) / 2039e9 * 100)),
        bound=["communication" if c else "unknown" if u else "memory" for u, c in zip(unknown, collective, strict=True)],
        headroom_ms=column(lambda row, u: None if u else row["total_ms"] * 0.4),
        reason=["collectives move bytes between devices" if c else "no work model for this op class" if u else "" for u, c in zip(unknown, collective, strict=True)],
        library="cublas", dtype="bf16", blocks=128, waves=1.19, sm_coverage_pct=100.0, tail_waste_pct=20.4,
    )  # fmt: skip


def op_class_table(table: pl.DataFrame) -> pl.DataFrame:
    rows = (
        table.group_by("op_class", "phase").agg(
            pl.col("count").sum(), pl.col("count_per_step").sum(), pl.col("total_ms").sum(), pl.col("in_mixed_ms").sum(), pl.col("median_us").mean(),
            pl.col("flop").sum(), pl.col("flop_executed").sum(), pl.col("bytes").sum(), pl.col("arithmetic_intensity").mean(), pl.col("mfu_pct").mean(),
            pl.col("mbu_pct").mean(), pl.col("bound").first(), pl.col("headroom_ms").sum(), pl.col("reason").first(), pl.col("work_source").first(),
        ).sort("total_ms", descending=True).to_dicts()
    )  # fmt: skip
    columns = {name: [row.get(name) for row in rows] for name in tables.OP_CLASS_TABLE if name != "evidence"}
    return frame(tables.OP_CLASS_TABLE, evidence=[{"marker": 1.0} for _ in rows], **columns)


def device_row(device: int, times: Sequence[Timed]) -> Device:
    window = times[-1][5] - times[0][4]
    busy, copies = int(window * 0.91), int(window * 0.01)
    idle = window - busy - copies
    return Device(
        device=device, device_index=device, process=1, group=0, gpu_name="NVIDIA A100-SXM4-80GB", gpu_source="TARGET_INFO_GPU",
        sm_count=108, memory_bandwidth_gbps=2039.0, peak_tflops={"bf16": 312.0, "fp16": 312.0, "tf32": 156.0, "int8": 624.0},
        ceiling_source="datasheet, dense", ceiling_reason=None, candidates=(), contradiction=None, kernel_count=3000,
        window_ns=window, busy_ns=busy, copy_only_ns=copies, idle_ns=idle,
        idle_ns_by_cause=ByCause(launch_bound=2_000_000, host_sync=4_000_000, waiting_rank=0, between_requests=0, unknown=idle - 6_000_000),
        phase_ns=ByPhase(prefill=20_000_000, decode=100_000_000, mixed=40_000_000, other=0, unknown=0),
        kernel_time_sum_ns=busy, same_stream_overlap_ns=0,
    )  # fmt: skip


SENTENCE = "Decode is memory-bound at 62.4% MBU of A100-SXM4-80GB; 1 prefill step and 5 mixed steps held up to 9 requests for 128 ms (36% of the window); the largest lever is the 2,048-token chunk."  # fmt: skip
NOTHING = Spread(n=0, p50=None, p95=None, p99=None, max=None)


def step_numbers() -> dict[str, Any]:
    """The part of the summary that groups have too."""
    return {
        "step_count": 60,
        "decode_step_ms": Spread(n=53, p50=2.05, p95=2.11, p99=2.14, max=2.14),
        "prefill_step_ms": Spread(n=1, p50=72.6, p95=72.6, p99=72.6, max=72.6),
        "mixed_step_ms": Spread(n=5, p50=12.2, p95=12.2, p99=12.2, max=12.2),
        "inter_token_gap_ms": Spread(n=58, p50=2.23, p95=20.1, p99=74.9, max=74.9),
        "decode_batch_p50": 9.0, "decode_batch_min": 8, "decode_batch_max": 10, "prefill_tokens": 4608, "decode_tokens": 525,
        "decode_mbu_kernel_pct": 62.4, "decode_mbu_wall_pct": 56.9, "prefill_mfu_kernel_pct": 48.2, "prefill_mfu_wall_pct": None,
        "mixed_mfu_kernel_pct": None, "mixed_mfu_wall_pct": None, "decode_mbu_is_lower_bound": False,
        "stall_count": 6, "stall_ms": 128.0, "stall_max_ms": 72.6, "stall_pct_of_window": 36.1, "stall_episode_count": 2, "stall_episode_max_ms": 72.6,
        "request_ms_lost": 1152.0, "prefill_without_waiters": 0,
    }  # fmt: skip


def summary_of(times: Sequence[Timed]) -> Summary:
    window = (times[-1][5] - times[0][4]) / MS
    nowhere: dict[str, Any] = dict.fromkeys(
        ("dcgm_fi_prof_sm_active_pct", "dcgm_fi_prof_pipe_tensor_active_pct", "dcgm_fi_prof_dram_active_pct")
    )
    return Summary(
        capture_ms=window + 40, window_ms=window, gpu_busy_ms=window * 0.91, copy_only_ms=window * 0.01, gpu_idle_ms=window * 0.08,
        idle_ms_by_cause=None, nvml_utilization_pct=91.0, kernel_count=6000, kernel_time_sum_ms=window * 0.91,
        phase_ms=ByPhase(prefill=72.0, decode=118.4, mixed=61.0, other=0.0, unknown=0.0),
        phase_pct=ByPhase(prefill=28.6, decode=47.1, mixed=24.3, other=0.0, unknown=0.0),
        **step_numbers(),
        utilization=Utilization(nvml_utilization_pct=91.0, decode_mbu_kernel_pct=62.4, prefill_mfu_kernel_pct=48.2, **nowhere),
        decode_ramp=None, worst_episode=None, longest_run_without_decode=None,
        reasons={"prefill_mfu_wall_pct": "one prefill step only", "mixed_mfu_kernel_pct": "no step has work", "mixed_mfu_wall_pct": "no step has work"},
        headline=SENTENCE,
    )  # fmt: skip


def serving_trace(kernels: pl.DataFrame, names: Mapping[tuple[str, str], int], times: Sequence[Timed]) -> t.Trace:
    labels = [f"execute_context_{s[2]}({s[1]})_generation_{s[3]}({s[3]})" for s in times]
    texts = [*dict.fromkeys(["", "cudaLaunchKernel", "gpu_model_runner: forward", *labels])]
    index = {text: i for i, text in enumerate(texts)}
    n = len(times)
    start = np.array([s[4] for s in times])
    rng = np.random.default_rng(7)
    samples = np.arange(times[0][4], times[-1][5], 100_000)
    return t.build_trace(
        t.CaptureFacts(
            source_name="llama8b_tp2_chunk2048.sqlite", format="nsys_sqlite", product="Nsight Systems", product_version="2025.3.1",
            schema_version="3.20.0", session_start_utc_ns=1_759_000_000_000_000_000, duration_ns=int(times[-1][5] + 40 * MS), graph_trace_mode="node",
            gpus_present=("NVIDIA A100-SXM4-80GB",) * 2,
            serving=t.ServingFacts(engine="vllm", engine_version="0.11.0", model="Llama-3.1-8B", tensor_parallel=2, dtype="bfloat16", max_batched_tokens=2048),
        ),
        gaps_in_evidence=(
            t.EvidenceGap("no GPU metrics", "clocks and sampled bandwidth are not known", "nsys profile --gpu-metrics-devices=all --cuda-graph-trace=node -t cuda,nvtx vllm serve ..."),
        ),
        names=frame(t.NAMES, name_id=list(range(len(names))), name=[full for full, _ in names], short_name=[short for _, short in names]),
        texts=frame(t.TEXTS, text_id=list(range(len(texts))), text=texts),
        kernels=kernels,
        copies=frame(t.COPIES, start_ns=start - 60_000, end_ns=start - 40_000, device_index=0, process=1, context=1, stream=7, correlation_id=-1, kind="h2d", bytes=4096, graph_node_id=-1),
        ranges=frame(
            t.RANGES, start_ns=np.concatenate([start - 150_000, start - 120_000]), end_ns=np.concatenate([start + 400_000, start + 300_000]), process=1, thread=11, end_thread=11,
            text_id=[index[x] for x in labels] + [index["gpu_model_runner: forward"]] * n, domain_text_id=0, kind="push_pop", device_index=-1, stream=-1,
        ).sort("start_ns"),
        gpu_metrics=frame(
            t.GPU_METRICS, time_ns=np.tile(samples, 1), device_index=0, sm_active_pct=60 + 20 * rng.random(len(samples)), tensor_active_pct=10 + 5 * rng.random(len(samples)),
            dram_read_pct=55 + 10 * rng.random(len(samples)), dram_write_pct=3 + rng.random(len(samples)), sm_clock_hz=1.41e9,
        ),
        devices=frame(
            t.DEVICES, device_index=[0, 1], device=[0, 1], process=1, gpu_name="NVIDIA A100-SXM4-80GB", gpu_source="TARGET_INFO_GPU", mapping="exact", sm_count=108,
            memory_bandwidth_bytes_per_s=2_039_000_000_000, total_memory_bytes=85_000_000_000, l2_bytes=41943040, max_clock_hz=1_410_000_000, compute_capability="8.0", chip="GA100", mig=False,
        ),
    )  # fmt: skip


TRUST = Trust(
    gpu_time_by_evidence={"marker": 0.86, "kernel_name": 0.14, "launch_geometry": 0.0, "graph_replay": 0.0, "step_context": 0.0, "none": 0.0},
    gpu_time_by_work_source={"model": 0.93, "unknown": 0.07},
    kernels_per_step=50.0, layers=4, launches_without_kernel=0, kernels_without_launch=0,
    clocks=Clocks(sm_clock_mhz=None, reason="no GPU metrics in the capture"), node_tracing_inflates_decode=True, steps_excluded=3, ambiguous_pct=0.0,
    marker_ranges=60, marker_ranges_without_kernels=0, steps_outside_graphs={}, contradictions=(),
    devices_with_kernels=2, devices_present=2, ranks_expected=2, rejected_rows={"end before start": 2}, lost_events=(),
    graph_mode="node", opaque_graphs=False, lost_graphs=False, partial_steps=1, largest_kernel_share=0.01, empty_step_share=0.0,
    verdict="read with care", verdict_reasons=("node-level graph tracing slows decode steps",),
)  # fmt: skip
FINDINGS = (
    Finding(
        id="prefill_interference", sentence="6 stalls held up to 9 requests for 128 ms: a chunk of 2,048 tokens makes a 72.5 ms step.", recoverable_ms=96.0,
        evidence=PrefillInterference(stall_ms=128.0, stalls=6, episodes=2, requests_held_max=9, request_ms_lost=1152.0, prefill_tokens=4608, largest_gap_ms=74.9, chunk_now_tokens=2048),
        lever="Halve max_num_batched_tokens to 1,024: the fitted step time is 37.7 ms.",
    ),
    Finding(
        id="small_decode_batch", sentence="Decode runs at batch 9, 17 times below the ridge batch of 153.", recoverable_ms=40.0,
        evidence=SmallDecodeBatch(decode_batch_p50=9.0, decode_tokens_p50=9.0, ridge_batch=153.0, decode_ms=118.4), lever="Admit more requests per device.",
    ),
    Finding(
        id="clocks_low", kind="capture", sentence="SM clocks ran at 1,100 MHz, 78% of the 1,410 MHz behind the peak FLOP/s.", recoverable_ms=None,
        evidence=ClocksLow(sm_clock_mhz=1100.0, spec_clock_mhz=1410, share_pct=78.0), lever="Check the power limit.",
    ),
)  # fmt: skip
WHAT_IF = WhatIf(
    is_prediction=True,
    disaggregation=Disaggregation(prefill_ms=120.0, decode_ms=131.4, prefill_devices_per_decode_device=0.91, gap_p99_now_ms=74.9, gap_p99_without_stalls_ms=2.3, not_counted="moving the KV cache between devices"),
    chunk_now_tokens=2048, chunk_now_step_ms=72.5, chunk_now_is_padded=False,
    fit=StepFit(
        fixed_ms=2.1, per_token_us=34.8, weights_cost_as_many_tokens=64.0, per_million_attention_pairs_us=0.0, per_1000_kv_tokens_us=1.2, per_decode_request_us=0.0,
        not_used=("per_request",), r2=0.991, outliers=0, median_error_pct={"decode": 1.0, "prefill": 2.0}, steps={"decode": 53, "prefill": 6},
        valid_prefill_tokens=(512, 2048), valid_decode_requests=(8, 10),
    ),
    schedule="separate", prompt_tokens=2048.0,
    chunks=tuple(ChunkPrediction(chunk_tokens=c, step_ms=2.1 + c * 0.0348, gap_p99_ms=2.1 + c * 0.0348, gap_max_ms=2.1 + c * 0.0348, prefill_tokens_per_s=27000 - 3e6 / c, extrapolated=c < 512) for c in (256, 512, 1024, 2048)),
    itl_target=None,
    batches=tuple(BatchPrediction(decode_requests=9.0 * k, step_ms=2.05 + 0.1 * k, tokens_per_s=9000.0 * k / (2.05 + 0.1 * k), mbu_pct=60.0, extrapolated=k > 1) for k in (1, 2, 4, 8)),
    verify=(VerifyPrediction(verify_width=4, decode_tokens=36.0, step_ms=2.2),),
)  # fmt: skip
WORKLOAD = Workload(
    by_time="decode-heavy", prefill_time_share_pct=31.0, by_tokens=None, by_tokens_reason="token counts are not known for every step",
    decode_batch_p50=9.0, ridge_batch=153.0, batch_regime="below the ridge: 9 of 153 requests, decode GEMMs read weights", bound_by="throughput: decode steps move 62% of what the bandwidth allows",
    techniques=(
        StepTechnique(technique="8-bit weights", helps="yes", step_ms_now=2.05, predicted_step_ms=1.4, shorter_by_pct=31.7, condition="batch below 76", is_prediction=True, why="GEMMs take 1.3 ms of a 2.05 ms step"),
        StepTechnique(technique="speculative decoding", helps="depends", step_ms_now=2.05, predicted_step_ms=None, shorter_by_pct=None, condition="acceptance above 80%", is_prediction=True, predicted_step_ms_reason="batch or ridge not known"),
    ),
)  # fmt: skip
ROOFLINE: dict[str, Any] = {
    "ceilings": [
        {"dtype": "bf16", "peak_tflops": 312.0, "bandwidth_gbps": 2039.0, "ridge": 153.0, "source": "datasheet, dense"},
        {"dtype": "int8", "peak_tflops": 624.0, "bandwidth_gbps": 2039.0, "ridge": 306.0, "source": "datasheet, dense"},
    ],
    "points": [
        {"op_class": "gemm", "phase": "decode", "flop": 2.2e13, "bytes": 2.6e12, "arithmetic_intensity": 8.5, "tflops": 9.1, "total_ms": 88.0, "bound": "memory"},
        {"op_class": "attention", "phase": "decode", "flop": 7e11, "bytes": 1.4e11, "arithmetic_intensity": 5.0, "tflops": 5.3, "total_ms": 13.0, "bound": "memory"},
        {"op_class": "gemm", "phase": "prefill", "flop": 1.9e13, "bytes": 4.3e10, "arithmetic_intensity": 441.0, "tflops": 205.0, "total_ms": 62.0, "bound": "compute"},
        {"op_class": "attention", "phase": "prefill", "flop": 9e11, "bytes": 4e9, "arithmetic_intensity": 225.0, "tflops": 131.0, "total_ms": 6.6, "bound": "compute"},
        {"op_class": "gemm", "phase": "mixed", "flop": 1.1e13, "bytes": 8e10, "arithmetic_intensity": 137.0, "tflops": 178.0, "total_ms": 52.0, "bound": "memory"},
    ],
    "centroids": [
        {"phase": "decode", "arithmetic_intensity": 8.3, "tflops": 8.8, "total_ms": 118.0},
        {"phase": "prefill", "arithmetic_intensity": 425.0, "tflops": 196.0, "total_ms": 72.0},
    ],
}  # fmt: skip


def no_phases() -> Analysis:
    """An encoder-only run: kernels and time are known, steps and ratios are not."""
    base = serving_run()
    reason = "no autoregressive phases found"
    nulls = dict.fromkeys(("decode_mbu_kernel_pct", "decode_mbu_wall_pct", "prefill_mfu_kernel_pct", "prefill_mfu_wall_pct", "stall_count", "stall_ms", "stall_max_ms", "stall_pct_of_window", "stall_episode_count", "stall_episode_max_ms", "prefill_without_waiters"))  # fmt: skip
    spreads = dict.fromkeys(("decode_step_ms", "prefill_step_ms", "mixed_step_ms", "inter_token_gap_ms"), NOTHING)
    summary = structs.replace(
        base.summary,
        **nulls,
        **spreads,
        step_count=0,
        phase_ms=ByPhase(prefill=0.0, decode=0.0, mixed=0.0, other=0.0, unknown=251.0),
        phase_pct=ByPhase(prefill=0.0, decode=0.0, mixed=0.0, other=0.0, unknown=100.0),
        reasons=dict.fromkeys([*nulls, *spreads], reason),
        headline="No autoregressive phases found; A100-SXM4-80GB ran kernels for 91% of 354 ms.",
    )
    unknown = pl.lit("unknown").cast(tables.PHASES)
    return replace(
        base,
        status="partial",
        reasons=(reason, "--gpu was not given and the capture does not name its GPU: ratios are not known"),
        options=Options(),
        kernels=base.kernels.with_columns(phase=unknown, step_phase=unknown, step=pl.lit(-1, pl.Int32), evidence=pl.lit("none").cast(tables.EVIDENCE), mfu_pct=pl.lit(None, pl.Float32), mbu_pct=pl.lit(None, pl.Float32)),
        model={},
        summary=summary,
        steps=t.empty(tables.STEPS), stalls=t.empty(tables.STALLS), gaps=t.empty(tables.GAPS), graphs=t.empty(tables.GRAPHS), collectives=t.empty(tables.COLLECTIVES),
        groups=t.empty(tables.GROUPS), group_summaries=(),
        kernel_table=base.kernel_table.with_columns(phase=unknown, mfu_pct=pl.lit(None, pl.Float64), mbu_pct=pl.lit(None, pl.Float64), reason=pl.lit("no GPU")),
        op_classes=base.op_classes.with_columns(phase=unknown), findings=(), roofline={}, traffic={}, host=HostSide(bubble_ms=None, bubble_ms_reason=reason),
        what_if=WhatIf(is_prediction=True, disaggregation=None, chunk_now_tokens=None, chunk_now_tokens_reason=reason, fit=None, fit_reason=reason, chunks=(), itl_target=None, batches=()),
        workload=Workload(by_time=None, by_time_reason=reason, techniques=()),
    )  # fmt: skip


def could_not_look() -> Analysis:
    """A capture without kernels: nothing can be said, and the page says that."""
    base = no_phases()
    return replace(
        base,
        status="could_not_look",
        reasons=("no kernels: 200 NVTX ranges, 0 kernel records",),
        trace=t.build_trace(base.trace.capture, gaps_in_evidence=(t.EvidenceGap("no kernels", "nothing can be timed", "VLLM_WORKER_MULTIPROC_METHOD=spawn nsys profile --trace-fork-before-exec=true --cuda-graph-trace=node ..."),)),
        kernels=base.kernels.clear(), kernel_table=t.empty(tables.KERNEL_TABLE), op_classes=t.empty(tables.OP_CLASS_TABLE), idle=t.empty(tables.IDLE), devices=(), window=Window(start_ns=0, end_ns=0, source="capture"),
        trust=structs.replace(TRUST, gpu_time_by_evidence={}, gpu_time_by_work_source={}, kernels_per_step=None, layers=None, devices_with_kernels=0, verdict="unreliable", verdict_reasons=("no kernels",)),
        summary=structs.replace(base.summary, kernel_count=0, window_ms=None, gpu_idle_ms=None, nvml_utilization_pct=None, copy_only_ms=None, phase_pct=None, headline="Could not look: no kernels: 200 NVTX ranges, 0 kernel records."),
    )  # fmt: skip


def unknown_stalls() -> Analysis:
    """No baseline and no counts: stalls are there, their length, tokens and requests are not known."""
    base = serving_run()
    reason = "no decode-only step to compare with"
    nothing = {
        c: pl.lit(None, base.stalls.schema[c])
        for c in ("stall_ms", "prefill_tokens", "requests_held", "request_ms_lost", "baseline_ms")
    }
    summary = structs.replace(
        base.summary,
        stall_ms=None,
        stall_max_ms=None,
        stall_pct_of_window=None,
        stall_episode_max_ms=None,
        reasons={"stall_ms": reason},
    )
    counts = [
        c
        for c in tables.STEPS
        if c.endswith(("_tokens", "_requests"))
        or c in ("kv_tokens_source", "flop", "bytes", "mfu_pct", "mbu_pct", "label")
    ]
    return replace(
        base, summary=summary, stalls=base.stalls.with_columns(reason=pl.lit(reason), **nothing), gaps=base.gaps.with_columns(stall=pl.lit(-1, pl.Int32), prefill_ms=pl.lit(None, pl.Float64)),
        steps=base.steps.with_columns(**{c: pl.lit(None, base.steps.schema[c]) for c in counts}),
    )  # fmt: skip


HOSTILE = "</script><img src=x onerror=alert(1)>"


def hostile(rows: int = 5_000, length: int = 200) -> Analysis:
    """Names that try to become markup or to blow the page up."""
    base = serving_run()
    names = [
        f"{HOSTILE}<b>x</b>\u2028\u2029{{{{7*7}}}} {i} " + "T" * (length if i % 50 else length * 40)
        for i in range(rows)
    ]
    table = pl.concat([base.kernel_table.head(1)] * rows).with_columns(
        name=pl.Series(names),
        short_name=pl.Series([n[:120] for n in names]),
        total_ms=pl.Series(np.linspace(50, 0.01, rows)),
    )
    trace = replace(
        base.trace,
        names=base.trace.names.with_columns(name=pl.lit(HOSTILE), short_name=pl.lit(HOSTILE)),
        texts=base.trace.texts.with_columns(
            text=pl.col("text").replace("gpu_model_runner: forward", "<b>x</b>" + HOSTILE)
        ),
        capture=replace(
            base.trace.capture, source_name=f"{HOSTILE}.sqlite", serving=t.ServingFacts(engine="vllm", model=HOSTILE)
        ),
    )
    return replace(
        base, trace=trace, kernel_table=table, model={**base.model, "name": HOSTILE}, summary=structs.replace(base.summary, headline=HOSTILE),
        findings=(Finding(id="x", sentence=HOSTILE, recoverable_ms=1.0, evidence=WrongDtype(total_ms=1.0, kernel=HOSTILE, dtype="fp32", count=1, recoverable_is=HOSTILE), lever=HOSTILE),), reasons=(HOSTILE,),
        steps=base.steps.with_columns(label=pl.lit("<b>x</b>" + HOSTILE)), trust=structs.replace(base.trust, contradictions=(HOSTILE,)),
    )  # fmt: skip


def big(kernel_count: int = 1_000_000) -> Analysis:
    """A long run of the same shape: steps of 500 kernels on two devices, a prefill step in every fifty."""
    base = serving_run()
    per_step, devices = 500, 2
    n_steps = kernel_count // per_step // devices
    rng = np.random.default_rng(11)
    prefill = np.arange(n_steps) % 50 == 49
    span = np.where(prefill, 80_000_000, 4_000_000) + rng.integers(0, 200_000, n_steps)
    start = 1_000_000 + np.concatenate([[0], np.cumsum(span + 150_000)[:-1]])
    end = start + span
    share = rng.random((n_steps, per_step)) + 0.1
    share /= share.sum(axis=1, keepdims=True)
    duration = np.maximum((share * (span[:, None] - 60_000) * 0.97).astype(np.int64), 500)
    kernel_start = start[:, None] + np.concatenate(
        [np.zeros((n_steps, 1), np.int64), np.cumsum(duration + 100, axis=1)[:, :-1]], axis=1
    )
    total = n_steps * per_step
    one = kernel_start.ravel()
    starts = np.concatenate([one, one + 3_000])
    ends = starts + np.tile(duration.ravel(), 2)
    device = np.repeat([0, 1], total)
    step_of = np.concatenate(
        [np.repeat(np.arange(n_steps) * 2, per_step), np.repeat(np.arange(n_steps) * 2 + 1, per_step)]
    )
    phase = np.tile(np.repeat(np.where(prefill, 0, 1), per_step), 2)
    name = np.tile(np.tile(np.arange(per_step) % base.trace.names.height, n_steps), 2)
    order = np.argsort(starts, kind="stable")
    n = total * 2

    def take(values: np.ndarray) -> np.ndarray:
        return np.asarray(values[order])

    def const(value: Any, kind: pl.DataType | type[pl.DataType]) -> pl.Series:
        return pl.Series([value], dtype=kind).new_from_index(0, n)

    columns: dict[str, Any] = {
        **{c: const(1, d) for c, d in t.KERNELS.items()},
        "start_ns": take(starts), "end_ns": take(ends), "device_index": take(device).astype(np.int32), "stream": const(7, pl.Int32),
        "name_id": take(name).astype(np.uint32), "graph_node_id": const(-1, pl.Int64), "graph_id": const(-1, pl.Int64),
    }  # fmt: skip
    phases = pl.Series(take(phase).astype(np.uint8)).replace_strict(
        {0: "prefill", 1: "decode"}, return_dtype=tables.PHASES
    )
    trace_kernels = pl.DataFrame(columns)
    kernels = trace_kernels.with_columns(
        pl.Series("launch", np.arange(n, dtype=np.int32)), const("gemm", tables.OP_CLASSES).alias("op_class"), phases.alias("phase"), phases.alias("step_phase"),
        const("marker", tables.EVIDENCE).alias("evidence"), pl.Series("step", take(step_of).astype(np.int32)), const(True, pl.Boolean).alias("in_window"),
        const("", pl.String).alias("place"), const(-1, pl.Int16).alias("layer"), const(1e9, pl.Float64).alias("flop"), const(1e9, pl.Float64).alias("flop_executed"),
        const(5e7, pl.Float64).alias("bytes"), const(5e7, pl.Float64).alias("bytes_weights"), const(0.0, pl.Float64).alias("bytes_kv"),
        const("model", tables.WORK_SOURCES).alias("work_source"), const(12.5, pl.Float32).alias("mfu_pct"), const(61.0, pl.Float32).alias("mbu_pct"),
    )  # fmt: skip
    index = np.repeat(np.arange(n_steps), 2)

    def both(values: np.ndarray) -> np.ndarray:
        return np.repeat(values, 2)

    held = np.where(prefill, 0, 16)
    steps = frame(
        tables.STEPS, step=np.arange(n_steps * 2), index=index, device=np.tile([0, 1], n_steps), device_index=np.tile([0, 1], n_steps), group=0,
        start_ns=both(start), end_ns=both(end), busy_ns=both(end - start), phase=both(np.where(prefill, "prefill", "decode")).tolist(), evidence="marker",
        partial=False, excluded=False, prefill_tokens=both(prefill * 2048), decode_tokens=both(held), prefill_requests=both(prefill * 1), decode_requests=both(held),
        kernel_count=per_step, padded_tokens=16, mfu_pct=3.0, mbu_pct=60.0,
    )  # fmt: skip
    times = [
        ("prefill" if p else "decode", 2048 * int(p), int(p), 0 if p else 16, int(a), int(b))
        for p, a, b in zip(prefill, start, end, strict=True)
    ]
    stalls, gaps = stalls_and_gaps(times)
    return replace(
        base, trace=replace(base.trace, kernels=trace_kernels), kernels=kernels, steps=steps, stalls=stalls, gaps=gaps,
        window=Window(start_ns=int(start[0]), end_ns=int(end[-1]), source="capture"), summary=structs.replace(base.summary, window_ms=float(end[-1] - start[0]) / 1e6, kernel_count=n),
    )  # fmt: skip
