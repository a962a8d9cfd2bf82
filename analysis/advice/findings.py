"""The ranked findings: at most five sentences, each a number, a cause and a lever. Every rule: docs/findings.md.

A rule looks at what was measured and returns a Finding or nothing; it never speaks of what the capture does not hold.
Serving findings are ranked by the milliseconds they could recover; capture findings (what limits the answer) follow.
"""

from __future__ import annotations

from ..records.advice import Finding
from ..records.host import HostSide
from ..records.what_if import WhatIf
from ..summary.summary_input import SummaryInput
from ..time.collectives import CollectiveResult
from . import capture_rules, prefill_rules, serving_rules
from .evidence import Evidence, Rule

MAX_FINDINGS = 5
MAX_CAPTURE_FINDINGS = 2

# Each file of rules ends with the list of its own.
SERVING: tuple[Rule, ...] = (*serving_rules.RULES, *prefill_rules.RULES)
CAPTURE: tuple[Rule, ...] = capture_rules.RULES  # of which the first are kept


def find_findings(
    found: SummaryInput, collectives: CollectiveResult, host: HostSide, what_if: WhatIf
) -> tuple[Finding, ...]:
    """Apply every rule; at most five findings, serving ones by recoverable ms (unknown last), then capture ones."""
    evidence = Evidence(found, collectives, host, what_if)
    serving = [f for f in (rule(evidence) for rule in SERVING) if f is not None]
    serving.sort(key=lambda f: (f.recoverable_ms is None, -(f.recoverable_ms or 0.0), f.id))
    capture = [f for f in (rule(evidence) for rule in CAPTURE) if f is not None][:MAX_CAPTURE_FINDINGS]
    return (*serving[: MAX_FINDINGS - len(capture)], *capture)
