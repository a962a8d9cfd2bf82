"""From two profiles to one verdict: regression, improvement, no change, inconclusive or not comparable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from .adjusted_difference import MIN_STEPS, Difference, adjusted_difference
from .run_profile import Floats, JsonObject, PhaseProfile, Profile

VERDICTS = ("regression", "improvement", "no change", "inconclusive", "not comparable")
# An op class or kernel decides the verdict only where its change is at least this share of the step.
MIN_SHARE_OF_STEP = 0.005
MIN_NEW_KERNEL_SHARE = 0.005  # of the run's kernel time
_MUST_AGREE = {
    "gpu_name": "GPU",
    "devices": "number of devices",
    "model": "model",
    "weight_dtype": "weight data type",
    "tensor_parallel": "tensor-parallel size",
    "graph_trace_mode": "graph trace mode",
}


@dataclass(frozen=True)
class Change:
    """One compared quantity: ``kind`` is 'step', 'op_class' or 'kernel'; ms are per step (of the phase)."""

    phase: str
    kind: str
    name: str
    difference: Difference
    counts: bool  # significant, large enough, and worth a share of the step

    @property
    def slower(self) -> bool:
        """Whether the run after is slower here."""
        return self.difference.change_pct > 0


@dataclass(frozen=True)
class Comparison:
    """The result of comparing two runs."""

    before: Profile
    after: Profile
    verdict: str
    reasons: tuple[str, ...]
    min_change_pct: float
    changes: tuple[Change, ...] = ()
    new_kernels: tuple[tuple[str, float], ...] = ()  # name, ms
    vanished_kernels: tuple[tuple[str, float], ...] = ()
    delta: JsonObject = field(default_factory=dict)  # summary numbers, after against before, in %

    @property
    def exit_code(self) -> int:
        """0 no change or improvement, 1 regression, 3 the question could not be answered."""
        return {"regression": 1, "inconclusive": 3, "not comparable": 3}.get(self.verdict, 0)


def compare_profiles(before: Profile, after: Profile, *, min_change_pct: float = 3.0) -> Comparison:
    """Compare two runs. A regression needs significance over steps and at least ``min_change_pct``."""
    delta = summary_delta(before.summary, after.summary)
    obstacles = _obstacles(before, after)
    if obstacles:
        empty = [p.name for p in (before, after) if p.status == "could_not_look" or not p.kernel_ms]
        verdict = "inconclusive" if empty else "not comparable"
        return Comparison(before, after, verdict, tuple(obstacles), min_change_pct, delta=delta)
    changes = [
        change
        for phase in before.phases
        if phase in after.phases
        for change in _phase_changes(phase, before.phases[phase], after.phases[phase], min_change_pct)
    ]
    new, vanished = _new_and_vanished(before.kernel_ms, after.kernel_ms)
    verdict, reasons = _verdict(changes, min_change_pct)
    return Comparison(
        before, after, verdict, tuple(reasons), min_change_pct, tuple(changes), tuple(new), tuple(vanished), delta
    )


def _obstacles(before: Profile, after: Profile) -> list[str]:
    reasons = []
    for profile in (before, after):
        if profile.status == "could_not_look" or not profile.kernel_ms:
            why = profile.reasons[0] if profile.reasons else "no kernels"
            reasons.append(f"{profile.name} gave no answer: {why}")
    if reasons:
        return reasons
    if before.identity is None or after.identity is None:
        return reasons
    for key, what in _MUST_AGREE.items():
        a, b = before.identity[key], after.identity[key]
        if a is not None and b is not None and a != b:
            reasons.append(f"the {what} differs: {a} before, {b} after")
    shared = set(before.phases) & set(after.phases)
    if not shared:
        reasons.append(f"no kind of step in common: {_kinds(before)} before, {_kinds(after)} after")
    for phase, what in (("decode", "decode batch"), ("prefill", "prefill tokens a step")):
        if phase in shared:
            reasons += _apart(*_sizes(phase, before.phases[phase], after.phases[phase]), what)
    return reasons


def _kinds(profile: Profile) -> str:
    return ", ".join(profile.phases) or "no steps"


def _sizes(phase: str, before: PhaseProfile, after: PhaseProfile) -> tuple[Floats, Floats]:
    """Rows of decode steps; tokens of other steps where both runs know all of theirs, else rows in both.

    Rows of padded graphs beside another run's tokens would pass for work that the one did faster.
    """
    if phase != "decode" and np.isfinite(before.tokens).all() and np.isfinite(after.tokens).all():
        return before.tokens, after.tokens
    return before.batch, after.batch


def _apart(before: Floats, after: Floats, what: str) -> list[str]:
    """A reason where the middle half of one run lies wholly outside the other's range."""
    if not (np.isfinite(before).all() and np.isfinite(after).all()):
        return []
    middle = np.median(before)
    if middle > after.max() * 1.125 or middle < after.min() / 1.125:
        return [f"the {what} differs: median {middle:g} before, {np.median(after):g} after"]
    return []


