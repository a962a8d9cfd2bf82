"""The batch at the start of a capture: still growing while requests are admitted, so not yet the steady state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..time.group_steps import GroupSteps

REACHED = 0.8  # of the steady batch: where the ramp ends
STARTS_BELOW = 0.5  # of the steady batch
FEWEST = 3  # steps


def decode_ramp(groups: Sequence[GroupSteps]) -> dict[str, Any] | None:
    """The longest ramp of any group: ``{group, steps, ms, from_requests, to_requests}``; None where no batch ramps up.

    The steady batch is the median over the second half of the decode-bearing steps. The ramp is the leading steps before
    80% of it is reached, if there are three or more, the first has at most half of it, and the batch never shrinks on the
    way (requests that finish are no ramp). Unknown batches: None.
    """
    found = [ramp for group in groups if (ramp := _of_group(group)) is not None]
    return max(found, key=lambda ramp: ramp["steps"], default=None)


def _of_group(group: GroupSteps) -> dict[str, Any] | None:
    bearing = np.flatnonzero(group.is_decode_bearing)
    batch = group.count("decode_requests")[bearing]
    if len(batch) < 2 * FEWEST or np.isnan(batch).any():
        return None
    steady = float(np.median(batch[len(batch) // 2 :]))
    steps = int(np.argmax(batch >= REACHED * steady))
    if steps < FEWEST or batch[0] > STARTS_BELOW * steady or (np.diff(batch[: steps + 1]) < 0).any():
        return None
    span_ns = group.end_ns[bearing[steps - 1]] - group.start_ns[bearing[0]]
    return {
        "group": group.group,
        "steps": steps,
        "ms": float(span_ns) / 1e6,
        "from_requests": int(batch[0]),
        "to_requests": int(steady),
    }
