"""What kind of run this is, and where each well-known technique would move it on its own roofline.

The class comes first because it decides what helps: a decode step below the ridge batch waits for weights to be read, so
fewer bytes or more requests per read help and more FLOP/s do not. Each technique is a movement (bytes, FLOPs, tokens per
step) with the predicted step time, its condition and what it hangs on; what does not help here is said too, with its number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl
from msgspec import UNSET, UnsetType, structs

from ..numeric.number_text import short_duration, short_number, short_percent
from ..records.tables import OP_CLASSES
from ..records.usable_steps import USABLE_STEP
from ..records.what_if import Disaggregation, WhatIf
from ..records.workload import ChunkTechnique, PrefixTechnique, StepTechnique, Technique, Workload
from ..summary.summary_input import SummaryInput
from .ridge_batch import bytes_per_weight, ridge_batch

MIN_HEAVY_PCT = 60.0  # beyond this share of time or tokens a run is heavy in a phase, else balanced
MAX_LATENCY_BUSY_PCT = 70.0  # a decode gap that is busy less than this waits for something else than the GPU
MAX_LATENCY_MBU_PCT = 30.0
MIN_SAVING_PCT = 3.0  # a technique that shortens the step by less does not help here
FOUR_BIT_RATIOS = (3.5, 3.9)  # bytes of 16-bit weights over 4-bit ones with group scales
MIN_WEIGHT_RATIO = 1.2  # bytes of a weight now over then; less is not worth repacking
MIN_BATCH_GAIN = 1.1  # tokens/s then over now
MAX_GAP_SHARE = 0.9  # of today's longest token gap
SPECULATIVE_WIDTH, ACCEPTANCE = 4, 0.8
NO_BATCH = "batch or ridge not known"
GEMMS = ("gemm", "gemm_reduce", "moe_gemm")
ATTENTION = ("attention", "attention_combine")


@dataclass(frozen=True)
class _DecodeStep:
    """The median pure decode step of one device: its time by op class, its bytes and FLOPs (None = unknown).

    ``requests`` are at most ``rows``, the tokens its kernels were launched for (padding of graphs included).
    """

    ms: float
    requests: float | None
    rows: float | None
    op_ms: Mapping[str, float]
    flop: float | None
    weights: float | None
    kv: float | None
    activations: float | None

    @property
    def at_most(self) -> float | None:
        """Requests, where they are known; else no fewer than they are."""
        return self.rows if self.requests is None else self.requests

    @property
    def bytes(self) -> float | None:
        """Bytes moved; weights alone where KV is unknown."""
        return None if self.weights is None else self.weights + (self.kv or 0.0) + (self.activations or 0.0)

    def time_of(self, classes: tuple[str, ...]) -> float:
        """Kernel time of some op classes, ms."""
        return sum(self.op_ms.get(name, 0.0) for name in classes)


def classify_workload(found: SummaryInput, what_if: WhatIf) -> Workload:
    """JSON ``workload``: the run's class by time, tokens and batch, and ``techniques[]``.

    Shares are percentages; mixed steps are divided by the decode-only baseline.
    """
    if not found.autoregressive or found.steps.is_empty():
        return Workload(by_time=None, by_time_reason="no autoregressive phases found", techniques=())
    ridge = ridge_batch(found.ceilings, found.model)
    step = _median_decode_step(found)
    by_time, by_tokens = _by_time(what_if.disaggregation), _by_tokens(found.steps)
    return Workload(
        by_time=by_time.heavy_in,
        by_time_reason=by_time.reason,
        prefill_time_share_pct=by_time.prefill_share_pct,
        by_tokens=by_tokens.heavy_in,
        by_tokens_reason=by_tokens.reason,
        prefill_token_share_pct=UNSET if by_tokens.prefill_share_pct is None else by_tokens.prefill_share_pct,
        decode_batch_p50=None if step is None else step.requests,
        ridge_batch=ridge,
        batch_regime=None if step is None else _regime(step, ridge),
        bound_by=None if step is None else _bound_by(found, step),
        ridge_batch_reason="the GPU's peak or bandwidth is not known" if ridge is None else UNSET,
        techniques=() if step is None else _techniques(found, step, what_if, ridge),
        techniques_reason="there is no pure decode step with recorded kernels" if step is None else UNSET,
    )


@dataclass(frozen=True)
class _Share:
    """Prefill's share of a run, %, and the phase that this makes it heavy in; None with a reason where unknown."""

    prefill_share_pct: float | None
    reason: str | UnsetType = UNSET

    @property
    def heavy_in(self) -> str | None:
        return None if self.prefill_share_pct is None else _heavy(self.prefill_share_pct)


