"""Requests and tokens per second of a log, and those of requests within the targets (goodput)."""

from __future__ import annotations

import numpy as np
import polars as pl

from ...ingest.client_logs.records import ClientLog
from .gaps import arrival_gaps
from .messages import Messages
from .report import Served
from .steps import Flags, Floats

#: A request is within the target of gaps when so many of its gaps are.
SHARE_WITHIN = 0.99


def throughput(
    log: ClientLog, messages: Messages, measured: Flags, itl_target_ms: float | None, ttft_target_ms: float | None
) -> Served | None:
    """From the first request's sending to the last message; None without start times.

    ``messages`` are those of the ``measured`` requests. A request is good when its first token and 99% of its gaps are
    within the targets given.
    """
    sent = log.requests["sent_ns"]
    if not len(messages.row) or not log.has_starts:
        return None
    begin = float(sent.fill_null(messages.zero_ns).to_numpy()[measured].min() - messages.zero_ns)
    seconds = (float(messages.at_ns.max()) - begin) / 1e9
    if seconds <= 0:
        return None
    count = len(np.unique(messages.row))
    output = log.requests["output_tokens"].filter(pl.Series(measured))
    tokens = float(output.sum()) if output.null_count() == 0 else None
    good = None
    if itl_target_ms is not None or ttft_target_ms is not None:
        good = int(_good(log, messages, itl_target_ms, ttft_target_ms).sum())
    return Served(
        seconds, count / seconds, None if tokens is None else tokens / seconds,
        None if good is None else good / seconds, None if good is None else 100 * good / count,
    )  # fmt: skip


def _good(log: ClientLog, messages: Messages, itl_target_ms: float | None, ttft_target_ms: float | None) -> Flags:
    """Per request with messages, whether it is within the targets."""
    rows = np.unique(messages.row)
    fine = np.ones(len(rows), dtype=bool)
    if ttft_target_ms is not None:
        first = log.requests["first_message"].to_numpy()[rows]
        fine &= log.messages["after_ns"].to_numpy()[first] <= ttft_target_ms * 1e6
    if itl_target_ms is not None:
        before, after = arrival_gaps(messages.row, messages.at_ns)
        over: Floats = (messages.at_ns[after] - messages.at_ns[before] > itl_target_ms * 1e6).astype(np.float64)
        size = int(rows.max()) + 1
        late = np.bincount(messages.row[after], weights=over, minlength=size)
        total = np.bincount(messages.row[after], minlength=size)
        fine &= (late <= (1 - SHARE_WITHIN) * total)[rows]
    return fine
