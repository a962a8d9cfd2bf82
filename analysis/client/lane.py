"""The requests on the capture's clock, one row each: what a timeline draws as a lane."""

from __future__ import annotations

import numpy as np
import polars as pl

from ...ingest.client_logs.records import ClientLog
from .align import sent_on_capture
from .first_tokens import FirstTokens
from .placement import Placement
from .report import REQUEST_LANE
from .steps import CaptureSteps, Floats, Ints


def request_lane(placement: Placement | None, firsts: FirstTokens | None, log: ClientLog, steps: CaptureSteps) -> pl.DataFrame:  # fmt: skip
    """REQUEST_LANE of the requests that have a step; empty where the log is not aligned."""
    if placement is None or not placement.placed.any():
        return pl.DataFrame(schema=dict(REQUEST_LANE))
    placed = np.flatnonzero(placement.placed)
    row = placement.messages.row[placed]
    begin = np.flatnonzero(np.diff(row, prepend=-1))
    end = np.append(begin[1:], len(row)) - 1
    requests = row[begin]
    size = log.requests.height
    sent = sent_on_capture(placement, log)[requests]
    is_first = placement.messages.is_first[placed[begin]]
    columns: dict[str, Floats] = {
        "sent_ns": sent,
        "first_token_ns": np.where(is_first, placement.at_ns[placed[begin]], np.nan),
        "last_token_ns": placement.at_ns[placed[end]],
        "first_token_step": np.where(is_first, steps.index[placement.step[placed[begin]]], np.nan),
        "last_token_step": steps.index[placement.step[placed[end]]].astype(np.float64),
    }
    start, step, certain = np.full(size, np.nan), np.full(size, np.nan), np.zeros(size, dtype=bool)
    if firsts is not None:
        start[firsts.request], step[firsts.request] = steps.start_ns[firsts.first_step], steps.index[firsts.first_step]
        certain[firsts.request] = firsts.certain
    columns |= {"prefill_start_ns": start[requests], "prefill_step": step[requests]}
    confidence = np.where(certain[requests], "prompt", "chain")
    frame = pl.DataFrame(
        {"request": log.requests["request"].to_numpy()[requests], "confidence": confidence}
        | {name: _whole(values) for name, values in columns.items()}
    )
    return frame.select(pl.col(c).cast(t) for c, t in REQUEST_LANE.items())


def _whole(values: Floats) -> pl.Series:
    """Floats as integers, NaN as null."""
    known = ~np.isnan(values)
    rounded: Ints = np.rint(np.where(known, values, 0.0)).astype(np.int64)
    return pl.Series(rounded).zip_with(pl.Series(known), pl.Series([None], dtype=pl.Int64).new_from_index(0, len(values)))  # fmt: skip
