"""Markers around many steps at once: a script's ``decode`` range over a whole generation loop.

Such a range gives a phase and no step boundaries. Only ranges without any count in their text are suspected: an
engine's own step range counts its requests.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from ...records.trace import Trace
from ..kernel_arrays import PHASE, Ints, KernelArrays
from ..launch_links import LinkResult
from .marker_steps import MarkerSteps
from .sequence_steps import find_sequence_steps, view_lane
from .step_boundaries import host_copies, mark_layers

MIN_FULL_PASS_SHARE = (
    0.6  # a pass with at least this share of the model's layers counts as a step (draft passes do not)
)
COUNT_FACTS = ("prefill_requests", "prefill_tokens", "decode_requests", "decode_tokens")


def release_wide_markers(
    trace: Trace, columns: KernelArrays, link: LinkResult, markers: MarkerSteps
) -> tuple[MarkerSteps, Ints]:
    """Markers without those that hold several steps, and per kernel the phase code of such a marker (-1 = none)."""
    span = np.full(columns.count, -1, dtype=np.int8)
    if markers.frame.height == 0:
        return markers, span
    bare = (
        markers.frame.select(pl.all_horizontal(pl.col(name).is_null() for name in COUNT_FACTS)).to_series().to_numpy()
    )
    suspected = (markers.step >= 0) & bare[np.maximum(markers.step, 0)]
    if not suspected.any():
        return markers, span
    wide = np.zeros(markers.frame.height, dtype=bool)
    marks = mark_layers(trace, columns, link)
    copies_from = host_copies(trace)
    for lane in range(len(columns.lane_device)):
        rows = columns.rows_of_lane(lane, suspected)
        if not marks.anchors[rows].any():
            continue
        copies = copies_from(columns.lane_device[lane])
        found = find_sequence_steps(view_lane(columns, rows, link.replay, marks, copies))
        full = found.attention >= MIN_FULL_PASS_SHARE * (found.layers or 1)
        first = np.full(len(found.attention), -1)
        first[found.step[::-1]] = rows[::-1]
        owners = markers.step[first[full & (first >= 0)]]
        wide |= np.bincount(owners, minlength=markers.frame.height) > 1
    if not wide.any():
        return markers, span
    inside = suspected & wide[np.maximum(markers.step, 0)]
    phases = markers.frame["phase"].replace_strict(PHASE, default=-1, return_dtype=pl.Int64).fill_null(-1).to_numpy()
    span[inside] = phases[markers.step[inside]]
    return replace(markers, step=np.where(inside, -1, markers.step)), span
