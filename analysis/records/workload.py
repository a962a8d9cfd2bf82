"""JSON ``workload``: what kind of run this is and what would move it."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from .record import Record


class StepTechnique(Record, frozen=True, kw_only=True, tag=True):
    """A technique that changes the time of a decode step."""

    technique: str  #: name
    helps: str  #: `yes`, `no` or `depends`
    step_ms_now: float  #: median decode step
    predicted_step_ms: float | None  #: step time then
    shorter_by_pct: float | None  #: by how much that is shorter
    condition: str  #: when it pays
    is_prediction: bool  #: always true
    predicted_step_ms_reason: str | UnsetType = UNSET  #: why it is null
    why: str | UnsetType = UNSET  #: the number behind the answer
    extrapolated: bool | UnsetType = UNSET  #: outside the sizes seen
    intensity_factor: int | UnsetType = UNSET  #: FLOP/byte then over now
    intensity_then: float | UnsetType = UNSET  #: FLOP/byte of the step then
    intensity_now: float | UnsetType = UNSET  #: FLOP/byte of the median decode step


class ChunkTechnique(Record, frozen=True, kw_only=True, tag=True):
    """A smaller prefill chunk: it changes the longest token gap."""

    technique: str  #: name
    helps: str  #: `yes` or `no`
    predicted_gap_max_ms: float  #: longest token gap then
    condition: str  #: when it pays
    why: str  #: the number behind the answer
    extrapolated: bool  #: outside the sizes seen
    is_prediction: bool  #: always true


class PrefixTechnique(Record, frozen=True, kw_only=True, tag=True):
    """Prompts that share their beginnings: prefill that need not be done."""

    technique: str  #: name
    helps: str  #: `depends` or `no`
    saved_ms_per_10_pct_of_prompt_tokens: float  #: for each tenth of the prompt tokens that is not computed again
    condition: str  #: when it pays
    why: str  #: the number behind the answer
    is_prediction: bool  #: always true


Technique = StepTechnique | ChunkTechnique | PrefixTechnique


class Workload(Record, frozen=True, kw_only=True):
    """The run's class by time, tokens and batch, and what each technique would move."""

    by_time: str | None  #: `prefill-heavy`, `decode-heavy` or `balanced`
    by_time_reason: str | UnsetType = UNSET  #: why it is null
    prefill_time_share_pct: float | UnsetType | None = UNSET  #: share behind `by_time`
    by_tokens: str | UnsetType | None = UNSET  #: the same by tokens
    by_tokens_reason: str | UnsetType = UNSET  #: why it is null
    prefill_token_share_pct: float | UnsetType = UNSET  #: share behind `by_tokens`
    decode_batch_p50: float | UnsetType | None = UNSET  #: median decode batch
    ridge_batch: float | UnsetType | None = UNSET  #: tokens at which a GEMM meets the ridge
    batch_regime: str | UnsetType | None = UNSET  #: decode batch against the ridge batch
    bound_by: str | UnsetType | None = UNSET  #: `throughput` or `latency`, with the number
    ridge_batch_reason: str | UnsetType = UNSET  #: why it is null
    techniques: tuple[Technique, ...]  #: what each technique would move
    techniques_reason: str | UnsetType = UNSET  #: why there are none
