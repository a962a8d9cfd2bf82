"""The local runner: one process a capture, a memory guard, and nothing left running.

Workers come from a fork server that has imported the package once, so a worker costs a fork, not an import. A worker
that takes more than its share of memory is stopped; its capture runs again alone, with all of it, at the end.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from ..commands.command_ending import StoppedError, signals_raise
from .archive_row import ArchiveRow, refused_row
from .one_capture import Task

_POLL_SECONDS = 0.2
MAX_SOCKET_PATH_BYTES = 107  # of a Unix socket
SOCKET_NAME_BYTES = 32  # /pymp-12345678/listener-12345678
_ENDING_SECONDS = 3.0  # that workers have to remove what they were writing
_MEMORY_SHARE = 0.85  # of what is available when the batch starts
_SMALLEST_LIMIT = 1 << 30
_PRELOAD = ["trace_analyze.reports.archive.preload", "trace_analyze.reports.archive.one_capture"]


@dataclass
class _Active:
    index: int
    process: Any
    receiver: Connection


@dataclass
class LocalRunner:
    """Runs tasks on ``jobs`` processes; iterate ``run`` for (index, row) in the order they finish."""

    jobs: int
    memory_limit: int | None = None  # bytes for all workers together; None = from what is available
    _active: list[_Active] = field(default_factory=list)

    def run(self, tasks: Sequence[tuple[int, Task]]) -> Iterator[tuple[int, ArchiveRow]]:
        """Yield one row for every task, exactly once; stops every worker when left early."""
        whole = self.memory_limit or max(int(_available_memory() * _MEMORY_SHARE), _SMALLEST_LIMIT)
        share = max(whole // self.jobs, _SMALLEST_LIMIT)
        too_large: list[tuple[int, Task]] = []
        try:
            yield from self._pass(tasks, self.jobs, share, too_large.append if self.jobs > 1 else None)
            yield from self._pass(too_large, 1, whole, None)
        finally:
            self._stop_all()

    def _pass(
        self,
        tasks: Sequence[tuple[int, Task]],
        jobs: int,
        limit: int,
        defer: Callable[[tuple[int, Task]], None] | None,
    ) -> Iterator[tuple[int, ArchiveRow]]:
        by_index = dict(tasks)
        waiting = list(reversed(tasks))
        while waiting or self._active:
            while waiting and len(self._active) < jobs:
                self._start(*waiting.pop())
            ready = wait([a.receiver for a in self._active], timeout=_POLL_SECONDS)
            for active in [a for a in self._active if a.receiver in ready]:
                yield active.index, self._finish(active, by_index[active.index])
            for active in [a for a in self._active if _resident_memory(a.process.pid) > limit]:
                self._kill(active)
                if defer is not None:
                    defer((active.index, by_index[active.index]))
                else:
                    reason = f"needed more than {limit / 2**30:.1f} GiB of memory; analyse a part of it with --window"
                    yield active.index, _refused(by_index[active.index], reason)

    def _start(self, index: int, task: Task) -> None:
        context = worker_context()
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(sender, task), daemon=True)
        process.start()
        sender.close()
        self._active.append(_Active(index, process, receiver))

    def _finish(self, active: _Active, task: Task) -> ArchiveRow:
        try:
            row: ArchiveRow = active.receiver.recv()
        except EOFError:
            active.process.join()
            code = active.process.exitcode or 0
            how = f"was stopped by signal {-code}" if code < 0 else f"ended with exit code {code}"
            row = _refused(task, f"its worker process {how}, which often means too little memory")
        self._remove(active)
        return row

    def _kill(self, active: _Active) -> None:
        active.process.kill()  # what it was writing goes when the batch ends
        self._remove(active)

    def _remove(self, active: _Active) -> None:
        active.process.join()
        active.receiver.close()
        self._active.remove(active)

    def _stop_all(self) -> None:
        for active in self._active:
            active.process.terminate()
        patience = time.monotonic() + _ENDING_SECONDS
        for active in list(self._active):
            active.process.join(max(patience - time.monotonic(), 0))
            self._kill(active)


def worker_context() -> Any:
    """The multiprocessing context of the workers: a fork server where there is one, else spawn."""
    if sys.platform == "win32" or "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    if len(os.fsencode(tempfile.gettempdir())) > MAX_SOCKET_PATH_BYTES - SOCKET_NAME_BYTES:
        return multiprocessing.get_context("spawn")  # the fork server is reached by a socket below the temporary folder
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOAD)
    return context


def _work(sender: Connection, task: Task) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's; it stops its workers itself
    threading.Thread(target=_end_with_the_batch, daemon=True).start()
    from .one_capture import analyse_capture

    with suppress(StoppedError), signals_raise():
        sender.send(analyse_capture(task))
        sender.close()


def _end_with_the_batch() -> None:
    """End this worker once the batch is gone, however it was killed and whatever the worker waits for."""
    batch = multiprocessing.parent_process()
    if batch is None:
        return
    batch.join()
    if hasattr(signal, "pthread_kill"):  # removes what it was writing, unless it cannot
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
        time.sleep(_ENDING_SECONDS)
    os._exit(128 + signal.SIGTERM)


def _refused(task: Task, reason: str) -> ArchiveRow:
    return refused_row(task.found.relative, None, "could not look", reason)


def _resident_memory(pid: int | None) -> int:
    """Resident bytes of a process where the system tells (Linux), else 0."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _available_memory() -> int:
    """Bytes that can be used without swapping, as far as the system tells; 8 GiB elsewhere."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 8 << 30


def estimate(done: int, total: int, started: float) -> str:
    """``12 of 200, about 3 min left``."""
    gone = time.monotonic() - started
    if done == 0:
        return f"0 of {total}"
    left = gone / done * (total - done)
    return (
        f"{done} of {total}, about {left:.0f} s left"
        if left < 120
        else f"{done} of {total}, about {left / 60:.0f} min left"
    )
