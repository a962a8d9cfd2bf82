"""Traces of one run become one Trace: names and texts in common, one clock, keys that cannot collide."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

import numpy as np
import polars as pl

from ...analysis.records.trace import (
    FRAMES,
    NAMES,
    TEXTS,
    CaptureFacts,
    EvidenceGap,
    Schema,
    ServingFacts,
    Trace,
    build_trace,
)

T = TypeVar("T")

_TIMES = ("start_ns", "end_ns", "time_ns")
_ORDER = {"gpu_metrics": 2, "counters": 2, "marks": 2}  # leading columns that make the order across files unique
_PROCESS_STEP, _THREAD_STEP = 1 << 48, 1 << 56  # above the ids: the low 24 bits stay the OS process id


@dataclass(frozen=True)
class Placement:
    """Where a file's times lie on the common clock: ``t + shift_ns - drift * (t - at_ns)``."""

    shift_ns: int
    drift: float = 0.0
    at_ns: int = 0

    def moved(self, column: str) -> pl.Expr:
        """The column on the common clock."""
        time = pl.col(column)
        if not self.drift:
            return time + self.shift_ns
        return time + self.shift_ns - ((time - self.at_ns) * self.drift).round().cast(pl.Int64)


def merge_traces(
    traces: Sequence[Trace], placements: Sequence[Placement], source_name: str, notes: Sequence[str]
) -> Trace:
    """One Trace of all; ``placements`` puts each on the common clock, ``notes`` are added to those of the files.

    A file's devices stay devices of their own. Processes and threads whose keys collide get new ones with the same OS
    process id. Where CUDA ordinals collide (each rank calls its GPU 0, or there are several hosts), devices are
    numbered anew, by rank where every file states one.
    """
    names = _pool([t.names for t in traces], NAMES, "name_id")
    texts = _pool([t.texts for t in traces], TEXTS, "text_id")
    first_device = np.cumsum([0] + [t.devices.height for t in traces]).tolist()
    processes = _offsets([_keys(t, ("process",)) for t in traces], _PROCESS_STEP)
    threads = _offsets([_keys(t, ("thread", "end_thread")) for t in traces], _THREAD_STEP)
    changes = [
        _Changes(names[1][i], texts[1][i], first_device[i], processes[i], threads[i], placements[i])
        for i in range(len(traces))
    ]
    frames = {
        name: _sorted(name, [change.of(getattr(trace, name)) for trace, change in zip(traces, changes, strict=True)])
        for name in FRAMES
        if name not in ("names", "texts", "devices")
    }
    devices, renumbered = _devices(traces, changes)
    said = [*notes, *renumbered, *_notes_of_files(traces)]
    return build_trace(
        _facts(traces, placements, source_name, said),
        gaps_in_evidence=_gaps(traces),
        names=names[0],
        texts=texts[0],
        devices=devices,
        **frames,
    )


@dataclass(frozen=True)
class _Changes:
    """What becomes of the ids and times of one file."""

    names: pl.Series
    texts: pl.Series
    first_device: int
    process: int
    thread: int
    placement: Placement

    def of(self, frame: pl.DataFrame) -> pl.DataFrame:
        """The frame with the ids and times of the merged Trace; absent ids (-1) stay absent."""
        changed: list[pl.Expr | pl.Series] = [self.placement.moved(c).alias(c) for c in _TIMES if c in frame.columns]
        changed += [
            pl.when(pl.col(c) < 0).then(pl.col(c)).otherwise(pl.col(c) + by).cast(frame.schema[c]).alias(c)
            for c, by in (("device_index", self.first_device),)
            if c in frame.columns and by
        ]
        for column, by in (("process", self.process), ("thread", self.thread), ("end_thread", self.thread)):
            if column in frame.columns and by:
                changed.append(pl.when(pl.col(column) == -1).then(-1).otherwise(pl.col(column) + by).alias(column))
        for column, new in (("name_id", self.names), ("text_id", self.texts), ("domain_text_id", self.texts)):
            if column in frame.columns:
                changed.append(new.gather(frame[column]).alias(column))
        return frame.with_columns(changed)


def _pool(frames: Sequence[pl.DataFrame], schema: Schema, key: str) -> tuple[pl.DataFrame, list[pl.Series]]:
    """The distinct rows of all frames under dense ids, and for each frame the new id of each old one."""
    columns = [c for c in frames[0].columns if c != key]
    pooled = pl.concat([f.select(columns) for f in frames]).unique(maintain_order=True)
    pooled = pooled.with_row_index(key).with_columns(pl.col(key).cast(pl.UInt32))
    ids = [f.select(columns).join(pooled, on=columns, how="left", maintain_order="left")[key] for f in frames]
    return pooled.select(list(schema)), ids


def _keys(trace: Trace, columns: Sequence[str]) -> set[int]:
    found: set[int] = set()
    for name in FRAMES:
        frame: pl.DataFrame = getattr(trace, name)
        for column in columns:
            if column in frame.columns:
                found |= set(frame[column].unique().to_list())
    return found - {-1}


