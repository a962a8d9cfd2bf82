"""The step rows in their final order and form, and which kernels count."""

from __future__ import annotations

import numpy as np
import polars as pl

from ..numeric.intervals import latest_end_so_far
from ..records.tables import STEPS
from ..records.trace import Trace
from .boundaries.window import WindowLimits, activity_span
from .kernel_arrays import Bools, Ints, KernelArrays, of_step, rows_by_step


def finish_steps(
    trace: Trace, columns: KernelArrays, steps: pl.DataFrame, step: Ints, bounds: WindowLimits
) -> tuple[pl.DataFrame, Ints]:
    """Steps in their final order with every column of STEPS, and the kernels' step numbers renumbered to match."""
    devices = np.array(columns.lane_device, dtype=np.int64)
    lane = steps["lane"].to_numpy() if steps.height else np.zeros(0, np.int64)
    steps = steps.with_columns(pl.Series("device_index", devices[lane] if len(lane) else [], dtype=pl.Int32))
    steps = steps.sort("group", "index", "device_index", "start_ns").with_row_index("step")
    number = np.full(steps.height + 1, -1, dtype=np.int32)
    number[steps["number"].to_numpy()] = np.arange(steps.height)
    step = number[step]
    ordinal = dict(trace.devices.select("device_index", "device").iter_rows())
    label = trace.texts["text"].gather(steps["m_text_id"].fill_null(0)) if trace.texts.height else None
    low, high = bounds.start_ns, bounds.end_ns
    cut = pl.lit(False)
    if low is not None:
        cut |= pl.col("start_ns") < low
    if high is not None:
        cut |= pl.col("end_ns") > high
    steps = steps.with_columns(
        pl.col("step").cast(pl.Int32),
        pl.col("device_index").replace_strict(ordinal, default=-1, return_dtype=pl.Int32).alias("device"),
        busy_per_step(columns, step, steps),
        (cut | pl.col("cut_short")).alias("partial"),
        pl.when(pl.col("m_text_id").is_not_null()).then(label).otherwise(None).alias("label")
        if label is not None
        else pl.lit(None, dtype=pl.String).alias("label"),
        pl.col("launched").alias("launched_tokens"),
    )
    missing = [pl.lit(None, dtype=dtype).alias(name) for name, dtype in STEPS.items() if name not in steps.columns]
    steps = steps.with_columns(missing)
    return steps.with_columns(pl.col(name).cast(dtype) for name, dtype in STEPS.items()), step


def busy_per_step(columns: KernelArrays, step: Ints, steps: pl.DataFrame) -> pl.Series:
    """Union of the kernels' intervals of each step, ns."""
    rows, begins = rows_by_step(step, steps.height)
    if len(rows) == 0:
        return pl.Series("busy_ns", np.zeros(steps.height, dtype=np.int64))
    number = step[rows].astype(np.int64)
    begin = steps["start_ns"].to_numpy()
    apart = int((steps["end_ns"].to_numpy() - begin).max()) + 1  # one running maximum serves steps set this far apart
    shift = number * apart - begin[number]
    start, end = columns.start[rows] + shift, columns.end[rows] + shift
    reach = np.concatenate([[-1], latest_end_so_far(end)[:-1]])
    covered = np.maximum(end - np.maximum(start, reach), 0)
    return pl.Series("busy_ns", np.add.reduceat(covered, begins[:-1]))


def counted_kernels(
    columns: KernelArrays, steps: pl.DataFrame, step: Ints, bounds: WindowLimits, capture: Ints
) -> Bools:
    """Kernels that count: started inside the user's window, not warm-up, graph capture or weight loading."""
    inside = ~columns.load_time & (capture < 0)
    if bounds.start_ns is not None:
        inside &= columns.start >= bounds.start_ns
    if bounds.end_ns is not None:
        inside &= columns.start < bounds.end_ns
    excluded = of_step(steps["excluded"].to_numpy(), step, False)
    return np.asarray(inside & ~excluded)


def window_span(trace: Trace, columns: KernelArrays, in_window: Bools) -> tuple[int, int]:
    """First start and last end of the counted kernels and whole-graph rows."""
    if in_window.any():
        span = int(columns.start[in_window].min()), int(columns.end[in_window].max())
    else:
        span = activity_span(trace, columns) or (0, 0)
    if trace.graph_launches.height:
        low, high = activity_span(trace, columns) or span
        span = min(span[0], low), max(span[1], high)
    return span
