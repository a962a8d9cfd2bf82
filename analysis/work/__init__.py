"""Work: FLOPs and bytes of every kernel, and what they say against the ceilings. ``assign_work`` reads as the list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import polars as pl

from ..phases import PhaseResult
from ..records.options import Options
from ..records.trace import Trace
from ..records.work import Measured, Model, Roofline, Traffic, WorkTrust

if TYPE_CHECKING:
    from ..gpus.device_ceilings import DeviceCeilings

__all__ = ["WorkResult", "assign_work"]


@dataclass(frozen=True)
class WorkResult:
    """What the work stage hands on."""

    kernels: pl.DataFrame  # phases.kernels + KERNEL_WORK, same rows, same order
    steps: pl.DataFrame  # STEPS with KV and work columns filled
    model: Model  # JSON ``model``
    kernel_table: pl.DataFrame  # KERNEL_TABLE
    op_classes: pl.DataFrame  # OP_CLASS_TABLE
    roofline: Roofline
    traffic: Traffic
    measured: Measured
    trust: WorkTrust  # gpu_time_by_work_source, clocks, contradictions
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
    from . import work_pipeline
    from .aggregate.ideal_times import ideal_times
    from .aggregate.step_ratios import mfu_at_most
    from .kv_lengths.step_kv_lengths import kv_lengths
    from .step_costs.decode_traffic import decode_traffic

    choice = work_pipeline.choose(trace, phases, name_facts, options)
    lengths = kv_lengths(phases.steps, choice.shape.sliding_window if choice.shape is not None else None)
    work = work_pipeline.assign(trace, phases, name_facts, choice, lengths)
    work, measured = work_pipeline.join_measured(trace, phases, work, ceilings, options)
    work = replace(work, ideal=ideal_times(work, ceilings))
    tables = work_pipeline.tables(trace, phases, name_facts, work, ceilings, choice, measured)
    filled = work_pipeline.fill(phases, work, choice, lengths, ceilings)
    traffic = decode_traffic(filled.steps, work, choice, ceilings)
    return WorkResult(
        kernels=filled.kernels,
        steps=filled.steps,
        model=work_pipeline.describe(choice, work, filled, traffic, lengths),
        kernel_table=tables.kernels,
        op_classes=tables.op_classes,
        roofline=tables.roofline,
        traffic=traffic,
        measured=measured,
        trust=work_pipeline.trust(phases, work, choice, measured, filled),
        mfu_at_most=mfu_at_most(filled.steps, work),
    )
