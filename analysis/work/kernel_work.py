"""Work of every kernel: its place in the layer, picked from the table of its step, or from what the capture records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl

from ..models.find_model import BYTES_PER_ELEMENT
from ..numeric.row_chunks import stretches
from ..phases import PhaseResult
from ..records.tables import WORK_SOURCES
from ..records.trace import Trace
from .kv_lengths.step_kv_lengths import KvLengths
from .model_choice.choose_model import ModelChoice
from .operators.gemm_orders import LATENT, LATENT_DIRECT, OP_CODE, ORDINARY, PLACE_CODE, PLACES
from .operators.kernel_places import Places, identify_places, is_place
from .operators.layer_matrices import RankShape, places_of_shape
from .operators.name_arrays import DTYPES, MATRIX_OPS, NameColumns, name_columns, place_defaults
from .operators.recorded_shapes import RecordedShapes, recorded_shapes
from .operators.table_passes import PASS_PLACES
from .step_costs.place_costs import ROW_CODE, WINDOWED, StepSums, WorkTable, step_sums, with_tokens_of_names, work_table

if TYPE_CHECKING:
    from .unknown_model.tile_bounds import TileBounds

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

SOURCE_CODE = {name: code for code, name in enumerate(WORK_SOURCES.categories)}
UNKNOWN, MODEL, SHAPE, NAME = (SOURCE_CODE[name] for name in ("unknown", "model", "shape", "name"))
DISAGREES = 0.05  # relative difference of recorded and modelled FLOPs that is reported


@dataclass
class KernelWork:
    """Per kernel, NaN = unknown. ``compute_s`` and ``memory_s`` are the ideal times at this device's ceilings."""

    place: npt.NDArray[np.int16]
    layer: npt.NDArray[np.int16]
    flop: Floats
    flop_executed: Floats
    bytes: Floats
    weights: Floats
    kv: Floats
    source: npt.NDArray[np.uint8]
    matrix: Bools  # work of the tensor cores: what MFU counts
    helper: Bools  # split-K and split-KV reductions: their work is counted with the kernel they complete
    dtype: npt.NDArray[np.int8]  # code of DTYPES
    duration: npt.NDArray[np.int64]
    step: npt.NDArray[np.int32]
    name: npt.NDArray[np.uint32]
    device: npt.NDArray[np.int32]
    names: NameColumns
    sums: StepSums
    compute_s: Floats = field(default_factory=lambda: np.zeros(0))
    memory_s: Floats = field(default_factory=lambda: np.zeros(0))
    most_s: Floats = field(default_factory=lambda: np.zeros(0))  # compute_s, with padding where that alone is known
    contradictions: list[str] = field(default_factory=list)
    recorded: RecordedShapes | None = None
    modelled_steps: int = 0  # steps in opaque graph replays, whose work is the whole model's
    bounds: TileBounds | None = None  # what tiles and grids say of the matrices where no model is known


def assign_kernels(
    trace: Trace, phases: PhaseResult, name_facts: pl.DataFrame, choice: ModelChoice, lengths: KvLengths
) -> KernelWork:
    """FLOPs and bytes of every kernel from model, recorded shapes and names; measured counters join later."""
    kernels, steps = phases.kernels, phases.steps
    names = name_columns(trace.names, name_facts, choice.shape)
    name = kernels["name_id"].to_numpy()
    step = kernels["step"].to_numpy()
    op = names.op[name] if len(names.op) else np.zeros(0, np.uint8)
    duration = (kernels["end_ns"] - kernels["start_ns"]).to_numpy()
    step_part = (
        steps["phase"].cast(pl.String).replace_strict({"prefill": 1, "decode": 2}, default=0, return_dtype=pl.Int8)
    )
    cut = steps["partial"].fill_null(False).to_numpy()
    kind = ORDINARY
    if choice.shape is not None and choice.shape.is_mla:
        kind = LATENT if choice.shape.q_lora_rank else LATENT_DIRECT
    places = identify_places(
        step, op, names.has_norm[name], _own_part(kernels), duration, step_part.to_numpy(), cut, kind=kind
    )
    sums = with_tokens_of_names(step_sums(steps, lengths), _tokens_of_names(name_facts, name, step, steps.height))
    work = _unknown(kernels, names, places, op, duration, sums)
    work.place[names.expert_sum[name] & (step >= 0)] = PLACE_CODE["expert_sum"]
    # a sampler's place is known only behind the head; any other pass over a table has its place by its name
    passes = (op != OP_CODE["sampling"]) & (names.pass_place[name] > 0) & (step >= 0)
    work.place[passes] = names.pass_place[name[passes]]
    is_countable = countable(steps)
    if choice.rank is not None:
        _name_by_shape(work, choice.rank)
        _from_model(work, choice.rank, is_countable, places, (kernels["graph_node_id"] > 0).to_numpy())
    recorded = recorded_shapes(trace, kernels["launch"].to_numpy(), op == OP_CODE["gemm"])
    if recorded is not None:
        work.recorded = recorded
        _from_recorded(work, recorded, choice, is_countable)
    _from_names(work, choice, is_countable)
    return work


