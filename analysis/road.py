"""The one road from a path and options to an Analysis: Python, the command line, batch workers and the cache walk it.

``read_capture`` opens what lies at a path, ``analyze_capture`` takes it from there to the end, by way of ``--cache``
where one is given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ..ingest import looks_like_capture, open_trace, printable
from .numeric.free_memory import give_back
from .pipeline import analyze_options
from .records.analysis import Analysis
from .records.options import Options
from .records.trace import Trace

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Capture:
    """What is to be read."""

    path: Path
    files: tuple[Path, ...] = ()  # those in the folder ``path`` that are one run; () = all that is there
    content: str | None = None  # the fingerprint, where it is known

    def name(self) -> str:
        """The name of the file or folder, or the pattern that the names of a run's files have in common."""
        if not self.files:
            return self.path.name or self.path.resolve().name
        from ..ingest.run_of_files.file_names import pattern_name

        return pattern_name([file.name for file in self.files])


def read_capture(capture: Capture, *, cache: Path | None = None, progress: Progress | None = None) -> Trace:
    """The Trace of a capture. Raises the TraceAnalyzeErrors of reading."""
    if not capture.files:
        return open_trace(capture.path, cache=cache, progress=progress, content=capture.content)
    from ..ingest.run_of_files.open_run import open_run

    return open_run(capture.files, capture.name(), cache=cache, progress=progress)


def analyze_capture(
    capture: Capture, options: Options, *, cache: Path | None = None, progress: Progress | None = None
) -> Analysis:
    """Read and analyse a capture; ``progress`` is told every part and stage.

    Raises the TraceAnalyzeErrors of reading and analysing, and UsageError where ``cache`` cannot be written.
    """
    if progress is not None:
        progress(f"reading {capture.path.name}")
    analysis = (
        _by_way_of_cache(capture, options, cache, progress)
        if cache is not None
        else _anew(read_capture(capture, progress=progress), options, progress)
    )
    give_back()
    return analysis


def _anew(trace: Trace, options: Options, progress: Progress | None) -> Analysis:
    return analyze_options(trace, options, progress=progress)


def _by_way_of_cache(capture: Capture, options: Options, cache: Path, progress: Progress | None) -> Analysis:
    from ..ingest.cache.fingerprint import fingerprint, fingerprint_of_run
    from ..ingest.cache.kept_traces import through_cache
    from ..ingest.sniff import SQLITE_MAGIC, read_head
    from .cache.kept_analyses import Source, through_store

    read = partial(read_capture, capture, cache=cache, progress=progress)
    try:
        if capture.files:
            content = fingerprint_of_run(capture.files)
            read = partial(through_cache, Path(capture.name()), cache, read, content=content)
        elif read_head(capture.path).startswith(SQLITE_MAGIC) or looks_like_capture(capture.path):
            content = capture.content or fingerprint(capture.path)
            known = Capture(capture.path, content=content)
            read = partial(read_capture, known, cache=cache, progress=progress)
        else:
            return _anew(read(), options, progress)  # which says what it is
    except OSError:
        return _anew(read(), options, progress)
    source = Source(
        content, printable(capture.name()), capture.path, read, partial(_anew, options=options, progress=progress)
    )
    return through_store(cache, source, options)
