"""Events of a PyTorch-profiler trace as columns.

``Columns`` takes batches of decoded events and keeps only what the analysis needs, as small frames; texts and names are
kept once. An event's ``args`` stay raw until its category says which fields matter, because the same key means different
things in different categories (``grid`` is a list on a kernel and program text on a Triton op).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any

import msgspec
import numpy as np
import polars as pl

# Category spellings of today and of the profiler's first releases, in lower case.
CATEGORIES = {
    "kernel": "kernel",
    "gpu_memcpy": "copy",
    "memcpy": "copy",
    "gpu_memset": "copy",
    "memset": "copy",
    "cuda_runtime": "call",
    "cuda_driver": "call",
    "hip_runtime": "call",
    "runtime": "call",
    "user_annotation": "annotation",
    "gpu_user_annotation": "gpu_annotation",
    "cpu_op": "op",
    "operator": "op",
    "trace": "span",
}


Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class Event(msgspec.Struct, gc=False):
    """One entry of ``traceEvents``; ``ts`` and ``dur`` stay text, because a float cannot hold them to the nanosecond."""

    ph: Any = None
    cat: Any = None
    name: Any = ""
    pid: Any = None
    tid: Any = None
    ts: msgspec.Raw = msgspec.Raw(b"")
    dur: msgspec.Raw = msgspec.Raw(b"")
    args: msgspec.Raw = msgspec.Raw(b"{}")


class GpuArgs(msgspec.Struct, gc=False):
    """Fields of a kernel, a copy or a call."""

    device: Int64 | None = None
    context: Int64 | None = None
    stream: Int64 | None = None
    correlation: Int64 | None = None
    external: Int64 | None = msgspec.field(default=None, name="External id")
    registers: Int64 | None = msgspec.field(default=None, name="registers per thread")
    shared_memory: Int64 | None = msgspec.field(default=None, name="shared memory")
    grid: list[Int64] | None = None
    block: list[Int64] | None = None
    bytes: Int64 | None = None
    graph_id: Int64 | None = msgspec.field(default=None, name="graph id")
    graph_node_id: Int64 | None = msgspec.field(default=None, name="graph node id")


class OpArgs(msgspec.Struct, gc=False):
    """Fields of an operator."""

    external: Any = msgspec.field(default=None, name="External id")
    dims: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Input Dims")


_GPU_ARGS = msgspec.json.Decoder(list[GpuArgs])
_OP_ARG = msgspec.json.Decoder(OpArgs)
_OP_ARGS = msgspec.json.Decoder(list[OpArgs])
_GPU_FIELDS = {field.encode_name: field for field in msgspec.structs.fields(GpuArgs)}
_LATEST_NS = 1 << 62  # the year 2116; the sum of two such times still fits
_MOST_DIGITS = 19  # of a time in us: more are beyond _LATEST_NS
_INT32 = range(-(1 << 31), 1 << 31)


def nanoseconds(texts: Sequence[bytes]) -> pl.Series:
    """Microseconds written as decimal text, as exact int64 ns (null where it is no number).

    A digit behind the third decimal rounds. Quotes around the number are ignored.
    """
    text = pl.Series("text", texts, dtype=pl.Binary).cast(pl.String, strict=False)
    parts = pl.DataFrame({"text": text.str.strip_chars('" ')}).select(
        pl.col("text"), pl.col("text").str.split_exact(".", 1).alias("part")
    )
    whole = pl.col("part").struct.field("field_0")
    fraction = pl.col("part").struct.field("field_1").fill_null("")
    thousandths = fraction.str.pad_end(4, "0").str.slice(0, 4).cast(pl.Int64, strict=False)
    sign = pl.when(whole.str.starts_with("-")).then(-1).otherwise(1)
    number = whole.cast(pl.Int64, strict=False)
    number = pl.when(number.abs() < _LATEST_NS // 1000).then(number)
    exact = number * 1000 + sign * ((thousandths + 5) // 10)
    result = parts.select(exact.alias("ns"), "text")
    odd = result.get_column("ns").is_null() & (result.get_column("text").str.len_bytes() > 0)
    if odd.any():  # exponents, as some writers use for round numbers
        repaired = [_decimal_ns(value) for value in result.get_column("text").filter(odd)]
        rows = odd.arg_true()
        return result.get_column("ns").scatter(rows, repaired)
    return result.get_column("ns")


def _decimal_ns(text: str) -> int | None:
    try:
        number = Decimal(text)
        # by the exponent first: 1e900000 is a number of 900,000 digits, which take a minute to write out
        if not number.is_finite() or number.adjusted() > _MOST_DIGITS:
            return None
        ns = int((number * 1000).to_integral_value())
    except (InvalidOperation, OverflowError, ValueError):
        return None
    return ns if abs(ns) < _LATEST_NS else None


class Dictionary:
    """Values numbered in order of first appearance."""

    def __init__(self) -> None:
        self.codes: dict[Any, int] = {}

    def encode(self, values: Iterable[Any]) -> list[int]:
        """Numbers of ``values``."""
        codes = self.codes
        return [codes.setdefault(value, len(codes)) for value in values]

    def values(self) -> list[Any]:
        """The values in the order of their numbers."""
        return list(self.codes)


class Columns:
    """Frames by kind of event, filled batch by batch; times are absolute ns as the trace gives them."""

    def __init__(self) -> None:
        self.names = Dictionary()  # kernel names
        self.texts = Dictionary()  # calls, annotations
        self.ops = Dictionary()  # (operator, its Input Dims as raw JSON)
        self.threads = Dictionary()  # (rank, pid, tid)
        self.ranks = Dictionary()  # label that a merger of traces put before every pid; number 0 is no label
        self.ranks.encode([""])
        self._owners: dict[Any, tuple[int, Any]] = {}  # pid as written -> (rank, pid)
        self.process_names: dict[Any, str] = {}
        self.span: tuple[int, int] | None = None  # start and duration of the profiler's own span
        self._parts: dict[str, list[pl.DataFrame]] = {}
        self._adders: dict[str, Callable[[list[Event]], pl.DataFrame]] = {
            "kernel": self._kernels,
            "copy": self._copies,
            "call": self._calls,
            "annotation": self._annotations,
            "gpu_annotation": self._gpu_annotations,
            "op": self._ops,
        }
        self._category_of: dict[Any, str | None] = {}

    def add(self, events: list[Event]) -> None:
        """Take one batch."""
        buckets: dict[str, list[Event]] = {}
        category_of = self._category_of
        for event in events:
            category = event.cat
            try:
                kind = category_of[category]
            except KeyError:
                kind = category_of[category] = CATEGORIES.get(str(category).lower())
            except TypeError:  # a category that cannot be a key, such as a list
                continue
            if kind is None:
                if event.ph == "M":
                    self._metadata(event)
            elif event.ph == "X":
                buckets.setdefault(kind, []).append(event)
        for kind, members in buckets.items():
            if kind == "span":
                self._span(members)
            else:
                self._parts.setdefault(kind, []).append(self._adders[kind](members))

    def frame(self, kind: str) -> pl.DataFrame:
        """All events of ``kind``, in file order; an empty frame without columns when there are none."""
        parts = self._parts.get(kind)
        return pl.concat(parts) if parts else pl.DataFrame()

    def count(self, kind: str) -> int:
        """Number of events of ``kind``."""
        return sum(part.height for part in self._parts.get(kind, ()))

    def _times(self, events: list[Event]) -> dict[str, pl.Series]:
        return {
            "start_ns": nanoseconds([bytes(event.ts) for event in events]),
            "duration_ns": nanoseconds([bytes(event.dur) for event in events]),
        }

    def _owner(self, pid: Any) -> tuple[int, Any]:
        """Rank and process or device number of a pid such as 251, "251" or "[TP03] 251"."""
        key = pid if type(pid) is int else str(pid)
        owner = self._owners.get(key)
        if owner is None:
            match = _LABELLED.match(str(pid))
            label, number = (match["label"], match["number"]) if match else ("", pid)
            whole = integer(number)
            owner = (self.ranks.encode([label])[0], str(number) if whole is None else whole)
            self._owners[key] = owner
        return owner

    def _thread(self, events: list[Event]) -> pl.Series:
        owners = [self._owner(event.pid) for event in events]
        keys = (
            (*owner, event.tid if type(event.tid) in (int, str) else str(event.tid))
            for owner, event in zip(owners, events, strict=True)
        )
        return pl.Series(self.threads.encode(keys), dtype=pl.Int64)

    def _placement(self, events: list[Event], args: list[GpuArgs]) -> dict[str, pl.Series]:
        """Rank, device, context, stream and correlation; the event's pid and tid stand in for device and stream."""
        owners = [self._owner(event.pid) for event in events]
        device = [
            _device(owner[1] if arg.device is None else arg.device) for owner, arg in zip(owners, args, strict=True)
        ]
        stream = [
            integer(event.tid) if arg.stream is None else arg.stream for event, arg in zip(events, args, strict=True)
        ]
        return {
            "rank": pl.Series([owner[0] for owner in owners], dtype=pl.Int64),
            "device": pl.Series(device, dtype=pl.Int64),
            "context": pl.Series([arg.context for arg in args], dtype=pl.Int64),
            "stream": pl.Series(stream, dtype=pl.Int64),
            "correlation": pl.Series([arg.correlation for arg in args], dtype=pl.Int64),
        }

    def _kernels(self, events: list[Event]) -> pl.DataFrame:
        args = _gpu_args(events)
        shape = {**_axes("grid", [arg.grid for arg in args]), **_axes("block", [arg.block for arg in args])}
        return pl.DataFrame(
            {
                **self._times(events),
                **self._placement(events, args),
                "name_id": pl.Series(self.names.encode(_names(events)), dtype=pl.UInt32),
                **shape,
                "registers": pl.Series([arg.registers for arg in args], dtype=pl.Int64),
                "shared_memory_bytes": pl.Series([arg.shared_memory for arg in args], dtype=pl.Int64),
                "external": pl.Series([arg.external for arg in args], dtype=pl.Int64),
                "graph_id": pl.Series([arg.graph_id for arg in args], dtype=pl.Int64),
                "graph_node_id": pl.Series([arg.graph_node_id for arg in args], dtype=pl.Int64),
            }
        )

    def _copies(self, events: list[Event]) -> pl.DataFrame:
        args = _gpu_args(events)
        return pl.DataFrame(
            {
                **self._times(events),
                **self._placement(events, args),
                "text_id": pl.Series(self.texts.encode(_names(events)), dtype=pl.UInt32),
                "bytes": pl.Series([arg.bytes for arg in args], dtype=pl.Int64),
                "graph_node_id": pl.Series([arg.graph_node_id for arg in args], dtype=pl.Int64),
            }
        )

    def _calls(self, events: list[Event]) -> pl.DataFrame:
        args = _gpu_args(events)
        return pl.DataFrame(
            {
                **self._times(events),
                "thread": self._thread(events),
                "text_id": pl.Series(self.texts.encode(_names(events)), dtype=pl.UInt32),
                "correlation": pl.Series([arg.correlation for arg in args], dtype=pl.Int64),
            }
        )

    def _annotations(self, events: list[Event]) -> pl.DataFrame:
        return pl.DataFrame(
            {
                **self._times(events),
                "thread": self._thread(events),
                "text_id": pl.Series(self.texts.encode(_names(events)), dtype=pl.UInt32),
            }
        )

    def _gpu_annotations(self, events: list[Event]) -> pl.DataFrame:
        owners = [self._owner(event.pid) for event in events]
        return pl.DataFrame(
            {
                **self._times(events),
                "rank": pl.Series([owner[0] for owner in owners], dtype=pl.Int64),
                "device": pl.Series([_device(owner[1]) for owner in owners], dtype=pl.Int64),
                "stream": pl.Series([integer(event.tid) for event in events], dtype=pl.Int64),
                "text_id": pl.Series(self.texts.encode(_names(events)), dtype=pl.UInt32),
            }
        )

    def _ops(self, events: list[Event]) -> pl.DataFrame:
        args = _op_args(events)
        keys = ((name, bytes(arg.dims)) for name, arg in zip(_names(events), args, strict=True))
        return pl.DataFrame(
            {
                **self._times(events),
                "thread": self._thread(events),
                "op_id": pl.Series(self.ops.encode(keys), dtype=pl.UInt32),
                "external": pl.Series([integer(arg.external) for arg in args], dtype=pl.Int64),
            }
        )

    def _span(self, events: list[Event]) -> None:
        for event in events:
            times = nanoseconds([bytes(event.ts), bytes(event.dur)])
            if str(event.name).startswith("PyTorch Profiler") and not times.is_null().any():
                self.span = (int(times[0]), int(times[1]))

    def _metadata(self, event: Event) -> None:
        if event.name == "process_name":
            args = _loose(event.args)
            if isinstance(args, dict) and isinstance(args.get("name"), str):
                self.process_names[str(event.pid)] = args["name"]