def _tokens_of_names(
    facts: pl.DataFrame, name: npt.NDArray[np.uint32], step: npt.NDArray[np.int32], steps: int
) -> Floats:
    """Tokens that a step's GEMM names state (llama.cpp's vector kernels), NaN where they do not."""
    told = facts["tokens_in_name"].fill_null(0).to_numpy()
    found = np.full(steps, np.nan)
    if not told.any():
        return found
    rows = np.flatnonzero((told[name] > 0) & (step >= 0))
    most = np.zeros(steps)
    np.maximum.at(most, step[rows], told[name[rows]])
    return np.where(most > 0, most, found)


def _own_part(kernels: pl.DataFrame) -> npt.NDArray[np.int8]:
    """Which part of a mixed step an attention kernel computes: 1 prefill, 2 decode, 0 all or no mixed step."""
    mixed = pl.col("step_phase") == "mixed"
    part = pl.when(mixed & (pl.col("phase") == "prefill")).then(1).when(mixed & (pl.col("phase") == "decode")).then(2)
    return kernels.select(part.otherwise(0).cast(pl.Int8)).to_series().to_numpy()


def _unknown(
    kernels: pl.DataFrame,
    names: NameColumns,
    places: Places,
    op: npt.NDArray[np.uint8],
    duration: npt.NDArray[np.int64],
    sums: StepSums,
) -> KernelWork:
    n = kernels.height
    name = kernels["name_id"].to_numpy()

    def unknown() -> Floats:
        return np.full(n, np.nan)

    return KernelWork(
        place=places.code,
        layer=places.layer,
        flop=unknown(),
        flop_executed=unknown(),
        bytes=unknown(),
        weights=unknown(),
        kv=unknown(),
        source=np.full(n, UNKNOWN, np.uint8),
        matrix=_is_op(op, MATRIX_OPS),
        helper=_is_op(op, ("gemm_reduce", "attention_combine")),
        dtype=names.dtype[name] if len(names.dtype) else np.zeros(0, np.int8),
        duration=duration,
        step=kernels["step"].to_numpy(),
        name=name,
        device=kernels["device_index"].to_numpy(),
        names=names,
        sums=sums,
    )


def _is_op(op: npt.NDArray[np.uint8], classes: Sequence[str]) -> Bools:
    table = np.zeros(len(OP_CODE), np.bool_)
    table[[OP_CODE[each] for each in classes]] = True
    return np.asarray(table[op])


def countable(steps: pl.DataFrame) -> Bools:
    """Steps whose work is the model's: not warm-up, and not ``other`` (a draft model's steps are)."""
    phase = steps["phase"].cast(pl.String)
    return (phase.is_in(["prefill", "decode", "mixed"]) & ~steps["excluded"].fill_null(False)).to_numpy()


