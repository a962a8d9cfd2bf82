"""A file becomes a Trace.

One module per input format. Each has ``sniff(path, head) -> bool``, a cheap test on content (never on the suffix
alone; ``head`` is the file's first bytes, decompressed where the file is gzip, ``b""`` for a folder), and
``read(path, *, progress=None) -> Trace``. ``open_trace`` tries them in the order of ``READERS`` and nothing else
knows formats. Readers are imported when they are asked, so that reading one format never pays for another.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import TraceAnalyzeError

if TYPE_CHECKING:
    from .trace import Trace

Progress = Callable[[str], None]

# (what the reader reads, in words for the error message; module relative to this package)
READERS: list[tuple[str, str]] = [
    ("an Nsight Systems SQLite export (nsys export --type sqlite)", ".nsys"),
    ("a folder of nsys export --type parquetdir or arrowdir", ".nsys_tables"),
    ("a PyTorch-profiler trace (*.pt.trace.json, also gzipped)", ".kineto"),
    ("Nsight Compute results as CSV (ncu --csv --page raw or details)", ".ncu_csv"),
    ("an Nsight Compute report (.ncu-rep), where ncu is installed", ".ncu_rep"),
    ("a table of nsys stats or nsys recipe (cuda_gpu_trace, cuda_gpu_kern_sum)", ".nsys_stats"),
    ("an Nsight Systems report (.nsys-rep), where nsys is installed", ".nsys_rep"),
]


def open_trace(path: str | Path, *, cache: Path | None = None, progress: Progress | None = None) -> Trace:
    """Read the capture at ``path`` into a Trace; the file is never written to and gets no side files.

    ``cache`` is a folder for converted captures (see ``cache.py``); ``progress`` is called with a short sentence
    whenever a part has been read. Raises ``NotACaptureError`` where nothing could be read as a capture,
    ``CannotAnswerError`` where the capture holds no GPU work.
    """
    from .sniff import describe, read_head

    path = Path(path)
    head = read_head(path)
    for _, module in READERS:
        reader = import_module(module, __name__)
        if reader.sniff(path, head):
            if cache is None:
                trace: Trace = reader.read(path, progress=progress)
                return trace
            from .cache import through_cache

            return through_cache(path, cache, partial(reader.read, path, progress=progress))
    raise describe(path, head, [words for words, _ in READERS])


def looks_like_capture(path: Path) -> bool:
    """Whether the content of a file is that of a capture, whatever its name; False where it cannot be read."""
    from .sniff import read_head

    try:
        head = read_head(path)
        return any(import_module(module, __name__).sniff(path, head) for _, module in READERS)
    except (OSError, TraceAnalyzeError):
        return False


def is_capture_folder(path: Path) -> bool:
    """Whether a folder is one capture (an export of one file per table), not a folder of captures."""
    return path.is_dir() and looks_like_capture(path)
