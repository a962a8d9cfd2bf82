"""What filled each inter-token gap of the GPU, by cause: the small part of a delay ledger that clients' gaps need.

:class:`GapLedger` is the border: whoever knows the causes better builds another one with more columns; every row sums to
its gap. :func:`simple_ledger` derives one from step phases and the group's usual decode step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..numeric.intervals import latest_end_so_far
from .steps import CaptureSteps, Floats, Ints

#: A steps' group needs so many pure decode steps for a baseline.
LEAST_FOR_BASELINE = 5
NEAR = 0.125


@dataclass(frozen=True)
class GapLedger:
    """Causes of the gap that each decode-bearing step closes, ns (integers; each row sums to ``gap_ns``).

    Row i belongs to the i-th decode-bearing step and reaches from the end of the one before it; row 0 reaches from the
    step's own start. ``baseline_ns`` NaN: too few pure decode steps.
    """

    causes: tuple[str, ...]
    gap_ns: Ints
    parts_ns: Ints  # (gaps, causes)
    baseline_ns: Floats

    def __post_init__(self) -> None:
        if self.parts_ns.shape != (len(self.gap_ns), len(self.causes)):
            raise ValueError("a ledger needs one column per cause and one row per gap")
        if not np.array_equal(self.parts_ns.sum(axis=1), self.gap_ns):
            raise ValueError("the causes of a gap must sum to it")


#: ``decode``: the baseline. ``prefill_before``: prefill steps since the last token. ``prefill_in_step``: what a mixed step
#: took beyond the baseline. ``other_steps``: steps of neither phase. ``host``: no step ran (launch and pause together).
#: ``unexplained``: what a pure decode step took beyond (or under) the baseline, or a mixed step without one.
SIMPLE_CAUSES = ("decode", "prefill_before", "prefill_in_step", "other_steps", "host", "unexplained")


def simple_ledger(steps: CaptureSteps) -> GapLedger:
    """The ledger from step phases and the median pure decode step of a like batch."""
    rows = steps.decode_rows
    begin = _visible_start(steps)
    span = steps.end_ns - begin
    usual = baselines(steps)
    known = ~np.isnan(usual)
    own = span[rows]
    mixed = steps.has_prefill[rows]
    baseline = np.where(known, np.nan_to_num(usual), 0.0).round().astype(np.int64)
    decode = np.where(known, np.where(mixed, np.minimum(baseline, own), baseline), 0)
    rest = own - decode
    in_step = np.where(mixed & known, rest, 0)
    unexplained = rest - in_step
    prefill = _between(steps, span * (steps.has_prefill & ~steps.has_decode))
    other = _between(steps, span * (~steps.has_prefill & ~steps.has_decode))
    ends = steps.end_ns[rows]
    gap = np.diff(ends, prepend=ends[0] - own[0] - prefill[0] - other[0]) if len(rows) else ends
    host = gap - own - prefill - other
    parts = np.stack((decode, prefill, in_step, other, host, unexplained), axis=1)
    return GapLedger(SIMPLE_CAUSES, gap, parts, usual)


def _visible_start(steps: CaptureSteps) -> Ints:
    """Each step's start, but not before all earlier ones had ended: an instant counts once."""
    before = latest_end_so_far(steps.end_ns)
    start = steps.start_ns.copy()
    start[1:] = np.minimum(np.maximum(start[1:], before[:-1]), steps.end_ns[1:])
    return start


def _between(steps: CaptureSteps, values: Ints) -> Ints:
    """Sum of ``values`` over the steps strictly between consecutive decode-bearing steps."""
    total = np.cumsum(values)[steps.decode_rows] if len(values) else values
    return np.diff(total, prepend=0)


def baselines(steps: CaptureSteps) -> Floats:
    """Per decode-bearing step: the median pure decode step of a like number of requests, ns (NaN: too few).

    Within 12.5% of the requests, widened until there are five; where the counts are not known, of all.
    """
    rows = steps.decode_rows
    pure = np.flatnonzero(steps.has_decode & ~steps.has_prefill)
    if len(pure) < LEAST_FOR_BASELINE:
        return np.full(len(rows), np.nan)
    span = (steps.end_ns - _visible_start(steps)).astype(np.float64)
    requests = steps.counts["decode_requests"]
    known = pure[~np.isnan(requests[pure])]
    if len(known) < LEAST_FOR_BASELINE:
        return np.full(len(rows), float(np.median(span[pure])))
    order = known[np.argsort(requests[known], kind="stable")]
    sizes, spans = requests[order], span[order]
    batch = np.nan_to_num(requests[rows], nan=float(np.median(sizes)))
    found = {size: _near_median(size, sizes, spans) for size in np.unique(batch).tolist()}
    return np.array([found[size] for size in batch.tolist()], dtype=np.float64)


def _near_median(size: float, sizes: Floats, spans: Floats) -> float:
    share = NEAR
    while True:
        low, high = np.searchsorted(sizes, [size * (1 - share) - 1e-9, size * (1 + share) + 1e-9])
        if high - low >= LEAST_FOR_BASELINE:
            return float(np.median(spans[low:high]))
        share *= 2