def _by_time(split: Disaggregation | None) -> _Share:
    if split is None or split.prefill_ms is None or split.decode_ms is UNSET:
        reason = split.prefill_ms_reason if split is not None else UNSET
        return _Share(None, "the capture holds one phase only" if reason is UNSET else reason)
    return _Share(100 * split.prefill_ms / (split.prefill_ms + split.decode_ms))


def _by_tokens(steps: pl.DataFrame) -> _Share:
    usable = steps.filter(USABLE_STEP)
    one = usable.filter(pl.col("device_index") == pl.col("device_index").min().over("group"))
    phase = pl.col("phase").cast(pl.String)
    prefill = one.filter(phase.is_in(["prefill", "mixed"]))["prefill_tokens"]
    decode = one.filter(phase.is_in(["decode", "mixed"]))["decode_tokens"]
    prompt, output = float(prefill.fill_null(0).to_numpy().sum()), float(decode.fill_null(0).to_numpy().sum())
    if prefill.null_count() or decode.null_count() or not prompt + output:
        return _Share(None, "token counts are not known for every step")
    return _Share(100 * prompt / (prompt + output))


def _heavy(prefill_share_pct: float) -> str:
    if prefill_share_pct >= MIN_HEAVY_PCT:
        return "prefill-heavy"
    return "decode-heavy" if prefill_share_pct <= 100 - MIN_HEAVY_PCT else "balanced"


def _regime(step: _DecodeStep, ridge: float | None) -> str | None:
    batch = step.at_most
    if batch is None or ridge is None:
        return None
    if batch < ridge:
        bound = "at most " if step.requests is None else ""
        return f"below the ridge: {bound}{short_number(batch)} of {short_number(ridge)} requests, decode GEMMs read weights"
    if step.requests is None:
        return None
    return f"above the ridge: {short_number(batch)} of {short_number(ridge)} requests, decode GEMMs compute"


def _bound_by(found: SummaryInput, step: _DecodeStep) -> str:
    """Latency where the GPU is often idle between decode kernels or far from its bandwidth; else throughput."""
    gaps = found.stalls.gaps.filter((pl.col("stall") < 0) & pl.col("counted"))
    if gaps.height:
        busy = (gaps["decode_ms"] + gaps["collective_wait_ms"] + gaps["copy_ms"]).fill_null(0.0).to_numpy().sum()
        share = 100 * float(busy / gaps["gap_ms"].to_numpy().sum())
        if share < MAX_LATENCY_BUSY_PCT:
            return f"latency: the GPU is busy {short_percent(share)} of the time between tokens"
    bandwidth = next((c.memory_bandwidth_gbps for c in found.ceilings if c.memory_bandwidth_gbps), None)
    if step.bytes is not None and bandwidth:
        mbu = 100 * step.bytes / (step.ms * 1e-3) / (bandwidth * 1e9)
        if mbu < MAX_LATENCY_MBU_PCT:
            return f"latency: decode steps move {short_percent(mbu)} of what the bandwidth allows"
        return f"throughput: decode steps move {short_percent(mbu)} of what the bandwidth allows"
    return "throughput: the GPU is busy between tokens; how near to its bandwidth is not known"


def _median_decode_step(found: SummaryInput) -> _DecodeStep | None:
    decode = found.steps.filter((pl.col("phase").cast(pl.String) == "decode") & USABLE_STEP & (pl.col("busy_ns") > 0))
    own = np.zeros(found.steps.height + 1, dtype=bool)  # the last entry takes kernels outside every step
    own[decode["step"].to_numpy()] = True
    rows = np.flatnonzero(own[found.kernels["step"].to_numpy()])
    if not len(rows):
        return None
    code = found.kernels["op_class"].to_physical().to_numpy()[rows]
    lengths = (found.kernels["end_ns"] - found.kernels["start_ns"]).to_numpy()[rows]
    class_ns = dict(zip(OP_CLASSES.categories, np.bincount(code, lengths, len(OP_CLASSES.categories)), strict=True))
    span = _median(decode, "span") or 0.0
    total = float(lengths.sum()) / 1e6 / decode.height
    # Kernels that run side by side share the step: saving one does not save its whole length.
    share = min(1.0, span / total) if total else 1.0
    op_ms = {name: share * float(ns) / 1e6 / decode.height for name, ns in class_ns.items() if ns}
    return _DecodeStep(
        ms=span,
        requests=_median(decode, "decode_requests"),
        rows=_median(decode, "padded_tokens"),
        op_ms=op_ms,
        flop=_median(decode, "flop"),
        weights=_median(decode, "bytes_weights"),
        kv=_median(decode, "bytes_kv"),
        activations=_median(decode, "bytes_activations"),
    )


