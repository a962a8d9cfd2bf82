"""Work of GEMMs whose shapes are known without a model: recorded in the capture, or written in the kernel's name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ...models.model_shape import BYTES_PER_ELEMENT
from ..kernel_work import SHAPE, UNKNOWN, KernelWork, WorkLayer
from ..model_choice.choose_model import ModelChoice
from ..operators.gemm_orders import OP_CODE, PLACES
from ..operators.name_arrays import DTYPES, place_defaults

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

MAX_FLOP_DIFFERENCE = 0.05  # relative, of recorded and modelled FLOPs: beyond it the difference is reported


@dataclass(frozen=True)
class GemmShapes:
    """M, N and K of the GEMMs in ``rows``, and how many of each one kernel computes."""

    rows: Rows
    m: npt.NDArray[np.generic]
    n: npt.NDArray[np.generic]
    k: npt.NDArray[np.generic]
    batch: npt.NDArray[np.generic]


def recorded_layers(work: KernelWork, choice: ModelChoice) -> Iterator[WorkLayer]:
    """Shapes the capture records are the truth; where the model says otherwise by more than 5% that is reported."""
    recorded = work.recorded
    if recorded is None:
        return
    rows = np.flatnonzero(recorded.known)
    if not len(rows):
        return
    flop = 2.0 * recorded.rows[rows] * recorded.outputs[rows] * recorded.inputs[rows] * recorded.batch[rows]
    model = work.flop[rows]
    # a step of -1, outside every step, picks the last
    compare = np.append(work.countable, False)[work.step[rows]] & ~np.isnan(model)
    differs = compare & (np.abs(model - flop) > MAX_FLOP_DIFFERENCE * flop)
    contradictions: tuple[str, ...] = ()
    if differs.any():
        at = np.flatnonzero(differs)[0]
        place = PLACES[work.place[rows[at]]]
        name = choice.shape.name if choice.shape is not None else "the model"
        contradictions = (
            f"{int(differs.sum())} of {int(compare.sum())} GEMMs with recorded shapes differ from {name}: {place} is "
            f"{recorded.rows[rows[at]]} x {recorded.outputs[rows[at]]} x {recorded.inputs[rows[at]]} (M x N x K) in "
            f"the capture; the recorded shape is used",
        )
    shapes = GemmShapes(rows, recorded.rows[rows], recorded.outputs[rows], recorded.inputs[rows], recorded.batch[rows])
    yield replace(_layer_of_shapes(work, shapes, choice), contradictions=contradictions)


def named_layers(work: KernelWork, choice: ModelChoice) -> Iterator[WorkLayer]:
    """Without a model, N and K in the name and the step's tokens still make a GEMM exact."""
    shaped = (work.names.shape_n > 0) & (work.names.shape_k > 0) & (work.names.op == OP_CODE["gemm"])
    if not shaped.any():
        return
    rows = np.flatnonzero(shaped[work.name] & (work.source == UNKNOWN) & (work.step >= 0))
    rows = rows[work.countable[work.step[rows]]]
    tokens = work.sums.tokens[work.step[rows]]
    rows, tokens = rows[~np.isnan(tokens)], tokens[~np.isnan(tokens)]
    n, k = work.names.shape_n[work.name[rows]], work.names.shape_k[work.name[rows]]
    layer = _layer_of_shapes(work, GemmShapes(rows, tokens, n, k, np.ones(len(rows))), choice)
    executed = work.sums.executed_tokens[work.step[rows]]
    yield replace(layer, flop_executed=2.0 * executed * n * k)


def _layer_of_shapes(work: KernelWork, shapes: GemmShapes, choice: ModelChoice) -> WorkLayer:
    """GEMM work of known shapes: M N K and how many of them."""
    rows, m, n, k, batch = (np.asarray(getattr(shapes, name)) for name in ("rows", "m", "n", "k", "batch"))
    size = element_bytes(work, rows, choice)
    told = work.names.weight_bytes[work.name[rows]]
    by_place, _ = place_defaults(choice.shape)
    placed = np.where(work.place[rows] > 0, by_place[work.place[rows]], np.nan)
    weight = np.where(np.isnan(told), np.where(np.isnan(placed), size, placed), told)
    flop = 2.0 * m * n * k * batch
    weights = weight * n * k * batch
    return WorkLayer(
        rows,
        flop=flop,
        flop_executed=np.fmax(work.flop_executed[rows], flop),
        bytes=weights + size * (m * k + m * n) * batch,
        weights=weights,
        kv=np.zeros(len(rows)),
        source=np.full(len(rows), SHAPE, np.uint8),
    )


def element_bytes(work: KernelWork, rows: Rows, choice: ModelChoice) -> Floats:
    """Bytes per activation element: the model's, else by the arithmetic type, two where nothing says."""
    if choice.shape is not None:
        return np.full(len(rows), BYTES_PER_ELEMENT[choice.shape.activation_dtype])
    size = np.array([BYTES_PER_ELEMENT.get(dtype, 2.0) for dtype in DTYPES])
    # narrow arithmetic reads narrow activations but writes 16 bit: count two bytes rather than guess
    return np.where(size[work.dtype[rows]] < 2.0, 2.0, size[work.dtype[rows]])
