"""Nsight Compute results joined to the kernels by (name, grid, block): bytes and FLOPs from there, never times.

Nsight Compute serialises kernels, flushes caches and locks clocks, so its durations are not those of serving. Its
FLOPs are the executed ones, tile padding included; useful FLOPs stay the model's where there is a model.

Persistent kernels launch one grid whatever the matrix, so one key can hold the GEMMs of several places. Where the
profiled launches of a key differ, or the kernels of a key differ by the model, a launch is matched to the kernels whose
modelled bytes are near its own, and the rest of the key stays as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from ...kernels.canonical_names import join_key
from ...records.trace import Trace
from ...records.work import NcuJoin, NcuPair
from ..kernel_work import SOURCE_CODE, KernelWork, WorkLayer
from ..operators.gemm_orders import OP_CODE
from ..operators.name_arrays import DTYPE_CODE

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

MAX_MODEL_RATIO = 1.5  # of modelled and measured work, either way: beyond it the difference is reported
MAX_BYTES_RATIO = 1.2  # of the launches of one key, largest over smallest: up to it they are the same work
GEOMETRY = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")
_DTYPES = ("bf16", "fp16", "tf32", "fp8", "fp4", "int8", "fp64")
_CASES_PER_E_FOLD = 35.0  # of modelled bytes: kernels within 3% are one case


@dataclass(frozen=True)
class JoinedResults:
    """The measured work, and what the join met."""

    record: NcuJoin
    layers: tuple[WorkLayer, ...] = ()
    warnings: tuple[str, ...] = ()


def read_results(paths: Sequence[Path]) -> pl.DataFrame | None:
    """All profiled launches of the ``--ncu`` files, or None without files. Raises NotACaptureError for other files."""
    if not paths:
        return None
    from ....ingest.ncu.ncu_csv import read_ncu

    return pl.concat([read_ncu(Path(path)) for path in paths], how="vertical_relaxed")


def join_results(results: pl.DataFrame, kernels: pl.DataFrame, trace: Trace, work: KernelWork) -> JoinedResults:
    """Bytes and executed FLOPs of the kernels that a profiled launch stands for, and what the join met."""
    names = trace.names
    profiled = _profiled(results)
    cases = _cases(kernels, work)
    distinct = cases.select("name_id", *GEOMETRY, "bucket", "model", "modelled_flop", "op").unique(
        ["name_id", *GEOMETRY, "bucket"], maintain_order=True
    )
    distinct = distinct.join(names.select("name_id", key=join_key(names["name"])), on="name_id")
    met = profiled.join(distinct.select("key", *GEOMETRY).unique(), on=["key", *GEOMETRY], how="semi")
    if not met.height:
        note = "no profiled launch has the name, grid and block of a kernel in this capture"
        return JoinedResults(NcuJoin(launches=results.height, joined_launches=0, kernels=0, notes=(note,), pairs=()))
    chosen = _choose(distinct, met)
    joined = cases.join(chosen, on=["name_id", *GEOMETRY, "bucket"], how="left", maintain_order="left")
    # attention's work grows with the cache, which the key does not hold: it is compared, never replaced
    lengths = (joined["op"] == OP_CODE["attention"]).to_numpy()
    size, flop = (
        np.where(lengths, np.nan, joined[name].fill_null(float("nan")).to_numpy()) for name in ("dram_bytes", "flop")
    )
    if trace.holds_sums:  # a row is many launches like the profiled one
        launches = trace.launch_counts["launch_count"].to_numpy()
        size, flop = size * launches, flop * launches
    has_size, has_flop = ~np.isnan(size), ~np.isnan(flop)
    alone = has_flop & np.isnan(work.flop)
    layers = _layers(Counted(size, flop, has_size, has_flop), alone, joined, work)
    notes = _notes(results, met, attention=bool(lengths[joined["dram_bytes"].is_not_null().to_numpy()].any()))
    record = NcuJoin(
        launches=results.height,
        joined_launches=met.height,
        kernels=trace.count_launches(has_size | has_flop),
        notes=tuple(notes),
        pairs=tuple(_pairs(chosen, names)),
    )
    return JoinedResults(record, layers, tuple(_warnings(chosen, names)))


def join_own_launches(results: pl.DataFrame, kernels: pl.DataFrame, work: KernelWork) -> JoinedResults | None:
    """Counters of an input that is itself Nsight Compute results: every kernel has its own, attention too.

    None when the kernels are not the timed launches of ``results``, one by one.
    """
    timed = results.filter(pl.col("duration_ns").is_not_null() & (pl.col("duration_ns") > 0))
    if timed.height != kernels.height:
        return None
    own = timed[kernels["correlation_id"].to_numpy()]  # the reader numbers the launches in their order
    size, flop = (own[name].cast(pl.Float64).fill_null(float("nan")).to_numpy() for name in ("dram_bytes", "flop"))
    has_size, has_flop = ~np.isnan(size), ~np.isnan(flop)
    layers = _layers(Counted(size, flop, has_size, has_flop), has_flop, own, work)
    notes = ["durations and counters are Nsight Compute's, which locks clocks and flushes caches: serving is faster"]
    notes.append("FLOPs are the executed ones, tile padding included")
    record = NcuJoin(
        launches=results.height,
        joined_launches=timed.height,
        kernels=int((has_size | has_flop).sum()),
        notes=tuple(notes + _missing_counters(timed) + _reasons(results)),
        pairs=(),
    )
    return JoinedResults(record, layers)


@dataclass(frozen=True)
class Counted:
    """Measured bytes and executed FLOPs per kernel, NaN without, and which kernels have them."""

    size: Floats
    flop: Floats
    has_size: Bools
    has_flop: Bools


def _layers(counted: Counted, useful: Bools, counters: pl.DataFrame, work: KernelWork) -> tuple[WorkLayer, ...]:
    """The measured work; ``useful``: kernels whose useful FLOPs are the executed ones."""
    sized, executed, alone = (np.flatnonzero(each) for each in (counted.has_size, counted.has_flop, useful))
    known = np.flatnonzero(counted.has_size | useful)
    measured = np.full(len(known), SOURCE_CODE["measured"], np.uint8)
    return (
        WorkLayer(sized, bytes=counted.size[sized]),
        WorkLayer(executed, flop_executed=counted.flop[executed]),
        WorkLayer(alone, flop=counted.flop[alone]),
        WorkLayer(known, source=measured),
        _types_of_pipes(counters, work),
    )


def _types_of_pipes(counters: pl.DataFrame, work: KernelWork) -> WorkLayer:
    """Arithmetic types from the tensor pipes that ran, where the name does not say."""
    found = np.zeros(len(work.dtype), work.dtype.dtype)
    for dtype in _DTYPES:
        counted = (counters[f"flop_tensor_{dtype}"].fill_null(0.0) > 0).to_numpy()
        found[counted & (work.dtype == 0) & (found == 0)] = DTYPE_CODE[dtype]
    rows = np.flatnonzero(found)
    return WorkLayer(rows, dtype=found[rows])


def _profiled(results: pl.DataFrame) -> pl.DataFrame:
    """Profiled launches with their join key; launches of one key and equal bytes are one row of means."""
    tensor = [f"flop_tensor_{dtype}" for dtype in _DTYPES]
    frame = results.with_columns(
        key=join_key(results["name"]), **{name: pl.col(name).cast(pl.Int32) for name in GEOMETRY}
    )
    return frame.select("key", *GEOMETRY, "dram_bytes", "flop", *tensor)


def _cases(kernels: pl.DataFrame, work: KernelWork) -> pl.DataFrame:
    """Every kernel with its geometry and a bucket of its modelled bytes (-1 = none)."""
    size = np.where(work.bytes > 0, work.bytes, np.nan)
    bucket = np.nan_to_num(np.round(np.log(size) * _CASES_PER_E_FOLD), nan=-1.0).astype(np.int64)
    return kernels.select("name_id", *GEOMETRY).with_columns(
        bucket=pl.Series(bucket),
        model=pl.Series(size, nan_to_null=True),
        modelled_flop=pl.Series(work.flop_executed, nan_to_null=True),
        op=pl.Series(work.names.op[work.name]),
    )


def _choose(distinct: pl.DataFrame, met: pl.DataFrame) -> pl.DataFrame:
    """For each case of the capture the profiled launch that stands for it, if one does."""
    keys = ["key", *GEOMETRY]
    spread = met.group_by(keys).agg(
        same_measured=(pl.col("dram_bytes").max() <= MAX_BYTES_RATIO * pl.col("dram_bytes").min()).fill_null(True)
    )
    modelled = distinct.group_by(keys).agg(
        same_modelled=(pl.col("model").max() <= MAX_BYTES_RATIO * pl.col("model").min()).fill_null(True)
    )
    pairs = distinct.join(met, on=keys).join(spread, on=keys).join(modelled, on=keys)
    ratio = (pl.col("model").log() - pl.col("dram_bytes").log()).abs()
    pairs = pairs.with_columns(distance=ratio)
    near = pl.col("distance") <= float(np.log(MAX_MODEL_RATIO))
    only = pl.col("same_measured") & pl.col("same_modelled")
    known = pl.col("model").is_not_null() & pl.col("dram_bytes").is_not_null()
    usable = pl.when(known).then(near | only).otherwise(pl.col("same_measured"))
    best = pairs.filter(usable).sort("distance", nulls_last=True)
    return best.unique(["name_id", *GEOMETRY, "bucket"], keep="first", maintain_order=True).drop("key", "op")


def _warnings(chosen: pl.DataFrame, names: pl.DataFrame) -> list[str]:
    """One sentence per kernel where model and counters differ by more than 1.5 times."""
    warnings = []
    for what, model, seen, unit in (
        ("bytes", "model", "dram_bytes", "B"),
        ("executed FLOPs", "modelled_flop", "flop", "FLOP"),
    ):
        both = chosen.filter((pl.col(model) > 0) & (pl.col(seen) > 0)).sort("name_id", model)
        for name_id, modelled, counted in both.select("name_id", model, seen).iter_rows():
            if max(modelled / counted, counted / modelled) > MAX_MODEL_RATIO:
                short = names["short_name"][name_id]
                warnings.append(
                    f"{short}: {what} {modelled:.4g} {unit} by the model, {counted:.4g} {unit} by Nsight Compute"
                )
    return list(dict.fromkeys(warnings))


def _pairs(chosen: pl.DataFrame, names: pl.DataFrame) -> Iterator[NcuPair]:
    """Modelled beside measured work of one launch, the largest first, fifty at most."""
    short = names.select("name_id", "short_name")
    columns = {
        "bytes_model": "model",
        "bytes_measured": "dram_bytes",
        "flop_executed_model": "modelled_flop",
        "flop_executed_measured": "flop",
    }
    pairs = chosen.join(short, on="name_id").sort("dram_bytes", "name_id", descending=[True, False], nulls_last=True)
    rows = pairs.select("short_name", *GEOMETRY[:3], **columns).head(50).iter_rows(named=True)
    return (NcuPair(**row) for row in rows)


def _notes(results: pl.DataFrame, met: pl.DataFrame, *, attention: bool) -> list[str]:
    notes = ["durations are those of Nsight Systems; Nsight Compute locks clocks and flushes caches"]
    notes += _missing_counters(met)
    if attention:
        notes.append(
            "attention is compared, not replaced: its work depends on cache lengths, which name and grid do not tell"
        )
    return notes + _reasons(results)


def _missing_counters(launches: pl.DataFrame) -> list[str]:
    return [
        f"the results hold no {what}: collect the `roofline` or `full` section set"
        for what, column in (("DRAM bytes", "dram_bytes"), ("FLOP counters", "flop"))
        if not launches[column].count()
    ]


def _reasons(results: pl.DataFrame) -> list[str]:
    """Why some counters are missing, in the reader's words, three at most."""
    return [reason for reason in results["reason"].drop_nulls().unique().sort().to_list() if reason][:3]
