"""TensorRT-LLM's own records: request metrics (``GET /perf_metrics``), iteration statistics and iteration log lines.

Request metrics name the steps that made a request's first and last token (``first_iter``, ``last_iter``; the numbers of the
NVTX ranges ``_forward_step N``) and hold steady-clock seconds. Iteration statistics hold each step's counts; their time
text is local and written when the batch is built, so it is not used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from .clocks import clock_of_seconds
from .content import MOST_SECONDS, Object, count, number, python_dict, seconds_as_ns, whole
from .records import ITERATIONS, ClientLog, first_rows, messages_frame, requests_frame

Row = tuple[int, int | None, int | None, int | None, float | None]
_LINE = re.compile(r"\biter = (\d+),.*?host_step_time = ([\d.]+) ?ms.*?states = (\{.*?\})")


def read(objects: Sequence[Object], file_name: str) -> ClientLog | None:
    """Request metrics or iteration statistics; None where the objects are neither."""
    metrics = [m for o in objects for m in _parts(o)]
    if metrics:
        return _requests(metrics, file_name)
    if any("iter" in o and "inflightBatchingStats" in o for o in objects):
        return iteration_log([_statistics(o) for o in objects if "iter" in o], "trtllm-iterations", file_name)
    return None


def read_lines(lines: Sequence[str], file_name: str) -> ClientLog | None:
    """Lines of ``print_iter_log``, or statistics in Python's notation; None where there are none."""
    rows: list[Row] = []
    for line in lines:
        found = _LINE.search(line)
        if found:
            states = python_dict(found[3]) or {}
            rows.append((int(found[1]), count(states.get("num_ctx_requests")), count(states.get("num_ctx_tokens")), count(states.get("num_generation_tokens")), float(found[2])))  # fmt: skip
        elif line.startswith("{") and "'iter'" in line:
            statistics = python_dict(line)
            if statistics and "iter" in statistics:
                rows.append(_statistics(statistics))
    return iteration_log(rows, "trtllm-iterations", file_name) if rows else None


def _parts(entry: Object) -> list[Mapping[str, Any]]:
    """The metrics of one request, of the worker that made its first token where it was served by two."""
    for holder in (entry, entry.get("ctx_perf_metrics"), entry.get("gen_perf_metrics")):
        if isinstance(holder, dict) and isinstance(holder.get("perf_metrics"), dict):
            return [holder["perf_metrics"]]
    return []


def _requests(metrics: list[Mapping[str, Any]], file_name: str) -> ClientLog:
    rows = []
    for one in metrics:
        times = one.get("timing_metrics")
        at = {k: number(v, MOST_SECONDS) for k, v in times.items()} if isinstance(times, dict) else {}
        sent = at.get("server_arrival_time") or at.get("arrival_time")
        first = at.get("server_first_token_time") or at.get("first_token_time")
        rows.append((sent, first, at.get("first_scheduled_time"), at.get("last_token_time"), whole(one.get("first_iter")), whole(one.get("last_iter"))))  # fmt: skip
    rows.sort(key=lambda r: r[0] or 0.0)
    counts = np.array([int(r[0] is not None and r[1] is not None) for r in rows], dtype=np.int64)
    after = np.array([round((r[1] - r[0]) * 1e9) for r in rows if r[0] is not None and r[1] is not None], dtype=np.int64)  # fmt: skip
    frame = requests_frame({
        "sent_ns": [seconds_as_ns(r[0]) for r in rows], "scheduled_ns": [seconds_as_ns(r[2]) for r in rows], "last_token_ns": [seconds_as_ns(r[3]) for r in rows],
        "first_step": [r[4] for r in rows], "last_step": [r[5] for r in rows],
        "first_message": first_rows(counts), "message_count": counts,
    })  # fmt: skip
    return ClientLog(
        "trtllm-metrics", file_name, clock_of_seconds(next((r[0] for r in rows if r[0]), None)), frame,
        messages_frame(after, np.ones(len(after), dtype=np.int64)), all_messages=False,
        lacking="Request metrics hold first and last tokens only; a client's log holds the gaps between tokens.",
    )  # fmt: skip


def _statistics(line: Object) -> Row:
    batch = line.get("inflightBatchingStats")
    batch = batch if isinstance(batch, dict) else {}
    return (
        whole(line["iter"]) or 0, count(batch.get("numContextRequests")), count(batch.get("numCtxTokens")),
        count(batch.get("numGenRequests")), number(line.get("iterLatencyMS")),
    )  # fmt: skip


def iteration_log(rows: Sequence[Row], source: str, file_name: str) -> ClientLog:
    """A log that holds the engine's steps and no requests."""
    frame = pl.DataFrame(list(rows), schema=dict(ITERATIONS), orient="row").sort("iteration", maintain_order=True)
    return ClientLog(
        source, file_name, "none", requests_frame({"request": []}), messages_frame(np.zeros(0, dtype=np.int64), None),
        iterations=frame, all_messages=False, lacking="The file holds the engine's steps, no requests: give a client's log beside it.",
    )  # fmt: skip
