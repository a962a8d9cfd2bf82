"""What is reported of one client's log: frozen records, and their JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from ..records.trace import Schema
from .fit import Trial
from .percentiles import WORTH_SAYING_PCT, CauseShare, Percentiles

#: One row per request, on the capture's clock; what is not known is null. The lane of the timeline.
REQUEST_LANE: Schema = {
    "request": pl.Int32,
    "sent_ns": pl.Int64,
    "prefill_start_ns": pl.Int64,  # of the first step with its prompt's tokens
    "first_token_ns": pl.Int64,
    "last_token_ns": pl.Int64,
    "prefill_step": pl.Int64,  # index in steps[]
    "first_token_step": pl.Int64,
    "last_token_step": pl.Int64,
    "confidence": pl.String,  # 'prompt' (its prompt length is that of the steps' prompt tokens) | 'chain' | null (anonymous)
}
WORDS = {
    "decode": "decode",
    "prefill_before": "prefill of others",
    "prefill_in_step": "prefill of others",
    "host": "host",
    "other_steps": "other steps",
    "unexplained": "slower decode steps",
    "after_gpu": "after the GPU",
}


@dataclass(frozen=True)
class ClockReport:
    """How the log's clock became the capture's; ``trials``: the offsets tried and what spoke for each (ms beside the chosen
    one, nats), the picture of the fit; ``delivery_ms``: from a step's end to the client, its constant part real only where
    ``delivery_known``.
    """

    method: str
    offset_ms: float | None
    drift_ppm: float | None
    confident: bool
    reason: str
    violations_pct: float | None = None
    delivery_known: bool = False
    delivery_ms: Percentiles | None = None
    trials: tuple[Trial, ...] = ()

    def to_json(self) -> dict[str, object]:
        """The fields by name, trials relative to the best."""
        zero = self.trials[0].offset_ns if self.trials else 0.0
        return {
            "method": self.method, "offset_ms": self.offset_ms, "drift_ppm": self.drift_ppm, "confident": self.confident, "reason": self.reason,
            "violations_pct": self.violations_pct, "delivery_known": self.delivery_known,
            "delivery_ms": self.delivery_ms.to_json() if self.delivery_ms else None,
            "trials": [{"offset_ms": (t.offset_ns - zero) / 1e6, "nats": t.nats} for t in self.trials],
        }  # fmt: skip


@dataclass(frozen=True)
class Wait:
    """One gap or first token: which request, when it ended (capture's clock), how long, the steps and causes."""

    request: int
    at_ns: int
    ms: float
    steps: tuple[int, ...]
    by_cause: tuple[CauseShare, ...]

    def to_json(self) -> dict[str, object]:
        """The fields by name."""
        return {"request": self.request, "at_ns": self.at_ns, "ms": self.ms, "steps": list(self.steps), "by_cause": [c.to_json() for c in self.by_cause]}  # fmt: skip


@dataclass(frozen=True)
class Served:
    """Requests and tokens per second over ``seconds``; ``good_*``: of requests within the targets (None: no target)."""

    seconds: float
    requests_per_s: float
    tokens_per_s: float | None
    good_requests_per_s: float | None
    good_pct: float | None

    def to_json(self) -> dict[str, object]:
        """The fields by name."""
        return {
            "seconds": self.seconds, "requests_per_s": self.requests_per_s, "tokens_per_s": self.tokens_per_s,
            "good_requests_per_s": self.good_requests_per_s, "good_pct": self.good_pct,
        }  # fmt: skip


@dataclass(frozen=True)
class AllRequests:
    """The whole log's own numbers; ``itl_as_recorded_ms`` over the values exactly as the file has them."""

    itl_ms: Percentiles | None
    itl_as_recorded_ms: Percentiles | None
    ttft_ms: Percentiles | None
    throughput: Served | None

    def to_json(self) -> dict[str, object]:
        """The fields by name."""
        return {
            "itl_ms": _json(self.itl_ms), "itl_as_recorded_ms": _json(self.itl_as_recorded_ms), "ttft_ms": _json(self.ttft_ms),
            "throughput": _json(self.throughput),
        }  # fmt: skip


@dataclass(frozen=True)
class ClientReport:
    """One client's log explained by GPU steps.

    ``itl_ms``, ``ttft_ms`` and ``gpu_itl_ms`` (the same gaps without delivery) cover what lies inside the capture, None
    where nothing could be laid on it; ``by_cause`` the gaps at or above p99. ``messages_together_pct``: messages that the
    client read with the one before, counted as one arrival.
    """

    source: str
    requests: int
    requests_failed: int
    requests_warmup: int
    requests_outside: int
    requests_unplaced: int
    clock: ClockReport
    itl_ms: Percentiles | None
    gpu_itl_ms: Percentiles | None
    ttft_ms: Percentiles | None
    all_requests: AllRequests
    messages_together_pct: float | None
    tokens_per_message: str
    by_cause: tuple[CauseShare, ...]
    ttft_by_cause: tuple[CauseShare, ...]
    worst_gaps: tuple[Wait, ...]
    worst_first_tokens: tuple[Wait, ...]
    lane: pl.DataFrame
    notes: tuple[str, ...] = ()

    @property
    def headline(self) -> str:
        """One sentence on the gaps at or above p99, '' where they have no causes."""
        if self.itl_ms is None or not self.by_cause:
            return ""
        words: dict[str, float] = {}
        for share in self.by_cause:
            word = WORDS.get(share.cause, share.cause.replace("_", " "))
            words[word] = words.get(word, 0.0) + (share.pct or 0.0)
        said = [f"{pct:.0f}% {word}" for word, pct in sorted(words.items(), key=lambda w: -w[1]) if pct >= WORTH_SAYING_PCT]  # fmt: skip
        return f"p99 gap {self.itl_ms.p99:.0f} ms: {', '.join(said)}"

    def to_json(self) -> dict[str, object]:
        """The ``client`` object of the JSON output."""
        return {
            "source": self.source, "requests": self.requests, "requests_failed": self.requests_failed, "requests_warmup": self.requests_warmup,
            "requests_outside": self.requests_outside, "requests_unplaced": self.requests_unplaced, "clock": self.clock.to_json(),
            "headline": self.headline, "itl_ms": _json(self.itl_ms), "gpu_itl_ms": _json(self.gpu_itl_ms), "ttft_ms": _json(self.ttft_ms),
            "all_requests": self.all_requests.to_json(), "messages_together_pct": self.messages_together_pct, "tokens_per_message": self.tokens_per_message,
            "by_cause": _list(self.by_cause), "ttft_by_cause": _list(self.ttft_by_cause), "worst_gaps": _list(self.worst_gaps),
            "worst_first_tokens": _list(self.worst_first_tokens), "notes": list(self.notes),
        }  # fmt: skip


def _json(record: Percentiles | Served | None) -> dict[str, object] | None:
    return None if record is None else record.to_json()


def _list(records: Sequence[CauseShare] | Sequence[Wait]) -> list[dict[str, object]]:
    return [r.to_json() for r in records]
