"""JSON ``trust``: what the stages say of their own evidence, and the verdict over it."""

from __future__ import annotations

from typing import ClassVar

from msgspec import UNSET, UnsetType

from .record import Record


class Contradiction(Record, frozen=True, kw_only=True):
    """Two kinds of evidence that disagree about the phase or the size of steps."""

    what: str  #: who says what
    steps: int  #: steps it concerns
    kernels: int  #: kernels of these steps
    gpu_ms: float  #: their time
    examples: tuple[str, ...]  #: a few of them


class StepsOutsideGraphs(Record, frozen=True, kw_only=True):
    """Steps that ran without a graph for one reason although others replay one."""

    steps: int  #: how many
    gpu_ms: float  #: their busy time


class Clocks(Record, frozen=True, kw_only=True):
    """The SM clock while the GPU worked."""

    sm_clock_mhz: float | None  #: mean over the steps
    reason: str | UnsetType = UNSET  #: why it is null
    source: str | UnsetType = UNSET  #: what sampled it
    by_phase: dict[str, float] | UnsetType = UNSET  #: mean by step phase


class PhaseTrust(Record, frozen=True, kw_only=True):
    """What finding steps and phases left in doubt."""

    #: share of kernel time by evidence of its phase: `marker`, `kernel_name`, `launch_geometry`, `graph_replay`,
    #: `step_context`, `none`
    gpu_time_by_evidence: dict[str, float]
    kernels_per_step: float | None  #: median over decode steps, else over all steps
    layers: int | None  #: transformer layers seen: attention launches per step
    launches_without_kernel: int | None  #: launch calls that found no kernel
    kernels_without_launch: int | None  #: kernels that found no launch call
    node_tracing_inflates_decode: bool  #: kernels were recorded inside graphs, which slows decode
    steps_excluded: int  #: warm-up and graph capture
    ambiguous_pct: float  #: kernel time whose step rests on its neighbours because its launch call was lost
    marker_ranges: int  #: step markers seen
    marker_ranges_without_kernels: int  #: step markers that hold no kernel
    #: steps that ran without a graph although others replay one, by why
    steps_outside_graphs: dict[str, StepsOutsideGraphs]
    #: sentences, or objects, where two kinds of evidence disagree
    contradictions: tuple[Contradiction | str, ...]


class Trust(PhaseTrust, frozen=True, kw_only=True):
    """How far the numbers of a capture can be trusted."""

    FIRST_KEYS: ClassVar[tuple[str, ...]] = (
        "gpu_time_by_evidence",
        "gpu_time_by_work_source",
        "kernels_per_step",
        "layers",
        "launches_without_kernel",
        "kernels_without_launch",
        "clocks",
    )

    #: share of kernel time by source of its work: `measured`, `sampled`, `shape`, `model`, `name`, `unknown`, and
    #: `communication`
    gpu_time_by_work_source: dict[str, float]
    clocks: Clocks | None  #: SM clock
    devices_with_kernels: int  #: devices used
    devices_present: int  #: devices the capture lists
    ranks_expected: int | None  #: product of the parallel sizes on the command line
    rejected_rows: dict[str, int]  #: rows that were left out, by reason
    lost_events: tuple[str, ...]  #: the profiler's warnings and errors
    graph_mode: str | None  #: as `source.graph_trace_mode`
    opaque_graphs: bool  #: replays recorded as single rows
    lost_graphs: bool  #: replays that left no kernel records
    partial_steps: int  #: steps cut by the window's edges
    largest_kernel_share: float | None  #: longest kernel over the window
    empty_step_share: float | None  #: steps without a kernel over all steps
    verdict: str  #: `good`, `read with care` or `unreliable` ([findings.md](findings.md))
    verdict_reasons: tuple[str, ...]  #: why it is not good
    engine: str | UnsetType = UNSET  #: engine recognised by markers and kernels

    @property
    def contradictions_in_words(self) -> tuple[str, ...]:
        """What disagrees, a sentence each."""
        return tuple(each if isinstance(each, str) else each.what for each in self.contradictions)