def _offsets(keys: Sequence[set[int]], step: int) -> list[int]:
    """For each file what to add to its keys so that no two files share one; 0 where none is shared."""
    taken: set[int] = set()
    offsets = []
    for own in keys:
        multiple = 0
        while any(key + multiple * step in taken for key in own):
            multiple += 1
        offsets.append(multiple * step)
        taken |= {key + multiple * step for key in own}
    return offsets


def _sorted(name: str, frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    together = pl.concat(frames)
    return together.sort(together.columns[: _ORDER.get(name, 3)], maintain_order=True)


def _devices(traces: Sequence[Trace], changes: Sequence[_Changes]) -> tuple[pl.DataFrame, list[str]]:
    devices = pl.concat([change.of(trace.devices) for trace, change in zip(traces, changes, strict=True)])
    if devices["device"].is_unique().all():
        return devices, []
    ranks = [t.capture.rank for t in traces]
    stated = None not in ranks and len(set(ranks)) == len(ranks) and all(t.devices.height == 1 for t in traces)
    numbers = ranks if stated else list(range(devices.height))
    how = "their rank" if stated else "the order of their files"
    note = f"Several files number their GPUs alike: GPUs are numbered by {how} here."
    return devices.with_columns(pl.Series("device", numbers, dtype=pl.Int32)), [note]


def _notes_of_files(traces: Sequence[Trace]) -> list[str]:
    """The files' own notes; those that not all share are said with their file."""
    return [f"{where}{note}" for note, where in _with_files(traces, lambda t: t.capture.notes, "{}: ")]


def _with_files(traces: Sequence[Trace], read: Callable[[Trace], Sequence[str]], form: str) -> list[tuple[str, str]]:
    """Each distinct sentence with the files that say it, '' where all do."""
    said: dict[str, list[str]] = {}
    for trace in traces:
        for sentence in dict.fromkeys(read(trace)):
            said.setdefault(sentence, []).append(trace.capture.source_name)
    return [(s, "" if len(files) == len(traces) else form.format(", ".join(files))) for s, files in said.items()]


def _gaps(traces: Sequence[Trace]) -> tuple[EvidenceGap, ...]:
    first = {gap.what: gap for trace in traces for gap in reversed(trace.gaps_in_evidence)}
    told = _with_files(traces, lambda t: [gap.what for gap in t.gaps_in_evidence], " ({})")
    return tuple(EvidenceGap(what + where, first[what].consequence, first[what].recapture) for what, where in told)


def _facts(
    traces: Sequence[Trace], placements: Sequence[Placement], source_name: str, notes: Sequence[str]
) -> CaptureFacts:
    captures = [trace.capture for trace in traces]
    ends = [
        None if c.duration_ns is None else c.duration_ns + p.shift_ns for c, p in zip(captures, placements, strict=True)
    ]
    known_ends = [end for end in ends if end is not None]
    starts = [
        c.session_start_utc_ns - p.shift_ns
        for c, p in zip(captures, placements, strict=True)
        if c.session_start_utc_ns is not None
    ]
    worlds = [c.world_size for c in captures if c.world_size is not None]
    rejected: dict[str, int] = {}
    for capture in captures:
        for reason, rows in capture.rejected_rows.items():
            rejected[reason] = rejected.get(reason, 0) + rows
    serving, disagreement = _serving([c.serving for c in captures])
    return CaptureFacts(
        source_name=source_name,
        format=captures[0].format if len({c.format for c in captures}) == 1 else "several",
        product=_same([c.product for c in captures]),
        product_version=_same([c.product_version for c in captures]),
        schema_version=_same([c.schema_version for c in captures]),
        session_start_utc_ns=starts[0] if starts else None,  # the first file's clock is the one all are put on
        duration_ns=max(known_ends) if len(known_ends) == len(ends) else None,
        graph_trace_mode=_same([c.graph_trace_mode for c in captures]),
        hardware_trace=_same([c.hardware_trace for c in captures]),
        rank=None,
        world_size=max(worlds) if worlds else None,
        gpus_present=_all_gpus(captures),
        serving=serving,
        diagnostics=tuple(dict.fromkeys(d for c in captures for d in c.diagnostics)),
        rejected_rows=dict(sorted(rejected.items())),
        tables_missing=tuple(t for t in captures[0].tables_missing if all(t in c.tables_missing for c in captures)),
        notes=(*notes, *disagreement),
    )


def _all_gpus(captures: Sequence[CaptureFacts]) -> tuple[str, ...]:
    """The largest list of GPUs that a file gives: files of one host list the same ones."""
    return max((c.gpus_present for c in captures), key=len)


def _same(values: Sequence[T | None]) -> T | None:
    """The value on which all that have one agree, else None."""
    known = {value for value in values if value is not None}
    return known.pop() if len(known) == 1 else None


def _serving(facts: Sequence[ServingFacts]) -> tuple[ServingFacts, list[str]]:
    names = [f.name for f in fields(ServingFacts)]
    agreed = {name: _same([getattr(f, name) for f in facts]) for name in names}
    odd = [n for n in names if agreed[n] is None and any(getattr(f, n) is not None for f in facts)]
    note = f"The files' command lines disagree on {', '.join(odd)}: left unknown." if odd else None
    return ServingFacts(**agreed), [note] if note else []
