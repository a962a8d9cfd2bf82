"""Every file and folder that this process has read as an input, so that no output ever replaces or enters one.

Readers remember what they open and commands what they were given; ``reports/whole_files.py`` and the cache ask before
they write. A file is known by its path and by its identity on the disk: another name of it (a link, another spelling
where case does not matter) is the same file.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

_paths: set[Path] = set()
_identities: dict[tuple[int, int], Path] = {}


def remember_inputs(paths: Iterable[str | Path]) -> None:
    """Note ``paths`` (files, or folders with all that lies in them) as inputs; those that do not exist are left out."""
    for given in paths:
        path = Path(given).absolute()
        identity = _identity(path)
        if identity is not None:
            _paths.add(path)
            _identities[identity] = path


def forget_input(path: Path) -> None:
    """Take back ``remember_inputs`` of a file that this tool wrote itself, to read it."""
    _paths.discard(path.absolute())
    identity = _identity(path)
    if identity is not None:
        _identities.pop(identity, None)


def input_at(target: Path) -> Path | None:
    """The input that writing ``target`` would replace, or the input folder in which it would lie; else None."""
    path = target.absolute()
    if path in _paths and _identity(path) is not None:
        return path
    folder = path.parent.resolve()
    for place in (path, folder, *folder.parents):
        identity = _identity(place)
        known = _identities.get(identity) if identity is not None else None
        # the number of a file that is gone may have gone to another one
        if known is not None and _identity(known) == identity:
            return known
    return None


def _identity(path: Path) -> tuple[int, int] | None:
    """What tells a file from every other on this machine; None where there is none."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino
