"""Rules about the capture itself: what kept the analysis from answering more."""

from __future__ import annotations

from ..numeric.number_text import plural, short_percent
from ..records.advice import ClocksLow, Finding, OpaqueGraphs, RanksMissing
from ..summary.trust_verdict import expected_ranks
from .evidence import Evidence, Rule

MIN_CLOCK_SHARE = 0.90  # of the clock the peak FLOP/s stand for


def opaque_graphs(evidence: Evidence) -> Finding | None:
    """Graph replays were recorded as single rows."""
    found = evidence.found
    if not found.time.opaque_graphs:
        return None
    rows = found.trace.graph_launches
    ms = float((rows["end_ns"] - rows["start_ns"]).to_numpy().sum()) / 1e6 / evidence.device_count
    launched = int((found.trace.launches["kind"] == "graph").sum())
    replays = max(rows.height, launched)
    return Finding(
        id="opaque_graphs",
        sentence=f"{plural(replays, 'graph replay')} hide their kernels: no roofline and no idle time inside decode",
        recoverable_ms=None,
        evidence=OpaqueGraphs(graph_replays=replays, graph_ms=ms, kernels_recorded=found.trace.kernels.height),
        lever="record again with --cuda-graph-trace=node",
        kind="capture",
    )


def ranks_missing(evidence: Evidence) -> Finding | None:
    """Fewer devices ran kernels than the serving options ask for."""
    expected = expected_ranks(evidence.found.trace)
    present = len(evidence.found.time.devices)
    if not expected or present >= expected:
        return None
    return Finding(
        id="ranks_missing",
        sentence=f"{present} of {expected} ranks are in the capture: waiting in collectives cannot be told from transfer",
        recoverable_ms=None,
        evidence=RanksMissing(ranks_expected=expected, devices_with_kernels=present),
        lever="profile the process that starts all ranks, with --trace-fork-before-exec=true",
        kind="capture",
    )


def clocks_low(evidence: Evidence) -> Finding | None:
    """The SM clock measured while the GPU worked is well under the one its peak stands for."""
    trust = evidence.found.work_trust
    measured = trust.clocks.sm_clock_mhz if trust is not None and trust.clocks is not None else None
    spec = next((c.spec_clock_mhz for c in evidence.found.ceilings if c.spec_clock_mhz), None)
    if not measured or not spec or measured >= MIN_CLOCK_SHARE * spec:
        return None
    share = 100 * measured / spec
    return Finding(
        id="clocks_low",
        sentence=f"SM clocks ran at {measured:,.0f} MHz, {short_percent(share)} of the {spec:,.0f} MHz behind the peak FLOP/s",
        recoverable_ms=None,
        evidence=ClocksLow(sm_clock_mhz=measured, spec_clock_mhz=spec, share_pct=share),
        lever="check the power limit and the clock settings; memory-bound decode is hardly affected",
        kind="capture",
    )


RULES: tuple[Rule, ...] = (
    opaque_graphs,
    ranks_missing,
    clocks_low,
)
