"""The same work on an existing Dask cluster (``--dask ADDRESS``), as Nsight's own recipes run on one.

Workers must see the captures and the output folder under the same paths (a shared file system), and have this package
installed. A worker that dies loses nothing: the scheduler runs its captures again elsewhere, and a row is kept by its
index, so none appears twice. Where the scheduler goes, or no worker is left for a while, the batch ends and says so: what is
finished is kept for ``--resume``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from ...analysis.records.errors import CannotAnswerError, UsageError
from .archive_row import ArchiveRow, refused_row
from .one_capture import Task, analyse_capture

_RETRIES = 3
_POLL_SECONDS = 0.2
_LOOK_SECONDS = 5.0  # between two looks at the workers
_ANSWER_SECONDS = 20.0  # that a scheduler has to answer
_NO_WORKERS_SECONDS = 60.0  # unless Dask's own setting says otherwise


class DaskRunner:
    """Runs tasks on the cluster at ``address``; iterate ``run`` for (index, row) in the order they finish."""

    def __init__(self, address: str) -> None:
        try:
            from distributed import Client
        except ImportError as error:
            raise UsageError("--dask needs the extra: pip install 'trace-analyze[dask]'.") from error
        try:
            _silence()
            self._client = Client(address, timeout=_ANSWER_SECONDS)
        except (OSError, ValueError, TimeoutError) as error:
            raise UsageError(f"--dask: no scheduler answers at {address} ({error}).") from error
        self._address = address
        self._workers_seen = self._looked = time.monotonic()

    def run(self, tasks: Sequence[tuple[int, Task]]) -> Iterator[tuple[int, ArchiveRow]]:
        """Yield one row for every task, exactly once.

        Raises CannotAnswerError where the scheduler is lost, or there are no workers for a while.
        """
        from distributed import as_completed

        try:
            futures = {
                self._client.submit(analyse_capture, _absolute(task), retries=_RETRIES, pure=False): (index, task)
                for index, task in tasks
            }
            done = as_completed(list(futures), with_results=True, raise_errors=False)
            self._workers_seen = time.monotonic()
            while not done.is_empty():
                ready = done.next_batch(block=False)
                if not ready:
                    self._look_at_cluster()
                    time.sleep(_POLL_SECONDS)
                for future, result in ready:
                    index, task = futures[future]
                    if isinstance(result, ArchiveRow):
                        yield index, result
                    elif future.status == "error":
                        yield index, _refused(task, result[1])
                    else:
                        raise self._lost("the connection to the scheduler was lost")
        finally:  # which also tells the scheduler that nobody waits for the rest
            with suppress(Exception):
                self._client.close(timeout=2)

    def _look_at_cluster(self) -> None:
        """Raise CannotAnswerError unless the scheduler answers and has had a worker lately."""
        if self._client.status != "running":
            raise self._lost("the connection to the scheduler was lost")
        now = time.monotonic()
        if now - self._looked < _LOOK_SECONDS:
            return
        self._looked = now
        try:
            workers = self._client.sync(self._client.scheduler.ncores, workers=None, callback_timeout=_ANSWER_SECONDS)
        except Exception as error:  # of many kinds, where the connection ends meanwhile
            raise self._lost("the scheduler does not answer any more") from error
        if workers:
            self._workers_seen = time.monotonic()
        elif now - self._workers_seen > (limit := _no_workers_limit()):
            raise self._lost(f"the scheduler has had no worker for {limit:.0f} s")

    def _lost(self, what: str) -> CannotAnswerError:
        return CannotAnswerError(
            f"--dask {self._address}: {what}. What is finished is kept: see to the cluster, then run the same command "
            "with --resume."
        )


def _refused(task: Task, error: BaseException) -> ArchiveRow:
    return refused_row(task.found.relative, None, "could not look", f"its worker failed {_RETRIES + 1} times: {error}")


def _silence() -> None:
    """Keep Dask from logging the tracebacks of lost connections: we say ourselves what was lost."""
    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] == "distributed":
            logging.getLogger(name).setLevel(logging.CRITICAL)


def _no_workers_limit() -> float:
    """Seconds without any worker after which to give up: Dask's ``distributed.scheduler.no-workers-timeout``, or ours."""
    import dask
    from dask.utils import parse_timedelta

    configured = dask.config.get("distributed.scheduler.no-workers-timeout", None)
    return float(parse_timedelta(configured)) if configured else _NO_WORKERS_SECONDS


def _absolute(task: Task) -> Task:
    files = tuple(file.absolute() for file in task.found.files)
    found = replace(task.found, path=task.found.path.absolute(), files=files)
    cache = task.cache.absolute() if task.cache is not None else None
    return replace(task, found=found, report=task.report.absolute(), cache=cache)
