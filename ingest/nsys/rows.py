"""What every table of events goes through: time base, rejected rows, order, narrow types."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from ..trace import Schema
from .strings import dense

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
UINT32_SPAN = 2**32


@dataclass
class Notes:
    """What was odd in a file: rejected rows by reason, and sentences."""

    rejected: Counter[str] = field(default_factory=Counter)
    sentences: list[str] = field(default_factory=list)

    def reject(self, reason: str, rows: int) -> None:
        """Count rejected rows under a reason."""
        if rows:
            self.rejected[reason] += int(rows)

    def say(self, sentence: str) -> None:
        """Add a sentence once."""
        if sentence not in self.sentences:
            self.sentences.append(sentence)


def keep_valid_times(
    frame: pl.DataFrame,
    what: str,
    notes: Notes,
    *,
    offset: int = 0,
    latest: int | None = None,
    zero_is_invalid: bool = False,
) -> pl.DataFrame:
    """``frame`` with ``start_ns`` and ``end_ns`` moved to session start, without the rows whose times cannot be true.

    ``what`` names the rows ('kernel') in the reasons. Rows are rejected, and counted, where a time is missing, where
    start = end = 0 (CUPTI: timing not collected), end < start, start < 0 (before the capture), start > ``latest``
    (after it), and, with ``zero_is_invalid``, where start = end.
    """
    start = frame["start_ns"].to_numpy() if not frame["start_ns"].null_count() else None
    end = frame["end_ns"].to_numpy() if not frame["end_ns"].null_count() else None
    if start is None or end is None:
        complete = frame["start_ns"].is_not_null() & frame["end_ns"].is_not_null()
        notes.reject(f"{what}: time missing", int((~complete).sum()))
        frame = frame.filter(complete)
        start, end = frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy()
    reasons = [(f"{what}: timing not collected (start = end = 0)", (start == 0) & (end == 0))]
    if offset:
        start, end = start - offset, end - offset
        frame = frame.with_columns(pl.Series("start_ns", start), pl.Series("end_ns", end))
    reasons.append((f"{what}: ends before it starts", end < start))
    reasons.append((f"{what}: starts before the capture (negative time)", start < 0))
    if latest is not None:
        reasons.append((f"{what}: starts after the capture's end", start > latest))
    if zero_is_invalid:
        reasons.append((f"{what}: zero duration", start == end))
    bad = np.zeros(start.shape, dtype=bool)
    for reason, hit in reasons:
        if hit.any():
            notes.reject(reason, int((hit & ~bad).sum()))
            bad |= hit
    return frame.filter(pl.Series(~bad)) if bad.any() else frame


def in_order(frame: pl.DataFrame) -> pl.DataFrame:
    """Rows sorted by the first column, ties by the remaining ones in turn; unsorted work only where needed."""
    if frame.height < 2:
        return frame
    first = frame.columns[0]
    time = frame[first].to_numpy()
    steps = np.diff(time)
    if (steps > 0).all():
        return frame
    if (steps < 0).any():
        frame = frame[np.argsort(time, kind="stable")]
        steps = np.diff(frame[first].to_numpy())
    tie = steps == 0
    if not tie.any():
        return frame
    tied = np.concatenate(([False], tie)) | np.concatenate((tie, [False]))
    if tied.all():
        return frame.sort(frame.columns)
    places = np.flatnonzero(tied)
    order = np.arange(frame.height)
    group = frame[places].with_row_index("__row").sort(frame.columns, maintain_order=True)
    order[places] = places[group["__row"].to_numpy()]
    return frame[order]


def narrowed(frame: pl.DataFrame, schema: Schema, what: str, notes: Notes) -> pl.DataFrame:
    """``frame`` cast to ``schema``: null ids become -1, values too wide for 32 bits are wrapped or renumbered."""
    columns = []
    for name, dtype in schema.items():
        column = frame[name]
        if dtype == pl.Int32 and column.dtype == pl.Int64:
            column = _int32(column, what, notes)
        elif dtype == pl.Int64 and column.null_count():
            column = column.fill_null(-1)
        columns.append(column if column.dtype == dtype else column.cast(dtype))
    return pl.DataFrame(columns)


def _int32(column: pl.Series, what: str, notes: Notes) -> pl.Series:
    if column.null_count():
        column = column.fill_null(-1)
    if column.is_empty():
        return column.cast(pl.Int32)
    values = column.to_numpy()
    low, high = int(values.min()), int(values.max())
    if low >= INT32_MIN and high <= INT32_MAX:
        return column.cast(pl.Int32)
    if low >= 0 and high < UINT32_SPAN:  # an unsigned number: 4294967295 is -1
        wrapped = values.astype(np.uint32).view(np.int32)
        return pl.Series(column.name, wrapped)
    notes.say(f"{what}: {column.name} holds numbers beyond 32 bits; they were renumbered.")
    _, codes = dense(values)
    return pl.Series(column.name, codes.astype(np.int32))


def to_process(thread_or_process: pl.Series) -> np.ndarray:
    """``globalTid`` or ``globalPid`` -> the process key (``>> 24``; -1 where absent)."""
    values = (
        thread_or_process.fill_null(-1).to_numpy() if thread_or_process.null_count() else thread_or_process.to_numpy()
    )
    return values >> 24
