"""NVTX: push/pop (59) and start/end (60) ranges, marks (34), domains (75).

A text is in ``text`` or, for registered strings, in ``textId``; NULL, 0 and '' all mean "look at the other one".
A range that was open when the capture ended comes as a raw 35 or 37 row, or with end NULL: it is closed at the
capture's end, unless its thread also has raw 36/38 rows, whose pairing is not recorded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from ...analysis.records.trace import MARKS, RANGE_KINDS, RANGES, empty
from .context import Context, valid
from .rows import Columns, in_order, keep, process_of, to_frame
from .sqlite_pages.columns import MISSING, Coded, Wanted, read_columns
from .strings import TextPool, dense

NVTX_TABLE = "NVTX_EVENTS"
MOST_SORTED = 50_000
MARK, OPEN_PUSH, POP, OPEN_START, END, PUSH_POP, START_END, DOMAIN = 34, 35, 36, 37, 38, 59, 60, 75
KINDS = {PUSH_POP: "push_pop", OPEN_PUSH: "push_pop", START_END: "start_end", OPEN_START: "start_end"}
COLUMNS = {
    "start_ns": Wanted("start", "i64"),
    "end_ns": Wanted("end", "i64"),
    "event": Wanted("eventType", "i32"),
    "thread": Wanted("globalTid", "i64"),
    "end_thread": Wanted("endGlobalTid", "i64"),
    "registered": Wanted("textId", "i32"),
    "domain": Wanted("domainId", "i32"),
    "text": Wanted("text", "text"),
}


def read_ranges(context: Context, texts: TextPool, end_of_capture: int | None) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The RANGES and MARKS frames; ranges still open end at ``end_of_capture`` (ns since session start)."""
    table = context.database.find(NVTX_TABLE)
    if table is None:
        return empty(RANGES), empty(MARKS)
    read = read_columns(context.database, table, COLUMNS)
    columns: Columns = read.integers
    text = read.texts["text"]
    columns["text"] = text.codes
    event = columns["event"]
    if (event == -1).all():  # an export without event types: what has an end is a range
        event = np.where(columns["end_ns"] == MISSING, MARK, PUSH_POP).astype(np.int32)
        columns["event"] = event
    domains = _domains(keep(columns, event == DOMAIN), text, context)
    columns = keep(columns, np.isin(event, [MARK, *KINDS, POP, END]))
    columns = _clipped(columns, context, end_of_capture)
    columns = valid(columns, "NVTX", context, on_gpu=False)
    columns["process"] = process_of(columns["thread"])
    columns["text_id"] = _text_ids(columns.pop("text"), columns.pop("registered"), text, context, texts)
    columns["domain_text_id"] = _domain_ids(columns["process"], columns.pop("domain"), domains, texts)
    is_mark = columns["event"] == MARK
    marks = keep(columns, is_mark)
    marks = {**marks, "time_ns": marks["start_ns"]}
    ranges = _ranges(keep(columns, ~is_mark))
    return (
        in_order(to_frame(ranges, RANGES, "range", context.notes)),
        in_order(to_frame(marks, MARKS, "mark", context.notes)),
    )


def _ranges(columns: Columns) -> Columns:
    rows = columns["event"].size
    distinct, codes = dense(columns["event"])
    kinds = pl.Series([KINDS[key] for key in distinct.tolist()], dtype=RANGE_KINDS)
    ends = columns["end_thread"]
    return {
        **columns,
        "end_thread": np.where((ends == MISSING) | (ends == 0), columns["thread"], ends),
        "kind": kinds.gather(codes),
        "device_index": np.full(rows, -1, dtype=np.int32),
        "stream": np.full(rows, -1, dtype=np.int32),
    }


