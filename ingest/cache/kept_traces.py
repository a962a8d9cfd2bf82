"""``--cache DIR``: a capture is converted and read once.

The frames of a Trace as Parquet under the fingerprint of the capture's content and of the code that reads it, so that a
changed file or tool never meets an old entry. Entries appear whole and hold only what the Trace holds: nothing that
ingest does not let through. The folder is the user's choice, never beside the input. What the analysis made of the
Trace is kept beside it (``analysis/cache/kept_analyses.py``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import polars as pl

from ...analysis.records.trace import FRAMES, CaptureFacts, EvidenceGap, Trace, build_trace
from .cache_entries import DamagedEntryError, read_entry, tool_digest, write_entry
from .fingerprint import fingerprint


class _Facts(msgspec.Struct):
    capture: CaptureFacts
    gaps_in_evidence: tuple[EvidenceGap, ...]


def through_cache(path: Path, cache: Path, read: Callable[[], Trace], *, content: str | None = None) -> Trace:
    """The Trace of ``path`` from ``cache``, or from ``read()`` and then kept there.

    ``content`` is the fingerprint where it is known. Raises UsageError when the folder cannot be written; a damaged
    entry is read anew and replaced.
    """
    entry = trace_entry(cache, content or fingerprint(path))
    cached = _load(entry, path.name or path.resolve().name)
    if cached is not None:
        return cached
    trace = read()
    frames = {name: frame for name in FRAMES if len(frame := getattr(trace, name))}
    write_entry(entry, frames, msgspec.json.encode(_Facts(trace.capture, trace.gaps_in_evidence)))
    return trace


def trace_entry(cache: Path, content: str) -> Path:
    """Where the Trace of a capture with this fingerprint is kept."""
    return cache / f"{content}-{_reader()}"


@functools.cache
def _reader() -> str:
    return tool_digest("ingest")


def _load(folder: Path, source_name: str) -> Trace | None:
    entry = read_entry(folder)
    if entry is None:
        return None
    try:
        facts = msgspec.json.decode(entry.text, type=_Facts)
        frames: dict[str, pl.DataFrame] = {name: entry.frame(name) for name in FRAMES if name in entry}
        # one content may lie in an archive under several names
        capture = replace(facts.capture, source_name=source_name)
        return build_trace(capture, gaps_in_evidence=facts.gaps_in_evidence, **frames)
    except (DamagedEntryError, msgspec.MsgspecError, TypeError):
        return None
