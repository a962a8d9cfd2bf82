"""The capture's side: steps of one group, and what its clock is tied to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import polars as pl

from ..records.usable_steps import USABLE_STEP

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

#: Numbers that engines give their steps, in the texts of markers.
ITERATION_IN_LABEL = r"(?:_forward_step|[Ii]teration|iter(?:ation)?[_ ]?id|step)[ (=:#_]*(\d+)"
COUNTS = ("prefill_tokens", "prefill_requests", "decode_requests", "decode_tokens", "prompts_finished")


@dataclass(frozen=True)
class CaptureClock:
    """What the capture's time 0 is on other clocks, ns; None where it does not say.

    ``monotonic_ns``: CLOCK_MONOTONIC (``systemClockNs``); ``wall_ns``: Unix time (``utcEpochNs``).
    """

    monotonic_ns: int | None = None
    wall_ns: int | None = None

    def zero_of(self, clock: str) -> int | None:
        """Time 0 on the clock that a log is written in."""
        return {"monotonic": self.monotonic_ns, "wall": self.wall_ns}.get(clock)


@dataclass(frozen=True)
class CaptureSteps:
    """The whole steps of one group in time order, as columns; times in ns of the capture's clock.

    ``counts`` has float columns of COUNTS, NaN = unknown; ``iteration`` the engine's own number of each step.
    ``first_ns`` and ``last_ns`` bound what was recorded: what a client saw outside them cannot be explained.
    """

    index: Ints  # of ``steps[]``
    start_ns: Ints
    end_ns: Ints
    has_prefill: Flags
    has_decode: Flags
    counts: Mapping[str, Floats]
    iteration: Floats
    first_ns: int
    last_ns: int
    group: int = 0

    @property
    def span_ns(self) -> Ints:
        """First kernel's start to last kernel's end."""
        return self.end_ns - self.start_ns

    @cached_property
    def decode_rows(self) -> Ints:
        """Rows of the decode-bearing steps: those that bring decoding requests a token."""
        return np.flatnonzero(self.has_decode)

    @cached_property
    def decode_end(self) -> Floats:
        """Ends of the decode-bearing steps."""
        return self.end_ns[self.decode_rows].astype(np.float64)

    @cached_property
    def prefill_rows(self) -> Ints:
        """Rows of the steps that can bring a request its first token: with prompt tokens, finishing one where that is known."""
        finished = self.counts["prompts_finished"]
        return np.flatnonzero(self.has_prefill & ~(finished == 0))

    @cached_property
    def decodes_up_to(self) -> Ints:
        """Per step: how many decode-bearing steps there are up to and with it."""
        return np.cumsum(self.has_decode)

    @cached_property
    def typical_gap_ns(self) -> float:
        """The median distance between ends of decode-bearing steps (of all steps where there are none)."""
        ends = self.decode_end if len(self.decode_end) > 2 else self.end_ns.astype(np.float64)
        return float(np.median(np.diff(ends))) if len(ends) > 1 else 1e7


def capture_steps(
    steps: pl.DataFrame, *, group: int = 0, first_ns: int = 0, last_ns: int | None = None
) -> CaptureSteps:
    """The steps of one group out of the analysis' ``steps`` frame (one row per device and step).

    A step of the group begins with its first rank and ends with its last. Excluded and partial steps are out. ``first_ns`` and
    ``last_ns``: the capture range where it is narrower than from session start to the last step.
    """
    usable = steps.filter((pl.col("group") == group) & USABLE_STEP)
    present = [c for c in COUNTS if c in usable.columns]
    by_step = (
        usable.group_by("index")
        .agg(
            pl.col("start_ns").min(), pl.col("end_ns").max(), pl.col("phase").cast(pl.String).first(),
            *(pl.col(c).max() for c in present),
            pl.col("label").drop_nulls().first() if "label" in usable.columns else pl.lit(None, dtype=pl.String).alias("label"),
        )
        .sort("end_ns", "start_ns", "index")
    )  # fmt: skip
    iteration = by_step["label"].str.extract(ITERATION_IN_LABEL, 1).cast(pl.Float64, strict=False)
    phase = by_step["phase"]
    start, end = by_step["start_ns"].to_numpy(), by_step["end_ns"].to_numpy()
    unknown = np.full(by_step.height, np.nan)
    return CaptureSteps(
        index=by_step["index"].cast(pl.Int64).to_numpy(), start_ns=start, end_ns=end,
        has_prefill=phase.is_in(["prefill", "mixed"]).to_numpy(), has_decode=phase.is_in(["decode", "mixed"]).to_numpy(),
        counts={c: _floats(by_step[c]) if c in present else unknown for c in COUNTS}, iteration=_floats(iteration),
        first_ns=first_ns,
        last_ns=last_ns if last_ns is not None else int(end.max()) if len(end) else 0, group=group,
    )  # fmt: skip


def _floats(series: pl.Series) -> Floats:
    return series.cast(pl.Float64).fill_null(float("nan")).to_numpy()
