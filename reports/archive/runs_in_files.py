"""Runs of an archive that lie in several files, one per rank or node: each gets a row and a report of its own.

Found once the files have been analysed, from their names and rows: recorded at the same time, and told apart by rank,
process or GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ...analysis.records.formats import format_of
from ...ingest.run_of_files.file_names import Recording, at_one_time, candidates, pattern_name, why_not_apart
from ...ingest.run_of_files.open_run import places_in, stated_rank
from .archive_row import ANALYSED, ArchiveRow, as_text
from .find_captures import Found, distinct_names

NOT_ONE_RUN = "not one run"  # state of a row that is dropped: the files turned out not to belong together


def find_runs(captures: Sequence[Found], rows: Sequence[ArchiveRow]) -> list[Found]:
    """The runs among ``captures``, whose rows are ``rows``; named ``<folder>/<name with * for what varies>``."""
    by_path = {found.path: found for found in captures}
    recordings = [r for found, row in zip(captures, rows, strict=True) if (r := _recording(found, row)) is not None]
    runs = []
    for named_alike in candidates(recordings):
        for together in at_one_time(named_alike):
            if len(together) > 1 and why_not_apart(together) is None:
                files = tuple(r.path for r in together)
                folder = by_path[files[0]].relative.rpartition("/")[0]
                name = as_text(pattern_name([file.name for file in files]))
                runs.append(Found(files[0].parent, f"{folder}/{name}" if folder else name, files))
    return distinct_names(sorted(runs, key=lambda f: (f.relative, str(f.files))), beside=captures)


def _recording(found: Found, row: ArchiveRow) -> Recording | None:
    """The file as a candidate; None where it gave no analysis, has no clock, or its content has been seen before."""
    known = format_of(row.format)
    kind = known.clock if known is not None else None
    length, start = row.capture_ms or row.window_ms, row.captured_utc_ns
    if row.state not in ANALYSED or row.duplicate_of or kind is None or start is None or not length:
        return None
    rank = stated_rank(found.path) if kind == "kineto" else None
    return Recording(found.path, kind, start, start + round(length * 1e6), rank, partial(places_in, found.path))
