"""A file becomes a Trace.

One module per input format. Each has ``sniff(path, head) -> bool``, a cheap test on content (never on the suffix
alone; ``head`` is the file's first bytes, decompressed where the file is gzip, ``b""`` for a folder), and
``read(path, *, progress=None) -> Trace``. ``open_trace`` tries them in the order of ``READERS`` and nothing else
knows formats. Readers are imported when they are asked, so that reading one format never pays for another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from ..analysis.records.errors import TraceAnalyzeError

if TYPE_CHECKING:
    from ..analysis.records.trace import Trace

Progress = Callable[[str], None]

MANY = ".run_of_files.open_run"  # the reader whose input is several captures

# (what the reader reads, in words for the error message; module relative to this package)
READERS: list[tuple[str, str]] = [
    ("an Nsight Systems SQLite export (nsys export --type sqlite)", ".nsys"),
    ("a folder of nsys export --type parquetdir or arrowdir", ".nsys.table_folder"),
    ("a PyTorch-profiler trace (*.pt.trace.json, also gzipped)", ".kineto.reader"),
    ("Nsight Compute results as CSV (ncu --csv --page raw or details)", ".ncu.ncu_csv"),
    ("an Nsight Compute report (.ncu-rep), where ncu is installed", ".ncu.report_file"),
    ("a table of nsys stats or nsys recipe (cuda_gpu_trace, cuda_gpu_kern_sum)", ".nsys_stats.reader"),
    ("an Nsight Systems report (.nsys-rep), where nsys is installed", ".nsys.report_file"),
    ("a folder with the files of one run, one per rank or node", MANY),
]


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
    for _, module in READERS:
        reader = import_module(module, __name__)
        if reader.sniff(path, head):
            if cache is None:
                return _printable(reader.read(path, progress=progress))
            from .cache.kept_traces import through_cache

            read = partial(reader.read, path, progress=progress)
            return _printable(through_cache(path, cache, read, content=content))
    raise describe(path, head, [words for words, _ in READERS])


def printable(name: str) -> str:
    """A file name as it can be written in UTF-8 (a name on disk may be any bytes)."""
    return name.encode("utf-8", "replace").decode("utf-8")


def _printable(trace: Trace) -> Trace:
    name = printable(trace.capture.source_name)
    if name == trace.capture.source_name:
        return trace
    return replace(trace, capture=replace(trace.capture, source_name=name))


def looks_like_capture(path: Path) -> bool:
    """Whether the content of a file is that of a capture, whatever its name; False where it cannot be read."""
    from .sniff import read_head

    try:
        head = read_head(path)
        return any(import_module(module, __name__).sniff(path, head) for _, module in READERS)
    except (OSError, TraceAnalyzeError):
        return False


def is_capture_folder(path: Path) -> bool:
    """Whether a folder is one capture (an export of one file per table), not a folder of captures, be they of one run."""
    try:
        return path.is_dir() and any(import_module(m, __name__).sniff(path, b"") for _, m in READERS if m != MANY)
    except OSError:
        return False
