"""The Trace: what every input format becomes, as polars frames with one declared column contract.

Conventions, the same for every source:

* times are int64 nanoseconds since session start (0 = session start), durations are end - start;
* ids that are absent are -1 (never null), facts that are unknown are null;
* frames are sorted by their first time column, ties by the remaining columns, so that a result never
  depends on the order of rows in a file;
* ``process`` is an opaque int64 key, unique per process of the capture (Nsight: ``globalPid >> 24``; its low
  24 bits are the OS pid); ``thread`` is unique per thread of the capture (Nsight: ``globalTid``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from .formats import format_of

Schema = Mapping[str, pl.DataType | type[pl.DataType]]

LAUNCH_KINDS = pl.Enum(["kernel", "graph"])
API_KINDS = pl.Enum(["copy", "memset", "sync", "event", "malloc", "other"])
RANGE_KINDS = pl.Enum(["push_pop", "start_end", "annotation", "gpu_annotation"])
COPY_KINDS = pl.Enum(["h2d", "d2h", "d2d", "p2p", "h2h", "memset", "other"])

NAMES: Schema = {
    "name_id": pl.UInt32,  # dense, 0..n-1, equal to the row number
    "name": pl.String,  # demangled name as recorded
    "short_name": pl.String,  # the capture's short name, else the name up to the first '<' or '('
}
TEXTS: Schema = {
    "text_id": pl.UInt32,  # dense, 0..n-1, equal to the row number; used by launches, api_calls, ranges, marks
    "text": pl.String,
}
KERNELS: Schema = {
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "device_index": pl.Int32,  # row of ``devices``
    "process": pl.Int64,
    "context": pl.Int32,
    "stream": pl.Int32,
    "correlation_id": pl.Int64,  # unique only within a process; all kernels of one graph replay share it
    "name_id": pl.UInt32,  # row of ``names``
    "grid_x": pl.Int32,
    "grid_y": pl.Int32,
    "grid_z": pl.Int32,
    "block_x": pl.Int32,
    "block_y": pl.Int32,
    "block_z": pl.Int32,
    "registers": pl.Int32,  # per thread
    "shared_memory_bytes": pl.Int32,  # static + dynamic, per block
    "cluster_size": pl.Int32,  # blocks per cluster, 0 = none or not recorded
    "graph_node_id": pl.Int64,
    "graph_id": pl.Int64,
}
LAUNCH_COUNTS: Schema = {  # row by row beside ``kernels`` of an input of sums; empty where each row is one launch
    "launch_count": pl.Int64,  # launches that the kernel row stands for, alike: each lasts end - start over this
}
LAUNCHES: Schema = {
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "process": pl.Int64,
    "thread": pl.Int64,
    "correlation_id": pl.Int64,
    "kind": LAUNCH_KINDS,  # a kernel launch call, or a graph launch call (one call, many kernels)
    "text_id": pl.UInt32,  # name of the call without its _v12345 suffix
}
API_CALLS: Schema = {**LAUNCHES, "kind": API_KINDS}  # every other runtime or driver call
COPIES: Schema = {
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "device_index": pl.Int32,
    "process": pl.Int64,
    "context": pl.Int32,
    "stream": pl.Int32,
    "correlation_id": pl.Int64,
    "kind": COPY_KINDS,
    "bytes": pl.Int64,
    "graph_node_id": pl.Int64,
}
GRAPH_LAUNCHES: Schema = {  # whole-graph rows: the kernels inside are not recorded
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "device_index": pl.Int32,
    "process": pl.Int64,
    "context": pl.Int32,
    "stream": pl.Int32,
    "correlation_id": pl.Int64,
    "graph_id": pl.Int64,
    "graph_exec_id": pl.Int64,
}
RANGES: Schema = {
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "process": pl.Int64,
    "thread": pl.Int64,  # -1 for gpu_annotation
    "end_thread": pl.Int64,
    "text_id": pl.UInt32,
    "domain_text_id": pl.UInt32,  # text of the NVTX domain, '' for the default domain
    "kind": RANGE_KINDS,  # gpu_annotation: a range on GPU time (PyTorch profiler), tied by device and stream
    "device_index": pl.Int32,  # -1 unless gpu_annotation
    "stream": pl.Int32,  # -1 unless gpu_annotation
}
MARKS: Schema = {
    "time_ns": pl.Int64,
    "process": pl.Int64,
    "thread": pl.Int64,
    "text_id": pl.UInt32,
    "domain_text_id": pl.UInt32,
}
GPU_METRICS: Schema = {  # one row per sample, wide; null = not sampled. Percentages are 0..100 of the peak
    "time_ns": pl.Int64,  # end of the sample's interval
    "device_index": pl.Int32,
    "sm_active_pct": pl.Float32,
    "tensor_active_pct": pl.Float32,
    "dram_read_pct": pl.Float32,
    "dram_write_pct": pl.Float32,
    "sm_clock_hz": pl.Float64,
}
COUNTERS: Schema = {  # from beside the profiler (nvidia-smi dmon, DCGM); same rules
    "time_ns": pl.Int64,
    "device_index": pl.Int32,
    "source": pl.String,  # 'dmon' | 'dcgm'
    "utilization_pct": pl.Float32,  # nvidia-smi "sm": share of time with any kernel
    "memory_utilization_pct": pl.Float32,  # nvidia-smi "mem"
    "sm_active_pct": pl.Float32,
    "tensor_active_pct": pl.Float32,
    "dram_active_pct": pl.Float32,
    "sm_clock_hz": pl.Float64,
    "power_w": pl.Float32,
}
DEVICES: Schema = {  # one row per GPU with activity in the capture
    "device_index": pl.Int32,  # dense, equal to the row number
    "device": pl.Int32,  # CUDA ordinal
    "process": pl.Int64,  # the first process seen on it
    "gpu_name": pl.String,
    "gpu_source": pl.String,  # which table gave the name; null where the capture is silent
    "mapping": pl.String,  # 'exact' | 'ordinal' | 'one_name' | 'none': how deviceId became a GPU
    "sm_count": pl.Int32,
    "memory_bandwidth_bytes_per_s": pl.Int64,  # as the capture reports it
    "total_memory_bytes": pl.Int64,
    "l2_bytes": pl.Int64,
    "max_clock_hz": pl.Int64,
    "compute_capability": pl.String,  # '9.0'
    "chip": pl.String,  # 'GH100'
    "mig": pl.Boolean,
    "max_warps_per_sm": pl.Int32,
    "max_blocks_per_sm": pl.Int32,
    "shared_memory_per_sm_bytes": pl.Int32,
    "registers_per_sm": pl.Int32,
}


@dataclass(frozen=True)
class ServingFacts:
    """Serving options recognised on the recorded command line or in trace metadata; nothing else leaves ingest.

    Every field is None where the capture is silent. ``model`` is the last path component only.
    """

    engine: str | None = None  # 'vllm' | 'sglang' | 'tensorrt_llm' | 'llama.cpp' | 'tgi' | 'lmdeploy' | 'transformers'
    engine_version: str | None = None
    model: str | None = None
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    data_parallel: int | None = None
    dtype: str | None = None
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    max_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    chunked_prefill: bool | None = None
    speculative: str | None = None


@dataclass(frozen=True)
class Diagnostic:
    """A message of the profiler about itself, from an allow-list of loss and state messages."""

    severity: str  # 'info' | 'warning' | 'error'
    text: str


@dataclass(frozen=True)
class EvidenceGap:
    """Something the capture does not hold: which question it closes and how to record it next time."""

    what: str  # 'no NVTX ranges', 'graph replays are opaque', 'no GPU table', ...
    consequence: str
    recapture: str  # a copyable command or flag, '' where nothing helps


@dataclass(frozen=True)
class CaptureFacts:
    """What the capture says of itself (allow-listed)."""

    source_name: str  # file name without its folder
    format: str  # a key of ``formats.FORMATS``, 'several' for a run whose files differ in it
    product: str | None = None  # 'Nsight Systems', 'PyTorch profiler', ...
    product_version: str | None = None
    schema_version: str | None = None
    session_start_utc_ns: int | None = None
    duration_ns: int | None = None  # the capture's own length
    graph_trace_mode: str | None = None  # 'node' | 'graph' | None (not recorded)
    hardware_trace: bool | None = None
    rank: int | None = None
    world_size: int | None = None
    gpus_present: tuple[str, ...] = ()  # names of all NVIDIA/AMD GPUs the capture lists, active or not
    serving: ServingFacts = field(default_factory=ServingFacts)
    diagnostics: tuple[Diagnostic, ...] = ()
    rejected_rows: Mapping[str, int] = field(default_factory=dict)  # reason -> rows
    tables_missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # one sentence each: what was odd and what was done about it

    @property
    def has_timeline(self) -> bool:
        """False for inputs that hold durations but no times: their readers lay the kernels end to end."""
        known = format_of(self.format)
        return known is None or known.has_timeline

    @property
    def profiled_one_by_one(self) -> bool:
        """Whether the kernels are launches that Nsight Compute measured."""
        known = format_of(self.format)
        return known is not None and known.profiled_one_by_one


@dataclass(frozen=True)
class Trace:
    """One capture as columns. Built by a reader in ``ingest``; see the schemas above for the columns."""

    capture: CaptureFacts
    names: pl.DataFrame
    texts: pl.DataFrame
    kernels: pl.DataFrame
    launches: pl.DataFrame
    api_calls: pl.DataFrame
    copies: pl.DataFrame
    graph_launches: pl.DataFrame
    ranges: pl.DataFrame
    marks: pl.DataFrame
    gpu_metrics: pl.DataFrame
    counters: pl.DataFrame
    devices: pl.DataFrame
    launch_counts: pl.DataFrame
    gaps_in_evidence: tuple[EvidenceGap, ...] = ()
    source: Path | None = None  # where it was read from; reaches no output

    @property
    def holds_sums(self) -> bool:
        """Whether kernel rows are sums over launches, in no order: no step, gap or single launch can be told."""
        return self.launch_counts.height > 0

    @property
    def kernel_count(self) -> int:
        """Kernels (launches) in the capture; as many as ``kernels`` has rows, except where these are sums."""
        return int(self.launch_counts["launch_count"].sum()) if self.holds_sums else self.kernels.height

    def count_launches(self, rows: pl.Series | npt.NDArray[np.bool_]) -> int:
        """The launches that the flagged rows of ``kernels`` stand for."""
        if not self.holds_sums:
            return int(rows.sum())
        return int(self.launch_counts["launch_count"].to_numpy()[np.asarray(rows)].sum())

    def __repr__(self) -> str:
        facts = self.capture
        return f"<Trace {facts.source_name}: {facts.product or facts.format}, {self.kernel_count:,} kernels>"


FRAMES: Mapping[str, Schema] = {
    "names": NAMES,
    "texts": TEXTS,
    "kernels": KERNELS,
    "launches": LAUNCHES,
    "api_calls": API_CALLS,
    "copies": COPIES,
    "graph_launches": GRAPH_LAUNCHES,
    "ranges": RANGES,
    "marks": MARKS,
    "gpu_metrics": GPU_METRICS,
    "counters": COUNTERS,
    "devices": DEVICES,
    "launch_counts": LAUNCH_COUNTS,
}


def empty(schema: Schema) -> pl.DataFrame:
    """An empty frame with the columns of ``schema``."""
    return pl.DataFrame(schema=dict(schema))


def check(frame: pl.DataFrame, schema: Schema, what: str) -> pl.DataFrame:
    """Return ``frame`` with exactly the columns of ``schema``, in order.

    Raises ``TypeError`` naming the column when one is missing or has another type: a reader that breaks the
    contract is a fault of ours, never of the user's file.
    """
    for column, dtype in schema.items():
        if column not in frame.columns:
            raise TypeError(f"{what}: column {column!r} is missing")
        if frame.schema[column] != dtype:
            raise TypeError(f"{what}: column {column!r} is {frame.schema[column]}, expected {dtype}")
    return frame.select(list(schema))


def build_trace(
    capture: CaptureFacts, *, gaps_in_evidence: tuple[EvidenceGap, ...] = (), **frames: pl.DataFrame
) -> Trace:
    """Build a Trace from the frames a reader has; frames not given are empty. Checks every column."""
    if (counts := frames.get("launch_counts")) is not None and counts.height not in (0, frames["kernels"].height):
        raise TypeError(f"launch_counts: {counts.height} rows beside {frames['kernels'].height} of kernels")
    unknown = sorted(set(frames) - set(FRAMES))
    if unknown:
        raise TypeError(f"not frames of a Trace: {', '.join(unknown)}")
    checked = {
        name: check(frames[name], schema, name) if name in frames else empty(schema) for name, schema in FRAMES.items()
    }
    return Trace(capture=capture, gaps_in_evidence=gaps_in_evidence, source=None, **checked)
