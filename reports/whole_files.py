"""Output files appear whole or not at all: written to a temporary name beside the target, then renamed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from ..analysis.records.errors import UsageError

_NAME_KEPT = 40  # of the target's name in the temporary one, which must not become longer than a name may be


def write_whole(path: Path, content: bytes | str) -> None:
    """Write ``content`` to ``path`` atomically, creating its folder.

    Raises UsageError with the system's reason when the folder cannot be written.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    produce_whole(path, lambda temporary: temporary.write_bytes(data))


def produce_whole(path: Path, produce: Callable[[Path], object]) -> None:
    """Let ``produce`` write a temporary file beside ``path``, then rename it there; on failure nothing is left."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name[:_NAME_KEPT]}.", suffix=path.suffix, dir=path.parent)
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror or error}. Choose another folder with -o DIR."
        ) from error
    os.close(handle)
    temporary = Path(name)
    try:
        produce(temporary)
        temporary.chmod(0o666 & ~current_umask())
        temporary.replace(path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}.") from error
    finally:
        temporary.unlink(missing_ok=True)


def current_umask() -> int:
    """The process's umask (reading it needs setting it)."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
