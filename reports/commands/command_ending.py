"""How a command ends: the exit codes of closed pipes, signals and full disks, and streams that take whatever is printed."""

from __future__ import annotations

import codecs
import io
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

_AGAIN_SECONDS = 1.0  # a terminal that closes may send its signal twice; the cleaning up is not to be interrupted

# What a terminal without Unicode shows instead; anything else becomes a question mark.
PLAIN = {
    "≥": ">=",
    "≤": "<=",
    "…": "...",
    "µ": "u",
    "×": "x",
    "–": "-",
    "—": "-",
    "·": "*",
    "→": "->",
    "÷": "/",
    "±": "+-",
}


class StoppedError(BaseException):
    """A signal asked the process to end; like KeyboardInterrupt no handler of errors takes it on the way out."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    @property
    def exit_code(self) -> int:
        """What shells report of a program that a signal ended."""
        return 128 + self.number


@contextmanager
def signals_raise() -> Iterator[None]:
    """Within, SIGINT, SIGTERM and SIGHUP raise StoppedError, so that temporary files are removed on the way out.

    A signal that is ignored (nohup, a job in the background) stays so; outside the main thread nothing is changed.
    """
    last = -_AGAIN_SECONDS

    def stop(number: int, _frame: FrameType | None) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _AGAIN_SECONDS:
            last = now
            raise StoppedError(number)

    before = {}
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number is not None and signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            with suppress(ValueError):  # not the main thread
                before[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def open_closed_streams() -> None:
    """Give stdin, stdout and stderr, where a shell closed them (``>&-``), a place that takes everything.

    Otherwise the next file that is opened would get their number, and what is printed would go into it.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            stream = os.fdopen(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False)
            setattr(sys, name, stream)


def print_anything() -> None:
    """Let stdout take every character, whatever its encoding (LANG=C, an old Windows console, a name in any bytes)."""
    codecs.register_error("trace-analyze-plain", _plain_characters)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="trace-analyze-plain")


def _plain_characters(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(PLAIN.get(each, "?") for each in error.object[error.start : error.end]), error.end


def reader_is_gone() -> bool:
    """Whether whoever read our stdout went away (``head``, ``less``), rather than any other pipe of the process."""
    try:
        number = sys.stdout.fileno()
    except (OSError, ValueError):
        return False
    if not hasattr(select, "poll"):
        return True  # Windows: there is nothing to ask
    poll = select.poll()
    poll.register(number, select.POLLOUT)
    return any(event & (select.POLLERR | select.POLLHUP | select.POLLNVAL) for _, event in poll.poll(0))


def discard_stdout() -> None:
    """Send what is still to be printed nowhere, so that the end of the process does not trip over it."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def say(message: str) -> None:
    """One line on stderr, wherever that leads."""
    with suppress(OSError, ValueError):
        print(f"trace-analyze: {message}", file=sys.stderr, flush=True)
