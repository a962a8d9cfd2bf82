"""Steps as a group's users see them: one row per group and step, however many ranks ran it.

``steps`` has one row per device. A step of a group starts with its first rank and ends with its last one, because a
token exists only when every rank is done; counts are those of the batch, which every rank shares.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import polars as pl

from ..numeric.grouping import places_of
from ..numeric.intervals import Times

#: Group-level columns; ``padded_tokens`` and the counts are null where no rank knows them.
COUNTS = (
    "prefill_tokens",
    "decode_tokens",
    "prefill_requests",
    "decode_requests",
    "padded_tokens",
    "prompts_finished",
    "verify_width",
    "kv_tokens",
    "prefill_kv_tokens",
    "prefill_qk",
    "prefill_qq",
)


@dataclass(frozen=True)
class CountColumns:
    """The count columns of the usable steps of all groups, each read when first asked for."""

    frame: pl.DataFrame
    read: dict[str, npt.NDArray[np.float64]] = field(default_factory=dict, repr=False)

    def column(self, name: str) -> npt.NDArray[np.float64]:
        """One as float64, NaN where unknown."""
        if name not in self.read:
            self.read[name] = self.frame[name].cast(pl.Float64).fill_null(float("nan")).to_numpy()
        return self.read[name]


@dataclass(frozen=True)
class GroupSteps:
    """The usable steps of one group in time order, as columns.

    Partial and excluded steps are out; ``after_excluded`` marks the first step behind an excluded one, where a
    chain of decode steps is broken.
    """

    group: int
    devices: tuple[int, ...]  # device_index of its ranks
    kind: str
    index: npt.NDArray[np.int64]
    start_ns: Times
    end_ns: Times
    is_prefill: npt.NDArray[np.bool_]
    is_decode: npt.NDArray[np.bool_]
    is_mixed: npt.NDArray[np.bool_]
    after_excluded: npt.NDArray[np.bool_]
    counts: CountColumns  # of all groups, read by ``count``
    own: slice  # this group's rows among them

    @property
    def is_decode_bearing(self) -> npt.NDArray[np.bool_]:
        """Pure decode and mixed steps: those that give decoding requests a token."""
        return self.is_decode | self.is_mixed

    def count(self, column: str) -> npt.NDArray[np.float64]:
        """A count column as float64, NaN where unknown."""
        return self.counts.column(column)[self.own]


def group_steps(steps: pl.DataFrame) -> pl.DataFrame:
    """One row per (group, index): first start, last end, the batch's counts, ``partial`` or ``excluded`` if any rank is.

    ``span_ns`` is end - start. Sorted by (group, index).
    """
    phase = pl.col("phase")
    # Ranks of one group agree on the phase; where one of them could not tell, the others speak for it.
    known = phase.filter(phase.cast(pl.String) != "unknown").first()
    return (
        steps.sort("group", "index", "device_index")
        .group_by("group", "index", maintain_order=True)
        .agg(
            pl.col("start_ns").min(),
            pl.col("end_ns").max(),
            pl.coalesce(known, phase.first()).alias("phase"),
            pl.col("partial").any(),
            pl.col("excluded").any(),
            *[pl.col(name).max() for name in COUNTS if name in steps.columns],
            *[pl.lit(None, dtype=pl.Float64).alias(name) for name in COUNTS if name not in steps.columns],
        )
        .with_columns((pl.col("end_ns") - pl.col("start_ns")).alias("span_ns"))
    )


def split_groups(steps: pl.DataFrame, groups: pl.DataFrame) -> Iterator[GroupSteps]:
    """The usable steps of each group, one :class:`GroupSteps` each (also for groups without any step)."""
    whole = group_steps(steps).sort("group", "start_ns", "index")
    # An excluded step (warm-up, graph capture) breaks the chain of tokens; a partial one only sits at the edge.
    excluded = whole["excluded"].to_numpy()
    usable = ~(excluded | whole["partial"].to_numpy())
    ran = np.cumsum(excluded)[usable]
    frame = whole.filter(pl.Series(usable, dtype=pl.Boolean))
    index, start_ns, end_ns = (frame[name].cast(pl.Int64).to_numpy() for name in ("index", "start_ns", "end_ns"))
    phase = frame["phase"].cast(pl.String).to_numpy()
    prefill, decode, mixed = (phase == kind for kind in ("prefill", "decode", "mixed"))
    counts = CountColumns(frame.select(COUNTS))
    rows = places_of(frame["group"].to_numpy())
    for group, devices, kind in groups.select("group", "devices", "kind").iter_rows():
        own = rows.get(group, slice(0, 0))
        yield GroupSteps(
            group=int(group),
            devices=tuple(int(d) for d in devices),
            kind=str(kind),
            index=index[own],
            start_ns=start_ns[own],
            end_ns=end_ns[own],
            is_prefill=prefill[own],
            is_decode=decode[own],
            is_mixed=mixed[own],
            after_excluded=np.diff(ran[own], prepend=ran[own][:1]) > 0,
            counts=counts,
            own=own,
        )


@dataclass(frozen=True)
class DecodeChain:
    """Consecutive decode-bearing steps of a group: gap ``k`` runs from the end of step ``before[k]`` to that of ``closing[k]``.

    ``before`` and ``closing`` are rows of the group's frame. ``held`` is the number of decoding requests that the prefill
    steps strictly between kept waiting (NaN = unknown, meaningless where ``prefill_between`` is 0).
    """

    before: npt.NDArray[np.int64]
    closing: npt.NDArray[np.int64]
    prefill_between: npt.NDArray[np.int64]
    held: npt.NDArray[np.float64]
    held_is_lower_bound: npt.NDArray[np.bool_]


def chain_decode_steps(steps: GroupSteps) -> DecodeChain:
    """Find the inter-token gaps of a group and who was held in each (docs/design.md, stalls).

    ``held`` = max(0, decode requests of the closing step - prompts finished in between). Where it cannot be seen which
    step finished a prompt, every prefill request counts as a prompt of its own: a prompt cut in chunks then counts
    several times and the figure is a lower bound.
    """
    bearing = np.flatnonzero(steps.is_decode_bearing)
    bearing = bearing[np.lexsort((bearing, steps.end_ns[bearing]))]
    before, closing = bearing[:-1], bearing[1:]
    breaks = np.cumsum(steps.after_excluded)
    joined = breaks[before] == breaks[closing]
    before, closing = before[joined], closing[joined]
    # Overlapping steps (two batches on two streams) may end in another order than they start.
    first, last = np.minimum(before, closing) + 1, np.maximum(before, closing)

    finished = steps.count("prompts_finished")
    guessed = np.isnan(finished)
    prompts = np.where(guessed, steps.count("prefill_requests"), finished)
    between = _sum_between(steps.is_prefill, first, last).astype(np.int64)
    unknown = _sum_between(steps.is_prefill & np.isnan(prompts), first, last) > 0
    total = _sum_between(np.where(steps.is_prefill, np.nan_to_num(prompts), 0.0), first, last)
    held = np.maximum(0.0, steps.count("decode_requests")[closing] - np.where(unknown, np.nan, total))
    lower_bound = (_sum_between(steps.is_prefill & guessed, first, last) > 0) & (between > 1)
    return DecodeChain(before, closing, between, held, lower_bound)


def _sum_between(
    values: npt.NDArray[np.number | np.bool_], first: npt.NDArray[np.int64], last: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Sum of ``values[first[k]:last[k]]`` for every k."""
    total = np.concatenate(([0.0], np.cumsum(values.astype(np.float64))))
    result: npt.NDArray[np.float64] = total[last] - total[first]
    return result
