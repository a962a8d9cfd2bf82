"""Steps written down by hand."""

from collections.abc import Sequence

import numpy as np

from trace_analyze.analysis.client.steps import COUNTS, CaptureSteps


def hand_steps(rows: Sequence[tuple[str, float, float]], **counts: Sequence[float]) -> CaptureSteps:
    """Steps of (phase, start ms, end ms); counts by name, others unknown."""
    phase = np.array([r[0] for r in rows])
    ns = np.array([[r[1], r[2]] for r in rows]) * 1_000_000
    unknown = np.full(len(rows), np.nan)
    return CaptureSteps(
        index=np.arange(len(rows)), start_ns=ns[:, 0], end_ns=ns[:, 1], has_prefill=np.isin(phase, ["prefill", "mixed"]),
        has_decode=np.isin(phase, ["decode", "mixed"]), counts={c: np.array(counts[c], dtype=float) if c in counts else unknown for c in COUNTS},
        iteration=unknown, first_ns=0, last_ns=int(ns[-1, 1]),
    )  # fmt: skip
