"""The part of the capture that is analysed: what the user asked for, without warm-up and graph capture."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....ingest.time_units import parse_window
from ...records.errors import CannotAnswerError
from ...records.trace import Trace
from ..kernel_arrays import KernelArrays


@dataclass(frozen=True)
class WindowLimits:
    """What the user's window lets through; a kernel belongs to it when it starts inside."""

    start_ns: int | None
    end_ns: int | None

    @property
    def given(self) -> bool:
        """Whether the user set either side."""
        return self.start_ns is not None or self.end_ns is not None


def read_bounds(window: str | None) -> WindowLimits:
    """Limits of ``--window A:B``; none given, none set. Raises UsageError when it cannot be read."""
    if window is None:
        return WindowLimits(None, None)
    return WindowLimits(*parse_window(window))


def activity_span(trace: Trace, columns: KernelArrays) -> tuple[int, int] | None:
    """First start and last end of kernels and whole-graph rows; None without any."""
    starts, ends = [], []
    if columns.count:
        starts.append(int(columns.start.min()))
        ends.append(int(columns.end.max()))
    if trace.graph_launches.height:
        starts.append(int(trace.graph_launches["start_ns"].to_numpy().min()))
        ends.append(int(trace.graph_launches["end_ns"].to_numpy().max()))
    return (min(starts), max(ends)) if starts else None


def _told(bounds: WindowLimits) -> str:
    """The bounds in words, an open side left out."""
    if bounds.start_ns is None:
        return f"before {(bounds.end_ns or 0) / 1e9:.6f} s"
    if bounds.end_ns is None:
        return f"from {bounds.start_ns / 1e9:.6f} s on"
    return f"between {bounds.start_ns / 1e9:.6f} s and {bounds.end_ns / 1e9:.6f} s"


def check_bounds(bounds: WindowLimits, trace: Trace, columns: KernelArrays) -> None:
    """Raise CannotAnswerError when no GPU work starts inside the bounds, naming the capture's own span.

    So it does for sums, which have no times to cut.
    """
    span = activity_span(trace, columns)
    if span is None or not bounds.given:
        return
    if trace.holds_sums:
        raise CannotAnswerError(
            "--window: this input holds sums by kernel name, without times. Leave --window out, or export the capture: "
            "nsys export --type sqlite -o run.sqlite run.nsys-rep"
        )
    starts = np.concatenate([columns.start, trace.graph_launches["start_ns"].to_numpy()])
    low = bounds.start_ns if bounds.start_ns is not None else span[0]
    high = bounds.end_ns if bounds.end_ns is not None else span[1] + 1
    if not bool(((starts >= low) & (starts < high)).any()):
        raise CannotAnswerError(
            f"--window: no kernel starts {_told(bounds)}; "
            f"the GPU works from {span[0] / 1e9:.6f} s to {span[1] / 1e9:.6f} s of this capture."
        )
