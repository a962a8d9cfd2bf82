"""Runtime and driver calls: launches, and every other call by kind.

Both APIs share CUPTI_ACTIVITY_KIND_RUNTIME; names carry a version suffix (``cudaLaunchKernel_v7000``).
"""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from ..trace import API_CALLS, API_KINDS, LAUNCH_KINDS, LAUNCHES, Schema, empty
from .columns import Wanted, read_columns
from .kernels import Context
from .rows import Columns, in_order, keep, keep_valid_times, process_of, to_frame
from .strings import TextPool, dense

LAUNCHING = frozenset({"kernel", "graph"})
CALL_TABLE = "CUPTI_ACTIVITY_KIND_RUNTIME"
COLUMNS = {
    "start_ns": Wanted("start", "i64"),
    "end_ns": Wanted("end", "i64"),
    "thread": Wanted("globalTid", "i64"),
    "correlation_id": Wanted("correlationId", "i64"),
    "name": Wanted("nameId", "i32"),
}
SUFFIX = re.compile(r"(_v\d+|_ptsz|_ptds|_spt)+$")

# The first pattern found in a call's name (without its suffix) gives its kind; 'kernel' and 'graph' are launches.
CALL_KINDS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), kind)
    for pattern, kind in (
        (r"^(cuda|cu|hip)Graph\w*Instantiate|^(cuda|cu|hip)GraphExec", "other"),
        (r"^(cuda|cu|hip)(Device)?GraphLaunch", "graph"),
        (r"^(cuda|cu)Launch(Host|HostFunc)|^hipLaunchHostFunc", "other"),
        (r"^(cuda|cu|hip)(Module|Ext)?Launch|^cuLaunch$|^cuLaunchGrid", "kernel"),
        (r"^cudaLaunchCooperativeKernel|^hipExtLaunch|^__hipLaunch", "kernel"),
        (r"Memset", "memset"),
        (
            r"Mem(Host)?(Alloc|Free|Pool)|Malloc|(cuda|hip)Free|Host(Alloc|Register|Unregister)|MemAddress|MemCreate|MemMap",
            "malloc",
        ),
        (r"Memcpy|MemPrefetch|MemBatch", "copy"),
        (r"Synchronize", "sync"),
        (r"Event|StreamWait", "event"),
    )
)


def call_name(name: str) -> str:
    """A call's name without its version suffix."""
    return SUFFIX.sub("", name)


def call_kind(name: str) -> str:
    """'kernel' or 'graph' for launches, else one of API_KINDS."""
    return next((kind for pattern, kind in CALL_KINDS if pattern.search(name)), "other")


def read_calls(context: Context, texts: TextPool) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The LAUNCHES and API_CALLS frames."""
    table = context.database.find(CALL_TABLE)
    if table is None:
        return empty(LAUNCHES), empty(API_CALLS)
    columns = read_columns(context.database, table, COLUMNS).integers
    columns = keep_valid_times(columns, "call", context.notes, offset=context.base.offset)
    distinct, codes = dense(columns.pop("name"))
    known = context.strings.values(distinct)
    names = [call_name(known.get(key, f"call {key}")) for key in distinct.tolist()]
    kinds = [call_kind(name) for name in names]
    columns["process"] = process_of(columns["thread"])
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
