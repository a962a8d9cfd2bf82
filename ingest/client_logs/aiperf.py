"""NVIDIA AIPerf (``profile_export.jsonl``, ``profile_export_raw.jsonl``) and perf_analyzer (``profile_export.json``).

AIPerf's records: Unix ns of the start, ``time_to_first_token`` and the list ``inter_chunk_latency`` with units; raw ones:
perf_counter ns of the start and of every response. perf_analyzer: Unix ns of the request and its responses. Messages
of one network read share a time. ``inter_token_latency`` is an average per request and no gap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .content import Object, count, number, whole
from .records import ClientLog, first_rows, messages_frame, requests_frame

UNITS_NS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9, "sec": 1e9, "seconds": 1e9, "milliseconds": 1e6, "nanoseconds": 1.0, "microseconds": 1e3}  # fmt: skip
LONGEST_NS = 1e15
LACKING_LIST = (
    "The records hold no list of gaps between messages; `aiperf profile --streaming` writes `inter_chunk_latency`."
)
AGGREGATES = "The file holds aggregates only; AIPerf writes the times of each request into profile_export.jsonl."


def read(objects: Sequence[Object], file_name: str) -> ClientLog | None:
    """The log of AIPerf or perf_analyzer; None where the objects are neither's."""
    experiments = [e for o in objects for e in _list(o.get("experiments")) if isinstance(e, dict) and "requests" in e]
    if experiments:
        return _perf_analyzer(experiments, file_name)
    if any("start_perf_ns" in o and "responses" in o for o in objects):
        return _build([_raw(o) for o in objects if "start_perf_ns" in o], "aiperf-raw", "monotonic", file_name)
    records = [o for o in objects if isinstance(o.get("metadata"), dict) and "metrics" in o]
    if records:
        return _build([_record(o) for o in records], "aiperf", "wall", file_name)
    if any("input_config" in o and "inter_token_latency" in o for o in objects):
        none = messages_frame(np.zeros(0, dtype=np.int64), None)
        return ClientLog("aiperf", file_name, "none", requests_frame({"request": []}), none, lacking=AGGREGATES)
    return None


Row = dict[str, Any]


def _row(sent: int | None, after: npt.NDArray[np.int64], **more: Any) -> Row:
    return {"sent_ns": sent, "after": after, "failed": False, "warmup": False, "cancelled": False, "prompt_tokens": None, "output_tokens": None, **more}  # fmt: skip


def _record(line: Object) -> Row:
    about, metrics = line["metadata"], line.get("metrics")
    metrics = metrics if isinstance(metrics, dict) else {}
    first = _metric(metrics, "time_to_first_token")
    gaps = _metric(metrics, "inter_chunk_latency")
    after = np.zeros(0, dtype=np.int64)
    if first is not None and len(first):
        steps = np.concatenate((first[:1], gaps if gaps is not None else np.zeros(0)))
        after = np.rint(np.cumsum(steps)).astype(np.int64)
    return _row(
        whole(about.get("request_start_ns")), after, failed=line.get("error") is not None,
        warmup=about.get("benchmark_phase") == "warmup", cancelled=about.get("was_cancelled") is True,
        prompt_tokens=_count(metrics, "input_sequence_length"), output_tokens=_count(metrics, "output_sequence_length"),
        first_only=gaps is None,
    )  # fmt: skip


def _metric(metrics: Mapping[str, Any], name: str) -> npt.NDArray[np.float64] | None:
    """A latency (or a list of them) in ns by its own unit; None where it is absent or its unit is not known."""
    found = metrics.get(name)
    if not isinstance(found, dict):
        return None
    value, factor = found.get("value"), UNITS_NS.get(str(found.get("unit", "ms")))
    if factor is None:
        return None
    values = value if isinstance(value, list) else [value]
    numbers = [number(v) for v in values]
    found_ns = np.array([np.nan if v is None else v for v in numbers], dtype=np.float64) * factor
    return None if not (np.abs(found_ns) < LONGEST_NS).all() else found_ns


def _count(metrics: Mapping[str, Any], name: str) -> int | None:
    found = metrics.get(name)
    return count(found.get("value")) if isinstance(found, dict) else None


def _raw(line: Object) -> Row:
    sent = whole(line.get("start_perf_ns")) or 0
    after = _whole_numbers([r.get("perf_ns") for r in _list(line.get("responses")) if isinstance(r, dict)]) - sent
    about = line.get("metadata") if isinstance(line.get("metadata"), dict) else {}
    return _row(
        sent, after, failed=line.get("error") is not None,
        warmup=(about or {}).get("benchmark_phase") == "warmup", cancelled=(about or {}).get("was_cancelled") is True,
    )  # fmt: skip


def _perf_analyzer(experiments: Sequence[Object], file_name: str) -> ClientLog:
    chosen = experiments[-1]
    bounds = [b for b in map(whole, _list(chosen.get("window_boundaries"))) if b is not None]
    rows = []
    for request in _list(chosen["requests"]):
        sent = whole(request.get("timestamp")) if isinstance(request, dict) else None
        if sent is None:
            continue
        times = _whole_numbers(_list(request.get("response_timestamps")))
        outside = len(bounds) >= 2 and not bounds[0] <= sent <= bounds[-1]
        rows.append(_row(sent, times - sent, warmup=outside))
    note = (f"The file holds {len(experiments)} experiments; the last is taken.",) if len(experiments) > 1 else ()
    return _build(rows, "perf_analyzer", "wall", file_name, note)


def _whole_numbers(values: list[Any]) -> npt.NDArray[np.int64]:
    """The whole numbers of a list, others left out."""
    try:
        found = np.array(values)
    except (ValueError, OverflowError):  # lists among them
        found = np.zeros(0)
    if found.dtype == np.int64 and found.ndim == 1:
        return found
    return np.array([n for n in map(whole, values) if n is not None], dtype=np.int64)


def _build(rows: list[Row], source: str, clock: str, file_name: str, notes: tuple[str, ...] = ()) -> ClientLog:
    rows = sorted(rows, key=lambda r: r["sent_ns"] or 0)
    after = [np.zeros(0, dtype=np.int64) if r["failed"] else r["after"] for r in rows]
    counts = np.array([len(a) for a in after], dtype=np.int64)
    columns: dict[str, Any] = {name: [r[name] for r in rows] for name in ("sent_ns", "failed", "warmup", "cancelled", "prompt_tokens", "output_tokens")}  # fmt: skip
    columns |= {"first_message": first_rows(counts), "message_count": counts}
    one_each = np.array([n == r["output_tokens"] for n, r in zip(counts, rows, strict=True)], dtype=np.int64)
    joined = np.concatenate(after) if after else np.zeros(0, dtype=np.int64)
    tokens = np.repeat(one_each, counts)
    alone = bool(rows) and all(r.get("first_only", False) for r in rows if not r["failed"])
    gaps = np.concatenate([np.diff(a) for a in after]).astype(np.float64) if after else np.zeros(0)
    return ClientLog(
        source, file_name, clock, requests_frame(columns), messages_frame(joined, tokens), itl_as_recorded_ns=gaps,
        all_messages=not alone, lacking=LACKING_LIST if alone else "", notes=notes,
    )  # fmt: skip


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
