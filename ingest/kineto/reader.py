"""PyTorch-profiler (Kineto) traces: ``*.pt.trace.json`` and ``*.pt.trace.json.gz``, CUDA and ROCm.

A trace is Chrome-trace JSON: one list of events and, around it, facts about the devices, the rank and the base time
(``torch/profiler`` and the ``libkineto`` output writer are its only specification). Read here: kernels, copies, runtime
and driver calls, annotations of the host (``user_annotation``) and of the GPU (``gpu_user_annotation``), and operators
with their ``Input Dims`` as ranges. Not read: Python stacks, flow arrows (the correlation id says the same), memory
events. Times are microseconds with decimals since ``baseTimeNanoseconds`` (older traces: since 1970) and become int64
ns since the start of the profiler's own span without passing through a float.

Kernel and launch are tied by ``correlation``; a trace recorded without runtime calls ties them through ``External id``
to the operator that launched them. A graph replay's kernels share the correlation id of one launch.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl

from ...analysis.records.errors import CannotAnswerError, NotACaptureError
from ...analysis.records.trace import CaptureFacts, EvidenceGap, ServingFacts, Trace, build_trace
from .events import Columns, Event
from .frames import Frames, assemble
from .json_stream import EventStream, inflate_head

FORMAT = "kineto_json"
_KEYS = (b'"traceEvents"', b'"deviceProperties"', b'"distributedInfo"', b'"schemaVersion"', b'"baseTimeNanoseconds"')
_ENGINES = (("vllm", "vllm"), ("sglang", "sglang"), ("trtllm", "tensorrt_llm"), ("tensorrt_llm", "tensorrt_llm"))
# A run launches about as many kernels as the device executes; under capture the launches only fill a graph.
_CAPTURED_SHARE = 0.5


def sniff(path: Path, head: bytes) -> bool:
    """Whether ``head``, the first bytes of ``path``, is Chrome-trace JSON (also inside gzip)."""
    text = inflate_head(head).lstrip(b"\xef\xbb\xbf \t\r\n")
    if text.startswith(b"{"):
        return any(key in text for key in _KEYS)
    return text.startswith(b"[") and b'"ph"' in text[:4096]


def read(path: Path, *, progress: Callable[[str], None] | None = None) -> Trace:
    """Read the trace at ``path``; ``progress`` is told how many events have been read.

    Raises NotACaptureError when the JSON is damaged, cut off or no profiler trace, and CannotAnswerError when it holds
    no kernels or only a CUDA-graph capture.
    """
    columns = Columns()
    stream = EventStream(path, Event)
    events = 0
    for batch in stream:
        columns.add(batch)
        events += len(batch)
        if progress:
            progress(f"{events:,} trace events read")
    if not columns.count("kernel"):
        raise _without_kernels(path, columns, stream.facts)
    frames = assemble(columns, stream.facts, path.name)
    _refuse_capture_only(path, frames)
    return build_trace(
        _capture(path, frames, columns, stream.facts),
        gaps_in_evidence=_gaps(frames, columns),
        **frames.tables,
    )


def _without_kernels(path: Path, columns: Columns, facts: dict[str, Any]) -> NotACaptureError | CannotAnswerError:
    profiler = "schemaVersion" in facts or "deviceProperties" in facts or columns.span or columns.count("op")
    if not profiler and not columns.count("call"):
        return NotACaptureError(
            f"{path.name} is Chrome-trace JSON, but not of the PyTorch profiler: it has no events of the category "
            "'kernel'. Expected a *.pt.trace.json of a run with CUDA or ROCm activity."
        )
    return CannotAnswerError(
        f"{path.name} is a PyTorch-profiler trace without a single GPU kernel "
        f"({columns.count('op'):,} CPU operators, {columns.count('call'):,} runtime calls). Likely causes: the profiler "
        "ran without ProfilerActivity.CUDA, in the wrong process (profile the worker, not the API server), or while "
        "another tool held CUPTI; or the schedule ended before a request arrived."
    )


def _refuse_capture_only(path: Path, frames: Frames) -> None:
    launches = frames.tables["launches"]
    replays = launches.filter(pl.col("kind") == "graph").height
    kernels = frames.tables["kernels"].height
    if frames.stream_captures and not replays and kernels < _CAPTURED_SHARE * launches.height:
        raise CannotAnswerError(
            f"{path.name} records the capture of a CUDA graph, not a run: {launches.height:,} launches were recorded "
            f"into a graph, {kernels:,} kernels ran, and no graph was replayed. This happens when the profiler starts "
            "while the server warms up. Start it after the server is ready and requests are flowing "
            "(for instance POST /start_profile under load)."
        )


def _capture(path: Path, frames: Frames, columns: Columns, facts: dict[str, Any]) -> CaptureFacts:
    distributed = facts.get("distributedInfo")
    distributed = distributed if isinstance(distributed, dict) else {}
    return CaptureFacts(
        source_name=path.name,
        format=FORMAT,
        product="PyTorch profiler",
        schema_version=_text(facts.get("schemaVersion")),
        session_start_utc_ns=frames.session_start_utc_ns,
        duration_ns=frames.duration_ns,
        graph_trace_mode="node" if frames.replayed_kernels else None,
        rank=_count(distributed.get("rank")) if len(columns.ranks.codes) <= 2 else None,  # a merged trace has several
        world_size=_count(distributed.get("world_size")),
        gpus_present=frames.gpus_present,
        serving=ServingFacts(engine=_engine(columns)),
        rejected_rows=frames.rejected,
        tables_missing=tuple(kind for kind in ("call", "annotation", "op") if not columns.count(kind)),
        notes=tuple(frames.notes),
    )


def _engine(columns: Columns) -> str | None:
    """The engine, where a process carries its name ("VLLM::EngineCore", "sglang::scheduler")."""
    for name in columns.process_names.values():
        for part, engine in _ENGINES:
            if part in name.lower():
                return engine
    return None


def _gaps(frames: Frames, columns: Columns) -> tuple[EvidenceGap, ...]:
    gaps = []
    if not columns.count("annotation"):
        gaps.append(
            EvidenceGap(
                "no annotations of the engine",
                "steps and phases come from kernel names and geometry",
                "vLLM 0.27 or newer: --profiler-config.profiler=torch --profiler-config.detailed_trace_annotation=true",
            )
        )
    if not columns.count("call"):
        gaps.append(
            EvidenceGap(
                "no runtime calls",
                "idle time cannot be split into launch-bound and host waits",
                "profile with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
            )
        )
    if frames.tables["kernels"].get_column("grid_x").null_count():
        gaps.append(
            EvidenceGap(
                "no launch geometry for kernels inside graph replays",
                "token counts of graph steps come from annotations only",
                "",
            )
        )
    return tuple(gaps)


def _text(value: Any) -> str | None:
    return str(value) if isinstance(value, int | float | str) else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None
