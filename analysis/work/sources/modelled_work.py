"""Work by the model: what the place of a kernel costs in its step, picked from one table for all kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ...numeric.row_chunks import stretches
from ..kernel_work import MODEL, UNKNOWN, PlacedKernels, WorkLayer
from ..operators.gemm_orders import PLACE_CODE
from ..operators.kernel_places import is_place
from ..operators.layer_matrices import RankShape
from ..operators.name_arrays import place_defaults
from ..operators.table_passes import PASS_PLACES
from ..step_costs.place_costs import ROW_CODE, WINDOWED, WorkTable, work_table

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.int64]

_RESIDUAL_FLOP = 1.25  # a norm with the residual does one operation more per element than the four of a norm


def modelled_layers(kernels: PlacedKernels, rank: RankShape) -> Iterator[WorkLayer]:
    """The work of all kernels in steps that are the model's, some rows at a time."""
    table = work_table(rank, kernels.sums)
    rows = np.flatnonzero((kernels.step >= 0) & (kernels.place > 0))
    rows = rows[kernels.countable[kernels.step[rows]]]
    for some in stretches(len(rows)):
        yield _layer(kernels, rank, table, rows[some])


def _layer(kernels: PlacedKernels, rank: RankShape, table: WorkTable, rows: Rows) -> WorkLayer:
    """The work of the kernels in ``rows``, picked from the table of their steps."""
    place, name = kernels.place[rows], kernels.name[rows]
    share = kernels.share[rows]
    flat = _TableCells(table, _windowed(place.astype(np.int64), kernels.layer[rows], rank), kernels.step[rows])
    weights = (flat(table.weight_elements) * _weight_bytes(kernels, rank, rows) + flat(table.weight_bytes)) * share
    passes = is_place(place, PASS_PLACES)  # counted in elements: an unknown kernel's passes are unknown
    per_element = np.where(passes, kernels.names.pass_bytes[name], 1.0)
    activations = flat(table.activations) * share * per_element
    # the least bytes of a GEMM whose token count is unknown are its weights
    floor = np.isnan(activations) & (weights > 0)
    activations = np.where(floor, 0.0, activations)
    flop, executed, kv = flat(table.flop) * share, flat(table.flop_executed) * share, flat(table.kv) * share
    size = weights + kv + activations
    moves_only = np.isnan(size) & (flop == 0)  # nothing is known of these
    flop[moves_only] = executed[moves_only] = np.nan
    layer = WorkLayer(rows, flop, executed, size, weights, kv)
    _add_fused(layer, kernels, table)
    helpers = kernels.helper[rows]
    for column in (flop, executed, size, weights, kv):
        column[helpers] = 0.0
    # an lm_head launched outside the step's graph computes real rows, not padded ones
    outside = (place == PLACE_CODE["lm_head"]) & ~kernels.in_graph[rows]
    executed[outside] = flop[outside]
    _, default_dtype = place_defaults(rank.model)
    dtype = kernels.dtype_in_name[rows]
    silent = (dtype == 0) & kernels.matrix[rows]
    return replace(
        layer,
        source=np.where(np.isnan(size), UNKNOWN, MODEL).astype(np.uint8),
        dtype=np.where(silent, default_dtype[place], dtype),
    )


class _TableCells:
    """Picks (row, step) cells of a table for the kernels."""

    def __init__(self, table: WorkTable, row: npt.NDArray[np.int64], step: npt.NDArray[np.int32]) -> None:
        self.index = row * table.flop.shape[1] + step

    def __call__(self, column: Floats) -> Floats:
        return np.asarray(column.ravel()[self.index])


def _windowed(at: Rows, layer: npt.NDArray[np.int16], rank: RankShape) -> Rows:
    """Rows of the table with attention of sliding-window layers sent to the windowed variant."""
    model = rank.model
    if not model.sliding_window or not model.sliding_layers:
        return at
    sliding = np.zeros(model.layers + 1, bool)
    sliding[list(model.sliding_layers)] = True
    in_window = sliding[np.clip(layer, -1, model.layers)]
    for place in WINDOWED:
        at = np.where(in_window & (at == ROW_CODE[place]), ROW_CODE[f"{place}/window"], at)
    return at


def _weight_bytes(kernels: PlacedKernels, rank: RankShape, rows: Rows) -> Floats:
    """Bytes per weight of each kernel: its name's word, else the model's for that place."""
    by_place, _ = place_defaults(rank.model)
    told = kernels.names.weight_bytes[kernels.name[rows]]
    return np.where(np.isnan(told) | ~kernels.matrix[rows], by_place[kernels.place[rows]], told)


def _add_fused(layer: WorkLayer, kernels: PlacedKernels, table: WorkTable) -> None:
    """Small kernels that do two operations carry both; a norm with the residual moves it as well.

    Writes into the columns of a layer that is not handed out yet.
    """
    rows = layer.rows
    flop, executed, size, kv = layer.flop, layer.flop_executed, layer.bytes, layer.kv
    assert flop is not None and executed is not None and size is not None and kv is not None
    place, names = kernels.place[rows], kernels.names
    fused = names.fused_place[kernels.name[rows]].astype(np.int64)
    both = np.flatnonzero(fused > 0)
    if len(both):
        extra = _TableCells(table, fused[both], kernels.step[rows[both]])
        part = kernels.share[rows[both]]
        flop[both] += extra(table.flop) * part
        executed[both] += extra(table.flop_executed) * part
        # what is fused in reads what the kernel already holds: only its cache traffic is added
        kv[both] += extra(table.kv) * part
        size[both] += extra(table.kv) * part
        # a cache write that rotates first moves queries and keys as a rotation does, and then the cache
        turns = (place[both] == PLACE_CODE["kv_write"]) & (fused[both] == PLACE_CODE["rope"])
        size[both[turns]] = (extra(table.activations) * part)[turns] + kv[both[turns]]
    norm = is_place(place, ("norm", "final_norm"))
    residual = norm & (names.fused_add[kernels.name[rows]] | kernels.adds_residual[rows])
    flop[residual] *= _RESIDUAL_FLOP
    executed[residual] *= _RESIDUAL_FLOP
    size[residual] *= 2.0
