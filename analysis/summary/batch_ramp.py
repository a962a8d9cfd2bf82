"""The batch at the start of a capture: still growing while requests are admitted, so not yet the steady state."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..records.summary import DecodeRamp
from ..time.group_steps import GroupSteps

RAMP_ENDS_AT = 0.8  # of the steady batch
RAMP_STARTS_BELOW = 0.5  # of the steady batch
MIN_RAMP_STEPS = 3


def decode_ramp(groups: Sequence[GroupSteps]) -> DecodeRamp | None:
    """The longest ramp of any group; None where no batch ramps up.

    The steady batch is the median over the second half of the decode-bearing steps. The ramp is the leading steps before
    80% of it is reached, if there are three or more, the first has at most half of it, and the batch never shrinks on the
    way (requests that finish are no ramp). Unknown batches: None.
    """
    found = [ramp for group in groups if (ramp := _of_group(group)) is not None]
    return max(found, key=lambda ramp: ramp.steps, default=None)


def _of_group(group: GroupSteps) -> DecodeRamp | None:
    bearing = np.flatnonzero(group.is_decode_bearing)
    batch = group.count("decode_requests")[bearing]
    if len(batch) < 2 * MIN_RAMP_STEPS or np.isnan(batch).any():
        return None
    steady = float(np.median(batch[len(batch) // 2 :]))
    steps = int(np.argmax(batch >= RAMP_ENDS_AT * steady))
    if steps < MIN_RAMP_STEPS or batch[0] > RAMP_STARTS_BELOW * steady or (np.diff(batch[: steps + 1]) < 0).any():
        return None
    span_ns = group.end_ns[bearing[steps - 1]] - group.start_ns[bearing[0]]
    return DecodeRamp(
        group=group.group,
        steps=steps,
        ms=float(span_ns) / 1e6,
        from_requests=int(batch[0]),
        to_requests=int(steady),
    )