def _covariates(phase: str, profile: PhaseProfile, size: Floats) -> Floats:
    if phase == "decode":
        return np.column_stack([size, profile.kv_tokens])
    tokens = np.maximum(size, 1.0)
    return np.column_stack([tokens, tokens**2, profile.kv_tokens])


def _phase_changes(phase: str, before: PhaseProfile, after: PhaseProfile, min_change_pct: float) -> list[Change]:
    sizes = _sizes(phase, before, after)
    covariates = _covariates(phase, before, sizes[0]), _covariates(phase, after, sizes[1])
    step = adjusted_difference(before.duration_ms, after.duration_ms, *covariates)
    if step is None:
        return []
    changes = [Change(phase, "step", phase, step, step.significant(min_change_pct))]
    for kind, mine, theirs in (
        ("op_class", before.op_classes, after.op_classes),
        ("kernel", before.kernels, after.kernels),
    ):
        shared = [name for name in mine if name in theirs]
        for name in shared:
            difference = adjusted_difference(mine[name], theirs[name], *covariates)
            if difference is None:
                continue
            worth = abs(difference.after - difference.before) >= MIN_SHARE_OF_STEP * step.before
            counts = worth and difference.significant(min_change_pct, tests=len(shared))
            changes.append(Change(phase, kind, name, difference, counts))
    return changes


def _verdict(changes: list[Change], min_change_pct: float) -> tuple[str, list[str]]:
    steps = [c for c in changes if c.kind == "step"]
    if not steps:
        return "inconclusive", [f"fewer than {MIN_STEPS} whole steps of a kind in one of the runs"]
    named = [sentence(c) for c in changes if c.counts]
    if named:
        # whole steps decide; where they stand still, their parts do, the slower ones first
        deciding = [c for c in steps if c.counts] or [c for c in changes if c.counts]
        return ("regression" if any(c.slower for c in deciding) else "improvement"), named
    unsure = [c for c in steps if not c.difference.excluded(min_change_pct)]
    if unsure:
        return "inconclusive", [
            f"{c.phase} steps changed by {c.difference.change_pct:+.1f}% (95%: {c.difference.low_pct:+.1f} to "
            f"{c.difference.high_pct:+.1f}%, {c.difference.n_before} and {c.difference.n_after} steps): neither a "
            f"change of {min_change_pct:g}% nor its absence is shown"
            for c in unsure
        ]
    return "no change", [
        f"{c.phase} step {c.difference.change_pct:+.1f}% (95%: {c.difference.low_pct:+.1f} to "
        f"{c.difference.high_pct:+.1f}%)"
        for c in steps
    ]


def sentence(change: Change) -> str:
    """One change as a sentence: what, before, after, by how much and how sure."""
    d = change.difference
    what = f"{change.phase} step" if change.kind == "step" else f"{change.name} in {change.phase} steps"
    return (
        f"{what}: {d.before:.3g} to {d.after:.3g} ms ({d.change_pct:+.1f}%, 95%: {d.low_pct:+.1f} to "
        f"{d.high_pct:+.1f}%, at equal batch and KV)"
    )


def _new_and_vanished(
    before: Mapping[str, float], after: Mapping[str, float]
) -> tuple[list[tuple[str, float]], list[tuple[str, float]]]:
    def only(mine: Mapping[str, float], other: Mapping[str, float]) -> list[tuple[str, float]]:
        total = sum(mine.values())
        rows = [(n, ms) for n, ms in mine.items() if n not in other and ms >= MIN_NEW_KERNEL_SHARE * total]
        return sorted(rows, key=lambda row: (-row[1], row[0]))

    return only(after, before), only(before, after)


def summary_delta(before: JsonObject, after: JsonObject) -> dict[str, object]:
    """Every number of the summary, after against before, in percent; null where either is null or before is 0."""
    result: dict[str, object] = {}
    for key, value in after.items():
        other = before.get(key)
        if isinstance(value, Mapping) and isinstance(other, Mapping):
            result[key] = summary_delta(other, value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            number = other if isinstance(other, int | float) and not isinstance(other, bool) else None
            result[key] = 100 * (value - number) / abs(number) if number else None
        elif value is None:
            result[key] = None
    return result