def _clipped(columns: Columns, context: Context, end_of_capture: int | None) -> Columns:
    """Ranges open at the capture's begin or end cut there, marks given their own time as end, raw pop and end rows
    gone."""
    event: Any = columns["event"]
    end: Any = columns["end_ns"]
    raw = (event == POP) | (event == END)
    unpaired = (end == MISSING) & (event != MARK) & ~raw
    if raw.any():
        context.notes.reject("NVTX: an end whose begin was not captured", int(raw.sum()))
        unclear = unpaired & np.isin(columns["thread"], columns["thread"][raw])
        context.notes.reject("NVTX: a begin whose end cannot be told", int(unclear.sum()))
        columns = keep(columns, ~(raw | unclear))
        unpaired = unpaired[~(raw | unclear)]
        event, end = columns["event"], columns["end_ns"]
    columns["end_ns"] = end = np.where(event == MARK, columns["start_ns"], end)
    before = (columns["start_ns"] < context.base.offset) & (end > context.base.offset) & (event != MARK)
    before &= columns["start_ns"] != MISSING
    if before.any():
        context.notes.say(f"{int(before.sum()):,} NVTX ranges were open when the capture began; they begin there.")
        columns["start_ns"] = np.where(before, context.base.offset, columns["start_ns"])
    if unpaired.any():
        last = end_of_capture + context.base.offset if end_of_capture is not None else int(end.max())
        context.notes.say(f"{int(unpaired.sum()):,} NVTX ranges were open when the capture ended; they end there.")
        columns["end_ns"] = np.where(unpaired, np.maximum(columns["start_ns"], last), end)
    return columns


def _text_ids(
    codes: npt.NDArray[np.int32], registered: npt.NDArray[np.int32], own: Coded, context: Context, texts: TextPool
) -> npt.NDArray[np.uint32]:
    """The text id of each row, work per distinct text only."""
    # Code -1 (NULL) reads the last entry of the table, '' its own; both are filled in from the registered strings.
    if len(own.texts) <= MOST_SORTED:
        texts.add(sorted(own.texts))  # ids that do not depend on the order of rows
    table = np.append(texts.add(own.texts), np.uint32(0))
    blank = np.ones(len(own.texts) + 1, dtype=bool)
    blank[:-1] = False
    if "" in own.texts:
        blank[own.texts.index("")] = True
    own.texts.clear()  # the pool has them now
    result: npt.NDArray[np.uint32] = table[codes]
    elsewhere = blank[codes]
    if elsewhere.any():
        distinct, places = dense(registered[elsewhere])
        known = context.strings.values(distinct)
        dangling = sum(key > 0 and key not in known for key in distinct.tolist())
        if dangling:
            context.notes.say(f"{dangling} NVTX text ids have no text in StringIds.")
        result[elsewhere] = texts.add([known.get(key, "") if key > 0 else "" for key in distinct.tolist()])[places]
    return result


def _domains(rows: Columns, text: Coded, context: Context) -> dict[tuple[int, int], str]:
    """(process, domain id) -> name, from the rows that created the domains."""
    registered = context.strings.values(rows["registered"].astype(np.int64))
    cells = zip(
        process_of(rows["thread"]).tolist(),
        rows["domain"].tolist(),
        rows["text"].tolist(),
        rows["registered"].tolist(),
        strict=True,
    )
    return {
        (process, domain): (text.texts[code] if code >= 0 else "") or registered.get(text_id, "")
        for process, domain, code, text_id in cells
    }


def _domain_ids(
    process: npt.NDArray[np.int64],
    domain: npt.NDArray[np.int32],
    domains: dict[tuple[int, int], str],
    texts: TextPool,
) -> npt.NDArray[np.uint32]:
    """The text id of each row's domain name; that of '' for the default domain (0) and for unnamed ones."""
    result = np.full(process.size, texts.add([""])[0], dtype=np.uint32)
    ids = {place: texts.add([name])[0] for place, name in domains.items() if place[1] > 0}
    rows = np.flatnonzero(domain > 0)  # most ranges are in none
    if not ids or not rows.size:
        return result
    # by (process, domain) as one number: a thousand processes have a thousand domains
    owners, owner = dense(process[rows])
    numbers, number = dense(domain[rows])
    pairs, places = np.unique(owner.astype(np.int64) * len(numbers) + number, return_inverse=True)
    nameless = result[rows[0]]
    named = [
        ids.get((int(owners[pair // len(numbers)]), int(numbers[pair % len(numbers)])), nameless) for pair in pairs
    ]
    result[rows] = np.array(named, dtype=np.uint32)[places]
    return result
