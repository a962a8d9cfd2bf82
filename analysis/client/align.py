"""One clock for log and capture, by the best road there is, and the test of every road: causality.

1. ``monotonic``: both sides carry CLOCK_MONOTONIC: exact, if client and capture ran on one host.
2. ``wall``: both carry Unix time: exact on one host; between hosts refined by the fit, within ``WALL_APART_NS``.
3. ``step_ids``: the log names the engine's steps and the capture does too.
4. ``fit``: the log's times share a zero nobody states: offset and drift by what is unusual in both.
5. ``shape``: the log has durations only: every request by its own pattern.
6. ``none``: the reason says why.

A stated clock that breaks causality is not used; what is used instead is said. Nothing is shifted silently.

What no road but a shared clock can tell apart: a repetition of the same requests on the same server whose steps happen to fall
alike. Of a hundred such pairs a few fit each other (none where the requests differ).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...ingest.client_logs.records import ClientLog
from .causality import TOLERANCE_NS, impossible
from .evidence import beyond_bulk
from .fit import LEAST_MARGIN, LEAST_NATS, MOST_VIOLATIONS, Fit, Trial, fit, fit_by_first_tokens, on_delivery
from .loose import place_loosely
from .messages import Messages, hypotheses, messages_of
from .placement import Placement, Shift, with_shift
from .shape import place_by_shape
from .step_numbers import place_by_numbers
from .steps import CaptureClock, CaptureSteps, Floats

#: Wall clocks of two hosts are believed to be this near; a log farther off is of another run.
WALL_APART_NS = 10e9
#: Delivery within one host is looked for up to this long.
LONGEST_DELIVERY_NS = 400e6


@dataclass(frozen=True)
class Alignment:
    """How the log's clock became the capture's.

    ``offset_ns``: added to the log's clock at ``middle_ns`` (log's clock) to get the capture's; None where the log has no
    clock (``shape``) or nothing was aligned. ``residual`` of the placement is delivery. ``violations``: share of messages
    before the end of their step and of requests sent after the start of the step with their first token.
    """

    method: str
    placement: Placement | None
    confident: bool
    reason: str
    offset_ns: int | None = None
    drift_ppm: float | None = None
    violations: float | None = None
    nats: float | None = None
    margin: float | None = None
    delivery_known: bool = False  # the constant part of delivery is real, not set by the fit
    trials: tuple[Trial, ...] = ()

    @property
    def aligned(self) -> bool:
        """Whether messages have steps."""
        return self.placement is not None


def align(log: ClientLog, steps: CaptureSteps, clock: CaptureClock, others: Sequence[ClientLog] = ()) -> Alignment:
    """Lay a log on the capture's clock; ``others`` are engine logs that may number the steps."""
    if not len(steps.index):
        return Alignment("none", None, False, "The capture has no whole steps that make tokens.")
    if not log.messages.height:
        return Alignment("none", None, False, log.lacking or "No request of the log brought a token.")
    choices = [messages_of(log, h) for h in hypotheses(log)]
    if log.requests["first_step"].null_count() < log.requests.height:
        numbered = place_by_numbers(log, choices[0], steps, others)
        if numbered is not None:
            return _by_numbers(numbered, log, steps)
    if log.clock == "none":
        return _by_shape(log, choices, steps)
    if clock.zero_of(log.clock) is not None:
        return _by_clock(log, choices, steps, int(clock.zero_of(log.clock) or 0))
    found = _best_fit(choices, steps)
    return _by_fit(found, log, steps, "")


def _best_fit(choices: Sequence[Messages], steps: CaptureSteps, within: tuple[float, float] | None = None, *, drift: bool = True) -> Fit | None:  # fmt: skip
    """The fit of the hypothesis that explains more; by first tokens alone where none holds and messages lack counts."""
    if choices[0].is_first.all():  # nothing but first tokens: no chain can contradict where they are laid
        return fit_by_first_tokens(choices[0], steps, drift=drift, within=within)
    fits = [f for f in (fit(m, steps, drift=drift, within=within) for m in choices) if f is not None]
    good = [f for f in fits if f.good]
    if not good and not choices[0].strict.all():
        loose = fit_by_first_tokens(choices[0], steps, drift=drift, within=within)
        if loose is not None and loose.good:
            return loose
    return max(good or fits, key=lambda f: f.evidence.nats, default=None)


