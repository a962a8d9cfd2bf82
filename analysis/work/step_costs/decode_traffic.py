"""What a decode step moves, split into weights, KV cache and activations, and two bandwidths fitted from the steps.

The model says how many bytes a step needs; the steps say how their time grows. Over KV tokens that growth is time per
cached token, and over it the KV bytes per token give a bandwidth that owes nothing to the level of the cache: between
admissions the growth is known (one token per request and step) even where the level is not. Only attention grows with
the cache, so its kernels' time is fitted where it is recorded: the slope is that of the step, without the noise of the
rest. What is left at zero KV tokens is the weights', a second bandwidth. If one of the two is far from the other, bytes
are not what was assumed: another KV data type, grouped-query attention not used, pages read in full.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl
from msgspec import UNSET, structs

from ...gpus.device_ceilings import DeviceCeilings
from ...models.model_shape import BYTES_PER_ELEMENT
from ...numeric.fits import least_squares
from ...records.work import Traffic
from ..kernel_work import KernelWork
from ..model_choice.choose_model import ModelChoice
from ..operators.gemm_orders import OP_CODE, PLACE_CODE

Floats = npt.NDArray[np.float64]

MIN_FIT_STEPS = 8
MIN_BATCH_SIZES = 3  # different ones, that a fit over the batch needs
MIN_SLOPE_OVER_ERROR = 3.0  # a slope of fewer of its standard errors is noise
MAX_BANDWIDTH_RATIO = 1.5  # of the two fitted bandwidths, larger over smaller: beyond it they disagree
MAX_PEAK_RATIO = 1.05  # of a fitted bandwidth over the peak: beyond it its bytes are overstated
MAX_WEIGHTS_RATIO = 1.01  # of the weight bytes of steps, largest over smallest: up to it they are of one size
ERRORS_IN_DOUBT = 2.0  # standard errors by which a fit must miss before it is called wrong


@dataclass(frozen=True)
class TimeLine:
    """A straight line of step time: seconds per unit, its standard error, seconds at zero (None = level unknown)."""

    slope: float
    slope_error: float
    intercept: float | None
    steps: int

    @property
    def significant(self) -> bool:
        """Whether the slope stands clear of its noise."""
        return self.slope > MIN_SLOPE_OVER_ERROR * self.slope_error


def within_groups(x: Floats, y: Floats, group: npt.NDArray[np.int64]) -> TimeLine | None:
    """Slope of y over x inside groups (each with its own level): ordinary least squares on deviations from means."""
    if len(x) < MIN_FIT_STEPS:
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
    return TimeLine(slope, float(np.sqrt(noise / spread)), None, len(x))


def line(x: Floats, y: Floats) -> TimeLine | None:
    """Ordinary least squares of y over x with its level."""
    fit = within_groups(x, y, np.zeros(len(x), np.int64))
    if fit is None:
        return None
    return TimeLine(fit.slope, fit.slope_error, float(y.mean() - fit.slope * x.mean()), fit.steps)


def decode_traffic(
    steps: pl.DataFrame, work: KernelWork, choice: ModelChoice, ceilings: Sequence[DeviceCeilings]
) -> Traffic:
    """JSON ``traffic``: bytes per decode step by kind, fitted bandwidths with their MBU, and what disagrees."""
    decode = steps.filter(
        (pl.col("phase") == "decode")
        & ~pl.col("partial").fill_null(False)
        & ~pl.col("excluded").fill_null(False)
        & (pl.col("busy_ns") > 0)
    ).sort("device_index", "index")
    if not decode.height:
        return Traffic(reason="no decode steps")
    traffic = _bytes_by_kind(decode)
    rank = choice.rank
    if rank is None:
        return structs.replace(traffic, reason=choice.reason)
    attention, waiting = _time_per_step(decode, work)
    decode = decode.with_columns(attention_ns=attention, collective_ns=waiting)
    bandwidth = [each.memory_bandwidth_gbps for each in ceilings if each.memory_bandwidth_gbps]
    peak = sum(bandwidth) / len(bandwidth) if bandwidth else None
    per_token = rank.model.layers * rank.kv_elements * BYTES_PER_ELEMENT[rank.model.kv_dtype]
    fit = _kv_fit(decode)
    batch = _batch_fit(decode)
    kv, weights = _bandwidths(decode, _kv_of_growth(decode, fit, per_token, peak), batch.ms_at_zero, peak)
    error_pct = 100.0 * fit.slope_error / fit.slope if fit and fit.significant else None
    at_most = _kv_at_most(decode, per_token, peak)
    notes = list(_disagreements(kv.gbps, weights.gbps, error_pct or 0.0, peak))
    if rank.model.sliding_window and fit is not None:
        notes.insert(0, "sliding-window layers stop growing: the KV bandwidth is an upper bound")
    return structs.replace(
        traffic,
        kv_bytes_per_token=per_token,
        kv_fit_over=kv.over or UNSET,
        kv_fit_steps=fit.steps if fit else 0,
        kv_ns_per_token=fit.slope * 1e9 if fit and fit.significant else None,
        kv_fit_error_pct=error_pct,
        kv_fitted_gbps=kv.gbps,
        kv_fitted_mbu_pct=kv.mbu_pct,
        kv_fit_reason=kv.reason,
        ms_per_request=batch.ms_per_request,
        ms_at_batch_zero=batch.ms_at_zero,
        batch_fit_reason=batch.reason,
        weights_fitted_gbps=weights.gbps,
        weights_fitted_mbu_pct=weights.mbu_pct,
        weights_fit_over=weights.over,
        weights_fit_reason=weights.reason,
        kv_tokens_at_most=UNSET if at_most is None else at_most.tokens,
        attention_ms_per_decode_step=UNSET if at_most is None else at_most.attention_ms,
        notes=tuple(notes),
    )


@dataclass(frozen=True)
class FittedBandwidth:
    """A bandwidth that the steps imply, in GB/s and in % of the peak, whose time it was fitted over, or why not."""

    gbps: float | None = None
    mbu_pct: float | None = None
    over: str | None = None
    reason: str | None = None


def _fitted(gbps: float, peak: float | None, over: str) -> FittedBandwidth:
    return FittedBandwidth(gbps, 100.0 * gbps / peak if peak else None, over)


def _disagreements(kv: float | None, weights: float | None, kv_error_pct: float, peak: float | None) -> Iterator[str]:
    """Sentences where a fitted bandwidth is beyond the peak or far from the other, by more than the fit's own error."""
    doubt = 1.0 + ERRORS_IN_DOUBT * kv_error_pct / 100.0
    for name, gbps, margin in (("KV", kv, doubt), ("weight", weights, 1.0)):
        if gbps and peak and gbps / margin > MAX_PEAK_RATIO * peak:
            yield f"fitted {name} bandwidth {gbps:.0f} GB/s is above the peak {peak:.0f}: its bytes are overstated"
    if kv and weights and max(kv / weights, weights / kv) > MAX_BANDWIDTH_RATIO * doubt:
        higher = "KV" if kv > weights else "weights"
        yield (
            f"fitted bandwidths disagree: KV {kv:.0f} GB/s, weights {weights:.0f} GB/s; if the {higher} figure is beyond "
            "the hardware its bytes are overstated (KV data type, grouped-query attention), if the other is far below, its "
            "bytes are understated, or its kernels are not bound by memory or read more than they must (paging)"
        )


