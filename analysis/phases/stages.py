"""The stage list of this package, read top to bottom."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from ...ingest.trace import Trace
from ..result import PHASES, STEPS
from .assemble import RawSteps, assemble_steps
from .columns import Columns, Ints, read_columns
from .counts import count_tokens
from .decide import decide_phases, name_evidence
from .engine import recognise_engine
from .graphs import graph_table, graphs_of_steps
from .groups import group_lanes, index_steps
from .kernel_tags import tag_kernels
from .link import LinkResult, link_launches
from .marker_steps import FACTS, MarkerSteps, find_marker_steps
from .tokens import attention_batch, requests_per_step, tokens_per_step
from .trust import link_counts, median_kernels, phase_contradictions, time_by_evidence
from .window import Bounds, activity_span, check_bounds, read_bounds


def run_stages(trace: Trace, name_facts: pl.DataFrame, texts: pl.DataFrame, window: str | None) -> dict[str, Any]:
    """All stages; the fields of PhaseResult by name."""
    columns = read_columns(trace, name_facts)
    bounds = read_bounds(window)
    check_bounds(bounds, trace, columns)
    link = link_launches(trace)
    markers = find_marker_steps(trace, columns, link, texts)
    raw = assemble_steps(trace, columns, link, markers)
    seen = describe_steps(trace, columns, link, raw, markers, name_facts)
    decided = count_tokens(decide_phases(seen))
    groups, group_of_lane = group_lanes(columns, decided)
    steps, step = finish_steps(trace, columns, index_steps(decided, group_of_lane), raw.step, bounds)
    in_window = counted_kernels(columns, steps, step, bounds)
    kernels = tag_kernels(trace, columns, link, step, steps, in_window)
    autoregressive, reasons = judge(trace, columns, steps, markers)
    if not autoregressive:
        kernels, steps, step = forget_phases(kernels, steps)
    span = window_span(trace, columns, in_window)
    table = graph_table(trace, link, steps)
    trust = {
        "gpu_time_by_evidence": time_by_evidence(kernels),
        "kernels_per_step": median_kernels(steps),
        "layers": raw.layers if autoregressive else None,
        **link_counts(trace, link),
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
        "engine": recognise_engine(trace, markers),
        "autoregressive": autoregressive,
        "opaque_graphs": trace.graph_launches.height > 0,
        "trust": trust,
        "reasons": tuple(reasons),
        "link": link,
    }


def describe_steps(
    trace: Trace, columns: Columns, link: LinkResult, raw: RawSteps, markers: MarkerSteps, name_facts: pl.DataFrame
) -> pl.DataFrame:
    """One row per step with what every rung of the ladder sees."""
    count = raw.frame.height
    step = raw.step
    facts = marker_facts(raw, markers)
    last_attention = np.full(max(count, 1), -1, dtype=np.int64)
    rows = np.flatnonzero(columns.is_op("attention") & (step >= 0))
    np.maximum.at(last_attention, step[rows], rows)
    batch = attention_batch(trace, columns, name_facts)
    requests = requests_per_step(trace, columns, step, count, last_attention, batch)
    rows = np.flatnonzero(step >= 0)
    spans = (
        pl.DataFrame({"step": step[rows], "start_ns": columns.start[rows], "end_ns": columns.end[rows]})
        .group_by("step")
        .agg(pl.col("start_ns").min(), pl.col("end_ns").max(), pl.len().cast(pl.Int64).alias("kernel_count"))
        .sort("step")
        .drop("step")
    )
    frame = pl.concat(
        [
            raw.frame,
            spans,
            facts,
            name_evidence(columns, step, count),
            graphs_of_steps(trace, columns, link, step, count).drop("step"),
            pl.DataFrame({"tokens": tokens_per_step(columns, step, count)}),
            requests,
        ],
        how="horizontal",
    )
    known = pl.coalesce("rows", "batch")
    frame = frame.with_columns(
        pl.when(known <= pl.col("tokens").fill_null(known)).then(known).alias("requests"),
        pl.lit(False).alias("draft"),
        pl.lit(False).alias("verify"),
        pl.coalesce("m_verify_width", 1).alias("width"),
        pl.Series("number", np.arange(count)),
    )
    return frame


def marker_facts(raw: RawSteps, markers: MarkerSteps) -> pl.DataFrame:
    """The facts of each step's marker as m_* columns (all null without one), with its phase and text."""
    wanted = ["phase", "text_id", *FACTS]
    if markers.frame.height == 0:
        return raw.frame.with_columns(
            pl.lit(None, dtype=pl.String).alias("marker_phase"),
            pl.lit(None, dtype=pl.UInt32).alias("m_text_id"),
            *[pl.lit(None, dtype=pl.Int64).alias(f"m_{name}") for name in FACTS],
        ).drop(raw.frame.columns)
    row = raw.frame["marker"].to_numpy()
    facts = markers.frame.select(wanted)[np.maximum(row, 0)]
    marked = pl.Series(row >= 0)
    return facts.select(
        pl.when(marked).then(pl.col("phase").cast(pl.String)).alias("marker_phase"),
        pl.when(marked).then(pl.col("text_id")).alias("m_text_id"),
        *[pl.when(marked).then(pl.col(name).cast(pl.Int64)).alias(f"m_{name}") for name in FACTS],
    )


