"""Rules about the serving run. Each threshold stands at the top of the file and in docs/findings.md."""

from __future__ import annotations

import numpy as np
import polars as pl
from msgspec import UNSET

from ..numeric.number_text import plural, short_duration, short_number, short_percent
from ..records.advice import (
    CollectiveWaiting,
    Finding,
    HostBoundDecode,
    LowOccupancyAttention,
    PaddedGraphs,
    PrefillInterference,
    SamplingOnCriticalPath,
    SmallDecodeBatch,
    UnfusedKernels,
    WrongDtype,
)
from ..records.usable_steps import USABLE_STEP
from ..records.what_if import WhatIf
from .evidence import Evidence, Rule
from .ridge_batch import ridge_batch

MIN_STALL_PCT = 0.5  # of the window
MAX_RIDGE_SHARE = 0.25  # of the ridge batch
MIN_DECODE_PCT = 30.0  # of busy time spent in decode
MIN_KNOWN_BATCH_SHARE = 0.5  # of the decode steps must show their batch
MIN_PADDING_PCT = 1.0  # of busy time
MIN_HOST_PCT = 5.0  # of the time between decode tokens
MIN_COLLECTIVE_PCT = 2.0  # of busy time
MIN_ATTENTION_PCT = 2.0  # of busy time
MAX_ATTENTION_COVERAGE_PCT = 60.0  # of the SMs
MIN_UNFUSED_PCT = 5.0  # of busy time
MIN_SAMPLING_PCT = 5.0  # of decode time
MIN_WRONG_DTYPE_PCT = 2.0  # of GEMM time
MIN_CHUNK_TOKENS = 512
MAX_KERNELS_NAMED = 5

HOST_LEVERS = {
    "waiting": "let the host run ahead (asynchronous scheduling), so that it does not wait for each step's tokens",
    "graph_launch": "launch fewer, larger graphs per step",
    "kernel_launch": "capture decode steps in CUDA graphs",
    "copies": "batch the small host-device copies of a step and pin their memory",
    "sampling": "sample on the GPU and overlap output handling with the next step",
    "input_preparation": "prepare the next step's inputs while this one runs (asynchronous scheduling)",
    "scheduling": "overlap scheduling with the running step (asynchronous scheduling)",
    "unnamed_host_code": "overlap host code with the running step (asynchronous scheduling), or capture decode in CUDA graphs",
}


NEEDS_GRAPHS = ("kernel_launch", "unnamed_host_code")
IN_GRAPHS = "overlap host code with the running step (asynchronous scheduling)"


def prefill_interference(evidence: Evidence) -> Finding | None:
    """Prefill work kept decoding requests waiting."""
    stalls = evidence.found.stalls.stalls
    known = stalls["stall_ms"].drop_nulls().to_numpy()
    window_ms = evidence.found.time.window_ns / 1e6
    if not len(known) or known.sum() < MIN_STALL_PCT / 100 * window_ms:
        return None
    total, episodes = float(known.sum()), stalls["episode"].n_unique()
    held = stalls["requests_held"].drop_nulls().to_numpy()
    calm = stalls["gap_before_ms"].drop_nulls().to_numpy()
    who = f"up to {plural(int(held.max()), 'request')}" if len(held) else "decoding requests"
    sentence = (
        f"Prefill held {who} for {short_duration(total)} in {plural(episodes, 'episode')}: token gaps up to "
        f"{short_duration(float(stalls['gap_ms'].to_numpy().max()))}"
    )
    if len(calm):
        sentence += f" instead of {short_duration(float(calm.min()))}"
    return Finding(
        id="prefill_interference",
        sentence=sentence,
        recoverable_ms=total,
        evidence=PrefillInterference(
            stall_ms=total,
            stalls=stalls.height,
            episodes=episodes,
            requests_held_max=int(held.max()) if len(held) else None,
            request_ms_lost=None if stalls["request_ms_lost"].null_count() else float(stalls["request_ms_lost"].sum()),
            prefill_tokens=None if stalls["prefill_tokens"].null_count() else int(stalls["prefill_tokens"].sum()),
            largest_gap_ms=float(stalls["gap_ms"].to_numpy().max()),
            chunk_now_tokens=evidence.what_if.chunk_now_tokens,
        ),
        lever=_chunk_lever(evidence.what_if),
    )