def _gpu_args(events: list[Event]) -> list[GpuArgs]:
    """The args of ``events``; one event with an odd value costs that value, not the batch."""
    try:
        return _GPU_ARGS.decode(_joined(events))
    except msgspec.ValidationError:
        return [_tolerant(event.args) for event in events]


def _op_args(events: list[Event]) -> list[OpArgs]:
    try:
        return _OP_ARGS.decode(_joined(events))
    except msgspec.ValidationError:  # args that are no object
        return [_OP_ARG.decode(event.args) if bytes(event.args).startswith(b"{") else OpArgs() for event in events]


def _joined(events: list[Event]) -> bytes:
    return b"[" + b",".join([bytes(event.args) for event in events]) + b"]"


def _loose(raw: msgspec.Raw) -> Any:
    """The value of a JSON text; a number beyond what 64 bits hold becomes infinite, or null where it is whole."""
    try:
        return msgspec.json.decode(raw)
    except msgspec.ValidationError:
        return json.loads(bytes(raw), parse_int=lambda digits: int(digits) if len(digits) <= _MOST_DIGITS else None)


def _tolerant(raw: msgspec.Raw) -> GpuArgs:
    args = _loose(raw)
    if not isinstance(args, dict):
        return GpuArgs()
    values: dict[str, Any] = {}
    for key, field in _GPU_FIELDS.items():
        value = args.get(key)
        if field.name in ("grid", "block"):
            if isinstance(value, list) and all(integer(item) is not None for item in value):
                values[field.name] = [integer(item) for item in value]
        else:
            values[field.name] = integer(value)
    return GpuArgs(**values)


