"""The decode-only baseline: how long a pure decode step takes at about the same batch.

A stall is what a step took beyond this, so the rule must not bend to the answer: the median of at least five pure decode
steps of the same padded size; else of those within 12.5% of the decode requests, widened until there are five; else there
is no baseline, and that is said.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .group_steps import GroupSteps

MIN_DECODE_STEPS = 5
MAX_BATCH_DIFFERENCE_SHARE = 0.125

SAME_SIZE = "same padded size"
WITHIN_DIFFERENCE = "within 12.5% of the decode requests"
WIDENED = "nearest batches, beyond 12.5% of the decode requests"
ANY_BATCH = "all pure decode steps: the batch is unknown"
UNKNOWN_BATCHES = "all pure decode steps: the batch of most of them is unknown"


@dataclass(frozen=True)
class Baseline:
    """Median span of the chosen pure decode steps (``ns`` None: fewer than five), how many, and by which rule."""

    ns: int | None
    n: int
    rule: str


@dataclass(frozen=True)
class DecodeSteps:
    """The pure decode steps of a group, as columns (NaN where unknown)."""

    span_ns: npt.NDArray[np.int64]
    requests: npt.NDArray[np.float64]
    padded: npt.NDArray[np.float64]
    width: npt.NDArray[np.float64]  # tokens per decoding request

    @staticmethod
    def of(steps: GroupSteps) -> DecodeSteps:
        """Take them from a group's usable steps."""
        chosen = steps.is_decode
        return DecodeSteps(
            span_ns=(steps.end_ns - steps.start_ns)[chosen],
            requests=steps.count("decode_requests")[chosen],
            padded=steps.count("padded_tokens")[chosen],
            width=np.maximum(1.0, np.nan_to_num(steps.count("verify_width")[chosen], nan=1.0)),
        )

    def baseline(self, requests: float) -> Baseline:
        """The baseline for a step with this many decoding requests (NaN = unknown)."""
        if len(self.span_ns) < MIN_DECODE_STEPS:
            return Baseline(None, len(self.span_ns), f"only {len(self.span_ns)} pure decode steps")
        if np.isnan(requests):
            return self._median(np.ones(len(self.span_ns), dtype=bool), ANY_BATCH)
        same = self._same_padded_size(requests)
        if same is not None:
            return self._median(same, SAME_SIZE)
        distance = np.abs(self.requests - requests)
        known = ~np.isnan(distance)
        near = known & (distance <= MAX_BATCH_DIFFERENCE_SHARE * requests)
        if near.sum() >= MIN_DECODE_STEPS:
            return self._median(near, WITHIN_DIFFERENCE)
        if known.sum() < MIN_DECODE_STEPS:
            return self._median(np.ones(len(self.span_ns), dtype=bool), UNKNOWN_BATCHES)
        reach = np.sort(distance[known])[MIN_DECODE_STEPS - 1]
        return self._median(known & (distance <= reach), WIDENED)

    def _same_padded_size(self, requests: float) -> npt.NDArray[np.bool_] | None:
        """Steps of the padded size these requests take, if the steps seen show which that is and are at least five."""
        for size in np.unique(self.padded[~np.isnan(self.padded)]):
            of_size = self.padded == size
            seen = self.requests[of_size & ~np.isnan(self.requests)]
            # The size is theirs if smaller batches took it too: between its least batch and its capacity.
            if len(seen) and seen.min() <= requests <= (size / self.width[of_size]).max():
                return of_size if of_size.sum() >= MIN_DECODE_STEPS else None
        return None

    def _median(self, chosen: npt.NDArray[np.bool_], rule: str) -> Baseline:
        return Baseline(int(np.median(self.span_ns[chosen])), int(chosen.sum()), rule)


def baselines(steps: GroupSteps, requests: npt.NDArray[np.float64]) -> list[Baseline]:
    """The baseline for each of ``requests`` (decode requests of steps), computed once per distinct batch."""
    decode = DecodeSteps.of(steps)
    cache: dict[float, Baseline] = {}
    found = []
    for batch in requests.tolist():
        key = -1.0 if np.isnan(batch) else batch
        if key not in cache:
            cache[key] = decode.baseline(batch)
        found.append(cache[key])
    return found
