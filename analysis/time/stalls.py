"""Stalls: inter-token gaps in which prefill work kept decoding requests waiting (docs/design.md has the definition).

A gap stalls only if somebody waited. Prefill steps strictly between its two decode-bearing steps hold the requests that
decode again at its end, less the prompts finished in between (a single user's own prompt holds nobody); a mixed step
holds its own decoding requests for what it takes beyond a pure decode step of that batch. One stall per gap, no least
size; stalls of consecutive gaps are one episode, which is what people read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from ..numeric.intervals import Intervals, union
from ..records.tables import STALLS
from .decode_baseline import Baseline
from .group_steps import GroupSteps, split_groups
from .time_accounting import TimeResult
from .token_gaps import DeviceUses, GroupGaps, find_gaps, gaps_frame


@dataclass(frozen=True)
class PrefillRun:
    """The longest run of steps without a token for requests that were waiting for one."""

    group: int
    steps: int
    start_ns: int
    end_ns: int
    requests_held: int | None

    @property
    def ms(self) -> float:
        """From the start of its first step to the end of its last, ms."""
        return (self.end_ns - self.start_ns) / 1e6


@dataclass(frozen=True)
class StallResult:
    """Gaps and stalls of all groups, with what the summary says of them."""

    gaps: pl.DataFrame  # GAPS + reason
    stalls: pl.DataFrame  # STALLS
    prefill_without_waiters: Mapping[int, int]  # by group: gaps whose prefill steps held nobody
    longest_run: PrefillRun | None


def find_gaps_and_stalls(
    steps: pl.DataFrame, groups: pl.DataFrame, time: TimeResult, waits: Mapping[int, Intervals] | None = None
) -> StallResult:
    """Inter-token gaps and stalls of every group.

    ``steps`` is STEPS, ``groups`` GROUPS, ``time`` from ``account_time`` over the same steps, ``waits`` from
    ``split_collectives``. Frames are sorted by (group, time); ``gaps.stall`` points to rows of ``stalls``.
    """
    all_gaps, all_stalls, stall_of_gap, unheld, runs = [], [], [], {}, []
    first = first_episode = 0
    uses = DeviceUses.among(groups, waits or {})
    for group in split_groups(steps, groups):
        gaps = find_gaps(group, time, uses)
        found = _who_waited(gaps)
        stalled = found.stalled
        stall_of_gap.append(np.where(stalled, np.cumsum(stalled) - 1 + first, -1).astype(np.int32))
        all_gaps.append(gaps)
        unheld[group.group] = int(((gaps.chain.prefill_between > 0) & (gaps.chain.held == 0)).sum())
        if stalled.any():  # of a thousand groups most may have none
            stalls = _group_stalls(gaps, found, first, first_episode)
            first += stalls.height
            first_episode += stalls["episode"].n_unique()
            all_stalls.append(stalls)
            runs.extend(_longest_run(gaps, found))
    return StallResult(
        gaps=gaps_frame(all_gaps, stall_of_gap),
        stalls=pl.concat(all_stalls) if all_stalls else pl.DataFrame(schema=dict(STALLS)),
        prefill_without_waiters=unheld,
        longest_run=max(runs, key=lambda r: (r.steps, r.ms, -r.start_ns)) if runs else None,
    )


@dataclass(frozen=True)
class _Waits:
    """Per gap: who waited for what, ns and requests (NaN = unknown)."""

    prefill: npt.NDArray[np.bool_]  # somebody waited (or it is unknown whether) for prefill steps in between
    mixed: npt.NDArray[np.bool_]
    prefill_ns: npt.NDArray[np.float64]
    excess_ns: npt.NDArray[np.float64]

    @property
    def stalled(self) -> npt.NDArray[np.bool_]:
        return self.prefill | self.mixed


def _who_waited(gaps: GroupGaps) -> _Waits:
    steps, chain = gaps.steps, gaps.chain
    prefill = (chain.prefill_between > 0) & (chain.held != 0)  # NaN != 0: unknown is kept
    mixed = gaps.closes_mixed & (steps.count("decode_requests")[chain.closing] != 0)
    spans = union(steps.start_ns[steps.is_prefill], steps.end_ns[steps.is_prefill])
    prefill_ns = spans.measure_within(gaps.start_ns, gaps.end_ns)
    closing_start = np.maximum(steps.start_ns[chain.closing], gaps.start_ns)
    baseline_ns = np.array([np.nan if b.ns is None else b.ns for b in gaps.baseline], dtype=np.float64)
    excess_ns = np.maximum(0.0, gaps.end_ns - closing_start - baseline_ns)
    # A mixed step no slower than a pure decode step kept nobody waiting; without a baseline (NaN) it may have.
    mixed &= excess_ns != 0
    return _Waits(prefill, mixed, np.where(prefill, prefill_ns, 0.0), np.where(mixed, excess_ns, 0.0))


def _group_stalls(gaps: GroupGaps, waits: _Waits, first: int, first_episode: int) -> pl.DataFrame:
    """Stalls of one group that has some."""
    chosen = np.flatnonzero(waits.stalled)
    begins = np.diff(chosen, prepend=-2) > 1
    before, after = _undisturbed_neighbours(gaps, waits.stalled, chosen)
    blocks = _Blocks.of([_stalling_steps(gaps, waits, k) for k in chosen.tolist()])
    steps, closing = gaps.steps, gaps.chain.closing[chosen]
    own = steps.count("decode_requests")[closing]
    held_by_prefill = np.where(waits.prefill[chosen], gaps.chain.held[chosen], 0.0)
    held_by_mixed = np.where(waits.mixed[chosen], own, 0.0)
    prefill_ms, excess_ms = waits.prefill_ns[chosen] / 1e6, waits.excess_ns[chosen] / 1e6
    # A whole prefill step is a stall's floor even where the closing mixed step has no baseline.
    total = np.where(waits.prefill[chosen] & np.isnan(excess_ms), prefill_ms, prefill_ms + excess_ms)
    lost = np.where(prefill_ms > 0, held_by_prefill * prefill_ms, 0.0) + np.where(
        waits.mixed[chosen], held_by_mixed * excess_ms, 0.0
    )
    gap_start, gap_end = gaps.start_ns[chosen], gaps.end_ns[chosen]
    used = [gaps.baseline[k] if waits.mixed[k] else None for k in chosen.tolist()]
    tokens = np.add.reduceat(steps.count("prefill_tokens")[blocks.rows], blocks.begins)
    frame = pl.DataFrame(
        {
            "stall": np.arange(first, first + len(chosen)),
            "group": np.full(len(chosen), steps.group),
            "start_ns": np.maximum(steps.start_ns[blocks.rows[blocks.begins]], gap_start),
            "end_ns": np.minimum(steps.end_ns[blocks.rows[blocks.last]], gap_end),
            "stall_ms": total,
            "kind": np.where(waits.prefill[chosen], "prefill_step", "mixed_step"),
            "episode": np.cumsum(begins) - 1 + first_episode,
            "prefill_tokens": tokens,
            "prefill_requests": _prompts(steps, blocks),
            "requests_held": np.maximum(held_by_prefill, held_by_mixed),
            "request_ms_lost": lost,
            "baseline_ms": [None if b is None or b.ns is None else b.ns / 1e6 for b in used],
            "baseline_n": [None if b is None else b.n for b in used],
            "gap_before_ms": before,
            "gap_ms": (gap_end - gap_start) / 1e6,
            "gap_after_ms": after,
            "steps": blocks.split(steps.index),
            "reason": _reasons(gaps, waits, chosen, np.isnan(tokens)),
        },
        schema=dict(STALLS),
        strict=False,
    )
    floats = ["stall_ms", "request_ms_lost", "gap_before_ms", "gap_after_ms"]
    return frame.with_columns(pl.col(floats).fill_nan(None))


@dataclass(frozen=True)
class _Blocks:
    """The steps that stalled each of some gaps, one gap's behind the other's; none is empty."""

    rows: npt.NDArray[np.int64]
    begins: npt.NDArray[np.int64]

    @staticmethod
    def of(blocks: list[npt.NDArray[np.int64]]) -> _Blocks:
        lengths = np.array([len(block) for block in blocks], dtype=np.int64)
        return _Blocks(np.concatenate(blocks), np.cumsum(lengths) - lengths)

    @property
    def last(self) -> npt.NDArray[np.int64]:
        """Where each gap's last step stands."""
        return np.append(self.begins[1:], len(self.rows)) - 1

    def split(self, values: npt.NDArray[np.int64]) -> list[list[int]]:
        """What ``values`` has for the steps, a list for each gap."""
        flat = values[self.rows].tolist()
        return [flat[begin : last + 1] for begin, last in zip(self.begins.tolist(), self.last.tolist(), strict=True)]


