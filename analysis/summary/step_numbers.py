"""The summary's numbers of steps, token gaps and batches, of all groups or of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from ..records.summary import Spread, StepNumbers
from ..time.group_steps import GroupSteps
from .efficiency import PhaseRatio, decode_mbu_is_lower_bound, phase_ratio
from .stall_numbers import STALL_KEYS, StallNumbers, stall_numbers
from .step_frames import StepFrames
from .summary_input import SummaryInput

NO_GAPS = "no two decode-bearing steps of a group follow each other"
#: Distributions of the summary, and why one has no value.
NOTHING_TO_MEASURE = {
    "decode_step_ms": "there is no decode step",
    "prefill_step_ms": "there is no prefill step",
    "mixed_step_ms": "there is no mixed step",
    "inter_token_gap_ms": NO_GAPS,
}
COUNT_KEYS = ("decode_batch_p50", "decode_batch_min", "decode_batch_max", "prefill_tokens", "decode_tokens")
MIN_KNOWN_SHARE = 0.5  # of the steps: a median of a few known ones would speak for all the others


def spread(values: npt.ArrayLike) -> Spread:
    """How values in ms are distributed (linear interpolation between ranks)."""
    numbers = np.asarray(values, dtype=np.float64)
    if not len(numbers):
        return Spread(n=0, p50=None, p95=None, p99=None, max=None)
    p50, p95, p99 = np.percentile(numbers, [50, 95, 99]).tolist()
    return Spread(n=len(numbers), p50=p50, p95=p95, p99=p99, max=float(numbers.max()))


def step_numbers(
    found: SummaryInput, groups: Sequence[GroupSteps], steps: StepFrames, only: int | None, reasons: dict[str, str]
) -> StepNumbers:
    """Step, gap, ratio and stall numbers of ``groups``, which are all or (``only``) one; no groups: nothing is known.

    ``reasons`` is told why a number is null.
    """
    spreads, counts = _spreads(groups, steps.gaps), _counts(groups)
    decode = prefill = mixed = PhaseRatio()
    if groups:
        reasons |= {key: why for key, why in NOTHING_TO_MEASURE.items() if not spreads[key].n}
        missing = [key for key in COUNT_KEYS if getattr(counts, key) is None]
        reasons |= dict.fromkeys(missing, "token and request counts are not known for every step")
        decode = phase_ratio(found, steps.rated, "decode", reasons)
        prefill = phase_ratio(found, steps.rated, "prefill", reasons)
        mixed = phase_ratio(found, steps.rated, "mixed", reasons)
    stalls = _stalls(found, groups, steps, only, reasons)
    return StepNumbers(
        step_count=steps.whole.height,
        decode_step_ms=spreads["decode_step_ms"],
        prefill_step_ms=spreads["prefill_step_ms"],
        mixed_step_ms=spreads["mixed_step_ms"],
        inter_token_gap_ms=spreads["inter_token_gap_ms"],
        decode_batch_p50=counts.decode_batch_p50,
        decode_batch_min=counts.decode_batch_min,
        decode_batch_max=counts.decode_batch_max,
        prefill_tokens=counts.prefill_tokens,
        decode_tokens=counts.decode_tokens,
        decode_mbu_kernel_pct=decode.kernel_pct,
        decode_mbu_wall_pct=decode.wall_pct,
        decode_mbu_steps=decode.steps,
        prefill_mfu_kernel_pct=prefill.kernel_pct,
        prefill_mfu_wall_pct=prefill.wall_pct,
        prefill_mfu_steps=prefill.steps,
        mixed_mfu_kernel_pct=mixed.kernel_pct,
        mixed_mfu_wall_pct=mixed.wall_pct,
        mixed_mfu_steps=mixed.steps,
        decode_mbu_is_lower_bound=bool(groups) and decode_mbu_is_lower_bound(found, steps.rated, decode),
        stall_count=stalls.count,
        stall_ms=stalls.ms,
        stall_max_ms=stalls.max_ms,
        stall_pct_of_window=stalls.pct_of_window,
        stall_episode_count=stalls.episode_count,
        stall_episode_max_ms=stalls.episode_max_ms,
        request_ms_lost=stalls.request_ms_lost,
        prefill_without_waiters=stalls.prefill_without_waiters,
        stall_ms_is_lower_bound=stalls.ms_is_lower_bound,
    )


def _spreads(groups: Sequence[GroupSteps], gaps: pl.DataFrame) -> dict[str, Spread]:
    return {
        "decode_step_ms": spread(_spans_ms([(g, g.is_decode) for g in groups])),
        "prefill_step_ms": spread(_spans_ms([(g, g.is_prefill) for g in groups])),
        "mixed_step_ms": spread(_spans_ms([(g, g.is_mixed) for g in groups])),
        "inter_token_gap_ms": spread(gaps.filter("counted")["gap_ms"].to_numpy() if gaps.height else []),
    }


def _spans_ms(chosen: Sequence[tuple[GroupSteps, npt.NDArray[np.bool_]]]) -> npt.NDArray[np.float64]:
    """Spans of the chosen steps of each group, ms."""
    parts = [(group.end_ns - group.start_ns)[mask] / 1e6 for group, mask in chosen]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.float64)


@dataclass(frozen=True)
class _Counts:
    """Requests and tokens, None where not known."""

    decode_batch_p50: float | None
    decode_batch_min: int | None
    decode_batch_max: int | None
    prefill_tokens: int | None
    decode_tokens: int | None


def _counts(groups: Sequence[GroupSteps]) -> _Counts:
    if not groups:
        return _Counts(None, None, None, None, None)
    batches = np.concatenate([g.count("decode_requests")[g.is_decode] for g in groups])
    median = _median(batches)
    return _Counts(
        decode_batch_p50=median,
        decode_batch_min=None if median is None else int(np.nanmin(batches)),
        decode_batch_max=None if median is None else int(np.nanmax(batches)),
        prefill_tokens=_total([g.count("prefill_tokens")[g.is_prefill | g.is_mixed] for g in groups]),
        decode_tokens=_total([_decoded(g) for g in groups]),
    )


def _decoded(group: GroupSteps) -> npt.NDArray[np.float64]:
    """Tokens the decoding requests ran (verify width included), NaN where unknown."""
    tokens, requests = group.count("decode_tokens"), group.count("decode_requests")
    return np.where(np.isnan(tokens), requests, tokens)[group.is_decode_bearing]


def _median(values: npt.NDArray[np.float64]) -> float | None:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) >= MIN_KNOWN_SHARE * max(len(values), 1) else None


def _total(parts: list[npt.NDArray[np.float64]]) -> int | None:
    values = np.concatenate(parts)
    return None if np.isnan(values).any() else int(values.sum())


def _stalls(
    found: SummaryInput, groups: Sequence[GroupSteps], steps: StepFrames, only: int | None, reasons: dict[str, str]
) -> StallNumbers:
    if not groups:
        return StallNumbers()
    bearing = steps.whole["phase"].cast(pl.String).is_in(["decode", "mixed"]).any()
    if not steps.gaps.height and (bearing or not sum(len(g.index) for g in groups)):
        # Somebody decoded, but no gap shows what they waited for: that is not the same as no stall.
        reasons |= dict.fromkeys(STALL_KEYS, NO_GAPS)
        return StallNumbers()
    unheld = sum(n for g, n in found.stalls.prefill_without_waiters.items() if only is None or g == only)
    return stall_numbers(steps.stalls, unheld, found.time.window_ns / 1e6, len(groups), reasons)