def _chunk_lever(what_if: WhatIf) -> str:
    """The lever with its predicted step time where the model was fitted."""
    now, now_ms, target = what_if.chunk_now_tokens, what_if.chunk_now_step_ms, what_if.itl_target
    if target and target.largest_chunk_tokens:
        size = target.largest_chunk_tokens
        return (
            f"chunks of at most {size:,} tokens keep token gaps under {short_duration(target.target_ms)} (fitted model)"
        )
    missed = ""
    if target:
        missed = f"; no chunk for gaps of {short_duration(target.target_ms)}: {target.largest_chunk_tokens_reason}"
    if not now or now_ms is UNSET:
        return (
            "a smaller prefill chunk (max_num_batched_tokens, chunked_prefill_size), or prefill on other devices than "
            f"decode{missed}"
        )
    of = "padded to" if what_if.chunk_now_is_padded is True else "of"
    smaller = [c for c in what_if.chunks if MIN_CHUNK_TOKENS <= c.chunk_tokens <= now / 3]
    if smaller:
        best = smaller[-1]
        return (
            f"a chunk {of} {now:,} tokens makes a {short_duration(now_ms)} step; at "
            f"{best.chunk_tokens:,} the fitted step time is {short_duration(best.step_ms)}{missed}"
        )
    if now <= MIN_CHUNK_TOKENS:
        return f"prefill on other devices than decode, as chunks {of} {now:,} tokens are small already{missed}"
    return (
        f"a step {of} {now:,} tokens takes {short_duration(now_ms)}; chunks of half that size about halve "
        f"the token gap and delay the first token{missed}"
    )


def small_decode_batch(evidence: Evidence) -> Finding | None:
    """Decode reads all weights for far fewer requests than the ridge batch."""
    found = evidence.found
    ridge = ridge_batch(found.ceilings, found.model)
    steps = found.steps.filter((pl.col("phase").cast(pl.String) == "decode") & USABLE_STEP)
    # Rows of the GEMMs: with speculation a request brings several tokens.
    rows = pl.coalesce("decode_tokens", "decode_requests")
    known = steps.select("decode_requests", rows.alias("rows")).drop_nulls("decode_requests")
    if ridge is None or known.height < MIN_KNOWN_BATCH_SHARE * max(steps.height, 1) or known.is_empty():
        return None
    if evidence.decode_ms < MIN_DECODE_PCT / 100 * evidence.busy_ms:
        return None
    batch = float(np.median(known["decode_requests"].to_numpy()))
    tokens = float(np.median(known["rows"].to_numpy()))
    if tokens >= MAX_RIDGE_SHARE * ridge:
        return None
    of_each = f" ({plural(tokens, 'token')})" if tokens > batch else ""
    predicted = evidence.what_if.batches
    recoverable = None
    lever = "more requests per device (higher admission limits, fewer replicas)"
    if len(predicted) > 1 and predicted[0].step_ms:
        # The same tokens from half as many steps of the predicted length.
        recoverable = max(0.0, evidence.decode_ms * (1 - predicted[1].step_ms / (2 * predicted[0].step_ms)))
        lever += (
            f": twice the batch is predicted to give {short_number(predicted[1].tokens_per_s)} instead of "
            f"{short_number(predicted[0].tokens_per_s)} tokens/s"
        )
    return Finding(
        id="small_decode_batch",
        sentence=f"Decode runs {plural(batch, 'request')}{of_each} a step, {short_percent(100 * tokens / ridge)} of the ridge batch of "
        f"{ridge:.0f}: each step reads all weights for few tokens",
        recoverable_ms=recoverable,
        evidence=SmallDecodeBatch(
            decode_batch_p50=batch, decode_tokens_p50=tokens, ridge_batch=ridge, decode_ms=evidence.decode_ms
        ),
        lever=lever,
    )


def padded_graphs(evidence: Evidence) -> Finding | None:
    """Decode graphs larger than the batch they serve, where the padding costs time."""
    graphs = evidence.found.graphs
    if graphs is None or graphs.is_empty():
        return None
    padded = graphs.filter(pl.col("batch") > pl.col("real_batch_median"))
    padded = padded.filter(pl.col("padding_ms") > 0)
    ms = float(padded["padding_ms"].to_numpy().sum()) / evidence.device_count
    if padded.is_empty() or ms < MIN_PADDING_PCT / 100 * evidence.busy_ms:
        return None
    worst = padded.sort("padding_ms", "graph_id", descending=[True, False]).row(0, named=True)
    return Finding(
        id="padded_graphs",
        sentence=f"Padded rows of decode graphs cost {short_duration(ms)}: the graph of {worst['batch']} rows served a median of "
        f"{short_number(worst['real_batch_median'])} requests",
        recoverable_ms=ms,
        evidence=PaddedGraphs(
            padding_ms=ms,
            graph_id=worst["graph_id"],
            batch=worst["batch"],
            real_batch_median=worst["real_batch_median"],
            replays=worst["replays"],
        ),
        lever="capture graph sizes nearer to the batches that occur",
    )


