"""The content of a capture as one short text, independent of its name and place."""

from __future__ import annotations

import hashlib
from pathlib import Path

_BLOCK = 1 << 20


def fingerprint(path: Path) -> str:
    """Hash of a file's content, or of every file below a folder (with their relative names).

    Raises OSError where something cannot be read.
    """
    digest = hashlib.blake2b(digest_size=16)
    if path.is_dir():
        for file in sorted(p for p in path.rglob("*") if p.is_file()):
            digest.update(file.relative_to(path).as_posix().encode() + b"\0")
            _add(digest, file)
    else:
        _add(digest, path)
    return digest.hexdigest()


def _add(digest: hashlib.blake2b, file: Path) -> None:
    with file.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
