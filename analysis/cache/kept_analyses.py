"""``--cache DIR``: a finished Analysis is kept, so that a second look at a capture is immediate.

An entry is named after the content of the capture, the code that reads and analyses, and everything that shapes the
analysis (``options_digest``). It holds what the Trace's entry (``ingest/cache/kept_traces.py``) does not: the columns that the
analysis adds to the kernels, its tables, and its records. Frames are read when they are asked for; one that turns
out to be damaged then is made anew with its entry.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from ...ingest.cache.cache_entries import DamagedEntryError, Entry, read_entry, tool_digest, write_entry
from ...ingest.cache.kept_traces import trace_entry
from ..numeric.free_memory import give_back
from ..option_files import options_digest
from ..pipeline import with_own_measurements
from ..records.analysis import Analysis
from ..records.options import Options
from ..records.trace import FRAMES, KERNELS, CaptureFacts, EvidenceGap, Trace, check, empty
from .value_codec import (
    NotStorableError,
    decode_objects,
    decode_values,
    encode_objects,
    encode_values,
)

_OF_TRACE = "trace_"  # before the name of a Trace's frame that the analysis changed
_KERNEL_COLUMNS = "kernel_columns"  # what the analysis adds to the kernels


class _Facts(msgspec.Struct):
    capture: CaptureFacts
    gaps_in_evidence: tuple[EvidenceGap, ...]
    objects: dict[str, list[str]]  # per frame, its columns of objects, kept as bytes
    values: bytes  # the fields that are no frames


@dataclass(frozen=True)
class Source:
    """A capture to look at: its fingerprint, its name, and how to read and analyse it."""

    content: str
    name: str
    path: Path
    read: Callable[[], Trace]  # by way of the Trace's entry
    analyse: Callable[[Trace], Analysis]


def through_store(cache: Path, source: Source, options: Options) -> Analysis:
    """The Analysis from ``cache``, or made anew and then kept there.

    Raises what reading and analysing raise (and keeps nothing then), and UsageError where ``cache`` cannot be written.
    """
    folder = cache / f"{source.content}-{_tool()}-{options_digest(options)}"

    def anew() -> Analysis:
        trace = source.read()
        analysis = source.analyse(trace)
        give_back()
        _keep(folder, trace, analysis)
        return analysis

    return _kept(folder, trace_entry(cache, source.content), source, options, anew) or anew()


@functools.cache
def _tool() -> str:
    return tool_digest("ingest", "analysis")


# ------------------------------------------------------------------------------------------------------------ keeping


def _keep(folder: Path, raw: Trace, analysis: Analysis) -> None:
    """Write the entry of an Analysis of the Trace ``raw``, whose own entry is there."""
    frames = {
        f"{_OF_TRACE}{name}": frame
        for name in FRAMES
        if (frame := getattr(analysis.trace, name)) is not getattr(raw, name)
    }
    of_trace = analysis.kernels.select(list(KERNELS)).equals(raw.kernels)
    for field in fields(Analysis):
        value = getattr(analysis, field.name)
        if field.name == "kernels" and of_trace:
            frames[_KERNEL_COLUMNS] = analysis.kernels.drop(list(KERNELS))
        elif isinstance(value, pl.DataFrame):
            frames[field.name] = value
    trace = analysis.trace
    try:
        objects, frames = _without_objects(frames)
        facts = _Facts(trace.capture, trace.gaps_in_evidence, objects, encode_values(analysis))
    except NotStorableError:
        return
    write_entry(folder, frames, msgspec.json.encode(facts))


def _without_objects(frames: Mapping[str, pl.DataFrame]) -> tuple[dict[str, list[str]], dict[str, pl.DataFrame]]:
    """(columns of objects per frame, the frames with these as bytes)."""
    objects: dict[str, list[str]] = {}
    plain: dict[str, pl.DataFrame] = {}
    for name, frame in frames.items():
        columns = [column for column, dtype in frame.schema.items() if dtype == pl.Object]
        if columns:
            objects[name] = columns
        plain[name] = frame.with_columns([encode_objects(frame[column]) for column in columns])
    return objects, plain


# ------------------------------------------------------------------------------------------------------- taking again


class _Later:
    """What a dataclass of frames is made of here: a frame is read when it is first asked for."""

    def __getattr__(self, name: str) -> object:
        load = self.__dict__.get("_loaders", {}).pop(name, None)
        if load is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self.__dict__[name] = load()
        return self.__dict__[name]


class _KeptTrace(_Later, Trace):
    pass


class _KeptAnalysis(_Later, Analysis):
    pass


def _kept(
    folder: Path, of_trace: Path, source: Source, options: Options, anew: Callable[[], Analysis]
) -> Analysis | None:
    own, beneath = read_entry(folder), read_entry(of_trace)
    if own is None or beneath is None:
        return None
    try:
        facts = msgspec.json.decode(own.text, type=_Facts)
        values = decode_values(facts.values)
    except ValueError:  # msgspec's errors are of this kind
        return None
    # one content may lie in an archive under several names
    capture = replace(facts.capture, source_name=source.name)
    given = {"capture": capture, "gaps_in_evidence": facts.gaps_in_evidence, "source": source.path}
    again = functools.cache(anew)
    trace_loaders = {name: _loader(_trace_frame, again, name, True, own, beneath) for name in FRAMES}
    trace: Trace = _made(_KeptTrace, given, trace_loaders)
    values |= {"trace": trace, "options": with_own_measurements(options, capture.format, source.path)}
    if "step_table" not in own:
        values["step_table"] = None
    frames = [f.name for f in fields(Analysis) if f.name not in values]
    loaders = {name: _loader(_frame, again, name, False, own, trace, facts.objects) for name in frames}
    made: Analysis = _made(_KeptAnalysis, values, loaders)
    return made


def _made(kind: type, known: Mapping[str, object], loaders: dict[str, Callable[[], pl.DataFrame]]) -> Any:
    made: Any = object.__new__(kind)
    made.__dict__.update(known, _loaders=loaders)
    return made


def _loader(
    read: Callable[..., pl.DataFrame], again: Callable[[], Analysis], name: str, of_trace: bool, *arguments: object
) -> Callable[[], pl.DataFrame]:
    def load() -> pl.DataFrame:
        try:
            return read(name, *arguments)
        except (DamagedEntryError, TypeError, ValueError, pl.exceptions.PolarsError):
            fresh: pl.DataFrame = getattr(again().trace if of_trace else again(), name)
            return fresh

    return load


def _trace_frame(name: str, own: Entry, beneath: Entry) -> pl.DataFrame:
    if f"{_OF_TRACE}{name}" in own:
        return check(own.frame(f"{_OF_TRACE}{name}"), FRAMES[name], name)
    return check(beneath.frame(name), FRAMES[name], name) if name in beneath else empty(FRAMES[name])


def _frame(name: str, own: Entry, trace: Trace, objects: Mapping[str, Iterable[str]]) -> pl.DataFrame:
    if name == "kernels" and _KERNEL_COLUMNS in own:
        return trace.kernels.hstack(own.frame(_KERNEL_COLUMNS))
    if name not in own:
        raise DamagedEntryError(name)
    frame = own.frame(name)
    for column in objects.get(name, ()):
        frame = frame.with_columns(decode_objects(frame[column]))
    return frame
