"""Steps from the engine's own ranges: each launch call falls into the step range open on its thread.

Ranges of different grammars may nest (a runner's range around a scheduler's): the outer one is the step and takes
counts from the inner one where it has none. A label that repeats for one step is one step. Work launched after a
range has closed (lm_head and sampler of runners that sample later) belongs to the step before on that thread; metadata
launched just before a range opens belongs to the step it opens.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import polars as pl

from ...numeric.grouping import rows_by_key
from ...numeric.intervals import idle_before
from ...records.trace import Trace
from ..kernel_arrays import Bools, Ints, KernelArrays
from ..launch_links import LinkResult, ThreadIntervals, enclosing_interval, outermost

FACTS = (
    "prefill_requests",
    "prefill_tokens",
    "decode_requests",
    "decode_tokens",
    "padded_requests",
    "prefill_kv",
    "prefill_qk",
    "prefill_qq",
    "decode_kv",
    "decode_qk",
    "verify_width",
    "step_index",
)


MIN_REPEATS, REPEATED_SHARE = 3, 0.8  # labels that open twice per step: at least so many, and of those in question


@dataclass(frozen=True)
class MarkerSteps:
    """Steps that ranges name: one row per step range kept, and the step of each kernel (-1 = none)."""

    frame: pl.DataFrame  # start_ns, end_ns, process, thread, text_id, phase, grammar, engine + FACTS
    step: Ints  # per kernel
    ranges_seen: int  # step ranges in the capture, before merging
    ambiguous: Bools  # per kernel: tied by its neighbours on the stream, not by a launch call of its own


def step_ranges(trace: Trace, texts: pl.DataFrame, *, on_gpu: bool = False) -> pl.DataFrame:
    """Ranges whose text is a step of an engine's grammar, with the facts of the text.

    CPU ranges by thread; with ``on_gpu`` the ranges on GPU time, ``thread`` standing for their device.
    """
    facts = texts.select("text_id", "grammar", "engine", "role", "phase", *FACTS)
    wanted = facts.filter(pl.col("role") == "step")
    if wanted.height == 0 or trace.ranges.height == 0:
        return empty_ranges(facts)
    ranges = trace.ranges.filter(pl.col("text_id").is_in(wanted["text_id"].implode()))
    placed = (
        ranges.filter(pl.col("kind") == "gpu_annotation").with_columns(
            pl.col("device_index").cast(pl.Int64).alias("thread")
        )
        if on_gpu
        else home_thread(trace, ranges.filter(pl.col("kind") != "gpu_annotation"))
    )
    return placed.join(wanted, on="text_id", how="left", maintain_order="left")


def home_thread(trace: Trace, ranges: pl.DataFrame) -> pl.DataFrame:
    """Ranges with the thread whose launches they speak of.

    A start/end range may begin and end on threads that launch nothing: then it speaks of the thread it ends on, else
    of the thread of its process that launches most.
    """
    free = ranges["kind"].cast(pl.String) == "start_end"
    if not free.any():
        return ranges
    busy = trace.launches.group_by("process", "thread").len().sort("len", "thread", descending=[True, False])
    busiest = busy.group_by("process", maintain_order=True).agg(pl.col("thread").first().alias("busiest"))
    launching = busy["thread"].implode()
    home = (
        pl.when((pl.col("kind").cast(pl.String) != "start_end") | pl.col("thread").is_in(launching))
        .then("thread")
        .when(pl.col("end_thread").is_in(launching))
        .then("end_thread")
        .otherwise(pl.coalesce("busiest", "thread"))
    )
    placed = ranges.join(busiest, on="process", how="left", maintain_order="left").with_columns(home.alias("thread"))
    return placed.drop("busiest")


def empty_ranges(facts: pl.DataFrame) -> pl.DataFrame:
    """No step ranges, with every column."""
    columns = {"start_ns": pl.Int64, "end_ns": pl.Int64, "process": pl.Int64, "thread": pl.Int64, "kind": pl.String}
    return pl.DataFrame(schema={**columns, **facts.schema})


def merge_ranges(ranges: pl.DataFrame) -> pl.DataFrame:
    """One row per step: nested ranges fold into the outermost, repeats of an indexed label into the first.

    Adds ``piece`` rows' own intervals as column ``step_key``; sorted by (thread, start).
    """
    ordered = ranges.with_columns(length=pl.col("start_ns") - pl.col("end_ns")).sort("thread", "start_ns", "length")
    start, end = ordered["start_ns"].to_numpy(), ordered["end_ns"].to_numpy()
    thread = ordered["thread"].to_numpy()
    outer = np.ones(len(start), dtype=bool)
    for low, high in thread_slices(thread):
        outer[low:high] = outermost(start[low:high], end[low:high])
    owner = np.cumsum(outer) - 1
    rows = ordered.with_columns(pl.Series("piece", owner), pl.Series("outer", outer))
    served = pl.col("phase").filter(pl.col("phase").is_in(["prefill", "decode", "mixed"])).first()
    left_open = pl.when(pl.col("phase") == "unknown").then(None).otherwise(pl.col("phase")).drop_nulls().first()
    first_known = [
        pl.coalesce(served, left_open).alias("phase"),
        *[pl.col(name).drop_nulls().first() for name in FACTS],
    ]
    kept = ("start_ns", "end_ns", "process", "thread", "text_id", "grammar", "engine")
    pieces = rows.group_by("piece", maintain_order=True).agg(*[pl.col(name).first() for name in kept], *first_known)
    label = pl.struct("thread", "text_id", "step_index").rank("dense")
    key = pl.when(pl.col("step_index").is_not_null()).then(label).otherwise(-1 - pl.col("piece").cast(pl.Int64))
    pieces = pieces.with_columns(key.alias("label"))
    return pieces.with_columns(pl.col("piece").first().over("label").alias("step_key"))


def merge_repeats(pieces: pl.DataFrame, piece_of_launch: Ints, columns: KernelArrays, link: LinkResult) -> pl.DataFrame:
    """A label without an index that an overlapping loop opens twice per step: the second one joins the first.

    The second range holds a sampler and no forward pass. It follows the first, or with the range of one other batch
    between them. Only where nearly every range without a forward pass is such a second one.
    """
    count = pieces.height
    holds = np.zeros(count, dtype=bool)
    holds[piece_of_launch[link.launch_used & (piece_of_launch >= 0)]] = True
    forward = launched(columns, link, len(piece_of_launch), "attention") & (piece_of_launch >= 0)
    passes = np.zeros(count, dtype=bool)
    passes[piece_of_launch[forward]] = True
    text, thread = pieces["text_id"].to_numpy(), pieces["thread"].to_numpy()
    indexed = pieces["step_index"].is_not_null().to_numpy()
    seconds = np.flatnonzero(holds & ~passes & ~indexed)
    target = np.full(len(seconds), -1, dtype=np.int64)
    for back in (2, 1):
        first = np.maximum(seconds - back, 0)
        fits = (seconds >= back) & passes[first] & (text[first] == text[seconds]) & (thread[first] == thread[seconds])
        target = np.where(fits, first, target)
    joined = target >= 0
    if np.count_nonzero(joined) < max(MIN_REPEATS, REPEATED_SHARE * len(seconds)):
        return pieces
    key = pieces["step_key"].cast(pl.Int64).to_numpy().copy()
    key[seconds[joined]] = key[target[joined]]
    return pieces.with_columns(pl.Series("step_key", key))


def thread_slices(thread: Ints) -> list[tuple[int, int]]:
    """Slices of equal values of a sorted array."""
    if len(thread) == 0:
        return []
    edges = np.flatnonzero(thread[1:] != thread[:-1]) + 1
    bounds = [0, *edges.tolist(), len(thread)]
    return list(pairwise(bounds))


def find_marker_steps(trace: Trace, columns: KernelArrays, link: LinkResult, texts: pl.DataFrame) -> MarkerSteps:
    """Tie kernels to the step ranges of ``texts`` (the parsed marker texts) through their launch calls.

    A capture without CPU ranges may hold the same ranges on GPU time (PyTorch profiler): those hold kernels by time.
    """
    ranges = step_ranges(trace, texts)
    on_gpu = ranges.height == 0
    if on_gpu:
        ranges = step_ranges(trace, texts, on_gpu=True)
    nothing = np.full(columns.count, -1, dtype=np.int32)
    if ranges.height == 0:
        return MarkerSteps(ranges, nothing, 0, np.zeros(columns.count, bool))
    pieces = merge_ranges(ranges)
    if not on_gpu:
        piece_of_launch = assign_launches(trace, columns, link, pieces)
        pieces = merge_repeats(pieces, piece_of_launch, columns, link)
    key = pieces["step_key"].cast(pl.Int64).to_numpy()
    if on_gpu:
        of_kernel = kernels_inside(columns, pieces)
        ambiguous: Bools = np.zeros(columns.count, dtype=bool)
        of_kernel = np.where(of_kernel >= 0, key[np.maximum(of_kernel, 0)], -1)
    else:
        # -1, a launch outside every range and a kernel without one, picks the entry behind the last
        key_of_launch = np.append(np.append(key, -1)[piece_of_launch], -1)
        of_kernel = key_of_launch[link.launch]
        of_kernel, ambiguous = fill_from_neighbours(columns, link, of_kernel)
    steps = pieces.group_by("step_key", maintain_order=True).agg(
        pl.col("end_ns").max(), *[pl.col(c).first() for c in pieces.columns if c not in ("step_key", "end_ns", "piece")]
    )
    row_of_key = np.full(int(key.max()) + 2, -1, dtype=np.int32)
    row_of_key[steps["step_key"].cast(pl.Int64).to_numpy()] = np.arange(steps.height)
    step = row_of_key[of_kernel]  # -1 picks the last entry
    return MarkerSteps(steps, step, ranges.height, ambiguous)


def kernels_inside(columns: KernelArrays, pieces: pl.DataFrame) -> Ints:
    """The piece on GPU time around each kernel's start, on its device; -1 outside all."""
    device = np.array(columns.lane_device, dtype=np.int64)[columns.lane]
    result = np.full(columns.count, -1, dtype=np.int64)
    owners = pieces["thread"].to_numpy()
    starts, ends = pieces["start_ns"].to_numpy(), pieces["end_ns"].to_numpy()
    slices = thread_slices(owners)
    for (low, high), rows in zip(slices, rows_by_key(device, owners[[low for low, _ in slices]]), strict=True):
        intervals = ThreadIntervals(starts[low:high], ends[low:high], np.arange(low, high))
        place = enclosing_interval(intervals, columns.start[rows])
        result[rows] = np.where(place >= 0, place + low, -1)
    return result


