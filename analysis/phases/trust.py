"""How far the tags can be trusted: shares of GPU time by evidence, counts that must agree, contradictions."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from ...ingest.trace import Trace
from ..result import EVIDENCE
from .columns import HINT, PHASE, Columns, Ints
from .link import LinkResult

MAX_EXAMPLES = 3


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


def phase_contradictions(trace: Trace, columns: Columns, step: Ints, steps: pl.DataFrame) -> list[dict[str, Any]]:
    """Steps whose marker says one phase while their attention kernels are sure of another."""
    phase = np.append(steps["phase"].to_physical().to_numpy().astype(np.int64), -1)[step]
    marked = np.append(steps["evidence"].cast(pl.String).to_numpy() == "marker", False)[step]
    attention = columns.is_op("attention") & columns.hint_sure & marked
    width = np.append(steps["verify_width"].fill_null(1).to_numpy(), 1)[step]
    found = []
    for said, shown in (("prefill", "decode"), ("decode", "prefill"), ("decode", "prefill_or_mixed")):
        rows = attention & (phase == PHASE[said]) & (columns.hint == HINT[shown])
        if said == "decode":
            rows &= width <= 1  # several tokens per request are no contradiction in a speculative verify
        if not rows.any():
            continue
        number = np.unique(step[rows])
        examples = steps[number[:MAX_EXAMPLES]]["label"].fill_null("").to_list()
        names = trace.names["short_name"].gather(np.unique(columns.name[rows])[:MAX_EXAMPLES]).to_list()
        found.append(
            {
                "what": f"marker says {said}, attention kernels are {shown.replace('_', ' ')}",
                "steps": len(number),
                "kernels": int(rows.sum()),
                "gpu_ms": float((columns.end - columns.start)[rows].sum() / 1e6),
                "examples": [f"{label}: {name}" for label, name in zip(examples, names * len(examples), strict=False)],
            }
        )
    return found


def link_counts(trace: Trace, link: LinkResult) -> dict[str, int]:
    """Launches without a kernel and kernels without a launch."""
    return {
        "launches_without_kernel": int((~link.launch_used).sum()),
        "kernels_without_launch": int((link.launch < 0).sum()),
    }


def median_kernels(steps: pl.DataFrame) -> float | None:
    """Kernels of the median pure decode step, else of the median step; None without steps."""
    whole = steps.filter(~pl.col("excluded") & ~pl.col("partial"))
    decode = whole.filter(pl.col("phase").cast(pl.String) == "decode")
    chosen = decode if decode.height else whole
    value = chosen["kernel_count"].median()
    return float(value) if isinstance(value, int | float) else None
