"""Folders for converted or copied captures in the system's temporary folder, which never outlive their process for long.

A folder carries the number of its process in its name. It goes when it is left, whatever ends the work; where a process
was killed outright, the next one that needs such a folder removes it.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

_OURS = re.compile(r"trace-analyze-(\d+)-\w+")


def temporary_folder(place: Path | None = None) -> tempfile.TemporaryDirectory[str]:
    """A new folder for copies of captures, in ``place`` or the system's own; use it in a ``with`` or call ``cleanup``."""
    remove_left_folders()
    return tempfile.TemporaryDirectory(prefix=f"trace-analyze-{os.getpid()}-", dir=place)


def remove_left_folders() -> None:
    """Remove the folders of this kind that belong to this user and whose process is gone."""
    for folder in Path(tempfile.gettempdir()).glob("trace-analyze-*"):
        named = _OURS.fullmatch(folder.name)
        if named and folder.is_dir() and not folder.is_symlink() and _is_mine(folder) and not is_running(int(named[1])):
            shutil.rmtree(folder, ignore_errors=True)


def is_running(pid: int) -> bool:
    """Whether a process has this number; on Windows, where asking would end it, always."""
    if os.name == "nt":
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return not _is_dead(pid)


def _is_dead(pid: int) -> bool:
    """Whether the process has ended but nobody asked how (containers often have nobody who does)."""
    try:
        status = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return status.rpartition(b")")[2].split()[:1] in ([b"Z"], [b"X"])


def _is_mine(folder: Path) -> bool:
    try:
        return os.name == "nt" or folder.stat().st_uid == os.getuid()
    except OSError:
        return False
