"""A run recorded in several files, one per rank, node or worker, read as one Trace on one clock.

The input is a folder with the files of one run. Which files belong together: ``run_files.py``. Session starts put them
on one clock; collectives that end together correct it (``clock_skew.py``); ``merge.py`` puts the frames together. What
was found and done about the clocks is said in the notes of the capture.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from ...analysis.records.errors import CannotAnswerError, NotACaptureError
from ...analysis.records.formats import clock_by_name, clocks_by_reader
from ...analysis.records.trace import CaptureFacts, Trace
from .clock_skew import Collectives, Skew, find_skew
from .file_names import (
    Places,
    Recording,
    at_one_time,
    candidates,
    collective_names,
    natural,
    run_name,
    why_not_apart,
)
from .merge_traces import Placement, merge_traces

_STATED_RANK = re.compile(rb'"distributedInfo"\s*:\s*\{[^{}]*"rank"\s*:\s*(\d+)')
_OURS = (".perfetto.json",)  # our own output
_SHOWN = 8


class NotOneRunError(CannotAnswerError):
    """The files are captures, but not of one run: not of one time, or not of different ranks."""


def sniff(path: Path, head: bytes) -> bool:
    """Whether ``path`` is a folder with at least two captures of a kind that has a clock."""
    return path.is_dir() and len(recordings_in(path)) > 1


def read(path: Path, *, progress: Callable[[str], None] | None = None) -> Trace:
    """Read the run whose files lie in the folder ``path``.

    Raises NotOneRunError where they are not of one run, and what ``open_run`` raises.
    """
    found = recordings_in(path)
    sets = candidates(found)
    inside = {run_name(r.path.name) for group in sets for r in group}
    others = [r for r in found if run_name(r.path.name) not in inside]
    if len(sets) != 1 or others:
        groups = [f"{len(g)} files like {g[0].path.name}" for g in sets] + [r.path.name for r in others]
        raise NotOneRunError(_refusal(path.name, "their names do not say that they are of one run", groups))
    return open_run([r.path for r in sets[0]], path.name or path.resolve().name, progress=progress)


def recordings_in(folder: Path) -> list[Recording]:
    """The captures in a folder (not below it) whose formats have a clock; times and ranks are not looked at."""
    found = []
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name.lower().endswith(_OURS):
            continue
        kind = _kind(path)
        if kind is not None:
            found.append(Recording(path, kind))
    return found


def _kind(path: Path) -> str | None:
    from .. import reader_of
    from ..sniff import read_head

    try:
        head = read_head(path)
    except NotACaptureError:  # empty or unreadable: by its name one of the run's files all the same
        return clock_by_name(path.name) if path.suffix.lower() != ".json" else None
    for module, clock in clocks_by_reader().items():
        if reader_of(module).sniff(path, head):
            return clock
    return None


def stated_rank(path: Path) -> int | None:
    """The rank that a trace of the PyTorch profiler states near its beginning."""
    from ..kineto.json_stream import inflate_head
    from ..sniff import read_head

    try:
        match = _STATED_RANK.search(inflate_head(read_head(path)))
    except NotACaptureError:
        return None
    return int(match[1]) if match else None


def places_in(path: Path) -> Places | None:
    """(process, CUDA ordinal) of the kernels of a SQLite export, without reading it; None where that is not known."""
    from ..nsys.sqlite_pages.database import Database, as_int, identifier

    if not path.is_file():
        return None
    try:
        with Database(path) as database:
            table = database.find("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE")
            if table is None or not {"globalpid", "deviceid"} <= set(database.columns(table)):
                return None
            query = f"SELECT DISTINCT globalPid, deviceId FROM {identifier(table)}"
            rows = [(as_int(pid), as_int(device)) for pid, device in database.connection.execute(query)]
    except (NotACaptureError, sqlite3.Error, OSError):
        return None
    known = [(pid, device) for pid, device in rows if pid is not None and device is not None]
    return frozenset(known) if known and len(known) == len(rows) else None


def open_run(
    files: Sequence[Path],
    source_name: str,
    *,
    cache: Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> Trace:
    """Read ``files``, each a capture of one rank or worker of a run, as one Trace named ``source_name``.

    Files without GPU work are left out, with a note. Raises NotOneRunError where the files do not overlap in time, or
    two may be of one rank; NotACaptureError where one cannot be read; CannotAnswerError where none holds GPU work or
    one cannot be put on the clock of the others.
    """
    from .. import open_trace

    traces: list[Trace] = []
    notes: list[str] = []
    refused: CannotAnswerError | None = None
    for file in sorted(files, key=lambda f: natural(f.name)):
        try:
            traces.append(open_trace(file, cache=cache, progress=progress))
        except CannotAnswerError as error:
            refused = refused or error
            notes.append(f"{file.name} was left out: no GPU work in it.")
        except NotACaptureError as error:
            raise NotACaptureError(
                f"{error} It lies among the files of a run; move it away to analyse the others."
            ) from error
    if not traces:
        raise refused or CannotAnswerError("no files")
    _refuse_copies(traces, source_name)
    placements, said = place(traces)
    _refuse_strangers(traces, placements, source_name)
    world = _world_size(traces)
    listed = f"One run of {len(traces)} files: {_listing([t.capture.source_name for t in traces])}."
    merged = merge_traces(traces, placements, source_name, [listed, *notes, *said])
    return replace(merged, capture=replace(merged.capture, world_size=world))


def place(traces: Sequence[Trace]) -> tuple[list[Placement], list[str]]:
    """Where each file lies on the common clock (0 = the earliest session start), and what was found, in sentences.

    The clock is that of the first file whose session start is known. A file whose collectives end together with those
    of another is corrected by how far its clock is ahead, where that is clearly more than its spread.
    """
    known = [t.capture.session_start_utc_ns for t in traces]
    reference = next((i for i, start in enumerate(known) if start is not None), 0)
    origin = known[reference] or 0
    order = [reference, *(i for i in range(len(traces)) if i != reference and known[i] is not None)]
    order += [i for i in range(len(traces)) if i not in order]
    codes: dict[str, int] = {}
    placed: dict[int, Placement] = {}
    heads: list[tuple[int, Collectives]] = []  # files whose clock others are held against, on the common clock
    notes: list[str] = []
    for i in order:
        start = known[i]
        shift = 0 if start is None else start - origin
        mine = collectives_of(traces[i], shift, codes)
        found = _against(heads, mine, clock_known=start is not None and known[reference] is not None)
        if found is None:
            if start is None and i != reference:
                raise CannotAnswerError(_unplaceable(traces[i].capture, traces[reference].capture))
            placed[i] = Placement(shift)
            heads.append((i, mine))
        else:
            placed[i] = _corrected(shift, found[1], clock_known=start is not None)
        if i != reference:
            partner = traces[found[0] if found else reference].capture.source_name
            notes.append(_clock_note(traces[i].capture, partner, shift, found and found[1]))
    earliest = min(p.shift_ns for p in placed.values())
    placements = [replace(placed[i], shift_ns=placed[i].shift_ns - earliest) for i in range(len(traces))]
    return placements, notes


def collectives_of(trace: Trace, shift_ns: int, codes: dict[str, int]) -> Collectives:
    """The collectives of the device that has most, by their ends; ``codes`` numbers the names of all files."""
    names = trace.names["name"]
    wanted = names.filter(collective_names(names))
    for name in wanted:
        codes.setdefault(name, len(codes))
    code = trace.names.select("name_id", pl.col("name").replace_strict(codes, default=-1, return_dtype=pl.Int64))
    of_name = code["name"].to_numpy()[trace.kernels["name_id"].to_numpy()] if len(names) else np.zeros(0, np.int64)
    rows = np.flatnonzero(of_name >= 0)
    device = trace.kernels["device_index"].to_numpy()[rows]
    if len(rows):
        rows = rows[device == np.argmax(np.bincount(device))]
    ends = trace.kernels["end_ns"].to_numpy()[rows] + shift_ns
    order = np.argsort(ends, kind="stable")
    return Collectives(ends[order], of_name[rows][order])


def _against(
    heads: Sequence[tuple[int, Collectives]], mine: Collectives, *, clock_known: bool
) -> tuple[int, Skew] | None:
    for number, other in heads:
        skew = find_skew(other, mine, clock_known=clock_known)
        if skew is not None:
            return number, skew
    return None


def _corrected(shift: int, skew: Skew, *, clock_known: bool) -> Placement:
    if clock_known and not skew.clear:
        return Placement(shift)
    drift = skew.drift if skew.drifts else 0.0
    return Placement(shift - skew.ahead_ns, drift, skew.at_ns - shift)


def _clock_note(capture: CaptureFacts, partner: str, shift: int, skew: Skew | None) -> str:
    session = (
        f"its session began {abs(shift) / 1e6:,.3f} ms {'after' if shift >= 0 else 'before'} the first file's"
        if capture.session_start_utc_ns is not None
        else "its session start is not recorded"
    )
    if skew is None:
        return f"{capture.source_name}: {session}; no collectives in common with another file to check its clock by."
    by = f"{skew.pairs:,} collectives end together with {partner} (spread {skew.spread_ns / 1e3:.1f} µs)"
    if capture.session_start_utc_ns is None:
        return f"{capture.source_name}: {session}; it was placed by its collectives: {by}."
    if not skew.clear:
        return f"{capture.source_name}: {session}; {by}, and its clock agrees: not corrected."
    way = "ahead" if skew.ahead_ns >= 0 else "behind"
    drift = f", drifting {abs(skew.drift) * 1e6:.1f} µs per second" if skew.drifts else ""
    return (
        f"{capture.source_name}: {session}; its clock runs {abs(skew.ahead_ns) / 1e3:,.1f} µs {way}{drift}: {by}. "
        "Corrected."
    )


def _unplaceable(capture: CaptureFacts, reference: CaptureFacts) -> str:
    return (
        f"{capture.source_name} does not record when its session began, and no collectives tie it to "
        f"{reference.source_name}: the files cannot be put on one clock. Export it again with a newer nsys, or analyse "
        "each file alone."
    )


def _refuse_copies(traces: Sequence[Trace], source_name: str) -> None:
    seen: list[Trace] = []
    for trace in traces:
        times = trace.kernels.select("start_ns", "end_ns")
        for other in seen:
            same_start = trace.capture.session_start_utc_ns == other.capture.session_start_utc_ns
            if same_start and times.height and times.equals(other.kernels.select("start_ns", "end_ns")):
                pair = f"{other.capture.source_name} and {trace.capture.source_name}"
                raise NotOneRunError(_refusal(source_name, f"{pair} hold the same kernels: one is a copy", []))
        seen.append(trace)


def _refuse_strangers(traces: Sequence[Trace], placements: Sequence[Placement], source_name: str) -> None:
    recordings = [_recording(t, p) for t, p in zip(traces, placements, strict=True)]
    if len(at_one_time(recordings)) > 1:
        first = min(r.start_ns or 0 for r in recordings)
        spans = [
            f"{r.path.name} {((r.start_ns or 0) - first) / 1e9:.3f} to {((r.end_ns or 0) - first) / 1e9:.3f} s"
            for r in recordings
        ]
        raise NotOneRunError(_refusal(source_name, "they do not overlap in time", spans))
    why = why_not_apart(recordings)
    if why is not None:
        raise NotOneRunError(_refusal(source_name, why, []))


def _recording(trace: Trace, placement: Placement) -> Recording:
    frames = [f for f in (trace.kernels, trace.graph_launches) if f.height]
    low = min(int(f["start_ns"].to_numpy().min()) for f in frames)
    high = max(int(f["end_ns"].to_numpy().max()) for f in frames)
    capture = trace.capture

    def places() -> Places:
        devices = trace.devices.select("device_index", pl.col("device").cast(pl.Int64))
        pairs = (
            pl.concat([f.select("process", "device_index") for f in frames]).unique().join(devices, on="device_index")
        )
        return frozenset(pairs.select("process", "device").iter_rows())

    return Recording(
        Path(capture.source_name), "", low + placement.shift_ns, high + placement.shift_ns, capture.rank, places
    )


def _world_size(traces: Sequence[Trace]) -> int | None:
    """The stated world size; the sum over groups where stated ranks repeat (a prefill and a decode worker)."""
    stated = [(t.capture.rank, t.capture.world_size) for t in traces]
    if any(size is None for _, size in stated):
        return None
    ranks = [rank for rank, _ in stated]
    groups = max((ranks.count(rank) for rank in set(ranks)), default=1)
    return max(size or 0 for _, size in stated) if groups == 1 else None


def _refusal(source_name: str, why: str, found: Sequence[str]) -> str:
    listed = f" ({_listing(found)})" if found else ""
    return (
        f"{source_name} holds several captures that are not one run: {why}{listed}. Give one file, or analyse each with: "
        "trace-analyze batch FOLDER -o DIR"
    )


def _listing(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