def _median(frame: pl.DataFrame, column: str) -> float | None:
    """Of the known steps; None where most steps do not know theirs, as a few would speak for all the others."""
    if column == "span":
        return float(np.median((frame["end_ns"] - frame["start_ns"]).to_numpy())) / 1e6
    values = frame[column].drop_nulls().cast(pl.Float64).to_numpy()
    return float(np.median(values)) if len(values) * 2 >= max(frame.height, 1) else None


def _techniques(found: SummaryInput, step: _DecodeStep, what_if: WhatIf, ridge: float | None) -> tuple[Technique, ...]:
    rows: list[Technique | None] = [
        _fewer_weight_bits(found, step, ridge, bits=8),
        _fewer_weight_bits(found, step, ridge, bits=4),
        _larger_batch(step, what_if, ridge),
        _speculative(step, what_if, ridge),
        _tensor_parallel(step),
        _smaller_chunk(what_if),
        _prefix_caching(what_if.disaggregation),
        _smaller_kv(step),
    ]
    return tuple(row for row in rows if row)


def _of_step(name: str, step: _DecodeStep, predicted_ms: float | None, condition: str) -> StepTechnique:
    """A technique that helps where the predicted step is shorter; callers say why, or that they know better."""
    saved = None if predicted_ms is None else 100 * (1 - predicted_ms / step.ms)
    return StepTechnique(
        technique=name,
        helps="depends" if saved is None else "yes" if saved >= MIN_SAVING_PCT else "no",
        step_ms_now=step.ms,
        predicted_step_ms=predicted_ms,
        shorter_by_pct=saved,
        condition=condition,
        is_prediction=True,
        intensity_now=step.flop / step.bytes if step.flop and step.bytes else UNSET,
    )


def _fewer_weight_bits(
    found: SummaryInput, step: _DecodeStep, ridge: float | None, *, bits: int
) -> StepTechnique | None:
    """Packed weights: GEMMs that wait for weights take as long as their bytes."""
    stored = bytes_per_weight(found.model)
    ratios = [stored / 1.0] * 2 if bits == 8 else [stored / 2 * r for r in FOUR_BIT_RATIOS]
    if min(ratios) <= MIN_WEIGHT_RATIO:
        return None  # the weights are packed already
    gemm = step.time_of(GEMMS)
    ratio = sum(ratios) / 2
    condition = f"decode batch below the ridge batch ({short_number(ridge)})" if ridge else "small decode batch"
    name = "8-bit weights" if bits == 8 else "4-bit weights with group scales"
    if ridge is not None and step.requests is None and (step.at_most or 0.0) >= ridge:
        return structs.replace(_of_step(name, step, None, condition), predicted_step_ms_reason=NO_BATCH)
    above = ridge is not None and step.requests is not None and step.requests >= ridge
    why = f"GEMMs take {short_duration(gemm)} of a {short_duration(step.ms)} step"
    if above:
        why = f"at a batch of {short_number(step.requests or 0)} GEMMs wait for compute, not for weights"
    return structs.replace(
        _of_step(name, step, step.ms if above else step.ms - gemm * (1 - 1 / ratio), condition),
        why=why,
        intensity_then=step.flop / (step.bytes - step.weights * (1 - 1 / ratio))
        if step.flop and step.bytes and step.weights
        else UNSET,
    )


