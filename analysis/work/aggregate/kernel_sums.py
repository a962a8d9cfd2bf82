"""Sums of kernel work by (name, phase), from which the tables are made.

Names and phases are small numbers, so groups are counted with ``bincount`` instead of hashing a million rows; sums by
op class are then sums of a few hundred groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...numeric.grouping import stable_order
from ...phases import PhaseResult
from ...records.tables import EVIDENCE, OP_CLASSES, PHASES, WORK_SOURCES
from ..kernel_work import NAME, UNKNOWN, KernelWork, countable_steps, rows_of

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_PHASES: list[str] = list(PHASES.categories)
_EVIDENCE: list[str] = list(EVIDENCE.categories)
_SOURCES: list[str] = list(WORK_SOURCES.categories)
_OPS: list[str] = list(OP_CLASSES.categories)
MS = 1e6


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
    columns: dict[str, Floats]  # count, total_ms, in_mixed_ms, known_ms, flop, flop_n, ...
    by_evidence: Floats  # (group, evidence) ms
    by_source: Floats  # (group, work source) ms
    steps: Lists  # the steps in which each group has a kernel, none twice
    whole: npt.NDArray[np.bool_]  # steps that neither the window nor the capture's edge cuts
    rows: Lists  # kernel rows of each group
    dtype: Ints
    helper: npt.NDArray[np.bool_]
    duration: Ints  # of one launch of each kernel row
    launches: Ints | None  # launches of each kernel row of sums; None where each is one


def group_sums(phases: PhaseResult, work: KernelWork, launches: Ints | None = None) -> GroupSums:
    """Sum the work of all kernels in the window.

    ``launches``: how many each kernel row stands for, where the input holds sums; times and work are theirs together.
    """
    kernels = phases.kernels
    inside = np.flatnonzero(kernels["in_window"].fill_null(False).to_numpy())

    # usually the window holds every kernel: then the columns themselves serve, not copies of them
    chosen: slice | Ints = slice(None) if len(inside) == kernels.height else inside

    def codes(column: str) -> npt.NDArray[Any]:
        return kernels[column].to_physical().to_numpy()[chosen]

    wide = work.name[chosen].astype(np.int64) * len(_PHASES) + codes("phase")
    present, group, rows_of_group = _dense(wide)
    del wide
    n = len(present)
    ms = work.duration[chosen] / MS
    flop, size = work.flop[chosen], work.bytes[chosen]
    matrix = work.matrix[chosen]
    compute, memory = work.compute_s[chosen], work.memory_s[chosen]

    def total(values: Floats, where: npt.NDArray[np.bool_] | None = None) -> Floats:
        known = ~np.isnan(values) if where is None else where
        return np.bincount(group, np.where(known, values, 0.0), n).astype(np.float64)

    def number(where: npt.NDArray[np.bool_]) -> Floats:
        counted = where if launches is None else np.where(where, launches[chosen], 0)
        return np.bincount(group, counted, n).astype(np.float64)

    has_size, has_flop = ~np.isnan(size), ~np.isnan(flop)
    priced = ~np.isnan(compute)
    both = has_size & has_flop  # of one kernel: FLOPs of some and bytes of others make no intensity
    placed = both & priced & ~np.isnan(memory)
    columns = {
        "count": number(np.ones(len(group), np.bool_)) if launches is not None else rows_of_group.astype(np.float64),
        "total_ms": total(ms),
        "in_mixed_ms": total(ms, codes("step_phase") == _PHASES.index("mixed")),
        "both_flop": total(flop, both),
        "both_bytes": total(size, both),
        "placed_ms": total(ms, placed),
        "placed_compute_s": total(compute, placed),
        "placed_memory_s": total(memory, placed),
        "bytes_ms": total(ms, has_size),
        "memory_ms": total(ms, ~np.isnan(memory)),
        "compute_ms": total(ms, priced & matrix),
        "bytes": total(size),
        "bytes_n": number(has_size),
        "flop": total(flop),
        "flop_n": number(has_flop),
        "flop_executed": total(work.flop_executed[chosen]),
        "memory_s": total(memory),
        "memory_n": number(~np.isnan(memory)),
        "compute_s": total(compute),
        "compute_n": number(priced),
        "matrix_s": total(compute, priced & matrix),
        "matrix_n": number(priced & matrix),
    }
    if work.most_s is work.compute_s:  # nothing is known of padded work alone
        columns |= {"executed_n": columns["flop_n"], "most_s": columns["matrix_s"], "most_ms": columns["compute_ms"]}
    else:
        most = work.most_s[chosen]
        bounded = ~np.isnan(most) & matrix
        columns |= {"most_s": total(most, bounded), "most_ms": total(ms, bounded)}
        columns["executed_n"] = number(~np.isnan(work.flop_executed[chosen]))
    columns |= _bounded(work, countable_steps(phases.steps), inside, group, n)
    whole = ~phases.steps["partial"].fill_null(False).to_numpy()
    columns["whole_n"] = number(np.append(whole, False)[work.step[chosen]])  # -1, outside every step, picks the last
    order = stable_order(group)
    ends = np.cumsum(rows_of_group)
    first = order[ends - rows_of_group]
    rows = Lists(order if isinstance(chosen, slice) else inside[order], np.append(0, ends))
    return GroupSums(
        name=present // len(_PHASES),
        op=codes("op_class")[first].astype(np.int64),
        phase=present % len(_PHASES),
        columns=columns,
        by_evidence=_split(group, codes("evidence"), ms, n, len(_EVIDENCE)),
        by_source=_split(group, work.source[chosen], ms, n, len(_SOURCES)),
        steps=_steps_of_groups(group, work.step[chosen], n, phases.steps.height),
        whole=whole,
        rows=rows,
        dtype=np.maximum.reduceat(work.dtype[rows.values], rows.begins[:-1]).astype(np.int64)
        if n
        else np.zeros(0, np.int64),
        helper=np.logical_and.reduceat(work.helper[rows.values], rows.begins[:-1]) if n else np.zeros(0, np.bool_),
        duration=work.duration if launches is None else work.duration // launches,
        launches=launches,
    )


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


def _bounded(
    work: KernelWork, counted: npt.NDArray[np.bool_], inside: Ints, group: Ints, groups: int
) -> dict[str, Floats]:
    """Launches bounded by tile and grid in each group, and their FLOPs at both ends; nothing where none is."""
    if work.bounds is None or not work.bounds.outputs:
        return {}
    least, most = work.bounds.weights("low"), work.bounds.weights("high")
    chosen = ((work.source == NAME) | (work.source == UNKNOWN)) & ~np.isnan(least)[work.place] & ~work.helper
    at = np.flatnonzero((chosen & np.append(counted, False)[work.step])[inside])  # -1, outside, picks the last
    rows = inside[at]
    useful, _ = rows_of(work.kernels, rows)
    known = ~np.isnan(useful)
    at, place, flop = group[at[known]], work.place[rows[known]], 2.0 * useful[known]
    return {
        "bounded_n": np.bincount(at, minlength=groups).astype(np.float64),
        "flop_low": np.bincount(at, flop * least[place], groups).astype(np.float64),
        "flop_high": np.bincount(at, flop * most[place], groups).astype(np.float64),
    }


def _dense(wide: Ints) -> tuple[Ints, Ints, Ints]:
    """The codes that occur, the position of each row's code among them, and how often each occurs."""
    often = np.bincount(wide)
    present = np.flatnonzero(often)
    place = np.zeros(len(often), np.int64)
    place[present] = np.arange(len(present))
    return present, place[wide], often[present]


