"""The files that options name, and everything that shapes an analysis beside the capture and the tool as one text."""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import fields
from pathlib import Path

from ..ingest.cache.fingerprint import fingerprint
from .records.options import Options


def options_digest(options: Options) -> str:
    """A digest of the options as given and of the content of every file they name.

    Raises OSError where a file is there but cannot be read.
    """
    digest = hashlib.sha256()
    for option in fields(options):
        value = getattr(options, option.name)
        digest.update(f"{option.name}={value!r}\0".encode())
        for path in _paths(value):
            if path.exists():
                digest.update(fingerprint(path).encode())
    if options.model is not None:
        from .models.load_model import files_of_model

        for file in files_of_model(options.model):
            # a config that does not say its name is called after its folder
            digest.update(os.fsencode(file.absolute()) + b"\0" + fingerprint(file).encode())
    if options.dmon or options.dcgm:  # logs without a time zone are tried in that of this machine
        digest.update(repr((time.tzname, time.timezone, time.altzone)).encode())
    return digest.hexdigest()[:16]


def files_of_options(options: Options) -> list[Path]:
    """Every file that the options name, a model's config and what lies beside it included."""
    files = [path for option in fields(options) for path in _paths(getattr(options, option.name))]
    if options.model is not None:
        from .models.load_model import files_of_model

        files += files_of_model(options.model)
    return files


def _paths(value: object) -> list[Path]:
    return [each for each in (value if isinstance(value, tuple) else (value,)) if isinstance(each, Path)]
