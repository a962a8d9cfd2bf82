"""How long a step takes as a function of its batch, fitted on the capture's own steps.

    step_ms = fixed + per_token x max(tokens, knee) + per_attention_pair x sum(q S) + per_kv_token x KV + per_request x R

``tokens`` are the rows the GEMMs ran for (padded prefill and decode tokens), and below ``knee`` reading the weights costs
as much as that many tokens: the roofline of a GEMM. ``sum(q S)`` are the query-key pairs of the prefill part, KV the
decoding requests' cached tokens. No coefficient may be negative. The fit minimises relative errors (Huber weights, so one
warm-up outlier does not bend it), every phase weighs the same however many steps it has, and it is refused when poor.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..time.group_steps import COUNTS, GroupSteps

Floats = npt.NDArray[np.float64]

FEATURES = ("fixed", "per_token", "per_attention_pair", "per_kv_token", "per_request")
MIN_PREFILL_STEPS, MIN_STEPS = 4, 12
MAX_MEDIAN_ERROR_PCT = 15.0
MIN_R2 = 0.9
MIN_SPREAD = 1.02  # largest over smallest value a feature must show to be told from a constant
MIN_OUTLIER_ERROR = 0.5  # relative error; such steps (warm-up, a host pause) are counted and kept out of R2
MAX_OUTLIER_SHARE = 0.05
MAX_STEPS_PER_PHASE = 600
FIT_ROUNDS = 4
HUBER_ERROR = 0.05  # relative error beyond which a step's weight falls
KNEES = np.unique(np.round(np.geomspace(8, 4096, 46)))
MAX_LOSS_RATIO = (
    1.10  # a fit this near the best one is as good, and so is any within 1.5%: the steps do not show the knee
)
MAX_EQUAL_LOSS = 0.015**2


@dataclass(frozen=True)
class StepFacts:
    """Steps as columns: what a step held and how long it took. NaN = unknown."""

    ms: Floats
    prefill_tokens: Floats
    prefill_qk: Floats
    prefill_qq: Floats
    decode_tokens: Floats
    decode_requests: Floats
    decode_kv: Floats
    rows: Floats  # that the GEMMs ran for: all tokens, or the padded size of a graph

    def take(self, rows: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> StepFacts:
        """The chosen rows."""
        return StepFacts(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))

    @property
    def tokens(self) -> Floats:
        """Rows of the GEMMs."""
        return self.rows

    @property
    def prefill_rows(self) -> Floats:
        """Prompt tokens; where only a graph's padded size is known, the rows that its decoding requests leave."""
        return np.where(np.isnan(self.prefill_tokens), self.rows - self.decode_tokens, self.prefill_tokens)

    @property
    def has_prefill(self) -> npt.NDArray[np.bool_]:
        """Prefill and mixed steps."""
        has: npt.NDArray[np.bool_] = self.prefill_tokens != 0  # NaN: a prompt of unknown length
        return has

    @staticmethod
    def of(groups: Sequence[GroupSteps]) -> StepFacts:
        """From the usable prefill, decode and mixed steps of all groups."""
        parts = [_of_group(g) for g in groups]
        if not parts:
            return StepFacts(*[np.zeros(0)] * len(StepFacts.__dataclass_fields__))
        return StepFacts(*(np.concatenate([getattr(p, n) for p in parts]) for n in StepFacts.__dataclass_fields__))


def _of_group(group: GroupSteps) -> StepFacts:
    phased = group.is_prefill | group.is_decode | group.is_mixed
    count = {name: group.count(name)[phased] for name in COUNTS if name.endswith(COUNTED)}
    bearing, prefilling = group.is_decode_bearing[phased], ~group.is_decode[phased]
    zero = np.zeros(int(phased.sum()))
    requests = np.where(bearing, count["decode_requests"], zero)
    decoded = np.where(np.isnan(count["decode_tokens"]), requests, count["decode_tokens"])
    decode_tokens = np.where(bearing, decoded, zero)
    prefill_tokens = np.where(prefilling, count["prefill_tokens"], zero)
    prefill_kv = np.where(prefilling, count["prefill_kv_tokens"], zero)
    return StepFacts(
        ms=(group.end_ns - group.start_ns)[phased] / 1e6,
        prefill_tokens=prefill_tokens,
        prefill_qk=np.where(prefilling, count["prefill_qk"], zero),
        prefill_qq=np.where(prefilling, count["prefill_qq"], zero),
        decode_tokens=decode_tokens,
        decode_requests=requests,
        decode_kv=np.where(bearing, count["kv_tokens"] - prefill_kv, zero),
        rows=np.fmax(count["padded_tokens"], prefill_tokens + decode_tokens),
    )


