"""A comparison as JSON; gates look ``delta.*`` up here and every other key in the run after."""

from __future__ import annotations

import msgspec
import orjson

from ...analysis.compare import Comparison, Profile
from ...analysis.compare.compare_runs import Change, sentence
from ...analysis.compare.run_profile import JsonObject
from ...analysis.records.analysis import SCHEMA_VERSION
from ...analysis.records.plain_values import clean
from ...analysis.records.record import Record
from ...analysis.records.version import __version__


class ChangeRow(Record, frozen=True, kw_only=True):
    """JSON ``changes[]``: one compared quantity."""

    phase: str  #: of which kind of step
    kind: str  #: `step`, `op_class` or `kernel`
    name: str  #: name of the step's phase, op class or kernel
    before_ms: float  #: per step, before
    after_ms: float  #: per step, after, at equal batch and KV
    change_pct: float  #: adjusted change
    low_pct: float  #: 95% interval
    high_pct: float  #: 95% interval
    t: float  #: change over its standard error
    n_before: int  #: steps before
    n_after: int  #: steps after
    counts: bool  #: beyond chance, large enough, and worth a share of the step
    sentence: str  #: all of it in words


class KernelMs(Record, frozen=True, kw_only=True):
    """JSON ``new_kernels[]`` and ``vanished_kernels[]``."""

    name: str  #: full name
    total_ms: float  #: its time in the run that has it


class ComparisonResult(Record, frozen=True, kw_only=True):
    """A comparison as one JSON object (docs/json.md, section compare)."""

    schema_version: str  #: version of these keys
    tool_version: str  #: version of trace-analyze
    verdict: str  #: `regression`, `improvement`, `no change`, `inconclusive` or `not comparable`
    reasons: tuple[str, ...]  #: why
    min_change_pct: float  #: from which change on something matters
    before: JsonObject  #: the run before: name, status, identity, steps and summary
    after: JsonObject  #: the run after
    summary: JsonObject  #: that of the run after
    delta: JsonObject  #: its numbers against those before, %
    changes: tuple[ChangeRow, ...]  #: all that was compared
    new_kernels: tuple[KernelMs, ...]  #: kernels that only the run after has
    vanished_kernels: tuple[KernelMs, ...]  #: kernels that only the run before has


def comparison_dict(comparison: Comparison) -> dict[str, object]:
    """The comparison as plain data (docs/json.md, section compare)."""
    result = ComparisonResult(
        schema_version=SCHEMA_VERSION,
        tool_version=__version__,
        verdict=comparison.verdict,
        reasons=comparison.reasons,
        min_change_pct=comparison.min_change_pct,
        before=_run(comparison.before),
        after=_run(comparison.after),
        summary=comparison.after.summary,
        delta=comparison.delta,
        changes=tuple(change_row(c) for c in comparison.changes),
        new_kernels=_kernels(comparison.new_kernels),
        vanished_kernels=_kernels(comparison.vanished_kernels),
    )
    return msgspec.convert(clean(result), dict[str, object])


def _run(profile: Profile) -> dict[str, object]:
    """One run; a capture that gave no analysis has no keys of identity."""
    return {
        "name": profile.name,
        "status": profile.status,
        **dict(profile.identity or {}),
        "steps": {phase: len(p.duration_ms) for phase, p in profile.phases.items()},
        "summary": profile.summary,
    }


def _kernels(kernels: tuple[tuple[str, float], ...]) -> tuple[KernelMs, ...]:
    return tuple(KernelMs(name=name, total_ms=ms) for name, ms in kernels)


def change_row(change: Change) -> ChangeRow:
    """One change as a flat row."""
    d = change.difference
    return ChangeRow(
        phase=change.phase,
        kind=change.kind,
        name=change.name,
        before_ms=d.before,
        after_ms=d.after,
        change_pct=d.change_pct,
        low_pct=d.low_pct,
        high_pct=d.high_pct,
        t=d.t,
        n_before=d.n_before,
        n_after=d.n_after,
        counts=change.counts,
        sentence=sentence(change),
    )


def comparison_json(comparison: Comparison) -> bytes:
    """UTF-8 JSON with a newline at the end."""
    return orjson.dumps(comparison_dict(comparison), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
