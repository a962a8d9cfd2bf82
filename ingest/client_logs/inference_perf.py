"""inference-perf's ``per_request_lifecycle_metrics.json`` (``per_request: true`` in the report's configuration).

A list of requests with perf_counter seconds of the start and of every token; tokens of one message share its time, so
equal times are one message of several tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .clocks import clock_of_seconds
from .content import MOST_SECONDS, Object, count, number
from .records import ClientLog, first_rows, messages_frame, nanoseconds, requests_frame


def read(objects: Sequence[Object], file_name: str) -> ClientLog | None:
    """The log; None where the objects are not inference-perf's."""
    entries = [o for o in objects if "start_time" in o and isinstance(o.get("info"), dict)]
    if not entries:
        return None
    entries = sorted(entries, key=lambda e: number(e.get("start_time"), MOST_SECONDS) or 0.0)
    after, tokens, rows = [], [], []
    for entry in entries:
        start = number(entry.get("start_time"), MOST_SECONDS)
        failed = entry.get("error") is not None
        times = [] if failed or start is None else _token_times(entry["info"])
        at, made = np.unique(np.array(times, dtype=np.float64), return_counts=True)
        after.append(nanoseconds(at - (start or 0.0)))
        tokens.append(made)
        info = entry["info"]
        rows.append((start, failed, count(info.get("input_tokens")), count(info.get("output_tokens"))))
    counts = np.array([len(a) for a in after], dtype=np.int64)
    frame = requests_frame({
        "sent_ns": [None if r[0] is None else round(r[0] * 1e9) for r in rows], "failed": [r[1] for r in rows],
        "prompt_tokens": [r[2] for r in rows], "output_tokens": [r[3] for r in rows],
        "first_message": first_rows(counts), "message_count": counts,
    })  # fmt: skip
    messages = messages_frame(np.concatenate(after), np.concatenate(tokens).astype(np.int64))
    clock = clock_of_seconds(next((r[0] for r in rows if r[0] is not None), None))
    gaps = [np.diff(np.repeat(a, n)).astype(np.float64) for a, n in zip(after, tokens, strict=True)]
    return ClientLog("inference-perf", file_name, clock, frame, messages, itl_as_recorded_ns=np.concatenate(gaps))


def _token_times(info: Mapping[str, Any]) -> list[float]:
    metrics = info.get("response_metrics")
    holder = metrics if isinstance(metrics, dict) else info
    for name in ("output_token_times", "chunk_times"):
        times = holder.get(name)
        if isinstance(times, list) and times:
            return [t for t in (number(v, MOST_SECONDS) for v in times) if t is not None]
    return []
