"""What a decode step moves, split into weights, KV cache and activations, and two bandwidths fitted from the steps.

The model says how many bytes a step needs; the steps say how their time grows. Over KV tokens that growth is time per
cached token, and over it the KV bytes per token give a bandwidth that owes nothing to the level of the cache: between
admissions the growth is known (one token per request and step) even where the level is not. What is left at zero KV
tokens is the weights', a second bandwidth. If one of the two is far from the other, bytes are not what was assumed:
another KV data type, grouped-query attention not used, pages read in full.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from ..models import BYTES_PER_ELEMENT
from .assign import KernelWork
from .choice import ModelChoice

Floats = npt.NDArray[np.float64]

FEWEST = 8  # steps that a fit needs
SIGNIFICANT = 3.0  # slope over its standard error
DISAGREES = 1.5


@dataclass(frozen=True)
class Fit:
    """A straight line of step time: seconds per unit, its standard error, seconds at zero (None = level unknown)."""

    slope: float
    slope_error: float
    intercept: float | None
    steps: int

    @property
    def significant(self) -> bool:
        """Whether the slope stands clear of its noise."""
        return self.slope > SIGNIFICANT * self.slope_error


def within_groups(x: Floats, y: Floats, group: npt.NDArray[np.int64]) -> Fit | None:
    """Slope of y over x inside groups (each with its own level): ordinary least squares on deviations from means."""
    if len(x) < FEWEST:
        return None
    _, of = np.unique(group, return_inverse=True)
    size = np.bincount(of)
    dx = x - (np.bincount(of, x) / size)[of]
    dy = y - (np.bincount(of, y) / size)[of]
    spread = float(dx @ dx)
    freedom = len(x) - len(size) - 1
    if spread <= 0 or freedom < 3:
        return None
    slope = float(dx @ dy) / spread
    noise = float(((dy - slope * dx) ** 2).sum()) / freedom
    return Fit(slope, float(np.sqrt(noise / spread)), None, len(x))


def line(x: Floats, y: Floats) -> Fit | None:
    """Ordinary least squares of y over x with its level."""
    fit = within_groups(x, y, np.zeros(len(x), np.int64))
    if fit is None:
        return None
    return Fit(fit.slope, fit.slope_error, float(y.mean() - fit.slope * x.mean()), fit.steps)


def decode_traffic(
    steps: pl.DataFrame, work: KernelWork, choice: ModelChoice, ceilings: Sequence[Any]
) -> dict[str, Any]:
    """JSON ``traffic``: bytes per decode step by kind, fitted bandwidths with their MBU, and what disagrees."""
    decode = steps.filter(
        (pl.col("phase") == "decode")
        & ~pl.col("partial").fill_null(False)
        & ~pl.col("excluded").fill_null(False)
        & (pl.col("busy_ns") > 0)
    ).sort("device_index", "index")
    if not decode.height:
        return {"reason": "no decode steps"}
    result: dict[str, Any] = {"decode_steps": decode.height, **_split(decode)}
    rank = choice.rank
    if rank is None:
        return result | {"reason": choice.reason}
    bandwidth = [each.memory_bandwidth_gbps for each in ceilings if each.memory_bandwidth_gbps]
    peak = sum(bandwidth) / len(bandwidth) if bandwidth else None
    per_token = rank.model.layers * rank.kv_elements * BYTES_PER_ELEMENT[rank.model.kv_dtype]
    result["kv_bytes_per_token"] = per_token
    notes: list[str] = []
    kv = _kv_fit(decode)
    _kv_bandwidth(result, kv, per_token, peak)
    if rank.model.sliding_window and kv is not None:
        notes.append("sliding-window layers stop growing: the KV bandwidth is an upper bound")
    weights = _weight_bandwidth(result, decode, peak)
    kv_bandwidth = result["kv_fitted_gbps"]
    for name, gbps in (("KV", kv_bandwidth), ("weight", weights)):
        if gbps and peak and gbps > 1.05 * peak:
            notes.append(
                f"fitted {name} bandwidth {gbps:.0f} GB/s is above the peak {peak:.0f}: its bytes are overstated"
            )
    result |= _batch_fit(decode)
    if kv_bandwidth and weights and max(kv_bandwidth / weights, weights / kv_bandwidth) > DISAGREES:
        higher = "KV" if kv_bandwidth > weights else "weights"
        notes.append(
            f"fitted bandwidths disagree: KV {kv_bandwidth:.0f} GB/s, weights {weights:.0f} GB/s; if the {higher} "
            "figure is beyond the hardware its bytes are overstated (KV data type, grouped-query attention), if the "
            "other is far below, its kernels are not bound by memory or read more than they must (paging)"
        )
    result |= _kv_at_most(decode, work, per_token, peak)
    return result | {"notes": notes}


def _split(decode: pl.DataFrame) -> dict[str, Any]:
    """Mean bytes per decode step by kind; KV and activations only over the steps where KV is known."""

    def mean(column: str, frame: pl.DataFrame) -> float | None:
        known = frame[column].drop_nulls()
        return float(known.mean()) if len(known) else None  # type: ignore[arg-type]

    known = decode.filter(pl.col("bytes_kv").is_not_null())
    return {
        "bytes_weights_per_step": mean("bytes_weights", decode),
        "bytes_kv_per_step": mean("bytes_kv", known),
        "bytes_activations_per_step": mean("bytes_activations", known if known.height else decode),
        "steps_with_known_kv": known.height,
        "kv_reason": None if known.height == decode.height else "KV lengths unknown in some decode steps",
    }


def _kv_fit(decode: pl.DataFrame) -> Fit | None:
    """Step time over KV tokens: its growth between admissions, each stretch of one batch with its own level."""
    frame = decode.filter(
        pl.col("decode_requests").is_not_null() & (pl.col("decode_tokens") == pl.col("decode_requests"))
    )
    frame = frame.with_columns(
        stretch=(
            (pl.col("decode_requests") != pl.col("decode_requests").shift())
            | (pl.col("padded_tokens").fill_null(-1) != pl.col("padded_tokens").fill_null(-1).shift())
            | (pl.col("device_index") != pl.col("device_index").shift())
            | (pl.col("index") != pl.col("index").shift() + 1)
        )
        .fill_null(True)
        .cum_sum()
    )
    frame = frame.with_columns(grown=(pl.col("decode_requests").cum_sum().over("stretch")).cast(pl.Float64))
    seconds = frame["busy_ns"].cast(pl.Float64).to_numpy() / 1e9
    return within_groups(frame["grown"].to_numpy(), seconds, frame["stretch"].cast(pl.Int64).to_numpy())


def _kv_bandwidth(result: dict[str, Any], fit: Fit | None, per_token: float, peak: float | None) -> None:
    """Put the bandwidth that the growth of step time with the cache implies into ``result``."""
    gbps = reason = None
    if fit is None:
        reason = "too few decode steps of one batch in a row"
    elif not fit.significant:
        reason = "step time does not grow clearly with the cache"
    else:
        gbps = per_token / fit.slope / 1e9
    result["kv_fit_steps"] = fit.steps if fit else 0
    result["kv_ns_per_token"] = fit.slope * 1e9 if fit and fit.significant else None
    result["kv_fit_error_pct"] = 100.0 * fit.slope_error / fit.slope if fit and fit.significant else None
    result["kv_fitted_gbps"] = gbps
    result["kv_fitted_mbu_pct"] = 100.0 * gbps / peak if gbps and peak else None
    result["kv_fit_reason"] = reason


def _weight_bandwidth(result: dict[str, Any], decode: pl.DataFrame, peak: float | None) -> float | None:
    """Bandwidth of the weights: step time = weight bytes / this + KV bytes / the other; needs the cache's level."""
    result.update(dict.fromkeys(("weights_fitted_gbps", "weights_fitted_mbu_pct")))
    known = decode.filter(pl.col("bytes_kv").is_not_null() & pl.col("bytes_weights").is_not_null())
    if known.height < FEWEST:
        result["weights_fit_reason"] = "the level of the KV cache is known in too few decode steps"
        return None
    seconds = known["busy_ns"].cast(pl.Float64).to_numpy() / 1e9
    weights, cache = (known[name].to_numpy() for name in ("bytes_weights", "bytes_kv"))
    rates = two_rates(weights, cache, seconds)
    if rates is None:
        result["weights_fit_reason"] = "step time does not grow clearly with the cache"
        return None
    gbps = 1.0 / rates[0] / 1e9
    result["weights_fitted_gbps"] = gbps
    result["weights_fitted_mbu_pct"] = 100.0 * gbps / peak if peak else None
    result["weights_fit_reason"] = None
    if result["kv_fitted_gbps"] is None:
        result["kv_fitted_gbps"] = 1.0 / rates[1] / 1e9
        result["kv_fitted_mbu_pct"] = 100.0 / rates[1] / 1e9 / peak if peak else None
        result["kv_fit_reason"] = None
    return gbps


