"""What kind of run this is, and where each well-known technique would move it on its own roofline.

The class comes first because it decides what helps: a decode step below the ridge batch waits for weights to be read, so
fewer bytes or more requests per read help and more FLOP/s do not. Each technique is a movement (bytes, FLOPs, tokens per
step) with the predicted step time, its condition and what it hangs on; what does not help here is said too, with its number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import polars as pl

from ..records.tables import OP_CLASSES
from ..summary.summary_input import SummaryInput
from .number_words import duration, percent, significant
from .ridge_batch import BYTES_PER_WEIGHT, ridge_batch

HEAVY_PCT = 60.0  # beyond this share of time or tokens a run is heavy in a phase, else balanced
LATENCY_BUSY_PCT = 70.0  # a decode gap that is busy less than this waits for something else than the GPU
LATENCY_MBU_PCT = 30.0
WORTH_PCT = 3.0  # a technique that shortens the step by less does not help here
FOUR_BIT_RATIOS = (3.5, 3.9)  # bytes of 16-bit weights over 4-bit ones with group scales
SPECULATIVE_WIDTH, ACCEPTANCE = 4, 0.8
NO_BATCH = "batch or ridge not known"
GEMMS = ("gemm", "gemm_reduce", "moe_gemm")
ATTENTION = ("attention", "attention_combine")


class Worked(Protocol):
    """What the work stage hands on, as far as it is needed here."""

    @property
    def kernels(self) -> pl.DataFrame:
        """Kernels with tags and work."""

    @property
    def steps(self) -> pl.DataFrame:
        """Steps with work columns."""

    @property
    def model(self) -> Mapping[str, Any]:
        """JSON model."""


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


def classify_workload(found: SummaryInput, work: Worked, what_if: Mapping[str, Any]) -> dict[str, Any]:
    """JSON ``workload``: the run's class by time, tokens and batch, and ``techniques[]``.

    ``what_if`` is ``what_would_help``'s result. Shares are percentages; mixed steps are divided by the decode-only baseline.
    """
    if not found.autoregressive or found.steps.is_empty():
        return {"by_time": None, "by_time_reason": "no autoregressive phases found", "techniques": []}
    ridge = ridge_batch(found.ceilings, found.model)
    step = _median_decode_step(work)
    batch = None if step is None else step.requests
    result: dict[str, Any] = _by_time(what_if) | _by_tokens(work.steps)
    result |= {
        "decode_batch_p50": batch,
        "ridge_batch": ridge,
        "batch_regime": None if step is None else _regime(step, ridge),
        "bound_by": None if step is None else _bound_by(found, step),
    }
    if ridge is None:
        result["ridge_batch_reason"] = "the GPU's peak or bandwidth is not known"
    result["techniques"] = [] if step is None else _techniques(found, step, what_if, ridge)
    if step is None:
        result["techniques_reason"] = "there is no pure decode step with recorded kernels"
    return result


def _by_time(what_if: Mapping[str, Any]) -> dict[str, Any]:
    split = what_if.get("disaggregation") or {}
    prefill, decode = split.get("prefill_ms"), split.get("decode_ms")
    if prefill is None or decode is None:
        reason = split.get("prefill_ms_reason", "the capture holds one phase only")
        return {"by_time": None, "by_time_reason": reason, "prefill_time_share_pct": None}
    share = 100 * prefill / (prefill + decode)
    return {"by_time": _heavy(share), "prefill_time_share_pct": share}


def _by_tokens(steps: pl.DataFrame) -> dict[str, Any]:
    usable = steps.filter(~pl.col("partial") & ~pl.col("excluded"))
    one = usable.filter(pl.col("device_index") == pl.col("device_index").min().over("group"))
    phase = pl.col("phase").cast(pl.String)
    prefill = one.filter(phase.is_in(["prefill", "mixed"]))["prefill_tokens"]
    decode = one.filter(phase.is_in(["decode", "mixed"]))["decode_tokens"]
    prompt, output = float(prefill.fill_null(0).to_numpy().sum()), float(decode.fill_null(0).to_numpy().sum())
    if prefill.null_count() or decode.null_count() or not prompt + output:
        return {"by_tokens": None, "by_tokens_reason": "token counts are not known for every step"}
    share = 100 * prompt / (prompt + output)
    return {"by_tokens": _heavy(share), "prefill_token_share_pct": share}


def _heavy(prefill_share_pct: float) -> str:
    if prefill_share_pct >= HEAVY_PCT:
        return "prefill-heavy"
    return "decode-heavy" if prefill_share_pct <= 100 - HEAVY_PCT else "balanced"


def _regime(step: _DecodeStep, ridge: float | None) -> str | None:
    batch = step.at_most
    if batch is None or ridge is None:
        return None
    if batch < ridge:
        bound = "at most " if step.requests is None else ""
        return (
            f"below the ridge: {bound}{significant(batch)} of {significant(ridge)} requests, decode GEMMs read weights"
        )
    if step.requests is None:
        return None
    return f"above the ridge: {significant(batch)} of {significant(ridge)} requests, decode GEMMs compute"


def _bound_by(found: SummaryInput, step: _DecodeStep) -> str:
    """Latency where the GPU is often idle between decode kernels or far from its bandwidth; else throughput."""
    gaps = found.stalls.gaps.filter((pl.col("stall") < 0) & pl.col("counted"))
    if gaps.height:
        busy = (gaps["decode_ms"] + gaps["collective_wait_ms"] + gaps["copy_ms"]).fill_null(0.0).to_numpy().sum()
        share = 100 * float(busy / gaps["gap_ms"].to_numpy().sum())
        if share < LATENCY_BUSY_PCT:
            return f"latency: the GPU is busy {percent(share)} of the time between tokens"
    bandwidth = next((c.memory_bandwidth_gbps for c in found.ceilings if c.memory_bandwidth_gbps), None)
    if step.bytes is not None and bandwidth:
        mbu = 100 * step.bytes / (step.ms * 1e-3) / (bandwidth * 1e9)
        if mbu < LATENCY_MBU_PCT:
            return f"latency: decode steps move {percent(mbu)} of what the bandwidth allows"
        return f"throughput: decode steps move {percent(mbu)} of what the bandwidth allows"
    return "throughput: the GPU is busy between tokens; how near to its bandwidth is not known"


def _median_decode_step(work: Worked) -> _DecodeStep | None:
    decode = work.steps.filter(
        (pl.col("phase").cast(pl.String) == "decode")
        & ~pl.col("partial")
        & ~pl.col("excluded")
        & (pl.col("busy_ns") > 0)
    )
    own = np.zeros(work.steps.height + 1, dtype=bool)  # the last entry takes kernels outside every step
    own[decode["step"].to_numpy()] = True
    rows = np.flatnonzero(own[work.kernels["step"].to_numpy()])
    if not len(rows):
        return None
    code = work.kernels["op_class"].to_physical().to_numpy()[rows]
    lengths = (work.kernels["end_ns"] - work.kernels["start_ns"]).to_numpy()[rows]
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


def _techniques(
    found: SummaryInput, step: _DecodeStep, what_if: Mapping[str, Any], ridge: float | None
) -> list[dict[str, Any]]:
    rows = [
        _fewer_weight_bits(found, step, ridge, bits=8),
        _fewer_weight_bits(found, step, ridge, bits=4),
        _larger_batch(step, what_if, ridge),
        _speculative(step, what_if, ridge),
        _tensor_parallel(step),
        _smaller_chunk(what_if),
        _prefix_caching(what_if),
        _smaller_kv(step),
    ]
    return [row for row in rows if row]


def _row(technique: str, step: _DecodeStep, predicted_ms: float | None, condition: str, **more: Any) -> dict[str, Any]:
    """One technique; ``helps`` follows from the predicted step time unless given."""
    saved = None if predicted_ms is None else 100 * (1 - predicted_ms / step.ms)
    helps = more.pop("helps", None)
    if helps is None and saved is not None:
        helps = "yes" if saved >= WORTH_PCT else "no"
    row = {
        "technique": technique,
        "helps": helps or "depends",
        "step_ms_now": step.ms,
        "predicted_step_ms": predicted_ms,
        "shorter_by_pct": saved,
        "condition": condition,
        "is_prediction": True,
        **more,
    }
    if step.flop and step.bytes:
        row["intensity_now"] = step.flop / step.bytes
    return row


def _fewer_weight_bits(
    found: SummaryInput, step: _DecodeStep, ridge: float | None, *, bits: int
) -> dict[str, Any] | None:
    """Packed weights: GEMMs that wait for weights take as long as their bytes."""
    stored = BYTES_PER_WEIGHT.get(str((found.model or {}).get("weight_dtype") or "bf16"), 2.0)
    ratios = [stored / 1.0] * 2 if bits == 8 else [stored / 2 * r for r in FOUR_BIT_RATIOS]
    if min(ratios) <= 1.2:
        return None  # the weights are packed already
    gemm = step.time_of(GEMMS)
    ratio = sum(ratios) / 2
    condition = f"decode batch below the ridge batch ({significant(ridge)})" if ridge else "small decode batch"
    name = "8-bit weights" if bits == 8 else "4-bit weights with group scales"
    if ridge is not None and step.requests is None and (step.at_most or 0.0) >= ridge:
        return _row(name, step, None, condition, predicted_step_ms_reason=NO_BATCH)
    above = ridge is not None and step.requests is not None and step.requests >= ridge
    predicted = step.ms if above else step.ms - gemm * (1 - 1 / ratio)
    more: dict[str, Any] = {"why": f"GEMMs take {duration(gemm)} of a {duration(step.ms)} step"}
    if above:
        more["why"] = f"at a batch of {significant(step.requests or 0)} GEMMs wait for compute, not for weights"
    if step.flop and step.bytes and step.weights:
        more["intensity_then"] = step.flop / (step.bytes - step.weights * (1 - 1 / ratio))
    return _row(name, step, predicted, condition, **more)


def _larger_batch(step: _DecodeStep, what_if: Mapping[str, Any], ridge: float | None) -> dict[str, Any]:
    rows = what_if.get("batches") or []
    condition = f"more requests to serve; pays until the batch nears {significant(ridge)}" if ridge else "more requests"
    if len(rows) < 2 or not rows[0]["tokens_per_s"]:
        why = what_if.get("fit_reason") or "no model of the step time"
        return _row("twice the decode batch", step, None, condition, predicted_step_ms_reason=why)
    gain = rows[1]["tokens_per_s"] / rows[0]["tokens_per_s"]
    more = {
        "helps": "yes" if gain >= 1.1 else "no",
        "why": f"{significant(rows[1]['tokens_per_s'])} instead of {significant(rows[0]['tokens_per_s'])} tokens/s",
        "extrapolated": rows[1]["extrapolated"],
    }
    return _row("twice the decode batch", step, rows[1]["step_ms"], condition, **more) | {"shorter_by_pct": None}


def _speculative(step: _DecodeStep, what_if: Mapping[str, Any], ridge: float | None) -> dict[str, Any]:
    """Verifying w tokens per request multiplies the GEMMs' tokens by w and reads the weights once."""
    width = SPECULATIVE_WIDTH
    accepted = sum(ACCEPTANCE**k for k in range(width))
    condition = f"batch x {width} below the ridge batch; time per token, taking {percent(100 * ACCEPTANCE)} acceptance"
    batch = step.at_most
    if batch is None or ridge is None or (step.requests is None and batch * width > ridge):
        return _row("speculative decoding", step, None, condition, predicted_step_ms_reason=NO_BATCH)
    if batch * width > ridge:
        why = f"{significant(batch)} requests x {width} tokens are beyond the ridge batch of {significant(ridge)}"
        return _row("speculative decoding", step, None, condition, helps="no", why=why)
    predicted = {v["verify_width"]: v["step_ms"] for v in what_if.get("verify") or []}
    verify = predicted.get(width, step.ms)  # below the ridge the weights are read once for all of them
    return _row(
        f"speculative decoding, {width} tokens verified at once",
        step,
        verify / accepted,
        condition,
        why=f"{significant(accepted)} tokens per step at {percent(100 * ACCEPTANCE)} acceptance; the draft is not counted",
        intensity_factor=width,
    )


