"""What would help: other chunk sizes, separating prefill from decode, a larger batch. Every figure is a prediction.

The predictions come from the step-time model fitted on this capture (``step_model``) and say outside which range of batches
they extrapolate; where the fit is refused they are null with the reason. Only the separation of the two phases needs no
model: it is read off the measured steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl
from msgspec import UNSET, UnsetType

from ..records.usable_steps import USABLE_STEP
from ..records.what_if import (
    BatchPrediction,
    ChunkPrediction,
    Disaggregation,
    ItlTarget,
    StepFit,
    VerifyPrediction,
    WhatIf,
)
from ..summary.summary_input import SummaryInput
from ..time.decode_baseline import baselines
from ..time.group_steps import GroupSteps, split_groups
from .ridge_batch import mean_bandwidth_gbps, ridge_batch
from .step_model import FEATURES, Floats, StepFacts, StepModel, fit_step_model

CHUNKS = (256, 512, 1024, 2048, 4096, 8192, 16384)
MAX_CHUNK_TOKENS, CHUNK_STEP_TOKENS = 16384, 16
BATCH_FACTORS = (2, 4, 8)
VERIFY_WIDTHS = (2, 4, 8)  # tokens per request in one speculative verify step
NEAR_LARGEST = 0.9  # of the largest step: from here on a step counts as one of its size
MAX_EXTRAPOLATION = 1.25  # how far beyond the sizes seen a prediction still counts as inside the model's range


@dataclass(frozen=True)
class _Scene:
    """The batch around which the what-ifs vary one thing: medians of the capture's steps."""

    model: StepModel
    mixes: bool  # prefill runs inside mixed steps (else in steps of its own)
    decode: Mapping[str, float]  # decode batch beside prefill work: arguments of StepModel.predict
    pure: Mapping[str, float]  # decode batch of pure decode steps
    prompt: float  # typical prompt length, weighted by tokens
    total_prefill_tokens: float
    bubble_ms: float  # between the end of a step and the start of the next
    calm_gaps_ms: Floats  # counted gaps without a stall
    gap_count: int


def what_would_help(found: SummaryInput, *, itl_target_ms: float | None = None) -> WhatIf:
    """JSON ``what_if``: ``fit``, ``chunks[]``, ``itl_target``, ``disaggregation``, ``batches[]``; ms and tokens.

    ``fit`` null with ``fit_reason`` where the model is refused; then ``chunks`` and ``batches`` are empty.
    """
    groups = list(split_groups(found.steps, found.groups)) if found.autoregressive else []
    disaggregation, now = _disaggregation(found, groups), _chunk_now(groups)
    fit = fit_step_model(groups, ridge_batch(found.ceilings, found.model)) if groups else "there are no steps"
    if isinstance(fit, str):
        refused = f"the step-time model is refused: {fit}"
        return WhatIf(
            is_prediction=True,
            disaggregation=disaggregation,
            **vars(now),
            fit=None,
            fit_reason=fit,
            chunks=(),
            itl_target=None if itl_target_ms is None else _no_chunk(itl_target_ms, refused),
            batches=(),
        )
    scene = _scene(found, groups, fit)
    chunks = [_chunk(scene, size) for size in CHUNKS]
    return WhatIf(
        is_prediction=True,
        disaggregation=disaggregation,
        **vars(now),
        fit=_fit_facts(fit),
        schedule="mixed" if scene.mixes else "separate",
        prompt_tokens=scene.prompt,
        chunks=tuple(c for c in chunks if c),
        itl_target=None if itl_target_ms is None else _largest_chunk(scene, itl_target_ms),
        batches=_batches(found, scene),
        verify=tuple(_verify(scene, width) for width in VERIFY_WIDTHS),
    )