COUNTED = ("tokens", "requests", "_qk", "_qq")


@dataclass(frozen=True)
class StepModel:
    """A fitted model. Coefficients are ms per unit of FEATURES; a feature the capture does not hold has 0."""

    knee: float
    coefficients: Mapping[str, float]
    uses: tuple[str, ...]  # features that were known
    r2: float  # without outliers
    outliers: int
    median_error_pct: Mapping[str, float]  # by phase kind: 'decode', 'prefill' (steps with prefill work)
    steps: Mapping[str, int]
    prefill_range: tuple[int, int]  # tokens per step seen
    decode_range: tuple[int, int]  # decode requests per step seen

    def predict(
        self,
        *,
        prefill_tokens: npt.ArrayLike = 0.0,
        prefill_qk: npt.ArrayLike = 0.0,
        decode_tokens: npt.ArrayLike = 0.0,
        decode_requests: npt.ArrayLike = 0.0,
        decode_kv: npt.ArrayLike = 0.0,
    ) -> Floats:
        """Step time in ms; arguments broadcast."""
        c = self.coefficients
        tokens = np.asarray(prefill_tokens, dtype=np.float64) + np.asarray(decode_tokens, dtype=np.float64)
        result: Floats = (
            c["fixed"]
            + c["per_token"] * np.maximum(tokens, self.knee)
            + c["per_attention_pair"] * np.asarray(prefill_qk, dtype=np.float64)
            + c["per_kv_token"] * np.asarray(decode_kv, dtype=np.float64)
            + c["per_request"] * np.asarray(decode_requests, dtype=np.float64)
        )
        return result


def fit_step_model(groups: Sequence[GroupSteps], ridge_tokens: float | None = None) -> StepModel | str:
    """Fit the model on the steps of ``groups``, or say why it is refused.

    ``ridge_tokens`` (batch at which a GEMM's intensity meets the GPU's ridge) decides the knee where the steps leave it
    open, for example when all prefill chunks have one size.
    """
    facts = _usable(StepFacts.of(groups))
    prefill, decode = int(facts.has_prefill.sum()), int((~facts.has_prefill).sum())
    if prefill < MIN_PREFILL_STEPS or prefill + decode < MIN_STEPS:
        return (
            f"{prefill} steps with prefill work and {decode} pure decode steps with known token counts are too few "
            f"(at least {MIN_PREFILL_STEPS} and {MIN_STEPS} in all)"
        )
    sizes = facts.prefill_rows[facts.has_prefill]
    if not decode and sizes.max() < 2 * sizes.min():
        return "all prefill steps have about the same size and there is no decode step: a slope cannot be told"
    columns = _columns(facts)
    best = _best_fit(facts, columns, ridge_tokens)
    model = _finish(facts, columns, *best)
    worst = max(model.median_error_pct.values())
    if model.outliers > max(2, MAX_OUTLIER_SHARE * (prefill + decode)):
        return f"the fit is poor: {model.outliers} of {prefill + decode} steps are off by more than {100 * MIN_OUTLIER_ERROR:.0f}%"
    if worst > MAX_MEDIAN_ERROR_PCT or model.r2 < MIN_R2:
        return f"the fit is poor: median error {worst:.0f}%, R2 {model.r2:.2f} over {prefill + decode} steps"
    return model


def _usable(facts: StepFacts) -> StepFacts:
    """Steps with known token counts, thinned evenly to a few hundred per phase."""
    known = ~(np.isnan(facts.tokens) | np.isnan(facts.decode_requests)) & (facts.ms > 0) & (facts.tokens > 0)
    rows = []
    for kind in (facts.has_prefill, ~facts.has_prefill):
        mine = np.flatnonzero(known & kind)
        if len(mine) > MAX_STEPS_PER_PHASE:
            mine = mine[np.linspace(0, len(mine) - 1, MAX_STEPS_PER_PHASE).astype(np.int64)]
        rows.append(mine)
    return facts.take(np.sort(np.concatenate(rows)))


def _columns(facts: StepFacts) -> dict[str, Floats]:
    """Known feature columns beside ``fixed`` and ``per_token`` (which depends on the knee).

    A feature that is the same in all steps that have it cannot be told from ``fixed`` and is left out.
    """
    optional = {
        "per_attention_pair": facts.prefill_qk,
        "per_kv_token": facts.decode_kv,
        "per_request": facts.decode_requests,
    }
    return {name: values for name, values in optional.items() if _varies(values)}


