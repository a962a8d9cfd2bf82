"""Finding captures: recursively, by known suffix or by content; one entry a file, whatever its state.

A folder of ``nsys export -t parquetdir|arrowdir`` is one capture; its files are not looked at again. A folder with the
files of one run is not: each file has its entry (and ``runs_in_files.py`` adds one for the run). A folder that cannot
be looked into has an entry too, which says why. Links to files are followed, links to folders of captures are not, so
that no circle of links is walked; what this tool wrote itself is no capture.
"""

from __future__ import annotations

import hashlib
import os
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from ...analysis.records.errors import NotACaptureError, UsageError
from ...analysis.records.formats import file_suffixes
from ...ingest import is_capture_folder, looks_like_capture
from ...ingest.cache.fingerprint import fingerprint
from ...ingest.sniff import refuse_unreadable, why_unreadable
from ..whole_files import file_name
from .archive_row import as_text
from .own_outputs import is_own_output

_BESIDE_A_DATABASE = ("-wal", "-shm", "-journal")


@dataclass(frozen=True)
class Found:
    """One capture to analyse: ``relative`` (posix, below its root, text whatever the name's bytes) names its row.

    ``files``: the files of a run that lies in several; ``path`` is their folder then. ``problem``: why it cannot be
    read, where finding it has told. ``report_name``: the file name of its report, see ``distinct_names``.
    """

    path: Path
    relative: str
    files: tuple[Path, ...] = ()
    problem: str | None = None
    report_name: str = ""

    def fingerprint(self) -> str:
        """Hash of its content, whatever its name.

        Raises NotACaptureError for what has a ``problem`` or is neither file nor folder, OSError where something
        cannot be read.
        """
        if self.problem is not None:
            raise NotACaptureError(self.problem)
        for file in self.files or (self.path,):
            refuse_unreadable(file)
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
    found: dict[str, Found] = {}
    skipped = _identity(skip)
    roots = list({_plain(path): path for path in paths}.values())
    for root in roots:
        if not os.path.lexists(root):
            raise UsageError(f"no such file or folder: {root}")
    archives = [root for root in roots if _is_archive(root)]
    alone = [root for root in roots if root not in archives]
    prefixes = [f"{tail}/" for tail in _distinct_tails(archives)] if len(archives) > 1 else [""]
    for root, prefix in zip(archives, prefixes, strict=False):
        for path, problem in _walk(root, skipped):
            relative = path.relative_to(root).as_posix() if path != root else _plain(root).name
            entry = Found(path, as_text(f"{prefix}{relative}"), problem=problem)
            found.setdefault(os.path.realpath(path), entry)
    for root, tail in zip(alone, _distinct_tails(alone), strict=True):
        found.setdefault(os.path.realpath(root), Found(root, as_text(tail)))
    return distinct_names(sorted(found.values(), key=lambda f: (f.relative, str(f.path))))


def _distinct_tails(paths: Sequence[Path]) -> list[str]:
    """The name of each path, with as many of the folders above as tell them all apart."""
    parts = [_plain(path).parts for path in paths]
    length = 1
    while len({each[-length:] for each in parts}) < len(set(parts)):
        length += 1
    return [Path(*each[-length:]).as_posix() for each in parts]


def _plain(path: Path) -> Path:
    """The absolute path without ``..``, with the links that the user named."""
    return Path(os.path.normpath(path.absolute()))


def _is_archive(root: Path) -> bool:
    try:
        return root.is_dir() and not is_capture_folder(root)
    except OSError:  # reading it will say why
        return False


def distinct_names(entries: Iterable[Found], beside: Iterable[Found] = ()) -> list[Found]:
    """The entries, each with a ``relative`` and a ``report_name`` that no other has, nor any of ``beside``.

    The report's name is the relative path with ``/`` as ``__`` and ``all`` for the ``*`` of a run; where another has
    it, also on file systems for which ``A`` and ``a`` are one name, a digest tells them apart.
    """
    rows = Counter(entry.relative for entry in beside)
    reports = {_folded(entry.report_name) for entry in beside}
    result = []
    for entry in entries:
        numbered = (f"{entry.relative} ({number})" for number in count(2))
        relative = entry.relative if entry.relative not in rows else next(n for n in numbered if n not in rows)
        report_name = next(name for name in _report_names(relative) if _folded(name) not in reports)
        rows[relative] += 1
        reports.add(_folded(report_name))
        result.append(replace(entry, relative=relative, report_name=report_name))
    return result


def _report_names(relative: str) -> Iterator[str]:
    flat = relative.replace("/", "__").replace("*", "all")
    yield file_name(flat, ".html")
    for number in count():
        digest = hashlib.sha256(f"{number}\0{relative}".encode()).hexdigest()[:8]
        yield file_name(f"{flat}-{digest}", ".html")


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def _walk(root: Path, skipped: tuple[int, int] | None) -> Iterator[tuple[Path, str | None]]:
    """The captures below ``root``, and each folder that cannot be looked into with the reason."""
    waiting = [root]
    while waiting:  # a loop, because folders may lie deeper in each other than functions can call each other
        folder = waiting.pop()
        try:
            with os.scandir(folder) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except OSError as error:
            yield folder, why_unreadable(folder, error)
            continue
        for entry in entries:
            path = folder / entry.name
            if entry.name.startswith("."):
                continue
            if not _is_folder(entry):
                if _is_wanted(path):
                    yield path, None
            elif skipped is None or _identity(path) != skipped:
                if is_capture_folder(path):
                    yield path, None
                elif not entry.is_symlink():
                    waiting.append(path)


def _identity(folder: Path) -> tuple[int, int] | None:
    """What tells a folder from every other, whatever its name; None where it is not there."""
    try:
        found = folder.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads in a circle, or to where we may not look
        return False


def _is_wanted(path: Path) -> bool:
    """Whether a file has a row: by its name, or by its content where that can be read without waiting."""
    if path.name.endswith(_BESIDE_A_DATABASE):
        return False
    known = path.name.lower().endswith(file_suffixes())
    try:
        return (known or looks_like_capture(path)) and not is_own_output(path)
    except OSError:  # the system does not even say what it is; whoever reads it will say why
        return known
