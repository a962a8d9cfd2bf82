"""The work stage: FLOPs and bytes of every kernel, and what they say against the ceilings. Reads as the list of its steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import polars as pl

from ..gpus.device_ceilings import DeviceCeilings
from ..models.model_shape import ModelShape
from ..phases import PhaseResult
from ..records.options import Options
from ..records.trace import Trace
from ..records.work import Measured, Model, Roofline, Traffic, WorkTrust
from .aggregate.fill_frames import fill_frames
from .aggregate.ideal_times import ideal_times
from .aggregate.kernel_sums import group_sums
from .aggregate.kernel_tables import RowReasons, common_ceiling, kernel_table, op_class_table
from .aggregate.roofline import roofline
from .aggregate.step_ratios import mfu_at_most
from .aggregate.work_trust import sm_clock, work_trust
from .describe_model import describe_model
from .kernel_work import KernelWork, merge_layers, nothing_known
from .kv_lengths.step_kv_lengths import KvLengths, kv_lengths
from .measured.measured_work import join_measured
from .model_choice.choose_model import ModelChoice, choose_model
from .model_choice.launch_grids import Fitting, keep_fitting
from .placement import place_kernels
from .sources.modelled_work import modelled_layers
from .sources.shape_work import named_layers, recorded_layers
from .step_costs.decode_traffic import decode_traffic
from .unknown_model.tile_bounds import bound_by_tiles, bounded_layers
from .work_input import WorkInput


@dataclass(frozen=True)
class WorkResult:
    """What the work stage hands on."""

    kernels: pl.DataFrame  # phases.kernels + KERNEL_WORK, same rows, same order
    steps: pl.DataFrame  # STEPS with KV and work columns filled
    model: Model
    kernel_table: pl.DataFrame  # KERNEL_TABLE
    op_classes: pl.DataFrame  # OP_CLASS_TABLE
    roofline: Roofline
    traffic: Traffic
    measured: Measured
    trust: WorkTrust
    mfu_at_most: pl.Series  # per step, %: what padded work bounds from above; null unless useful FLOPs are unknown


def assign_work(
    trace: Trace,
    phases: PhaseResult,
    name_facts: pl.DataFrame,
    ceilings: Sequence[DeviceCeilings],
    options: Options,
) -> WorkResult:
    """Work of every kernel and step, its ratios against ``ceilings``, and the tables made of them.

    Unknown work is null with a reason in the tables. Raises UsageError for an unknown ``--model`` and
    NotACaptureError for an ``--ncu`` file that is none.
    """
    given = WorkInput(trace, phases, name_facts, ceilings, options)
    choice = recognise_model(given)
    lengths = kv_lengths(phases.steps, choice.shape.sliding_window if choice.shape is not None else None)
    work, measured = join_measured(given, computed_work(given, choice, lengths))
    work = replace(work, ideal=ideal_times(work, ceilings))
    launches = trace.launch_counts["launch_count"].to_numpy() if trace.holds_sums else None
    sums, why = group_sums(phases, work, launches), RowReasons(common_ceiling(ceilings), choice)
    op_classes = op_class_table(sums, why)
    by_kernel = kernel_table(given, sums, why)
    filled = fill_frames(given, work, choice, lengths)
    traffic = decode_traffic(filled.steps, work, choice, ceilings)
    return WorkResult(
        kernels=filled.kernels,
        steps=filled.steps,
        model=describe_model(choice, work, filled, traffic, lengths),
        kernel_table=by_kernel,
        op_classes=op_classes,
        roofline=roofline(op_classes, ceilings, sm_clock(measured).sm_clock_mhz),
        traffic=traffic,
        measured=measured,
        trust=work_trust(given, work, choice, measured, filled),
        mfu_at_most=mfu_at_most(filled.steps, work),
    )


def recognise_model(given: WorkInput) -> ModelChoice:
    """Which model ran, on how many ranks."""

    def recognise(candidates: tuple[ModelShape, ...], tensor_parallel: int) -> Fitting:
        nobody = ModelChoice(None, None, tensor_parallel, None)
        kernels = place_kernels(given, nobody, kv_lengths(given.phases.steps))
        return keep_fitting(candidates, tensor_parallel, given, kernels)

    return choose_model(given, recognise)


def computed_work(given: WorkInput, choice: ModelChoice, lengths: KvLengths) -> KernelWork:
    """Work of every kernel by precedence: recorded shapes over the model; names, then tiles, where neither speaks."""
    kernels = place_kernels(given, choice, lengths)
    work = nothing_known(kernels)
    if choice.rank is not None:
        work = merge_layers(work, modelled_layers(kernels, choice.rank))
    work = merge_layers(work, recorded_layers(work, choice))
    work = merge_layers(work, named_layers(work, choice))
    if choice.shape is not None:
        return work
    bounds = bound_by_tiles(given, kernels)
    if bounds is None:
        return work
    return replace(merge_layers(work, bounded_layers(work, bounds, choice)), bounds=bounds)
