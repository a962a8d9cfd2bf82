"""A file becomes a Trace.

One module per input format. Each has ``sniff(path, head) -> bool``, a cheap test on content (never on the suffix
alone; ``head`` is the file's first bytes, decompressed where the file is gzip, ``b""`` for a folder), and
``read(path, *, progress=None) -> Trace``. ``open_trace`` tries them in the order of
``analysis/records/formats.py``, which is the one list of formats. Readers are imported when they are asked, so that reading one format never pays for another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from ..analysis.records.errors import TraceAnalyzeError
from ..analysis.records.formats import RUN_OF_FILES, readers

if TYPE_CHECKING:
    from ..analysis.records.trace import Trace

Progress = Callable[[str], None]


class Reader(Protocol):
    """What the module of a format offers."""

    def sniff(self, path: Path, head: bytes) -> bool:
        """Whether the content is of this format."""

    def read(self, path: Path, *, progress: Progress | None = None) -> Trace:
        """The content as a Trace."""


def reader_of(module: str) -> Reader:
    """The reader of a format, imported when it is asked."""
    return cast("Reader", import_module(f".{module}", __name__))


def open_trace(
    path: str | Path, *, cache: Path | None = None, progress: Progress | None = None, content: str | None = None
) -> Trace:
    """Read the capture at ``path`` into a Trace; the file is never written to and gets no side files.

    ``cache`` is a folder for converted captures (see ``cache.py``), ``content`` the fingerprint for it where that is
    known; ``progress`` is called with a short sentence whenever a part has been read. Raises ``NotACaptureError`` where nothing could be read as a capture,
    ``CannotAnswerError`` where the capture holds no GPU work.
    """
    from ..analysis.records.inputs_read import remember_inputs
    from .sniff import describe, read_head

    path = Path(path)
    remember_inputs([path])
    head = read_head(path)
    for _, module in readers():
        reader = reader_of(module)
        if reader.sniff(path, head):
            if cache is None:
                return _named(reader.read(path, progress=progress), path)
            from .cache.kept_traces import through_cache

            read = partial(reader.read, path, progress=progress)
            return _named(through_cache(path, cache, read, content=content), path)
    raise describe(path, head, [words for words, _ in readers()])


def printable(name: str) -> str:
    """A file name as it can be written in UTF-8 (a name on disk may be any bytes)."""
    return name.encode("utf-8", "replace").decode("utf-8")


def _named(trace: Trace, path: Path) -> Trace:
    """The Trace with its origin, under a name that can be written in UTF-8."""
    capture = trace.capture
    name = printable(capture.source_name)
    return replace(
        trace, source=path, capture=capture if name == capture.source_name else replace(capture, source_name=name)
    )


def looks_like_capture(path: Path) -> bool:
    """Whether the content of a file is that of a capture, whatever its name; False where it cannot be read."""
    from .sniff import read_head

    try:
        head = read_head(path)
        return any(reader_of(module).sniff(path, head) for _, module in readers())
    except (OSError, TraceAnalyzeError):
        return False


def is_capture_folder(path: Path) -> bool:
    """Whether a folder is one capture (an export of one file per table), not a folder of captures, be they of one run."""
    try:
        return path.is_dir() and any(
            reader_of(m).sniff(path, b"") for words, m in readers() if (words, m) != RUN_OF_FILES
        )
    except OSError:
        return False