def assign_launches(trace: Trace, columns: KernelArrays, link: LinkResult, pieces: pl.DataFrame) -> Ints:
    """The piece of each launch: the range around it on its thread, else the neighbour range it belongs to."""
    launches = trace.launches
    time, thread = launches["start_ns"].to_numpy(), launches["thread"].to_numpy()
    result = np.full(launches.height, -1, dtype=np.int64)
    work = LaunchWork(
        *(
            launched(columns, link, launches.height, *kinds)
            for kinds in (("sampling",), CLOSING_CLASSES, ("attention",))
        )
    )
    threads = pieces["thread"].to_numpy()
    starts, ends = pieces["start_ns"].to_numpy(), pieces["end_ns"].to_numpy()
    slices = thread_slices(threads)
    for (low, high), mine in zip(slices, rows_by_key(thread, threads[[low for low, _ in slices]]), strict=True):
        order = mine[np.argsort(time[mine], kind="stable")]
        intervals = ThreadIntervals(starts[low:high], ends[low:high], np.arange(low, high))
        inside = enclosing_interval(intervals, time[order])
        placed = place_outside(inside, time[order], intervals, work.of(order))
        result[order] = np.where(placed >= 0, placed + low, -1)
    return result


CLOSING_CLASSES = ("gemm", "sampling", "gemm_reduce", "moe_gemm", "norm")  # behind a range they still belong to it


