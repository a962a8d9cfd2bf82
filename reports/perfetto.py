"""Chrome trace JSON for Perfetto: kernels, copies, steps by phase and stalls as tracks.

Times are numbers in microseconds relative to the window's start (absolute nanoseconds as text lose precision in
viewers); arguments are objects. One process per device; stalls and steps get threads of their own.
"""

from __future__ import annotations

from collections.abc import Iterator

import orjson
import polars as pl

from ..analysis.records.analysis import Analysis
from ..analysis.records.errors import CannotAnswerError
from ..analysis.records.version import __version__

Event = dict[str, object]

_STEPS_TID, _STALLS_TID, _COPIES_TID = 1, 2, 3
_FIRST_STREAM_TID = 10


def to_perfetto(analysis: Analysis) -> bytes:
    """The trace as UTF-8 JSON with ``traceEvents``; opens in Perfetto and chrome://tracing.

    Raises CannotAnswerError for sums by kernel name, which have no launches to draw.
    """
    if analysis.trace.holds_sums:
        raise CannotAnswerError(
            f"--format perfetto: {analysis.trace.capture.source_name} holds sums by kernel name: there are no launches and "
            "no times to draw. Leave perfetto out, or export the capture: nsys export --type sqlite -o run.sqlite run.nsys-rep"
        )
    origin = analysis.window.start_ns
    body = b",\n".join(orjson.dumps(event) for event in _events(analysis, origin))
    made_by = b'{"otherData":{"made_by":"trace-analyze %s"},' % __version__.encode()
    return made_by + b'"displayTimeUnit":"ms","traceEvents":[\n' + body + b"\n]}\n"


def _events(analysis: Analysis, origin: int) -> Iterator[Event]:
    for device in analysis.devices:
        pid = device.device_index + 1
        yield _meta("process_name", pid, 0, f"device {device.device} {device.gpu_name or ''}".strip())
        yield _meta("thread_name", pid, _STEPS_TID, "steps")
        yield _meta("thread_name", pid, _STALLS_TID, "stalls")
        yield _meta("thread_name", pid, _COPIES_TID, "copies")
    yield from _step_events(analysis, origin)
    yield from _stall_events(analysis, origin)
    yield from _kernel_events(analysis, origin)
    yield from _copy_events(analysis, origin)


def _meta(name: str, pid: int, tid: int, value: str) -> Event:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": {"name": value}}


def _span(name: str, pid: int, tid: int, start: int, end: int, origin: int, args: dict[str, object]) -> Event:
    return {
        "ph": "X",
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": round((start - origin) / 1e3, 3),
        "dur": round((end - start) / 1e3, 3),
        "args": args,
    }


def _step_events(analysis: Analysis, origin: int) -> Iterator[Event]:
    for row in analysis.steps.iter_rows(named=True):
        args = {k: row[k] for k in ("index", "evidence", "prefill_tokens", "decode_tokens", "decode_requests", "label")}
        yield _span(row["phase"], row["device_index"] + 1, _STEPS_TID, row["start_ns"], row["end_ns"], origin, args)


def _stall_events(analysis: Analysis, origin: int) -> Iterator[Event]:
    first = dict(analysis.steps.group_by("group").agg(pl.col("device_index").min()).iter_rows())
    for row in analysis.stalls.iter_rows(named=True):
        args = {k: row[k] for k in ("stall_ms", "kind", "requests_held", "prefill_tokens", "episode")}
        pid = int(first.get(row["group"], 0)) + 1
        yield _span("stall", pid, _STALLS_TID, row["start_ns"], row["end_ns"], origin, args)


def _kernel_events(analysis: Analysis, origin: int) -> Iterator[Event]:
    names = analysis.trace.names["short_name"].to_list()
    columns = ["start_ns", "end_ns", "device_index", "stream", "name_id", "phase", "op_class", "evidence", "step"]
    tids: dict[tuple[int, int], int] = {}
    for row in analysis.kernels.select(columns).iter_rows():
        start, end, device, stream, name_id, phase, op_class, evidence, step = row
        if (device, stream) not in tids:
            tids[device, stream] = _FIRST_STREAM_TID + len(tids)
            yield _meta("thread_name", device + 1, tids[device, stream], f"stream {stream}")
        args = {"phase": phase, "op_class": op_class, "evidence": evidence, "step": step}
        yield _span(names[name_id], device + 1, tids[device, stream], start, end, origin, args)


def _copy_events(analysis: Analysis, origin: int) -> Iterator[Event]:
    for row in analysis.trace.copies.iter_rows(named=True):
        args = {"bytes": row["bytes"], "stream": row["stream"]}
        yield _span(row["kind"], row["device_index"] + 1, _COPIES_TID, row["start_ns"], row["end_ns"], origin, args)
