"""The kernels of a trace as plain arrays, with the facts of their names spread over the rows.

Every stage of this package reads these arrays; none walks rows. A *lane* is one device as one process sees it: steps
are found per lane, because two processes on one GPU run two engines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import TypeVar, cast

import numpy as np
import numpy.typing as npt
import polars as pl

from ..numeric.grouping import rows_by_key, split_by, stable_order
from ..records.tables import OP_CLASSES, PHASES
from ..records.trace import Trace

Ints = npt.NDArray[np.integer]  # of any width
Bools = npt.NDArray[np.bool_]
StepValues = TypeVar("StepValues", Ints, Bools)

OP = {name: code for code, name in enumerate(OP_CLASSES.categories.to_list())}
PHASE = {name: code for code, name in enumerate(PHASES.categories.to_list())}
MAX_LANES_UNSORTED = 8  # above these the rows are sorted by lane once; below, a pass for each is cheaper
HINTS = ("", "prefill", "decode", "prefill_or_mixed", "mixed")
HINT = {name: code for code, name in enumerate(HINTS)}


@dataclass(frozen=True)
class KernelArrays:
    """Kernel rows in trace order (by start); ids are dense codes.

    Codes and sizes are as narrow as they can be, since a million rows of each are held at once: widen them before
    multiplying.
    """

    start: Ints
    end: Ints
    name: Ints
    op: Ints  # code of OP_CLASSES
    hint: Ints  # code of HINTS, 0 = the name says nothing
    hint_sure: Bools
    few: Bools  # attention for few query rows: decode unless token counts say otherwise; its hint is 0
    many: Bools  # attention for many query rows in the whole batch: a prompt unless counts say otherwise; its hint is 0
    exact_tokens: Bools  # grid.x is the token count
    load_time: Bools
    named_rows: Ints  # tokens that a GEMM's name states, 0 = none
    grid_x: Ints
    grid_y: Ints
    grid_z: Ints
    lane: Ints
    stream: Ints  # one number per (lane, context, stream)
    kernel_row: Ints  # row of Trace.kernels, -1 for a whole-graph row
    graph_row: Ints  # row of Trace.graph_launches, -1 for a kernel
    opaque: Bools  # a whole graph replay: what runs inside is not recorded
    lane_device: tuple[int, ...]
    lane_process: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(self.start)

    def is_op(self, *names: str, rows: Ints | None = None) -> Bools:
        """For each row (of ``rows``, where given) whether its op class is one of ``names``."""
        op = self.op if rows is None else self.op[rows]
        return cast(Bools, reduce(np.logical_or, [op == OP[name] for name in names]))

    def rows_of_lane(self, lane: int, where: Bools | None = None) -> Ints:
        """The rows of a lane, those flagged in ``where`` if given."""
        if len(self.lane_device) <= MAX_LANES_UNSORTED:
            mine = self.lane == lane
            return np.flatnonzero(mine if where is None else mine & where)
        rows = self._rows_by_lane[lane]
        return rows if where is None else rows[where[rows]]

    @cached_property
    def _rows_by_lane(self) -> list[Ints]:
        return list(rows_by_key(self.lane, np.arange(len(self.lane_device))))


def copies_by_lane(copies: pl.DataFrame, columns: KernelArrays) -> Callable[[int], pl.DataFrame]:
    """For each lane its rows of ``copies`` (of Trace.copies), in their order."""
    if len(columns.lane_device) <= MAX_LANES_UNSORTED:
        return lambda lane: copies.filter(
            (pl.col("device_index") == columns.lane_device[lane]) & (pl.col("process") == columns.lane_process[lane])
        )
    keys = {name: copies.schema[name] for name in ("device_index", "process")}
    lanes = pl.DataFrame([columns.lane_device, columns.lane_process], schema=keys).with_row_index("lane")
    return split_by(copies.join(lanes, on=list(keys), maintain_order="left"), "lane")


def column(frame: pl.DataFrame, name: str) -> Ints:
    """One column as int64; what is not recorded is 0."""
    return frame[name].cast(pl.Int64).fill_null(0).to_numpy()


def narrow(frame: pl.DataFrame, name: str) -> Ints:
    """One column in its own type; what is not recorded is 0."""
    return frame[name].fill_null(0).to_numpy()


def read_columns(trace: Trace, name_facts: pl.DataFrame, *, few: Bools, many: Bools) -> KernelArrays:
    """Spread ``name_facts`` (row-aligned with ``trace.names``) over the kernels of ``trace``.

    ``few``, ``many``: per name, whether it is an attention kernel for few or for many query rows.
    """
    kernels = trace.kernels
    name = narrow(kernels, "name_id")
    op_of_name = name_facts["op_class"].cast(pl.String).cast(OP_CLASSES).to_physical().cast(pl.UInt8).to_numpy()
    hints = name_facts["phase_hint"].fill_null("")
    hint_of_name = hints.replace_strict(HINTS, range(len(HINTS)), default=0, return_dtype=pl.UInt8).to_numpy()
    hint_of_name = np.where(few | many, np.uint8(0), hint_of_name)
    sure_of_name = (name_facts["hint_strength"].fill_null("") == "sure").to_numpy()
    exact_of_name = (name_facts["tokens_from"].fill_null("") == "grid_x").to_numpy()
    load_of_name = name_facts["load_time"].fill_null(False).to_numpy()
    rows_of_name = np.zeros(name_facts.height, dtype=np.int32)
    if "tokens_in_name" in name_facts.columns:
        rows_of_name = name_facts["tokens_in_name"].fill_null(0).cast(pl.Int32).to_numpy()
    lane, lanes = dense_pairs(column(kernels, "device_index"), column(kernels, "process"))
    stream = lane * (1 << 40)
    stream += column(kernels, "context") * (1 << 32)
    stream += column(kernels, "stream")
    return KernelArrays(
        start=column(kernels, "start_ns"),
        end=column(kernels, "end_ns"),
        name=name,
        op=op_of_name[name] if len(name) else np.zeros(0, np.uint8),
        hint=hint_of_name[name] if len(name) else np.zeros(0, np.uint8),
        hint_sure=sure_of_name[name] if len(name) else np.zeros(0, bool),
        few=few[name] if len(name) else np.zeros(0, bool),
        many=many[name] if len(name) else np.zeros(0, bool),
        exact_tokens=exact_of_name[name] if len(name) else np.zeros(0, bool),
        named_rows=rows_of_name[name] if len(name) else np.zeros(0, np.int32),
        load_time=load_of_name[name] if len(name) else np.zeros(0, bool),
        grid_x=narrow(kernels, "grid_x"),
        grid_y=narrow(kernels, "grid_y"),
        grid_z=narrow(kernels, "grid_z"),
        lane=lane.astype(np.int32),
        stream=stream,
        kernel_row=np.arange(len(name), dtype=np.int32),
        graph_row=np.full(len(name), -1, dtype=np.int32),
        opaque=np.zeros(len(name), dtype=bool),
        lane_device=tuple(int(d) for d, _ in lanes),
        lane_process=tuple(int(p) for _, p in lanes),
    )


def dense_pairs(first: Ints, second: Ints) -> tuple[Ints, list[tuple[int, int]]]:
    """Number the distinct pairs in ascending order: (code per row, the pairs)."""
    if len(first) == 0:
        return np.zeros(0, np.int64), []
    one, two = dense(first), dense(second)
    codes = one[0] * len(two[1]) + two[0]
    found = np.flatnonzero(np.bincount(codes, minlength=len(one[1]) * len(two[1])))
    pairs = [(int(one[1][code // len(two[1])]), int(two[1][code % len(two[1])])) for code in found]
    if len(found) == len(one[1]) * len(two[1]):
        return codes, pairs
    number = np.zeros(len(one[1]) * len(two[1]), dtype=np.int64)
    number[found] = np.arange(len(found))
    return number[codes], pairs


def dense(values: Ints) -> tuple[Ints, Ints]:
    """Number the distinct values in ascending order: (code per row, the values)."""
    low, high = int(values.min()), int(values.max())
    if low == high:
        return np.zeros(len(values), np.int64), np.array([low])
    if high - low < 1 << 16:
        seen = np.flatnonzero(np.bincount(values - low))
        table = np.zeros(high - low + 1, dtype=np.int64)
        table[seen] = np.arange(len(seen))
        return table[values - low], seen + low
    known = pl.Series(values).unique().sort().to_numpy()
    return np.searchsorted(known, values), known


def of_step(values: StepValues, step: Ints, outside: float) -> StepValues:
    """For each kernel the value of its step, ``outside`` where it lies in none (-1)."""
    return np.asarray(np.append(values, values.dtype.type(outside))[step])


def rows_by_step(step: Ints, steps: int) -> tuple[Ints, Ints]:
    """Rows inside steps, step by step and in their order, and where each step begins among them (one entry more)."""
    rows = np.flatnonzero(step >= 0)
    owner = step[rows]
    if not bool(np.all(owner[1:] >= owner[:-1])):
        rows = rows[stable_order(owner)]
    return rows, np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=steps))])
