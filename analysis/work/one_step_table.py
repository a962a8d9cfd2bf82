"""``--step``: one step, kernel by kernel: where its time went, in shares that sum to its kernel time."""

from __future__ import annotations

from typing import NamedTuple

import polars as pl

from ..records.errors import CannotAnswerError, UsageError
from ..records.tables import OP_CLASSES, PHASES
from ..records.trace import Schema, Trace
from ..records.usable_steps import USABLE_STEP

MEDIANS = {"median-decode": "decode", "median-prefill": "prefill"}

STEP_TABLE: Schema = {
    "index": pl.Int32,  # of the step
    "device": pl.Int32,
    "step_ms": pl.Float64,  # span of the step
    "name": pl.String,
    "short_name": pl.String,
    "place": pl.String,
    "op_class": OP_CLASSES,
    "phase": PHASES,
    "count": pl.Int64,
    "total_us": pl.Float64,
    "time_pct": pl.Float64,  # of the step's kernel time (kernels may overlap: the sum is not the span)
    "flop": pl.Float64,
    "bytes": pl.Float64,
    "arithmetic_intensity": pl.Float64,
    "mfu_pct": pl.Float64,
    "mbu_pct": pl.Float64,
}


def step_table(which: str | None, trace: Trace, kernels: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame | None:
    """The kernels of one step by name and place, longest first; None where ``--step`` was not given.

    ``which`` is ``median-decode``, ``median-prefill`` (the whole step of median duration) or a step index; the first
    device of the first group that has it. Raises UsageError for another word or an index that does not exist,
    CannotAnswerError when there is no step of the kind.
    """
    if which is None:
        return None
    chosen = _choose(which, steps)
    own = kernels.filter(pl.col("step") == chosen.step)
    names = trace.names.select("name_id", "name", "short_name")
    duration = (pl.col("end_ns") - pl.col("start_ns")).cast(pl.Float64)

    def weighted(column: str) -> pl.Expr:
        # ratios of kernels that take time t_i: sum(ratio_i t_i) / sum(t_i), null where one is unknown
        ratio = pl.col(column).cast(pl.Float64)
        return pl.when(ratio.null_count() == 0).then((ratio * duration).sum() / duration.sum())

    table = (
        own.group_by("name_id", "place", "op_class", "phase", maintain_order=True)  # sums in one order
        .agg(
            pl.len().cast(pl.Int64).alias("count"),
            (duration.sum() / 1e3).alias("total_us"),
            *(pl.when(pl.col(c).null_count() == 0).then(pl.col(c).sum()).alias(c) for c in ("flop", "bytes")),
            *(weighted(c).alias(c) for c in ("mfu_pct", "mbu_pct")),
        )
        .join(names, on="name_id", maintain_order="left")
        .with_columns(
            pl.lit(chosen.number, dtype=pl.Int32).alias("index"),
            pl.lit(chosen.device, dtype=pl.Int32).alias("device"),
            pl.lit((chosen.end_ns - chosen.start_ns) / 1e6).alias("step_ms"),
            (100 * pl.col("total_us") / pl.col("total_us").sum()).alias("time_pct"),
            pl.when(pl.col("bytes") > 0).then(pl.col("flop") / pl.col("bytes")).alias("arithmetic_intensity"),
        )
        .sort("total_us", "name", "place", descending=[True, False, False])
    )
    return table.select([pl.col(c).cast(t) for c, t in STEP_TABLE.items()])


class _ChosenStep(NamedTuple):
    """What the table says of its step; times in ns."""

    step: int
    number: int  # its ``index``
    device: int
    start_ns: int
    end_ns: int


def _choose(which: str, steps: pl.DataFrame) -> _ChosenStep:
    steps_of_kind, at = _matching(which, steps)
    return _ChosenStep(*steps_of_kind.select("step", "index", "device", "start_ns", "end_ns").row(at))


def _matching(which: str, steps: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """The steps that ``which`` may mean, and which of them it is."""
    if which in MEDIANS:
        kind = steps.filter((pl.col("phase") == MEDIANS[which]) & USABLE_STEP)
        if not len(kind):
            raise CannotAnswerError(f"--step {which}: the capture holds no whole {MEDIANS[which]} step.")
        kind = kind.filter(pl.col("device_index") == pl.col("device_index").min())
        ordered = kind.sort(pl.col("end_ns") - pl.col("start_ns"), "step")
        return ordered, (len(ordered) - 1) // 2
    if not which.isdecimal():
        raise UsageError(f"--step: {which!r} is neither {', '.join(MEDIANS)} nor a step index.")
    rows = steps.filter(pl.col("index") == int(which)).sort("group", "device_index")
    if not len(rows):
        last = max(steps["index"].to_list(), default=None)
        raise UsageError(
            f"--step {which}: no such step" + (f"; they run from 0 to {last}." if last is not None else ".")
        )
    return rows, 0
