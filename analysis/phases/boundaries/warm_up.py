"""Steps that serve nobody: warm-up, profiling runs and graph capture at start-up."""

from __future__ import annotations

import numpy as np
import polars as pl

from ...facts.name_signs import sign_pattern
from ...numeric.grouping import rows_by_key, split_by
from ...records.trace import Trace
from ..kernel_arrays import Bools, Ints, KernelArrays
from ..launch_links import LinkResult

MAX_STEPS_PER_CAPTURE = 4  # warm-up passes an engine runs before each capture, at most
MAX_STEPS_BEFORE_CAPTURE = 10  # passes before the first capture, at most: profiling run and kernel warm-up
MIN_GRAPHS_CAPTURED = 3


def start_up_steps(trace: Trace, columns: KernelArrays, link: LinkResult, step: Ints, steps: pl.DataFrame) -> Bools:
    """Steps launched while the engine captured its graphs at start-up, and the few before.

    Graphs are instantiated one after another with a few passes between, from the largest batch to the smallest, before
    any is replayed. Graphs captured while serving (a new batch size turns up) show replays and grow: not excluded.
    Needs columns tokens, full_graph and the steps in lane and time order.
    """
    excluded = np.zeros(steps.height, dtype=bool)
    calls = trace.api_calls
    if calls.height == 0 or steps.height == 0 or trace.launches.height == 0:
        return excluded
    names = trace.texts.filter(pl.col("text").str.contains(sign_pattern("graph_instantiation")))["text_id"]
    captures = calls.filter(pl.col("text_id").is_in(names.implode())).sort("start_ns")
    launched = first_launch(trace, link, step, steps.height)
    lane_of_step = steps["lane"].to_numpy()
    tokens = steps["tokens"].to_numpy()
    replays = steps["full_graph"].to_numpy()
    captures_of = split_by(captures.select("process", "start_ns"), "process")
    steps_of = rows_by_key(lane_of_step, np.arange(len(columns.lane_process)))
    for process, rows in zip(columns.lane_process, steps_of, strict=True):
        times = captures_of(process)["start_ns"].to_numpy()
        if len(times) < MIN_GRAPHS_CAPTURED:
            continue
        own = rows[launched[rows] >= 0]
        if len(own) == 0:
            continue
        before = np.searchsorted(np.sort(launched[own]), times)  # steps launched before each capture
        apart = np.flatnonzero(np.diff(before) > MAX_STEPS_PER_CAPTURE)
        burst = int(apart[0]) + 1 if len(apart) else len(times)
        if burst < MIN_GRAPHS_CAPTURED or before[0] > MAX_STEPS_BEFORE_CAPTURE:
            continue
        chosen = own[np.argsort(launched[own], kind="stable")][: int(before[burst - 1])]
        sizes = tokens[chosen[max(int(before[0]) - 1, 0) :]]
        sizes = sizes[~np.isnan(sizes)]
        if not replays[chosen].any() and bool(np.all(np.diff(sizes) <= 0)):
            excluded[chosen] = True
    return excluded


def first_launch(trace: Trace, link: LinkResult, step: Ints, steps: int) -> Ints:
    """Time of the first launch call of each step, -1 where none is known."""
    times = np.full(steps, np.iinfo(np.int64).max)
    rows = np.flatnonzero((step >= 0) & (link.launch >= 0))
    np.minimum.at(times, step[rows], trace.launches["start_ns"].to_numpy()[link.launch[rows]])
    return np.where(times == np.iinfo(np.int64).max, -1, times)