@dataclass(frozen=True)
class LaunchWork:
    """Per launch call: whether a sampler, another closing kernel or attention is among its kernels."""

    samples: Bools
    closes: Bools
    attends: Bools

    def of(self, rows: Ints) -> LaunchWork:
        """The same for some of the launches."""
        return LaunchWork(self.samples[rows], self.closes[rows], self.attends[rows])


def launched(columns: KernelArrays, link: LinkResult, launches: int, *classes: str) -> Bools:
    """Launch calls with a kernel of one of the op classes."""
    flags = np.zeros(launches, dtype=bool)
    flags[link.launch[columns.is_op(*classes) & (link.launch >= 0)]] = True
    return flags


def place_outside(inside: Ints, time: Ints, intervals: ThreadIntervals, work: LaunchWork) -> Ints:
    """Launches between two ranges: up to the last closing one they belong to the range before, later ones to the next.

    Where a forward pass of its own runs between two ranges (attention: a draft model), only its predecessor's sampler
    belongs to the range before, and the pass to none. Launches before the first range belong to it only if they come
    within one range length of it.
    """
    placed = inside.copy()
    loose = np.flatnonzero(inside < 0)
    if len(loose) == 0:
        return placed
    work = work.of(loose)
    gap = np.searchsorted(intervals.start, time[loose], side="right")  # number of ranges begun
    number = np.arange(len(loose))
    count = len(intervals.start) + 1
    first_pass = np.full(count, len(loose))
    np.minimum.at(first_pass, gap[work.attends], number[work.attends])
    passes = first_pass < len(loose)
    closing = np.where(passes[gap], work.samples & (number < first_pass[gap]), work.closes)
    last_close = np.full(count, -1, dtype=np.int64)
    np.maximum.at(last_close, gap[closing], number[closing])
    to_previous = number <= last_close[gap]
    has_next = gap < len(intervals.start)
    following = np.minimum(gap, len(intervals.start) - 1)
    reach = np.median(intervals.end - intervals.start)
    near = intervals.start[following] - time[loose] <= max(reach, 1_000_000)
    target = np.where(to_previous, gap - 1, np.where(passes[gap], -1, np.where(has_next & near, gap, gap - 1)))
    placed[loose] = np.where((gap == 0) & (to_previous | ~near), -1, target)
    return placed