def _name_by_shape(work: KernelWork, rank: RankShape) -> None:
    """N and K in a kernel's name beat its place in the order; a pair the model does not have is reported."""
    names = work.names
    for name in np.flatnonzero((names.shape_n > 0) & (names.shape_k > 0) & (names.op == OP_CODE["gemm"])):
        rows = np.flatnonzero((work.name == name) & (work.step >= 0))
        if not len(rows):
            continue
        n, k = int(names.shape_n[name]), int(names.shape_k[name])
        fits = [PLACE_CODE[place] for place in places_of_shape(rank, n, k)]
        if not fits:
            work.contradictions.append(
                f"a GEMM of {n} x {k} (from its name) is no matrix of {rank.model.name} on {rank.tensor_parallel} rank(s)"
            )
            work.place[rows] = 0
        else:
            wrong = rows[~np.isin(work.place[rows], fits)]
            work.place[wrong] = fits[0]


def _from_model(work: KernelWork, rank: RankShape, countable: Bools, places: Places, in_graph: Bools) -> None:
    table = work_table(rank, work.sums)
    rows = np.flatnonzero((work.step >= 0) & (work.place > 0))
    rows = rows[countable[work.step[rows]]]
    for some in stretches(len(rows)):
        _fill_rows(work, rank, table, places, rows[some])
        _unpad_lm_head(work, rows[some], in_graph)


def _fill_rows(
    work: KernelWork, rank: RankShape, table: WorkTable, places: Places, rows: npt.NDArray[np.int64]
) -> None:
    """Write the work of the kernels in ``rows``, picked from the table of their steps."""
    step = work.step[rows]
    at = work.place[rows].astype(np.int64)
    at = _windowed(at, work.layer[rows], rank)
    share = places.share[rows]
    weight = _weight_bytes(work, rank, rows)
    flat = _Flat(table, at, step)
    weights = (flat(table.weight_elements) * weight + flat(table.weight_bytes)) * share
    passes = is_place(work.place[rows], PASS_PLACES)  # counted in elements: an unknown kernel's passes are unknown
    per_element = np.where(passes, work.names.pass_bytes[work.name[rows]], 1.0)
    activations = flat(table.activations) * share * per_element
    flop = flat(table.flop) * share
    # the least bytes of a GEMM whose token count is unknown are its weights
    floor = np.isnan(activations) & (weights > 0)
    activations = np.where(floor, 0.0, activations)
    work.flop[rows] = flop
    work.flop_executed[rows] = flat(table.flop_executed) * share
    work.weights[rows] = weights
    kv = flat(table.kv) * share
    work.kv[rows] = kv
    size = weights + kv + activations
    work.bytes[rows] = size
    moves_only = rows[np.isnan(size) & (flop == 0)]  # nothing is known of these
    work.flop[moves_only] = work.flop_executed[moves_only] = np.nan
    _add_fused(work, table, rows, share, places.adds_residual)
    helpers = rows[work.helper[rows]]
    for column in (work.flop, work.flop_executed, work.bytes, work.weights, work.kv):
        column[helpers] = 0.0
    known = ~np.isnan(work.bytes[rows])
    work.source[rows[known]] = MODEL
    _, default_dtype = place_defaults(rank.model)
    silent = rows[(work.dtype[rows] == 0) & work.matrix[rows]]
    work.dtype[silent] = default_dtype[work.place[silent]]


def _unpad_lm_head(work: KernelWork, rows: npt.NDArray[np.int64], in_graph: Bools) -> None:
    """An lm_head launched outside the step's graph computes real rows, not padded ones."""
    outside = rows[(work.place[rows] == PLACE_CODE["lm_head"]) & ~in_graph[rows]]
    work.flop_executed[outside] = work.flop[outside]


class _Flat:
    """Picks (row, step) cells of a table for the kernels."""

    def __init__(self, table: WorkTable, row: npt.NDArray[np.int64], step: npt.NDArray[np.int32]) -> None:
        self.index = row * table.flop.shape[1] + step

    def __call__(self, column: Floats) -> Floats:
        return np.asarray(column.ravel()[self.index])