def _bytes_by_kind(decode: pl.DataFrame) -> Traffic:
    """Mean bytes per decode step by kind; KV and activations only over the steps where KV is known.

    Null where most of those steps do not know theirs: the few that do ran outside padded graphs, with other batches.
    """

    def mean(column: str, frame: pl.DataFrame) -> float | None:
        known = frame[column].drop_nulls()
        return _mean(known) if len(known) * 2 >= max(frame.height, 1) else None

    known = decode.filter(pl.col("bytes_kv").is_not_null())
    unknown = decode.height - known.height
    return Traffic(
        decode_steps=decode.height,
        bytes_weights_per_step=mean("bytes_weights", decode),
        bytes_kv_per_step=mean("bytes_kv", known),
        bytes_activations_per_step=mean("bytes_activations", known if known.height else decode),
        steps_with_known_kv=known.height,
        kv_reason=f"KV lengths unknown in {unknown} of {decode.height} decode steps" if unknown else None,
    )


def _mean(values: pl.Series) -> float:
    """The mean of at least one number."""
    mean = values.mean()
    assert isinstance(mean, float)
    return mean


def _time_per_step(decode: pl.DataFrame, work: KernelWork) -> tuple[pl.Series, pl.Series]:
    """Time of each step's attention kernels (null in all steps where some have none recorded) and of its collectives."""
    steps = decode["step"].to_numpy()
    most = max(int(steps.max(initial=0)), int(work.step.max(initial=0))) + 1

    def spent(rows: npt.NDArray[np.bool_]) -> Floats:
        at = np.flatnonzero(rows & (work.step >= 0))
        return np.asarray(np.bincount(work.step[at], work.duration[at], most)[steps], np.float64)

    places = [PLACE_CODE[place] for place in ("attention", "attention_decode")]  # a split-KV reduction has its place
    attention = spent(np.isin(work.place, places))
    collectives = spent(work.names.op[work.name] == OP_CODE["collective"])
    seen = attention if (attention > 0).all() else [None] * len(steps)
    return pl.Series(seen, dtype=pl.Float64), pl.Series(collectives, dtype=pl.Float64)


