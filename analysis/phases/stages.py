"""The stage list of this package, read top to bottom."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from ...ingest.trace import Trace
from ..result import PHASES, STEPS
from .assemble import assemble_steps
from .columns import Columns, Ints, read_columns
from .counts import count_tokens
from .decide import decide_phases
from .describe import describe_steps
from .engine import engine_mixes, engine_pads_graphs, recognise_engine
from .finish import counted_kernels, finish_steps, window_span
from .graphs import graph_table, read_replays
from .groups import group_lanes
from .kernel_tags import tag_kernels
from .link import link_launches
from .marker_steps import MarkerSteps, find_marker_steps
from .spans import find_spans
from .trust import link_counts, median_kernels, phase_contradictions, time_by_evidence
from .whole_graphs import with_whole_graphs
from .window import check_bounds, read_bounds


def run_stages(trace: Trace, name_facts: pl.DataFrame, texts: pl.DataFrame, window: str | None) -> dict[str, Any]:
    """All stages; the fields of PhaseResult by name."""
    columns = read_columns(trace, name_facts)
    bounds = read_bounds(window)
    check_bounds(bounds, trace, columns)
    link = link_launches(trace)
    kernel_link = link
    columns, link = with_whole_graphs(trace, columns, link)
    markers = find_marker_steps(trace, columns, link, texts)
    raw = assemble_steps(trace, columns, link, markers)
    spans = find_spans(trace, texts, link.launch)
    replays = read_replays(trace, columns, link)
    seen = describe_steps(trace, columns, link, raw, markers, name_facts, spans, replays)
    engine = recognise_engine(trace, texts)
    decided = count_tokens(decide_phases(seen, engine_mixes(engine)), pads_graphs=engine_pads_graphs(engine))
    groups, indexed = group_lanes(trace, columns, decided)
    steps, step = finish_steps(trace, columns, indexed, raw.step, bounds)
    in_window = counted_kernels(columns, steps, step, bounds, spans.capture)
    kernels = tag_kernels(trace, columns, link, step, raw.layer, steps, in_window)
    autoregressive, reasons = judge(trace, columns, steps, markers)
    if not autoregressive:
        kernels, steps, step = forget_phases(kernels, steps)
    span = window_span(trace, columns, in_window)
    table = graph_table(trace, columns, replays, steps)
    trust = {
        "gpu_time_by_evidence": time_by_evidence(kernels),
        "kernels_per_step": median_kernels(steps),
        "layers": raw.layers if autoregressive else None,
        **link_counts(trace, kernel_link),
        "contradictions": phase_contradictions(trace, columns, step, steps) if autoregressive else [],
        "node_tracing_inflates_decode": bool((link.replay >= 0).any()),
        "steps_excluded": int(steps["excluded"].sum()),
    }
    return {
        "kernels": kernels,
        "steps": steps.select(list(STEPS)),
        "groups": groups,
        "graphs": table,
        "window_start_ns": span[0],
        "window_end_ns": span[1],
        "layers": raw.layers if autoregressive else None,
        "engine": engine,
        "autoregressive": autoregressive,
        "opaque_graphs": trace.graph_launches.height > 0,
        "trust": trust,
        "reasons": tuple(reasons),
        "link": kernel_link,
    }


def judge(trace: Trace, columns: Columns, steps: pl.DataFrame, markers: MarkerSteps) -> tuple[bool, list[str]]:
    """Whether this is an autoregressive run at all, and reasons where something could not be seen."""
    reasons: list[str] = []
    marked = bool((steps["evidence"].cast(pl.String) == "marker").any())
    writes = bool(columns.is_op("kv_write").any())
    phases = steps["phase"].cast(pl.String)
    sure = bool((phases.is_in(["decode", "mixed"])).any()) or writes
    found = marked or (sure and bool((~phases.is_in(["unknown"])).any()))
    if not found:
        reasons.append("no autoregressive phases found")
    return found, reasons


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
