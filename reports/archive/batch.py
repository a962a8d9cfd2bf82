"""One batch: find, resume, run, write the table and the index, say what happened."""

from __future__ import annotations

import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from msgspec import structs

from ...analysis.gates import parse_gate
from ...analysis.numeric.number_text import plural
from ...analysis.option_files import files_of_options
from ...analysis.records.errors import CannotAnswerError, TraceAnalyzeError, UsageError
from ...analysis.records.inputs_read import remember_inputs
from ...analysis.records.options import Options
from ...ingest.temporary_copies import remove_left_folders
from ..progress import Progress
from ..table_files import check_table, write_table
from ..whole_files import check_target, write_whole
from .archive_row import ANALYSED, COLUMNS, ArchiveRow, runs_frame
from .find_captures import Found, find_captures
from .finished_rows import RowStore
from .local_workers import LocalRunner, estimate
from .one_capture import Task, options_digest, task_key
from .path_labels import LabelPattern
from .runs_in_files import NOT_ONE_RUN, find_runs

_TABLES = ("runs.parquet", "runs.csv")  # in full; without what only other commands read


@dataclass(frozen=True)
class BatchRequest:
    """What ``trace-analyze batch`` was asked for."""

    paths: tuple[Path, ...]
    out: Path
    options: Options
    jobs: int | None = None
    dask: str | None = None
    resume: bool = False
    label: str | None = None
    gates: tuple[str, ...] = ()
    cache: Path | None = None


class Runner(Protocol):
    """Runs tasks somewhere and yields (index, row) as they finish."""

    def run(self, tasks: Sequence[tuple[int, Task]]) -> Iterator[tuple[int, ArchiveRow]]:
        """Yield one row for every task, exactly once."""
        ...


def run_batch(request: BatchRequest, *, quiet: bool = False, color: bool = True) -> int:
    """Analyse an archive; returns the exit code (3 beats 1).

    Raises UsageError for a wrong path, label, gate or file of the options, CannotAnswerError when nothing was found.
    """
    for text in request.gates:
        parse_gate(text)
    labels = LabelPattern(request.label) if request.label else None
    captures = find_captures(request.paths, request.out)
    if not captures:
        raise CannotAnswerError(
            f"no captures below {', '.join(map(str, request.paths))}: looked for .sqlite .db .nsys-rep .json .json.gz "
            ".csv files, folders of nsys export, and for any file that starts like one of them."
        )
    files = files_of_options(request.options)
    for file in files:
        if file.exists() and not (file.is_file() or file.is_dir()):
            raise UsageError(f"{file} is not a regular file: a batch reads it once for every capture. Give it a copy.")
    remember_inputs([*files, *(found.path for found in captures)])
    check_target(request.out / "index.html")  # now, not after hours of work
    for table in _TABLES:
        check_table(request.out / table, list(COLUMNS))
    store = RowStore(request.out)
    store.sweep()
    kept = store.load() if request.resume else {}
    if not request.resume:
        store.clear()
    try:
        rows = _run_all(request, captures, store, kept, quiet=quiet)
        rows = _with_duplicates_named(rows)
        captures, rows = _with_runs(request, captures, rows, store, kept, quiet=quiet)
    finally:  # of workers that had to be killed
        store.sweep()
        remove_left_folders()
    told = [labels.match(found.relative) for found in captures] if labels else []
    _write(request, rows, {name: [each[name] for each in told] for name in (labels.names if labels else ())})
    store.clear()
    if not quiet:
        _say(rows, request.out)
    return batch_exit_code(rows)