def _windowed(at: npt.NDArray[np.int64], layer: npt.NDArray[np.int16], rank: RankShape) -> npt.NDArray[np.int64]:
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


def _weight_bytes(work: KernelWork, rank: RankShape, rows: npt.NDArray[np.int64]) -> Floats:
    """Bytes per weight of each kernel: its name's word, else the model's for that place."""
    by_place, _ = place_defaults(rank.model)
    told = work.names.weight_bytes[work.name[rows]]
    return np.where(np.isnan(told) | ~work.matrix[rows], by_place[work.place[rows]], told)


def _add_fused(
    work: KernelWork, table: WorkTable, rows: npt.NDArray[np.int64], share: Floats, adds_residual: Bools
) -> None:
    """Small kernels that do two operations carry both; a norm with the residual moves it as well."""
    fused = work.names.fused_place[work.name[rows]].astype(np.int64)
    both = np.flatnonzero(fused > 0)
    if len(both):
        extra = _Flat(table, fused[both], work.step[rows[both]])
        kernel, part = rows[both], share[both]
        work.flop[kernel] += extra(table.flop) * part
        work.flop_executed[kernel] += extra(table.flop_executed) * part
        # what is fused in reads what the kernel already holds: only its cache traffic is added
        work.kv[kernel] += extra(table.kv) * part
        work.bytes[kernel] += extra(table.kv) * part
        # a cache write that rotates first moves queries and keys as a rotation does, and then the cache
        turns = (work.place[kernel] == PLACE_CODE["kv_write"]) & (fused[both] == PLACE_CODE["rope"])
        work.bytes[kernel[turns]] = (extra(table.activations) * part)[turns] + work.kv[kernel[turns]]
    norm = is_place(work.place[rows], ("norm", "final_norm"))
    residual = rows[norm & (work.names.fused_add[work.name[rows]] | adds_residual[rows])]
    work.flop[residual] *= 1.25  # NORM_FLOP_PER_ELEMENT + 1
    work.flop_executed[residual] *= 1.25
    work.bytes[residual] *= 2.0


def _from_recorded(work: KernelWork, recorded: RecordedShapes, choice: ModelChoice, countable: Bools) -> None:
    """Shapes the capture records are the truth; where the model says otherwise by more than 5% that is reported."""
    rows = np.flatnonzero(recorded.known)
    if not len(rows):
        return
    flop = 2.0 * recorded.rows[rows] * recorded.outputs[rows] * recorded.inputs[rows] * recorded.batch[rows]
    step = work.step[rows]
    compare = np.append(countable, False)[step] & ~np.isnan(work.flop[rows])  # -1, outside every step, picks the last
    model = work.flop[rows]
    differs = compare & (np.abs(model - flop) > DISAGREES * flop)
    if differs.any():
        at = np.flatnonzero(differs)[0]
        place = PLACES[work.place[rows[at]]]
        name = choice.shape.name if choice.shape is not None else "the model"
        work.contradictions.append(
            f"{int(differs.sum())} of {int(compare.sum())} GEMMs with recorded shapes differ from {name}: {place} is "
            f"{recorded.rows[rows[at]]} x {recorded.outputs[rows[at]]} x {recorded.inputs[rows[at]]} (M x N x K) in "
            f"the capture; the recorded shape is used"
        )
    _put_shape(
        work, rows, recorded.rows[rows], recorded.outputs[rows], recorded.inputs[rows], recorded.batch[rows], choice
    )


def _put_shape(
    work: KernelWork,
    rows: npt.NDArray[np.int64],
    m: npt.NDArray[Any],
    n: npt.NDArray[Any],
    k: npt.NDArray[Any],
    batch: npt.NDArray[Any],
    choice: ModelChoice,
) -> None:
    """Write GEMM work of known shapes: M N K and how many of them."""
    size = element_bytes(work, rows, choice)
    told = work.names.weight_bytes[work.name[rows]]
    by_place, _ = place_defaults(choice.shape)
    placed = np.where(work.place[rows] > 0, by_place[work.place[rows]], np.nan)
    weight = np.where(np.isnan(told), np.where(np.isnan(placed), size, placed), told)
    flop = 2.0 * m * n * k * batch
    weights = weight * n * k * batch
    work.flop[rows] = flop
    work.flop_executed[rows] = np.where(np.isnan(work.flop_executed[rows]), flop, work.flop_executed[rows])
    work.flop_executed[rows] = np.fmax(work.flop_executed[rows], flop)
    work.weights[rows] = weights
    work.kv[rows] = 0.0
    work.bytes[rows] = weights + size * (m * k + m * n) * batch
    work.source[rows] = SHAPE


