"""Nsight Compute reports (``.ncu-rep``), through what the user has installed.

The format is NVIDIA's and changes without notice, so nothing here parses it: either the ``ncu_report`` module reads it
(when the user has installed it), or the ``ncu`` program turns it into CSV. ``ncu_report`` takes any file for a report
with nothing in it and reads a truncated one in part without a word, so the magic bytes and the number of launches are
checked here.
"""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl

from ...analysis.records.errors import NotACaptureError
from ...analysis.records.trace import Trace
from ..other_programs import run_program, shell_name
from .csv_tables import HOW_TO_EXPORT, REPORT_MAGIC, csv_tables, decode, launches_of
from .launches_as_trace import trace_of
from .metrics import Launch, frame_of, wanted
from .printed_values import Locale

FORMAT = "ncu_rep"
_KERNEL = 0  # IAction.workload_type() of a single kernel; ranges and graphs have no kernel of their own


def sniff(path: Path, head: bytes) -> bool:
    """Whether the file begins with the magic of an Nsight Compute report."""
    return head.startswith(REPORT_MAGIC)


def read(path: Path, *, progress: Callable[[str], None] | None = None) -> Trace:
    """A Trace of the profiled launches laid end to end. Raises NotACaptureError when nothing here can read reports."""
    launches = launches_of_report(path)
    if progress:
        progress(f"{launches.height:,} profiled launches read")
    return trace_of(path, launches, FORMAT)


def launches_of_report(path: Path) -> pl.DataFrame:
    """One row per profiled kernel launch (``ncu_metrics.SCHEMA``)."""
    with path.open("rb") as file:
        if not file.read(4).startswith(REPORT_MAGIC):
            raise NotACaptureError(f"{path.name} is no Nsight Compute report (it does not begin with NVR).")
    module = _report_module()
    if module is not None:
        return _through_module(module, path)
    program = shutil.which("ncu")
    if program:
        return _through_program(program, path)
    raise NotACaptureError(
        f"{path.name} is an Nsight Compute report, which only NVIDIA's tools can read, and neither `ncu` nor the Python "
        f"module ncu_report is installed here. Where Nsight Compute is installed, run: "
        f"{HOW_TO_EXPORT.replace('FILE.ncu-rep', shell_name(path.name))}  and give kernels.csv."
    )


def _report_module() -> Any | None:
    try:
        return importlib.import_module("ncu_report")
    except ImportError:
        return None


def _through_module(module: Any, path: Path) -> pl.DataFrame:
    launches = list(_actions(module.load_report(str(path))))
    if not launches:
        raise NotACaptureError(
            f"{path.name} holds no profiled kernel: it is cut off, empty, or profiled with range replay. "
            "Profile single kernels (--replay-mode kernel or application)."
        )
    return frame_of(launches, Locale())


def _actions(report: Any) -> Iterator[Launch]:
    number = 0
    for index in range(report.num_ranges()):
        one_range = report.range_by_idx(index)
        for place in range(one_range.num_actions()):
            action = one_range.action_by_idx(place)
            if _workload_type(action) == _KERNEL:
                yield _launch(action, number)
                number += 1


def _workload_type(action: Any) -> int:
    asked = getattr(action, "workload_type", None)  # absent in releases that know kernels only
    return _KERNEL if asked is None else int(asked())


def _launch(action: Any, number: int) -> Launch:
    demangled = getattr(action, "NameBase_DEMANGLED", None)
    launch = Launch(launch_id=number, name=action.name() if demangled is None else action.name(demangled))
    for name in action.metric_names():
        if wanted(name):
            metric = action.metric_by_name(name)
            value = None if metric is None else metric.value()
            if value is not None:
                launch.metrics[name] = (value if isinstance(value, str) else repr(value), metric.unit() or "")
    return launch


def _through_program(program: str, path: Path) -> pl.DataFrame:
    try:
        done = run_program(program, ["--import", path, "--csv", "--page", "raw", "--print-units", "base"])
    except OSError as error:
        raise NotACaptureError(f"{program} could not be run: {error.strerror or error}.") from error
    if done.code != 0:
        words = decode(done.errors or done.output).strip().splitlines()
        raise NotACaptureError(
            f"{program} could not read {path.name} (exit {done.code}): {words[-1] if words else 'no message'}. "
            "A report made by a newer Nsight Compute needs that version."
        )
    return launches_of(csv_tables(decode(done.output)), path.name)