def _recorded(decode: pl.DataFrame) -> bool:
    """Whether the attention kernels of the steps are in the capture."""
    return decode["attention_ns"].null_count() == 0


def _kv_fit(decode: pl.DataFrame) -> TimeLine | None:
    """Attention time over KV tokens: its growth between admissions, each stretch of one batch with its own level.

    Where attention is not recorded the time of the whole step takes its place.
    """
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
    seconds = frame["attention_ns" if _recorded(decode) else "busy_ns"].cast(pl.Float64).to_numpy() / 1e9
    return within_groups(frame["grown"].to_numpy(), seconds, frame["stretch"].cast(pl.Int64).to_numpy())


def _kv_of_growth(decode: pl.DataFrame, fit: TimeLine | None, per_token: float, peak: float | None) -> FittedBandwidth:
    """The bandwidth that the growth of step time with the cache implies."""
    over = "attention" if _recorded(decode) else "steps"
    if fit is None:
        return FittedBandwidth(over=over, reason="too few decode steps of one batch in a row")
    if not fit.significant:
        return FittedBandwidth(over=over, reason="time does not grow clearly with the cache")
    return _fitted(per_token / fit.slope / 1e9, peak, over)


def _bandwidths(
    decode: pl.DataFrame, kv: FittedBandwidth, ms_at_batch_zero: float | None, peak: float | None
) -> tuple[FittedBandwidth, FittedBandwidth]:
    """Bandwidth of the cache (``kv``, or what the levels tell where that is none) and of the weights.

    Where the cache's level is known: step time = weight bytes / this + KV bytes / the other. Elsewhere weight bytes over
    the time of the steps without attention and collectives, which counts the small kernels against the weights; or over
    what the fit over the batch leaves at no requests, where attention is not recorded.
    """
    rates = _rates_at_known_level(decode)
    if not isinstance(rates, str):
        if kv.gbps is None:
            kv = FittedBandwidth(1.0 / rates[1] / 1e9, 100.0 / rates[1] / 1e9 / peak if peak else None, "steps")
        return kv, _fitted(1.0 / rates[0] / 1e9, peak, "steps")
    gbps, over = _weights_without_attention(decode), "steps without attention"
    if gbps is None and not _recorded(decode):
        gbps, over = _weights_at_batch_zero(decode, ms_at_batch_zero), "steps at batch zero"
    return kv, _fitted(gbps, peak, over) if gbps else FittedBandwidth(gbps, reason=rates)


