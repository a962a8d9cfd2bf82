"""Logs that name the engine's steps: no clock is needed to find a request's step.

The capture has the numbers in its markers, or an engine's iteration log beside it has them: its sequence of counts is that
of the capture's steps, shifted by a constant.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from ...ingest.client_logs.records import ClientLog
from .fit import LEAST_DELIVERY_NS
from .messages import Messages
from .placement import NOWHERE, Placement, Shift
from .steps import CaptureSteps, Floats

LEAST_MATCHED = 0.9
LEAST_LEAD = 3.0  # times as much agreement as at any other lag


def number_steps(steps: CaptureSteps, iterations: pl.DataFrame) -> Floats:
    """The engine's number of each step, from the sequence of counts; all NaN where the two do not agree."""
    none = np.full(len(steps.index), np.nan)
    if not iterations.height:
        return none
    number = iterations["iteration"].to_numpy()
    log = [iterations[c].cast(pl.Float64).to_numpy() for c in ("prefill_tokens", "decode_requests")]
    own = [steps.counts[c] for c in ("prefill_tokens", "decode_requests")]
    if any(np.isnan(c).all() for c in (*log, *own)):
        return none
    log_code, own_code = (np.nan_to_num(a) * 100_003 + np.nan_to_num(b) for a, b in (log, own))
    ordinal = np.arange(len(own_code))
    codes, counts = np.unique(log_code, return_counts=True)
    rare = {float(c): 1.0 / n for c, n in zip(codes, counts, strict=True)}
    frame = pl.DataFrame({"code": log_code, "number": number}).join(
        pl.DataFrame({"code": own_code, "ordinal": ordinal}), on="code"
    )
    if not frame.height:
        return none
    weight = pl.col("code").replace_strict(rare, default=0.0, return_dtype=pl.Float64)
    lags = frame.group_by((pl.col("number") - pl.col("ordinal")).alias("lag")).agg(weight.sum().alias("votes")).sort("votes", descending=True)  # fmt: skip
    lag = int(lags["lag"][0])
    second = float(lags["votes"][1]) if lags.height > 1 else 0.0
    if float(lags["votes"][0]) < LEAST_LEAD * second:
        return none
    by_number = dict(zip(number.tolist(), log_code.tolist(), strict=True))
    paired = [(by_number[k + lag], own_code[k]) for k in range(len(own_code)) if k + lag in by_number]
    agree = sum(a == b for a, b in paired)
    if agree < LEAST_MATCHED * len(paired) or agree < 3:
        return none
    return ordinal.astype(np.float64) + lag


def place_by_numbers(log: ClientLog, messages: Messages, steps: CaptureSteps, others: Sequence[ClientLog]) -> Placement | None:  # fmt: skip
    """First tokens on the steps the log names; None where no step of the capture has a number."""
    number = steps.iteration
    for other in others:
        if np.isnan(number).all():
            number = number_steps(steps, other.iterations)
    known = np.flatnonzero(~np.isnan(number))
    named = log.requests["first_step"].cast(pl.Float64).fill_null(-1.0).to_numpy()[messages.row]
    if not len(known):
        return None
    where = np.minimum(np.searchsorted(number[known], named), len(known) - 1)
    found = (number[known][where] == named) & messages.is_first
    if not found.any():
        return None
    step = np.where(found, known[where], -1)
    begin = np.full(int(messages.row.max()) + 1, NOWHERE, dtype=np.int64)
    begin[messages.row[found]] = steps.decodes_up_to[step[found]]
    late = messages.at_ns[found] - steps.end_ns[step[found]]
    shift = Shift(LEAST_DELIVERY_NS - float(np.quantile(late, 0.01)))
    at = shift.apply(messages.at_ns)
    residual = np.where(found, at - steps.end_ns[np.maximum(step, 0)], np.nan)
    return Placement(messages, shift, at, begin, np.full(len(step), -1), step, residual)
