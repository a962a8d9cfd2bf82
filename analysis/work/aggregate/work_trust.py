"""How far the figures of work can be trusted: where they come from, at which clock, and what contradicts them."""

from __future__ import annotations

import numpy as np
from msgspec import UnsetType

from ...records.tables import OP_CLASSES, WORK_SOURCES
from ...records.trust import Clocks
from ...records.work import GpuMetrics, Measured, WorkTrust
from ..kernel_work import KernelWork
from ..measured.sampled_metrics import phase_warnings
from ..model_choice.choose_model import ModelChoice
from ..work_input import WorkInput
from .fill_frames import FilledFrames

NO_CLOCKS = "clocks not captured: peaks are those of the datasheet's clock"


def work_trust(
    given: WorkInput, work: KernelWork, choice: ModelChoice, measured: Measured, filled: FilledFrames
) -> WorkTrust:
    """The work stage's part of JSON ``trust``."""
    warnings = () if isinstance(measured.warnings, UnsetType) else measured.warnings
    contradictions = [*choice.contradictions, *filled.contradictions, *warnings]
    if isinstance(measured.gpu_metrics, GpuMetrics):
        contradictions += phase_warnings(filled.steps, measured.gpu_metrics.by_phase)
    return WorkTrust(
        gpu_time_by_work_source=_time_by_source(given, work),
        clocks=sm_clock(measured),
        contradictions=tuple(contradictions),
    )


def _time_by_source(given: WorkInput, work: KernelWork) -> dict[str, float]:
    """Shares of the kernel time in the window; what communicates has no work and is named so."""
    kernels = given.phases.kernels
    counted = kernels["in_window"].fill_null(False).to_numpy()
    op = kernels["op_class"].to_physical().to_numpy()
    communicates = op == list(OP_CLASSES.categories).index("collective")
    time = work.duration.astype(np.float64)
    whole = float(time[counted].sum())
    shares: dict[str, float] = {}
    for code, source in enumerate(WORK_SOURCES.categories):
        own = float(time[counted & ~communicates & (work.source == code)].sum())
        if own and whole:
            shares[source] = own / whole
    communication = float(time[counted & communicates].sum())
    if communication and whole:
        shares["communication"] = communication / whole
    return shares


def sm_clock(measured: Measured) -> Clocks:
    """The SM clock over the steps, from GPU metrics; a reason where it was not captured."""
    sampled = measured.gpu_metrics.by_phase if isinstance(measured.gpu_metrics, GpuMetrics) else ()
    rows = [(row.phase, row.seconds, row.sm_clock_mhz) for row in sampled if row.sm_clock_mhz]
    if not rows:
        return Clocks(sm_clock_mhz=None, reason=NO_CLOCKS)
    seconds = sum(own for _, own, _ in rows)
    mean = sum(mhz * own for _, own, mhz in rows) / seconds if seconds else rows[0][2]
    return Clocks(sm_clock_mhz=mean, source="gpu_metrics", by_phase={phase: mhz for phase, _, mhz in rows})
