"""Nsight Compute results joined to the kernels by (name, grid, block): bytes and FLOPs from there, never times.

Nsight Compute serialises kernels, flushes caches and locks clocks, so its durations are not those of serving. Its
FLOPs are the executed ones, tile padding included; useful FLOPs stay the model's where there is a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from ..names import join_key
from .assign import SOURCE_CODE, KernelWork

DISAGREES = 1.5
GEOMETRY = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")
_DTYPES = ("bf16", "fp16", "tf32", "fp8", "fp4", "int8", "fp64")


@dataclass(frozen=True)
class JoinReport:
    """What the join did."""

    launches: int  # profiled launches read
    joined_launches: int  # of which a kernel of the capture has name, grid and block
    kernels: int  # kernels of the capture that got measured work
    warnings: tuple[str, ...]
    notes: tuple[str, ...]


def read_results(paths: Sequence[Path]) -> pl.DataFrame | None:
    """All profiled launches of the ``--ncu`` files, or None without files. Raises NotACaptureError for other files."""
    if not paths:
        return None
    from ...ingest.ncu_csv import read_ncu

    return pl.concat([read_ncu(Path(path)) for path in paths], how="vertical_relaxed")


def join_results(results: pl.DataFrame, kernels: pl.DataFrame, names: pl.DataFrame, work: KernelWork) -> JoinReport:
    """Replace bytes and executed FLOPs of every kernel whose (name, grid, block) was profiled."""
    profiled = results.with_columns(
        key=join_key(results["name"]), **{name: pl.col(name).cast(pl.Int32) for name in GEOMETRY}
    )
    tensor = [f"flop_tensor_{dtype}" for dtype in _DTYPES if f"flop_tensor_{dtype}" in profiled.columns]
    measured = profiled.group_by("key", *GEOMETRY).agg(
        pl.col("dram_bytes", "flop", *tensor).mean(), pl.len().alias("launches")
    )
    own = kernels.select("name_id", *GEOMETRY)
    distinct = own.unique().join(names.select("name_id", key=join_key(names["name"])), on="name_id")
    matched = distinct.join(measured, on=["key", *GEOMETRY], how="inner")
    if not matched.height:
        return JoinReport(
            results.height, 0, 0, (), ("no profiled launch has a kernel of this capture's name and grid",)
        )
    joined = own.join(matched, on=["name_id", *GEOMETRY], how="left", maintain_order="left")
    size = joined["dram_bytes"].fill_null(float("nan")).to_numpy()
    flop = joined["flop"].fill_null(float("nan")).to_numpy()
    warnings = _compare(names, kernels, work, size, flop)
    has_size, has_flop = ~np.isnan(size), ~np.isnan(flop)
    work.bytes[has_size] = size[has_size]
    work.source[has_size] = SOURCE_CODE["measured"]
    work.flop_executed[has_flop] = flop[has_flop]
    alone = has_flop & np.isnan(work.flop)
    work.flop[alone] = flop[alone]
    work.source[alone] = SOURCE_CODE["measured"]
    _set_dtypes(joined, tensor, work)
    notes = _notes(results, matched, has_size, has_flop)
    seen = measured.join(matched.select("key", *GEOMETRY).unique(), on=["key", *GEOMETRY], how="semi")
    return JoinReport(
        results.height, int(seen["launches"].sum()), int((has_size | has_flop).sum()), tuple(warnings), tuple(notes)
    )


def _set_dtypes(joined: pl.DataFrame, tensor: list[str], work: KernelWork) -> None:
    """Where a name does not say, the counter that moved tells the arithmetic type."""
    from .name_columns import DTYPE_CODE

    for column in tensor:
        counted = (joined[column].fill_null(0.0) > 0).to_numpy() & (work.dtype == 0)
        work.dtype[counted] = DTYPE_CODE[column.removeprefix("flop_tensor_")]


def _compare(names: pl.DataFrame, kernels: pl.DataFrame, work: KernelWork, size: Any, flop: Any) -> list[str]:
    """Warnings, one per name, where model and counters differ by more than 1.5 times."""
    frame = pl.DataFrame(
        {"name_id": kernels["name_id"], "model": work.bytes, "seen": size, "flop": work.flop_executed, "counted": flop}
    ).fill_nan(None)
    warnings = []
    for what, model, seen, unit in (("bytes", "model", "seen", "B"), ("executed FLOPs", "flop", "counted", "FLOP")):
        both = frame.filter((pl.col(model) > 0) & (pl.col(seen) > 0))
        by_name = both.group_by("name_id").agg(pl.col(model, seen).mean()).sort("name_id")
        for name_id, modelled, counted in by_name.select("name_id", model, seen).iter_rows():
            if max(modelled / counted, counted / modelled) > DISAGREES:
                short = names["short_name"][name_id]
                warnings.append(
                    f"{short}: {what} {modelled:.4g} {unit} by the model, {counted:.4g} {unit} by Nsight Compute"
                )
    return warnings


def _notes(results: pl.DataFrame, matched: pl.DataFrame, has_size: Any, has_flop: Any) -> list[str]:
    notes = ["durations are those of Nsight Systems; Nsight Compute locks clocks and flushes caches"]
    if not has_size.any():
        notes.append("the results hold no DRAM bytes: collect the `roofline` or `full` section set")
    if not has_flop.any():
        notes.append("the results hold no FLOP counters: collect the `roofline` or `full` section set")
    reasons = [reason for reason in results["reason"].drop_nulls().unique().sort().to_list() if reason]
    return notes + reasons[:3]