def element_bytes(work: KernelWork, rows: npt.NDArray[np.int64], choice: ModelChoice) -> Floats:
    """Bytes per activation element: the model's, else by the arithmetic type, two where nothing says."""
    if choice.shape is not None:
        return np.full(len(rows), BYTES_PER_ELEMENT[choice.shape.activation_dtype])
    size = np.array([BYTES_PER_ELEMENT.get(dtype, 2.0) for dtype in DTYPES])
    # narrow arithmetic reads narrow activations but writes 16 bit: count two bytes rather than guess
    return np.where(size[work.dtype[rows]] < 2.0, 2.0, size[work.dtype[rows]])


def _from_names(work: KernelWork, choice: ModelChoice, countable: Bools) -> None:
    """Without a model, N and K in the name and the step's tokens still make a GEMM exact."""
    shaped = (work.names.shape_n > 0) & (work.names.shape_k > 0) & (work.names.op == OP_CODE["gemm"])
    if not shaped.any():
        return
    rows = np.flatnonzero(shaped[work.name] & (work.source == UNKNOWN) & (work.step >= 0))
    rows = rows[countable[work.step[rows]]]
    tokens = work.sums.tokens[work.step[rows]]
    rows, tokens = rows[~np.isnan(tokens)], tokens[~np.isnan(tokens)]
    n, k = work.names.shape_n[work.name[rows]], work.names.shape_k[work.name[rows]]
    _put_shape(work, rows, tokens, n, k, np.ones(len(rows)), choice)
    executed = work.sums.executed_tokens[work.step[rows]]
    work.flop_executed[rows] = 2.0 * executed * n * k


def ideal_times(work: KernelWork, ceilings: Sequence[Any]) -> None:
    """Fill ``compute_s``, ``most_s`` and ``memory_s``: the least time of each kernel's work at its device's ceilings."""
    devices = max((ceiling.device_index for ceiling in ceilings), default=-1) + 1
    devices = max(devices, int(work.device.max(initial=-1)) + 1)
    peak = np.full((devices, len(DTYPES)), np.nan)
    bandwidth = np.full(devices, np.nan)
    for ceiling in ceilings:
        for code, dtype in enumerate(DTYPES):
            value = ceiling.peak_tflops.get(dtype)
            if value:
                peak[ceiling.device_index, code] = value * 1e12
        if ceiling.memory_bandwidth_gbps:
            bandwidth[ceiling.device_index] = ceiling.memory_bandwidth_gbps * 1e9
    vector = peak[:, DTYPES.index("fp32")]
    work.compute_s, work.memory_s = np.empty_like(work.flop), np.empty_like(work.flop)
    more: list[tuple[npt.NDArray[np.int64], Floats]] = []
    for some in stretches(len(work.flop)):
        device, flop = work.device[some], work.flop[some]
        rate = np.where(work.matrix[some], peak.ravel()[device * len(DTYPES) + work.dtype[some]], vector[device])
        work.compute_s[some] = np.where(flop == 0, 0.0, flop / rate)
        work.memory_s[some] = work.bytes[some] / bandwidth[device]
        padded = np.flatnonzero(np.isnan(flop) & ~np.isnan(work.flop_executed[some]))
        if len(padded):
            more.append((padded + some.start, work.flop_executed[some][padded] / rate[padded]))
    work.most_s = work.compute_s.copy() if more else work.compute_s
    for rows, seconds in more:
        work.most_s[rows] = seconds
