"""The offset and drift at which a log explains most, and whether any other comes near.

Nothing is believed for being the best of many: a fit must explain a good deal (``LEAST_NATS``), clearly more than every
other offset, one step earlier or later among them (``LEAST_MARGIN``), and break causality for no more than 1% of messages.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .evidence import Evidence, beyond_bulk, weigh
from .messages import Messages
from .placement import NOWHERE, Placement, Shift, place, place_shifted, with_begin
from .search import candidates, sample
from .steps import CaptureSteps, Floats

LEAST_NATS = 20.0
LEAST_MARGIN = 8.0
MOST_VIOLATIONS = 0.01
MOST_FIRST_MISSED = 0.02
MOST_OVERFULL = 0.002
LEAST_LANDMARKS_MET = 0.5
SEARCHED = 40_000
#: Where the fit puts the 1% quantile of delivery: its constant part cannot be told from the offset.
LEAST_DELIVERY_NS = 500_000.0
NEIGHBOURS = (-3, -2, -1, 1, 2, 3)


@dataclass(frozen=True)
class Trial:
    """One offset that was tried: ``offset_ns`` as of the best one's clock, and what spoke for it."""

    offset_ns: float
    nats: float


@dataclass(frozen=True)
class Fit:
    """The best placement, its evidence and the others; ``problem`` says why it is not to be believed ('' = it is)."""

    placement: Placement
    evidence: Evidence
    margin: float
    violations: float
    trials: tuple[Trial, ...]
    problem: str

    @property
    def good(self) -> bool:
        """Whether the fit may be used."""
        return not self.problem


def fit(messages: Messages, steps: CaptureSteps, *, drift: bool = True, within: tuple[float, float] | None = None) -> Fit | None:  # fmt: skip
    """Search offsets (``within`` bounds them, ns at the log's middle); None where the two cannot even be compared."""
    usable = messages.only(messages.strict) if messages.strict.any() else messages
    if len(usable.row) < 2 or len(steps.index) < 3:
        return None
    part = sample(usable, SEARCHED)
    first = [_refined(part, steps, shift, drift=False) for shift in candidates(part, steps, drift=drift, within=within)]
    ranked = _ranked([p for p in first if p.placed.any()], steps)
    if not ranked:
        return None
    close = _ranked([_refined(part, steps, p.shift, drift=drift) for p, _ in ranked[:3]], steps)
    best = _ranked([_refined(usable, steps, close[0][0].shift, drift=drift)], steps)[0]
    others = [(p, e) for p, e in close[1:] + ranked if _differs(p, close[0][0], steps)]
    near = [place_shifted(close[0][0], steps, by) for by in NEIGHBOURS]
    others += [(p, weigh(p, steps)) for p in near if p.placed.any()]
    second = max((e.nats for _, e in others), default=0.0)
    margin = close[0][1].nats - max(second, 0.0)
    trials = tuple(Trial(p.shift.offset_ns, e.nats) for p, e in [close[0], *sorted(others, key=lambda o: -o[1].nats)])
    violations = beyond_bulk(best[0])
    return Fit(*best, margin, violations, trials, _problem(best[1], margin, violations))


def _ranked(placements: list[Placement], steps: CaptureSteps) -> list[tuple[Placement, Evidence]]:
    weighed = [(p, weigh(p, steps)) for p in placements]
    return sorted(weighed, key=lambda pair: -pair[1].nats)


def _differs(one: Placement, other: Placement, steps: CaptureSteps) -> bool:
    """Whether two placements lay the requests on different steps (the same reached twice is no rival)."""
    both = (one.begin != NOWHERE) & (other.begin != NOWHERE)
    if not both.any():
        return True
    return float(np.median(np.abs(one.begin[both] - other.begin[both]))) >= 1


def _refined(messages: Messages, steps: CaptureSteps, shift: Shift, *, drift: bool) -> Placement:
    """Centre the residuals (and take their slope out) until the chains stay where they are."""
    placed = place(messages, steps, shift)
    for _ in range(6 if drift else 3):
        if not placed.placed.any():
            return placed
        moved = _centred(placed, drift=drift)
        again = place(messages, steps, moved)
        settled = np.array_equal(again.begin, placed.begin)
        placed = again
        if settled:
            break
    return placed


def _centred(placement: Placement, *, drift: bool) -> Shift:
    late = placement.residual_ns[placement.placed]
    if not drift:
        return placement.shift.moved(-float(np.median(late)))
    at = placement.messages.at_ns[placement.placed] - placement.shift.middle_ns
    slope, level = trend(at, late)
    return placement.shift.moved(-level, -slope)


def trend(at: Floats, late: Floats) -> tuple[float, float]:
    """Slope and level at 0 of residuals over time: a line through medians of up to 60 stretches, outliers left out."""
    count = int(np.clip(len(at) // 30, 1, 60))
    middle = float(np.median(late))
    if count < 4:
        return 0.0, middle
    order = np.argsort(at, kind="stable")
    parts = np.array_split(order, count)
    x = np.array([at[p].mean() for p in parts])
    y = np.array([np.median(late[p]) for p in parts])
    i, j = np.triu_indices(count, 1)
    apart = x[j] - x[i]
    slope = float(np.median((y[j] - y[i])[apart > 0] / apart[apart > 0])) if (apart > 0).any() else 0.0
    return slope, float(np.median(late - slope * at))


def _problem(evidence: Evidence, margin: float, violations: float) -> str:
    """Why a fit is not to be believed, '' where it is."""
    other = "the log is of another run, or of another server"
    missed = evidence.first_seen - evidence.first_met
    if missed >= 2 and missed > MOST_FIRST_MISSED * evidence.first_seen:
        return f"at the best offset {missed} of {evidence.first_seen} first tokens follow no step with prompt tokens: {other}"
    if evidence.landmarks >= 5 and evidence.met < LEAST_LANDMARKS_MET * evidence.landmarks:
        return f"at the best offset the log's long gaps are not where the capture's are: {other}"
    if evidence.overfull >= 2 and evidence.overfull > MOST_OVERFULL * evidence.steps:
        return f"at the best offset {evidence.overfull} of {evidence.steps} steps bring tokens to more streams than they have requests: {other}"
    if evidence.nats < LEAST_NATS:
        return "the steps are too regular, or the overlap too short: nothing in the log tells one offset from the next"
    if margin < LEAST_MARGIN:
        return "two offsets explain the log about equally well"
    if violations > MOST_VIOLATIONS:
        return (
            f"at the best offset {100 * violations:.1f}% of the messages came before the step that made them had ended"
        )
    return ""


def on_delivery(placement: Placement, steps: CaptureSteps) -> Placement:
    """The placement with times such that 1% of its messages came within ``LEAST_DELIVERY_NS`` of their steps' ends."""
    late = placement.residual_ns[placement.placed]
    lowest = float(np.quantile(late, 0.01)) if len(late) else 0.0
    return with_begin(placement, steps, placement.begin, placement.shift.moved(LEAST_DELIVERY_NS - lowest))