def _by_fit(found: Fit | None, log: ClientLog, steps: CaptureSteps, before: str, method: str = "fit") -> Alignment:
    """The alignment of a fit, or why there is none; ``before`` says what had been tried."""
    if found is None:
        return Alignment("none", None, False, f"{before}Too few requests or steps to be matched.")
    if not found.good:
        return Alignment("none", None, False, f"{before}Not aligned: {found.problem}.", nats=found.evidence.nats, margin=found.margin, trials=found.trials)  # fmt: skip
    placed = on_delivery(found.placement)
    late = violations(placed, log, steps, bulk=found.violations)
    if late > MOST_VIOLATIONS:
        return Alignment("none", None, False, f"{before}Not aligned: {100 * late:.1f}% of the messages and requests break causality at the best offset.", violations=late, trials=found.trials)  # fmt: skip
    said = f"{before}The constant part of delivery cannot be told from the offset: its 1% quantile is put at 0.5 ms.{_besides(found)}"
    return _stated(Alignment(method, placed, True, said, violations=late, nats=found.evidence.nats, margin=found.margin, trials=found.trials))  # fmt: skip


def _besides(found: Fit) -> str:
    """What to say of requests laid in two parts, and of messages laid one by one."""
    if found.loose and found.placement.messages.is_first.all():
        return " The log holds first tokens only."
    if found.loose:
        return " Messages do not say how many tokens they hold: first tokens gave the offset, each message is laid on the latest step it can be from."
    if not found.preempted:
        return ""
    return f" {found.preempted} request{'s were' if found.preempted > 1 else ' was'} preempted and went on later."


def _stated(alignment: Alignment) -> Alignment:
    """With the offset at the middle of the messages inside the capture, and the drift."""
    placement = alignment.placement
    if placement is None or not placement.placed.any():
        return alignment
    inside = placement.messages.at_ns[placement.placed]
    middle = 0.5 * float(inside.min() + inside.max())
    there = float(placement.shift.apply(np.array([middle]))[0]) - middle
    offset = round(there) - placement.messages.zero_ns
    return replace(alignment, offset_ns=offset, drift_ppm=0.0 - placement.shift.slope * 1e6)


def _by_clock(log: ClientLog, choices: Sequence[Messages], steps: CaptureSteps, zero_ns: int) -> Alignment:
    """Both sides carry the clock: the offset is known, only which step made a message is to be found."""
    name = "monotonic clock" if log.clock == "monotonic" else "wall clock"
    exact = float(choices[0].zero_ns - zero_ns)
    first, last = float(choices[0].at_ns.min()) + exact, float(choices[0].at_ns.max()) + exact
    apart = max(steps.first_ns - last, first - steps.last_ns, 0.0)
    if log.clock == "wall" and apart > WALL_APART_NS:
        side = (
            "ends {:.0f} s before the capture begins"
            if last < steps.first_ns
            else "begins {:.0f} s after the capture ends"
        )
        return Alignment("none", None, False, f"By its wall clock the log {side.format(apart / 1e9)}: it is of another run.")  # fmt: skip
    shift = Shift(exact, 0.0, 0.5 * float(choices[0].at_ns.min() + choices[0].at_ns.max()))
    near = _best_fit(choices, steps, (exact - LONGEST_DELIVERY_NS, exact + steps.typical_gap_ns), drift=False)
    if near is not None and near.evidence.nats >= LEAST_NATS and near.margin >= LEAST_MARGIN:
        placed = with_shift(near.placement, steps, shift)
        late = violations(placed, log, steps)
        if late <= MOST_VIOLATIONS:
            return _exact(log, placed, late, near.evidence.nats, _besides(near))
    share, requests = _impossible(log, choices, steps, shift)
    if apart == 0 and (share <= MOST_VIOLATIONS or requests < 2):
        return _unconfirmed(log, choices, steps, shift)
    room = WALL_APART_NS if log.clock == "wall" else None
    found = _best_fit(choices, steps, None if room is None else (exact - room, exact + room))
    why = (
        "the log would lie outside the capture"
        if apart
        else f"{100 * share:.1f}% of the messages would come before any step that can have made them"
    )
    said = f"The log's {name} is not that of the capture's host: by it {why}. "
    aligned = _by_fit(found, log, steps, said, "wall" if log.clock == "wall" else "fit")
    if aligned.offset_ns is None or log.clock != "wall":
        return aligned
    return replace(aligned, reason=f"{aligned.reason} The two wall clocks differ by {(aligned.offset_ns + zero_ns) / 1e6:.1f} ms.")  # fmt: skip


