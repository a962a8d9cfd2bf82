"""The offset and drift at which a log explains most, and whether any other comes near.

Nothing is believed for being the best of many: a fit must explain a good deal (``LEAST_NATS``), clearly more than every
other offset, one step earlier or later among them (``LEAST_MARGIN``), and break causality for no more than 1% of messages.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .drift import trend
from .evidence import Evidence, beyond_bulk, weigh, with_counts
from .loose import fit_loosely, lay_loosely, place_loosely
from .messages import Messages
from .placement import NOWHERE, Placement, Shift, place, place_shifted, with_residual_moved
from .preempted import mended
from .search import candidates, sample
from .steps import CaptureSteps

LEAST_NATS = 25.0
LEAST_MARGIN = 10.0
MOST_VIOLATIONS = 0.01
MOST_FIRST_MISSED = 0.02
MOST_OVERFULL = 0.002
LEAST_LANDMARKS_MET = 0.5
SEARCHED = 20_000
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
    """The best placement of all messages, its evidence and the others; ``problem`` says why it is not to be believed.

    ``preempted``: requests whose chain was laid in two parts. ``loose``: by first tokens only, messages one by one.
    """

    placement: Placement
    preempted: int
    evidence: Evidence
    margin: float
    violations: float
    trials: tuple[Trial, ...]
    problem: str
    loose: bool = False

    @property
    def good(self) -> bool:
        """Whether the fit may be used."""
        return not self.problem


def fit(messages: Messages, steps: CaptureSteps, *, drift: bool = True, within: tuple[float, float] | None = None) -> Fit | None:  # fmt: skip
    """Search offsets (``within`` bounds them, ns at the log's middle); None where the two cannot even be compared.

    The search looks at some of a long log's requests; the placement that comes back holds all messages.
    """
    # Where no message says how many tokens it holds, the hypothesis has to prove itself (speculative decoding does).
    usable = messages.only(messages.strict) if messages.strict.any() else messages.trusted()
    if len(usable.row) < 2 or len(steps.index) < 3:
        return None
    part = sample(usable, SEARCHED)
    first = [_refined(part, steps, shift, rounds=2) for shift in candidates(part, steps, drift=drift, within=within)]
    ranked = _ranked([p for p in first if p.placed.any()], steps)
    if not ranked:
        return None
    close = _ranked([_refined(part, steps, p.shift, rounds=6, drift=drift) for p, _ in ranked[:3]], steps)
    best, evidence = close[0]
    others = [(p, e) for p, e in close[1:] + ranked if _differs(p, best)]
    others += [(p, weigh(p, steps)) for p in (place_shifted(best, steps, by) for by in NEIGHBOURS) if p.placed.any()]
    others.sort(key=lambda pair: -pair[1].nats)
    margin = evidence.nats - max(others[0][1].nats if others else 0.0, 0.0)
    trials = tuple(Trial(p.shift.offset_ns, e.nats) for p, e in [close[0], *others])
    whole = messages if messages.strict.any() else usable
    placed, preempted = mended(place(whole, steps, best.shift), steps)
    placed = lay_loosely(placed, steps)
    evidence = with_counts(evidence, placed, steps)
    violations = beyond_bulk(placed)
    return Fit(
        placed, preempted, evidence, margin, violations, trials, _problem(evidence, margin, violations, preempted)
    )


def fit_by_first_tokens(
    messages: Messages, steps: CaptureSteps, *, drift: bool = True, within: tuple[float, float] | None = None
) -> Fit | None:
    """A fit for logs whose messages do not say how many tokens they hold: by first tokens, messages laid one by one."""
    found = fit_loosely(messages, steps, within, drift=drift)
    if found is None:
        return None
    placed = place_loosely(messages, steps, found.shift)
    evidence = Evidence(0.0, found.nats, 0.0, 0, 0, found.seen, found.met, 0.0, int(placed.placed.sum()), 0, 0)
    trials = tuple(Trial(offset, nats) for offset, nats in found.tried)
    return Fit(placed, 0, evidence, found.margin, 0.0, trials, _problem(evidence, found.margin, 0.0, 0), loose=True)


def _ranked(placements: list[Placement], steps: CaptureSteps) -> list[tuple[Placement, Evidence]]:
    weighed = [(p, weigh(p, steps)) for p in placements]
    return sorted(weighed, key=lambda pair: -pair[1].nats)


def _differs(one: Placement, other: Placement) -> bool:
    """Whether two placements lay the requests on different steps (the same reached twice is no rival)."""
    both = (one.begin != NOWHERE) & (other.begin != NOWHERE)
    if not both.any():
        return True
    return float(np.median(np.abs(one.begin[both] - other.begin[both]))) >= 1


def _refined(messages: Messages, steps: CaptureSteps, shift: Shift, *, rounds: int, drift: bool = False) -> Placement:
    """Centre the residuals (and take their slope out) until the chains stay where they are."""
    placed = place(messages, steps, shift)
    for _ in range(rounds):
        if not placed.placed.any():
            return placed
        again = place(messages, steps, _centred(placed, drift=drift))
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


def _problem(evidence: Evidence, margin: float, violations: float, preempted: int) -> str:
    """Why a fit is not to be believed, '' where it is."""
    other = "the log is of another run, or of another server"
    missed = evidence.first_seen - evidence.first_met
    # A preempted request's first token after its second prefill comes from a step that does not count it as decoding.
    overfull = evidence.overfull - preempted
    doubts = (
        (missed >= 2 and missed > MOST_FIRST_MISSED * evidence.first_seen,
         f"at the best offset {missed} of {evidence.first_seen} first tokens follow no step with prompt tokens: {other}"),
        (evidence.landmarks >= 5 and evidence.met < LEAST_LANDMARKS_MET * evidence.landmarks,
         f"at the best offset the log's long gaps are not where the capture's are: {other}"),
        (overfull >= 2 and overfull > MOST_OVERFULL * evidence.steps,
         f"at the best offset {overfull} of {evidence.steps} steps bring tokens to more streams than they have requests: {other}"),
        (evidence.nats < LEAST_NATS,
         "the steps are too regular, or the overlap too short: nothing in the log tells one offset from the next"),
        (margin < LEAST_MARGIN, "two offsets explain the log about equally well"),
        (violations > MOST_VIOLATIONS,
         f"at the best offset {100 * violations:.1f}% of the messages came before the step that made them had ended"),
    )  # fmt: skip
    return next((said for holds, said in doubts if holds), "")


def on_delivery(placement: Placement) -> Placement:
    """The placement with times such that 1% of its messages came within ``LEAST_DELIVERY_NS`` of their steps' ends."""
    late = placement.residual_ns[placement.placed]
    lowest = float(np.quantile(late, 0.01)) if len(late) else 0.0
    return with_residual_moved(placement, LEAST_DELIVERY_NS - lowest)