def _fit_facts(fit: StepModel) -> StepFit:
    c = fit.coefficients
    return StepFit(
        fixed_ms=c["fixed"],
        per_token_us=c["per_token"] * 1e3,
        weights_cost_as_many_tokens=fit.knee,
        per_million_attention_pairs_us=c["per_attention_pair"] * 1e9,
        per_1000_kv_tokens_us=c["per_kv_token"] * 1e6,
        per_decode_request_us=c["per_request"] * 1e3,
        not_used=tuple(name for name in FEATURES if name not in fit.uses),
        r2=fit.r2,
        outliers=fit.outliers,
        median_error_pct=dict(fit.median_error_pct),
        steps=dict(fit.steps),
        valid_prefill_tokens=fit.prefill_range,
        valid_decode_requests=fit.decode_range,
    )


def _scene(found: SummaryInput, groups: Sequence[GroupSteps], fit: StepModel) -> _Scene:
    facts = StepFacts.of(groups)
    mixed = facts.has_prefill & (facts.decode_requests > 0)
    mixes = bool(mixed.sum() * 2 >= (facts.has_prefill).sum())
    pure = (facts.decode_requests > 0) & ~facts.has_prefill
    gaps = found.stalls.gaps
    counted = gaps.filter("counted")
    calm = counted.filter(pl.col("stall") < 0)
    bubbles = [_bubbles(g) for g in groups]
    bubble = np.concatenate(bubbles) if bubbles else np.zeros(0)
    return _Scene(
        model=fit,
        mixes=mixes,
        decode=_batch(facts, mixed if mixed.any() else pure),
        pure=_batch(facts, pure),
        prompt=_prompt_length(facts),
        total_prefill_tokens=float(np.nansum(facts.prefill_rows)),
        bubble_ms=float(np.median(bubble)) if len(bubble) else 0.0,
        calm_gaps_ms=calm["gap_ms"].to_numpy(),
        gap_count=counted.height,
    )


def _batch(facts: StepFacts, rows: npt.NDArray[np.bool_]) -> dict[str, float]:
    """Median decode batch of the given steps."""
    return {
        "decode_requests": _nanmedian(facts.decode_requests[rows]),
        "decode_tokens": _nanmedian(facts.decode_tokens[rows]),
        "decode_kv": _nanmedian(facts.decode_kv[rows]),
    }


