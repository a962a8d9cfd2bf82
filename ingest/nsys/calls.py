"""Runtime and driver calls: launches, and every other call by kind.

Both APIs share CUPTI_ACTIVITY_KIND_RUNTIME; names carry a version suffix (``cudaLaunchKernel_v7000``).
"""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from ..trace import API_CALLS, API_KINDS, LAUNCH_KINDS, LAUNCHES, empty
from .kernels import Context, read_events
from .rows import in_order, keep_valid_times, narrowed, to_process
from .strings import TextPool, dense

CALL_TABLE = "CUPTI_ACTIVITY_KIND_RUNTIME"
COLUMNS = {
    "start_ns": "start",
    "end_ns": "end",
    "thread": "globalTid",
    "correlation_id": "correlationId",
    "name": "nameId",
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
    frame = keep_valid_times(read_events(context, table, COLUMNS), "call", context.notes, offset=context.base.offset)
    distinct, codes = dense(frame["name"].fill_null(-1).to_numpy())
    known = context.strings.values(distinct)
    names = [call_name(known.get(key, f"call {key}")) for key in distinct.tolist()]
    kinds = np.array([call_kind(name) for name in names], dtype=object)
    is_launch = np.isin(kinds, ["kernel", "graph"])[codes] if names else np.zeros(0, dtype=bool)
    frame = frame.with_columns(
        pl.Series("process", to_process(frame["thread"])),
        pl.Series("text_id", texts.add(names)[codes] if names else np.empty(0, dtype=np.uint32)),
        pl.Series("code", codes),
    )
    launches = _of_kind(frame.filter(pl.Series(is_launch)), kinds, LAUNCH_KINDS)
    others = _of_kind(frame.filter(pl.Series(~is_launch)), kinds, API_KINDS)
    return (
        in_order(narrowed(launches, LAUNCHES, "launch", context.notes)),
        in_order(narrowed(others, API_CALLS, "call", context.notes)),
    )


def _of_kind(frame: pl.DataFrame, kinds: np.ndarray, dtype: pl.Enum) -> pl.DataFrame:
    """``frame`` with ``kind`` looked up by ``code``."""
    known = set(dtype.categories.to_list())
    table = pl.Series("kind", [kind if kind in known else None for kind in kinds], dtype=dtype)
    return frame.with_columns(table.gather(frame["code"]))
