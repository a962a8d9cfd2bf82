"""Offsets between a log's clock and the capture's that are worth a look: peaks of a correlation of three signals.

First tokens against ends of steps with prompt tokens, ends of long client gaps against ends of long step gaps, and all
messages against all steps. A grid of drifts is tried, because a long capture would smear the peaks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .messages import Messages
from .placement import Shift
from .steps import CaptureSteps, Flags, Floats, Ints

FINEST_BIN_NS = 2e6
MOST_BINS = 1 << 18
LARGEST_DRIFT = 120e-6
PEAKS = 24


@dataclass(frozen=True)
class _Signals:
    """Pulse trains: times with weights, the same kind in the same place for log and capture."""

    times: tuple[Floats, ...]
    weights: tuple[Floats, ...]


def candidates(
    messages: Messages, steps: CaptureSteps, *, drift: bool, within: tuple[float, float] | None = None
) -> list[Shift]:
    """Shifts in falling order of correlation; ``within`` bounds the offset (ns, at the log's middle)."""
    log, capture = _of_log(messages), _of_capture(steps)
    log_first, log_last = float(messages.at_ns.min()), float(messages.at_ns.max())
    cap_first, cap_last = float(steps.start_ns[0]), float(steps.end_ns[-1])
    length = (log_last - log_first) + (cap_last - cap_first)
    width = max(FINEST_BIN_NS, length / MOST_BINS)
    bins = 1 << int(np.ceil(np.log2(length / width + 8)))
    overlap = min(log_last - log_first, cap_last - cap_first)
    middle = 0.5 * (log_first + log_last)
    fixed = [np.conj(_spectrum(t, w, cap_first, width, bins)) for t, w in zip(capture.times, capture.weights, strict=True)]  # fmt: skip
    found: list[tuple[float, Shift]] = []
    for slope in _drifts(overlap, width, drift):
        total = np.zeros(bins // 2 + 1, dtype=np.complex128)
        for times, weights, other in zip(log.times, log.weights, fixed, strict=True):
            stretched = times + slope * (times - middle)
            total += np.conj(_spectrum(stretched, weights, log_first, width, bins) * other)
        score = np.fft.irfft(total, bins)
        for lag, value in _peaks(score, bins, width, cap_first - log_first, within):
            found.append((value, Shift(lag, slope, middle)))
    found.sort(key=lambda pair: -pair[0])
    return _distinct([shift for _, shift in found], width)[:PEAKS]


def _drifts(overlap_ns: float, width: float, drift: bool) -> list[float]:
    """Slopes so near each other that none smears an overlap by more than about three bins."""
    if not drift or overlap_ns <= 0:
        return [0.0]
    step = 6 * width / overlap_ns
    count = min(int(LARGEST_DRIFT / step), 12)
    return [step * k for k in range(-count, count + 1)]


def _spectrum(times: Floats, weights: Floats, zero: float, width: float, bins: int) -> np.ndarray[tuple[int], np.dtype[np.complex128]]:  # fmt: skip
    """The Fourier transform of a pulse train with every pulse spread over three bins, of unit energy."""
    if not len(times):
        return np.zeros(bins // 2 + 1, dtype=np.complex128)
    place = np.clip(((times - zero) / width).astype(np.int64), 0, bins - 1)
    train = np.bincount(place, weights=weights, minlength=bins).astype(np.float64)
    used = int(place.max()) + 1
    train[:used] -= train[:used].mean()
    train = train + 0.6 * (np.roll(train, 1) + np.roll(train, -1))
    norm = float(np.sqrt((train**2).sum()))
    return np.asarray(np.fft.rfft(train / norm if norm > 0 else train), dtype=np.complex128)


def _peaks(
    score: Floats, bins: int, width: float, base: float, within: tuple[float, float] | None
) -> list[tuple[float, float]]:
    lags = np.arange(bins)
    offset = np.where(lags < bins // 2, lags, lags - bins) * width + base
    local = (score >= np.roll(score, 1)) & (score >= np.roll(score, -1)) & (score > 0)
    if within is not None:
        local &= (offset >= within[0]) & (offset <= within[1])
    at = np.flatnonzero(local)
    best = at[np.argsort(-score[at], kind="stable")[:PEAKS]]
    return [(float(offset[k]), float(score[k])) for k in best.tolist()]


def _distinct(shifts: list[Shift], width: float) -> list[Shift]:
    kept: list[Shift] = []
    for shift in shifts:
        if all(abs(shift.offset_ns - k.offset_ns) > 1.5 * width or shift.slope != k.slope for k in kept):
            kept.append(shift)
    return kept


def _of_log(messages: Messages) -> _Signals:
    first = messages.at_ns[messages.is_first]
    gap = np.zeros(len(messages.at_ns))
    gap[1:] = np.where(messages.row[1:] == messages.row[:-1], np.diff(messages.at_ns), 0.0)
    usual = float(np.median(gap[gap > 0])) if (gap > 0).any() else 1.0
    times, weights = _long(messages.at_ns, gap, usual)
    return _Signals((first, times, messages.at_ns), (np.ones(len(first)), weights, np.ones(len(messages.at_ns))))


def _of_capture(steps: CaptureSteps) -> _Signals:
    prefill = steps.end_ns[steps.prefill_rows].astype(np.float64)
    ends = steps.decode_end
    gap = np.diff(ends, prepend=ends[0]) if len(ends) else ends
    times, weights = _long(ends, gap, steps.typical_gap_ns)
    requests = steps.counts["decode_requests"][steps.decode_rows]
    known = np.nan_to_num(requests, nan=1.0)
    return _Signals((prefill, times, ends), (np.ones(len(prefill)), weights * known[_rows_of_long(gap, steps.typical_gap_ns)], known))  # fmt: skip


def _rows_of_long(gap: Floats, usual: float) -> Flags:
    return gap > 1.6 * usual


def _long(times: Floats, gap: Floats, usual: float) -> tuple[Floats, Floats]:
    chosen = _rows_of_long(gap, usual)
    return times[chosen], np.minimum(gap[chosen] / usual, 20.0)


def sample(messages: Messages, most: int) -> Messages:
    """All messages of so many requests, evenly spread over the log, that about ``most`` messages remain."""
    if len(messages.row) <= most:
        return messages
    rows: Ints = np.unique(messages.row)
    every = int(np.ceil(len(messages.row) / most))
    return messages.only(np.isin(messages.row, rows[::every]))
