"""The same work on an existing Dask cluster (``--dask ADDRESS``), as Nsight's own recipes run on one.

Workers must see the captures and the output folder under the same paths (a shared file system), and have this package
installed. A worker that dies loses nothing: the scheduler runs its captures again elsewhere, and a row is kept by its
index, so none appears twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from ...analysis.records.errors import UsageError
from .archive_row import refused_row
from .one_capture import Task, analyse_capture

_RETRIES = 3


class DaskRunner:
    """Runs tasks on the cluster at ``address``; iterate ``run`` for (index, row) in the order they finish."""

    def __init__(self, address: str) -> None:
        try:
            from distributed import Client
        except ImportError as error:
            raise UsageError("--dask needs the extra: pip install 'trace-analyze[dask]'.") from error
        try:
            self._client = Client(address, timeout="20s")
        except (OSError, ValueError, TimeoutError) as error:
            raise UsageError(f"--dask: no scheduler answers at {address} ({error}).") from error

    def run(self, tasks: Sequence[tuple[int, Task]]) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield one row for every task, exactly once."""
        from distributed import as_completed

        futures = {
            self._client.submit(analyse_capture, _absolute(task), retries=_RETRIES, pure=False): (index, task)
            for index, task in tasks
        }
        try:
            for future in as_completed(list(futures)):
                index, task = futures[future]
                yield index, self._row(future, task)
        finally:
            self._client.cancel(list(futures))
            self._client.close()

    @staticmethod
    def _row(future: Any, task: Task) -> dict[str, Any]:
        if future.status == "finished":
            row: dict[str, Any] = future.result()
            return row
        reason = f"its worker failed {_RETRIES + 1} times: {future.exception()}"
        return refused_row(task.found.relative, None, "could not look", reason)


def _absolute(task: Task) -> Task:
    files = tuple(file.resolve() for file in task.found.files)
    found = replace(task.found, path=task.found.path.resolve(), files=files)
    cache = task.cache.resolve() if task.cache is not None else None
    return replace(task, found=found, report=task.report.resolve(), cache=cache)
