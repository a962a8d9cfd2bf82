"""What the summary's numbers of steps are taken from: made once for all groups, then split, as there may be a thousand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from ..numeric.grouping import split_by
from ..time.group_steps import GroupSteps, chain_decode_steps, group_steps
from .summary_input import SummaryInput


@dataclass(frozen=True)
class RatedSteps:
    """The usable steps, one row per device, as columns in the order of the groups; NaN where unknown."""

    slices: Mapping[int, slice]  # group -> its rows
    phase: npt.NDArray[np.object_]
    busy_ns: npt.NDArray[np.int64]
    wall_ns: npt.NDArray[np.int64]  # 0 = none
    ratios: Mapping[str, npt.NDArray[np.float64]]  # mbu_pct, mfu_pct
    at_most: npt.NDArray[np.float64]  # MFU by the padded work, %
    lengths_known: npt.NDArray[np.bool_]  # the source of the KV length says so

    @staticmethod
    def of(found: SummaryInput, groups: Sequence[GroupSteps]) -> RatedSteps:
        """From the steps of ``groups``.

        Wall time of a decode step is the time since the decode-bearing step before it ended, where no prefill step lies
        between; of the others their span.
        """
        if not groups:
            none, nothing = np.zeros(0), np.zeros(0, np.int64)
            ratios = {"mbu_pct": none, "mfu_pct": none}
            return RatedSteps({}, np.zeros(0, object), nothing, nothing, ratios, none, none.astype(bool))
        at_most = found.mfu_at_most if found.mfu_at_most is not None else pl.lit(None, dtype=pl.Float64)
        order = pl.DataFrame({"group": pl.Series([g.group for g in groups], dtype=pl.Int32)}).with_row_index("turn")
        rows = (
            found.steps.select("group", "index", "phase", "busy_ns", "mbu_pct", "mfu_pct", "kv_tokens_source")
            .with_columns(at_most.alias("at_most"))
            .join(_wall_times(groups), on=["group", "index"], maintain_order="left")
            .join(order, on="group", maintain_order="left")
            .sort("turn", maintain_order=True)
        )
        ends = np.searchsorted(rows["turn"].to_numpy(), np.arange(len(groups)), side="right").tolist()
        return RatedSteps(
            slices={g.group: slice(a, b) for g, a, b in zip(groups, [0, *ends[:-1]], ends, strict=True)},
            phase=rows["phase"].cast(pl.String).to_numpy(),
            busy_ns=rows["busy_ns"].to_numpy(),
            wall_ns=rows["wall_ns"].to_numpy(),
            ratios={name: _floats(rows[name]) for name in ("mbu_pct", "mfu_pct")},
            at_most=_floats(rows["at_most"]),
            lengths_known=rows["kv_tokens_source"]
            .fill_null("none")
            .is_in(["marker", "tracked", "estimated"])
            .to_numpy(),
        )

    def only(self, group: int) -> RatedSteps:
        """Those of one group."""
        own = self.slices[group]
        return RatedSteps(
            slices={group: slice(None)},
            phase=self.phase[own],
            busy_ns=self.busy_ns[own],
            wall_ns=self.wall_ns[own],
            ratios={name: values[own] for name, values in self.ratios.items()},
            at_most=self.at_most[own],
            lengths_known=self.lengths_known[own],
        )


def _floats(values: pl.Series) -> npt.NDArray[np.float64]:
    return values.cast(pl.Float64).fill_null(float("nan")).to_numpy()


def _wall_times(groups: Sequence[GroupSteps]) -> pl.DataFrame:
    """``wall_ns`` of the groups' usable steps (0 = none)."""
    walls = []
    for group in groups:
        wall = np.where(group.is_prefill | group.is_mixed, group.end_ns - group.start_ns, 0)
        chain = chain_decode_steps(group)
        # draft steps of speculation may lie between: they are part of the wait for the next token, a prefill is not
        direct = (chain.prefill_between == 0) & group.is_decode[chain.closing]
        wall[chain.closing[direct]] = (group.end_ns[chain.closing] - group.end_ns[chain.before])[direct]
        walls.append(wall)
    numbers = np.repeat([group.group for group in groups], [len(wall) for wall in walls])
    return pl.DataFrame(
        {
            "group": pl.Series(numbers, dtype=pl.Int32),
            "index": pl.Series(np.concatenate([group.index for group in groups]), dtype=pl.Int32),
            "wall_ns": pl.Series(np.concatenate(walls), dtype=pl.Int64),
        }
    )


@dataclass(frozen=True)
class StepFrames:
    """What the numbers of some groups are taken from."""

    whole: pl.DataFrame  # one row per group and step of the window
    gaps: pl.DataFrame
    stalls: pl.DataFrame
    rated: RatedSteps

    @staticmethod
    def of(found: SummaryInput, groups: Sequence[GroupSteps]) -> StepFrames:
        """Those of all groups."""
        inside = (pl.col("start_ns") < found.time.window_end_ns) & (pl.col("end_ns") > found.time.window_start_ns)
        whole = group_steps(found.steps.filter(inside & ~pl.col("excluded")))
        return StepFrames(whole, found.stalls.gaps, found.stalls.stalls, RatedSteps.of(found, groups))

    def split(self) -> Callable[[int], StepFrames]:
        """For each group its own."""
        whole, gaps, stalls = (split_by(frame, "group") for frame in (self.whole, self.gaps, self.stalls))
        return lambda group: StepFrames(whole(group), gaps(group), stalls(group), self.rated.only(group))
