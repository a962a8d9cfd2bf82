"""A file becomes a Trace.

One module per input format. Each has ``sniff(path, head) -> bool``, a cheap test on content (never on the suffix
alone; ``head`` is the file's first bytes, decompressed where the file is gzip, ``b""`` for a folder), and
``read(path, *, progress=None) -> Trace``. ``open_trace`` tries them in the order of ``READERS`` and nothing else
knows formats. Readers are imported when they are asked, so that reading one format never pays for another.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .trace import Trace

Progress = Callable[[str], None]

# (what the reader reads, in words for the error message; module relative to this package)
READERS: list[tuple[str, str]] = [
    ("an Nsight Systems SQLite export (nsys export --type sqlite)", ".nsys"),
]


def open_trace(path: str | Path, *, progress: Progress | None = None) -> Trace:
    """Read the capture at ``path`` into a Trace; the file is never written to and gets no side files.

    ``progress`` is called with a short sentence whenever a part has been read. Raises ``NotACaptureError`` where
    nothing could be read as a capture, ``CannotAnswerError`` where the capture holds no GPU work.
    """
    from .sniff import describe, read_head

    path = Path(path)
    head = read_head(path)
    for _, module in READERS:
        reader = import_module(module, __name__)
        if reader.sniff(path, head):
            trace: Trace = reader.read(path, progress=progress)
            return trace
    raise describe(path, head, [words for words, _ in READERS])
