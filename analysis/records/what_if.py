"""JSON ``what_if``: predictions from the step times of a capture.

Everything here but ``disaggregation`` is predicted by step times fitted on this capture.
"""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from .record import Number, Record


class StepFit(Record, frozen=True, kw_only=True):
    """The model of a step's time."""

    fixed_ms: float  #: time of an empty step
    per_token_us: float  #: for each row of the GEMMs
    weights_cost_as_many_tokens: float | None  #: tokens up to which a step costs no more than reading the weights
    per_million_attention_pairs_us: float  #: for each million query-key pairs of prefill
    per_1000_kv_tokens_us: float  #: for each thousand cached tokens of decoding requests
    per_decode_request_us: float  #: for each decoding request
    not_used: tuple[str, ...]  #: coefficients that the capture cannot tell
    r2: float  #: share of the variance explained
    outliers: int  #: steps left out
    median_error_pct: dict[str, float]  #: by kind of step
    steps: dict[str, int]  #: steps behind the fit, by kind
    valid_prefill_tokens: tuple[int, int]  #: smallest and largest prefill work of a step seen
    valid_decode_requests: tuple[int, int]  #: smallest and largest decode batch seen


class ChunkPrediction(Record, frozen=True, kw_only=True):
    """Prefill with another chunk size."""

    chunk_tokens: int  #: token budget of a step
    step_ms: float  #: its time
    gap_p99_ms: float | None  #: inter-token gap with it
    gap_max_ms: float  #: longest gap
    prefill_tokens_per_s: float  #: prefill speed
    extrapolated: bool  #: outside the sizes seen


class ItlTarget(Record, frozen=True, kw_only=True):
    """The largest chunk under a token gap that was asked for."""

    target_ms: Number  #: the target
    largest_chunk_tokens: int | None  #: largest chunk whose longest gap stays under it
    largest_chunk_tokens_reason: str | UnsetType = UNSET  #: why it is null
    gap_max_ms: float | UnsetType = UNSET  #: longest gap with that chunk
    prefill_tokens_per_s: float | UnsetType = UNSET  #: prefill speed with it
    extrapolated: bool | UnsetType = UNSET  #: outside the sizes seen


class BatchPrediction(Record, frozen=True, kw_only=True):
    """Decode at another batch."""

    decode_requests: float  #: batch
    step_ms: float  #: step time
    tokens_per_s: float  #: decode speed
    mbu_pct: float | None  #: MBU of that step
    extrapolated: bool  #: outside the batches seen
    mbu_pct_reason: str | UnsetType = UNSET  #: why it is null


class VerifyPrediction(Record, frozen=True, kw_only=True):
    """A decode step that verifies several tokens per request."""

    verify_width: int  #: tokens verified per request
    decode_tokens: float  #: tokens of the step
    step_ms: float  #: its time


class Disaggregation(Record, frozen=True, kw_only=True):
    """Prefill on devices of its own, read off the measured steps."""

    prefill_ms: float | None  #: time of prefill work, mixed steps divided by the baseline
    prefill_ms_reason: str | UnsetType = UNSET  #: why it is null; then the rest is absent
    decode_ms: float | UnsetType = UNSET  #: time of decode work
    prefill_devices_per_decode_device: float | UnsetType = UNSET  #: ratio of the two
    gap_p99_now_ms: float | UnsetType | None = UNSET  #: inter-token gap now
    gap_p99_without_stalls_ms: float | UnsetType | None = UNSET  #: over gaps without a stall
    not_counted: str | UnsetType = UNSET  #: what the figures leave out


class WhatIf(Record, frozen=True, kw_only=True):
    """What would help: other chunks, larger batches, prefill apart from decode."""

    is_prediction: bool  #: always true
    disaggregation: Disaggregation | None  #: prefill on devices of its own, read off the measured steps
    chunk_now_tokens: int | None  #: tokens of the largest step with prefill work
    chunk_now_tokens_reason: str | UnsetType = UNSET  #: why it is null
    chunk_now_step_ms: float | UnsetType = UNSET  #: measured median of steps near that size
    chunk_now_is_padded: bool | UnsetType = UNSET  #: true: that size is what its graph was padded to
    fit: StepFit | None  #: the model of a step's time
    fit_reason: str | UnsetType = UNSET  #: why it is refused
    schedule: str | UnsetType = UNSET  #: `mixed` (prompts run in mixed steps) or `separate`
    prompt_tokens: float | UnsetType = UNSET  #: typical prompt
    chunks: tuple[ChunkPrediction, ...]  #: other chunk sizes
    batches: tuple[BatchPrediction, ...]  #: larger decode batches
    itl_target: ItlTarget | None  #: with `--itl-target`: the largest chunk under it
    verify: tuple[VerifyPrediction, ...] | UnsetType = UNSET  #: speculative verification
