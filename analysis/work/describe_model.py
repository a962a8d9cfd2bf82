"""JSON ``model``: which model, how known, its sizes, and what the figures rest on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl
from msgspec import UNSET, structs

from ..models.model_shape import kv_bytes_per_token, parameters_active, parameters_total
from ..records.work import Model, Traffic
from .aggregate.fill_frames import FilledFrames
from .kernel_work import KernelWork
from .kv_lengths.step_kv_lengths import KvLengths, padded_prefill
from .model_choice.choose_model import ModelChoice
from .step_costs.place_costs import step_sums


def describe_model(
    choice: ModelChoice, work: KernelWork, filled: FilledFrames, traffic: Traffic, lengths: KvLengths
) -> Model:
    """The model that was chosen, and in ``notes`` what is assumed or missing."""
    steps, shape = filled.steps, choice.shape
    decodes = steps.filter(pl.col("phase").is_in(["decode", "mixed"]) & ~pl.col("excluded").fill_null(False))
    lower_bound = bool(decodes["bytes_kv"].null_count()) if decodes.height and shape is not None else None
    if _counts_bounded_matrices(work, decodes):
        lower_bound = True
    described = Model(
        source=choice.source,
        reason=choice.reason,
        candidates=choice.candidates if shape is None else (),
        tensor_parallel=choice.tensor_parallel,
        tensor_parallel_source=choice.tensor_parallel_source,
        notes=tuple(_notes(choice, work, filled, decodes)),
        rectangle_over_causal_flop=_rectangle_over_causal(choice, steps, lengths),
        decode_bytes_are_lower_bound=lower_bound,
    )
    if shape is None:
        return described
    weights = traffic.bytes_weights_per_step
    return structs.replace(
        described,
        name=shape.name,
        layers=shape.layers,
        hidden=shape.hidden,
        parameters_total=parameters_total(shape),
        parameters_active=parameters_active(shape),
        weight_dtype=shape.weight_dtype,
        activation_dtype=shape.activation_dtype,
        kv_dtype=shape.kv_dtype,
        kv_bytes_per_token=kv_bytes_per_token(shape),
        weight_bytes_per_decode_step=None if weights is UNSET else weights,
    )


def _counts_bounded_matrices(work: KernelWork, decodes: pl.DataFrame) -> bool:
    """Whether the bytes of decode steps are those of matrices bounded by tiles and grids, without the rest."""
    return work.bounds is not None and bool(decodes.height) and bool(work.bounds.close().any())


def _notes(choice: ModelChoice, work: KernelWork, filled: FilledFrames, decodes: pl.DataFrame) -> Iterator[str]:
    yield from choice.notes
    known = choice.shape is not None
    if choice.shape is not None and choice.shape.experts:
        yield "experts read per step are an expectation under even routing"
    padded = filled.steps.filter(padded_prefill(filled.steps) & ~filled.steps["excluded"].fill_null(False)).height
    if padded and known:
        yield (
            f"prompt tokens of {padded} steps are not known: their graphs show the size they were padded to, and no "
            "copies of their inputs tell the rest; their useful FLOPs are unknown, flop_executed counts the padded size"
        )
    if filled.modelled_steps:
        yield (
            f"{filled.modelled_steps} steps ran in graph replays recorded as one row each: their work is that of the whole "
            "model, not summed over kernels"
        )
    if work.bounds is not None:
        yield from work.bounds.notes
    if _counts_bounded_matrices(work, decodes):
        yield "MFU and MBU count these matrices alone, without attention and small kernels"
    unknown = int(decodes["bytes_kv"].null_count())
    if unknown and known:
        yield (
            f"KV lengths unknown in {unknown} of {decodes.height} steps with decode work: their bytes and MBU are a "
            "lower bound (weights only)"
        )


def _rectangle_over_causal(choice: ModelChoice, steps: pl.DataFrame, lengths: KvLengths) -> float | None:
    """All FLOPs by the full-rectangle convention of attention over ours; None where no prefill's lengths are known."""
    if choice.rank is None:
        return None
    exact, rectangle = (step_sums(steps, lengths, rectangle=each).prefill_pairs for each in (False, True))
    flop = steps["flop"].fill_null(float("nan")).to_numpy()
    known = ~np.isnan(exact) & ~np.isnan(flop) & (exact > 0)
    if not known.any():
        return None
    model = choice.rank.model
    width = (
        2 * model.head_dim if not model.is_mla else model.qk_nope_head_dim + model.qk_rope_head_dim + model.v_head_dim
    )
    extra = 2.0 * choice.rank.heads * width * model.layers * float((rectangle - exact)[known].sum())
    return 1.0 + extra / float(flop[known].sum())
