"""Sums of kernel work by (name, phase), from which the tables are made.

Names and phases are small numbers, so groups are counted with ``bincount`` instead of hashing a million rows; sums by
op class are then sums of a few hundred groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from ...numeric.grouping import stable_order
from ...phases import PhaseResult
from ...records.tables import EVIDENCE, OP_CLASSES, PHASES, WORK_SOURCES
from ..kernel_work import NAME, UNKNOWN, KernelWork, countable_steps, gemm_rows

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_PHASES: list[str] = list(PHASES.categories)
_EVIDENCE: list[str] = list(EVIDENCE.categories)
_SOURCES: list[str] = list(WORK_SOURCES.categories)
_OPS: list[str] = list(OP_CLASSES.categories)
NS_PER_MS = 1e6


@dataclass(frozen=True)
class Lists:
    """A list of numbers for each group, one behind the other."""

    values: Ints
    begins: Ints  # of each group's list, and where the last one ends

    def of(self, group: int) -> Ints:
        """The list of one group."""
        return self.values[self.begins[group] : self.begins[group + 1]]

    def joined(self, groups: Sequence[int]) -> Ints:
        """The lists of some groups, at least one, end to end."""
        return np.concatenate([self.of(group) for group in groups])


@dataclass(frozen=True)
class GroupSums:
    """One row per (name, phase) that occurs in the window. Sums are over kernels whose number is known."""

    name: Ints
    op: Ints
    phase: Ints
    columns: dict[str, Floats]  # the sums of ``WorkSums`` by name
    by_evidence: Floats  # (group, evidence) ms
    by_source: Floats  # (group, work source) ms
    steps: Lists  # the steps in which each group has a kernel, none twice
    whole: npt.NDArray[np.bool_]  # steps that neither the window nor the capture's edge cuts
    rows: Lists  # kernel rows of each group
    dtype: Ints
    helper: npt.NDArray[np.bool_]
    duration: Ints  # of one launch of each kernel row
    launches: Ints | None  # launches of each kernel row of sums; None where each is one


class _Groups:
    """The groups that occur, the group of each kernel in the window, and sums over them."""

    def __init__(self, code: Ints, launches: Ints | None) -> None:
        often = np.bincount(code)
        self.codes = np.flatnonzero(often)
        self.rows = often[self.codes]
        self.launches = launches  # that each row stands for; None where each is one
        place = np.zeros(len(often), np.int64)
        place[self.codes] = np.arange(len(self.codes))
        self.of = place[code]

    def total(self, values: Floats, where: Bools | None = None) -> Floats:
        """The known values of each group (or those ``where`` is true) added up."""
        known = ~np.isnan(values) if where is None else where
        return np.bincount(self.of, np.where(known, values, 0.0), len(self.codes)).astype(np.float64)

    def number(self, where: Bools) -> Floats:
        """How many launches of each group ``where`` is true of."""
        counted = where if self.launches is None else np.where(where, self.launches, 0)
        return np.bincount(self.of, counted, len(self.codes)).astype(np.float64)

    def split(self, kind: npt.NDArray[np.integer], ms: Floats, kinds: int) -> Floats:
        """Time of each group by kind."""
        groups = len(self.codes)
        return np.asarray(np.bincount(self.of * kinds + kind, ms, groups * kinds), np.float64).reshape(groups, kinds)


def group_sums(phases: PhaseResult, work: KernelWork, launches: Ints | None = None) -> GroupSums:
    """Sum the work of all kernels in the window.

    ``launches``: how many each kernel row stands for, where the input holds sums; times and work are theirs together.
    """
    kernels = phases.kernels
    inside = np.flatnonzero(kernels["in_window"].fill_null(False).to_numpy())
    # usually the window holds every kernel: then the columns themselves serve, not copies of them
    chosen: slice | Ints = slice(None) if len(inside) == kernels.height else inside

    def codes(column: str) -> npt.NDArray[np.integer]:
        return np.asarray(kernels[column].to_physical().to_numpy()[chosen])

    wide = work.name[chosen].astype(np.int64) * len(_PHASES) + codes("phase")
    groups = _Groups(wide, None if launches is None else launches[chosen])
    del wide
    ms = work.duration[chosen] / NS_PER_MS
    whole = ~phases.steps["partial"].fill_null(False).to_numpy()
    columns = _sums_of_work(work, chosen, ms, groups)
    columns["in_mixed_ms"] = groups.total(ms, codes("step_phase") == _PHASES.index("mixed"))
    # a step of -1, outside every step, picks the last
    columns["whole_n"] = groups.number(np.append(whole, False)[work.step[chosen]])
    columns |= _bounded(work, countable_steps(phases.steps), inside, groups)
    order = stable_order(groups.of)
    ends = np.cumsum(groups.rows)
    rows = Lists(order if isinstance(chosen, slice) else inside[order], np.append(0, ends))
    some = len(groups.codes) > 0
    return GroupSums(
        name=groups.codes // len(_PHASES),
        op=codes("op_class")[order[ends - groups.rows]].astype(np.int64),
        phase=groups.codes % len(_PHASES),
        columns=columns,
        by_evidence=groups.split(codes("evidence"), ms, len(_EVIDENCE)),
        by_source=groups.split(work.source[chosen], ms, len(_SOURCES)),
        steps=_steps_of_groups(groups.of, work.step[chosen], len(groups.codes), phases.steps.height),
        whole=whole,
        rows=rows,
        dtype=(np.maximum.reduceat(work.dtype[rows.values], rows.begins[:-1]) if some else np.zeros(0)).astype(
            np.int64
        ),
        helper=np.logical_and.reduceat(work.helper[rows.values], rows.begins[:-1]) if some else np.zeros(0, np.bool_),
        duration=work.duration if launches is None else work.duration // launches,
        launches=launches,
    )


def _sums_of_work(work: KernelWork, chosen: slice | Ints, ms: Floats, groups: _Groups) -> dict[str, Floats]:
    """The sums of ``WorkSums``; ``ms`` is the time of each of the ``chosen`` kernels."""
    flop, size = work.flop[chosen], work.bytes[chosen]
    matrix = work.matrix[chosen]
    compute, memory = work.ideal.compute_s[chosen], work.ideal.memory_s[chosen]
    total, number = groups.total, groups.number
    has_size, has_flop, has_memory = ~np.isnan(size), ~np.isnan(flop), ~np.isnan(memory)
    priced = ~np.isnan(compute)
    both = has_size & has_flop  # of one kernel: FLOPs of some and bytes of others make no intensity
    placed = both & priced & has_memory
    columns = {
        "count": number(np.ones(len(ms), np.bool_)) if groups.launches is not None else groups.rows.astype(np.float64),
        "total_ms": total(ms),
        "both_flop": total(flop, both),
        "both_bytes": total(size, both),
        "placed_ms": total(ms, placed),
        "placed_compute_s": total(compute, placed),
        "placed_memory_s": total(memory, placed),
        "bytes_ms": total(ms, has_size),
        "memory_ms": total(ms, has_memory),
        "compute_ms": total(ms, priced & matrix),
        "bytes": total(size),
        "bytes_n": number(has_size),
        "flop": total(flop),
        "flop_n": number(has_flop),
        "flop_executed": total(work.flop_executed[chosen]),
        "memory_s": total(memory),
        "memory_n": number(has_memory),
        "matrix_s": total(compute, priced & matrix),
        "matrix_n": number(priced & matrix),
    }
    if work.ideal.most_s is work.ideal.compute_s:  # nothing is known of padded work alone
        return columns | {
            "executed_n": columns["flop_n"],
            "most_s": columns["matrix_s"],
            "most_ms": columns["compute_ms"],
        }
    most = work.ideal.most_s[chosen]
    bounded = ~np.isnan(most) & matrix
    return columns | {
        "executed_n": number(~np.isnan(work.flop_executed[chosen])),
        "most_s": total(most, bounded),
        "most_ms": total(ms, bounded),
    }


def _steps_of_groups(group: Ints, step: npt.NDArray[np.int32], groups: int, steps: int) -> Lists:
    """The distinct steps of each group, rising. By a table of groups by steps, unless it would be larger than a column of
    the kernels: a capture may hold 100,000 names and as many steps."""
    width = steps + 1  # step -1 marks the last column, which is dropped
    if groups * width <= 8 * len(step):
        seen = np.zeros((groups, width), np.bool_)
        seen[group, step] = True
        pairs = np.flatnonzero(seen[:, :-1])
    else:
        inside = step >= 0
        pairs = np.unique(group[inside] * max(steps, 1) + step[inside])
    often = np.bincount(pairs // max(steps, 1), minlength=groups)
    return Lists(pairs % max(steps, 1), np.append(0, np.cumsum(often)))


def _bounded(work: KernelWork, counted: npt.NDArray[np.bool_], inside: Ints, groups: _Groups) -> dict[str, Floats]:
    """Launches bounded by tile and grid in each group, and their FLOPs at both ends; nothing where none is."""
    if work.bounds is None or not work.bounds.outputs:
        return {}
    least, most = work.bounds.weights("low"), work.bounds.weights("high")
    chosen = ((work.source == NAME) | (work.source == UNKNOWN)) & ~np.isnan(least)[work.place] & ~work.helper
    at = np.flatnonzero((chosen & np.append(counted, False)[work.step])[inside])  # -1, outside, picks the last
    rows = inside[at]
    useful, _ = gemm_rows(work, rows)
    known = ~np.isnan(useful)
    at, place, flop = groups.of[at[known]], work.place[rows[known]], 2.0 * useful[known]
    return {
        "bounded_n": np.bincount(at, minlength=len(groups.codes)).astype(np.float64),
        "flop_low": np.bincount(at, flop * least[place], len(groups.codes)).astype(np.float64),
        "flop_high": np.bincount(at, flop * most[place], len(groups.codes)).astype(np.float64),
    }


def median_row(rows: Ints, duration: Ints, launches: Ints | None = None) -> tuple[int, float]:
    """The row of the median (lower middle) duration and the median in ns, of the kernels in ``rows``.

    ``launches``: how many kernels of its duration each row stands for, where that is not one.
    """
    own = duration[rows]
    if launches is not None:
        order = np.argsort(own, kind="stable")
        reached = np.cumsum(launches[rows[order]])
        lower, upper = np.searchsorted(reached, [(reached[-1] - 1) // 2, reached[-1] // 2], side="right")
        return int(rows[order[lower]]), float(own[order[lower]] + own[order[upper]]) / 2.0
    if len(own) == 1:
        return int(rows[0]), float(own[0])
    middle = (len(own) - 1) // 2
    order = np.argpartition(own, middle)
    value = float(own[order[middle]])
    if len(own) % 2 == 0:
        value = (value + float(own[order[middle + 1 :]].min())) / 2.0
    return int(rows[order[middle]]), value


class WorkSums(msgspec.Struct, frozen=True):
    """Sums over some kernels; null where no kernel has the number.

    ``*_n``: kernels that have the number; ``*_ms``: time of kernels with a property; ``*_s``: ideal times in seconds.
    """

    count: int
    total_ms: float
    in_mixed_ms: float
    whole_n: float  # kernels in whole steps
    flop: float | None
    flop_executed: float | None
    bytes: float | None
    bytes_n: float
    bytes_ms: float
    both_flop: float  # of kernels whose FLOPs and bytes are both known
    both_bytes: float
    memory_s: float | None
    memory_ms: float
    matrix_s: float | None  # of matrix kernels at the compute ceiling
    compute_ms: float  # time of these
    most_s: float  # the same with padded work where that alone is known
    most_ms: float
    placed_ms: float  # time of kernels with both ideal times
    placed_compute_s: float
    placed_memory_s: float
    bounded_n: float  # launches bounded by tile and grid
    flop_low: float  # their FLOPs at least
    flop_high: float  # and at most


class RowSums(msgspec.Struct, frozen=True):
    """What one row of a table is made of."""

    op_class: str
    phase: str
    name_id: int
    evidence: dict[str, float]  # share of the row's time by evidence
    steps: int  # with a kernel of the row
    whole_steps: int
    median_us: float
    median_launch: int  # row of the kernels
    work_source: str  # of most of its time
    dtype: int  # code of DTYPES
    helper: bool
    sums: WorkSums


def each_group(sums: GroupSums) -> Iterator[RowSums]:
    """A row for each group."""
    columns = sums.columns
    evidence, source = sums.by_evidence.tolist(), sums.by_source.argmax(axis=1).tolist()
    whole = sums.by_evidence.sum(axis=1).tolist()
    steps, dtype, helper = np.diff(sums.steps.begins).tolist(), sums.dtype.tolist(), sums.helper.tolist()
    whole_steps = np.diff(np.append(0, np.cumsum(sums.whole[sums.steps.values]))[sums.steps.begins]).tolist()
    op, phase, name = sums.op.tolist(), sums.phase.tolist(), sums.name.tolist()
    begins = sums.rows.begins.tolist()
    for group, values in enumerate(zip(*(column.tolist() for column in columns.values()), strict=True)):
        own = sums.rows.values[begins[group] : begins[group + 1]]
        median_launch, median_ns = median_row(own, sums.duration, sums.launches)
        yield RowSums(
            op_class=_OPS[op[group]],
            phase=_PHASES[phase[group]],
            name_id=name[group],
            evidence=_shares(evidence[group], whole[group]),
            steps=steps[group],
            whole_steps=whole_steps[group],
            median_us=median_ns / 1e3,
            median_launch=median_launch,
            work_source=_SOURCES[source[group]],
            dtype=dtype[group],
            helper=helper[group],
            sums=_work_sums(dict(zip(columns, values, strict=True))),
        )


def merged(sums: GroupSums, members: Sequence[int]) -> RowSums:
    """One row for some groups."""
    at = np.asarray(members, np.int64)
    evidence = sums.by_evidence[at].sum(axis=0)
    steps = np.unique(sums.steps.joined(members))
    median_launch, median_ns = median_row(sums.rows.joined(members), sums.duration, sums.launches)
    return RowSums(
        op_class=_OPS[int(sums.op[at[0]])],
        phase=_PHASES[int(sums.phase[at[0]])],
        name_id=int(sums.name[at[0]]),
        evidence=_shares(evidence.tolist(), float(evidence.sum())),
        steps=len(steps),
        whole_steps=int(np.count_nonzero(sums.whole[steps])),
        median_us=median_ns / 1e3,
        median_launch=median_launch,
        work_source=_SOURCES[int(sums.by_source[at].sum(axis=0).argmax())],
        dtype=int(sums.dtype[at].max()),
        helper=bool(sums.helper[at].all()),
        sums=_work_sums({name: float(values[at].sum(axis=0)) for name, values in sums.columns.items()}),
    )


def _shares(ms: Sequence[float], whole: float) -> dict[str, float]:
    return {kind: own / whole for kind, own in zip(_EVIDENCE, ms, strict=True) if own and whole}


def _work_sums(own: Mapping[str, float]) -> WorkSums:
    def known(name: str, number: str) -> float | None:
        return own[name] if own[number] else None

    return WorkSums(
        count=int(own["count"]),
        total_ms=own["total_ms"],
        in_mixed_ms=own["in_mixed_ms"],
        whole_n=own["whole_n"],
        flop=known("flop", "flop_n"),
        flop_executed=known("flop_executed", "executed_n"),
        bytes=known("bytes", "bytes_n"),
        bytes_n=own["bytes_n"],
        bytes_ms=own["bytes_ms"],
        both_flop=own["both_flop"],
        both_bytes=own["both_bytes"],
        memory_s=known("memory_s", "memory_n"),
        memory_ms=own["memory_ms"],
        matrix_s=known("matrix_s", "matrix_n"),
        compute_ms=own["compute_ms"],
        most_s=own["most_s"],
        most_ms=own["most_ms"],
        placed_ms=own["placed_ms"],
        placed_compute_s=own["placed_compute_s"],
        placed_memory_s=own["placed_memory_s"],
        bounded_n=own.get("bounded_n", 0.0),
        flop_low=own.get("flop_low", 0.0),
        flop_high=own.get("flop_high", 0.0),
    )
