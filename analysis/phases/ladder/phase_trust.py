"""How far the tags can be trusted: shares of GPU time by evidence, counts that must agree, contradictions."""

from __future__ import annotations

import numpy as np
import polars as pl

from ...facts.name_signs import sign_pattern
from ...records.tables import EVIDENCE
from ...records.trace import Trace
from ...records.trust import Contradiction, StepsOutsideGraphs
from ...records.usable_steps import USABLE_STEP
from ..boundaries.marker_steps import MarkerSteps
from ..kernel_arrays import HINT, PHASE, Bools, Ints, KernelArrays, of_step
from ..launch_links import LinkResult

MAX_EXAMPLES = 3
NO_ORDER = "autoregressive phases cannot be found in sums by kernel name: they have no order and no steps"
MAX_EMPTY_MARKER_SHARE = 0.5  # of the step markers without kernels from which on it is said


def time_by_evidence(kernels: pl.DataFrame) -> dict[str, float]:
    """Share (0..1) of kernel time under each kind of evidence, counted kernels only."""
    counted = kernels.filter(pl.col("in_window")).select(
        "evidence", (pl.col("end_ns") - pl.col("start_ns")).alias("ns")
    )
    total = counted["ns"].sum() or 0
    sums = dict(counted.group_by("evidence").agg(pl.col("ns").sum()).iter_rows())
    if not total:
        return {}
    return {kind: sums.get(kind, 0) / total for kind in EVIDENCE.categories.to_list()}


def is_autoregressive(trace: Trace, columns: KernelArrays, steps: pl.DataFrame) -> bool:
    """Whether a language model generates tokens in this capture.

    An engine's markers say so; else a step that decodes, or prompts whose keys and values are kept: a cache is
    written, or attention is named for reading one, so that one name of a cache write that no rule knows vetoes
    nothing. Encoders, diffusion and training have attention and steps, but neither.
    """
    served = steps.filter(pl.col("phase").cast(pl.String).is_in(["prefill", "decode", "mixed"]) & ~pl.col("excluded"))
    if (served["evidence"].cast(pl.String) == "marker").any():
        return True
    names = trace.names["name"]
    trains = bool(names.gather(np.unique(columns.name)).str.contains(sign_pattern("training")).any())
    attends = names.gather(np.unique(columns.name[columns.is_op("attention")]))
    keeps = bool(columns.is_op("kv_write").any()) or bool(attends.str.contains(sign_pattern("reads_cache")).any())
    generates = bool(columns.is_op("sampling").any()) and served.height > 1
    decodes = bool(served["phase"].cast(pl.String).is_in(["decode", "mixed"]).any())
    return not trains and bool(served.height) and (keeps or (decodes and generates))


def why_partial(
    trace: Trace, autoregressive: bool, steps: pl.DataFrame, markers: MarkerSteps, link: LinkResult
) -> list[str]:
    """Sentences about what could not be seen."""
    reasons = []
    if trace.holds_sums:
        reasons.append(NO_ORDER)
    elif not autoregressive:
        reasons.append("no autoregressive phases found")
    if markers.ranges_seen and not (markers.step >= 0).any():
        if not (link.launch >= 0).any():
            cause = "the capture ties no kernel to a launch call (no correlation ids)"
        else:
            cause = "no kernel was launched inside them"
        found = "steps come from the order of kernels" if steps.height else "per-step times not available"
        reasons.append(f"{markers.ranges_seen} step markers hold no kernels: {cause}; {found}")
    elif markers.ranges_seen and unused_markers(markers) > MAX_EMPTY_MARKER_SHARE * markers.ranges_seen:
        reasons.append(
            f"{unused_markers(markers)} of {markers.ranges_seen} step markers hold no kernels: the profiler recorded "
            "only part of the steps it marked"
        )
    return reasons


def unused_markers(markers: MarkerSteps) -> int:
    """Marked steps that serve requests and hold no kernel."""
    if markers.frame.height == 0:
        return 0
    used = np.bincount(markers.step[markers.step >= 0], minlength=markers.frame.height) > 0
    serves = markers.frame["phase"].is_in(["prefill", "decode", "mixed"]).fill_null(True).to_numpy()
    return int((~used & serves).sum())


def ambiguous_share(columns: KernelArrays, markers: MarkerSteps, in_window: Bools) -> float:
    """Percent of kernel time whose step rests on its neighbours because its own launch call was lost."""
    lengths = columns.end - columns.start
    total = int(lengths[in_window].sum())
    return 100.0 * int(lengths[in_window & markers.ambiguous].sum()) / total if total else 0.0


