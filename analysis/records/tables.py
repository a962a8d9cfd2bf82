"""The frames of an Analysis: their columns, which are the keys of the JSON, with their units and closed sets of values.

An unknown is null with a reason beside it, never 0.
"""

from __future__ import annotations

import polars as pl

from .trace import Schema

PHASES = pl.Enum(["prefill", "decode", "mixed", "other", "unknown"])
EVIDENCE = pl.Enum(["marker", "kernel_name", "launch_geometry", "graph_replay", "step_context", "none"])
WORK_SOURCES = pl.Enum(["measured", "sampled", "shape", "model", "name", "unknown"])
BOUNDS = pl.Enum(["memory", "compute", "latency", "communication", "unknown"])
OP_CLASSES = pl.Enum(
    [
        "gemm",
        "gemm_reduce",
        "attention",
        "attention_combine",
        "norm",
        "rope",
        "kv_write",
        "activation",
        "moe_gemm",
        "moe_routing",
        "quantize",
        "embedding",
        "sampling",
        "collective",
        "step_metadata",
        "index",
        "elementwise",
        "reduce",
        "copy",
        "lora",
        "convolution",
        "load_time",
        "other",
    ]
)
STALL_KINDS = pl.Enum(["prefill_step", "mixed_step"])
IDLE_CAUSES = pl.Enum(["launch_bound", "host_sync", "waiting_rank", "between_requests", "unknown"])

