"""Finding captures: recursively, by known suffix or by content; one entry a file, whatever its state.

A folder of ``nsys export -t parquetdir|arrowdir`` is one capture; its files are not looked at again. A folder with the
files of one run is not: each file has its entry (and ``runs.py`` adds one for the run).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ...analysis.records.errors import UsageError
from ...analysis.records.formats import file_suffixes
from ...ingest import is_capture_folder, looks_like_capture
from ...ingest.cache.fingerprint import fingerprint


@dataclass(frozen=True)
class Found:
    """One capture to analyse: ``relative`` (posix, below its root) names its row and its report.

    ``files``: the files of a run that lies in several; ``path`` is their folder then.
    """

    path: Path
    relative: str
    files: tuple[Path, ...] = ()

    @property
    def report_name(self) -> str:
        """The name of its report: the relative path with ``/`` as ``__``, and ``all`` for the ``*`` of a run."""
        return self.relative.replace("/", "__").replace("*", "all")

    def fingerprint(self) -> str:
        """Hash of its content, whatever its name. Raises OSError where something cannot be read."""
        if not self.files:
            return fingerprint(self.path)
        digest = hashlib.blake2b(digest_size=16)
        for file in self.files:
            digest.update(fingerprint(file).encode())
        return digest.hexdigest()


def find_captures(paths: Iterable[Path], skip: Path) -> list[Found]:
    """Every capture below ``paths`` in a stable order; the folder ``skip`` (the output) is left out.

    Raises UsageError for a path that does not exist.
    """
    found: dict[Path, Found] = {}
    skipped = skip.resolve()
    roots = list(paths)
    for root in roots:
        if not root.exists():
            raise UsageError(f"no such file or folder: {root}")
    prefix_needed = len({r.name for r in roots if r.is_dir()}) > 1
    for root in roots:
        if root.is_dir() and not is_capture_folder(root):
            for path in _walk(root, skipped):
                relative = path.relative_to(root).as_posix()
                named = f"{root.resolve().name}/{relative}" if prefix_needed else relative
                found.setdefault(path.resolve(), Found(path, named))
        else:
            found.setdefault(root.resolve(), Found(root, root.name))
    return distinct_names(sorted(found.values(), key=lambda f: (f.relative, str(f.path))))


def distinct_names(entries: list[Found]) -> list[Found]:
    """Give a number to names that several roots share, so that no report overwrites another."""
    seen: dict[str, int] = {}
    result = []
    for entry in entries:
        count = seen.get(entry.report_name, 0)
        seen[entry.report_name] = count + 1
        result.append(entry if count == 0 else replace(entry, relative=f"{entry.relative}.{count + 1}"))
    return result


def _walk(root: Path, skipped: Path) -> Iterator[Path]:
    for folder, names, files in os.walk(root):
        here = Path(folder)
        names[:] = sorted(n for n in names if not n.startswith(".") and (here / n).resolve() != skipped)
        for name in list(names):
            if is_capture_folder(here / name):
                names.remove(name)
                yield here / name
        for name in sorted(files):
            path = here / name
            if name.startswith(".") or path.name.endswith(("-wal", "-shm", "-journal")):
                continue
            if name.lower().endswith(file_suffixes()) or looks_like_capture(path):
                yield path
