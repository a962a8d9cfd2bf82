"""How much a placement explains that chance would not, in nats (natural logarithms of likelihood ratios).

Three independent witnesses, each silent where nothing happens, so that a steady rhythm of decode steps proves nothing:

* gaps that are not the usual one: was the client's gap as long as the step's, or is it like any other of its gaps?
* first tokens: does each follow a step that held prompt tokens, where few steps do?
* batch size: does the number of streams that got a token change where the steps' number of requests changes?

A wrong placement *loses* evidence at every landmark it misses, in the log as in the capture.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from .placement import Placement, median_of_groups
from .steps import CaptureSteps, Flags, Floats, Ints

#: Chance that a landmark is not met though the placement is right (a client that reads late, a lost message).
MISSED = 0.05
MOST_MISSED = 0.4
#: Messages nearer than this were read at once.
ONE_READ_NS = 100_000.0
#: A gap this many noise widths off the usual one is a landmark.
LANDMARK = 4.0
NOISE_FLOOR_NS = 20_000.0
ABSENT = -(1 << 40)


@dataclass(frozen=True)
class Evidence:
    """What speaks for a placement.

    ``landmarks``: unusual steps that the log covers, ``met`` how many of them the client saw as such; ``noise_ns``: width of
    client gap less step gap over the steps; ``first_met`` of ``first_seen`` first tokens follow a step with prompt tokens;
    ``overfull`` of ``steps`` that brought tokens brought them to more streams than they had requests.
    """

    gap_nats: float
    first_nats: float
    count_nats: float
    landmarks: int
    met: int
    first_seen: int
    first_met: int
    noise_ns: float
    messages: int
    steps: int
    overfull: int

    @property
    def nats(self) -> float:
        """All of it."""
        return self.gap_nats + self.first_nats + self.count_nats


def with_counts(evidence: Evidence, placement: Placement, steps: CaptureSteps) -> Evidence:
    """The evidence of some of a log's requests, with streams counted over all of them."""
    covered, overfull = _overfull(placement, steps)
    changes = _batch_changes(placement, steps)
    return replace(evidence, count_nats=changes, messages=int(placement.placed.sum()), steps=covered, overfull=overfull)


def weigh(placement: Placement, steps: CaptureSteps) -> Evidence:
    """The evidence of a placement."""
    gap_nats, landmarks, met, noise = _gaps(placement, steps)
    first_nats, seen, found = _first_tokens(placement, steps)
    covered, overfull = _overfull(placement, steps)
    return Evidence(
        gap_nats, first_nats, _batch_changes(placement, steps), landmarks, met, seen, found, noise,
        int(placement.placed.sum()), covered, overfull,
    )  # fmt: skip


def step_medians(placement: Placement, steps: CaptureSteps) -> tuple[Ints, Floats, Floats]:
    """Per step that closes a client's gap: its row, its own gap and the median client gap less it, ns."""
    messages = placement.messages
    same = np.zeros(len(messages.row), dtype=bool)
    same[1:] = (messages.row[1:] == messages.row[:-1]) & placement.placed[1:] & placement.placed[:-1]
    at = np.flatnonzero(same & messages.strict)
    own = steps.end_ns[placement.step[at]] - steps.end_ns[placement.step[at - 1]]
    excess = np.clip(placement.at_ns[at] - placement.at_ns[at - 1] - own, -2e9, 2e9).astype(np.int64)
    count = len(steps.index)
    usual, late = np.full(count, ABSENT, dtype=np.int64), np.full(count, ABSENT, dtype=np.int64)
    median_of_groups(placement.step[at], np.clip(own, 0, 2_000_000_000), usual)
    median_of_groups(placement.step[at], excess, late)
    rows = np.flatnonzero(usual != ABSENT)
    return rows, usual[rows].astype(np.float64), late[rows].astype(np.float64)


