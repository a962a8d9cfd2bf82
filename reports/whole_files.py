"""Output files: whole or not at all, under names that stay in their folder, and never over what is not ours.

Everything that this tool writes for a user goes through ``produce_whole``: it asks ``check_target`` first, then writes a
temporary file beside the target and renames it.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from ..analysis.records.errors import UsageError
from ..analysis.records.inputs_read import input_at
from ..ingest.temporary_copies import is_running

_TEMPORARY = re.compile(r"\.trace-analyze-(\d+)-[0-9a-f]{32}\.tmp")
_LONGEST_NAME = 255  # bytes, on every file system in use
_MARK_WITHIN = 4096  # bytes from either end of a file
# How each of our formats begins or ends. Tables carry no mark: they are known by their columns (table_files.py).
_MARKS = (
    re.compile(rb'<meta name="generator" content="trace-analyze '),  # HTML
    re.compile(rb'\A\{\s*"schema_version":\s*"[^"]{1,20}",\s*"tool_version":\s*"'),  # JSON
    re.compile(rb'\A\{"otherData":\{"made_by":"trace-analyze '),  # Perfetto
    re.compile(rb"<sub>trace-analyze [^\n]*</sub>\s*\Z"),  # Markdown
    re.compile(rb"<dc:title>trace-analyze</dc:title>"),  # SVG
    re.compile(rb"\A\x89PNG.*tEXtSoftware\x00trace-analyze", re.DOTALL),  # PNG
)


def write_whole(path: Path, content: bytes | str, *, ours: Callable[[Path], bool] | None = None) -> None:
    """Write ``content`` to ``path`` atomically, creating its folder; otherwise as ``produce_whole``."""
    data = content.encode("utf-8") if isinstance(content, str) else content
    produce_whole(path, lambda temporary: temporary.write_bytes(data), ours=ours)


def produce_whole(path: Path, produce: Callable[[Path], object], *, ours: Callable[[Path], bool] | None = None) -> None:
    """Let ``produce`` write a temporary file beside ``path``, then rename it there; on failure nothing is left.

    Raises UsageError where the folder cannot be written, with the system's reason, and what ``check_target`` raises.
    """
    check_target(path, ours=ours)
    temporary = path.with_name(f".trace-analyze-{os.getpid()}-{uuid4().hex}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch(exist_ok=False)  # with the permissions that the user's umask leaves
        produce(temporary)
        temporary.replace(path)
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror or error}. Choose another folder with -o DIR."
        ) from error
    finally:
        with suppress(OSError):  # where the folder could not be made, nothing is in it
            temporary.unlink(missing_ok=True)


def check_target(path: Path, *, ours: Callable[[Path], bool] | None = None) -> None:
    """Raise UsageError where writing ``path`` would replace an input or another's file, or lie in an input's folder.

    ``ours`` says whether a file that is there was written by this tool; by default its content has to say so.
    """
    read = input_at(path)
    if read is not None:
        folder = read.is_dir()
        what = f"lie in {read}, which is an input" if folder else f"replace {read}, which is an input"
        raise UsageError(f"the output {path} would {what}: nothing was written. Choose another folder with -o DIR.")
    if not os.path.lexists(path):
        return
    if not path.is_file() or not (path.stat().st_size == 0 or (ours or has_our_mark)(path)):
        raise UsageError(
            f"{path} is there already and was not written by trace-analyze, so it stays as it is. Choose another "
            "folder with -o DIR, or move it away."
        )


def has_our_mark(path: Path) -> bool:
    """Whether a file says in its content that this tool wrote it."""
    try:
        with path.open("rb") as file:
            head = file.read(_MARK_WITHIN)
            file.seek(max(path.stat().st_size - _MARK_WITHIN, 0))
            tail = file.read(_MARK_WITHIN)
    except OSError:
        return False
    return any(mark.search(part) for mark in _MARKS for part in (head, tail))


def file_name(stem: str, suffix: str = "") -> str:
    """A name for a file in a folder of ours, from any text: it names no other folder and no device, and is short enough.

    What was changed is told apart by a digest of the text, so that two texts never share a name.
    """
    safe = re.sub(r"[\x00-\x1f\x7f/\\]" if os.name != "nt" else r'[\x00-\x1f\x7f/\\:*?"<>|]', "_", stem)
    if not safe.strip("."):
        safe = safe.replace(".", "_") or "_"
    room = _LONGEST_NAME - len(os.fsencode(suffix))
    if safe == stem and len(os.fsencode(safe)) <= room:
        return safe + suffix
    digest = hashlib.sha256(os.fsencode(stem)).hexdigest()[:8]
    kept = os.fsencode(safe)[: room - len(digest) - 1].decode("utf-8", "ignore")
    return f"{kept}-{digest}{suffix}"


def remove_temporaries(folder: Path) -> None:
    """Remove the temporary files that runs which ended too soon left in ``folder``, and nothing else."""
    for path in folder.glob(".trace-analyze-*.tmp"):
        named = _TEMPORARY.fullmatch(path.name)
        if named and path.is_file() and not path.is_symlink() and not is_running(int(named[1])):
            path.unlink(missing_ok=True)
