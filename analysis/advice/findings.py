"""The ranked findings: at most five sentences, each a number, a cause and a lever. Every rule: docs/findings.md.

A rule looks at what was measured and returns a Finding or nothing; it never speaks of what the capture does not hold.
Serving findings are ranked by the milliseconds they could recover; capture findings (what limits the answer) follow.
"""

from __future__ import annotations

from collections.abc import Callable

from ..records.advice import Finding
from ..records.host import HostSide
from ..records.what_if import WhatIf
from ..summary.summary_input import SummaryInput
from ..time.collectives import CollectiveResult
from . import capture_rules, prefill_rules, serving_rules
from .evidence import Evidence

MAX_FINDINGS = 5
MAX_CAPTURE_FINDINGS = 2


Rule = Callable[[Evidence], Finding | None]

SERVING: tuple[Rule, ...] = (
    serving_rules.prefill_interference,
    serving_rules.small_decode_batch,
    serving_rules.padded_graphs,
    serving_rules.host_bound_decode,
    prefill_rules.host_bound_prefill,
    serving_rules.collective_waiting,
    serving_rules.low_occupancy_attention,
    serving_rules.unfused_kernels,
    serving_rules.sampling_on_critical_path,
    serving_rules.wrong_dtype,
)
CAPTURE: tuple[Rule, ...] = (capture_rules.opaque_graphs, capture_rules.ranks_missing, capture_rules.clocks_low)


def find_findings(
    found: SummaryInput, collectives: CollectiveResult, host: HostSide, what_if: WhatIf
) -> tuple[Finding, ...]:
    """Apply every rule; at most five findings, serving ones by recoverable ms (unknown last), then capture ones."""
    evidence = Evidence(found, collectives, host, what_if)
    serving = [f for f in (rule(evidence) for rule in SERVING) if f is not None]
    serving.sort(key=lambda f: (f.recoverable_ms is None, -(f.recoverable_ms or 0.0), f.id))
    capture = [f for f in (rule(evidence) for rule in CAPTURE) if f is not None][:MAX_CAPTURE_FINDINGS]
    return (*serving[: MAX_FINDINGS - len(capture)], *capture)
