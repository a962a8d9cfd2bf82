"""One row per step with what every rung of the evidence ladder sees of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from ..numeric.grouping import rows_by_key
from ..records.trace import Trace
from .boundaries.marker_spans import MarkerSpans, majority, mostly
from .boundaries.marker_steps import FACTS, MarkerSteps
from .boundaries.step_boundaries import MAX_DRAFT_LAYER_SHARE, RawSteps
from .boundaries.warm_up import start_up_steps
from .graph_replays import Replays, graphs_of_steps
from .kernel_arrays import Ints, KernelArrays, copies_by_lane
from .ladder.phase_ladder import name_evidence
from .ladder.plain_pytorch import size_of_steps
from .launch_links import LinkResult
from .step_evidence import STEP_EVIDENCE
from .tokens.input_copies import copied_tokens, with_copied_tokens
from .tokens.launch_geometry import attention_batch, preparing_hint, requests_per_step, tokens_per_step

MIN_USUAL_SHARE = 0.6  # share of a lane's steps that must show a thing for its absence to mean something
MAX_VERIFY_WIDTH = 16  # more tokens per request than this are a prompt, not a speculative verify


@dataclass(frozen=True)
class StepSources:
    """What was found of a capture before its steps are described."""

    trace: Trace
    columns: KernelArrays
    link: LinkResult
    raw: RawSteps
    markers: MarkerSteps
    name_facts: pl.DataFrame  # row-aligned with ``trace.names``
    spans: MarkerSpans
    replays: Replays
    engine: str | None


def describe_steps(sources: StepSources) -> pl.DataFrame:
    """One row per step with what every rung of the ladder sees of it (STEP_EVIDENCE)."""
    trace, columns, step = sources.trace, sources.columns, sources.raw.step
    frame = shown_by_kernels(sources)
    frame = frame.with_columns(
        pl.coalesce("marker_phase", "span_phase").alias("marker_phase"),
        pl.Series("number", np.arange(frame.height)),
        pl.Series("excluded", mostly(step, sources.spans.capture >= 0, frame.height)),
    )
    copied = copied_tokens(trace, columns, sources.replays, step, frame, sources.engine)
    frame = with_copied_tokens(frame, copied)
    warm_up = start_up_steps(trace, columns, sources.link, step, frame)
    frame = frame.with_columns(pl.col("excluded") | pl.Series(warm_up))
    layers = sources.raw.layers
    frame = frame.with_columns(draft_passes(frame, layers), count_requests(frame), cut_short(layers))
    frame = frame.with_columns(verify_width(frame))
    frame = frame.with_columns(continuing_requests(trace, columns, step, frame))
    return frame.select(pl.col(name).cast(dtype) for name, dtype in STEP_EVIDENCE.items())


def shown_by_kernels(sources: StepSources) -> pl.DataFrame:
    """One row per step with what its kernels, graph replays and markers show, each source's columns beside the others'."""
    trace, columns, raw = sources.trace, sources.columns, sources.raw
    count, step = raw.frame.height, raw.step
    last_attention = last_layer(columns, raw, count)
    batch = attention_batch(trace, columns, sources.name_facts)
    requests = requests_per_step(trace, columns, step, count, last_attention, batch)
    tokens = tokens_per_step(trace, columns, step, sources.link.replay, count)
    return pl.concat(
        [
            raw.frame,
            step_extent(columns, step, last_attention),
            marker_facts(raw, sources.markers),
            name_evidence(columns, preparing_hint(trace, columns), step, raw.layer, count),
            graphs_of_steps(columns, sources.replays, step, count),
            tokens,
            size_of_steps(columns, step, last_attention, tokens["tokens"]),
            requests,
            pl.DataFrame({"span_phase": majority(step, sources.spans.phase, count)}),
        ],
        how="horizontal",
    )


def last_layer(columns: KernelArrays, raw: RawSteps, steps: int) -> Ints:
    """Row of the last attention kernel of each step, else of what begins its last layer; -1 without any."""
    last = np.full(max(steps, 1), -1, dtype=np.int64)
    rows = np.flatnonzero(columns.is_op("attention") & (raw.step >= 0))
    if len(rows) == 0:  # unfused attention
        _, rows = np.unique(raw.layer, return_index=True)
        rows = rows[(raw.layer[rows] >= 0) & (raw.step[rows] >= 0)]
    np.maximum.at(last, raw.step[rows], rows)
    return last


def step_extent(columns: KernelArrays, step: Ints, last_attention: Ints) -> pl.DataFrame:
    """Start, end, kernel count of each step, when its work begins, and whether it opens and closes as steps do."""
    rows = np.flatnonzero(step >= 0)
    ahead = rows <= last_attention[step[rows]]
    return (
        pl.DataFrame(
            {
                "step": step[rows],
                "start_ns": columns.start[rows],
                "end_ns": columns.end[rows],
                "opaque": columns.opaque[rows],
                "whole": (columns.opaque & columns.is_op("attention"))[rows],
                "works": columns.is_op("gemm", "moe_gemm", "attention", "embedding")[rows],
                "opens": columns.is_op("embedding")[rows] & ahead,
                "closes": columns.is_op("sampling")[rows] & ~ahead,
            }
        )
        .group_by("step")
        .agg(
            pl.col("start_ns").min(),
            pl.col("end_ns").max(),
            (~pl.col("opaque")).sum().cast(pl.Int64).alias("kernel_count"),
            pl.col("whole").any().alias("opaque"),
            pl.coalesce(pl.col("start_ns").filter("works").min(), pl.col("start_ns").min()).alias("work_ns"),
            pl.col("opens").any(),
            pl.col("closes").any(),
        )
        .sort("step")
        .drop("step")
    )


def cut_short(layers: int | None) -> pl.Expr:
    """The first and last step of a lane where the capture began or ended inside: layers, embedding or sampler missing."""
    position, count = pl.int_range(pl.len()).over("lane"), pl.len().over("lane")
    first, last = position == 0, position == count - 1
    fewer = (pl.col("attention") < (layers or 0)) & (first | last) & ~pl.col("opaque")
    headless = first & ~pl.col("opens") & (pl.col("opens").mean().over("lane") > MIN_USUAL_SHARE) & ~pl.col("opaque")
    tailless = last & ~pl.col("closes") & (pl.col("closes").mean().over("lane") > MIN_USUAL_SHARE)
    return ((fewer | headless | tailless) & (count > 2)).alias("cut_short")


def count_requests(frame: pl.DataFrame) -> pl.Series:
    """Requests of each step: prepared, sampled, or in an attention batch; never more than its tokens.

    The attention batch of a graph is the captured one, so it counts last.
    """
    tokens = pl.col("tokens")
    fitting = [
        pl.when(pl.col(name) <= tokens.fill_null(pl.col(name))).then(name) for name in ("prepared", "head", "sampled")
    ]
    batch = pl.when((pl.col("batch") <= tokens.fill_null(pl.col("batch"))) & ~pl.col("full_graph")).then("batch")
    return frame.select(pl.coalesce("m_requests", *fitting, batch).cast(pl.Int64).alias("requests")).to_series()


def verify_width(frame: pl.DataFrame) -> list[pl.Series]:
    """``width`` (tokens per decoding request) and ``verify`` (a pure speculative verify) of each step.

    Where a rejection sampler runs, the width is the whole number of tokens per request that most such steps agree on;
    a step with other tokens than requests times width holds prompts too. A marker's own width comes first.
    """
    per_request = pl.col("tokens") / pl.col("requests")
    whole = frame.filter(pl.col("verify") & (pl.col("tokens") % pl.col("requests") == 0) & (per_request > 1))
    widths = whole.filter(per_request <= MAX_VERIFY_WIDTH).select((pl.col("tokens") // pl.col("requests")).alias("w"))
    usual = int(np.bincount(widths["w"].to_numpy()).argmax()) if widths.height else 1
    speculative = pl.col("verify") & (usual > 1)
    pure = speculative & (pl.col("full_graph") | (pl.col("tokens") == pl.col("requests") * usual))
    width = pl.coalesce("m_verify_width", pl.when(speculative).then(usual), 1)
    result = frame.select(width.cast(pl.Int64).alias("width"), pure.fill_null(False).alias("verify"))
    return [result["width"], result["verify"]]


def draft_passes(frame: pl.DataFrame, layers: int | None) -> pl.Series:
    """Passes of a draft model: far fewer layers than the model has, and no marker of their own.

    At the edge of the capture a short pass may be a full one cut off; it is a draft where others of its size are.
    """
    if layers is None or layers < 4:
        return pl.Series("draft", [False] * frame.height, dtype=pl.Boolean)
    position, count = pl.int_range(pl.len()).over("lane"), pl.len().over("lane")
    short = (pl.col("attention") <= layers * MAX_DRAFT_LAYER_SHARE) & (pl.col("marker") < 0) & ~pl.col("opaque")
    inner = short & (position > 0) & (position < count - 1)
    sizes = frame.filter(inner)["attention"].unique()
    return frame.select((short & pl.col("attention").is_in(sizes.implode())).alias("draft")).to_series()


def continuing_requests(trace: Trace, columns: KernelArrays, step: Ints, steps: pl.DataFrame) -> pl.Series:
    """Requests whose token ids were copied on the device from the step before (one 4-byte id each).

    An engine that schedules ahead copies them between the end of one step and the first layer of the next. The count
    stands where exactly one size is below the step's requests; null where no such copy was seen or a marker counts.
    """
    empty = pl.Series("continuing", [None] * steps.height, dtype=pl.Int64)
    copies = trace.copies.filter((pl.col("kind").cast(pl.String) == "d2d") & (pl.col("bytes") % 4 == 0))
    if copies.height == 0 or steps.height == 0:
        return empty
    first = np.full(steps.height, np.iinfo(np.int64).max)
    rows = np.flatnonzero(columns.is_op("attention") & (step >= 0))
    np.minimum.at(first, step[rows], columns.start[rows])
    lane_of_step, ends = steps["lane"].to_numpy(), steps["end_ns"].to_numpy()
    found = []
    copies_of = copies_by_lane(copies, columns)
    for lane, own in enumerate(rows_by_key(lane_of_step, np.arange(len(columns.lane_device)))):
        mine = copies_of(lane)
        time = mine["start_ns"].to_numpy()
        place = np.searchsorted(first[own], time, side="right")
        before = np.concatenate([[np.iinfo(np.int64).min], ends[own]])
        fits = (place < len(own)) & (time >= before[np.minimum(place, len(own))])
        found.append(
            mine.filter(pl.Series(fits))
            .select((pl.col("bytes") // 4).alias("count"))
            .with_columns(pl.Series("number", own[place[fits]]))
        )
    sizes = pl.concat(found).join(steps.select("number", "requests", "marker"), on="number", how="left").unique()
    fitting = sizes.filter((pl.col("count") >= 1) & (pl.col("count") < pl.col("requests")) & (pl.col("marker") < 0))
    single = fitting.group_by("number").agg(pl.col("count").first(), pl.len()).filter(pl.col("len") == 1)
    return (
        steps.select("number").join(single, on="number", how="left", maintain_order="left")["count"].alias("continuing")
    )


def marker_facts(raw: RawSteps, markers: MarkerSteps) -> pl.DataFrame:
    """The facts of each step's marker as m_* columns (all null without one), with its phase and text.

    ``m_requests`` is the total. A grammar that leaves the phase of some texts open (vLLM 0.12 counts later chunks of a
    prompt with the decoding requests) knows only the total: its split is dropped.
    """
    kinds = {"marker_phase": pl.String, "m_text_id": pl.UInt32, "m_requests": pl.Int64}
    kinds |= {f"m_{name}": pl.Int64 for name in FACTS}
    if markers.frame.height == 0:
        return pl.DataFrame({name: pl.Series([None] * raw.frame.height, dtype=dtype) for name, dtype in kinds.items()})
    row = raw.frame["marker"].to_numpy()
    total = pl.col("prefill_requests") + pl.col("decode_requests")
    split = ~pl.col("phase").is_null().any().over("grammar")
    read = markers.frame.select(
        pl.col("phase").cast(pl.String).alias("marker_phase"),
        pl.col("text_id").alias("m_text_id"),
        total.alias("m_requests"),
        *[pl.when(split).then(pl.col(name).cast(pl.Int64)).alias(f"m_{name}") for name in FACTS],
    )
    facts: pl.DataFrame = read[np.maximum(row, 0)]
    marked = pl.Series(row >= 0)
    return facts.select(pl.when(marked).then(pl.col(name)).alias(name) for name in kinds)
