"""What no delivery and no schedule can explain: the test of a clock that both sides claim to share.

A request's first token needs a step with prompt tokens that begins after the request was sent and ends before the token came;
each later one needs a decode-bearing step more. The earliest chain of such steps is compared with the messages: one that
came before its earliest step is impossible, whatever step really made it.
"""

from __future__ import annotations

import numpy as np

from .messages import Messages
from .placement import Shift
from .steps import CaptureSteps, Floats

TOLERANCE_NS = 100_000.0


def impossible(messages: Messages, sent_ns: Floats, steps: CaptureSteps, shift: Shift) -> tuple[float, int]:
    """Share of the messages that cannot be (of requests sent inside the capture), and how many requests hold such.

    ``sent_ns``: by row of the log, on the clock of ``messages.at_ns``; NaN = not known.
    """
    rows = steps.prefill_rows
    at, sent = shift.apply(messages.at_ns), shift.apply(sent_ns)[messages.row]
    last = float(steps.end_ns[-1])
    testable = (sent >= max(steps.first_ns, int(steps.start_ns[0]) - 1)) & (at <= last)
    if not len(rows) or not testable.any():
        return 0.0, 0
    starts = np.maximum.accumulate(steps.start_ns[rows])
    found = np.searchsorted(starts, sent[testable] - TOLERANCE_NS)
    none = found >= len(rows)
    first = rows[np.minimum(found, len(rows) - 1)]
    place = messages.place[testable]
    slot = steps.decodes_up_to[first] + place - 1
    beyond = (place > 0) & (slot >= len(steps.decode_rows))
    ends = steps.decode_end
    after = ends[np.clip(slot, 0, max(len(ends) - 1, 0))] if len(ends) else np.full(len(slot), last)
    earliest = np.where(place == 0, steps.end_ns[first], after)
    cannot = none | beyond | (at[testable] < earliest - TOLERANCE_NS)
    return float(cannot.mean()), len(np.unique(messages.row[testable][cannot]))
