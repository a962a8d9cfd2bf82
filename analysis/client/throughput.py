"""Requests and tokens per second of a log, and those of requests within the targets (goodput)."""

from __future__ import annotations

import numpy as np
import polars as pl

from ...ingest.client_logs.records import ClientLog
from .gaps import arrivals
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
        last, _ = arrivals(messages.row, messages.at_ns)
        row, at = messages.row[last], messages.at_ns[last]
        pair = row[1:] == row[:-1]
        size = int(rows.max()) + 1
        over: Floats = ((at[1:] - at[:-1]) > itl_target_ms * 1e6).astype(np.float64)
        late = np.bincount(row[1:][pair], weights=over[pair], minlength=size)
        total = np.bincount(row[1:][pair], minlength=size)
        fine &= (late <= (1 - SHARE_WITHIN) * total)[rows]
    return fine
