"""Where every kernel stands: its place in the layer, the step it belongs to, and what its name says of its operands."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from .kernel_work import PlacedKernels, countable_steps
from .kv_lengths.step_kv_lengths import KvLengths
from .model_choice.choose_model import ModelChoice
from .operators.gemm_orders import LATENT, LATENT_DIRECT, OP_CODE, ORDINARY, PLACE_CODE
from .operators.kernel_places import LaunchedKernels, StepKinds, identify_places
from .operators.layer_matrices import RankShape, places_of_shape
from .operators.name_arrays import MATRIX_OPS, NameColumns, name_columns
from .operators.recorded_shapes import recorded_shapes
from .step_costs.place_costs import step_sums, with_tokens_of_names
from .work_input import WorkInput

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


def place_kernels(given: WorkInput, choice: ModelChoice, lengths: KvLengths) -> PlacedKernels:
    """The place of every kernel by the order of its step, by N and K in its name, and by what its name says it does."""
    kernels, steps = given.phases.kernels, given.phases.steps
    names = name_columns(given.trace.names, given.name_facts, choice.shape)
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
    launched = LaunchedKernels(step, op, names.has_norm[name], _own_part(kernels), duration)
    places = identify_places(launched, StepKinds(step_part.to_numpy(), cut), kind=kind)
    place, inside = places.code, step >= 0
    place[names.expert_sum[name] & inside] = PLACE_CODE["expert_sum"]
    # a sampler's place is known only behind the head; any other pass over a table has its place by its name
    passes = (op != OP_CODE["sampling"]) & (names.pass_place[name] > 0) & inside
    place[passes] = names.pass_place[name[passes]]
    contradictions = () if choice.rank is None else _name_by_shape(place, names, name, inside, choice.rank)
    return PlacedKernels(
        place=place,
        layer=places.layer,
        share=places.share,
        adds_residual=places.adds_residual,
        matrix=_is_op(op, MATRIX_OPS),
        helper=_is_op(op, ("gemm_reduce", "attention_combine")),
        dtype_in_name=names.dtype[name] if len(names.dtype) else np.zeros(0, np.int8),
        duration=duration,
        step=step,
        name=name,
        device=kernels["device_index"].to_numpy(),
        in_graph=(kernels["graph_node_id"] > 0).to_numpy(),
        names=names,
        sums=with_tokens_of_names(
            step_sums(steps, lengths), _tokens_of_names(given.name_facts, name, step, steps.height)
        ),
        countable=countable_steps(steps),
        recorded=recorded_shapes(given.trace, kernels["launch"].to_numpy(), op == OP_CODE["gemm"]),
        contradictions=contradictions,
    )


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


def _is_op(op: npt.NDArray[np.uint8], classes: Sequence[str]) -> Bools:
    table = np.zeros(len(OP_CODE), np.bool_)
    table[[OP_CODE[each] for each in classes]] = True
    return np.asarray(table[op])


def _name_by_shape(
    place: npt.NDArray[np.int16], names: NameColumns, name_of: npt.NDArray[np.uint32], inside: Bools, rank: RankShape
) -> tuple[str, ...]:
    """N and K in a kernel's name beat its place in the order; a pair the model does not have is reported."""
    contradictions: list[str] = []
    for name in np.flatnonzero((names.shape_n > 0) & (names.shape_k > 0) & (names.op == OP_CODE["gemm"])):
        rows = np.flatnonzero((name_of == name) & inside)
        if not len(rows):
            continue
        n, k = int(names.shape_n[name]), int(names.shape_k[name])
        fits = [PLACE_CODE[place] for place in places_of_shape(rank, n, k)]
        if not fits:
            contradictions.append(
                f"a GEMM of {n} x {k} (from its name) is no matrix of {rank.model.name} on {rank.tensor_parallel} rank(s)"
            )
            place[rows] = 0
        else:
            wrong = rows[~np.isin(place[rows], fits)]
            place[wrong] = fits[0]
    return tuple(contradictions)