def two_rates(one: Floats, other: Floats, seconds: Floats) -> tuple[float, float] | None:
    """Seconds per byte of two kinds of traffic, by least squares without a constant; None unless both are clear."""
    columns = np.column_stack([one, other])
    if len(seconds) < FEWEST or np.linalg.matrix_rank(columns / columns.max(axis=0).clip(1.0)) < 2:
        return None
    scale = columns.max(axis=0)
    scaled = columns / scale
    found, *_ = np.linalg.lstsq(scaled, seconds, rcond=None)
    noise = float(((seconds - scaled @ found) ** 2).sum()) / (len(seconds) - 2)
    errors = np.sqrt(np.maximum(noise * np.diag(np.linalg.inv(scaled.T @ scaled)), 0.0))
    if not (found > SIGNIFICANT * errors).all():
        return None
    return float(found[0] / scale[0]), float(found[1] / scale[1])


def _batch_fit(decode: pl.DataFrame) -> dict[str, Any]:
    """Step time over the batch: what one more request costs, KV and all."""
    frame = decode.filter(pl.col("decode_requests").is_not_null())
    batch = frame["decode_requests"].cast(pl.Float64).to_numpy()
    seconds = frame["busy_ns"].cast(pl.Float64).to_numpy() / 1e9
    fit = line(batch, seconds) if len(np.unique(batch)) >= 3 else None
    if fit is None or not fit.significant:
        return {
            "ms_per_request": None,
            "ms_at_batch_zero": None,
            "batch_fit_reason": "too little contrast in batch size",
        }
    return {
        "ms_per_request": fit.slope * 1e3,
        "ms_at_batch_zero": fit.intercept * 1e3 if fit.intercept is not None else None,
        "batch_fit_reason": None,
    }


def _kv_at_most(decode: pl.DataFrame, work: KernelWork, per_token: float, peak: float | None) -> dict[str, Any]:
    """The most KV tokens that the decode attention had time to read at peak bandwidth: a bound on an unknown level."""
    from .layer_orders import PLACE_CODE

    rows = np.isin(work.place, [PLACE_CODE["attention"], PLACE_CODE["attention_decode"]]) & (work.step >= 0)
    rows &= np.isin(work.step, decode["step"].to_numpy())
    if not rows.any() or not peak or decode["kv_tokens"].null_count() == 0:
        return {}
    seconds = float(work.duration[rows].sum()) / 1e9 / decode.height
    return {"kv_tokens_at_most": seconds * peak * 1e9 / per_token, "attention_ms_per_decode_step": seconds * 1e3}