def _nanmedian(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else 0.0


def _bubbles(group: GroupSteps) -> Floats:
    """Time between directly consecutive steps, ms."""
    pause: Floats = np.maximum(0, group.start_ns[1:] - group.end_ns[:-1]) / 1e6
    return pause


def _prompt_length(facts: StepFacts) -> float:
    """Typical prompt, weighted by its tokens.

    A chunk of q tokens that ends at length S adds q S pairs; over the chunks of a prompt of length L the token-weighted
    mean of S is (L + q) / 2, so L = 2 sum(q S) / sum(q) - sum(q q) / sum(q). Without pair counts: the largest step.
    """
    rows = facts.has_prefill & ~np.isnan(facts.prefill_qk) & ~np.isnan(facts.prefill_qq)
    tokens = facts.prefill_tokens[rows].sum()
    if tokens:
        length = (2 * facts.prefill_qk[rows].sum() - facts.prefill_qq[rows].sum()) / tokens
        return float(max(length, 1.0))
    return float(np.nanmax(facts.prefill_rows[facts.has_prefill]))


@dataclass(frozen=True)
class _ChunkNow:
    """Largest number of tokens any step with prefill work ran for (its budget where prompts are long enough).

    ``chunk_now_step_ms`` is the measured median of the steps within 10% of that size; ``chunk_now_is_padded`` says that
    the size is that of a graph.
    """

    chunk_now_tokens: int | None
    chunk_now_tokens_reason: str | UnsetType = UNSET
    chunk_now_step_ms: float | UnsetType = UNSET
    chunk_now_is_padded: bool | UnsetType = UNSET


def _chunk_now(groups: Sequence[GroupSteps]) -> _ChunkNow:
    facts = StepFacts.of(groups)
    tokens = np.where(facts.has_prefill, facts.prefill_rows + facts.decode_tokens, np.nan)
    known = tokens[~np.isnan(tokens)]
    if not len(known):
        return _ChunkNow(None, chunk_now_tokens_reason="token counts are not known")
    near = facts.ms[tokens >= NEAR_LARGEST * known.max()]
    largest = facts.has_prefill & (tokens == known.max())
    return _ChunkNow(
        int(known.max()),
        chunk_now_step_ms=float(np.median(near)),
        chunk_now_is_padded=bool(np.isnan(facts.prefill_tokens[largest]).all()),
    )


def _step_times(scene: _Scene, chunk: float) -> tuple[Floats, float]:
    """Times of the steps that prefill one prompt with this chunk (ms, first chunk to last), and prefill tokens in each."""
    prefill = chunk - scene.decode["decode_tokens"] if scene.mixes else float(chunk)
    if prefill < 1:
        return np.zeros(0), 0.0
    reached = np.minimum(np.arange(1, int(np.ceil(scene.prompt / prefill)) + 1) * prefill, scene.prompt)
    batch = scene.decode if scene.mixes else {}
    return scene.model.predict(prefill_tokens=prefill, prefill_qk=prefill * reached, **batch), prefill


def _gaps_with(scene: _Scene, steps: Floats) -> Floats:
    """Inter-token gaps over one prefill step each: the mixed step itself, or the prefill and the next decode step."""
    if scene.mixes:
        return steps + scene.bubble_ms
    decode = scene.model.predict(**scene.decode)
    return steps + decode + 2 * scene.bubble_ms


def _chunk(scene: _Scene, size: int) -> ChunkPrediction | None:
    steps, prefill = _step_times(scene, size)
    if not len(steps):
        return None
    gaps = _gaps_with(scene, steps)
    stalled = min(float(scene.gap_count), np.ceil(scene.total_prefill_tokens / prefill))
    calm = scene.gap_count - stalled
    return ChunkPrediction(
        chunk_tokens=size,
        step_ms=float(steps.mean()),
        gap_p99_ms=_weighted_p99(gaps, stalled, scene.calm_gaps_ms, calm),
        gap_max_ms=float(gaps.max()),
        prefill_tokens_per_s=float(prefill / steps.mean() * 1e3),
        extrapolated=_outside(prefill, scene.model.prefill_range),
    )


def _outside(value: float, seen: tuple[int, int]) -> bool:
    """Whether a prediction lies beyond the range of sizes that the model was fitted on."""
    low, high = seen
    return not low / MAX_EXTRAPOLATION <= value <= high * MAX_EXTRAPOLATION


def _weighted_p99(one: Floats, one_weight: float, other: Floats, other_weight: float) -> float | None:
    values = np.concatenate([one, other])
    weights = np.concatenate(
        [np.full(len(one), one_weight / max(len(one), 1)), np.full(len(other), other_weight / max(len(other), 1))]
    )
    if not weights.sum():
        return None
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) / weights.sum()
    at = min(int(np.searchsorted(reached, 0.99)), len(values) - 1)
    return float(values[order][at])


def _no_chunk(target_ms: float, reason: str) -> ItlTarget:
    return ItlTarget(target_ms=target_ms, largest_chunk_tokens=None, largest_chunk_tokens_reason=reason)


def _largest_chunk(scene: _Scene, target_ms: float) -> ItlTarget:
    """The largest chunk whose longest gap stays under the target."""
    best = _no_chunk(target_ms, "no chunk keeps gaps under the target: decode steps alone come near it")
    for size in range(CHUNK_STEP_TOKENS, MAX_CHUNK_TOKENS + 1, CHUNK_STEP_TOKENS):
        steps, prefill = _step_times(scene, size)
        if not len(steps):
            continue
        gaps = _gaps_with(scene, steps)
        if gaps.max() > target_ms:
            break
        best = ItlTarget(
            target_ms=target_ms,
            largest_chunk_tokens=size,
            gap_max_ms=float(gaps.max()),
            prefill_tokens_per_s=float(prefill / steps.mean() * 1e3),
            extrapolated=_outside(prefill, scene.model.prefill_range),
        )
    return best


