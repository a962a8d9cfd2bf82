"""Phase and evidence of every kernel: its own where its name is sure inside a mixed step, else its step's."""

from __future__ import annotations

import numpy as np
import polars as pl

from ...ingest.trace import Trace
from ..result import EVIDENCE, OP_CLASSES, PHASES
from .columns import HINT, PHASE, Bools, Columns, Ints
from .link import LinkResult

EVIDENCE_CODE = {name: code for code, name in enumerate(EVIDENCE.categories.to_list())}


def tag_kernels(
    trace: Trace, columns: Columns, link: LinkResult, step: Ints, steps: pl.DataFrame, in_window: Bools
) -> pl.DataFrame:
    """Trace.kernels with the columns of KERNEL_TAGS."""
    step_phase, evidence = spread_over_kernels(columns, link, step, steps)
    phase = own_phase(columns, step, step_phase)
    named = phase != step_phase
    evidence = np.where(named, EVIDENCE_CODE["kernel_name"], evidence)
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


def spread_over_kernels(columns: Columns, link: LinkResult, step: Ints, steps: pl.DataFrame) -> tuple[Ints, Ints]:
    """Phase and evidence each kernel has from its step: the rung applies to the kernels that showed it."""
    padded = np.append(steps["phase"].to_physical().to_numpy().astype(np.int64), PHASE["unknown"])
    rung = np.append(steps["evidence"].to_physical().to_numpy().astype(np.int64), EVIDENCE_CODE["none"])
    phase, evidence = padded[step], rung[step]
    phase = np.where((step < 0) & columns.load_time, PHASE["other"], phase)
    context = EVIDENCE_CODE["step_context"]
    attention = columns.is_op("attention", "gemm", "moe_gemm") & (columns.hint != 0)
    for name, shown in (
        ("kernel_name", attention),
        ("launch_geometry", columns.exact_tokens),
        ("graph_replay", link.replay >= 0),
    ):
        evidence = np.where((evidence == EVIDENCE_CODE[name]) & ~shown, context, evidence)
    return phase, evidence


def own_phase(columns: Columns, step: Ints, step_phase: Ints) -> Ints:
    """In a mixed step (or one without a phase) an attention kernel whose name is sure keeps its own phase.

    A name that is only likely keeps it in a mixed step where attention of the other kind runs beside it.
    """
    attention = columns.is_op("attention", "attention_combine")
    open_step = attention & np.isin(step_phase, [PHASE["mixed"], PHASE["unknown"]])
    mixed = attention & (step_phase == PHASE["mixed"])
    result = step_phase
    for kind, other in (("decode", "prefill"), ("prefill", "decode")):
        beside = np.zeros(int(step.max(initial=0)) + 2, dtype=bool)
        beside[step[mixed & (columns.hint == HINT[other])]] = True
        own = (columns.hint == HINT[kind]) & ((open_step & columns.hint_sure) | (mixed & beside[step]))
        result = np.where(own, PHASE[kind], result)
    return result


def as_enum(name: str, codes: Ints, dtype: pl.Enum) -> pl.Series:
    """Codes of an enum as its column."""
    return pl.Series(name, dtype.categories, dtype=dtype).gather(pl.Series(codes))
