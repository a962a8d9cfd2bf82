"""A comparison as JSON; gates look ``delta.*`` up here and every other key in the run after."""

from __future__ import annotations

from typing import Any

import orjson

from ...analysis.compare import Comparison, Profile
from ...analysis.compare.compare_runs import Change, sentence
from ...analysis.records.analysis import SCHEMA_VERSION
from ...analysis.records.plain_values import clean
from ...analysis.records.version import __version__


def comparison_dict(comparison: Comparison) -> dict[str, Any]:
    """The comparison as plain data (docs/json.md, section compare)."""
    result = {
        "schema_version": SCHEMA_VERSION,
        "tool_version": __version__,
        "verdict": comparison.verdict,
        "reasons": list(comparison.reasons),
        "min_change_pct": comparison.min_change_pct,
        "before": _run(comparison.before),
        "after": _run(comparison.after),
        "summary": comparison.after.summary,
        "delta": comparison.delta,
        "changes": [change_row(c) for c in comparison.changes],
        "new_kernels": [{"name": name, "total_ms": ms} for name, ms in comparison.new_kernels],
        "vanished_kernels": [{"name": name, "total_ms": ms} for name, ms in comparison.vanished_kernels],
    }
    cleaned: dict[str, Any] = clean(result)
    return cleaned


def _run(profile: Profile) -> dict[str, Any]:
    return {
        "name": profile.name,
        "status": profile.status,
        **profile.identity,
        "steps": {phase: len(p.duration_ms) for phase, p in profile.phases.items()},
        "summary": profile.summary,
    }


def change_row(change: Change) -> dict[str, Any]:
    """One change as a flat row."""
    d = change.difference
    return {
        "phase": change.phase,
        "kind": change.kind,
        "name": change.name,
        "before_ms": d.before,
        "after_ms": d.after,
        "change_pct": d.change_pct,
        "low_pct": d.low_pct,
        "high_pct": d.high_pct,
        "t": d.t,
        "n_before": d.n_before,
        "n_after": d.n_after,
        "counts": change.counts,
        "sentence": sentence(change),
    }


def comparison_json(comparison: Comparison) -> bytes:
    """UTF-8 JSON with a newline at the end."""
    return orjson.dumps(comparison_dict(comparison), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