def _varies(values: Floats) -> bool:
    present = values[values > 0]
    return not np.isnan(values).any() and bool(len(present)) and bool(present.max() > MIN_SPREAD * present.min())


def _design(facts: StepFacts, columns: Mapping[str, Floats], knee: float) -> Floats:
    return np.column_stack([np.ones(len(facts.ms)), np.maximum(facts.tokens, knee), *columns.values()])


def _best_fit(facts: StepFacts, columns: Mapping[str, Floats], ridge_tokens: float | None) -> tuple[float, Floats]:
    """The knee and coefficients of the least robust loss; among equals the knee nearest to the GPU's ridge."""
    fits = [(knee, *_robust_fit(facts, _design(facts, columns, knee))) for knee in KNEES.tolist()]
    least = min(loss for _, _, loss in fits)
    equal = [(knee, beta) for knee, beta, loss in fits if loss <= max(least * MAX_LOSS_RATIO, MAX_EQUAL_LOSS)]
    if ridge_tokens is None:
        return equal[-1]
    return min(equal, key=lambda fit: abs(np.log(fit[0] / ridge_tokens)))


def _robust_fit(facts: StepFacts, design: Floats) -> tuple[Floats, float]:
    """Non-negative least squares of relative errors with Huber weights; returns coefficients and mean Huber loss."""
    share = np.where(facts.has_prefill, 1 / max(facts.has_prefill.sum(), 1), 1 / max((~facts.has_prefill).sum(), 1))
    relative, target = design / facts.ms[:, None], np.ones(len(facts.ms))
    weight = share.copy()
    beta = np.zeros(design.shape[1])
    for _ in range(FIT_ROUNDS):
        beta = _non_negative(relative, target, weight)
        error = np.abs(relative @ beta - target)
        weight = share * np.minimum(1.0, HUBER_ERROR / np.maximum(error, 1e-12))
    loss = np.where(error < HUBER_ERROR, error**2, HUBER_ERROR * (2 * error - HUBER_ERROR))
    return beta, float((share * loss).sum() / share.sum())


def _non_negative(design: Floats, target: Floats, weight: Floats) -> Floats:
    """Weighted non-negative least squares by trying every set of features (at most five: 31 small solves)."""
    scale = np.maximum(np.abs(design).max(axis=0), 1e-300)
    scaled = design / scale
    gram = scaled.T @ (scaled * weight[:, None])
    moment = scaled.T @ (target * weight)
    total = float((weight * target**2).sum())
    width = design.shape[1]
    best, least = np.zeros(width), total
    solved: list[frozenset[int]] = []
    for size in range(width, 0, -1):
        for chosen in itertools.combinations(range(width), size):
            if any(whole.issuperset(chosen) for whole in solved):
                continue  # fewer features never fit better than more
            rows = np.array(chosen)
            part = np.linalg.lstsq(gram[np.ix_(rows, rows)], moment[rows], rcond=1e-10)[0]
            if (part < 0).any():
                continue
            solved.append(frozenset(chosen))
            loss = total - float(part @ moment[rows])
            if loss < least - 1e-12:
                best, least = np.zeros(width), loss
                best[rows] = part
    result: Floats = best / scale
    return result


def _finish(facts: StepFacts, columns: Mapping[str, Floats], knee: float, beta: Floats) -> StepModel:
    predicted = _design(facts, columns, knee) @ beta
    error = np.abs(predicted / facts.ms - 1) * 100
    names = ("fixed", "per_token", *columns)
    coefficients = dict.fromkeys(FEATURES, 0.0) | dict(zip(names, beta.tolist(), strict=True))
    kinds = {"decode": ~facts.has_prefill, "prefill": facts.has_prefill}
    near = error <= 100 * MIN_OUTLIER_ERROR
    near_ms, near_predicted = facts.ms[near], predicted[near]
    variance = float(((near_ms - near_ms.mean()) ** 2).sum()) if near.any() else 0.0
    bearing = facts.decode_requests > 0
    sizes, batches = facts.prefill_rows[facts.has_prefill], facts.decode_requests[bearing]
    return StepModel(
        knee=knee,
        coefficients=coefficients,
        uses=names,
        r2=1 - float(((near_ms - near_predicted) ** 2).sum()) / variance if variance else 1.0,
        outliers=int((~near).sum()),
        median_error_pct={k: float(np.median(error[chosen])) for k, chosen in kinds.items() if chosen.any()},
        steps={k: int(chosen.sum()) for k, chosen in kinds.items()},
        prefill_range=(int(sizes.min()), int(sizes.max())),
        decode_range=(int(batches.min()), int(batches.max())) if len(batches) else (0, 0),
    )