def steps_outside_graphs(steps: pl.DataFrame) -> dict[str, StepsOutsideGraphs]:
    """Steps that ran without a graph although others of the capture replay one, and why."""
    whole = steps.filter(USABLE_STEP)
    inside = whole.filter(pl.col("graph_id").is_not_null())
    if inside.height == 0:
        return {}
    largest = inside.filter(pl.col("phase").cast(pl.String) == "decode")["padded_tokens"].max()
    outside = whole.filter(pl.col("graph_id").is_null())
    phase = pl.col("phase").cast(pl.String)
    too_large = (phase == "decode") & (pl.col("decode_tokens") > pl.lit(largest, dtype=pl.Int64))
    why = (
        pl.when(phase.is_in(["prefill", "mixed"]))
        .then(pl.lit("holds a prompt"))
        .when(too_large)
        .then(pl.lit("batch above the largest graph replayed"))
        .otherwise(pl.lit("not known"))
    )
    counts = outside.group_by(why.alias("why")).agg(pl.len(), (pl.col("busy_ns").sum() / 1e6).alias("ms")).sort("why")
    return {reason: StepsOutsideGraphs(steps=count, gpu_ms=ms) for reason, count, ms in counts.iter_rows()}


def find_contradictions(
    trace: Trace, columns: KernelArrays, step: Ints, steps: pl.DataFrame
) -> tuple[Contradiction, ...]:
    """Where two kinds of evidence disagree: what, how many steps and kernels, their GPU time, examples."""
    return (*phase_contradictions(trace, columns, step, steps), *count_contradictions(steps))


def count_contradictions(steps: pl.DataFrame) -> list[Contradiction]:
    """Marked steps that claim more tokens than their kernels were launched for."""
    claimed = pl.col("prefill_tokens") + pl.col("decode_tokens")
    marked = pl.col("evidence").cast(pl.String) == "marker"
    wrong = steps.filter(marked & (claimed > pl.col("launched_tokens")))
    if wrong.height == 0:
        return []
    return [
        Contradiction(
            what="marker counts more tokens than its kernels were launched for",
            steps=wrong.height,
            kernels=int(wrong["kernel_count"].sum()),
            gpu_ms=float(wrong["busy_ns"].sum()) / 1e6,
            examples=tuple(
                f"{label}: launched for {tokens} tokens"
                for label, tokens in wrong.head(MAX_EXAMPLES).select("label", "launched_tokens").iter_rows()
            ),
        )
    ]


def phase_contradictions(trace: Trace, columns: KernelArrays, step: Ints, steps: pl.DataFrame) -> list[Contradiction]:
    """Steps whose marker says one phase while their attention kernels are sure of another."""
    marked = of_step((steps["evidence"].cast(pl.String) == "marker").to_numpy(), step, False)
    attention = np.flatnonzero(columns.is_op("attention") & columns.hint_sure & marked)
    own = step[attention]
    phase = steps["phase"].to_physical().to_numpy()[own]
    width = steps["verify_width"].fill_null(1).to_numpy()[own]
    hint = columns.hint[attention]
    found = []
    for said, shown in (("prefill", "decode"), ("decode", "prefill"), ("decode", "prefill_or_mixed")):
        chosen = (phase == PHASE[said]) & (hint == HINT[shown])
        if said == "decode":
            chosen &= width <= 1  # several tokens per request are no contradiction in a speculative verify
        if not chosen.any():
            continue
        rows = attention[chosen]
        number = np.unique(step[rows])
        examples = steps[number[:MAX_EXAMPLES]]["label"].fill_null("").to_list()
        names = trace.names["short_name"].gather(np.unique(columns.name[rows])[:MAX_EXAMPLES]).to_list()
        found.append(
            Contradiction(
                what=f"marker says {said}, attention kernels are {shown.replace('_', ' ')}",
                steps=len(number),
                kernels=len(rows),
                gpu_ms=float((columns.end - columns.start)[rows].sum() / 1e6),
                examples=tuple(
                    f"{label}: {name}" for label, name in zip(examples, names * len(examples), strict=False)
                ),
            )
        )
    return found


def median_kernels(steps: pl.DataFrame) -> float | None:
    """Kernels of the median pure decode step, else of the median step; None without steps."""
    whole = steps.filter(USABLE_STEP)
    decode = whole.filter(pl.col("phase").cast(pl.String) == "decode")
    chosen = decode if decode.height else whole
    value = chosen["kernel_count"].median()
    return float(value) if isinstance(value, int | float) else None
