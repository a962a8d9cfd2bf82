"""The kernels of a trace as plain arrays, with the facts of their names spread over the rows.

Every stage of this package reads these arrays; none walks rows. A *lane* is one device as one process sees it: steps
are found per lane, because two processes on one GPU run two engines.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from ...ingest.trace import Trace
from ..result import OP_CLASSES, PHASES

Ints = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
Bools = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]

OP = {name: code for code, name in enumerate(OP_CLASSES.categories.to_list())}
PHASE = {name: code for code, name in enumerate(PHASES.categories.to_list())}
HINTS = ("", "prefill", "decode", "prefill_or_mixed", "mixed")
HINT = {name: code for code, name in enumerate(HINTS)}


@dataclass(frozen=True)
class Columns:
    """Kernel rows in trace order (by start); ids are dense codes."""

    start: Ints
    end: Ints
    name: Ints
    op: Ints  # code of OP_CLASSES
    hint: Ints  # code of HINTS, 0 = the name says nothing
    hint_sure: Bools
    exact_tokens: Bools  # grid.x is the token count
    load_time: Bools
    named_rows: Ints  # tokens that a GEMM's name states, 0 = none
    grid_x: Ints
    grid_y: Ints
    grid_z: Ints
    lane: Ints
    stream: Ints  # dense code of (device, context, stream)
    kernel_row: Ints  # row of Trace.kernels, -1 for a whole-graph row
    graph_row: Ints  # row of Trace.graph_launches, -1 for a kernel
    opaque: Bools  # a whole graph replay: what runs inside is not recorded
    lane_device: tuple[int, ...]
    lane_process: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(self.start)

    def is_op(self, *names: str) -> Bools:
        """Rows whose op class is one of ``names``."""
        wanted = np.zeros(len(OP), dtype=bool)
        wanted[[OP[name] for name in names]] = True
        return wanted[self.op]


def column(frame: pl.DataFrame, name: str) -> Ints:
    """One column as int64."""
    return frame[name].cast(pl.Int64).to_numpy()


def read_columns(trace: Trace, name_facts: pl.DataFrame) -> Columns:
    """Spread ``name_facts`` (row-aligned with ``trace.names``) over the kernels of ``trace``."""
    kernels = trace.kernels
    name = column(kernels, "name_id")
    op_of_name = name_facts["op_class"].cast(pl.String).cast(OP_CLASSES).to_physical().cast(pl.Int64).to_numpy()
    hints = name_facts["phase_hint"].fill_null("")
    hint_of_name = hints.replace_strict(HINTS, range(len(HINTS)), default=0, return_dtype=pl.Int64).to_numpy()
    sure_of_name = (name_facts["hint_strength"].fill_null("") == "sure").to_numpy()
    exact_of_name = (name_facts["tokens_from"].fill_null("") == "grid_x").to_numpy()
    load_of_name = name_facts["load_time"].fill_null(False).to_numpy()
    rows_of_name = np.zeros(name_facts.height, dtype=np.int64)
    if "tokens_in_name" in name_facts.columns:
        rows_of_name = name_facts["tokens_in_name"].fill_null(0).cast(pl.Int64).to_numpy()
    device, process = column(kernels, "device_index"), column(kernels, "process")
    lane, lanes = dense_pairs(device, process)
    stream, _ = dense_pairs(lane, column(kernels, "stream") * (1 << 20) + column(kernels, "context"))
    return Columns(
        start=column(kernels, "start_ns"),
        end=column(kernels, "end_ns"),
        name=name,
        op=op_of_name[name] if len(name) else np.zeros(0, np.int64),
        hint=hint_of_name[name] if len(name) else np.zeros(0, np.int64),
        hint_sure=sure_of_name[name] if len(name) else np.zeros(0, bool),
        exact_tokens=exact_of_name[name] if len(name) else np.zeros(0, bool),
        named_rows=rows_of_name[name] if len(name) else np.zeros(0, np.int64),
        load_time=load_of_name[name] if len(name) else np.zeros(0, bool),
        grid_x=column(kernels, "grid_x"),
        grid_y=column(kernels, "grid_y"),
        grid_z=column(kernels, "grid_z"),
        lane=lane,
        stream=stream,
        kernel_row=np.arange(len(name)),
        graph_row=np.full(len(name), -1, dtype=np.int64),
        opaque=np.zeros(len(name), dtype=bool),
        lane_device=tuple(int(d) for d, _ in lanes),
        lane_process=tuple(int(p) for _, p in lanes),
    )


def dense_pairs(first: Ints, second: Ints) -> tuple[Ints, list[tuple[int, int]]]:
    """Number the distinct pairs in ascending order: (code per row, the pairs)."""
    if len(first) == 0:
        return np.zeros(0, np.int64), []
    frame = pl.DataFrame({"a": first, "b": second})
    pairs = frame.unique().sort("a", "b")
    if pairs.height == 1:
        return np.zeros(len(first), np.int64), [pairs.row(0)]
    coded = pairs.with_row_index("code")
    joined = frame.join(coded, on=["a", "b"], how="left", maintain_order="left")
    return joined["code"].cast(pl.Int64).to_numpy(), [(int(a), int(b)) for a, b in pairs.iter_rows()]
