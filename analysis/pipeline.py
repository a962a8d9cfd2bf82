"""A Trace becomes an Analysis: the stages, read top to bottom. Each is described in docs/design.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from .records.analysis import Analysis
from .records.devices import Window
from .records.formats import format_of
from .records.inputs_read import remember_inputs
from .records.options import Options
from .records.trace import Trace


def analyze_options(trace: Trace, options: Options, *, progress: Callable[[str], None] | None = None) -> Analysis:
    """Analyse a capture with the given options; ``progress`` is told the name of every stage as it begins."""
    from .advice.findings import find_findings
    from .advice.what_if import what_would_help
    from .advice.workload import classify_workload
    from .gpus.device_ceilings import resolve_devices
    from .kernels.classify import classify_names
    from .numeric.free_memory import give_back
    from .option_files import files_of_options
    from .phases import find_phases
    from .summary.device_rows import device_rows
    from .summary.summarise import summarise
    from .summary.summary_input import SummaryInput
    from .time.collectives import split_collectives
    from .time.host_side import host_side
    from .time.stalls import find_gaps_and_stalls
    from .time.time_accounting import account_time
    from .work.assign_work import assign_work
    from .work.one_step_table import step_table

    def begin(name: str) -> None:
        give_back()
        if progress is not None:
            progress(name)

    remember_inputs(files_of_options(options))
    options = with_own_measurements(options, trace.capture.format, trace.source)
    trace = _with_counters(trace, options)

    begin("names and GPUs")
    name_facts = classify_names(trace.names)
    # one readable name per kernel, wherever it is shown
    trace = replace(trace, names=trace.names.with_columns(name_facts["short_name"]))
    ceilings = resolve_devices(trace, gpu=options.gpu, gpu_override=options.gpu_override, ceilings=options.ceilings)
    begin("steps and phases")
    phases = find_phases(trace, name_facts, marker_file=options.markers, window=options.window)
    begin("work and roofline")
    work = assign_work(trace, phases, name_facts, ceilings, options)
    begin("time and stalls")
    time = account_time(
        trace,
        work.kernels,
        work.steps,
        phases.groups,
        phases.window_start_ns,
        phases.window_end_ns,
        opaque_graphs=phases.opaque_graphs,
    )
    give_back()
    collectives = split_collectives(work.kernels, work.steps, phases.groups, trace.names, trace.devices)
    stalls = find_gaps_and_stalls(work.steps, phases.groups, time, collectives.waits)
    begin("advice")
    found = SummaryInput(
        trace=trace,
        kernels=work.kernels,
        steps=work.steps,
        groups=phases.groups,
        time=time,
        stalls=stalls,
        ceilings=ceilings,
        graphs=phases.graphs,
        kernel_table=work.kernel_table,
        model=work.model,
        phase_trust=phases.trust,
        work_trust=work.trust,
        autoregressive=phases.autoregressive,
        engine=phases.engine,
        reasons=phases.reasons,
        mfu_at_most=work.mfu_at_most,
    )
    host = host_side(trace, phases, time)
    give_back()
    what_if = what_would_help(found, itl_target_ms=options.itl_target_ms)
    workload = classify_workload(found, what_if)
    findings = find_findings(found, collectives, host, what_if)
    summary = summarise(replace(found, findings=findings))
    return Analysis(
        trace=trace,
        options=options,
        status=summary.status,
        reasons=summary.reasons,
        kernels=work.kernels,
        devices=device_rows(trace, phases.groups, time, ceilings),
        model=work.model,
        window=Window(start_ns=phases.window_start_ns, end_ns=phases.window_end_ns, source=_window_source(options)),
        trust=summary.trust,
        summary=summary.summary,
        groups=phases.groups,
        group_summaries=summary.group_summaries,
        steps=work.steps,
        stalls=stalls.stalls,
        gaps=stalls.gaps,
        kernel_table=work.kernel_table,
        op_classes=work.op_classes,
        idle=time.longest_idle(),
        graphs=phases.graphs,
        collectives=collectives.table,
        findings=findings,
        step_table=step_table(options.step, trace, work.kernels, work.steps),
        roofline=work.roofline,
        traffic=work.traffic,
        host=host,
        what_if=what_if,
        workload=workload,
        measured=work.measured,
    )


def with_own_measurements(options: Options, input_format: str, source: Path | None) -> Options:
    """The options for an input whose launches were measured by Nsight Compute: its own results are joined to them."""
    known = format_of(input_format)
    if source is None or known is None or not known.profiled_one_by_one or source in options.ncu:
        return options
    return replace(options, ncu=(*options.ncu, source))


def _window_source(options: Options) -> str:
    return f"--window {options.window}" if options.window else "first to last GPU work, without warm-up"


def _with_counters(trace: Trace, options: Options) -> Trace:
    """The trace with the counters recorded beside the profiler, on the capture's clock."""
    if options.dmon is None and options.dcgm is None:
        return trace
    from ..ingest.counters import with_counters

    return with_counters(trace, dmon=options.dmon, dcgm=options.dcgm)
