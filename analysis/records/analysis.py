"""The Analysis: what a Trace becomes, as frames and records with one declared contract.

Everything a report shows is here; reports compute nothing. Frames have the columns of ``tables``; records hold the JSON
objects of the same name. Sections and words: docs/design.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from .advice import Finding
from .devices import Device, Window
from .host import HostSide
from .options import Options
from .summary import GroupSummary, Summary
from .trace import Trace
from .trust import Trust
from .what_if import WhatIf
from .work import Measured, Model, Roofline, Traffic
from .workload import Workload

SCHEMA_VERSION = "1.0"


@dataclass(frozen=True)
class Analysis:
    """The result of ``trace_analyze.analyze``; frames follow the schemas of ``tables``.

    The records hold the JSON objects of the same name (docs/json.md has every key).
    """

    trace: Trace
    options: Options
    status: str  # 'ok' | 'partial' | 'could_not_look'
    reasons: tuple[str, ...]
    kernels: pl.DataFrame  # Trace.kernels + KERNEL_TAGS + KERNEL_WORK
    devices: tuple[Device, ...]
    model: Model
    window: Window
    trust: Trust
    summary: Summary
    groups: pl.DataFrame
    group_summaries: tuple[GroupSummary, ...]  # JSON groups[]
    steps: pl.DataFrame
    stalls: pl.DataFrame
    gaps: pl.DataFrame
    kernel_table: pl.DataFrame
    op_classes: pl.DataFrame
    idle: pl.DataFrame
    graphs: pl.DataFrame
    collectives: pl.DataFrame
    findings: tuple[Finding, ...]
    step_table: pl.DataFrame | None  # --step: one step kernel by kernel
    roofline: Roofline  # ceilings and points per (op class, phase)
    traffic: Traffic  # decode traffic split and the fitted bandwidths
    host: HostSide  # host side of the decode bubbles
    what_if: WhatIf  # fitted step-time model and its predictions
    workload: Workload  # classification and each technique's movement
    measured: Measured  # Nsight Compute join, GPU metrics, counters

    def __repr__(self) -> str:
        headline = self.summary.headline or "no headline"
        return f"<Analysis {self.trace.capture.source_name}: {self.status}; {headline}>"
