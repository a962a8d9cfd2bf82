"""Entries of a ``--cache`` folder: frames as Parquet and a text, whole or not at all, and checked when they are read.

An entry is a folder whose name says what it was made of; it is written beside and renamed. ``index`` lists each file
with its size and checksum, and begins with a checksum of its own, so that damage of any kind is an entry that is not
there. Nothing in an entry is ever executed: folders may be shared.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import polars as pl

from ...analysis.records.errors import UsageError
from ...analysis.records.inputs_read import input_at

_INDEX = "index"
_TRIES = 8  # at replacing an entry that others replace too
_TAKEN = (errno.ENOTEMPTY, errno.EEXIST, *((errno.EACCES,) if os.name == "nt" else ()))
_PACKAGE = Path(__file__).resolve().parents[2]  # by its real path, whatever links the install goes through
_SOURCES = (".py", ".toml")


class DamagedEntryError(Exception):
    """An entry that is not as it was written; for the caller to make anew, never for the user."""


class _Index(msgspec.Struct):
    files: dict[str, tuple[int, int]]  # name -> (bytes, CRC-32)
    text: str


@dataclass(frozen=True)
class Entry:
    """An entry whose index is sound and whose files have their sizes."""

    folder: Path
    files: Mapping[str, tuple[int, int]]
    text: bytes

    def __contains__(self, name: str) -> bool:
        return name in self.files

    def frame(self, name: str) -> pl.DataFrame:
        """The frame kept as ``name``. Raises DamagedEntryError where it is not what was written, or gone."""
        try:
            content = _file(self.folder, name).read_bytes()
        except OSError as error:
            raise DamagedEntryError(name) from error
        if zlib.crc32(content) != self.files[name][1]:
            raise DamagedEntryError(name)
        try:
            return pl.read_parquet(content)
        except pl.exceptions.PolarsError as error:
            raise DamagedEntryError(name) from error


def read_entry(folder: Path) -> Entry | None:
    """The entry in ``folder``; None where there is none or it is not as it was written."""
    try:
        checksum, _, content = (folder / _INDEX).read_bytes().partition(b"\n")
        if f"{zlib.crc32(content):08x}".encode() != checksum:
            return None
        index = msgspec.json.decode(content, type=_Index)
        if any(_file(folder, name).stat().st_size != size for name, (size, _) in index.files.items()):
            return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return Entry(folder, index.files, index.text.encode())


def write_entry(folder: Path, frames: Mapping[str, pl.DataFrame], text: bytes) -> None:
    """Keep ``frames`` and ``text`` (UTF-8) as the entry ``folder``, in place of one that may be there.

    Where another process has kept the same meanwhile, that is as good. Raises UsageError where it cannot be written.
    """
    if (read := input_at(folder)) is not None:
        raise UsageError(f"--cache: {folder.parent} lies in {read}, which is an input. Choose another folder.")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{folder.name[:40]}.", dir=folder.parent))
    except OSError as error:
        raise UsageError(f"--cache: cannot write {folder.parent}: {error.strerror or error}.") from error
    try:
        files: dict[str, tuple[int, int]] = {}
        for name, frame in frames.items():
            buffer = io.BytesIO()  # polars would hide a full disk
            frame.write_parquet(buffer, compression="lz4", statistics=False)
            content = buffer.getbuffer()
            _file(made, name).write_bytes(content)
            files[name] = (len(content), zlib.crc32(content))
        index = msgspec.json.encode(_Index(files, text.decode()))
        (made / _INDEX).write_bytes(f"{zlib.crc32(index):08x}\n".encode() + index)
        _put(made, folder)
    except OSError as error:
        if read_entry(folder) is None:
            raise UsageError(f"--cache: cannot write {folder}: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _put(made: Path, folder: Path) -> None:
    """Rename ``made`` to ``folder``; what is there is renamed away first, so that no reader meets half of anything.

    Where others keep coming first, theirs stays: it was made of the same.
    """
    old = made.with_name(f"{made.name}.old")
    for _ in range(_TRIES):
        try:
            made.replace(folder)
            return
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
        with suppress(OSError):  # another process was faster
            folder.replace(old)
        shutil.rmtree(old, ignore_errors=True)
    with suppress(OSError):
        made.replace(folder)


def _file(folder: Path, name: str) -> Path:
    return folder / f"{Path(name).name}.parquet"


def tool_digest(*parts: str) -> str:
    """What makes entries of another tool strangers: the content of the sources and tables in these parts of the package.

    Content rather than times, so that installations of one version share entries and a changed checkout does not; and
    the versions of what computes. Takes about a hundredth of a second.
    """
    from ...analysis.records.version import __version__

    versions = (__version__, pl.__version__, np.__version__, sys.version_info[:3])
    digest = hashlib.sha256(repr(versions).encode())
    for part in parts:
        for folder, inner, names in os.walk(_PACKAGE / part):
            inner.sort()
            for name in sorted(names):
                if name.endswith(_SOURCES):
                    file = Path(folder, name)
                    digest.update(f"{file.relative_to(_PACKAGE).as_posix()}\0".encode())
                    digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]
