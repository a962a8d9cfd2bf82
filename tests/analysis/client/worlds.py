"""Simulated worlds for these tests: served runs, their steps as the analysis would find them, and their clients' logs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from trace_analyze.analysis.client.steps import CaptureClock, CaptureSteps
from trace_analyze.fixtures.client_logs import Delivery, serve, watch, writers
from trace_analyze.fixtures.client_logs.served import Served
from trace_analyze.fixtures.client_logs.watch import ClientView
from trace_analyze.fixtures.simulator.scheduler import poisson_like
from trace_analyze.ingest.client_logs import ClientLog, open_client_log

MONOTONIC_ZERO = 4_990_000_000_000
WALL_ZERO = 1_765_000_000_000_000_000
MONOTONIC = CaptureClock(monotonic_ns=MONOTONIC_ZERO)
WALL = CaptureClock(wall_ns=WALL_ZERO)
NO_CLOCK = CaptureClock()


def busy(seed: int, count: int = 40, rate: float = 8, **options: Any) -> Served:
    """Requests of mixed lengths that come and go."""
    requests = poisson_like(count, rate_per_s=rate, prompt=(200, 4000), output=(40, 200), seed=seed)
    return serve(requests, seed=seed, **options)


def steps_of(served: Served, first: int = 0, last: int | None = None, *, counts: bool = True) -> CaptureSteps:
    """The steps of a run (or some of them), with counts unless they are said to be unknown."""
    part = slice(first, last)
    phase = np.array(served.phase)[part]
    unknown = np.full(len(phase), np.nan)
    known = {
        "prefill_tokens": served.counts("prefill_tokens"), "prefill_requests": served.prefill_requests,
        "decode_requests": served.decode_requests, "decode_tokens": served.decode_requests,
    }  # fmt: skip
    return CaptureSteps(
        index=np.arange(len(served.batches))[part], start_ns=served.start_ns[part], end_ns=served.end_ns[part],
        has_prefill=np.isin(phase, ["prefill", "mixed"]), has_decode=np.isin(phase, ["decode", "mixed"]),
        counts={k: v[part].astype(np.float64) if counts else unknown for k, v in known.items()} | {"prompts_finished": unknown},
        iteration=unknown, first_ns=0 if first == 0 else int(served.start_ns[part][0]), last_ns=int(served.end_ns[part][-1]),
    )  # fmt: skip


def log_of(
    tmp_path: Path,
    served: Served,
    delivery: Delivery | None = None,
    write: Callable[..., Path] = writers.write_vllm,
    **options: Any,
) -> tuple[ClientView, ClientLog]:
    """What the client saw, and its log as read back."""
    view = watch(served, delivery or Delivery())
    return view, open_client_log(write(view, tmp_path / "log", **options))


def least_delivery_ms(view: ClientView) -> float:
    """What the true 1% quantile of delivery exceeds the fit's 0.5 ms by."""
    return float(np.quantile(view.delay_ns, 0.01)) / 1e6 - 0.5
