"""Which clock the times of a file are on, and where the capture ends.

Event times count from session start. ``nsys export --ts-normalize`` makes them UTC, ``--ts-shift`` moves them; both
are recorded in the export's own parameters, which are checked against the times actually found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .rows import Notes
from .sqlite_pages.database import Database, as_int, identifier

EPOCH_NS = 10**17  # three years: no session is that long, so such times are UTC
SAMPLE_ROWS = 2000


@dataclass(frozen=True)
class TimeBase:
    """``offset`` is subtracted from every time; ``duration_ns`` is the capture's own length, where recorded."""

    offset: int
    duration_ns: int | None
    session_start_utc_ns: int | None


def find_time_base(database: Database, export_parameters: Mapping[str, str], notes: Notes) -> TimeBase:
    """The time base of a file."""
    utc = _first_int(database, "TARGET_INFO_SESSION_START_TIME", "utcEpochNs")
    duration = _first_int(database, "ANALYSIS_DETAILS", "duration", "max")
    duration = duration if duration and duration > 0 else None
    shift = as_int(export_parameters.get("EXPORT_PARAM_TIME_SHIFT")) or 0
    normalized = str(export_parameters.get("EXPORT_PARAM_TIME_NORMALIZE", "")).lower() in {"true", "1", "yes"}
    declared = ((utc or 0) if normalized else 0) + shift
    typical = _typical_start(database)
    if typical is None:
        return TimeBase(declared, duration, utc)
    candidates = [declared, 0, utc or 0, (utc or 0) + shift]
    plausible = [offset for offset in candidates if 0 <= typical - offset <= (duration or EPOCH_NS)]
    if plausible:
        offset = plausible[0]
    elif typical > EPOCH_NS:  # UTC without a recorded session start: count from the first event
        offset = _earliest(database)
        notes.say("Times are UTC and the session start is not recorded: counted from the first GPU event.")
    else:
        offset = declared if typical - declared >= 0 else 0
    if offset == declared and declared:
        notes.say(f"Times were exported {'as UTC' if normalized else 'shifted'}; counted from session start here.")
    elif offset != declared:
        notes.say("The times disagree with the recorded export parameters (normalize/shift); the times were believed.")
    if duration is not None and typical - offset > duration:
        notes.say("The recorded capture length is shorter than its events; it was not used to reject rows.")
        duration = None
    return TimeBase(offset, duration, utc)


def _gpu_table(database: Database) -> str | None:
    return database.find("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "CUPTI_ACTIVITY_KIND_RUNTIME")


def _typical_start(database: Database) -> int | None:
    table = _gpu_table(database)
    if table is None or "start" not in database.columns(table):
        return None
    rows = database.connection.execute(f"SELECT start FROM {identifier(table)} LIMIT {SAMPLE_ROWS}").fetchall()
    starts = sorted(number for (value,) in rows if (number := as_int(value)) is not None and number != 0)
    return starts[len(starts) // 2] if starts else None


def _earliest(database: Database) -> int:
    table = _gpu_table(database)
    row = database.connection.execute(
        f"SELECT min(start) FROM {identifier(str(table))} WHERE start > {EPOCH_NS}"
    ).fetchone()
    return as_int(row[0]) or 0


def _first_int(database: Database, table_name: str, column: str, function: str = "min") -> int | None:
    table = database.find(table_name)
    if table is None or column.lower() not in database.columns(table):
        return None
    actual = identifier(database.columns(table)[column.lower()])
    return as_int(database.connection.execute(f"SELECT {function}({actual}) FROM {identifier(table)}").fetchone()[0])