# Columns that the analysis adds to Trace.kernels (same rows, same order).
KERNEL_TAGS: Schema = {
    "launch": pl.Int32,  # row of Trace.launches, -1 = no launch call recorded
    "op_class": OP_CLASSES,
    "phase": PHASES,  # the kernel's own where it has one, else its step's
    "step_phase": PHASES,
    "evidence": EVIDENCE,
    "step": pl.Int32,  # row of ``steps``, -1 = outside every step
    "in_window": pl.Boolean,  # counted: inside --window, not warm-up or graph capture
}
KERNEL_WORK: Schema = {
    "place": pl.String,  # 'qkv' | 'o' | 'gate_up' | 'down' | 'router' | 'lm_head' | ... | '' where not identified
    "layer": pl.Int16,  # -1 = not in a layer
    "flop": pl.Float64,  # useful
    "flop_executed": pl.Float64,  # with padding
    "bytes": pl.Float64,  # least bytes to and from device memory
    "bytes_weights": pl.Float64,  # parts of ``bytes``; activations are the rest
    "bytes_kv": pl.Float64,
    "work_source": WORK_SOURCES,
    "mfu_pct": pl.Float32,
    "mbu_pct": pl.Float32,
}
STEPS: Schema = {  # one row per device and step, sorted by (group, index, device_index)
    "step": pl.Int32,  # row number, what kernels.step points to
    "index": pl.Int32,  # per group, in time order, the same on every device of the group
    "device": pl.Int32,
    "device_index": pl.Int32,
    "group": pl.Int32,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "busy_ns": pl.Int64,
    "phase": PHASES,
    "evidence": EVIDENCE,
    "partial": pl.Boolean,  # cut by the window's edge: kept out of statistics
    "excluded": pl.Boolean,  # warm-up, graph capture, load time: kept out of everything but the count
    "prefill_tokens": pl.Int64,
    "decode_tokens": pl.Int64,
    "prefill_requests": pl.Int64,
    "decode_requests": pl.Int64,
    "padded_tokens": pl.Int64,  # tokens the kernels were launched for (graph size), >= prefill + decode
    "prompts_finished": pl.Int64,  # prompts whose last token was prefilled in this step; null = cannot be seen
    "kv_tokens": pl.Int64,  # sum over requests of the KV length after the step
    "kv_tokens_source": pl.String,  # 'marker' | 'tracked' | 'estimated' | null
    "prefill_kv_tokens": pl.Int64,  # the prefill requests' share of kv_tokens
    "prefill_qk": pl.Float64,  # sum over prefill requests of q_i * S_i; null = unknown
    "prefill_qq": pl.Float64,  # sum over prefill requests of q_i * q_i; null = unknown
    "verify_width": pl.Int64,  # tokens per decoding request, 1 without speculation; null = unknown
    "kernel_count": pl.Int64,
    "graph_id": pl.Int64,  # null = not a graph replay
    "label": pl.String,  # the marker's text, null without one
    # filled by the work stage:
    "flop": pl.Float64,
    "bytes": pl.Float64,
    "bytes_weights": pl.Float64,
    "bytes_kv": pl.Float64,
    "bytes_activations": pl.Float64,
    "mfu_pct": pl.Float64,
    "mbu_pct": pl.Float64,
}
STALLS: Schema = {
    "stall": pl.Int32,  # row number
    "group": pl.Int32,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "stall_ms": pl.Float64,
    "kind": STALL_KINDS,
    "episode": pl.Int32,
    "prefill_tokens": pl.Int64,
    "prefill_requests": pl.Int64,
    "requests_held": pl.Int64,
    "request_ms_lost": pl.Float64,
    "baseline_ms": pl.Float64,
    "baseline_n": pl.Int32,
    "gap_before_ms": pl.Float64,
    "gap_ms": pl.Float64,
    "gap_after_ms": pl.Float64,
    "steps": pl.List(pl.Int32),  # step indices (per group) that stalled it
    "reason": pl.String,  # why a number is null
}
GAPS: Schema = {  # inter-token gaps; the parts sum to gap_ms
    "group": pl.Int32,
    "index": pl.Int32,  # step index of the closing decode-bearing step
    "start_ns": pl.Int64,  # end of the step before
    "end_ns": pl.Int64,
    "gap_ms": pl.Float64,
    "decode_ms": pl.Float64,
    "prefill_ms": pl.Float64,
    "collective_wait_ms": pl.Float64,
    "copy_ms": pl.Float64,
    "idle_launch_bound_ms": pl.Float64,
    "idle_host_sync_ms": pl.Float64,
    "idle_waiting_rank_ms": pl.Float64,
    "idle_between_requests_ms": pl.Float64,
    "idle_unknown_ms": pl.Float64,
    "counted": pl.Boolean,  # false: nobody waited, so it stays out of inter_token_gap_ms
    "stall": pl.Int32,  # row of ``stalls``, -1 = none
    "decode_requests": pl.Int64,
}
KERNEL_TABLE: Schema = {  # one row per (name, own phase), sorted by total_ms falling
    "name": pl.String,
    "short_name": pl.String,
    "op_class": OP_CLASSES,
    "phase": PHASES,
    "evidence": pl.Object,  # dict kind -> share of this row's time
    "count": pl.Int64,
    "count_per_step": pl.Float64,
    "total_ms": pl.Float64,
    "in_mixed_ms": pl.Float64,
    "median_us": pl.Float64,
    "flop": pl.Float64,
    "flop_executed": pl.Float64,
    "bytes": pl.Float64,
    "work_source": pl.String,
    "arithmetic_intensity": pl.Float64,
    "mfu_pct": pl.Float64,
    "mbu_pct": pl.Float64,
    "bound": BOUNDS,
    "headroom_ms": pl.Float64,
    "reason": pl.String,  # why a number is null or a bound is what it is
    "library": pl.String,
    "dtype": pl.String,
    "blocks": pl.Int64,  # of the median launch
    "waves": pl.Float64,
    "sm_coverage_pct": pl.Float64,
    "tail_waste_pct": pl.Float64,
}
OP_CLASS_TABLE: Schema = {
    k: v
    for k, v in KERNEL_TABLE.items()
    if k not in ("name", "short_name", "library", "dtype", "blocks", "waves", "sm_coverage_pct", "tail_waste_pct")
}
IDLE: Schema = {
    "device": pl.Int32,
    "device_index": pl.Int32,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "cause": IDLE_CAUSES,
}
GRAPHS: Schema = {
    "graph_id": pl.Int64,
    "device": pl.Int32,
    "batch": pl.Int64,  # captured (padded) size; null = unknown
    "replays": pl.Int64,
    "nodes": pl.Int64,  # null for opaque graphs
    "real_batch_median": pl.Float64,
    "padding_ms": pl.Float64,  # what padded rows cost beside the next smaller graph replayed, null = unknown
    "padded_rows_pct": pl.Float64,  # padded rows of all rows replayed; not a share of time
    "padding_reason": pl.String,  # why padding_ms is null
}
COLLECTIVES: Schema = {
    "name": pl.String,
    "group": pl.Int32,
    "phase": PHASES,
    "count": pl.Int64,
    "transfer_ms": pl.Float64,  # minimum over ranks; null for a single rank: 'includes wait'
    "wait_ms": pl.Float64,
    "late_device": pl.Int32,
    "total_ms": pl.Float64,
    "reason": pl.String,
}
GROUPS: Schema = {
    "group": pl.Int32,
    "devices": pl.List(pl.Int32),  # device_index of its ranks
    "kind": pl.String,  # 'single' | 'tensor_parallel' | 'pipeline_parallel'
}
