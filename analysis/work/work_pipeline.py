"""The stages of ``assign_work``, one function each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from msgspec import UNSET, structs

from ..gpus.device_ceilings import DeviceCeilings
from ..models.find_model import ModelShape, kv_bytes_per_token, parameters_active, parameters_total
from ..phases import PhaseResult
from ..records.options import Options
from ..records.tables import KERNEL_WORK, OP_CLASSES, WORK_SOURCES
from ..records.trace import Trace
from ..records.trust import Clocks
from ..records.work import GpuMetrics, Measured, Model, NcuJoin, Roofline, Traffic, WorkTrust
from .aggregate import kernel_tables as work_tables
from .aggregate import step_ratios as step_rows
from .aggregate.kernel_sums import group_sums
from .kernel_work import KernelWork, countable_steps, merge_layers, nothing_known
from .kv_lengths.step_kv_lengths import KvLengths, fill_steps, kv_lengths, padded_prefill
from .measured import logged_counters as counters
from .measured import ncu_join
from .measured import sampled_metrics as sampled
from .model_choice import launch_grids as geometry
from .model_choice.choose_model import ModelChoice, choose_model
from .operators.gemm_orders import PLACES
from .placement import place_kernels
from .sources.modelled_work import modelled_layers
from .sources.shape_work import named_layers, recorded_layers
from .step_costs.place_costs import step_sums
from .step_costs.whole_step_costs import whole_steps
from .unknown_model import tile_bounds

NO_CLOCKS = "clocks not captured: peaks are those of the datasheet's clock"


def choose(trace: Trace, phases: PhaseResult, facts: pl.DataFrame, options: Options) -> ModelChoice:
    """Which model ran, on how many ranks."""

    def recognise(candidates: tuple[ModelShape, ...], tensor_parallel: int) -> geometry.Fitting:
        nobody = ModelChoice(None, None, tensor_parallel, None)
        kernels = place_kernels(trace, phases, facts, nobody, kv_lengths(phases.steps))
        return geometry.keep_fitting(candidates, tensor_parallel, phases, facts, kernels)

    return choose_model(trace, phases, facts, options, recognise)


def assign(trace: Trace, phases: PhaseResult, facts: pl.DataFrame, choice: ModelChoice, kv: KvLengths) -> KernelWork:
    """Work of every kernel by precedence: recorded shapes over the model; names, then tiles, where neither speaks."""
    kernels = place_kernels(trace, phases, facts, choice, kv)
    work = nothing_known(kernels)
    if choice.rank is not None:
        work = merge_layers(work, modelled_layers(kernels, choice.rank))
    work = merge_layers(work, recorded_layers(work, choice))
    work = merge_layers(work, named_layers(work, choice))
    if choice.shape is not None:
        return work
    bounds = tile_bounds.bound_by_tiles(trace, phases, facts, kernels)
    if bounds is None:
        return work
    return replace(merge_layers(work, tile_bounds.bounded_layers(work, bounds, choice)), bounds=bounds)


def join_measured(
    trace: Trace,
    phases: PhaseResult,
    work: KernelWork,
    ceilings: Sequence[DeviceCeilings],
    options: Options,
) -> tuple[KernelWork, Measured]:
    """The work with what was measured laid over it, and JSON ``measured``: Nsight Compute, GPU metrics, counters."""
    measured = Measured()
    warnings: list[str] = []
    results = ncu_join.read_results(options.ncu)
    if results is not None:
        report = None
        if trace.capture.profiled_one_by_one:
            report = ncu_join.join_own_launches(results, phases.kernels, work)
        report = report or ncu_join.join_results(results, phases.kernels, trace, work)
        work = merge_layers(work, report.layers)
        joined = NcuJoin(
            launches=report.launches,
            joined_launches=report.joined_launches,
            kernels=report.kernels,
            notes=report.notes,
            pairs=report.pairs,
        )
        measured = structs.replace(measured, ncu=joined)
        warnings += report.warnings
    if trace.gpu_metrics.height:
        integrals = sampled.integrals(trace)
        layers, disagreements = sampled.layers_of_long_kernels(work, phases.kernels, integrals, ceilings)
        work = merge_layers(work, layers)
        warnings += disagreements
        periods = [each.period for metrics in integrals.values() for each in metrics.values()]
        metrics_of_phases = GpuMetrics(
            samples=trace.gpu_metrics.height,
            period_us=float(np.median(periods)) / 1e3 if periods else None,
            by_phase=tuple(sampled.phase_means(phases.steps, integrals, ceilings)),
        )
        measured = structs.replace(measured, gpu_metrics=metrics_of_phases)
    if trace.counters.height:
        window = (phases.window_start_ns, phases.window_end_ns)
        means = counters.counter_means(trace, phases.kernels, work.bytes, window, ceilings)
        measured = structs.replace(measured, counters=tuple(means))
        warnings += counters.disagreements(means)
    if warnings:
        measured = structs.replace(measured, warnings=tuple(warnings))
    return work, measured


@dataclass(frozen=True)
class FilledFrames:
    """Steps and kernels with their work columns, and what filling them met."""

    steps: pl.DataFrame
    kernels: pl.DataFrame
    modelled_steps: int  # steps in opaque graph replays, whose work is the whole model's
    contradictions: tuple[str, ...]


def fill(
    phases: PhaseResult, work: KernelWork, choice: ModelChoice, kv: KvLengths, ceilings: Sequence[DeviceCeilings]
) -> FilledFrames:
    """Steps and kernels with their work columns."""
    modelled_steps, contradictions = 0, work.contradictions
    steps, incomplete = fill_steps(phases.steps, kv), step_rows.opaque_steps(phases)
    whole = None
    if incomplete is not None and choice.rank is not None:
        whole = whole_steps(choice.rank, work.sums, steps["device_index"].to_numpy(), ceilings)
        whole = whole.only(countable_steps(steps))
    steps, refused = step_rows.fill_step_work(steps, work, ceilings, incomplete=incomplete, whole=whole)
    if incomplete is not None:
        modelled_steps = int((incomplete & steps["bytes"].is_not_null().to_numpy()).sum())
    if refused:
        contradictions += (
            f"{refused} step ratios above 100% refused: check model, tensor-parallel size, data types and GPU",
        )
    values = {
        **{name: getattr(work, name) for name in ("flop", "flop_executed", "bytes")},
        "bytes_weights": work.weights,
        "bytes_kv": work.kv,
        **step_rows.kernel_columns(work, ceilings),
    }
    columns = {name: pl.Series(name, column, nan_to_null=True) for name, column in values.items()}
    columns["place"] = pl.Series("place", PLACES).gather(pl.Series(work.place.astype(np.uint32)))
    columns["layer"] = pl.Series("layer", work.layer)
    columns["work_source"] = _source_column(work)
    added = [columns[name].cast(dtype).alias(name) for name, dtype in KERNEL_WORK.items()]
    return FilledFrames(steps, phases.kernels.with_columns(added), modelled_steps, contradictions)


def _source_column(work: KernelWork) -> pl.Series:
    return pl.Series("work_source", WORK_SOURCES.categories, dtype=WORK_SOURCES).gather(pl.Series(work.source))


@dataclass(frozen=True)
class Tables:
    """The tables of the work stage."""

    kernels: pl.DataFrame
    op_classes: pl.DataFrame
    roofline: Roofline


def tables(
    trace: Trace,
    phases: PhaseResult,
    facts: pl.DataFrame,
    work: KernelWork,
    ceilings: Sequence[DeviceCeilings],
    choice: ModelChoice,
    measured: Measured,
) -> Tables:
    """Kernel table, op-class table and roofline."""
    why = work_tables.Why(work_tables.common_ceiling(ceilings), choice)
    launches = trace.launch_counts["launch_count"].to_numpy() if trace.holds_sums else None
    sums = group_sums(phases, work, launches)
    op_classes = work_tables.op_class_table(sums, why)
    clock = _clocks(measured).sm_clock_mhz
    return Tables(
        work_tables.kernel_table(trace, facts, sums, why, ceilings),
        op_classes,
        work_tables.roofline(op_classes, ceilings, 1e6 * clock if clock else None),
    )


def describe(choice: ModelChoice, work: KernelWork, filled: FilledFrames, decode: Traffic, kv: KvLengths) -> Model:
    """JSON ``model``: which model, how known, its sizes, and what the figures rest on."""
    steps = filled.steps
    notes, shape = list(choice.notes), choice.shape
    if shape is not None and shape.experts:
        notes.append("experts read per step are an expectation under even routing")
    decodes = steps.filter(pl.col("phase").is_in(["decode", "mixed"]) & ~pl.col("excluded").fill_null(False))
    unknown = int(decodes["bytes_kv"].null_count())
    padded = steps.filter(padded_prefill(steps) & ~steps["excluded"].fill_null(False)).height
    if padded and shape is not None:
        notes.append(
            f"prompt tokens of {padded} steps are not known: their graphs show the size they were padded to, and no "
            "copies of their inputs tell the rest; their useful FLOPs are unknown, flop_executed counts the padded size"
        )
    if filled.modelled_steps:
        notes.append(
            f"{filled.modelled_steps} steps ran in graph replays recorded as one row each: their work is that of the whole "
            "model, not summed over kernels"
        )
    lower_bound = bool(unknown) if decodes.height and shape is not None else None
    if work.bounds is not None:
        notes += work.bounds.notes
        if decodes.height and work.bounds.close().any():
            lower_bound = True
            notes.append("MFU and MBU count these matrices alone, without attention and small kernels")
    if unknown and shape is not None:
        notes.append(
            f"KV lengths unknown in {unknown} of {decodes.height} steps with decode work: their bytes and MBU are a "
            "lower bound (weights only)"
        )
    described = Model(
        name=None,
        source=choice.source,
        reason=choice.reason,
        candidates=choice.candidates if shape is None else (),
        tensor_parallel=choice.tensor_parallel,
        tensor_parallel_source=choice.tensor_parallel_source,
        attention_convention="exact causal",
        bytes_convention="least traffic, activations counted",
        notes=tuple(notes),
        rectangle_over_causal_flop=_rectangle(choice, steps, kv),
        decode_bytes_are_lower_bound=lower_bound,
    )
    return described if shape is None else _sized(described, shape, decode)


def _sized(described: Model, shape: ModelShape, decode: Traffic) -> Model:
    """``described`` with name and sizes of ``shape``."""
    weights = decode.bytes_weights_per_step
    return structs.replace(
        described,
        name=shape.name,
        layers=shape.layers,
        hidden=shape.hidden,
        parameters_total=parameters_total(shape),
        parameters_active=parameters_active(shape),
        weight_dtype=shape.weight_dtype,
        activation_dtype=shape.activation_dtype,
        kv_dtype=shape.kv_dtype,
        kv_bytes_per_token=kv_bytes_per_token(shape),
        weight_bytes_per_decode_step=None if weights is UNSET else weights,
    )


def _rectangle(choice: ModelChoice, steps: pl.DataFrame, kv: KvLengths) -> float | None:
    """All FLOPs by the full-rectangle convention of attention over ours; None where no prefill's lengths are known."""
    if choice.rank is None:
        return None
    exact, rectangle = (step_sums(steps, kv, rectangle=each).prefill_pairs for each in (False, True))
    flop = steps["flop"].fill_null(float("nan")).to_numpy()
    known = ~np.isnan(exact) & ~np.isnan(flop) & (exact > 0)
    if not known.any():
        return None
    model = choice.rank.model
    width = (
        2 * model.head_dim if not model.is_mla else model.qk_nope_head_dim + model.qk_rope_head_dim + model.v_head_dim
    )
    extra = 2.0 * choice.rank.heads * width * model.layers * float((rectangle - exact)[known].sum())
    return 1.0 + extra / float(flop[known].sum())


