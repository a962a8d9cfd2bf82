"""The host's side of decode bubbles: what the launching thread did while the device waited for it.

A bubble is an idle interval inside decode work that ended with a launch call made too late. On the thread of that call
its time is split, in this order: waiting in a synchronising call, graph launches, kernel launches, copies and memsets,
then the engine's own NVTX scopes (sampling, input preparation, scheduling), and what remains is host code without a name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Protocol

import numpy as np
import numpy.typing as npt
import polars as pl
from msgspec import UNSET

from ..numeric.grouping import rows_by_value, split_by
from ..numeric.intervals import EMPTY, Intervals, Times, union
from ..records.host import HostParts, HostSide, LaunchesInFlight
from ..records.trace import Trace
from .group_steps import chain_decode_steps, split_groups
from .idle_causes import LAUNCH_BOUND
from .time_accounting import TimeResult

#: Words in an engine's scope (last part of its text, any case) and the part of a bubble it stands for.
SCOPES: Mapping[str, str] = {
    "sample": "sampling",
    "sampling": "sampling",
    "postprocess": "sampling",
    "bookkeep": "sampling",
    "update_requests": "sampling",
    "process_batch_result": "sampling",
    "preprocess": "input_preparation",
    "prepare": "input_preparation",
    "inputs": "input_preparation",
    "schedule": "scheduling",
    "scheduler": "scheduling",
    "get_next_batch": "scheduling",
    "fetch_new_requests": "scheduling",
    "recv_requests": "scheduling",
    "process_input_requests": "scheduling",
}
NO_LAUNCHES = "the capture records no launch calls"
MIN_LAUNCHES_PER_KERNEL_TO_SORT = (
    8  # launch calls for each kernel from which sorting the kernels is cheaper than a place for each call
)
NO_KERNEL_NS = np.iinfo(np.int64).max


@dataclass(frozen=True)
class _Bubbles:
    start_ns: Times
    end_ns: Times
    thread: Times


class Tagged(Protocol):
    """What the phase stage hands on, as far as it is needed here (PhaseResult, WorkResult with groups)."""

    @property
    def kernels(self) -> pl.DataFrame:
        """Trace.kernels with KERNEL_TAGS."""

    @property
    def steps(self) -> pl.DataFrame:
        """STEPS."""

    @property
    def groups(self) -> pl.DataFrame:
        """GROUPS."""


def host_side(trace: Trace, tagged: Tagged, time: TimeResult) -> HostSide:
    """JSON ``host``: the bubbles of pure decode gaps split by what the host did, ms (means over the devices).

    Keys: ``bubble_ms``, ``bubble_count``, ``bubble_ms_per_decode_step``, ``share_of_decode_pct`` (of the decode gaps),
    ``parts_ms`` (they sum to bubble_ms), ``dispatch_ms`` (between queued kernels: not the host's), and
    ``launches_in_flight`` at the start of decode steps. Null with a reason where the capture holds no launch calls.
    """
    groups = tagged.groups
    decode = _decode_gaps(tagged)
    if time.opaque_graphs or not trace.launches.height or decode.is_empty() or not time.devices:
        why = NO_LAUNCHES if not trace.launches.height else "graph replays are opaque" if time.opaque_graphs else ""
        return HostSide(bubble_ms=None, bubble_ms_reason=why or "no decode step follows another")
    group_of = {d: g for g, devices in groups.select("group", "devices").iter_rows() for d in devices}
    parts = dict.fromkeys(HostParts.__struct_fields__, 0)
    bubble_ns = dispatch_ns = count = 0
    per_step: list[npt.NDArray[np.float64]] = []
    devices = 0
    decode_ns = 0
    scopes, calls = _scopes(trace), _calls(trace)
    gaps_of = split_by(decode, "group")
    for d, line in time.timelines.items():
        mine = gaps_of(group_of.get(d, -1))
        if line.idle is None or mine.is_empty():
            continue
        devices += 1
        windows = union(mine["start_ns"].to_numpy(), mine["end_ns"].to_numpy())
        idle = line.idle.intervals
        inside = windows.holds(idle)
        late = np.flatnonzero(inside & line.idle.late)
        bubbles = _Bubbles(idle.starts[late], idle.ends[late], line.idle.thread[late])
        for name, ns in _split(calls, scopes, bubbles).items():
            parts[name] += ns
        queued = inside & ~line.idle.late & (line.idle.cause == LAUNCH_BOUND)
        dispatch_ns += int(idle.lengths[queued].sum())
        bubble_ns += int((bubbles.end_ns - bubbles.start_ns).sum())
        count += len(late)
        decode_ns += windows.total_ns
        own = Intervals(bubbles.start_ns, bubbles.end_ns)  # as idle intervals they are apart and in order
        per_step.append(own.measure_within(mine["start_ns"].to_numpy(), mine["end_ns"].to_numpy()) / 1e6)
    scale = max(devices, 1) * 1e6
    in_flight = _in_flight(trace, tagged.kernels, tagged.steps)
    return HostSide(
        bubble_ms=bubble_ns / scale,
        bubble_count=round(count / max(devices, 1)),
        bubble_ms_per_decode_step=float(np.median(np.concatenate(per_step))) if per_step else None,
        share_of_decode_pct=100 * bubble_ns / decode_ns if decode_ns else None,
        parts_ms=HostParts(**{name: ns / scale for name, ns in parts.items()}),
        dispatch_ms=dispatch_ns / scale,
        scopes_seen=any(scopes.values()),
        launches_in_flight=in_flight,
        launches_in_flight_reason=UNSET if in_flight is not None else NO_LAUNCHES,
    )


def _decode_gaps(tagged: Tagged) -> pl.DataFrame:
    """Gaps that close with a pure decode step and hold no prefill step: group, start_ns, end_ns."""
    start_ns, end_ns, number = ([np.zeros(0, dtype=np.int64)] for _ in range(3))
    for group in split_groups(tagged.steps, tagged.groups):
        chain = chain_decode_steps(group)
        pure = group.is_decode[chain.closing] & (chain.prefill_between == 0)
        start_ns.append(group.end_ns[chain.before][pure])
        end_ns.append(group.end_ns[chain.closing][pure])
        number.append(np.full(len(start_ns[-1]), group.group))
    columns = {"start_ns": start_ns, "end_ns": end_ns, "group": number}
    return pl.DataFrame({name: np.concatenate(parts) for name, parts in columns.items()})


def _scopes(trace: Trace) -> dict[str, dict[int, Intervals]]:
    """Host time under the engine's scopes: part -> thread -> intervals."""
    found: dict[str, dict[int, Intervals]] = {"sampling": {}, "input_preparation": {}, "scheduling": {}}
    if trace.ranges.is_empty():
        return found
    words = "|".join(sorted(SCOPES, key=len, reverse=True))
    # Texts with shapes are markers and modules; a scope is a short name, and its last word says what it does.
    found_words = pl.col("text").str.to_lowercase().str.extract_all(rf"\b_?(?:{words})").list.last()
    named = (
        trace.texts.filter(pl.col("text").str.len_bytes() <= 64)
        .select("text_id", found_words.str.strip_chars_start("_").alias("word"))
        .drop_nulls()
        .with_columns(pl.col("word").replace_strict(dict(SCOPES), return_dtype=pl.String).alias("part"))
    )
    ranges = (
        trace.ranges.filter(pl.col("thread") >= 0)
        .join(named, on="text_id", how="inner")
        .select("part", "thread", "start_ns", "end_ns")
    )
    for mine in ranges.partition_by("part", "thread"):
        found[mine["part"][0]][int(mine["thread"][0])] = union(mine["start_ns"].to_numpy(), mine["end_ns"].to_numpy())
    return found


Calls = tuple[tuple[str, pl.Expr, Callable[[int], pl.DataFrame]], ...]


def _calls(trace: Trace) -> Calls:
    """The calls of each thread by what they mean for a bubble: its part, which of the calls, all calls by thread."""
    launches, api_calls = (
        split_by(calls.select("thread", "kind", "start_ns", "end_ns"), "thread")
        for calls in (trace.launches, trace.api_calls)
    )
    return (
        ("waiting", pl.col("kind") == "sync", api_calls),
        ("graph_launch", pl.col("kind") == "graph", launches),
        ("kernel_launch", pl.col("kind") == "kernel", launches),
        ("copies", (pl.col("kind") == "copy") | (pl.col("kind") == "memset"), api_calls),
    )


def _split(calls: Calls, scopes: Mapping[str, Mapping[int, Intervals]], bubbles: _Bubbles) -> dict[str, int]:
    """Nanoseconds of the bubbles by part; they sum to the bubbles' length."""
    total = dict.fromkeys(HostParts.__struct_fields__, 0)
    for thread, mine in rows_by_value(bubbles.thread):
        rest = Intervals(bubbles.start_ns[mine], bubbles.end_ns[mine])
        low, high = int(rest.starts[0]), int(rest.ends[-1])
        busy: list[tuple[str, Intervals]] = []
        for name, chosen, of_thread in calls:
            rows = of_thread(thread).filter(chosen & (pl.col("end_ns") > low) & (pl.col("start_ns") < high))
            busy.append((name, union(rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy())))
        busy.extend((name, by_thread.get(thread, EMPTY)) for name, by_thread in scopes.items())
        taken: list[Intervals] = []  # disjoint, so that they need no merging: there may be millions
        named = 0
        for name, part in busy:
            fresh = reduce(Intervals.subtract, taken, part)
            taken.append(fresh)
            ns = fresh.shared_ns(rest)
            total[name] += ns
            named += ns
        total["unnamed_host_code"] += rest.total_ns - named
    return total


def _in_flight(trace: Trace, kernels: pl.DataFrame, steps: pl.DataFrame) -> LaunchesInFlight | None:
    """Launch calls made but not yet running when a pure decode step starts, over all devices; None without any."""
    decode = steps.filter((pl.col("phase").cast(pl.String) == "decode") & ~pl.col("excluded"))
    counts: list[npt.NDArray[np.int64]] = []
    called_ns = trace.launches["start_ns"].to_numpy()
    launch, device = kernels["launch"].to_numpy(), kernels["device_index"].to_numpy()
    start_ns = kernels["start_ns"].to_numpy()
    steps_of = split_by(decode, "device_index")
    for index, rows in rows_by_value(device):
        own, begin = launch[rows], start_ns[rows]
        linked = own >= 0
        if not linked.any():
            continue
        first_of, first = _first_kernels(own[linked], begin[linked], len(called_ns))
        at = steps_of(index)["start_ns"].to_numpy()
        # both are nearly in order, which a stable sort makes use of
        called, running = np.sort(called_ns[first_of], kind="stable"), np.sort(first, kind="stable")
        counts.append(np.searchsorted(called, at, side="right") - np.searchsorted(running, at, side="right"))
    values = np.concatenate(counts) if counts else np.zeros(0, dtype=np.int64)
    if not len(values):
        return None
    return LaunchesInFlight(p50=float(np.median(values)), max=int(values.max()))


def _first_kernels(launch: npt.NDArray[np.int32], start_ns: Times, launches: int) -> tuple[Times, Times]:
    """The launch calls among ``launch``, rising, and the start of the first kernel of each, ns."""
    if len(launch) * MIN_LAUNCHES_PER_KERNEL_TO_SORT < launches:  # one device of many
        order = np.lexsort((start_ns, launch))
        launch, start_ns = launch[order], start_ns[order]
        leads = np.flatnonzero(np.diff(launch, prepend=-1))
        return launch[leads].astype(np.int64), start_ns[leads]
    # by place, since grouping a million launches takes far longer and more memory
    first = np.full(launches, NO_KERNEL_NS, dtype=np.int64)
    np.minimum.at(first, launch, start_ns)
    linked = np.flatnonzero(first < NO_KERNEL_NS)
    return linked, first[linked]