def _disaggregation(found: SummaryInput, groups: Sequence[GroupSteps]) -> Disaggregation | None:
    """What separating prefill from decode would give, read off the measured steps (moving the KV cache not counted)."""
    prefill_ms = decode_ms = 0.0
    for g in groups:
        span = (g.end_ns - g.start_ns) / 1e6
        usual = [b.ns for b in baselines(g, g.count("decode_requests")[g.is_mixed])]
        if any(ns is None for ns in usual):
            reason = "no decode-only baseline divides the mixed steps"
            return Disaggregation(prefill_ms=None, prefill_ms_reason=reason)
        share = np.minimum(span[g.is_mixed], np.array(usual, dtype=np.float64) / 1e6) if usual else np.zeros(0)
        prefill_ms += float(span[g.is_prefill].sum() + (span[g.is_mixed] - share).sum())
        decode_ms += float(span[g.is_decode].sum() + share.sum())
    if not prefill_ms or not decode_ms:
        return None
    counted = found.stalls.gaps.filter("counted")
    calm = counted.filter(pl.col("stall") < 0)["gap_ms"].to_numpy()
    return Disaggregation(
        prefill_ms=prefill_ms,
        decode_ms=decode_ms,
        prefill_devices_per_decode_device=prefill_ms / decode_ms,
        gap_p99_now_ms=float(np.percentile(counted["gap_ms"].to_numpy(), 99)) if counted.height else None,
        gap_p99_without_stalls_ms=float(np.percentile(calm, 99)) if len(calm) else None,
        not_counted="moving the KV cache between devices",
    )


def _batches(found: SummaryInput, scene: _Scene) -> tuple[BatchPrediction, ...]:
    """Decode at larger batches: step time, tokens/s and MBU."""
    if not scene.pure["decode_requests"]:
        return ()
    decode = found.steps.filter((pl.col("phase").cast(pl.String) == "decode") & USABLE_STEP)
    medians = {c: _column_median(decode, c) for c in ("bytes_weights", "bytes_kv", "bytes_activations")}
    bandwidth = mean_bandwidth_gbps(found.ceilings)
    rows = []
    for factor in (1, *BATCH_FACTORS):
        ms = float(scene.model.predict(**{name: value * factor for name, value in scene.pure.items()}))
        moved = None
        if medians["bytes_weights"] is not None and medians["bytes_kv"] is not None:
            moved = medians["bytes_weights"] + factor * (medians["bytes_kv"] + (medians["bytes_activations"] or 0.0))
        requests = scene.pure["decode_requests"] * factor
        mbu = 100 * moved / (ms * 1e-3) / (bandwidth * 1e9) if moved and bandwidth else None
        rows.append(
            BatchPrediction(
                decode_requests=requests,
                step_ms=ms,
                tokens_per_s=scene.pure["decode_tokens"] * factor / (ms + scene.bubble_ms) * 1e3,
                mbu_pct=mbu,
                extrapolated=_outside(requests, scene.model.decode_range),
                mbu_pct_reason="bytes of decode steps or the bandwidth are not known" if mbu is None else UNSET,
            )
        )
    return tuple(rows)


def _verify(scene: _Scene, width: int) -> VerifyPrediction:
    """A decode step that verifies ``width`` tokens per request: more rows, the same requests and KV."""
    tokens = scene.pure["decode_tokens"] * width
    ms = float(scene.model.predict(**{**scene.pure, "decode_tokens": tokens}))
    return VerifyPrediction(verify_width=width, decode_tokens=tokens, step_ms=ms)


def _column_median(frame: pl.DataFrame, column: str) -> float | None:
    values = frame[column].drop_nulls().to_numpy()
    return float(np.median(values)) if len(values) else None
