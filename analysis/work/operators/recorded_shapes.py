"""Exact GEMM shapes that a capture records itself: PyTorch's ``sizes = [[..], ..]`` and layer-wise module ranges.

Only operators that hold no other GEMM operator are read (``aten::mm`` and its like, linear modules), so the one open
at a kernel's launch call is the one that launched it. A shape written in the kernel's name (DeepGEMM's N and K) is
read by the name rules, not here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from ...records.trace import Trace

Ints = npt.NDArray[np.int64]
Sizes = npt.NDArray[np.int32]

# Operator -> how its first sizes read. Dimensions are named in the order they are written.
_PAIR = r"\[(?<m>\d+), (?<k>\d+)\], \[\d+, (?<n>\d+)\]"
_OPERATORS: tuple[tuple[str, str], ...] = (
    (r"^aten::(?:mm|_scaled_mm|_int_mm)\b.*sizes = \[", _PAIR),
    (r"^aten::addmm\b.*sizes = \[\[[\d, ]*\], ", _PAIR),
    (r"^aten::bmm\b.*sizes = \[", r"\[(?<batch>\d+), (?<m>\d+), (?<k>\d+)\], \[\d+, \d+, (?<n>\d+)\]"),
    (r"^aten::baddbmm\b.*sizes = \[\[[\d, ]*\], ", r"\[(?<batch>\d+), (?<m>\d+), (?<k>\d+)\], \[\d+, \d+, (?<n>\d+)\]"),
    (
        r"^\{'Module': '[^']*', 'TrainableParams': \{'weight': ",
        r"\[(?<n>\d+), (?<k>\d+)\].*'Inputs': \[\[(?<m>\d+), \d+\]",
    ),
)


@dataclass(frozen=True)
class RecordedShapes:
    """M, N, K and batch of each kernel's GEMM; 0 where the capture does not record it."""

    rows: Sizes
    outputs: Sizes
    inputs: Sizes
    batch: Sizes

    @property
    def known(self) -> npt.NDArray[np.bool_]:
        """Kernels whose shape is recorded."""
        return self.rows > 0


def shapes_of_texts(texts: pl.DataFrame) -> pl.DataFrame:
    """Rows of ``texts`` (text_id, text) that state a GEMM: text_id, m, n, k, batch."""
    found = []
    for operator, sizes in _OPERATORS:
        pattern = operator + sizes
        groups = pl.col("text").str.extract_groups(pattern)
        hit = texts.filter(pl.col("text").str.contains(pattern)).with_columns(shape=groups).unnest("shape")
        if hit.height:
            if "batch" not in hit.columns:
                hit = hit.with_columns(batch=pl.lit("1"))
            found.append(hit.select("text_id", pl.col("m", "n", "k", "batch").cast(pl.Int64)))
    if not found:
        return pl.DataFrame(schema={"text_id": pl.UInt32, **dict.fromkeys(("m", "n", "k", "batch"), pl.Int64)})
    return pl.concat(found).unique("text_id", keep="first").sort("text_id")


def recorded_shapes(trace: Trace, launch: Ints, gemm: npt.NDArray[np.bool_]) -> RecordedShapes | None:
    """Shapes of the kernels marked ``gemm``, through their launch call's thread; None when nothing is recorded."""
    if not trace.ranges.height or not trace.launches.height:
        return None
    shapes = shapes_of_texts(trace.texts)
    if not shapes.height:
        return None
    ranges = trace.ranges.filter((pl.col("thread") >= 0) & (pl.col("end_ns") > pl.col("start_ns")))
    ranges = ranges.join(shapes, on="text_id").sort("thread", "start_ns")
    result = RecordedShapes(*(np.zeros(len(launch), np.int32) for _ in range(4)))
    rows = np.flatnonzero(gemm & (launch >= 0))
    calls = trace.launches[launch[rows]]
    alone = (calls["kind"] == "kernel").to_numpy()  # a graph's kernels were not launched by the range's operator
    rows, calls = rows[alone], calls.filter(alone)
    thread, time = calls["thread"].to_numpy(), calls["start_ns"].to_numpy()
    for key in ranges["thread"].unique().to_list():
        own = ranges.filter(pl.col("thread") == key)
        of = np.flatnonzero(thread == key)
        at = np.searchsorted(own["start_ns"].to_numpy(), time[of], side="right") - 1
        inside = (at >= 0) & (time[of] < own["end_ns"].to_numpy()[np.maximum(at, 0)])
        kernel, at = rows[of[inside]], at[inside]
        for target, name in zip((result.rows, result.outputs, result.inputs, result.batch), "mnkb", strict=True):
            column = "batch" if name == "b" else name
            target[kernel] = own[column].to_numpy()[at]
    return result
