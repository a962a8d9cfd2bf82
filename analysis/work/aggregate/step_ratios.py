"""Work per step: the sums of its kernels, and this device's MFU and MBU over the step's busy time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
from .ratios import boost_pct

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_ATTENTION = ("attention", "attention_prefill", "attention_decode")
MIN_REPLAY_SHARE = 0.1  # of a step's busy time that lies in graph replays, where these left rows of their own


@dataclass(frozen=True)
class Opaque:
    """Steps most of whose kernels are not in the capture, and the work of the whole model in every step."""

    steps: Bools
    whole: WholeSteps


@dataclass(frozen=True)
class StepWork:
    """Work of every step and its ideal times at the ceilings; NaN = unknown."""

    flop: Floats
    bytes: Floats  # a lower bound where ``kv`` or ``activations`` are unknown
    weights: Floats
    kv: Floats
    activations: Floats
    compute_s: Floats
    memory_s: Floats


class _PerStep:
    """Sums over the kernels of each step."""

    def __init__(self, step: npt.NDArray[np.int32], steps: int) -> None:
        self.row = step.astype(np.int64) + 1  # kernels outside every step count for a step before the first
        self.rows = steps + 1

    def total(self, values: Floats, chosen: Bools | None = None) -> Floats:
        """The known values of each step (of the ``chosen`` kernels) added up."""
        counted = ~np.isnan(values) if chosen is None else ~np.isnan(values) & chosen
        return np.bincount(self.row, np.where(counted, values, 0.0), self.rows).astype(np.float64)[1:]

    def has(self, chosen: Bools) -> Bools:
        """Steps with at least one of the ``chosen`` kernels."""
        found = np.zeros(self.rows, np.bool_)
        found[self.row[np.flatnonzero(chosen)]] = True
        return found[1:]


def fill_step_work(
    steps: pl.DataFrame, work: KernelWork, ceilings: Sequence[DeviceCeilings], opaque: Opaque | None = None
) -> tuple[pl.DataFrame, int]:
    """``steps`` with their work columns, and how many ratios were refused.

    ``flop`` and ``bytes_activations`` are null where a GEMM's FLOPs are unknown; ``bytes`` is a lower bound where
    ``bytes_kv`` or they are null (the weights are known, the KV lengths or the tokens are not). Steps that are
    ``opaque`` have the work of the whole model instead, where that is known and their graph replays left a row each;
    else none at all: the few recorded kernels would pass for the whole step.
    """
    per_step = _PerStep(work.step, steps.height)
    busy = steps["busy_ns"].cast(pl.Float64).to_numpy() / 1e9
    own = _recorded_work(per_step, work, opaque)
    if opaque is not None:
        kernel_s = per_step.total(work.duration.astype(np.float64)) / 1e9
        # busy beyond the kernels: the graph replays are rows of their own, so the step's time is whole
        recorded = kernel_s < (1.0 - MIN_REPLAY_SHARE) * busy
        own = _with_whole_model(own, opaque, recorded)
    with np.errstate(divide="ignore", invalid="ignore"):
        mfu, mbu = 100.0 * own.compute_s / busy, 100.0 * own.memory_s / busy
    boost = max((boost_pct(each) for each in ceilings), default=ratios.MAX_MFU_PCT)
    refused = int(np.count_nonzero(mfu > boost) + np.count_nonzero(mbu > ratios.MAX_MBU_PCT))
    columns = {
        "flop": own.flop,
        "bytes": own.bytes,
        "bytes_weights": own.weights,
        "bytes_kv": own.kv,
        "bytes_activations": np.where(own.activations < 0, np.nan, own.activations),
        "mfu_pct": np.where(mfu > boost, np.nan, mfu),
        "mbu_pct": np.where(mbu > ratios.MAX_MBU_PCT, np.nan, mbu),
    }
    filled = [pl.Series(name, values, dtype=pl.Float64).fill_nan(None) for name, values in columns.items()]
    return steps.with_columns(filled), refused


def _recorded_work(per_step: _PerStep, work: KernelWork, opaque: Opaque | None) -> StepWork:
    """The sums of the recorded kernels of each step."""
    total, has = per_step.total, per_step.has
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
    no_rows = no_flop if opaque is None else no_flop & ~opaque.steps  # of GEMMs: only their weights are counted
    compute = np.where(np.isnan(flop), np.nan, total(work.ideal.compute_s, work.matrix))
    unpriced = has(work.matrix & ~np.isnan(work.flop) & np.isnan(work.ideal.compute_s))
    return StepWork(
        flop=flop,
        bytes=size,
        weights=weights,
        kv=kv,
        activations=np.where(no_rows, np.nan, activations),
        compute_s=np.where(unpriced, np.nan, compute),
        memory_s=np.where(any_bytes & has(~np.isnan(work.ideal.memory_s)), total(work.ideal.memory_s), np.nan),
    )


def _with_whole_model(own: StepWork, opaque: Opaque, recorded: Bools) -> StepWork:
    """``own`` with opaque steps unknown, but for the whole model's work where their replays are ``recorded`` rows."""
    modelled = opaque.steps & recorded
    whole = opaque.whole

    def of(values: Floats, model: Floats) -> Floats:
        return np.where(modelled, model, np.where(opaque.steps, np.nan, values))

    weights = of(own.weights, whole.weights)
    kv = of(own.kv, whole.kv)
    activations = of(own.activations, whole.activations)
    size = weights + np.nan_to_num(kv) + np.nan_to_num(activations)
    return StepWork(
        flop=of(own.flop, whole.flop),
        bytes=np.where(opaque.steps, size, own.bytes),
        weights=weights,
        kv=kv,
        activations=activations,
        compute_s=of(own.compute_s, whole.compute_s),
        memory_s=of(own.memory_s, whole.memory_s),
    )


