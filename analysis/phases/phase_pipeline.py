"""The stage list of this package, read top to bottom."""

from __future__ import annotations

import numpy as np
import polars as pl

from ..records.phases import PhaseResult
from ..records.tables import PHASES, STEPS
from ..records.trace import Trace
from ..records.trust import PhaseTrust
from .boundaries.marker_spans import find_spans
from .boundaries.marker_steps import find_marker_steps
from .boundaries.step_boundaries import assemble_steps
from .boundaries.whole_graphs import with_whole_graphs
from .boundaries.wide_markers import release_wide_markers
from .boundaries.window import check_bounds, read_bounds
from .device_groups import group_lanes
from .engine import engine_mixes, engine_pads_graphs, recognise_engine
from .final_steps import counted_kernels, finish_steps, window_span
from .graph_replays import graph_table, read_replays
from .kernel_arrays import Ints, read_columns
from .ladder.kernel_tags import tag_kernels
from .ladder.phase_ladder import decide_phases
from .ladder.phase_trust import (
    ambiguous_share,
    find_contradictions,
    is_autoregressive,
    median_kernels,
    steps_outside_graphs,
    time_by_evidence,
    unused_markers,
    why_partial,
)
from .launch_links import link_launches
from .step_features import StepSources, describe_steps
from .tokens.launch_geometry import names_like
from .tokens.step_counts import count_tokens


def run_stages(trace: Trace, name_facts: pl.DataFrame, texts: pl.DataFrame, window: str | None) -> PhaseResult:
    """All stages. ``texts``: the parsed marker texts; ``window``: the command line's ``A:B``."""
    columns = read_columns(trace, name_facts, few=names_like(trace, "few"), many=names_like(trace, "many"))
    bounds = read_bounds(window)
    check_bounds(bounds, trace, columns)
    link = link_launches(trace)
    kernel_link = link
    columns, link = with_whole_graphs(trace, columns, link)
    markers = find_marker_steps(trace, columns, link, texts)
    markers, wide = release_wide_markers(trace, columns, link, markers)
    raw = assemble_steps(trace, columns, link, markers)
    spans = find_spans(trace, texts, link.launch, wide)
    replays = read_replays(trace, columns, link)
    engine = recognise_engine(trace, texts)
    seen = describe_steps(StepSources(trace, columns, link, raw, markers, name_facts, spans, replays, engine))
    decided = count_tokens(decide_phases(seen, engine_mixes(engine)), pads_graphs=engine_pads_graphs(engine))
    groups, indexed = group_lanes(trace, columns, decided)
    steps, step = finish_steps(trace, columns, indexed, raw.step, bounds)
    in_window = counted_kernels(columns, steps, step, bounds, spans.capture)
    kernels = tag_kernels(trace, columns, link, step, raw.layer, steps, in_window)
    autoregressive = is_autoregressive(trace, columns, steps)
    if not autoregressive and not trace.holds_sums:  # sums have no steps, yet some names tell their own phase
        kernels, steps, step = forget_phases(kernels, steps)
    span = window_span(trace, columns, in_window)
    table = graph_table(trace, columns, replays, steps)
    kernels_per_step = median_kernels(steps)
    layers = raw.layers if autoregressive else None
    opaque = bool(columns.opaque.any()) or bool(kernels_per_step and layers and kernels_per_step < layers)
    trust = PhaseTrust(
        gpu_time_by_evidence=time_by_evidence(kernels),
        kernels_per_step=kernels_per_step,
        layers=layers,
        launches_without_kernel=int((~kernel_link.launch_used).sum()),
        kernels_without_launch=trace.count_launches(kernel_link.launch < 0),
        node_tracing_inflates_decode=bool((kernel_link.replay >= 0).any()),
        steps_excluded=int(steps["excluded"].sum()),
        ambiguous_pct=ambiguous_share(columns, markers, in_window),
        marker_ranges=markers.ranges_seen,
        marker_ranges_without_kernels=unused_markers(markers),
        steps_outside_graphs=steps_outside_graphs(steps),
        contradictions=find_contradictions(trace, columns, step, steps) if autoregressive else (),
    )
    return PhaseResult(
        kernels=kernels,
        steps=steps.select(list(STEPS)),
        groups=groups,
        graphs=table,
        window_start_ns=span[0],
        window_end_ns=span[1],
        layers=layers,
        engine=engine,
        autoregressive=autoregressive,
        opaque_graphs=opaque,
        trust=trust,
        reasons=tuple(why_partial(trace, autoregressive, steps, markers, kernel_link)),
    )


def forget_phases(kernels: pl.DataFrame, steps: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame, Ints]:
    """Without autoregressive steps: no steps, every kernel unknown, window flags kept."""
    unknown = pl.lit("unknown").cast(PHASES)
    kernels = kernels.with_columns(
        unknown.alias("phase"),
        unknown.alias("step_phase"),
        pl.lit("none").cast(kernels.schema["evidence"]).alias("evidence"),
        pl.lit(-1, dtype=pl.Int32).alias("step"),
    )
    return kernels, steps.clear(), np.full(kernels.height, -1, dtype=np.int64)