def _names(events: list[Event]) -> list[str]:
    names = [event.name for event in events]
    return names if all(type(name) is str for name in names) else [str(name) for name in names]


def _axes(what: str, triples: list[list[int] | None]) -> dict[str, pl.Series]:
    """Three columns x, y and z; null where an event has no such triple or a number beyond 32 bits."""
    try:
        whole = np.array(triples, dtype=np.int64)  # all there and of one length: the usual case
    except (TypeError, ValueError):
        whole = np.empty((0, 0), dtype=np.int64)
    if whole.ndim == 2 and whole.shape[1] == 3 and (np.abs(whole) <= _INT32[-1]).all():
        return {f"{what}_{axis}": pl.Series(whole[:, place].astype(np.int32)) for place, axis in enumerate("xyz")}
    return {
        f"{what}_{axis}": pl.Series([_item(triple, place) for triple in triples], dtype=pl.Int32)
        for place, axis in enumerate("xyz")
    }


def _item(values: list[int] | None, place: int) -> int | None:
    if values is None or len(values) <= place or values[place] not in _INT32:
        return None
    return values[place]


def _device(value: Any) -> int | None:
    """A device number; None where it is none, or beyond 32 bits."""
    number = integer(value)
    return number if number is not None and number in _INT32 else None  # None in a range walks all of it


_LABELLED = re.compile(r"^\[(?P<label>[^\]]+)\]\s*(?P<number>.*)$")  # sglang's merged traces: "[TP03] 251"
_WHOLE = re.compile(r"-?\d{1,18}")


def integer(value: Any) -> int | None:
    """``value`` as a 64-bit integer where it is one, also when written as a float or as text."""
    number: int | None = None
    if type(value) is int:
        number = value
    elif (isinstance(value, float) and value.is_integer()) or (isinstance(value, str) and _WHOLE.fullmatch(value)):
        number = int(value)
    return number if number is not None and -(1 << 63) <= number < 1 << 63 else None