def fill_from_neighbours(columns: KernelArrays, link: LinkResult, step: Ints) -> tuple[Ints, Bools]:
    """Kernels without a launch record take the step of their neighbours, and are ambiguous for that.

    Neighbours on the stream when both sides agree, else on the device (graph replays run on streams of their own);
    between two steps the widest idle gap parts them.
    """
    lost = link.launch < 0
    ambiguous = np.zeros(len(step), dtype=bool)
    if not lost.any() or not (step >= 0).any():
        return step, ambiguous
    for key in (columns.stream, columns.lane):
        before, after = known_sides(key, np.where(lost & ~ambiguous, UNKNOWN, step))
        agree = lost & ~ambiguous & (before >= 0) & (before == after)
        step, ambiguous = np.where(agree, before, step), ambiguous | agree
    before, after = known_sides(columns.lane, np.where(lost & ~ambiguous, UNKNOWN, step))
    between = lost & ~ambiguous & (before >= 0) & (after >= 0)
    if between.any():
        step = np.where(between, np.where(behind_widest_gap(columns, between), after, before), step)
    return step, ambiguous | between


UNKNOWN = -2


def known_sides(key: Ints, step: Ints) -> tuple[Ints, Ints]:
    """For each row the last known step before it and the first after it with the same key, -1 where none is."""
    frame = pl.DataFrame({"key": key, "step": step})
    known = pl.when(pl.col("step") != UNKNOWN).then("step")
    sides = frame.select(
        known.forward_fill().over("key").fill_null(-1).alias("before"),
        known.backward_fill().over("key").fill_null(-1).alias("after"),
    )
    return sides["before"].to_numpy(), sides["after"].to_numpy()


def behind_widest_gap(columns: KernelArrays, between: Bools) -> Bools:
    """Of the rows ``between`` two steps, those behind the widest idle gap of their stretch (the next step included)."""
    result = np.zeros(len(between), dtype=bool)
    for lane in np.unique(columns.lane[between]).tolist():
        rows = columns.rows_of_lane(lane)
        marked = between[rows]
        gap = idle_before(columns.start[rows], columns.end[rows])
        begins = np.flatnonzero(marked & ~np.concatenate([[False], marked[:-1]]))
        ends = np.flatnonzero(marked & ~np.concatenate([marked[1:], [False]]))
        for begin, end in zip(begins, ends, strict=True):
            parted = begin + int(gap[begin : end + 2].argmax())
            result[rows[parted : end + 1]] = True
    return result
