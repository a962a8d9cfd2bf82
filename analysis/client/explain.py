"""From a client's log and a capture's steps to a report: align, lay out, attribute, count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...ingest.client_logs.records import ClientLog
from .align import Alignment, align
from .first_tokens import CAUSES, FirstTokens, first_tokens
from .gaps import ClientGaps, arrival_gaps, causes_of, client_gaps
from .lane import request_lane
from .ledger import GapLedger, simple_ledger
from .messages import Messages, messages_of
from .percentiles import percentiles, shares
from .report import AllRequests, ClientReport, ClockReport, Wait
from .steps import CaptureClock, CaptureSteps, Flags, Floats, Ints
from .throughput import throughput


@dataclass(frozen=True)
class ClientOptions:
    """What a user may set: targets of goodput, ms (None: none), and how many of the worst waits are listed."""

    itl_target_ms: float | None = None
    ttft_target_ms: float | None = None
    worst: int = 20


def explain_client(
    logs: Sequence[ClientLog], steps: CaptureSteps, clock: CaptureClock, options: ClientOptions | None = None,
    *, ledger: GapLedger | None = None,
) -> tuple[ClientReport, ...]:  # fmt: skip
    """A report for every log that holds requests; logs of engine steps help to number the others' steps.

    ``ledger`` gives the causes of the GPU's gaps, one row per decode-bearing step of ``steps``; without one they are derived
    from step phases. Raises ValueError where the ledger has another number of rows.
    """
    chosen = options or ClientOptions()
    causes = ledger if ledger is not None else simple_ledger(steps)
    if len(causes.gap_ns) != len(steps.decode_rows):
        raise ValueError(f"the ledger has {len(causes.gap_ns)} gaps, the capture {len(steps.decode_rows)} decode-bearing steps")  # fmt: skip
    engine = [log for log in logs if log.iterations.height]
    return tuple(_explain(log, steps, clock, chosen, causes, engine) for log in logs if not log.iterations.height)


def _explain(
    log: ClientLog, steps: CaptureSteps, clock: CaptureClock, options: ClientOptions, ledger: GapLedger, engine: Sequence[ClientLog]
) -> ClientReport:  # fmt: skip
    alignment = align(log, steps, clock, engine)
    measured = _measured(log)
    placement = alignment.placement
    gaps = firsts = None
    if placement is not None:
        gaps = client_gaps(placement, steps)
        gaps = gaps.only(measured[gaps.request])
        firsts = first_tokens(placement, log, steps)
        firsts = firsts.only(measured[firsts.request])
    outside, unplaced = _left_out(alignment, log, steps, measured)
    requests = log.requests
    messages = messages_of(log, "message")
    together, tokens = _kinds_of_messages(messages)
    return ClientReport(
        source=log.source, requests=int((~requests["warmup"]).sum()), requests_failed=int((requests["failed"] & ~requests["warmup"]).sum()),
        requests_warmup=int(requests["warmup"].sum()), requests_outside=outside, requests_unplaced=unplaced,
        clock=_clock(alignment),
        itl_ms=None if gaps is None else percentiles(gaps.length_ns),
        gpu_itl_ms=None if gaps is None else percentiles(gaps.gpu_ns),
        ttft_ms=None if firsts is None else percentiles(firsts.length_ns),
        all_requests=_whole_log(log, messages, measured, options), messages_together_pct=together, tokens_per_message=tokens,
        by_cause=() if gaps is None or not len(gaps.length_ns) else shares(*causes_of(gaps, _at_least_p99(gaps), steps, ledger)),
        ttft_by_cause=() if firsts is None or not len(firsts.request) else shares(CAUSES, firsts.parts_ns),
        worst_gaps=() if gaps is None else _worst_gaps(gaps, log, steps, ledger, options.worst),
        worst_first_tokens=() if firsts is None else _worst_firsts(firsts, log, steps, options.worst),
        lane=request_lane(placement, firsts, log, steps), notes=(*log.notes, *([log.lacking] if log.lacking else [])),
    )  # fmt: skip


def _measured(log: ClientLog) -> Flags:
    """Requests that count: not failed, not warm-up, not cancelled."""
    requests = log.requests
    return (~(requests["failed"] | requests["warmup"] | requests["cancelled"])).to_numpy()


def _at_least_p99(gaps: ClientGaps) -> Ints:
    return np.flatnonzero(gaps.length_ns >= np.percentile(gaps.length_ns, 99))


def _clock(alignment: Alignment) -> ClockReport:
    placement = alignment.placement
    late = None if placement is None else placement.residual_ns[placement.placed]
    return ClockReport(
        alignment.method, None if alignment.offset_ns is None else alignment.offset_ns / 1e6, alignment.drift_ppm, alignment.confident, alignment.reason,
        None if alignment.violations is None else 100 * alignment.violations, alignment.delivery_known,
        None if late is None else percentiles(late), alignment.trials,
    )  # fmt: skip


def _left_out(alignment: Alignment, log: ClientLog, steps: CaptureSteps, measured: Flags) -> tuple[int, int]:
    """Requests outside the capture, and those inside that have no step."""
    placement = alignment.placement
    with_messages = measured & (log.requests["message_count"].fill_null(0) > 0).to_numpy()
    if placement is None:
        return 0, int(with_messages.sum())
    has_step = np.zeros(log.requests.height, dtype=bool)
    has_step[placement.messages.row[placement.placed]] = True
    missing = with_messages & ~has_step
    if alignment.method == "shape":
        return 0, int(missing.sum())
    first, last = np.full(log.requests.height, np.inf), np.full(log.requests.height, -np.inf)
    np.minimum.at(first, placement.messages.row, placement.at_ns)
    np.maximum.at(last, placement.messages.row, placement.at_ns)
    outside = missing & ((last < steps.first_ns) | (first > steps.last_ns) | (last < steps.start_ns[0]))
    return int(outside.sum()), int((missing & ~outside).sum())


def _kinds_of_messages(messages: Messages) -> tuple[float | None, str]:
    """Share of messages read with the one before, and how many tokens a message holds."""
    if not len(messages.row):
        return None, "unknown"
    behind_first = len(messages.row) - len(np.unique(messages.row))
    together = 100 * (behind_first - len(arrival_gaps(messages.row, messages.at_ns)[0])) / len(messages.row)
    known = messages.tokens[messages.tokens > 0]
    if len(known) < len(messages.tokens):
        return together, "unknown"
    return together, "one" if (known == 1).all() else "several"


def _whole_log(log: ClientLog, messages: Messages, measured: Flags, options: ClientOptions) -> AllRequests:
    keep = messages.only(measured[messages.row]) if len(messages.row) else messages
    before, after = arrival_gaps(keep.row, keep.at_ns)
    gaps = keep.at_ns[after] - keep.at_ns[before]
    first = log.messages["after_ns"].to_numpy()[_first_messages(log, measured)].astype(np.float64)
    recorded = log.itl_as_recorded_ns
    return AllRequests(
        percentiles(gaps), None if recorded is None else percentiles(recorded), percentiles(first),
        throughput(log, keep, measured, options.itl_target_ms, options.ttft_target_ms),
    )  # fmt: skip


def _first_messages(log: ClientLog, measured: Flags) -> Ints:
    has = measured & (log.requests["message_count"].fill_null(0) > 0).to_numpy()
    return np.asarray(log.requests["first_message"].fill_null(0).to_numpy()[has])


def _worst_gaps(gaps: ClientGaps, log: ClientLog, steps: CaptureSteps, ledger: GapLedger, most: int) -> tuple[Wait, ...]:  # fmt: skip
    number = log.requests["request"].to_numpy()
    found = []
    rows = _longest(gaps.length_ns, most)
    causes, parts = causes_of(gaps, rows, steps, ledger)
    for at, k in enumerate(rows.tolist()):
        covered = steps.index[gaps.from_step[k] + 1 : gaps.to_step[k] + 1]
        found.append(Wait(int(number[gaps.request[k]]), round(gaps.at_ns[k]), float(gaps.length_ns[k]) / 1e6, tuple(covered.tolist()), shares(causes, parts[at : at + 1])))  # fmt: skip
    return tuple(found)


def _worst_firsts(firsts: FirstTokens, log: ClientLog, steps: CaptureSteps, most: int) -> tuple[Wait, ...]:
    number = log.requests["request"].to_numpy()
    found = []
    for k in _longest(firsts.length_ns, most).tolist():
        covered = steps.index[firsts.first_step[k] : firsts.last_step[k] + 1]
        found.append(Wait(int(number[firsts.request[k]]), round(firsts.at_ns[k]), float(firsts.length_ns[k]) / 1e6, tuple(covered.tolist()), shares(CAUSES, firsts.parts_ns[k : k + 1])))  # fmt: skip
    return tuple(found)


def _longest(length_ns: Floats, most: int) -> Ints:
    """Rows of the longest, the longest first, ties in order."""
    if len(length_ns) <= most:
        return np.argsort(-length_ns, kind="stable")
    least = np.partition(length_ns, len(length_ns) - most)[len(length_ns) - most]
    rows = np.flatnonzero(length_ns >= least)
    return rows[np.argsort(-length_ns[rows], kind="stable")[:most]]
