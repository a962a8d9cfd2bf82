"""What the kernels themselves say against the model, ranks and data types that were chosen.

Work scales with what the user states: four ranks too many and every kernel looks four times too slow, with no ratio
above 100% to give it away. So each statement that leaves a trace in the kernels is held against it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from ...facts.name_signs import sign_pattern
from ...models.model_shape import ModelShape
from ...phases import PhaseResult
from ...records.tables import PHASES

MIN_WIDE_SHARE = 0.9  # of decode's GEMM time in kernels that can read nothing but 16-bit weights
MIN_PACKED_SHARE = 0.5  # of decode's GEMM time in kernels whose names say that they read packed weights
_NARROW_TYPES = ("fp8", "int8", "int4", "fp4")
_NARROW = (pl.col("dtype").is_in(_NARROW_TYPES) | pl.col("weight_dtype").is_in(_NARROW_TYPES)).fill_null(False)
_WIDE = (
    pl.col("library").str.starts_with("cuBLAS") & pl.col("dtype").is_in(("bf16", "fp16", "tf32", "fp32"))
).fill_null(False)
_RANK_SOURCES: Mapping[str, str] = {
    "option": "--tp",
    "command_line": "the command line",
    "world_size": "the world size",
}


@dataclass(frozen=True)
class NameUse:
    """Per distinct name: launches inside steps, and time in pure decode steps."""

    count: npt.NDArray[np.int64]
    decode_ns: npt.NDArray[np.float64]


def name_use(phases: PhaseResult, names: int) -> NameUse:
    """Count the launches of every name inside steps."""
    kernels = phases.kernels
    inside = np.flatnonzero(kernels["step"].to_numpy() >= 0)
    name = kernels["name_id"].to_numpy()[inside]
    phase = kernels["step_phase"].to_physical().to_numpy()[inside]
    ns = (kernels["end_ns"] - kernels["start_ns"]).to_numpy()[inside]
    decode = np.where(phase == list(PHASES.categories).index("decode"), ns, 0)
    return NameUse(np.bincount(name, minlength=names), np.bincount(name, decode, names).astype(np.float64))


def against_kernels(
    shape: ModelShape, ranks: int | None, ranks_source: str | None, facts: pl.DataFrame, use: NameUse
) -> list[str]:
    """Sentences for every choice that the kernels' names contradict."""
    seen = _seen(facts, use)
    found = [_ranks(ranks, ranks_source, seen), _unpacked(shape, seen), _experts(shape, seen), _latent(shape, seen)]
    return [each for each in found if each]


def packed_by_names(shape: ModelShape, facts: pl.DataFrame, use: NameUse) -> str | None:
    """A sentence where most of decode's GEMMs read packed weights by their names and the model's are not packed."""
    gemms = _decode_gemms(_seen(facts, use))
    narrow = gemms.filter(_NARROW).sort("decode_ns", descending=True)
    whole, packed = float(gemms["decode_ns"].sum()), float(narrow["decode_ns"].sum())
    if shape.quantisation is not None or not whole or packed < MIN_PACKED_SHARE * whole:
        return None
    kind = narrow["weight_dtype"][0] or narrow["dtype"][0]
    return (
        f"weights counted as {kind} in the kernels whose names say so ({packed / whole:.0%} of decode's GEMM time), "
        f"as {shape.weight_dtype} elsewhere"
    )


def _seen(facts: pl.DataFrame, use: NameUse) -> pl.DataFrame:
    columns = {"count": pl.Series(use.count), "decode_ns": pl.Series(use.decode_ns)}
    return facts.with_columns(**columns).filter(pl.col("count") > 0)


def _decode_gemms(seen: pl.DataFrame) -> pl.DataFrame:
    return seen.filter(pl.col("op_class").is_in(["gemm", "moe_gemm"]) & (pl.col("decode_ns") > 0))


def _number(seen: pl.DataFrame, op_class: str) -> int:
    return int(seen.filter(pl.col("op_class") == op_class)["count"].sum())


def _ranks(ranks: int | None, source: str | None, seen: pl.DataFrame) -> str | None:
    """Ranks that share a model reduce their results in every layer."""
    if ranks is None or ranks < 2 or not _number(seen, "attention"):
        return None
    if _number(seen, "collective") or (seen["fused_with"].fill_null("") == "collective").any():
        return None
    return (
        f"{ranks} tensor-parallel ranks by {_RANK_SOURCES.get(source or '', 'the groups')}, but no step holds a "
        f"collective: if one device holds the whole model, its work is {ranks} times what is counted"
    )


def _unpacked(shape: ModelShape, seen: pl.DataFrame) -> str | None:
    """Packed weights need kernels that unpack them; cuBLAS kernels of 16-bit types read 16-bit weights."""
    gemms = _decode_gemms(seen)
    whole = float(gemms["decode_ns"].sum())
    if shape.quantisation is None or not whole or gemms.filter(_NARROW).height:
        return None
    share = float(gemms.filter(_WIDE)["decode_ns"].sum()) / whole
    if share < MIN_WIDE_SHARE:
        return None
    return (
        f"weights are said to be {shape.weight_dtype}, but {share:.0%} of decode's GEMM time is in cuBLAS kernels that "
        "read 16-bit weights: counted so"
    )


def _experts(shape: ModelShape, seen: pl.DataFrame) -> str | None:
    experts = _number(seen, "moe_gemm")
    if experts and not shape.experts:
        return f"expert GEMMs run in the steps, but {shape.name} has no experts: their work is unknown"
    if shape.experts and not experts and _number(seen, "attention"):
        return f"{shape.name} has experts, but no expert GEMM runs in the steps"
    return None


def _latent(shape: ModelShape, seen: pl.DataFrame) -> str | None:
    if shape.is_mla:
        return None
    names = seen["library"].fill_null("") + " " + seen["short_name"].fill_null("")
    latent = names.str.contains(sign_pattern("latent_attention")) & (seen["op_class"].cast(pl.String) == "attention")
    return f"attention kernels of latent caches (MLA) run, but {shape.name} has none" if latent.any() else None
