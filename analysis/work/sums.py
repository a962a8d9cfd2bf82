"""Sums of kernel work by (name, phase), from which the tables are made.

Names and phases are small numbers, so groups are counted with ``bincount`` instead of hashing a million rows; sums by
op class are then sums of a few hundred groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..phases import PhaseResult
from ..result import EVIDENCE, OP_CLASSES, PHASES, WORK_SOURCES
from .assign import NAME, UNKNOWN, KernelWork, countable
from .tile_bounds import rows_of

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_PHASES: list[str] = list(PHASES.categories)
_EVIDENCE: list[str] = list(EVIDENCE.categories)
_SOURCES: list[str] = list(WORK_SOURCES.categories)
_OPS: list[str] = list(OP_CLASSES.categories)
MS = 1e6


@dataclass(frozen=True)
class GroupSums:
    """One row per (name, phase) that occurs in the window. Sums are over kernels whose number is known."""

    name: Ints
    op: Ints
    phase: Ints
    columns: dict[str, Floats]  # count, total_ms, in_mixed_ms, known_ms, flop, flop_n, ...
    by_evidence: Floats  # (group, evidence) ms
    by_source: Floats  # (group, work source) ms
    in_step: npt.NDArray[np.bool_]  # (group, step): the group has a kernel in that step
    whole: npt.NDArray[np.bool_]  # steps that neither the window nor the capture's edge cuts
    rows: list[Ints]  # kernel rows of each group
    dtype: Ints
    helper: npt.NDArray[np.bool_]
    duration: Ints


def group_sums(phases: PhaseResult, work: KernelWork) -> GroupSums:
    """Sum the work of all kernels in the window."""
    kernels = phases.kernels
    inside = np.flatnonzero(kernels["in_window"].fill_null(False).to_numpy())

    # usually the window holds every kernel: then the columns themselves serve, not copies of them
    chosen: slice | Ints = slice(None) if len(inside) == kernels.height else inside

    def codes(column: str) -> npt.NDArray[Any]:
        return kernels[column].to_physical().to_numpy()[chosen]

    wide = work.name[chosen].astype(np.int64) * len(_PHASES) + codes("phase")
    present, group, count = _dense(wide)
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
        return np.bincount(group, where, n).astype(np.float64)

    has_size, has_flop = ~np.isnan(size), ~np.isnan(flop)
    priced = ~np.isnan(compute)
    both = has_size & has_flop  # of one kernel: FLOPs of some and bytes of others make no intensity
    placed = both & priced & ~np.isnan(memory)
    columns = {
        "count": count.astype(np.float64),
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
    columns |= _bounded(work, countable(phases.steps), inside, group, n)
    step = work.step[chosen]
    whole = ~phases.steps["partial"].fill_null(False).to_numpy()
    columns["whole_n"] = number(np.append(whole, False)[step])  # -1, outside every step, picks the last
    seen = np.zeros((n, phases.steps.height + 1), np.bool_)
    seen[group, step] = True  # -1 marks the last column, which is dropped
    order = np.argsort(_small(group), kind="stable")
    ends = np.cumsum(count)
    first = order[ends - count]
    rows = np.split(order if isinstance(chosen, slice) else inside[order], ends[:-1]) if n else []
    return GroupSums(
        name=present // len(_PHASES),
        op=codes("op_class")[first].astype(np.int64),
        phase=present % len(_PHASES),
        columns=columns,
        by_evidence=_split(group, codes("evidence"), ms, n, len(_EVIDENCE)),
        by_source=_split(group, work.source[chosen], ms, n, len(_SOURCES)),
        in_step=seen[:, :-1],
        whole=whole,
        rows=rows,
        dtype=np.array([work.dtype[row].max(initial=0) for row in rows], np.int64),
        helper=np.array([bool(work.helper[row].all()) for row in rows], np.bool_),
        duration=work.duration,
    )


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
    useful, _ = rows_of(work, rows)
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


def _small(group: Ints) -> npt.NDArray[Any]:
    """The same numbers in 16 bits where they fit, which NumPy sorts by radix."""
    return group.astype(np.uint16) if group.max(initial=0) < 2**16 else group


def _split(group: Ints, kind: npt.NDArray[Any], ms: Floats, groups: int, kinds: int) -> Floats:
    return np.asarray(np.bincount(group * kinds + kind, ms, groups * kinds), np.float64).reshape(groups, kinds)


def median_row(rows: Ints, duration: Ints) -> tuple[int, float]:
    """The row of the median (lower middle) duration and the median in ns, of the kernels in ``rows``."""
    own = duration[rows]
    middle = (len(own) - 1) // 2
    order = np.argpartition(own, middle)
    value = float(own[order[middle]])
    if len(own) % 2 == 0:
        value = (value + float(own[order[middle + 1 :]].min())) / 2.0
    return int(rows[order[middle]]), value


def merged(sums: GroupSums, members: Sequence[int]) -> dict[str, Any]:
    """One table row from some groups: sums, counts per step, evidence shares, main source, median; null = unknown."""
    at = np.asarray(members, np.int64)
    alone = int(at[0]) if len(at) == 1 else None  # a capture may hold 100,000 names: no sums over one

    def total(values: npt.NDArray[Any]) -> Any:
        return values[at].sum(axis=0) if alone is None else values[alone]

    row: dict[str, Any] = {name: float(total(values)) for name, values in sums.columns.items()}
    for name, known in (("flop", "flop_n"), ("flop_executed", "executed_n"), ("bytes", "bytes_n"), ("memory_s", "memory_n"),
                        ("compute_s", "compute_n"), ("matrix_s", "matrix_n")):  # fmt: skip
        if not row[known]:
            row[name] = None
    row["count"] = int(row["count"])
    in_step = sums.in_step[at].any(axis=0) if alone is None else sums.in_step[alone]
    row["steps"], row["whole_steps"] = int(np.count_nonzero(in_step)), int(np.count_nonzero(in_step & sums.whole))
    evidence, source = total(sums.by_evidence), total(sums.by_source)
    whole = float(evidence.sum())
    row["evidence"] = {kind: ms / whole for kind, ms in zip(_EVIDENCE, evidence.tolist(), strict=True) if ms and whole}
    row["source"] = _SOURCES[int(source.argmax())]
    rows = np.concatenate([sums.rows[i] for i in at]) if alone is None else sums.rows[alone]
    row["median_launch"], median = median_row(rows, sums.duration)
    row["median_us"] = median / 1e3
    row["dtype"] = int(sums.dtype[at].max())
    row["helper"] = bool(sums.helper[at].all())
    row["op_class"], row["phase"] = _OPS[int(sums.op[at[0]])], _PHASES[int(sums.phase[at[0]])]
    row["name_id"] = int(sums.name[at[0]])
    return row