def host_bound_decode(evidence: Evidence) -> Finding | None:
    """The GPU waits for the host between decode tokens."""
    host = evidence.host
    ms, share, host_parts, of_step = (
        host.bubble_ms,
        host.share_of_decode_pct,
        host.parts_ms,
        host.bubble_ms_per_decode_step,
    )
    if not ms or not share or share < MIN_HOST_PCT or host_parts is UNSET or of_step is UNSET:
        return None
    parts = dict(host_parts)
    largest = max(parts, key=lambda name: parts[name])
    return Finding(
        id="host_bound_decode",
        sentence=f"The GPU waits for the host for {short_duration(ms)}, {short_percent(share)} of decode time; most of it is "
        f"{largest.replace('_', ' ')} ({short_duration(parts[largest])})",
        recoverable_ms=ms,
        evidence=HostBoundDecode(
            bubble_ms=ms, bubble_ms_per_decode_step=of_step, share_of_decode_pct=share, parts_ms=host_parts
        ),
        lever=IN_GRAPHS if _decode_in_graphs(evidence) and largest in NEEDS_GRAPHS else HOST_LEVERS[largest],
    )


def _decode_in_graphs(evidence: Evidence) -> bool:
    decode = evidence.found.steps.filter(pl.col("phase").cast(pl.String) == "decode")
    return decode["graph_id"].count() * 2 > decode.height


def collective_waiting(evidence: Evidence) -> Finding | None:
    """Ranks wait inside collectives for a late one."""
    table = evidence.collectives.table.filter(pl.col("wait_ms").is_not_null())
    ms = float(table["wait_ms"].to_numpy().sum())
    if table.is_empty() or ms < MIN_COLLECTIVE_PCT / 100 * evidence.busy_ms:
        return None
    late = table.drop_nulls("late_device").group_by("late_device").agg(pl.col("wait_ms").sum())
    late = late.sort("wait_ms", "late_device", descending=[True, False])
    transfer = float(table["transfer_ms"].to_numpy().sum())
    device = late["late_device"][0] if late.height else None
    who = f", most often for device {device}" if device is not None else ""
    return Finding(
        id="collective_waiting",
        sentence=f"Ranks wait {short_duration(ms)} in collectives (transfer takes {short_duration(transfer)}){who}",
        recoverable_ms=ms,
        evidence=CollectiveWaiting(wait_ms=ms, transfer_ms=transfer, late_device=device),
        lever="find what delays the late rank (its launch calls, its clocks, uneven work)",
    )


def low_occupancy_attention(evidence: Evidence) -> Finding | None:
    """Decode attention that leaves most SMs without a block."""
    table = evidence.found.kernel_table
    if table is None or table.is_empty():
        return None
    rows = table.filter(
        (pl.col("op_class").cast(pl.String) == "attention")
        & (pl.col("phase").cast(pl.String) == "decode")
        & (pl.col("bound").cast(pl.String) == "latency")
        & (pl.col("sm_coverage_pct") < MAX_ATTENTION_COVERAGE_PCT)
        & pl.col("headroom_ms").is_not_null()
    )
    ms = float(rows["headroom_ms"].to_numpy().sum()) / evidence.device_count
    if rows.is_empty() or ms < MIN_ATTENTION_PCT / 100 * evidence.busy_ms:
        return None
    worst = rows.sort("total_ms", descending=True).row(0, named=True)
    return Finding(
        id="low_occupancy_attention",
        sentence=f"Decode attention ({worst['short_name']}) covers {short_percent(worst['sm_coverage_pct'])} of the SMs and takes "
        f"{short_duration(ms)} more than its bytes need",
        recoverable_ms=ms,
        evidence=LowOccupancyAttention(
            kernel=worst["name"], blocks=worst["blocks"], sm_coverage_pct=worst["sm_coverage_pct"], headroom_ms=ms
        ),
        lever="an attention kernel that splits the KV length (flash-decoding), or a larger batch",
    )