SAME_HOST = "Both sides carry this clock; client and capture must have run on one host."


def _exact(log: ClientLog, placed: Placement, late: float, nats: float, more: str) -> Alignment:
    return _stated(
        Alignment(log.clock, placed, True, SAME_HOST + more, violations=late, nats=nats, delivery_known=True)
    )


def _impossible(log: ClientLog, choices: Sequence[Messages], steps: CaptureSteps, shift: Shift) -> tuple[float, int]:
    """The least that cannot be under any hypothesis, at a shift."""
    zero = choices[0].zero_ns
    sent = log.requests["sent_ns"]
    since = np.where(sent.is_null().to_numpy(), np.nan, (sent.fill_null(zero).to_numpy() - zero).astype(np.float64))
    return min(impossible(messages, since, steps, shift) for messages in choices)


def _unconfirmed(log: ClientLog, choices: Sequence[Messages], steps: CaptureSteps, shift: Shift) -> Alignment:
    """The clock is possible but nothing confirms it: every message on the latest step that it can be from."""
    placed = with_shift(place_loosely(choices[0], steps, shift, earliest_ns=0.0), steps, shift)
    if not placed.placed.any():
        return Alignment("none", None, False, "No request of the log lies inside the capture.")
    said = f"{SAME_HOST} Too little is unusual in the run to confirm it: each message is laid on the latest step that it can be from."
    return _stated(Alignment(log.clock, placed, False, said, violations=violations(placed, log, steps), delivery_known=True))  # fmt: skip


def violations(placement: Placement, log: ClientLog, steps: CaptureSteps, *, bulk: float | None = None) -> float:
    """Share of placed messages that came before their step's end, with requests sent after the step of their first token
    had begun; ``bulk`` replaces the first count where the constant part of delivery is not known.
    """
    placed = placement.placed
    count = int(placed.sum())
    if not count:
        return 0.0
    early = float((placement.residual_ns[placed] < -TOLERANCE_NS).sum()) if bulk is None else bulk * count
    sent = sent_on_capture(placement, log)
    first = np.flatnonzero(placed & placement.messages.is_first)
    late = sent[placement.messages.row[first]] > steps.start_ns[placement.step[first]] + TOLERANCE_NS
    # Requests weigh as much as messages: one prefill in a hundred before its request is as impossible.
    return max(early / count, float(late.mean()) if len(first) else 0.0)


def sent_on_capture(placement: Placement, log: ClientLog) -> Floats:
    """When each request was sent, on the capture's clock, ns (NaN: not known)."""
    sent = log.requests["sent_ns"].cast(float).fill_null(float("nan")).to_numpy()
    exact = log.requests["sent_ns"].fill_null(placement.messages.zero_ns).to_numpy() - placement.messages.zero_ns
    return np.where(np.isnan(sent), np.nan, placement.shift.apply(exact.astype(np.float64)))


def _by_numbers(placement: Placement, log: ClientLog, steps: CaptureSteps) -> Alignment:
    late = violations(placement, log, steps, bulk=0.0)
    if late > MOST_VIOLATIONS:
        return Alignment("none", None, False, f"Not aligned: the log names the engine's steps, but {100 * late:.1f}% of its requests were sent after their prefill by them.", violations=late)  # fmt: skip
    said = "The log names the engine's steps. The constant part of delivery cannot be told from the offset: its 1% quantile is put at 0.5 ms."
    return _stated(Alignment("step_ids", placement, True, said, violations=late))


def _by_shape(log: ClientLog, choices: Sequence[Messages], steps: CaptureSteps) -> Alignment:
    shapes = [place_by_shape(messages, steps) for messages in choices]
    best = max(shapes, key=lambda s: (not s.problem, s.nats))
    said = (
        f"The log has no start times: {best.sure} of {best.tried} requests were placed by the shape of their own gaps."
    )
    if best.problem:
        return Alignment("none", None, False, f"Not aligned: {best.problem}. {said}", nats=best.nats)
    return Alignment("shape", best.placement, True, f"{said} The constant part of delivery is set so that its 1% quantile is 0.5 ms.", violations=beyond_bulk(best.placement), nats=best.nats)  # fmt: skip
