"""Steps and kernels with their work columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from ...records.tables import KERNEL_WORK, WORK_SOURCES
from ..kernel_work import KernelWork, countable_steps
from ..kv_lengths.step_kv_lengths import KvLengths, fill_steps
from ..model_choice.choose_model import ModelChoice
from ..operators.gemm_orders import PLACES
from ..step_costs.whole_step_costs import WholeSteps, whole_steps
from ..work_input import WorkInput
from .step_ratios import Opaque, fill_step_work, kernel_ratios, opaque_steps


@dataclass(frozen=True)
class FilledFrames:
    """Steps and kernels with their work columns, and what filling them met."""

    steps: pl.DataFrame
    kernels: pl.DataFrame
    modelled_steps: int  # steps in opaque graph replays, whose work is the whole model's
    contradictions: tuple[str, ...]


def fill_frames(given: WorkInput, work: KernelWork, choice: ModelChoice, lengths: KvLengths) -> FilledFrames:
    """The frames of the phases with the columns of ``lengths`` and ``work``."""
    phases = given.phases
    steps, incomplete = fill_steps(phases.steps, lengths), opaque_steps(phases)
    opaque = None
    if incomplete is not None:
        whole = WholeSteps.unknown(steps.height)
        if choice.rank is not None:
            whole = whole_steps(choice.rank, work.sums, steps["device_index"].to_numpy(), given.ceilings)
        opaque = Opaque(incomplete, whole.only(countable_steps(steps)))
    steps, refused = fill_step_work(steps, work, given.ceilings, opaque)
    contradictions = work.contradictions
    if refused:
        contradictions += (
            f"{refused} step ratios above 100% refused: check model, tensor-parallel size, data types and GPU",
        )
    modelled = 0 if incomplete is None else int((incomplete & steps["bytes"].is_not_null().to_numpy()).sum())
    return FilledFrames(steps, _kernels(given, work), modelled, contradictions)


def _kernels(given: WorkInput, work: KernelWork) -> pl.DataFrame:
    values: dict[str, npt.NDArray[np.floating]] = {
        "flop": work.flop,
        "flop_executed": work.flop_executed,
        "bytes": work.bytes,
        "bytes_weights": work.weights,
        "bytes_kv": work.kv,
        **kernel_ratios(work, given.ceilings),
    }
    columns = {name: pl.Series(name, column, nan_to_null=True) for name, column in values.items()}
    columns["place"] = pl.Series("place", PLACES).gather(pl.Series(work.place.astype(np.uint32)))
    columns["layer"] = pl.Series("layer", work.layer)
    sources = pl.Series("work_source", WORK_SOURCES.categories, dtype=WORK_SOURCES)
    columns["work_source"] = sources.gather(pl.Series(work.source))
    added = [columns[name].cast(dtype).alias(name) for name, dtype in KERNEL_WORK.items()]
    return given.phases.kernels.with_columns(added)