def _larger_batch(step: _DecodeStep, what_if: WhatIf, ridge: float | None) -> StepTechnique:
    rows = what_if.batches
    condition = (
        f"more requests to serve; pays until the batch nears {short_number(ridge)}" if ridge else "more requests"
    )
    if len(rows) < 2 or not rows[0].tokens_per_s:
        why = what_if.fit_reason or "no model of the step time"
        return structs.replace(_of_step("twice the decode batch", step, None, condition), predicted_step_ms_reason=why)
    now, twice = rows[0], rows[1]
    return structs.replace(
        _of_step("twice the decode batch", step, twice.step_ms, condition),
        helps="yes" if twice.tokens_per_s / now.tokens_per_s >= MIN_BATCH_GAIN else "no",
        shorter_by_pct=None,
        why=f"{short_number(twice.tokens_per_s)} instead of {short_number(now.tokens_per_s)} tokens/s",
        extrapolated=twice.extrapolated,
    )


def _speculative(step: _DecodeStep, what_if: WhatIf, ridge: float | None) -> StepTechnique:
    """Verifying w tokens per request multiplies the GEMMs' tokens by w and reads the weights once."""
    width, name = SPECULATIVE_WIDTH, "speculative decoding"
    accepted = sum(ACCEPTANCE**k for k in range(width))
    condition = (
        f"batch x {width} below the ridge batch; time per token, taking {short_percent(100 * ACCEPTANCE)} acceptance"
    )
    batch = step.at_most
    if batch is None or ridge is None or (step.requests is None and batch * width > ridge):
        return structs.replace(_of_step(name, step, None, condition), predicted_step_ms_reason=NO_BATCH)
    if batch * width > ridge:
        why = f"{short_number(batch)} requests x {width} tokens are beyond the ridge batch of {short_number(ridge)}"
        return structs.replace(_of_step(name, step, None, condition), helps="no", why=why)
    predicted = {v.verify_width: v.step_ms for v in what_if.verify or ()}
    verify = predicted.get(width, step.ms)  # below the ridge the weights are read once for all of them
    return structs.replace(
        _of_step(f"{name}, {width} tokens verified at once", step, verify / accepted, condition),
        why=f"{short_number(accepted)} tokens per step at {short_percent(100 * ACCEPTANCE)} acceptance; the draft is not counted",
        intensity_factor=width,
    )


def _tensor_parallel(step: _DecodeStep) -> StepTechnique:
    shared = step.time_of(GEMMS) + step.time_of(ATTENTION)
    condition = "two more all-reduces per layer must cost less than what is saved (not counted here)"
    return structs.replace(
        _of_step("tensor parallelism over twice the devices", step, step.ms - shared / 2, condition),
        why=f"bytes per device halve, intensity stays; GEMMs and attention take {short_duration(shared)} of a step",
    )


def _smaller_chunk(what_if: WhatIf) -> ChunkTechnique | None:
    now = what_if.chunk_now_tokens
    smaller = [c for c in what_if.chunks if now and c.chunk_tokens <= now / 2]
    larger = [c for c in what_if.chunks if now and c.chunk_tokens >= now]
    if not smaller or not larger:
        return None
    then, current = smaller[-1], larger[0]
    return ChunkTechnique(
        technique=f"chunks of {then.chunk_tokens:,} tokens instead of {now:,}",
        helps="yes" if then.gap_max_ms < MAX_GAP_SHARE * current.gap_max_ms else "no",
        predicted_gap_max_ms=then.gap_max_ms,
        condition="token gaps matter more than the time to the first token",
        why=f"prefill then runs at {short_number(then.prefill_tokens_per_s)} tokens/s",
        extrapolated=then.extrapolated,
        is_prediction=True,
    )


def _prefix_caching(split: Disaggregation | None) -> PrefixTechnique | None:
    if split is None or not split.prefill_ms or split.decode_ms is UNSET:
        return None
    share = 100 * split.prefill_ms / (split.prefill_ms + split.decode_ms)
    return PrefixTechnique(
        technique="prefix caching",
        helps="depends" if share >= MIN_SAVING_PCT else "no",
        saved_ms_per_10_pct_of_prompt_tokens=split.prefill_ms / 10,
        condition="prompts share their beginnings",
        why=f"prefill takes {short_duration(split.prefill_ms)}, {short_percent(share)} of the steps' time",
        is_prediction=True,
    )


def _smaller_kv(step: _DecodeStep) -> StepTechnique:
    attention = step.time_of(ATTENTION)
    return structs.replace(
        _of_step("8-bit KV cache or a faster attention kernel", step, step.ms - attention / 2, "long contexts"),
        why=f"attention takes {short_duration(attention)} of a {short_duration(step.ms)} step",
        intensity_then=step.flop / (step.bytes - step.kv / 2) if step.flop and step.bytes and step.kv else UNSET,
    )
