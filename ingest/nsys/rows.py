"""What every table of events goes through: time base, rejected rows, order, narrow types."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from ...analysis.records.trace import Schema
from .sqlite_pages.columns import MISSING
from .strings import dense

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
UINT32_SPAN = 2**32
END_SLACK_NS = 1_000_000_000  # work that ran on when the capture was stopped
MOST_AFTER_THE_END = 0.01

Columns = dict[str, Any]  # name -> numpy array (or polars series), all of one length
Mask = npt.NDArray[np.bool_]


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


def keep(columns: Columns, mask: Mask) -> Columns:
    """The rows where ``mask`` holds."""
    if mask.all():
        return columns
    return {
        name: column.filter(pl.Series(mask)) if isinstance(column, pl.Series) else column[mask]
        for name, column in columns.items()
    }


def keep_valid_times(
    columns: Columns,
    what: str,
    notes: Notes,
    *,
    offset: int = 0,
    latest: int | None = None,
    untimed_is_zero: bool = False,
    zero_is_invalid: bool = False,
) -> Columns:
    """``columns`` with ``start_ns`` and ``end_ns`` moved to session start, without rows whose times cannot be true.

    ``what`` names the rows ('kernel') in the reasons. Rows are rejected, and counted, where a time is missing, where
    end < start, start < 0 (before the capture) or the row lies after ``latest``, the capture's end; with
    ``untimed_is_zero`` where start = end = 0 (CUPTI: timing not collected), with ``zero_is_invalid`` where start = end.
    ``latest`` is not believed where it would reject more than a hundredth of the rows.
    """
    start, end = columns["start_ns"], columns["end_ns"]
    if not start.size:
        return columns
    earliest = int(start.min())
    tests: list[tuple[str, Mask]] = []
    if earliest == MISSING or int(end.min()) == MISSING:
        tests.append(("time missing", (start == MISSING) | (end == MISSING)))
    if untimed_is_zero and earliest <= 0:
        tests.append(("timing not collected (start = end = 0)", (start == 0) & (end == 0)))
    shortest = int((end - start).min())
    if shortest < 0:
        tests.append(("ends before it starts", end < start))
    if zero_is_invalid and shortest <= 0:
        tests.append(("zero duration", start == end))
    if earliest < offset:
        tests.append(("starts before the capture (negative time)", start < offset))
    if latest is not None:
        tests.extend(_after_the_end(start, end, latest + offset, notes))
    if tests:
        bad = np.zeros(start.size, dtype=bool)
        for reason, hit in tests:
            notes.reject(f"{what}: {reason}", int(np.count_nonzero(hit & ~bad)))
            bad |= hit
        columns = keep(columns, ~bad)
    if offset:
        columns = {**columns, "start_ns": columns["start_ns"] - offset, "end_ns": columns["end_ns"] - offset}
    return columns


def _after_the_end(start: Any, end: Any, latest: int, notes: Notes) -> list[tuple[str, Mask]]:
    """The tests for rows after the capture's end: those that start there, and those that end far beyond it."""
    slack = max(END_SLACK_NS, latest // 10)
    if int(end.max()) <= latest + slack and int(start.max()) <= latest:
        return []
    late, endless = start > latest, end > latest + slack
    if np.count_nonzero(late | endless) > MOST_AFTER_THE_END * start.size:
        notes.say("Many events lie after the recorded end of the capture; the recorded end was not believed.")
        return []
    return [("starts after the capture's end", late), ("ends far beyond the capture's end", endless)]


def usable_correlation(ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Correlation ids with -1 for "none": NULL, and 0 where several rows have it (CUPTI counts from 1)."""
    if not ids.size or int(ids.min()) > 0:
        return ids
    absent = (ids == MISSING) | (ids < 0)
    zero = ids == 0
    if np.count_nonzero(zero) > 1:
        absent |= zero
    return np.where(absent, -1, ids)


def to_frame(columns: Columns, schema: Schema, what: str, notes: Notes) -> pl.DataFrame:
    """The columns of ``schema`` as a frame: absent ids are -1, values too wide for 32 bits wrapped or renumbered.

    Takes the columns out of ``columns``, so that each is held once.
    """
    series = []
    for name, dtype in schema.items():
        column = columns.pop(name)
        if isinstance(column, pl.Series):
            series.append(column.alias(name).cast(dtype) if column.dtype != dtype else column.alias(name))
            continue
        if dtype == pl.Int32 and column.dtype == np.int64:
            column = _int32(name, column, what, notes)
        elif dtype == pl.Int64 and column.size and int(column.min()) == MISSING:
            column = np.where(column == MISSING, -1, column)
        series.append(pl.Series(name, np.ascontiguousarray(column), dtype=dtype))
    return pl.DataFrame(series)


def _int32(name: str, values: npt.NDArray[np.int64], what: str, notes: Notes) -> npt.NDArray[np.int32]:
    if not values.size:
        return values.astype(np.int32)
    if int(values.min()) == MISSING:
        values = np.where(values == MISSING, -1, values)
    low, high = int(values.min()), int(values.max())
    if low >= INT32_MIN and high <= INT32_MAX:
        return values.astype(np.int32)
    if low >= -1 and high < UINT32_SPAN:  # an unsigned number: 4294967295 is -1
        return values.astype(np.uint32).view(np.int32)
    notes.say(f"{what}: {name} holds numbers beyond 32 bits; they were renumbered.")
    return dense(values)[1].astype(np.int32)


def in_order(frame: pl.DataFrame) -> pl.DataFrame:
    """Rows sorted by the first column, ties by the remaining ones in turn; unsorted work only where needed."""
    if frame.height < 2:
        return frame
    first = frame.columns[0]
    steps = np.diff(frame[first].to_numpy())
    if (steps > 0).all():
        return frame
    if (steps < 0).any():
        frame = frame[np.argsort(frame[first].to_numpy(), kind="stable")]
        steps = np.diff(frame[first].to_numpy())
    tie = steps == 0
    if not tie.any():
        return frame
    tied = np.concatenate(([False], tie)) | np.concatenate((tie, [False]))
    if tied.all():
        return frame.sort(frame.columns)
    places = np.flatnonzero(tied)
    sorted_ties = frame[places].with_row_index("__row").sort(frame.columns, maintain_order=True)
    group = sorted_ties["__row"].cast(pl.Int64).to_numpy()
    if (np.diff(group) > 0).all():
        return frame
    order = np.arange(frame.height)
    order[places] = places[group]
    return frame[order]


def process_of(thread_or_process: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """``globalTid`` or ``globalPid`` -> the process key (``>> 24``; -1 where absent)."""
    if thread_or_process.size and int(thread_or_process.min()) == MISSING:
        thread_or_process = np.where(thread_or_process == MISSING, -1, thread_or_process)
    return thread_or_process >> 24
