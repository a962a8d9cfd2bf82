"""Phase and evidence of every kernel: its own where its name is sure inside a mixed step, else its step's."""

from __future__ import annotations

import numpy as np
import polars as pl

from ...records.tables import EVIDENCE, OP_CLASSES, PHASES
from ...records.trace import Trace
from ..kernel_arrays import HINT, PHASE, Bools, Ints, KernelArrays, of_step
from ..launch_links import LinkResult
from .phase_ladder import both_kinds, second_kind

EVIDENCE_CODE = {name: code for code, name in enumerate(EVIDENCE.categories.to_list())}


def tag_kernels(
    trace: Trace,
    columns: KernelArrays,
    link: LinkResult,
    step: Ints,
    layer: Ints,
    steps: pl.DataFrame,
    in_window: Bools,
) -> pl.DataFrame:
    """Trace.kernels with the columns of KERNEL_TAGS."""
    step_phase, evidence = spread_over_kernels(columns, link, step, steps)
    phase = own_phase(columns, layer, step_phase)
    evidence = np.where(phase != step_phase, EVIDENCE_CODE["kernel_name"], evidence)
    phase = projections_of_latent_attention(columns, phase, step_phase)
    evidence = np.where((step < 0) & columns.load_time, EVIDENCE_CODE["kernel_name"], evidence)
    own = columns.kernel_row >= 0
    return trace.kernels.with_columns(
        pl.Series("launch", link.launch[own], dtype=pl.Int32),
        as_enum("op_class", columns.op[own], OP_CLASSES),
        as_enum("phase", phase[own], PHASES),
        as_enum("step_phase", step_phase[own], PHASES),
        as_enum("evidence", evidence[own], EVIDENCE),
        pl.Series("step", step[own], dtype=pl.Int32),
        pl.Series("in_window", in_window[own], dtype=pl.Boolean),
    )


def spread_over_kernels(columns: KernelArrays, link: LinkResult, step: Ints, steps: pl.DataFrame) -> tuple[Ints, Ints]:
    """Phase and evidence each kernel has from its step: the rung applies to the kernels that showed it."""
    phase = of_step(steps["phase"].to_physical().to_numpy(), step, PHASE["unknown"])
    evidence = of_step(steps["evidence"].to_physical().to_numpy(), step, EVIDENCE_CODE["none"])
    phase = np.where((step < 0) & columns.load_time, PHASE["other"], phase)
    context = EVIDENCE_CODE["step_context"]
    attention = columns.is_op("attention", "gemm", "moe_gemm") & ((columns.hint != 0) | columns.few | columns.many)
    for name, shown in (
        ("kernel_name", attention),
        ("launch_geometry", columns.exact_tokens),
        ("graph_replay", link.replay >= 0),
    ):
        evidence = np.where((evidence == EVIDENCE_CODE[name]) & ~shown, context, evidence)
    return phase, evidence


def own_phase(columns: KernelArrays, layer: Ints, step_phase: Ints) -> Ints:
    """In a mixed step (or one without a phase) an attention kernel whose name is sure keeps its own phase.

    So does a sampler that serves decoding requests only. Where a mixed step's layer launches attention for either
    kind, a likely name is enough: the one for prompts serves prompts only. Where it launches one kernel only, that one
    serves both, whatever its name.
    """
    attention = columns.is_op("attention", "attention_combine", "sampling")
    mixed = attention & (step_phase == PHASE["mixed"])
    open_step = mixed | (attention & (step_phase == PHASE["unknown"]))
    paired = mixed & both_kinds(columns, layer)
    prompts = np.isin(columns.hint, [HINT["prefill"], HINT["prefill_or_mixed"]])
    decodes = columns.hint == HINT["decode"]
    result = np.where(decodes & ((open_step & columns.hint_sure) | paired), PHASE["decode"], step_phase)
    second = mixed & second_kind(columns, layer)
    alone = attention & (step_phase == PHASE["unknown"]) & columns.hint_sure & (columns.hint == HINT["prefill"])
    prefill = second | (prompts & paired) | alone
    return np.where(prefill, PHASE["prefill"], result)


def projections_of_latent_attention(columns: KernelArrays, phase: Ints, step_phase: Ints) -> Ints:
    """GEMMs inside a mixed layer's attention take the phase of the attention they feed.

    Latent attention runs its decoding requests and its prompts one after the other, each with projections of its own
    between the cache write and the output projection. A GEMM named like one that feeds a decode attention is that
    one's; else it belongs to the attention that follows. What follows the last attention of a layer is not inside it.
    """
    mixed = step_phase == PHASE["mixed"]
    own = mixed & columns.is_op("attention") & (phase != step_phase)
    works = mixed & columns.is_op("gemm", "quantize")
    if not own.any():
        return phase
    result = phase.copy()
    walls = columns.is_op("kv_write", "rope", "norm", "activation")
    for lane in range(len(columns.lane_device)):
        rows = columns.rows_of_lane(lane, own | works | walls)
        attends, inner = own[rows], works[rows]
        wall = np.cumsum(walls[rows])  # cache writes, norms and activations part the layers
        place = np.arange(len(rows))
        following = np.minimum.accumulate(np.where(attends, place, len(rows))[::-1])[::-1]
        before = np.maximum.accumulate(np.where(attends, place, -1))
        target, source = np.minimum(following, len(rows) - 1), np.maximum(before, 0)
        reached = inner & (following < len(rows)) & (wall[target] == wall)
        between = reached & (before >= 0) & (wall[source] == wall)
        if not between.any():  # projections stand between the attention of two kinds in latent attention only
            continue
        feeds, names = phase[rows][target], columns.name[rows]
        decoding = np.unique(names[reached & (feeds == PHASE["decode"])])
        feeds = np.where(np.isin(names, decoding), PHASE["decode"], feeds)
        result[rows[reached]] = feeds[reached]
    return result


def as_enum(name: str, codes: Ints, dtype: pl.Enum) -> pl.Series:
    """Codes of an enum as its column."""
    return pl.Series(name, dtype.categories, dtype=dtype).gather(pl.Series(codes))