def _stalling_steps(gaps: GroupGaps, waits: _Waits, gap: int) -> npt.NDArray[np.int64]:
    """Rows of the steps that stalled a gap: the prefill steps in between, then the mixed step that closes it."""
    if not waits.prefill[gap]:
        return gaps.chain.closing[gap : gap + 1] if waits.mixed[gap] else gaps.chain.closing[:0]
    before, closing = int(gaps.chain.before[gap]), int(gaps.chain.closing[gap])
    first, last = min(before, closing) + 1, max(before, closing)
    chosen = first + np.flatnonzero(gaps.steps.is_prefill[first:last])
    return np.append(chosen, closing) if waits.mixed[gap] else chosen


def _undisturbed_neighbours(
    gaps: GroupGaps, stalled: npt.NDArray[np.bool_], chosen: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The nearest gaps before and after each stalled one that neither stalled nor lacked a waiter, ms (NaN = none)."""
    calm = np.flatnonzero(~stalled & gaps.counted)
    length = (gaps.end_ns - gaps.start_ns)[calm] / 1e6
    padded = np.concatenate(([np.nan], length, [np.nan]))
    at = np.searchsorted(calm, chosen)
    return padded[at], padded[at + 1]


def _prompts(steps: GroupSteps, blocks: _Blocks) -> npt.NDArray[np.float64]:
    """Prompts worked on: those finished plus one still unfinished at the end, where that can be seen; else a floor.

    NaN where the steps' requests are not known.
    """
    requests, finished = steps.count("prefill_requests")[blocks.rows], steps.count("prompts_finished")[blocks.rows]
    last = blocks.last
    seen = np.add.reduceat(np.nan_to_num(finished), blocks.begins) - np.nan_to_num(finished)[last] + requests[last]
    hidden = np.logical_or.reduceat(np.isnan(finished), blocks.begins)
    most = np.maximum.reduceat(requests, blocks.begins)
    return np.where(np.isnan(most), np.nan, np.where(hidden, most, seen))


def _reasons(
    gaps: GroupGaps, waits: _Waits, chosen: npt.NDArray[np.int64], no_tokens: npt.NDArray[np.bool_]
) -> list[str | None]:
    """Why numbers of the stalls are null, and their baselines; worked out once for all stalls that are alike."""
    said: dict[tuple[Baseline | None, bool, bool, bool, bool, bool], str | None] = {}
    no_requests = np.isnan(gaps.steps.count("decode_requests")[gaps.chain.closing[chosen]])
    held = gaps.chain.held[chosen]
    cases = zip(
        [gaps.baseline[k] if waits.mixed[k] else None for k in chosen.tolist()],
        waits.prefill[chosen].tolist(),
        np.isnan(held).tolist(),
        gaps.chain.held_is_lower_bound[chosen].tolist(),
        no_requests.tolist(),
        no_tokens.tolist(),
        strict=True,
    )
    found = []
    for case in cases:
        if case not in said:
            said[case] = _reason(*case)
        found.append(said[case])
    return found


def _reason(
    baseline: Baseline | None,
    prefill: bool,
    held_unknown: bool,
    held_is_lower_bound: bool,
    no_requests: bool,
    no_tokens: bool,
) -> str | None:
    """``baseline``: of the mixed step that closes the gap, None where none does."""
    reasons = []
    if prefill and held_unknown:
        reasons.append("how many requests were held is unknown: the capture does not show the steps' request counts")
    elif prefill and held_is_lower_bound:
        reasons.append("requests_held is a lower bound: chunks of one prompt may count as several prompts")
    if baseline is not None:
        if baseline.ns is None:
            part = "the mixed step's excess" if prefill else "stall_ms"
            reasons.append(f"no baseline for {part}: {baseline.rule}")
        else:
            reasons.append(f"baseline: {baseline.rule}")
        if no_requests:
            reasons.append("requests_held is unknown: the mixed step's decode requests are not known")
    if no_tokens:
        reasons.append("prefill_tokens is unknown: the capture does not show how many its steps had")
    return "; ".join(reasons) or None


def _longest_run(gaps: GroupGaps, waits: _Waits) -> list[PrefillRun]:
    """The longest run of prefill steps inside one gap that somebody waited through; empty if there is none."""
    candidates = np.flatnonzero(waits.prefill)
    if not len(candidates):
        return []
    counts = gaps.chain.prefill_between[candidates]
    best = candidates[np.lexsort((candidates, -waits.prefill_ns[candidates], -counts))[0]]
    rows = _stalling_steps(gaps, waits, int(best))
    rows = rows[gaps.steps.is_prefill[rows]]
    held = gaps.chain.held[best]
    return [
        PrefillRun(
            group=gaps.steps.group,
            steps=len(rows),
            start_ns=int(gaps.steps.start_ns[rows[0]]),
            end_ns=int(gaps.steps.end_ns[rows[-1]]),
            requests_held=None if np.isnan(held) else int(held),
        )
    ]
