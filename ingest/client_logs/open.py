"""Which format a log has: by its content, never by its name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from ...analysis.records.errors import UsageError
from . import aiperf, bench_serving, inference_perf, sglang_requests, trtllm, vllm_iterations
from .content import json_objects, objects_only, read_content, text_lines
from .records import ClientLog

#: What each reader takes and how it is written, for error messages and documentation.
FORMATS: Mapping[str, str] = MappingProxyType({
    "vllm": "vllm bench serve --save-result --save-detailed",
    "sglang": "python -m sglang.bench_serving --output-file F --output-details",
    "trtllm-client": "python -m tensorrt_llm.serve.scripts.benchmark_serving --save-result --save-detailed",
    "aiperf": "aiperf profile --streaming: profile_export.jsonl",
    "aiperf-raw": "aiperf profile --streaming --export-level raw: profile_export_raw.jsonl",
    "perf_analyzer": "perf_analyzer --profile-export-file: profile_export.json",
    "inference-perf": "inference-perf with per_request: true: per_request_lifecycle_metrics.json",
    "trtllm-metrics": "trtllm-serve with return_perf_metrics: GET /perf_metrics",
    "trtllm-iterations": "trtllm-serve with enable_iter_perf_stats (GET /metrics) or print_iter_log",
    "vllm-iterations": "vllm serve --enable-logging-iteration-details: the server's log",
    "sglang-requests": "sglang server with --export-metrics-to-file or --enable-request-time-stats-logging",
})  # fmt: skip
_OF_OBJECTS = (aiperf.read, inference_perf.read, trtllm.read, sglang_requests.read, bench_serving.read)
_OF_LINES = (vllm_iterations.read_lines, trtllm.read_lines, sglang_requests.read_lines)


def open_client_log(path: str | Path) -> ClientLog:
    """Read a client's or an engine's log.

    Raises UsageError where the file cannot be read or is in none of FORMATS, saying which there are.
    """
    path = Path(path)
    content = read_content(path)
    values = json_objects(content)
    if values is not None:
        objects = objects_only(values)
        for read in _OF_OBJECTS:
            log = read(objects, path.name)
            if log is not None:
                return log
    lines = text_lines(content)
    for read_lines in _OF_LINES:
        log = read_lines(lines, path.name)
        if log is not None:
            return log
    known = "; ".join(FORMATS.values())
    raise UsageError(f"--client {path.name}: this is no log of a benchmark client that is known. Known are: {known}.")