def mfu_at_most(steps: pl.DataFrame, work: KernelWork) -> pl.Series:
    """Per step the MFU in % that the padded work of its graphs bounds from above; null unless useful FLOPs are unknown.

    Attention's FLOPs are in it only where they are known, as in ``mfu_pct``.
    """
    if work.ideal.most_s is work.ideal.compute_s:  # nothing is known of padded work alone
        return pl.Series("mfu_at_most_pct", [None] * steps.height, dtype=pl.Float64)
    inside = work.matrix & (work.step >= 0)
    unknown = np.isnan(work.ideal.most_s)
    chosen = np.zeros(steps.height + 1, np.bool_)
    chosen[work.step[inside & ~unknown & np.isnan(work.flop)]] = True
    attention = is_place(work.place, _ATTENTION)
    chosen[work.step[inside & unknown & ~attention & (work.place > 0)]] = False
    rows = np.flatnonzero(chosen[work.step] & inside & ~unknown)
    seconds = np.bincount(work.step[rows], weights=work.ideal.most_s[rows], minlength=steps.height)
    busy = steps["busy_ns"].cast(pl.Float64).to_numpy() / 1e9
    known = chosen[:-1] & steps["flop"].is_null().to_numpy() & (busy > 0)
    pct = np.divide(100.0 * seconds, busy, out=np.full(steps.height, np.nan), where=known)
    return pl.Series("mfu_at_most_pct", pct).fill_nan(None)


def opaque_steps(phases: PhaseResult) -> npt.NDArray[np.bool_] | None:
    """Steps whose kernels lie in graph replays that left one row or none; None where the capture has them all."""
    if not phases.opaque_graphs:
        return None
    without_nodes = phases.graphs.filter(pl.col("nodes").is_null())["graph_id"].unique()
    few = pl.col("kernel_count") < (phases.layers or 0)
    replayed = pl.col("graph_id").is_in(without_nodes.implode()).fill_null(False)
    found: npt.NDArray[np.bool_] = phases.steps.select((replayed | few).alias("opaque"))["opaque"].to_numpy()
    return found


def kernel_ratios(work: KernelWork, ceilings: Sequence[DeviceCeilings]) -> dict[str, npt.NDArray[np.float32]]:
    """``mfu_pct`` and ``mbu_pct`` per kernel; NaN where unknown, not a matrix kernel, or above the ceiling."""
    boost = max((boost_pct(each) for each in ceilings), default=ratios.MAX_MFU_PCT)
    columns = {name: np.empty(len(work.flop), np.float32) for name in ("mfu_pct", "mbu_pct")}
    for some in stretches(len(work.flop)):
        seconds = np.where(work.duration[some] > 0, work.duration[some], np.nan) / 1e9
        helper = work.helper[some]
        mfu = np.where(work.matrix[some] & ~helper, 100.0 * work.ideal.compute_s[some] / seconds, np.nan)
        mbu = np.where(helper, np.nan, 100.0 * work.ideal.memory_s[some] / seconds)
        columns["mfu_pct"][some] = np.where(mfu > boost, np.nan, mfu)
        columns["mbu_pct"][some] = np.where(mbu > ratios.MAX_MBU_PCT, np.nan, mbu)
    return columns
