"""Work per step: the sums of its kernels, and this device's MFU and MBU over the step's busy time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from ...gpus.device_ceilings import DeviceCeilings
from ...numeric.row_chunks import stretches
from ...phases import PhaseResult
from ..kernel_work import NAME, KernelWork
from ..operators.kernel_places import is_place
from ..step_costs.whole_step_costs import WholeSteps
from . import ratios
from .kernel_tables import boost_pct

Floats = npt.NDArray[np.float64]

_ATTENTION = ("attention", "attention_prefill", "attention_decode")
REPLAY_SHARE = 0.1  # of a step's busy time that must lie in recorded graph replays


def fill_step_work(
    steps: pl.DataFrame,
    work: KernelWork,
    ceilings: Sequence[DeviceCeilings],
    *,
    incomplete: npt.NDArray[np.bool_] | None = None,
    whole: WholeSteps | None = None,
) -> tuple[pl.DataFrame, int]:
    """``steps`` with their work columns, and how many ratios were refused.

    ``flop`` and ``bytes_activations`` are null where a GEMM's FLOPs are unknown; ``bytes`` is a lower bound where
    ``bytes_kv`` or they are null (the weights are known, the KV lengths or the tokens are not). Steps that are
    ``incomplete`` (most of their kernels are not in the capture) have the work of the ``whole`` model instead, where
    that is known and their graph replays left a row each; else none at all: the few recorded kernels would pass for
    the whole step.
    """
    n = steps.height
    step = work.step.astype(np.int64) + 1  # kernels outside every step count for a step before the first

    def total(values: Floats, chosen: npt.NDArray[np.bool_] | None = None) -> Floats:
        counted = ~np.isnan(values) if chosen is None else ~np.isnan(values) & chosen
        return np.bincount(step, np.where(counted, values, 0.0), n + 1).astype(np.float64)[1:]

    def has(chosen: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        found = np.zeros(n + 1, np.bool_)
        found[step[np.flatnonzero(chosen)]] = True
        return found[1:]

    attention = is_place(work.place, _ATTENTION)
    placed_gemm = work.matrix & ~attention & (work.place > 0)
    no_flop = has(placed_gemm & np.isnan(work.flop))
    any_flop = has(work.matrix & ~np.isnan(work.flop))
    no_kv = has(attention & ~work.helper & np.isnan(work.kv))
    any_bytes = has(~np.isnan(work.bytes))
    if work.bounds is not None:  # some GEMMs of a step bounded and some not are no work of the step
        gemm, named = work.matrix & ~attention, has(work.source == NAME)
        no_flop |= named & has(gemm & np.isnan(work.flop))
        any_bytes &= ~named | ~has(gemm & np.isnan(work.bytes))
    flop = np.where(any_flop & ~no_flop, total(work.flop), np.nan)
    size = np.where(any_bytes, total(work.bytes), np.nan)
    weights = np.where(any_bytes, total(work.weights), np.nan)
    kv_bytes = total(work.kv)
    kv = np.where(any_bytes & ~no_kv, kv_bytes, np.nan)
    activations = size - weights - np.where(np.isnan(kv), kv_bytes, kv)
    unknown_rows = no_flop if incomplete is None else no_flop & ~incomplete  # of GEMMs: only their weights are counted
    busy = steps["busy_ns"].cast(pl.Float64).to_numpy() / 1e9
    compute = np.where(np.isnan(flop), np.nan, total(work.compute_s, work.matrix))
    unpriced = has(work.matrix & ~np.isnan(work.flop) & np.isnan(work.compute_s))
    compute = np.where(unpriced, np.nan, compute)
    memory = np.where(any_bytes & has(~np.isnan(work.memory_s)), total(work.memory_s), np.nan)
    if incomplete is not None:
        modelled = incomplete & _replays_recorded(busy, total(work.duration.astype(np.float64)))
        for own, model in (
            *((flop, "flop"), (weights, "weights"), (kv, "kv"), (activations, "activations")),
            *((compute, "compute_s"), (memory, "memory_s")),
        ):
            own[incomplete] = np.nan
            if whole is not None:
                own[modelled] = getattr(whole, model)[modelled]
        size[incomplete] = (weights + np.nan_to_num(kv) + np.nan_to_num(activations))[incomplete]
    with np.errstate(divide="ignore", invalid="ignore"):
        mfu, mbu = 100.0 * compute / busy, 100.0 * memory / busy
    boost = max((boost_pct(each) for each in ceilings), default=ratios.MFU_BOOST_PCT)
    refused = int(np.count_nonzero(mfu > boost) + np.count_nonzero(mbu > ratios.MBU_NOISE_PCT))
    mfu = np.where(mfu > boost, np.nan, mfu)
    mbu = np.where(mbu > ratios.MBU_NOISE_PCT, np.nan, mbu)
    columns = {
        "flop": flop,
        "bytes": size,
        "bytes_weights": weights,
        "bytes_kv": kv,
        "bytes_activations": np.where((activations < 0) | unknown_rows, np.nan, activations),
        "mfu_pct": mfu,
        "mbu_pct": mbu,
    }
    filled = [pl.Series(name, values, dtype=pl.Float64).fill_nan(None) for name, values in columns.items()]
    return steps.with_columns(filled), refused


def mfu_at_most(steps: pl.DataFrame, work: KernelWork) -> pl.Series:
    """Per step the MFU in % that the padded work of its graphs bounds from above; null unless useful FLOPs are unknown.

    Attention's FLOPs are in it only where they are known, as in ``mfu_pct``.
    """
    if work.most_s is work.compute_s:  # nothing is known of padded work alone
        return pl.Series("mfu_at_most_pct", [None] * steps.height, dtype=pl.Float64)
    inside = work.matrix & (work.step >= 0)
    unknown = np.isnan(work.most_s)
    chosen = np.zeros(steps.height + 1, np.bool_)
    chosen[work.step[inside & ~unknown & np.isnan(work.flop)]] = True
    attention = is_place(work.place, _ATTENTION)
    chosen[work.step[inside & unknown & ~attention & (work.place > 0)]] = False
    rows = np.flatnonzero(chosen[work.step] & inside & ~unknown)
    seconds = np.bincount(work.step[rows], weights=work.most_s[rows], minlength=steps.height)
    busy = steps["busy_ns"].cast(pl.Float64).to_numpy() / 1e9
    known = chosen[:-1] & steps["flop"].is_null().to_numpy() & (busy > 0)
    pct = np.divide(100.0 * seconds, busy, out=np.full(steps.height, np.nan), where=known)
    return pl.Series("mfu_at_most_pct", pct).fill_nan(None)


def _replays_recorded(busy_s: Floats, kernel_ns: Floats) -> npt.NDArray[np.bool_]:
    """Steps that are busy beyond their kernels: their graph replays are rows of their own, so their time is whole."""
    return kernel_ns / 1e9 < (1.0 - REPLAY_SHARE) * busy_s


def opaque_steps(phases: PhaseResult) -> npt.NDArray[np.bool_] | None:
    """Steps whose kernels lie in graph replays that left one row or none; None where the capture has them all."""
    if not phases.opaque_graphs:
        return None
    without_nodes = phases.graphs.filter(pl.col("nodes").is_null())["graph_id"].unique()
    few = pl.col("kernel_count") < (phases.layers or 0)
    replayed = pl.col("graph_id").is_in(without_nodes.implode()).fill_null(False)
    found: npt.NDArray[np.bool_] = phases.steps.select((replayed | few).alias("opaque"))["opaque"].to_numpy()
    return found


def kernel_columns(work: KernelWork, ceilings: Sequence[DeviceCeilings]) -> dict[str, npt.NDArray[np.float32]]:
    """``mfu_pct`` and ``mbu_pct`` per kernel; NaN where unknown, not a matrix kernel, or above the ceiling."""
    boost = max((boost_pct(each) for each in ceilings), default=ratios.MFU_BOOST_PCT)
    columns = {name: np.empty(len(work.flop), np.float32) for name in ("mfu_pct", "mbu_pct")}
    for some in stretches(len(work.flop)):
        seconds = np.where(work.duration[some] > 0, work.duration[some], np.nan) / 1e9
        helper = work.helper[some]
        mfu = np.where(work.matrix[some] & ~helper, 100.0 * work.compute_s[some] / seconds, np.nan)
        mbu = np.where(helper, np.nan, 100.0 * work.memory_s[some] / seconds)
        columns["mfu_pct"][some] = np.where(mfu > boost, np.nan, mfu)
        columns["mbu_pct"][some] = np.where(mbu > ratios.MBU_NOISE_PCT, np.nan, mbu)
    return columns
