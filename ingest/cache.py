"""``--cache DIR``: a second look at a capture is immediate.

The frames of a Trace as Parquet under the fingerprint of the capture's content and the tool's version, so that a
changed file or tool never meets an old entry. Entries appear whole (written beside, then renamed) and hold only what
the Trace holds: nothing that ingest does not let through. The folder is the user's choice, never beside the input.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import polars as pl

from .errors import UsageError
from .fingerprint import fingerprint
from .trace import FRAMES, CaptureFacts, EvidenceGap, Trace, build_trace

_FACTS = "facts.json"


class _Facts(msgspec.Struct):
    capture: CaptureFacts
    gaps_in_evidence: tuple[EvidenceGap, ...]


def through_cache(path: Path, cache: Path, read: Callable[[], Trace]) -> Trace:
    """The Trace of ``path`` from ``cache``, or from ``read()`` and then kept there.

    Raises UsageError when the folder cannot be written; a damaged entry is read anew and replaced.
    """
    from .. import __version__

    entry = cache / f"{fingerprint(path)}-{__version__}"
    cached = _load(entry, path.name or path.resolve().name)
    if cached is not None:
        return cached
    trace = read()
    _store(trace, entry)
    return trace


def _load(entry: Path, source_name: str) -> Trace | None:
    if not (entry / _FACTS).exists():
        return None
    try:
        facts = msgspec.json.decode((entry / _FACTS).read_bytes(), type=_Facts)
        frames = {
            name: pl.read_parquet(entry / f"{name}.parquet") for name in FRAMES if (entry / f"{name}.parquet").exists()
        }
        # one content may lie in an archive under several names
        capture = replace(facts.capture, source_name=source_name)
        return build_trace(capture, gaps_in_evidence=facts.gaps_in_evidence, **frames)
    except (OSError, msgspec.MsgspecError, pl.exceptions.PolarsError, TypeError):
        return None


def _store(trace: Trace, entry: Path) -> None:
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{entry.name}.", dir=entry.parent))
    except OSError as error:
        raise UsageError(f"--cache: cannot write {entry.parent}: {error.strerror or error}.") from error
    try:
        for name in FRAMES:
            frame: pl.DataFrame = getattr(trace, name)
            if len(frame):
                frame.write_parquet(made / f"{name}.parquet", compression="lz4", statistics=False)
        facts = _Facts(trace.capture, trace.gaps_in_evidence)
        (made / _FACTS).write_bytes(msgspec.json.encode(facts))
        if entry.exists():
            shutil.rmtree(entry)
        made.replace(entry)
    except OSError as error:
        # another process may have stored the same content first: then there is nothing left to do
        if not (entry / _FACTS).exists():
            raise UsageError(f"--cache: cannot write {entry}: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