def trust(
    phases: PhaseResult, work: KernelWork, choice: ModelChoice, measured: Measured, filled: FilledFrames
) -> WorkTrust:
    """The work stage's part of JSON ``trust``."""
    counted = phases.kernels["in_window"].fill_null(False).to_numpy()
    op = phases.kernels["op_class"].to_physical().to_numpy()
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
    return WorkTrust(
        gpu_time_by_work_source=shares,
        clocks=_clocks(measured),
        contradictions=(*choice.contradictions, *filled.contradictions, *_compare(measured, filled.steps)),
    )


def _compare(measured: Measured, steps: pl.DataFrame) -> list[str]:
    warnings = [] if measured.warnings is UNSET else list(measured.warnings)
    metrics = measured.gpu_metrics
    return warnings + ([] if metrics is UNSET else sampled.compare_steps(steps, metrics.by_phase))


def _clocks(measured: Measured) -> Clocks:
    """The SM clock over the steps, from GPU metrics; a reason where it was not captured."""
    metrics = measured.gpu_metrics
    rows = () if metrics is UNSET else metrics.by_phase
    clocks = [(row.phase, row.sm_clock_mhz, row.seconds) for row in rows if row.sm_clock_mhz]
    if not clocks:
        return Clocks(sm_clock_mhz=None, reason=NO_CLOCKS)
    seconds = sum(each for *_, each in clocks)
    mean = sum(mhz * each for _, mhz, each in clocks) / seconds if seconds else clocks[0][1]
    return Clocks(sm_clock_mhz=mean, source="gpu_metrics", by_phase={phase: mhz for phase, mhz, _ in clocks})