def _split(group: Ints, kind: npt.NDArray[Any], ms: Floats, groups: int, kinds: int) -> Floats:
    return np.asarray(np.bincount(group * kinds + kind, ms, groups * kinds), np.float64).reshape(groups, kinds)


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


#: Sums that are unknown where no kernel of the group has the number, and how many have it.
_KNOWN = (("flop", "flop_n"), ("flop_executed", "executed_n"), ("bytes", "bytes_n"), ("memory_s", "memory_n"),
          ("compute_s", "compute_n"), ("matrix_s", "matrix_n"))  # fmt: skip


def each_group(sums: GroupSums) -> Iterator[dict[str, Any]]:
    """A table row for each group: sums, counts per step, evidence shares, main source, median; null = unknown."""
    columns = sums.columns
    evidence, source = sums.by_evidence.tolist(), sums.by_source.argmax(axis=1).tolist()
    whole = sums.by_evidence.sum(axis=1).tolist()
    steps, dtype, helper = np.diff(sums.steps.begins).tolist(), sums.dtype.tolist(), sums.helper.tolist()
    whole_steps = np.diff(np.append(0, np.cumsum(sums.whole[sums.steps.values]))[sums.steps.begins]).tolist()
    op, phase, name = sums.op.tolist(), sums.phase.tolist(), sums.name.tolist()
    begins = sums.rows.begins.tolist()
    for group, values in enumerate(zip(*(column.tolist() for column in columns.values()), strict=True)):
        row: dict[str, Any] = dict(zip(columns, values, strict=True))
        _finish(row, evidence[group], whole[group])
        row["steps"], row["whole_steps"], row["source"] = steps[group], whole_steps[group], _SOURCES[source[group]]
        own = sums.rows.values[begins[group] : begins[group + 1]]
        row["median_launch"], median = median_row(own, sums.duration, sums.launches)
        row["median_us"] = median / 1e3
        row["dtype"], row["helper"] = dtype[group], helper[group]
        row["op_class"], row["phase"], row["name_id"] = _OPS[op[group]], _PHASES[phase[group]], name[group]
        yield row


def merged(sums: GroupSums, members: Sequence[int]) -> dict[str, Any]:
    """The same as one row for some groups."""
    at = np.asarray(members, np.int64)
    row: dict[str, Any] = {name: float(values[at].sum(axis=0)) for name, values in sums.columns.items()}
    evidence = sums.by_evidence[at].sum(axis=0)
    _finish(row, evidence.tolist(), float(evidence.sum()))
    steps = np.unique(sums.steps.joined(members))
    row["steps"], row["whole_steps"] = len(steps), int(np.count_nonzero(sums.whole[steps]))
    row["source"] = _SOURCES[int(sums.by_source[at].sum(axis=0).argmax())]
    row["median_launch"], median = median_row(sums.rows.joined(members), sums.duration, sums.launches)
    row["median_us"] = median / 1e3
    row["dtype"] = int(sums.dtype[at].max())
    row["helper"] = bool(sums.helper[at].all())
    row["op_class"], row["phase"] = _OPS[int(sums.op[at[0]])], _PHASES[int(sums.phase[at[0]])]
    row["name_id"] = int(sums.name[at[0]])
    return row


def _finish(row: dict[str, Any], evidence: Sequence[float], whole: float) -> None:
    for name, known in _KNOWN:
        if not row[known]:
            row[name] = None
    row["count"] = int(row["count"])
    row["evidence"] = {kind: ms / whole for kind, ms in zip(_EVIDENCE, evidence, strict=True) if ms and whole}