def finish_steps(
    trace: Trace, columns: Columns, steps: pl.DataFrame, step: Ints, bounds: Bounds
) -> tuple[pl.DataFrame, Ints]:
    """Steps in their final order with every column of STEPS, and the kernels' step numbers renumbered to match."""
    devices = np.array(columns.lane_device, dtype=np.int64)
    lane = steps["lane"].to_numpy() if steps.height else np.zeros(0, np.int64)
    steps = steps.with_columns(pl.Series("device_index", devices[lane] if len(lane) else [], dtype=pl.Int32))
    steps = steps.sort("group", "index", "device_index", "start_ns").with_row_index("step")
    number = np.full(steps.height + 1, -1, dtype=np.int64)
    number[steps["number"].to_numpy()] = np.arange(steps.height)
    step = number[step]
    ordinal = dict(trace.devices.select("device_index", "device").iter_rows())
    label = trace.texts["text"].gather(steps["m_text_id"].fill_null(0)) if trace.texts.height else None
    low, high = bounds.start_ns, bounds.end_ns
    cut = pl.lit(False)
    if low is not None:
        cut |= pl.col("start_ns") < low
    if high is not None:
        cut |= pl.col("end_ns") > high
    steps = steps.with_columns(
        pl.col("step").cast(pl.Int32),
        pl.col("device_index").replace_strict(ordinal, default=-1, return_dtype=pl.Int32).alias("device"),
        busy_per_step(columns, step, steps.height),
        (cut | pl.col("cut_short") if "cut_short" in steps.columns else cut).alias("partial"),
        pl.lit(False).alias("excluded"),
        pl.when(pl.col("m_text_id").is_not_null()).then(label).otherwise(None).alias("label")
        if label is not None
        else pl.lit(None, dtype=pl.String).alias("label"),
        pl.lit(None, dtype=pl.Float64).alias("flop"),
    )
    missing = [pl.lit(None, dtype=dtype).alias(name) for name, dtype in STEPS.items() if name not in steps.columns]
    steps = steps.with_columns(missing)
    return steps.with_columns(pl.col(name).cast(dtype) for name, dtype in STEPS.items()), step


def busy_per_step(columns: Columns, step: Ints, steps: int) -> pl.Series:
    """Union of the kernels' intervals of each step, ns."""
    busy = np.zeros(steps, dtype=np.int64)
    rows = np.flatnonzero(step >= 0)
    order = rows[np.argsort(step[rows], kind="stable")]  # kernels are sorted by start already
    if len(order) == 0:
        return pl.Series("busy_ns", busy)
    number, start, end = step[order], columns.start[order], columns.end[order]
    offset = number * (int(end.max()) - int(start.min()) + 1)  # steps far apart: one running maximum serves them all
    reach = np.maximum.accumulate(end + offset)
    before = np.concatenate([[np.iinfo(np.int64).min], reach[:-1]])
    covered = np.maximum(end + offset - np.maximum(start + offset, before), 0)
    np.add.at(busy, number, covered)
    return pl.Series("busy_ns", busy)


def counted_kernels(columns: Columns, steps: pl.DataFrame, step: Ints, bounds: Bounds) -> np.ndarray:
    """Kernels that count: started inside the user's window, not warm-up, graph capture or weight loading."""
    inside = ~columns.load_time
    if bounds.start_ns is not None:
        inside &= columns.start >= bounds.start_ns
    if bounds.end_ns is not None:
        inside &= columns.start < bounds.end_ns
    excluded = np.append(steps["excluded"].to_numpy(), False)[step]
    return np.asarray(inside & ~excluded)


def window_span(trace: Trace, columns: Columns, in_window: np.ndarray) -> tuple[int, int]:
    """First start and last end of the counted kernels and whole-graph rows."""
    if in_window.any():
        span = int(columns.start[in_window].min()), int(columns.end[in_window].max())
    else:
        span = activity_span(trace, columns) or (0, 0)
    if trace.graph_launches.height:
        low, high = activity_span(trace, columns) or span
        span = min(span[0], low), max(span[1], high)
    return span


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
