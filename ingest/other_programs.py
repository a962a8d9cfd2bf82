"""NVIDIA's programs, run on a user's file: names that no program or shell takes for an option, and no program left behind."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

_POLL_SECONDS = 0.5


class Finished(NamedTuple):
    """A program that has ended: its exit code and what it wrote to stdout and stderr."""

    code: int
    output: bytes
    errors: bytes


def run_program(
    program: str, arguments: Sequence[str | Path], *, while_running: Callable[[float], None] | None = None
) -> Finished:
    """Run ``program`` to its end; ``while_running`` is told the seconds gone by, twice a second.

    A Path among the arguments is given as an absolute one: a name that begins with a dash is no option then. Whatever
    ends the wait (an interrupt, a lost terminal) ends the program. Raises OSError where it cannot be run.
    """
    words = [program, *(str(a.absolute()) if isinstance(a, Path) else a for a in arguments)]
    began = time.monotonic()
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=errors) as running:
            try:
                while not _ended(running):
                    if while_running is not None:
                        while_running(time.monotonic() - began)
            except BaseException:
                running.kill()
                raise
        output.seek(0)
        errors.seek(0)
        return Finished(running.returncode, output.read(), errors.read())


def _ended(running: subprocess.Popen[bytes]) -> bool:
    """Whether the program ends within a moment."""
    try:
        running.wait(_POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True


def shell_name(name: str) -> str:
    """A file name as a word of a command to copy: quoted where a shell needs it, and never an option."""
    return shlex.quote(f"./{name}" if name.startswith("-") else name)
