"""What each client's gap consists of: the GPU's gaps between the steps of its two messages, and what delivery added.

Messages that a client read at once (within ``ONE_READ_NS``) are one arrival, never gaps of zero. A gap reaches from the last
message of one arrival to the first of the next. It is the causes of the steps between theirs plus ``after_gpu``: how much later
after its step the second came than the first after its own. So a client that reads ten tokens late at once waited for one
step, and the rest is after the GPU; a message that the engine itself held for ten tokens waited for ten steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..numeric.intervals import latest_end_so_far
from .evidence import ONE_READ_NS
from .ledger import GapLedger
from .placement import Placement
from .steps import CaptureSteps, Flags, Floats, Ints

AFTER_GPU = "after_gpu"


@dataclass(frozen=True)
class ClientGaps:
    """Gaps between arrivals of requests, as columns; ns.

    ``request``: row of the log; ``from_step`` and ``to_step``: rows of the steps that made the last message of one arrival and
    the first of the next; ``gpu_ns``: between the ends of these steps.
    """

    request: Ints
    at_ns: Floats  # end of the gap, capture's clock
    length_ns: Floats
    gpu_ns: Floats
    from_step: Ints
    to_step: Ints

    def only(self, keep: Flags) -> ClientGaps:
        """Some of the gaps."""
        if keep.all():
            return self
        return ClientGaps(self.request[keep], self.at_ns[keep], self.length_ns[keep], self.gpu_ns[keep], self.from_step[keep], self.to_step[keep])  # fmt: skip


def client_gaps(placement: Placement, steps: CaptureSteps) -> ClientGaps:
    """The gaps of all requests whose both ends were made by whole steps of the capture."""
    before, after = arrival_gaps(placement.messages.row, placement.at_ns)
    whole = (placement.step[before] >= 0) & (placement.step[after] >= 0)
    before, after = before[whole], after[whole]
    begin, end, at = placement.step[before], placement.step[after], placement.at_ns[after]
    gpu = (steps.end_ns[end] - steps.end_ns[begin]).astype(np.float64)
    return ClientGaps(placement.messages.row[after], at, at - placement.at_ns[before], gpu, begin, end)


def causes_of(gaps: ClientGaps, rows: Ints, steps: CaptureSteps, ledger: GapLedger) -> tuple[tuple[str, ...], Floats]:
    """Names of the causes, and what each took of some gaps, ns; every row sums to the gap's length."""
    parts = gpu_parts(steps, ledger, gaps.from_step[rows], gaps.to_step[rows])
    return (*ledger.causes, AFTER_GPU), np.column_stack((parts, gaps.length_ns[rows] - gaps.gpu_ns[rows]))


def arrival_gaps(row: Ints, at_ns: Floats) -> tuple[Ints, Ints]:
    """Message before and message after each gap between arrivals of one request (``row``, ordered)."""
    after = np.flatnonzero((row[1:] == row[:-1]) & (np.diff(at_ns) > ONE_READ_NS)) + 1
    return after - 1, after


def gpu_parts(steps: CaptureSteps, ledger: GapLedger, begin: Ints, end: Ints) -> Floats:
    """Causes of the time between the ends of two steps (rows), the second a decode-bearing one; ns, exact.

    Where the first is no decode-bearing step (a prefill step of its own brought the first token), what lies before its end
    is taken out of the gap in which it lies.
    """
    total = np.vstack((np.zeros((1, len(ledger.causes))), np.cumsum(ledger.parts_ns, axis=0)))
    up_to = steps.decodes_up_to
    parts: Floats = (total[up_to[end]] - total[up_to[begin]]).astype(np.float64)
    inside = np.flatnonzero(~steps.has_decode[begin])
    if len(inside):
        parts[inside] -= _before(steps, ledger, begin[inside])
    return parts


def _before(steps: CaptureSteps, ledger: GapLedger, row: Ints) -> Floats:
    """What of its gap had passed when a prefill step ended: prefill and other steps up to it, the rest host."""
    decode = steps.decode_rows
    slot = steps.decodes_up_to[row]  # the gap that this decode-bearing step closes
    opening = np.where(slot > 0, decode[np.maximum(slot - 1, 0)], -1)
    gap_start = np.where(slot < len(decode), steps.end_ns[decode[np.minimum(slot, len(decode) - 1)]] - ledger.gap_ns[np.minimum(slot, len(decode) - 1)], 0)  # fmt: skip
    passed = steps.end_ns[row] - gap_start
    found = np.zeros((len(row), len(ledger.causes)))
    left = passed.astype(np.float64)
    busy_start = np.maximum(steps.start_ns, np.concatenate(([0], latest_end_so_far(steps.end_ns)[:-1])))
    span = np.maximum(steps.end_ns - busy_start, 0)
    for cause, chosen in (("prefill_before", steps.has_prefill & ~steps.has_decode), ("other_steps", ~steps.has_prefill & ~steps.has_decode)):  # fmt: skip
        if cause in ledger.causes:
            sums = np.concatenate(([0], np.cumsum(span * chosen)))
            part = sums[row + 1] - sums[opening + 1]
            found[:, ledger.causes.index(cause)] = part
            left -= part
    rest = "host" if "host" in ledger.causes else ledger.causes[-1]
    found[:, ledger.causes.index(rest)] += left
    return found
