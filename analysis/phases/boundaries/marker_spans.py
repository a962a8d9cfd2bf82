"""Ranges and marks that cover more than a step: phases of a script, graph capture, warm-up.

They give no step boundaries; they say something about every launch call made between their ends on their thread.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from ...numeric.grouping import rows_by_key
from ...numeric.intervals import latest_end_so_far
from ...records.trace import Trace
from ..kernel_arrays import PHASE, Bools, Ints
from ..launch_links import ThreadIntervals, enclosing_interval


@dataclass(frozen=True)
class MarkerSpans:
    """Per kernel: the phase code of the phase span its launch lies in, and whether it lies in a capture span (>= 0)."""

    phase: Ints
    capture: Ints


SPAN = {"thread": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64, "phase": pl.String}


def find_spans(trace: Trace, texts: pl.DataFrame, launch: Ints, wide: Ints) -> MarkerSpans:
    """Spans of ``texts`` (the parsed marker texts) for kernels with the given launch rows.

    ``wide``: per kernel the phase code of a range around several steps, -1 without one.
    """
    marked = span_of_kernels(launch, span_of_launches(trace, phase_spans(trace, texts)))
    return MarkerSpans(
        np.where(wide >= 0, wide, marked),
        span_of_kernels(launch, span_of_launches(trace, capture_spans(trace, texts))),
    )


def phase_spans(trace: Trace, texts: pl.DataFrame) -> pl.DataFrame:
    """Pairs of marks (PrefillStart ... PrefillEnd) as spans; one whose end is missing reaches to the next start."""
    wanted = texts.filter((pl.col("role") == "edge") & pl.col("phase").is_not_null()).select("text_id", "phase", "part")
    if wanted.height == 0 or trace.marks.height == 0:
        return pl.DataFrame(schema=SPAN)
    edges = trace.marks.join(wanted, on="text_id", how="inner").sort("thread", "time_ns")
    following = edges.with_columns(end_ns=pl.col("time_ns").shift(-1).over("thread").fill_null(np.iinfo(np.int64).max))
    starts = following.filter(pl.col("part") == "start").rename({"time_ns": "start_ns"})
    return starts.select(list(SPAN))


def capture_spans(trace: Trace, texts: pl.DataFrame) -> pl.DataFrame:
    """Ranges around graph capture, warm-up and profiling runs."""
    wanted = texts.filter(pl.col("role") == "capture").select("text_id", "phase")
    if wanted.height == 0 or trace.ranges.height == 0:
        return pl.DataFrame(schema=SPAN)
    ranges = trace.ranges.join(wanted, on="text_id", how="inner").filter(pl.col("kind") != "gpu_annotation")
    return ranges.sort("thread", "start_ns").select(list(SPAN))


def span_of_launches(trace: Trace, spans: pl.DataFrame) -> Ints:
    """The phase code of the span around each launch call on its thread, -1 outside every span; nested ones count once."""
    result = np.full(trace.launches.height, -1, dtype=np.int64)
    if spans.height == 0 or trace.launches.height == 0:
        return result
    time, thread = trace.launches["start_ns"].to_numpy(), trace.launches["thread"].to_numpy()
    groups = spans.partition_by("thread", maintain_order=True)
    numbers = np.array([group["thread"][0] for group in groups], dtype=np.int64)
    for group, rows in zip(groups, rows_by_key(thread, numbers), strict=True):
        start, end = group["start_ns"].to_numpy(), latest_end_so_far(group["end_ns"].to_numpy())
        code = group["phase"].replace_strict(PHASE, default=PHASE["other"], return_dtype=pl.Int64).to_numpy()
        place = enclosing_interval(ThreadIntervals(start, end, np.arange(len(start))), time[rows])
        result[rows] = np.where(place >= 0, code[np.maximum(place, 0)], -1)
    return result


def span_of_kernels(launch: Ints, of_launch: Ints) -> Ints:
    """The span code of each kernel's launch, -1 without a launch or span."""
    if len(of_launch) == 0:
        return np.full(len(launch), -1, dtype=np.int64)
    if not (of_launch >= 0).any():
        return np.full(len(launch), -1, dtype=np.int8)
    return np.where(launch >= 0, of_launch[np.maximum(launch, 0)], -1)


def majority(step: Ints, code: Ints, steps: int) -> pl.Series:
    """The span phase that most kernels of each step carry, null where most carry none."""
    names = list(PHASE)
    if not (code >= 0).any():
        return pl.Series("span_phase", [None] * steps, dtype=pl.String)
    frame = pl.DataFrame({"step": step, "code": code}).filter(pl.col("step") >= 0)
    counts = frame.group_by("step", "code").len().sort("len", "code", descending=[True, False])
    first = counts.group_by("step", maintain_order=True).first()
    result: list[str | None] = [None] * steps
    for number, value in first.filter(pl.col("code") >= 0).select("step", "code").iter_rows():
        result[number] = names[value]
    return pl.Series("span_phase", result, dtype=pl.String)


def mostly(step: Ints, flags: Bools, steps: int) -> Bools:
    """Steps of which at least half the kernels are flagged."""
    if not flags.any():
        return np.zeros(steps, dtype=bool)
    inside = step >= 0
    total = np.bincount(step[inside], minlength=steps)
    return np.asarray(np.bincount(step[inside & flags], minlength=steps) * 2 >= np.maximum(total, 1))
