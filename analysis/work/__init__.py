"""Work: FLOPs and bytes of every kernel, and what they say against the ceilings. ``assign_work`` reads as the list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from ..phases import PhaseResult
from ..records.options import Options
from ..records.trace import Trace

if TYPE_CHECKING:
    from ..gpus.device_ceilings import DeviceCeilings

__all__ = ["WorkResult", "assign_work"]


@dataclass(frozen=True)
class WorkResult:
    """What the work stage hands on."""

    kernels: pl.DataFrame  # phases.kernels + KERNEL_WORK, same rows, same order
    steps: pl.DataFrame  # STEPS with KV and work columns filled
    model: Mapping[str, Any]  # JSON ``model``
    kernel_table: pl.DataFrame  # KERNEL_TABLE
    op_classes: pl.DataFrame  # OP_CLASS_TABLE
    roofline: Mapping[str, Any]
    traffic: Mapping[str, Any]
    measured: Mapping[str, Any]
    trust: Mapping[str, Any]  # gpu_time_by_work_source, clocks, contradictions
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
    from . import work_pipeline as stages
    from .aggregate import step_ratios as step_rows

    choice = stages.choose(trace, phases, name_facts, options)
    lengths = stages.lengths(phases, choice)
    work = stages.assign(trace, phases, name_facts, choice, lengths)
    measured = stages.join_measured(trace, phases, name_facts, work, ceilings, options)
    stages.price(work, ceilings)
    tables = stages.tables(trace, phases, name_facts, work, ceilings, choice, measured)
    steps, kernels = stages.fill(phases, work, choice, lengths, ceilings)
    traffic = stages.decode_traffic(steps, work, choice, ceilings)
    return WorkResult(
        kernels=kernels,
        steps=steps,
        model=stages.describe(choice, work, steps, traffic, lengths),
        kernel_table=tables.kernels,
        op_classes=tables.op_classes,
        roofline=tables.roofline,
        traffic=traffic,
        measured=measured,
        trust=stages.trust(phases, work, choice, measured, steps),
        mfu_at_most=step_rows.mfu_at_most(steps, work),
    )
