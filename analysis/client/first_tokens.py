"""What each time to first token consists of: queue, the request's own prefill, steps of others in between, delivery.

``queue``: from sending to the start of the first step with the request's prompt tokens. ``own_prefill``: the whole steps
that hold them. ``others``: steps and host between those. ``after_gpu``: from the end of the step that made the first token.

Which steps hold a prompt is known exactly where markers or an engine's log say so; here it is found from prompt lengths: the
step of the first token is known from the alignment, and the prompt fills the prompt tokens of the steps before it backwards,
as those finished later leave them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...ingest.client_logs.records import ClientLog
from .align import sent_on_capture
from .placement import Placement
from .steps import CaptureSteps, Flags, Floats, Ints

CAUSES = ("queue", "own_prefill", "others", "after_gpu")


@dataclass(frozen=True)
class FirstTokens:
    """Times to first token of the requests that have a step for it, as columns; ns.

    ``first_step``: row of the first step with prompt tokens of the request, ``last_step`` the one that made its token.
    ``certain``: the prompt length was found in the steps' prompt tokens to the token. Without a start time ``queue`` holds
    all that lies before the first step.
    """

    request: Ints
    at_ns: Floats
    length_ns: Floats
    first_step: Ints
    last_step: Ints
    certain: Flags
    parts_ns: Floats  # (requests, CAUSES)

    def only(self, keep: Flags) -> FirstTokens:
        """Some of them."""
        return FirstTokens(
            self.request[keep], self.at_ns[keep], self.length_ns[keep], self.first_step[keep], self.last_step[keep], self.certain[keep],
            self.parts_ns[keep],
        )  # fmt: skip


def first_tokens(placement: Placement, log: ClientLog, steps: CaptureSteps) -> FirstTokens:
    """All first tokens that were made by a step of the capture for a request sent inside it."""
    first = np.flatnonzero(placement.placed & placement.messages.is_first)
    row, at = placement.messages.row[first], placement.at_ns[first]
    sent = sent_on_capture(placement, log)[row]
    after = _after_sending(placement, log)[row]
    sent = np.where(np.isnan(sent), at - after, sent)
    inside = (sent >= steps.first_ns) | (steps.start_ns[placement.step[first]] > sent)
    inside &= sent >= steps.first_ns - 1
    row, at, sent, last = row[inside], at[inside], sent[inside], placement.step[first][inside]
    begin, own, certain = own_steps(last, row, log, steps, sent)
    queue = steps.start_ns[begin] - sent
    between = (steps.end_ns[last] - steps.start_ns[begin]) - own
    parts = np.column_stack((queue, own, between, at - steps.end_ns[last]))
    return FirstTokens(row, at, at - sent, begin, last, certain, parts)


def _after_sending(placement: Placement, log: ClientLog) -> Floats:
    """Time to first token of each request as the log has it, ns."""
    counts = log.requests["message_count"].fill_null(0).to_numpy()
    first = log.requests["first_message"].fill_null(0).to_numpy()
    after = log.messages["after_ns"].to_numpy().astype(np.float64)
    safe = np.minimum(first, max(len(after) - 1, 0))
    return np.where(counts > 0, after[safe], np.nan)


def own_steps(last: Ints, row: Ints, log: ClientLog, steps: CaptureSteps, sent: Floats) -> tuple[Ints, Ints, Flags]:
    """Per request: row of its first prefill step, total span of the steps that hold its prompt (ns), and certainty."""
    prompt = log.requests["prompt_tokens"].cast(float).fill_null(float("nan")).to_numpy()[row]
    cached = log.requests["cached_tokens"].cast(float).fill_null(0.0).to_numpy()[row]
    left = steps.counts["prefill_tokens"].copy()
    span = steps.span_ns
    prefill = np.flatnonzero(steps.has_prefill)
    begin, own = last.copy(), span[last].copy()
    certain = np.zeros(len(row), dtype=bool)
    # Those finished last leave the earlier steps to those before them; of one step, those sent last.
    for k in np.lexsort((sent, last))[::-1].tolist():
        need = prompt[k] - cached[k]
        at = int(np.searchsorted(prefill, last[k]))
        if np.isnan(need) or at >= len(prefill) or np.isnan(left[last[k]]):
            continue
        held = 0
        while at >= 0:
            step = int(prefill[at])
            if np.isnan(left[step]) or steps.start_ns[step] < sent[k] or (left[step] < 0.5 and step != last[k]):
                break
            taken = min(left[step], need)
            left[step] -= taken
            need -= taken
            held += int(span[step])
            begin[k], own[k] = step, held
            if need < 0.5:
                certain[k] = True
                break
            at -= 1
    return begin, own, certain
