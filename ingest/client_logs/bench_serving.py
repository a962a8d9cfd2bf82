"""``vllm bench serve`` and its relatives: SGLang's ``bench_serving``, TensorRT-LLM's ``benchmark_serving``.

One flat JSON object per run (``--append-result`` and SGLang write several into a file; the last is taken), arrays in
issue order: ``ttfts`` and ``itls`` in seconds, gaps between HTTP messages, the first token in neither gap list. vLLM has
``start_times`` (perf_counter) since January 2026, the others none. Failed requests stay in the arrays with ttft 0 and an
error. SGLang's native client writes a gap that brought n tokens as n equal values: runs of bit-equal values are merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from .clocks import clock_of_seconds
from .content import MOST_TOKENS, Object, number
from .records import ClientLog, first_rows, messages_frame, nanoseconds, requests_frame

SUMMARY_KEYS = {"mean_ttft_ms", "p99_ttft_ms", "mean_itl_ms", "p99_itl_ms", "median_itl_ms", "request_throughput"}
LACKING = {
    "vllm": "The file holds aggregates only; `vllm bench serve --save-result --save-detailed` writes the times.",
    "sglang": "The file holds aggregates only; `python -m sglang.bench_serving --output-file F --output-details` writes the times.",
    "trtllm-client": "The file holds aggregates only; TensorRT-LLM's benchmark_serving writes the times with `--save-result --save-detailed`.",
}  # fmt: skip
LONGEST_GAP_S = 1e6
STARTS = ("start_times", "send_times", "arrival_times")
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def read(objects: Sequence[Object], file_name: str) -> ClientLog | None:
    """The last run of the file; None where no object looks like a run."""
    runs = [o for o in objects if ("ttfts" in o and "itls" in o) or SUMMARY_KEYS & o.keys()]
    if not runs:
        return None
    run = runs[-1]
    source = _source(run)
    notes = (f"The file holds {len(runs)} runs; the last is taken.",) if len(runs) > 1 else ()
    if not isinstance(run.get("itls"), list) or not isinstance(run.get("ttfts"), list):
        empty = requests_frame({"request": []})
        none = messages_frame(np.zeros(0, dtype=np.int64), None)
        return ClientLog(source, file_name, "none", empty, none, lacking=LACKING[source], notes=notes)
    return _with_arrays(run, source, file_name, notes)


def _source(run: Object) -> str:
    if "e2els" in run or "avg_decoded_tokens_per_iter" in run:
        return "trtllm-client"
    if "server_info" in run or "dataset_name" in run or str(run.get("backend", "")).startswith("sglang"):
        return "sglang"
    return "vllm"


@dataclass(frozen=True)
class _Gaps:
    """Gaps of all requests one behind the other, s."""

    values: Floats
    counts: Ints
    tokens: Ints | None  # per gap, where known

    def merged(self) -> _Gaps:
        """Runs of bit-equal positive gaps of one request as one gap: the native client of SGLang spread it."""
        if not len(self.values):
            return self
        request = np.repeat(np.arange(len(self.counts)), self.counts)
        new = np.ones(len(self.values), dtype=bool)
        new[1:] = (self.values[1:] != self.values[:-1]) | (request[1:] != request[:-1])
        begin = np.flatnonzero(new)
        size = np.diff(begin, append=len(self.values))
        counts = np.bincount(request[begin], minlength=len(self.counts))
        return _Gaps(self.values[begin] * size, counts, size)


def _with_arrays(run: Object, source: str, file_name: str, notes: tuple[str, ...]) -> ClientLog:
    ttft = _floats(run["ttfts"])
    count = len(ttft)
    lists = [row if isinstance(row, list) else [] for row in run["itls"][:count]]
    lists += [[]] * (count - len(lists))
    output = _floats(run.get("output_lens"), count)
    listed = run.get("errors")
    errors: list[Any] = listed if isinstance(listed, list) else []
    failed = np.array([bool(errors[i]) if i < len(errors) else False for i in range(count)])
    # A time of 0 is not a fast first token: SGLang counts an empty stream as a success with ttft 0.
    silent = ~((ttft > 0) & (ttft < LONGEST_GAP_S))
    gaps, shifted = _gaps(lists, ttft, output, failed | silent)
    recorded = gaps.values * 1e9
    if source == "sglang" and str(run.get("backend", "sglang")) in ("sglang", "sglang-native"):
        gaps = gaps.merged()
    if shifted:
        notes = (*notes, "An old client put the time to first token into the gap list; it was taken out.")
    starts, clock = _starts(run, count)
    after, tokens, counts = _messages(ttft, gaps, output, failed | silent)
    frame = requests_frame({
        "sent_ns": [None] * count if starts is None else [None if np.isnan(s) else round(s * 1e9) for s in starts.tolist()],
        "prompt_tokens": _nullable(_floats(run.get("input_lens"), count)), "output_tokens": _nullable(output),
        "cached_tokens": _nullable(_floats(run.get("cached_tokens"), count)),
        "client_queue_ns": [None if np.isnan(q) else round(q * 1e9) for q in _floats(run.get("queue_times"), count)],
        "failed": failed, "first_message": first_rows(counts), "message_count": counts,
    })  # fmt: skip
    return ClientLog(source, file_name, clock, frame, messages_frame(after, tokens), itl_as_recorded_ns=recorded, notes=notes)  # fmt: skip


def _gaps(lists: list[list[Any]], ttft: Floats, output: Floats, out: npt.NDArray[np.bool_]) -> tuple[_Gaps, bool]:
    lists = [[] if o else row for row, o in zip(lists, out.tolist(), strict=True)]
    # vLLM before August 2024: the first value is the time to first token
    shifted = [
        bool(row) and number(row[0]) == t and len(row) == n for row, t, n in zip(lists, ttft, output, strict=True)
    ]
    filled = sum(bool(row) for row in lists)
    old = filled > 0 and sum(shifted) == filled
    if old:
        lists = [row[1:] for row in lists]
    counts = np.array([len(row) for row in lists], dtype=np.int64)
    try:
        values = np.fromiter(chain.from_iterable(lists), dtype=np.float64, count=int(counts.sum()))
    except (TypeError, ValueError):  # null among the gaps
        values = np.array([number(v) or 0.0 for row in lists for v in row], dtype=np.float64)
    known = np.where(np.isfinite(values), values, 0.0)
    return _Gaps(np.clip(known, 0.0, LONGEST_GAP_S), counts, None), old


def _starts(run: Object, count: int) -> tuple[Floats | None, str]:
    for name in STARTS:
        values = _floats(run.get(name), count)
        if not np.isnan(values).all():
            clock = "unknown" if name == "arrival_times" else clock_of_seconds(float(np.nanmin(values)))
            return values, clock
    return None, "none"


def _messages(ttft: Floats, gaps: _Gaps, output: Floats, silent: npt.NDArray[np.bool_]) -> tuple[Ints, Ints, Ints]:
    """Time after sending and tokens (0 = unknown) of each message, and messages per request."""
    counts = np.where(silent, 0, gaps.counts + 1)
    first = first_rows(counts)
    request = np.repeat(np.arange(len(counts)), counts)
    steps = np.zeros(int(counts.sum()))
    is_first = np.zeros(len(steps), dtype=bool)
    is_first[first[counts > 0]] = True
    steps[is_first] = ttft[counts > 0]
    steps[~is_first] = gaps.values
    total = np.cumsum(steps)
    begin = np.minimum(first, max(len(steps) - 1, 0))  # a last request without messages points behind them
    after = total - (total[begin] - steps[begin])[request] if len(steps) else total
    tokens = np.zeros(len(steps), dtype=np.int64)
    if gaps.tokens is not None:
        tokens[~is_first] = gaps.tokens
        tokens[is_first] = 1
    one_each = (counts == output)[request] if len(counts) else np.zeros(0, dtype=bool)
    tokens[one_each] = 1
    return nanoseconds(after), tokens, counts


def _floats(values: Any, count: int | None = None) -> Floats:
    """A JSON list as floats, NaN where it has none; cut or filled to ``count``."""
    listed = values if isinstance(values, list) else []
    found = np.array([np.nan if (v := number(value, MOST_TOKENS)) is None else v for value in listed], dtype=np.float64)
    if count is None or len(found) == count:
        return found
    return np.concatenate((found[:count], np.full(max(0, count - len(found)), np.nan)))


def _nullable(values: Floats) -> list[int | None]:
    return [None if np.isnan(v) else int(v) for v in values.tolist()]
