"""What the names say, as arrays over distinct names, ready to be picked up per kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import polars as pl

from ...facts.load import load_rows, load_table
from ...facts.name_signs import sign_pattern
from ...facts.rows import MemoryPassRow
from ...models.model_shape import BYTES_PER_ELEMENT, ModelShape, bytes_per_weight
from ...models.usual_storage import USUAL_STORAGE, arithmetic_dtype
from .gemm_orders import OP_CODE, PLACES
from .table_passes import PASS_OP_CLASSES, PLACE_OF_TABLE

Floats = npt.NDArray[np.float64]

DTYPES: tuple[str, ...] = ("", "fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8", "fp4", "int4")
DTYPE_CODE: Mapping[str, int] = {name: code for code, name in enumerate(DTYPES)}
MATRIX_OPS = ("gemm", "moe_gemm", "attention")  # what MFU counts: work of the tensor cores
_SMALL_OPS = ("norm", "rope", "kv_write", "activation")


@dataclass(frozen=True)
class NameColumns:
    """Arrays with one entry per distinct name."""

    op: npt.NDArray[np.uint8]
    has_norm: npt.NDArray[np.bool_]
    fused_add: npt.NDArray[np.bool_]
    fused_place: npt.NDArray[np.int16]  # place code of the small operation fused in, 0 = none
    dtype: npt.NDArray[np.int8]  # code of DTYPES, 0 = the name does not say
    weight_bytes: Floats  # bytes per weight where the name tells the storage, else NaN
    shape_n: npt.NDArray[np.int64]  # 0 = not in the name
    shape_k: npt.NDArray[np.int64]
    tile_elements: npt.NDArray[np.int64]  # tile M x N, 0 = not in the name
    expert_sum: npt.NDArray[np.bool_]  # adds the outputs of a token's experts
    pass_place: npt.NDArray[np.int16]  # of a pass over one table (passes.toml): code of its place, 0 = none
    pass_bytes: Floats  # bytes per element of that table, NaN = none


def name_columns(names: pl.DataFrame, facts: pl.DataFrame, model: ModelShape | None) -> NameColumns:
    """Arrays of ``facts`` (row-aligned with ``names``); ``model`` tells how packed weights are grouped."""
    op = facts["op_class"].to_physical().cast(pl.UInt8).to_numpy()
    fused = facts["fused_with"].fill_null("")
    small = {name: PLACES.index(name) for name in _SMALL_OPS}
    is_small = np.isin(op, [OP_CODE[name] for name in _SMALL_OPS])
    fused_place = fused.replace_strict(small, default=0, return_dtype=pl.Int16).to_numpy()
    dtype = facts["dtype"].replace_strict(DTYPE_CODE, default=0, return_dtype=pl.Int8).to_numpy()
    pass_place, pass_bytes = _passes(names["name"], op)
    tile = (facts["tile_m"].cast(pl.Int64) * facts["tile_n"].cast(pl.Int64)).fill_null(0)
    return NameColumns(
        op=op,
        has_norm=(op == OP_CODE["norm"]) | (fused == "norm").to_numpy(),
        fused_add=names["name"].str.contains(sign_pattern("fused_add")).to_numpy(),
        fused_place=np.where(is_small, fused_place, 0).astype(np.int16),
        dtype=dtype,
        weight_bytes=np.where(np.isnan(ggml := _ggml_bytes(names)), _weight_bytes(facts, model), ggml),
        shape_n=facts["shape_n"].fill_null(0).to_numpy(),
        shape_k=facts["shape_k"].fill_null(0).to_numpy(),
        tile_elements=tile.to_numpy(),
        expert_sum=(op == OP_CODE["moe_routing"]) & names["name"].str.contains(sign_pattern("expert_sum")).to_numpy(),
        pass_place=pass_place,
        pass_bytes=pass_bytes,
    )


def _weight_bytes(facts: pl.DataFrame, model: ModelShape | None) -> Floats:
    """Bytes per weight by what the name says: packed type first, then a narrow arithmetic type."""

    def storage(kind: str) -> float:
        quantisation = model.quantisation if model is not None else None
        if model is not None and quantisation is not None and quantisation.bits == 8 * BYTES_PER_ELEMENT[kind]:
            return bytes_per_weight(model, "qkv")
        usual = USUAL_STORAGE[kind]
        groups = usual.scale_bytes / usual.group_size if usual.group_size > 0 else 0.0
        return usual.bits / 8 + groups

    known = {kind: storage(kind) for kind in ("int4", "int8", "fp8", "fp4")}
    weights_only = model is None or model.quantisation is None or model.quantisation.weight_only
    plain: dict[str, float] = {"fp32": 4.0, "tf32": 4.0}
    if not weights_only:  # weights and activations are quantised, so a wider GEMM is one that was left out
        plain |= {"bf16": 2.0, "fp16": 2.0}
    packed = facts["weight_dtype"].replace_strict(
        {**known, "bf16": 2.0, "fp16": 2.0}, default=None, return_dtype=pl.Float64
    )
    direct = facts["dtype"].replace_strict({**known, **plain}, default=None, return_dtype=pl.Float64)
    # cuBLAS unpacks nothing: its 16-bit kernels read 16-bit weights whatever the checkpoint holds
    unpacks_not = facts["library"].str.starts_with("cuBLAS").fill_null(False)
    wide = facts["dtype"].replace_strict({"bf16": 2.0, "fp16": 2.0}, default=None, return_dtype=pl.Float64)
    wide = pl.select(pl.when(unpacks_not).then(wide)).to_series()
    return pl.select(pl.coalesce(packed, direct, wide).fill_null(float("nan"))).to_series().to_numpy()


@cache
def memory_passes() -> tuple[MemoryPassRow, ...]:
    """Rows of memory_passes.toml."""
    return load_rows("memory_passes", "pass", MemoryPassRow)


def _passes(names: pl.Series, op: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.int16], Floats]:
    """Place and bytes per element of names that pass over one table (``table_passes``)."""
    place, size = np.zeros(len(names), np.int16), np.full(len(names), np.nan)
    rows = np.flatnonzero(np.isin(op, [OP_CODE[op_class] for op_class in PASS_OP_CLASSES]))
    own = names.gather(rows)
    for each in reversed(memory_passes()):
        hit = rows[own.str.contains(each.pattern).to_numpy()]
        place[hit], size[hit] = PLACES.index(PLACE_OF_TABLE[each.of]), each.bytes
    return place, size


@cache
def ggml_storage() -> Mapping[int, float]:
    """Bytes per weight of each ggml type, by its number, from weight_storage.toml."""
    table = load_table("weight_storage")
    return {row["number"]: row["block_bytes"] / row["block_weights"] for row in table["ggml"].values()}


def _ggml_bytes(names: pl.DataFrame) -> Floats:
    """Bytes per weight where a llama.cpp kernel's template names the ggml type; NaN elsewhere."""
    number = names["name"].str.extract(r"mul_mat\w*<\(ggml_type\)(\d+)").cast(pl.Int64)
    size = number.replace_strict(dict(ggml_storage()), default=None, return_dtype=pl.Float64)
    return size.fill_null(float("nan")).to_numpy()


def place_defaults(model: ModelShape | None) -> tuple[Floats, npt.NDArray[np.int8]]:
    """Bytes per weight and arithmetic type (code) of each place, where the kernel's name does not say."""
    size = np.full(len(PLACES), np.nan)
    dtype = np.zeros(len(PLACES), np.int8)
    if model is not None:
        for code, place in enumerate(PLACES):
            size[code] = bytes_per_weight(model, place)
            kind = model.activation_dtype if place.startswith("attention") else arithmetic_dtype(model, place)
            dtype[code] = DTYPE_CODE.get(kind, 0)
    return size, dtype
