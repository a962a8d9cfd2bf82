"""SGLang's records of finished requests: ``ReqTimeStats`` log lines, and request metrics as JSON lines.

``--enable-request-time-stats-logging`` writes ``ReqTimeStats(...): queue_duration=12.34ms, forward_duration=..ms,
entry_time=<Unix s>``; ``--export-metrics-to-file`` (and ``--log-requests``) JSON with Unix seconds of reception, first
step, first token and end. Neither holds times of single tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .content import MOST_SECONDS, Object, count, number, seconds_as_ns
from .records import ClientLog, first_rows, messages_frame, requests_frame

LACKING = "SGLang's request records hold no times of single tokens; a client's log holds the gaps between them."
_STATS = re.compile(r"Req ?Time ?Stats\((.*?)\): ?(.*)")
_FIELD = re.compile(r"([a-z_ ]+?)=([\d.]+)")
Row = tuple[float, float | None, float | None, float | None, int | None, int | None, int | None]


def read(objects: Sequence[Object], file_name: str) -> ClientLog | None:
    """Request metrics in JSON; None where the objects hold none."""
    found = [_metrics(o) for o in objects]
    rows = [_from_metrics(m) for m in found if m is not None]
    return _build(rows, file_name) if rows else None


def read_lines(lines: Sequence[str], file_name: str) -> ClientLog | None:
    """``ReqTimeStats`` lines; None where there are none with a time."""
    rows: list[Row] = []
    for line in lines:
        match = _STATS.search(line)
        if not match:
            continue
        about = {k.strip().replace(" ", "_"): float(v) for k, v in _FIELD.findall(match[1])}
        times = {k.strip(): float(v) for k, v in _FIELD.findall(match[2])}
        if "entry_time" not in times:
            continue
        sent = times["entry_time"]
        queue, forward = times.get("queue_duration"), times.get("forward_duration")
        scheduled = None if queue is None else sent + queue / 1e3
        last = None if scheduled is None or forward is None else scheduled + forward / 1e3
        rows.append((sent, None, scheduled, last, count(about.get("input_len")), count(about.get("cached_input_len")), count(about.get("output_len"))))  # fmt: skip
    return _build(rows, file_name) if rows else None


def _metrics(line: Object) -> Mapping[str, Any] | None:
    out = line.get("out")
    for holder in (line, line.get("meta_info"), out.get("meta_info") if isinstance(out, dict) else None):
        if isinstance(holder, dict) and number(holder.get("request_received_ts"), MOST_SECONDS) is not None:
            return holder
    return None


def _from_metrics(meta: Mapping[str, Any]) -> Row:
    sent = number(meta["request_received_ts"], MOST_SECONDS) or 0.0
    first = number(meta.get("first_token_latency"), MOST_SECONDS)
    return (
        sent, None if first is None or first <= 0 else first, number(meta.get("forward_entry_time"), MOST_SECONDS),
        number(meta.get("response_sent_to_client_ts"), MOST_SECONDS) or number(meta.get("request_finished_ts"), MOST_SECONDS),
        count(meta.get("prompt_tokens")), count(meta.get("cached_tokens")), count(meta.get("completion_tokens")),
    )  # fmt: skip


def _build(rows: list[Row], file_name: str) -> ClientLog:
    rows = sorted(rows, key=lambda r: r[0])
    counts = np.array([int(r[1] is not None) for r in rows], dtype=np.int64)
    after = np.array([round(r[1] * 1e9) for r in rows if r[1] is not None], dtype=np.int64)

    def ns(column: int) -> list[int | None]:
        values = [r[column] for r in rows]
        return [seconds_as_ns(v) for v in values]

    frame = requests_frame({
        "sent_ns": ns(0), "scheduled_ns": ns(2), "last_token_ns": ns(3),
        "prompt_tokens": [r[4] for r in rows], "cached_tokens": [r[5] for r in rows], "output_tokens": [r[6] for r in rows],
        "first_message": first_rows(counts), "message_count": counts,
    })  # fmt: skip
    messages = messages_frame(after, np.ones(len(after), dtype=np.int64))
    return ClientLog("sglang-requests", file_name, "wall", frame, messages, all_messages=False, lacking=LACKING)
