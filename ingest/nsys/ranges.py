"""NVTX: push/pop (59) and start/end (60) ranges, marks (34), domains (75).

A text is in ``text`` or, for registered strings, in ``textId``; NULL, 0 and '' all mean "look at the other one".
A range that was open when the capture ended comes as a raw 35 or 37 row, or with end NULL: it is closed at the
capture's end, unless the thread also has raw 36/38 rows, whose pairing is not recorded.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from ..trace import MARKS, RANGE_KINDS, RANGES, empty
from .columns import read_columns
from .database import Database
from .kernels import Context
from .rows import in_order, keep_valid_times, narrowed, to_process
from .strings import TextPool, dense

NVTX_TABLE = "NVTX_EVENTS"
MARK, OPEN_PUSH, POP, OPEN_START, END, PUSH_POP, START_END, DOMAIN = 34, 35, 36, 37, 38, 59, 60, 75
KINDS = {PUSH_POP: "push_pop", OPEN_PUSH: "push_pop", START_END: "start_end", OPEN_START: "start_end"}
INTEGERS = {
    "start_ns": "start",
    "end_ns": "end",
    "event": "eventType",
    "thread": "globalTid",
    "end_thread": "endGlobalTid",
    "registered": "textId",
    "domain": "domainId",
}


def has_nvtx(database: Database) -> bool:
    """Whether the capture has any NVTX row."""
    table = database.find(NVTX_TABLE)
    return table is not None and database.has_rows(table)


def read_ranges(context: Context, texts: TextPool, end_of_capture: int | None) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The RANGES and MARKS frames; ranges still open end at ``end_of_capture`` (times since session start)."""
    table = context.database.find(NVTX_TABLE)
    if table is None:
        return empty(RANGES), empty(MARKS)
    wanted: dict[str, pl.DataType | type[pl.DataType]] = dict.fromkeys(INTEGERS.values(), pl.Int64)
    frame = read_columns(context.database, table, {**wanted, "text": pl.String})
    frame = frame.rename({source: name for name, source in INTEGERS.items()})
    if frame["event"].null_count() == frame.height:  # the hand-made kind: everything with an end is a range
        frame = frame.with_columns(event=pl.when(pl.col("end_ns").is_null()).then(MARK).otherwise(PUSH_POP))
    domains = _domains(frame, context)
    frame = frame.filter(pl.col("event").is_in([MARK, *KINDS, POP, END]))
    frame = _closed(frame, context, end_of_capture)
    frame = keep_valid_times(
        frame.with_columns(
            end_ns=pl.when(pl.col("event") == MARK).then(pl.col("start_ns")).otherwise(pl.col("end_ns"))
        ),
        "NVTX",
        context.notes,
        offset=context.base.offset,
    )
    process = to_process(frame["thread"])
    frame = frame.with_columns(
        pl.Series("process", process),
        pl.Series("text_id", _text_ids(frame, context, texts)),
        pl.Series("domain_text_id", _domain_ids(process, frame["domain"], domains, texts)),
        pl.col("end_thread").fill_null(pl.col("thread")),
    )
    marks = frame.filter(pl.col("event") == MARK).rename({"start_ns": "time_ns"})
    ranges = frame.filter(pl.col("event") != MARK).with_columns(
        kind=pl.col("event").replace_strict(KINDS, return_dtype=RANGE_KINDS),
        device_index=pl.lit(-1, dtype=pl.Int32),
        stream=pl.lit(-1, dtype=pl.Int32),
    )
    return in_order(narrowed(ranges, RANGES, "range", context.notes)), in_order(
        narrowed(marks, MARKS, "mark", context.notes)
    )


def _closed(frame: pl.DataFrame, context: Context, end_of_capture: int | None) -> pl.DataFrame:
    """Open ranges closed at the end of the capture; raw pop and end rows removed."""
    raw = frame.filter(pl.col("event").is_in([POP, END]))
    context.notes.reject("NVTX: an end whose begin was not captured", raw.height)
    frame = frame.filter(~pl.col("event").is_in([POP, END]))
    is_open = pl.col("end_ns").is_null() & (pl.col("event") != MARK)
    if raw.height:
        unclear = frame.filter(is_open & pl.col("thread").is_in(raw["thread"].unique().implode())).height
        context.notes.reject("NVTX: a begin whose end cannot be told", unclear)
        frame = frame.filter(~(is_open & pl.col("thread").is_in(raw["thread"].unique().implode())))
    still_open = frame.filter(is_open).height
    if not still_open:
        return frame
    end = (
        end_of_capture
        if end_of_capture is not None
        else frame.select(pl.max_horizontal(pl.col("start_ns").max(), pl.col("end_ns").max())).item()
    )
    context.notes.say(f"{still_open} NVTX ranges were open when the capture ended; they end there.")
    absolute = end + context.base.offset if end_of_capture is not None else end
    closed = pl.max_horizontal(pl.lit(absolute, dtype=pl.Int64), pl.col("start_ns"))
    return frame.with_columns(end_ns=pl.when(is_open).then(closed).otherwise(pl.col("end_ns")))


def _text_ids(frame: pl.DataFrame, context: Context, texts: TextPool) -> np.ndarray:
    """The text id of each row, work per distinct text only."""
    result = np.zeros(frame.height, dtype=np.uint32)
    free = frame["text"]
    own = (free.is_not_null() & (free != "")).fill_null(False)
    if own.any():
        where = own.to_numpy()
        written = free if own.all() else free.filter(own)
        categories = written.cast(pl.Categorical)
        distinct = categories.unique()
        codes = categories.to_physical().to_numpy()
        table = np.zeros(int(codes.max()) + 1, dtype=np.uint32)
        table[distinct.to_physical().to_numpy()] = texts.add(distinct.cast(pl.String).to_list())
        result[where] = table[codes]
    if not own.all():
        where = ~own.to_numpy()
        registered, codes = dense(frame["registered"].fill_null(0).to_numpy()[where])
        known = context.strings.values(registered)
        dangling = [key for key in registered.tolist() if key > 0 and key not in known]
        if dangling:
            context.notes.say(f"{len(dangling)} NVTX text ids have no text in StringIds.")
        result[where] = texts.add([known.get(key, "") if key else "" for key in registered.tolist()])[codes]
    return result


def _domains(frame: pl.DataFrame, context: Context) -> dict[tuple[int, int], str]:
    """(process, domain id) -> name, from the rows that created the domains."""
    rows = frame.filter(pl.col("event") == DOMAIN).select("thread", "domain", "text", "registered").unique()
    registered = rows["registered"].fill_null(0).to_numpy()
    known = context.strings.values(registered)
    return {
        ((thread if thread is not None else -1) >> 24, domain or 0): text or known.get(text_id or 0, "")
        for thread, domain, text, text_id in rows.iter_rows()
    }


def _domain_ids(
    process: np.ndarray, domain: pl.Series, domains: dict[tuple[int, int], str], texts: TextPool
) -> np.ndarray:
    default = texts.add([""])[0]
    if not domains:
        return np.full(process.size, default, dtype=np.uint32)
    ids = domain.fill_null(0).to_numpy()
    result = np.full(process.size, default, dtype=np.uint32)
    for (owner, number), name in domains.items():
        if number:
            result[(process == owner) & (ids == number)] = texts.add([name])[0]
    return result