def _rates_at_known_level(decode: pl.DataFrame) -> tuple[float, float] | str:
    """Seconds per byte of weights and of cache, or why they cannot be told apart."""
    known = decode.filter(pl.col("bytes_kv").is_not_null() & pl.col("bytes_weights").is_not_null())
    if known.height < MIN_FIT_STEPS:
        return "the level of the KV cache is known in too few decode steps"
    seconds = known["busy_ns"].cast(pl.Float64).to_numpy() / 1e9
    weights, cache = (known[name].to_numpy() for name in ("bytes_weights", "bytes_kv"))
    return two_rates(weights, cache, seconds) or "step time does not grow clearly with the cache"


def _weights_without_attention(decode: pl.DataFrame) -> float | None:
    """Weight bytes over the steps' time outside attention and collectives, GB/s; None where either is not known."""
    if decode.height < MIN_FIT_STEPS or not _recorded(decode) or decode["bytes_weights"].null_count():
        return None
    rest = float((decode["busy_ns"] - decode["attention_ns"] - decode["collective_ns"]).sum())
    size = float(decode["bytes_weights"].sum())
    return size / rest if rest > 0 and size > 0 else None


def _weights_at_batch_zero(decode: pl.DataFrame, ms: float | None) -> float | None:
    """Weight bytes over the step time that is left at no requests, GB/s; None where the weights differ by the batch."""
    sizes = decode["bytes_weights"]
    if ms is None or ms <= 0 or sizes.null_count():
        return None
    values = sizes.to_numpy()
    return None if values.max() > MAX_WEIGHTS_RATIO * values.min() else _mean(sizes) / ms / 1e6


def two_rates(one: Floats, other: Floats, seconds: Floats) -> tuple[float, float] | None:
    """Seconds per byte of two kinds of traffic, by least squares without a constant; None unless both are clear."""
    columns = np.column_stack([one, other])
    scale = columns.max(axis=0, initial=0.0)
    if len(seconds) < MIN_FIT_STEPS or not (scale > 0).all():
        return None
    fit = least_squares(columns / scale, seconds)
    if fit is None or not (fit.coefficients > MIN_SLOPE_OVER_ERROR * fit.standard_errors).all():
        return None
    found = fit.coefficients
    return float(found[0] / scale[0]), float(found[1] / scale[1])


@dataclass(frozen=True)
class BatchFit:
    """Step time over the batch: what one more request costs, KV and all, and what is left at none."""

    ms_per_request: float | None = None
    ms_at_zero: float | None = None
    reason: str | None = None


def _batch_fit(decode: pl.DataFrame) -> BatchFit:
    frame = decode.filter(pl.col("decode_requests").is_not_null())
    batch = frame["decode_requests"].cast(pl.Float64).to_numpy()
    seconds = frame["busy_ns"].cast(pl.Float64).to_numpy() / 1e9
    fit = line(batch, seconds) if len(np.unique(batch)) >= MIN_BATCH_SIZES else None
    if fit is None or not fit.significant:
        return BatchFit(reason="too little contrast in batch size")
    return BatchFit(fit.slope * 1e3, fit.intercept * 1e3 if fit.intercept is not None else None)


@dataclass(frozen=True)
class CacheAtMost:
    """The most KV tokens that the decode attention had time to read at peak bandwidth: a bound on an unknown level."""

    tokens: float
    attention_ms: float  # per decode step


def _kv_at_most(decode: pl.DataFrame, per_token: float, peak: float | None) -> CacheAtMost | None:
    if not peak or not _recorded(decode) or decode["kv_tokens"].null_count() == 0:
        return None
    seconds = _mean(decode["attention_ns"]) / 1e9
    return CacheAtMost(seconds * peak * 1e9 / per_token, seconds * 1e3)
