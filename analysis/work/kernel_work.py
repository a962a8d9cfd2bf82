"""What is known of the work of every kernel: records of it, layers of it, and the one function that merges them.

Each source of work (the model, recorded shapes, names, tiles and grids, Nsight Compute, GPU metrics) gives layers of its
own and writes nowhere else. ``merge_layers`` lays them over each other in the order in which they are given: where a
layer speaks, it replaces what lay beneath.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from ..records.tables import WORK_SOURCES
from .operators.gemm_orders import PLACE_CODE
from .operators.name_arrays import NameColumns
from .operators.recorded_shapes import RecordedShapes
from .step_costs.place_costs import StepSums
from .unknown_model.matrix_bounds import MatrixBounds

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

SOURCE_CODE = {name: code for code, name in enumerate(WORK_SOURCES.categories)}
UNKNOWN, MODEL, SHAPE, NAME = (SOURCE_CODE[name] for name in ("unknown", "model", "shape", "name"))


@dataclass(frozen=True, kw_only=True)
class PlacedKernels:
    """Where every kernel stands, and what its name says: what all sources of work begin with."""

    place: npt.NDArray[np.int16]  # code of PLACES
    layer: npt.NDArray[np.int16]  # -1 = not in a layer
    share: Floats  # of the place's work that this kernel does, where several do it together
    adds_residual: Bools
    matrix: Bools  # work of the tensor cores: what MFU counts
    helper: Bools  # split-K and split-KV reductions: their work is counted with the kernel they complete
    dtype_in_name: npt.NDArray[np.int8]  # code of DTYPES
    duration: npt.NDArray[np.int64]  # ns
    step: npt.NDArray[np.int32]  # -1 = outside every step
    name: npt.NDArray[np.uint32]
    device: npt.NDArray[np.int32]
    in_graph: Bools
    names: NameColumns
    sums: StepSums
    countable: Bools  # per step: whether its work is the model's
    recorded: RecordedShapes | None = None
    contradictions: tuple[str, ...] = ()


@dataclass(frozen=True)
class WorkLayer:
    """What one source says of some kernels. A column that is None is not spoken of; NaN says that it is unknown."""

    rows: npt.NDArray[np.int64]
    flop: Floats | None = None
    flop_executed: Floats | None = None
    bytes: Floats | None = None
    weights: Floats | None = None
    kv: Floats | None = None
    source: npt.NDArray[np.uint8] | None = None  # codes of WORK_SOURCES
    dtype: npt.NDArray[np.int8] | None = None  # codes of DTYPES
    contradictions: tuple[str, ...] = ()


@dataclass(frozen=True)
class IdealTimes:
    """Least seconds of each kernel's work at its device's ceilings, NaN = unknown."""

    compute_s: Floats
    memory_s: Floats
    most_s: Floats  # compute_s, with padding where that alone is known


_NO_TIMES = IdealTimes(np.zeros(0), np.zeros(0), np.zeros(0))
COLUMNS = ("flop", "flop_executed", "bytes", "weights", "kv", "source", "dtype")


@dataclass(frozen=True, kw_only=True)
class KernelWork(PlacedKernels):
    """The kernels with their work, NaN = unknown."""

    flop: Floats
    flop_executed: Floats  # with padding
    bytes: Floats
    weights: Floats  # parts of ``bytes``, like ``kv``
    kv: Floats
    source: npt.NDArray[np.uint8]  # code of WORK_SOURCES
    dtype: npt.NDArray[np.int8]  # code of DTYPES
    ideal: IdealTimes = _NO_TIMES
    bounds: MatrixBounds | None = None  # what tiles and grids say of the matrices where no model is known


def nothing_known(kernels: PlacedKernels) -> KernelWork:
    """The work of kernels of which no source has spoken."""
    count = len(kernels.step)
    unknown = np.broadcast_to(np.float64(np.nan), count)  # no memory until a layer is laid over it
    return KernelWork(
        **{each.name: getattr(kernels, each.name) for each in fields(kernels)},
        flop=unknown,
        flop_executed=unknown,
        bytes=unknown,
        weights=unknown,
        kv=unknown,
        source=np.broadcast_to(np.uint8(UNKNOWN), count),
        dtype=kernels.dtype_in_name,
    )


def merge_layers(work: KernelWork, layers: Iterable[WorkLayer]) -> KernelWork:
    """``work`` with the layers laid over it, the later ones above; a column that none speaks of is shared, not copied."""
    own: dict[str, npt.NDArray[np.generic]] = {}
    said = list(work.contradictions)
    for layer in layers:
        said += layer.contradictions
        for name in COLUMNS:
            values = getattr(layer, name)
            if values is None:
                continue
            if name not in own:
                own[name] = np.array(getattr(work, name))
            own[name][layer.rows] = values
    return replace(work, **own, contradictions=tuple(said))  # type: ignore[arg-type]


def countable_steps(steps: pl.DataFrame) -> Bools:
    """Steps whose work is the model's: not warm-up, and not ``other`` (a draft model's steps are)."""
    phase = steps["phase"].cast(pl.String)
    return (phase.is_in(["prefill", "decode", "mixed"]) & ~steps["excluded"].fill_null(False)).to_numpy()


def gemm_rows(kernels: PlacedKernels, rows: npt.NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Rows that each GEMM multiplies, useful and with padding; NaN where unknown."""
    step, sums = kernels.step[rows], kernels.sums
    head = kernels.place[rows] == PLACE_CODE["lm_head"]
    useful = np.where(head, sums.logits_rows[step], sums.tokens[step])
    executed = np.where(head, sums.executed_logits_rows[step], sums.executed_tokens[step])
    return useful, np.fmax(useful, executed)
