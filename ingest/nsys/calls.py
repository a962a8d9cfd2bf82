"""Runtime and driver calls: launches, and every other call by kind.

Both APIs share CUPTI_ACTIVITY_KIND_RUNTIME; names carry a version suffix (``cudaLaunchKernel_v7000``).
"""

from __future__ import annotations

import numpy as np
import polars as pl

from ...analysis.records.trace import API_CALLS, API_KINDS, LAUNCH_KINDS, LAUNCHES, Schema, empty
from ..api_names import GRAPH_LAUNCH, KERNEL_LAUNCH, kind_of_call, plain_name
from .context import Context, valid
from .rows import Columns, in_order, keep, process_of, to_frame, usable_correlation
from .sqlite_pages.columns import Wanted, read_columns
from .strings import TextPool, dense

LAUNCHING = frozenset({KERNEL_LAUNCH, GRAPH_LAUNCH})
CALL_TABLE = "CUPTI_ACTIVITY_KIND_RUNTIME"
MOST_IDS = 1 << 27
COLUMNS = {
    "start_ns": Wanted("start", "i64"),
    "end_ns": Wanted("end", "i64"),
    "thread": Wanted("globalTid", "i64"),
    "correlation_id": Wanted("correlationId", "i64"),
    "name": Wanted("nameId", "i32"),
}


def read_calls(context: Context, texts: TextPool, only_process: int | None) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The LAUNCHES and API_CALLS frames; calls of an export without thread ids belong to ``only_process``, if any."""
    table = context.database.find(CALL_TABLE)
    if table is None:
        return empty(LAUNCHES), empty(API_CALLS)
    columns = valid(read_columns(context.database, table, COLUMNS).integers, "call", context, on_gpu=False)
    distinct, codes = dense(columns.pop("name"))
    known = context.strings.values(distinct)
    names = [plain_name(known.get(key, f"call {key}")) for key in distinct.tolist()]
    kinds = [kind_of_call(name) for name in names]
    process = process_of(columns["thread"])
    if only_process is not None and process.size and (process == -1).all():
        process = np.full(process.size, only_process, dtype=np.int64)
    columns["process"] = process
    columns["correlation_id"] = usable_correlation(columns["correlation_id"])
    columns["text_id"] = texts.add(names)[codes]
    columns["code"] = codes
    is_launch = np.array([kind in LAUNCHING for kind in kinds], dtype=bool)[codes]
    return (
        _of_kind(keep(columns, is_launch), kinds, LAUNCHES, "launch", context),
        _of_kind(keep(columns, ~is_launch), kinds, API_CALLS, "call", context),
    )


def _of_kind(columns: Columns, kinds: list[str], schema: Schema, what: str, context: Context) -> pl.DataFrame:
    """The frame of ``columns``, ``kind`` looked up by ``code``."""
    dtype = LAUNCH_KINDS if schema is LAUNCHES else API_KINDS
    known = set(dtype.categories.to_list())
    table = pl.Series("kind", [kind if kind in known else None for kind in kinds], dtype=dtype)
    columns = {**columns, "kind": table.gather(columns["code"])}
    return in_order(to_frame(columns, schema, what, context.notes))


def opaque_launches(launches: pl.DataFrame, kernels: pl.DataFrame) -> int:
    """Graph launch calls under whose correlation id no kernel was recorded."""
    graphs = launches.filter((pl.col("kind") == GRAPH_LAUNCH) & (pl.col("correlation_id") >= 0))
    opaque = 0
    for (process,), mine in graphs.group_by("process"):
        own = kernels if kernels["process"].n_unique() == 1 else kernels.filter(pl.col("process") == process)
        if own.height and own["process"][0] != process:
            own = own.clear()
        calls, recorded = mine["correlation_id"].to_numpy(), own["correlation_id"].to_numpy()
        low, high = int(calls.min()), int(calls.max())
        recorded = recorded[(recorded >= low) & (recorded <= high)]
        if high - low < MOST_IDS:  # ids are given one after the other: a table of flags is quicker than a search
            seen = np.zeros(high - low + 1, dtype=bool)
            seen[recorded - low] = True
            opaque += int((~seen[calls - low]).sum())
        else:
            opaque += int((~np.isin(calls, recorded)).sum())
    return opaque
