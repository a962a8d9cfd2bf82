"""What the summary, the findings and the predictions are made from: the results of the stages before them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import polars as pl

from ..gpus.device_ceilings import DeviceCeilings
from ..records.advice import Finding
from ..records.trace import Trace
from ..records.trust import PhaseTrust
from ..records.work import Model, WorkTrust
from ..time.stalls import StallResult
from ..time.time_accounting import TimeResult


@dataclass(frozen=True)
class SummaryInput:
    """All that the stages found. ``kernels`` and ``steps`` carry work columns."""

    trace: Trace
    kernels: pl.DataFrame
    steps: pl.DataFrame
    groups: pl.DataFrame
    time: TimeResult
    stalls: StallResult
    phase_trust: PhaseTrust = field(kw_only=True)
    ceilings: Sequence[DeviceCeilings] = ()
    graphs: pl.DataFrame | None = None
    kernel_table: pl.DataFrame | None = None
    model: Model | None = None
    work_trust: WorkTrust | None = None
    autoregressive: bool = True
    engine: str | None = None
    findings: Sequence[Finding] = ()
    reasons: Sequence[str] = ()
    mfu_at_most: pl.Series | None = None  # per row of ``steps``, %; null unless useful FLOPs are unknown