def _gaps(placement: Placement, steps: CaptureSteps) -> tuple[float, int, int, float]:
    rows, own, late = step_medians(placement, steps)
    if len(rows) < 3:
        return 0.0, 0, 0, NOISE_FLOOR_NS
    spread = float(np.median(np.abs(late))) / np.log(2)
    noise = float(np.clip(spread, NOISE_FLOOR_NS, 0.5 * steps.typical_gap_ns))
    seen = own + late
    unusual_step = np.abs(own - np.median(own)) > LANDMARK * noise
    unusual_gap = np.abs(seen - np.median(seen)) > LANDMARK * noise
    informative = unusual_step | unusual_gap
    ordered = np.sort(seen)
    like = np.searchsorted(ordered, seen + noise) - np.searchsorted(ordered, seen - noise)
    density = np.maximum(like, 1) / (2 * noise * len(seen))
    fits = np.exp(-np.abs(late) / noise) / (2 * noise)
    missed = _chance_of_missing(placement)
    nats = np.log((1 - missed) * fits / density + missed)
    met = unusual_step & (np.abs(late) < LANDMARK * noise)
    return float(nats[informative].sum()), int(unusual_step.sum()), int(met.sum()), noise


def _chance_of_missing(placement: Placement) -> float:
    """A client that reads several messages at once was late for the first of them, and its gaps are then not the steps'."""
    messages = placement.messages
    same = messages.row[1:] == messages.row[:-1]
    if not same.any():
        return MISSED
    together = float((np.diff(messages.at_ns)[same] < ONE_READ_NS).mean())
    return float(np.clip(MISSED + 3 * together, MISSED, MOST_MISSED))


def _first_tokens(placement: Placement, steps: CaptureSteps) -> tuple[float, int, int]:
    """Requests whose first two tokens lie inside: is there a step with prompt tokens where the first one must be from?"""
    slots = len(steps.decode_rows)
    if slots < 3 or not len(steps.prefill_rows):
        return 0.0, 0, 0
    has_prefill = np.zeros(slots + 1, dtype=bool)
    has_prefill[np.minimum(steps.decodes_up_to[steps.prefill_rows], slots)] = True
    share = float(np.clip(has_prefill.mean(), 0.001, 0.999))
    first = np.flatnonzero(placement.messages.is_first)
    begin = placement.begin[placement.messages.row[first]]
    inside = (begin > 0) & (begin < slots)
    seen = begin[inside]
    if not len(seen):
        return 0.0, 0, 0
    distinct = np.unique(seen)  # several first tokens of one step are one witness
    hit: Flags = has_prefill[distinct]
    hits = int(hit.sum())
    nats = hits * np.log((1 - MISSED) / share) + (len(hit) - hits) * np.log(MISSED / (1 - share))
    return float(nats), len(seen), int(has_prefill[seen].sum())


def _batch_changes(placement: Placement, steps: CaptureSteps) -> float:
    """Steps where the streams that got a token, or the step's requests, change: do both change by the same?"""
    slots = len(steps.decode_rows)
    requests = steps.counts["decode_requests"][steps.decode_rows]
    used = placement.slot[placement.slot >= 0]
    messages = placement.messages
    if (
        slots < 3
        or not len(used)
        or messages.hypothesis != "message"
        or not (messages.complete and messages.strict.all())
    ):
        return 0.0
    got = np.bincount(used, minlength=slots)
    first, last = int(used.min()), int(used.max())
    seen, there = np.diff(got[first : last + 1]), np.diff(requests[first : last + 1])
    known = ~np.isnan(there)
    changes = known & ((seen != 0) | (there != 0))
    if not changes.any():
        return 0.0
    share = float(np.clip(changes.sum() / max(known.sum(), 1), 0.02, 0.98))
    met = seen[changes] == there[changes]
    # An agreeing change is worth the rarity of changes; a disagreeing one costs the chance of a lost or foreign stream.
    return float(np.where(met, -np.log(share), np.log(2 * MISSED)).sum())


def _overfull(placement: Placement, steps: CaptureSteps) -> tuple[int, int]:
    """Decode-bearing steps that brought a message, and those of them that would have served more than their requests."""
    used = placement.slot[(placement.slot >= 0) & placement.messages.strict]
    got = np.bincount(used, minlength=len(steps.decode_rows)) if len(used) else np.zeros(0)
    requests = steps.counts["decode_requests"][steps.decode_rows[: len(got)]]
    return int((got > 0).sum()), int((got > requests).sum())


def beyond_bulk(placement: Placement) -> float:
    """Share of messages that came before the rest of the distribution begins: too early for the step they are laid on."""
    late = placement.residual_ns[placement.placed & placement.messages.strict]
    if not len(late):
        return 0.0
    low, middle = np.quantile(late, [0.25, 0.5])
    return float((late < low - 3 * (middle - low) - 500_000).mean())
