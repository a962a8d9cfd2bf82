"""The content of a capture as one short text, independent of its name and place.

A file is hashed a stretch at a time, several stretches at once, and the digests of the stretches are hashed: reading
the content is most of what a second look costs. SHA-256, because processors have instructions for it.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..sqlite_files import changes_beside

_STRETCH = 1 << 23
_BLOCK = 1 << 19  # stays in the processor's cache
_MOST_THREADS = 8
_DIGITS = 32  # 128 bits


def fingerprint(path: Path) -> str:
    """Hash of a file's content (of a database with its log or journal), or of every file below a folder with their names.

    Raises OSError where something cannot be read.
    """
    digest = hashlib.sha256()
    if path.is_dir():
        for file in sorted(p for p in path.rglob("*") if p.is_file()):
            digest.update(os.fsencode(file.relative_to(path).as_posix()) + b"\0")
            digest.update(_content(file))
    else:
        digest.update(_content(path))
        for side in changes_beside(path):  # a database is not the same with another log
            digest.update(b"beside\0" + _content(side))
    return digest.hexdigest()[:_DIGITS]


def fingerprint_of_run(files: Iterable[Path]) -> str:
    """Hash of the contents and names of the files of one run. Raises OSError where something cannot be read."""
    digest = hashlib.sha256(b"run\0")
    for file in sorted(files):
        digest.update(os.fsencode(file.name) + b"\0" + fingerprint(file).encode())
    return digest.hexdigest()[:_DIGITS]


def _content(file: Path) -> bytes:
    """Digest of the content of one file: of the digests of its stretches, in order."""
    found = file.stat()
    if not stat.S_ISREG(found.st_mode):  # a pipe has no stretches
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").digest()
    digest = hashlib.sha256()
    for stretch in _stretches(file, found.st_size):
        digest.update(stretch)
    return digest.digest()


def _stretches(file: Path, size: int) -> Iterator[bytes]:
    def of(begin: int) -> bytes:
        return _stretch(file, begin)

    begins = range(0, max(size, 1), _STRETCH)
    threads = min(_MOST_THREADS, os.cpu_count() or 1, len(begins))
    if threads == 1:
        yield from map(of, begins)
        return
    with ThreadPoolExecutor(threads) as pool:
        yield from pool.map(of, begins)


def _stretch(file: Path, begin: int) -> bytes:
    digest = hashlib.sha256()
    block = memoryview(bytearray(_BLOCK))
    left = _STRETCH
    with file.open("rb", buffering=0) as stream:
        stream.seek(begin)
        while left and (count := stream.readinto(block[: min(left, _BLOCK)])):
            digest.update(block[:count])
            left -= count
    return digest.digest()