def _table_ms(evidence: Evidence, classes: list[str], phases: list[str]) -> tuple[float, pl.DataFrame]:
    table = evidence.found.kernel_table
    if table is None or table.is_empty():
        return 0.0, pl.DataFrame()
    rows = table.filter(
        pl.col("op_class").cast(pl.String).is_in(classes) & pl.col("phase").cast(pl.String).is_in(phases)
    ).sort("total_ms", "name", descending=[True, False])
    return float(rows["total_ms"].to_numpy().sum()) / evidence.device_count, rows


def _largest_kernels(rows: pl.DataFrame) -> tuple[str, ...]:
    """Names of the five that take most time, of rows in that order."""
    return tuple(rows["short_name"].unique(maintain_order=True)[:MAX_KERNELS_NAMED]) if rows.height else ()


def unfused_kernels(evidence: Evidence) -> Finding | None:
    """Small elementwise kernels that a fused one would absorb."""
    ms, rows = _table_ms(evidence, ["elementwise", "reduce", "index"], ["prefill", "decode", "mixed"])
    if ms < MIN_UNFUSED_PCT / 100 * evidence.busy_ms or rows.is_empty():
        return None
    launches = int(rows["count"].to_numpy().sum()) // evidence.device_count
    return Finding(
        id="unfused_kernels",
        sentence=f"{plural(launches, 'small elementwise kernel')} take {short_duration(ms)} ({short_percent(100 * ms / evidence.busy_ms)} of "
        "GPU time)",
        recoverable_ms=ms,
        evidence=UnfusedKernels(
            total_ms=ms, launches=launches, kernels=_largest_kernels(rows), recoverable_is="at most"
        ),
        lever="compile or fuse them (torch.compile, fused norm, rope and activation kernels)",
    )


def sampling_on_critical_path(evidence: Evidence) -> Finding | None:
    """Sampling kernels, and copies alone between decode tokens."""
    ms, rows = _table_ms(evidence, ["sampling"], ["decode", "mixed"])
    gaps = evidence.found.stalls.gaps
    copies = float(gaps["copy_ms"].drop_nulls().to_numpy().sum()) if gaps.height else 0.0
    decode = evidence.decode_ms
    if not decode or ms + copies < MIN_SAMPLING_PCT / 100 * decode:
        return None
    return Finding(
        id="sampling_on_critical_path",
        sentence=f"Sampling takes {short_duration(ms)} and copies alone {short_duration(copies)} between tokens, "
        f"{short_percent(100 * (ms + copies) / decode)} of decode time",
        recoverable_ms=ms + copies,
        evidence=SamplingOnCriticalPath(
            sampling_ms=ms, copy_ms=copies, decode_ms=decode, kernels=_largest_kernels(rows)
        ),
        lever="a fused sampler on the GPU, and outputs copied while the next step runs",
    )


def wrong_dtype(evidence: Evidence) -> Finding | None:
    """GEMMs in a 32-bit type beside a model in 16 bits or fewer."""
    total, rows = _table_ms(evidence, ["gemm", "moe_gemm"], ["prefill", "decode", "mixed"])
    if rows.is_empty():
        return None
    wide = rows.filter(pl.col("dtype").is_in(["fp32", "tf32", "fp64"]))
    ms = float(wide["total_ms"].to_numpy().sum()) / evidence.device_count
    narrow = rows.filter(pl.col("dtype").is_in(["bf16", "fp16", "fp8", "int8", "fp4", "int4"]))
    if (
        ms < MIN_WRONG_DTYPE_PCT / 100 * total
        or narrow["total_ms"].to_numpy().sum() <= wide["total_ms"].to_numpy().sum()
    ):
        return None
    worst = wide.row(0, named=True)
    return Finding(
        id="wrong_dtype",
        sentence=f"GEMMs in {worst['dtype']} take {short_duration(ms)} while the rest of the model runs in "
        f"{narrow['dtype'][0]}",
        recoverable_ms=ms / 2,
        evidence=WrongDtype(
            total_ms=ms,
            kernel=worst["name"],
            dtype=worst["dtype"],
            count=worst["count"],
            recoverable_is="half: a type of half the size moves half the bytes",
        ),
        lever=f"run {worst['short_name']} in {narrow['dtype'][0]}",
    )


RULES: tuple[Rule, ...] = (
    prefill_interference,
    small_decode_batch,
    padded_graphs,
    host_bound_decode,
    collective_waiting,
    low_occupancy_attention,
    unfused_kernels,
    sampling_on_critical_path,
    wrong_dtype,
)