def _run_all(
    request: BatchRequest, captures: list[Found], store: RowStore, kept: dict[str, ArchiveRow], *, quiet: bool
) -> list[ArchiveRow]:
    digest = options_digest(request.options, request.gates)
    rows: dict[int, ArchiveRow] = {}
    tasks: list[tuple[int, Task]] = []
    for index, found in enumerate(captures):
        report = request.out / "reports" / found.report_name
        task = Task(found, report, request.options, request.gates, request.cache)
        old = kept.get(task_key(_content(found), task, digest)) if kept else None
        if old is not None and Path(old.report or "").name == found.report_name:
            rows[index] = old
        else:
            tasks.append((index, task))
    started = time.monotonic()
    by_index = dict(tasks)
    with Progress(enabled=not quiet) as progress:
        progress.stage(f"analysing {estimate(0, len(tasks), started)}")
        for index, row in _runner(request).run(tasks) if tasks else ():
            rows[index] = row
            if row.fingerprint and row.state != NOT_ONE_RUN:
                rows[index] = structs.replace(row, key=task_key(row.fingerprint, by_index[index], digest))
                store.keep(rows[index])
            progress.stage(f"analysing {estimate(len(rows) - len(captures) + len(tasks), len(tasks), started)}")
    return [rows[index] for index in range(len(captures))]


def _with_runs(
    request: BatchRequest,
    captures: list[Found],
    rows: list[ArchiveRow],
    store: RowStore,
    kept: dict[str, ArchiveRow],
    *,
    quiet: bool,
) -> tuple[list[Found], list[ArchiveRow]]:
    """Captures and rows, with those of the runs that lie in several of the files, in the order of their names."""
    runs = find_runs(captures, rows)
    if not runs:
        return captures, rows
    of_runs = _run_all(request, runs, store, kept, quiet=quiet)
    of_runs = _with_duplicates_named(of_runs)
    pairs = [*zip(captures, rows, strict=True)]
    pairs += [(f, r) for f, r in zip(runs, of_runs, strict=True) if r.state != NOT_ONE_RUN]
    pairs.sort(key=lambda pair: pair[0].relative)
    return [found for found, _ in pairs], [row for _, row in pairs]


def _content(found: Found) -> str:
    try:
        return found.fingerprint()
    except (OSError, TraceAnalyzeError):
        return ""


def _runner(request: BatchRequest) -> Runner:
    if request.dask is not None:
        from .dask_workers import DaskRunner

        return DaskRunner(request.dask)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return LocalRunner(request.jobs or cores)


def _with_duplicates_named(rows: list[ArchiveRow]) -> list[ArchiveRow]:
    """The rows, those of a file with the same content as an earlier one with that one's name."""
    first: dict[str, str] = {}
    named = []
    for row in rows:
        of = first.setdefault(row.fingerprint, row.file) if row.fingerprint else row.file
        named.append(structs.replace(row, duplicate_of=None if of == row.file else of))
    return named


def _write(request: BatchRequest, rows: list[ArchiveRow], labels: Mapping[str, list[str | None]]) -> None:
    from .index_page import render_index

    frame = runs_frame(rows, labels)
    for table, shown in zip(_TABLES, (frame, frame.drop("profile", "key")), strict=True):
        write_table(shown, request.out / table)
    write_whole(request.out / "index.html", render_index(frame, list(labels)))


def batch_exit_code(rows: list[ArchiveRow]) -> int:
    """3 when any row is not analysed or a gate could not look, else 1 when a gate failed, else 0."""
    if any(row.state not in ANALYSED or row.gate == "could not look" for row in rows):
        return 3
    return 1 if any(row.gate == "failed" for row in rows) else 0


def short_reason(row: ArchiveRow) -> str:
    """Why a row is not analysed, without the file's name and the list of formats, which a list of files need not repeat."""
    reason = re.sub(r" Looked for: .*?\.(?= |$)", "", row.reason or "")
    return reason.removeprefix(f"{Path(row.file).name} ")


def _say(rows: list[ArchiveRow], out: Path) -> None:
    from ..terminal import plain

    states = Counter(row.state for row in rows)
    told = ", ".join(f"{count} {state}" for state, count in states.most_common())
    print(f"{plural(len(rows), 'capture')}: {told}")
    for row in rows:
        if row.state not in ANALYSED:
            print(plain(f"  {row.state}: {row.file}: {short_reason(row)}"))
        elif row.gate in ("failed", "could not look"):
            print(plain(f"  gate {row.gate}: {row.file}: {row.gate_detail}"))
    print(f"Written {out / 'index.html'}, {out / 'runs.csv'}, {out / 'runs.parquet'}")
    sys.stdout.flush()
