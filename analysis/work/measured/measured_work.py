"""What was measured, laid over the work of the kernels: Nsight Compute results, GPU metrics, counters from beside."""

from __future__ import annotations

import numpy as np
from msgspec import UNSET, UnsetType

from ...records.work import CounterMeans, GpuMetrics, Measured, NcuJoin
from ..kernel_work import KernelWork, merge_layers
from ..work_input import WorkInput
from .logged_counters import counter_means, counter_warnings
from .ncu_join import join_own_launches, join_results, read_results
from .sampled_metrics import integrals, layers_of_long_kernels, phase_means


def join_measured(given: WorkInput, work: KernelWork) -> tuple[KernelWork, Measured]:
    """The work with what was measured laid over it, and JSON ``measured``.

    Raises NotACaptureError for an ``--ncu`` file that is none.
    """
    warnings: list[str] = []
    work, ncu = _join_ncu(given, work, warnings)
    work, metrics = _join_metrics(given, work, warnings)
    counters = _counters(given, work, warnings)
    return work, Measured(ncu=ncu, gpu_metrics=metrics, counters=counters, warnings=tuple(warnings) or UNSET)


def _join_ncu(given: WorkInput, work: KernelWork, warnings: list[str]) -> tuple[KernelWork, NcuJoin | UnsetType]:
    results = read_results(given.options.ncu)
    if results is None:
        return work, UNSET
    joined = None
    if given.trace.capture.profiled_one_by_one:
        joined = join_own_launches(results, given.phases.kernels, work)
    joined = joined or join_results(results, given.phases.kernels, given.trace, work)
    warnings += joined.warnings
    return merge_layers(work, joined.layers), joined.record


def _join_metrics(given: WorkInput, work: KernelWork, warnings: list[str]) -> tuple[KernelWork, GpuMetrics | UnsetType]:
    samples = given.trace.gpu_metrics.height
    if not samples:
        return work, UNSET
    sampled = integrals(given.trace)
    layers, disagreements = layers_of_long_kernels(work, given.phases.kernels, sampled, given.bandwidth_gbps)
    warnings += disagreements
    periods = [each.period for metrics in sampled.values() for each in metrics.values()]
    return merge_layers(work, layers), GpuMetrics(
        samples=samples,
        period_us=float(np.median(periods)) / 1e3 if periods else None,
        by_phase=tuple(phase_means(given.phases.steps, sampled, given.bandwidth_gbps)),
    )


def _counters(given: WorkInput, work: KernelWork, warnings: list[str]) -> tuple[CounterMeans, ...] | UnsetType:
    if not given.trace.counters.height:
        return UNSET
    means = tuple(counter_means(given, work.bytes))
    warnings += counter_warnings(means)
    return means
