"""Rules about prefill and mixed steps themselves. Thresholds stand here and in docs/findings.md."""

from __future__ import annotations

import numpy as np
import polars as pl

from ..numeric.number_text import short_duration, short_percent
from ..numeric.row_chunks import stretches
from ..records.advice import Finding, HostBoundPrefill
from ..time.idle_causes import LAUNCH_BOUND, IdleIntervals
from .evidence import Evidence, Rule

MIN_HOST_PCT = 10.0  # of the span of the steps with prefill work
MIN_WINDOW_PCT = 1.0  # of the window


def host_bound_prefill(evidence: Evidence) -> Finding | None:
    """The GPU waits for launch calls inside steps with prefill work, as eager launching of small kernels makes it."""
    time = evidence.found.time
    steps = evidence.found.steps.filter(
        pl.col("phase").cast(pl.String).is_in(["prefill", "mixed"]) & ~pl.col("excluded")
    )
    idle = {d: line.idle for d, line in time.timelines.items() if line.idle is not None}
    if time.opaque_graphs or steps.is_empty() or not idle:
        return None
    waited = sum(
        _late_inside(idle[own["device_index"][0]], own)
        for own in steps.partition_by("device_index")
        if own["device_index"][0] in idle
    )
    span = int((steps["end_ns"] - steps["start_ns"]).sum())
    ms, span_ms = waited / evidence.device_count / 1e6, span / evidence.device_count / 1e6
    if not span or waited < MIN_HOST_PCT / 100 * span or ms < MIN_WINDOW_PCT / 100 * time.window_ns / 1e6:
        return None
    return Finding(
        id="host_bound_prefill",
        sentence=f"The GPU waits for launch calls for {short_duration(ms)} inside steps with prefill work, "
        f"{short_percent(100 * waited / span)} of their time",
        recoverable_ms=ms,
        evidence=HostBoundPrefill(waiting_ms=ms, steps_ms=span_ms, share_of_steps_pct=100 * waited / span),
        lever="launch prefill in piecewise CUDA graphs or larger fused kernels (compilation), or larger chunks",
    )


def _late_inside(idle: IdleIntervals, steps: pl.DataFrame) -> int:
    """ns that one device waited for launch calls within its steps; an idle interval never crosses a kernel."""
    ordered = steps.sort("start_ns")
    starts, ends = ordered["start_ns"].to_numpy(), ordered["end_ns"].to_numpy()
    total = 0
    for some in stretches(len(idle.cause)):
        begin, end = idle.intervals.starts[some], idle.intervals.ends[some]
        step = np.searchsorted(starts, begin, side="right") - 1
        within = (idle.cause[some] == LAUNCH_BOUND) & (step >= 0) & (end <= ends[np.maximum(step, 0)])
        total += int((end - begin)[within].sum())
    return total


RULES: tuple[Rule, ...] = (host_bound_prefill,)
