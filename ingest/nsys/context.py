"""What the readers of one file share, and the two things every event goes through: its time and its place."""

from __future__ import annotations

from dataclasses import dataclass

from .devices import Places
from .rows import Columns, Notes, keep_valid_times, process_of, usable_correlation
from .sqlite_pages.database import Database
from .strings import Strings
from .timebase import TimeBase


@dataclass
class Context:
    """What the readers of one file share."""

    database: Database
    base: TimeBase
    strings: Strings
    places: Places
    notes: Notes


def valid(columns: Columns, what: str, context: Context, *, on_gpu: bool, zero_is_invalid: bool = False) -> Columns:
    """The rows with times that can be true, on the Trace's clock; see ``rows.keep_valid_times``."""
    base = context.base
    return keep_valid_times(
        columns,
        what,
        context.notes,
        offset=base.offset,
        latest=base.duration_ns,
        untimed_is_zero=on_gpu,
        zero_is_invalid=zero_is_invalid,
    )


def place(columns: Columns, context: Context) -> None:
    """Put the process key and the row of DEVICES in the place of globalPid and deviceId."""
    process = context.places.known_process(process_of(columns["process"]))
    columns["process"] = process
    columns["device_index"] = context.places.device_index(process, columns.pop("device"))
    columns["correlation_id"] = usable_correlation(columns["correlation_id"])