def _tensor_parallel(step: _DecodeStep) -> dict[str, Any]:
    shared = step.time_of(GEMMS) + step.time_of(ATTENTION)
    return _row(
        "tensor parallelism over twice the devices",
        step,
        step.ms - shared / 2,
        "two more all-reduces per layer must cost less than what is saved (not counted here)",
        why=f"bytes per device halve, intensity stays; GEMMs and attention take {duration(shared)} of a step",
    )


def _smaller_chunk(what_if: Mapping[str, Any]) -> dict[str, Any] | None:
    now = what_if.get("chunk_now_tokens")
    smaller = [c for c in what_if.get("chunks") or [] if now and c["chunk_tokens"] <= now / 2]
    larger = [c for c in what_if.get("chunks") or [] if now and c["chunk_tokens"] >= now]
    if not smaller or not larger:
        return None
    then, current = smaller[-1], larger[0]
    return {
        "technique": f"chunks of {then['chunk_tokens']:,} tokens instead of {now:,}",
        "helps": "yes" if then["gap_max_ms"] < 0.9 * current["gap_max_ms"] else "no",
        "predicted_gap_max_ms": then["gap_max_ms"],
        "condition": "token gaps matter more than the time to the first token",
        "why": f"prefill then runs at {significant(then['prefill_tokens_per_s'])} tokens/s",
        "extrapolated": then["extrapolated"],
        "is_prediction": True,
    }


def _prefix_caching(what_if: Mapping[str, Any]) -> dict[str, Any] | None:
    split = what_if.get("disaggregation") or {}
    prefill, decode = split.get("prefill_ms"), split.get("decode_ms")
    if not prefill or decode is None:
        return None
    share = 100 * prefill / (prefill + decode)
    return {
        "technique": "prefix caching",
        "helps": "depends" if share >= WORTH_PCT else "no",
        "saved_ms_per_10_pct_of_prompt_tokens": prefill / 10,
        "condition": "prompts share their beginnings",
        "why": f"prefill takes {duration(prefill)}, {percent(share)} of the steps' time",
        "is_prediction": True,
    }


def _smaller_kv(step: _DecodeStep) -> dict[str, Any]:
    attention = step.time_of(ATTENTION)
    more: dict[str, Any] = {"why": f"attention takes {duration(attention)} of a {duration(step.ms)} step"}
    if step.flop and step.bytes and step.kv:
        more["intensity_then"] = step.flop / (step.bytes - step.kv / 2)
    return _row("8-bit KV cache or a faster attention kernel", step, step.ms - attention / 2, "long contexts", **more)
