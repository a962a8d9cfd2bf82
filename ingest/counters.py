"""Counters that were logged beside the profiler, brought onto the capture's clock.

``nvidia-smi dmon`` (``-o DT``: date and time columns on; also its CSV format, and ``nvidia-smi --query-gpu=timestamp,...
--format=csv``), ``dcgmi dmon`` with a time before each line, and Prometheus text of the DCGM exporter with times. All
are described in NVIDIA's nvidia-smi and DCGM guides; what they call each counter is in ``counters.toml``.

Logs hold local time without its zone, the capture holds UTC. The zone is the one that lets the log overlap the capture:
UTC is tried first, then this machine's zone, then every other one, and the choice is said in a note. GPUs are matched
by number: nvidia-smi's index is taken for the CUDA ordinal, except where log and capture have one GPU each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl

from ..analysis.facts.load import load_table
from ..analysis.records.errors import NotACaptureError, UsageError
from ..analysis.records.trace import COUNTERS, Trace
from .ncu.csv_tables import decode

HOW_DMON = "nvidia-smi dmon -o DT -s pucm -d 1 > dmon.log"
HOW_DCGM = (
    "dcgmi dmon -e 1002,1004,1005,203,100,155 -d 1000 | while IFS= read -r line; do "
    'printf \'%s %s\\n\' "$(date -u +%FT%T.%3NZ)" "$line"; done > dcgm.log'
)
_SECOND, _QUARTER = 1_000_000_000, 900 * 1_000_000_000
_ZONES = range(-12 * 4, 14 * 4 + 1)  # quarters of an hour from UTC
_TIME = re.compile(
    r"^\[?(?P<date>\d{4}[-/]?\d{2}[-/]?\d{2})[ T,;]+(?P<time>\d{2}:\d{2}:\d{2}(?:[.,]\d+)?)(?P<zone>Z|[+-]\d{2}:?\d{2})?\]?[,;]?\s*"
)
_CLOCK = re.compile(r"^(?P<time>\d{2}:\d{2}:\d{2}(?:[.,]\d+)?)[,;]?\s+")
_ENTITY = re.compile(r"^(?:GPU[ -]?)?(?P<gpu>\d+)[,;\s]+(?P<values>.*)$", re.IGNORECASE)
_PROMETHEUS = re.compile(
    r'^(?P<name>\w+)\{[^}]*?gpu="(?P<gpu>\d+)"[^}]*\}\s+(?P<value>\S+)(?:\s+(?P<stamp>\d{10,}(?:\.\d+)?))?\s*$'
)
_STAMP = re.compile(r"^#\s*(?:time\w*[:= ]\s*)?(?P<stamp>\d{10,}(?:\.\d+)?)\s*$", re.IGNORECASE)


@dataclass(frozen=True)
class Sample:
    """One line of a log: when (ns; since 1970, or of a day where the log has no date), which GPU, and its counters."""

    time_ns: int
    zoned: bool  # whether the time is UTC for certain
    dated: bool
    gpu: int
    values: Mapping[str, float]


def with_counters(trace: Trace, *, dmon: Path | None = None, dcgm: Path | None = None) -> Trace:
    """``trace`` with the counters of the logs, and a note for each assumption that aligned them.

    Raises UsageError when the capture does not say when it began or no sample falls into it, NotACaptureError for a
    file that is no such log.
    """
    frames, notes = [], list(trace.capture.notes)
    for source, path in (("dmon", dmon), ("dcgm", dcgm)):
        if path is not None:
            frame, said = _aligned(trace, path, source)
            frames.append(frame)
            notes += said
    if not frames:
        return trace
    counters = pl.concat(frames).sort(list(COUNTERS)[:3])
    return replace(trace, counters=counters, capture=replace(trace.capture, notes=tuple(notes)))


def read_counters(trace: Trace, *, dmon: Path | None = None, dcgm: Path | None = None) -> pl.DataFrame:
    """The COUNTERS frame of ``with_counters``."""
    return with_counters(trace, dmon=dmon, dcgm=dcgm).counters


def _aligned(trace: Trace, path: Path, source: str) -> tuple[pl.DataFrame, list[str]]:
    flag = f"--{source}"
    begin, length = trace.capture.session_start_utc_ns, trace.capture.duration_ns
    if begin is None:
        raise UsageError(
            f"{flag}: {trace.capture.source_name} does not say at what time of day it began, so {path.name} cannot be "
            "laid over it. Exports that hold the session start: nsys export --type sqlite of the whole report."
        )
    if length is None:
        length = int(trace.kernels["end_ns"].max() or 0)  # type: ignore[arg-type]
    try:
        samples = list(_samples(decode(path.read_bytes()), path.name, source))
    except OSError as error:
        raise NotACaptureError(f"{flag}: cannot read {path}: {error.strerror or error}.") from error
    if not samples:
        raise NotACaptureError(f"{flag}: {path.name} holds no counter with a time. Log it with: {_how(source)}")
    times, zone = _on_the_clock(samples, begin, length, path, flag)
    period = _period(times)
    kept = [(time, sample) for time, sample in zip(times, samples, strict=True) if 0 <= time <= length + period]
    index_of, said = _devices(trace, samples, path)
    shares = _scales([sample.values for sample in samples])
    rows = [
        {"time_ns": time, "device_index": index_of[sample.gpu], "source": source}
        | {column: value * shares[column] for column, value in sample.values.items()}
        for time, sample in kept
        if sample.gpu in index_of
    ]
    frame = pl.DataFrame(rows, schema=dict(COUNTERS))
    return frame, [f"{path.name}: {frame.height:,} samples lie in the capture; its times were taken as {zone}.", *said]


def _how(source: str) -> str:
    return HOW_DMON if source == "dmon" else HOW_DCGM


# ---------------------------------------------------------------------------------------------------- reading


def _samples(text: str, name: str, source: str) -> Iterator[Sample]:
    if _PROMETHEUS.search(next((line for line in text.splitlines() if line.startswith("DCGM_")), "")):
        yield from _prometheus(text, name)
    else:
        yield from _table(text, name, source)


def _table(text: str, name: str, source: str) -> Iterator[Sample]:
    """Lines of columns under header lines; separators are commas or blanks."""
    header: list[str] | None = None
    timeless = False
    for line in text.splitlines():
        stamp = _TIME.match(line.strip())
        rest = line.strip()[stamp.end() :] if stamp else line.strip()
        found = _header(rest)
        if found is not None:
            header = found
            continue
        if header is None or not rest or rest.startswith("#"):
            continue
        clock = None if stamp else _CLOCK.match(rest)
        entity = _ENTITY.match(rest[clock.end() :] if clock else rest)
        values = _values(header, _cells(entity["values"])) if entity else {}
        when = stamp or clock
        if when is None:
            timeless = timeless or entity is not None
        elif entity is not None and values:
            time, zoned = _time_ns(stamp["date"] if stamp else None, when["time"], stamp["zone"] if stamp else None)
            yield Sample(time, zoned, stamp is not None, int(entity["gpu"]), values)
    if timeless:
        raise NotACaptureError(f"--{source}: {name} has lines without a time. Log it with: {_how(source)}")


def _header(line: str) -> list[str] | None:
    """Names of the columns behind the GPU's number, None when the line is no header with a known counter."""
    cells = [cell.strip().lower() for cell in _cells(line.lstrip("#").strip(), keep_blanks="," in line)]
    while cells and cells[0] in ("date", "time", "timestamp"):
        cells = cells[1:]
    if not cells or cells[0] not in ("gpu", "entity", "index", "id"):
        return None
    return cells[1:] if any(cell in _columns() for cell in cells[1:]) else None


def _cells(text: str, *, keep_blanks: bool = False) -> list[str]:
    if keep_blanks or "," in text:
        return [cell.strip() for cell in text.split(",")]
    return text.split()


def _values(header: Sequence[str], cells: Sequence[str]) -> dict[str, float]:
    values = {}
    for name, cell in zip(header, cells, strict=False):
        column, number = _columns().get(name), _number(cell)
        if column is not None and number is not None:
            values[column] = number
    return values


def _number(cell: str) -> float | None:
    parts = cell.split()
    try:
        return float(parts[0]) if parts else None  # "87 %" is 87; "-" and "N/A" are nothing
    except ValueError:
        return None


def _prometheus(text: str, name: str) -> Iterator[Sample]:
    """Samples of metrics with a time of their own (ms), or after a comment line with the time of the scrape (s)."""
    scrape: int | None = None
    found: dict[tuple[int, int], dict[str, float]] = {}
    for line in text.splitlines():
        comment = _STAMP.match(line)
        if comment:
            scrape = _epoch_ns(comment["stamp"])
            continue
        match = _PROMETHEUS.match(line)
        column = _columns().get(match["name"].lower()) if match else None
        number = _number(match["value"]) if match else None
        if match is None or column is None or number is None:
            continue
        time = _epoch_ns(match["stamp"]) if match["stamp"] else scrape
        if time is None:
            raise NotACaptureError(
                f"--dcgm: {name} is Prometheus text without times. Put the time before each scrape: "
                "while :; do date +'# %s.%N'; curl -s localhost:9400/metrics; sleep 1; done > dcgm.prom"
            )
        found.setdefault((time, int(match["gpu"])), {})[column] = number
    for (time, gpu), values in found.items():
        yield Sample(time, True, True, gpu, values)


def _epoch_ns(text: str) -> int:
    """Seconds or milliseconds since 1970 as ns (13 digits before the point are milliseconds)."""
    whole, _, fraction = text.partition(".")
    factor = 1_000_000 if len(whole) >= 13 else _SECOND
    return int(whole) * factor + int(float(f"0.{fraction or 0}") * factor)


def _time_ns(date: str | None, time: str, zone: str | None) -> tuple[int, bool]:
    clock, _, fraction = time.replace(",", ".").partition(".")
    day = re.sub(r"\D", "", date) if date else "19700101"
    moment = datetime.strptime(f"{day} {clock}", "%Y%m%d %H:%M:%S").replace(tzinfo=UTC)
    ns = int(moment.timestamp()) * _SECOND + int(fraction.ljust(9, "0")[:9] or 0)
    if zone and zone != "Z":
        digits = zone.replace(":", "")
        offset = (int(digits[1:3]) * 60 + int(digits[3:5])) * 60 * _SECOND
        ns -= offset if digits[0] == "+" else -offset
    return ns, zone is not None


# ---------------------------------------------------------------------------------------------------- aligning


def _on_the_clock(samples: Sequence[Sample], begin: int, length: int, path: Path, flag: str) -> tuple[list[int], str]:
    """Times since the session start, and the zone they were taken in."""
    day = 86_400 * _SECOND
    dated = [sample.time_ns if sample.dated else sample.time_ns + begin // day * day for sample in samples]
    floating = not any(sample.dated for sample in samples)  # a clock without a date may be of the day before or after

    def times_in(quarters: int) -> list[int]:
        times = [time - quarters * _QUARTER - begin for time in dated]
        return [(time + day // 2) % day - day // 2 for time in times] if floating else times

    if all(sample.zoned for sample in samples):
        candidates = [(0, "UTC, as written")]
    else:
        here = _machine_zone(begin)
        others = sorted((q for q in _ZONES if q not in (0, here)), key=lambda q: (q % 4 != 0, abs(q - here)))
        machine = [(here, "this machine's zone")] if here else []
        candidates = [(0, "UTC"), *machine, *((q, _zone_name(q)) for q in others)]
    fitting = [(q, words) for q, words in candidates if _covers(times_in(q), length)]
    if fitting:
        quarters, words = fitting[0]
        if len(fitting) > 1 and not all(sample.zoned for sample in samples):
            words += f" (as {fitting[1][1]} it would overlap the capture too)" if fitting[1][1] != words else ""
        return times_in(quarters), words
    first, last = (datetime.fromtimestamp(time / 1e9, UTC).strftime("%F %T") for time in (min(dated), max(dated)))
    start = datetime.fromtimestamp(begin / 1e9, UTC).strftime("%F %T")
    raise UsageError(
        f"{flag}: no sample of {path.name} falls into the capture in any time zone. The log runs from {first} to {last}, "
        f"the capture begins at {start} UTC and lasts {length / 1e9:.1f} s."
    )


def _covers(times: Sequence[int], length: int) -> bool:
    return any(0 <= time <= length + _SECOND for time in times)


def _machine_zone(utc_ns: int) -> int:
    """This machine's distance from UTC at that time, in quarters of an hour."""
    offset = datetime.fromtimestamp(utc_ns / 1e9).astimezone().utcoffset()
    return 0 if offset is None else round(offset.total_seconds() / 900)


def _zone_name(quarters: int) -> str:
    return f"UTC{'+' if quarters >= 0 else '-'}{abs(quarters) // 4:02d}:{abs(quarters) % 4 * 15:02d}, the nearest zone in which log and capture overlap"


def _period(times: Sequence[int]) -> int:
    distinct = sorted(set(times))
    steps = sorted(later - earlier for earlier, later in pairwise(distinct))
    return steps[len(steps) // 2] if steps else _SECOND


def _devices(trace: Trace, samples: Sequence[Sample], path: Path) -> tuple[dict[int, int], list[str]]:
    """The log's GPU number -> device_index."""
    known = dict(zip(trace.devices["device"].to_list(), trace.devices["device_index"].to_list(), strict=True))
    logged = {sample.gpu for sample in samples}
    if len(known) == 1 and len(logged) == 1:
        return {logged.pop(): next(iter(known.values()))}, []
    shared = {gpu: known[gpu] for gpu in sorted(logged) if gpu in known}
    return shared, [f"{path.name}: GPU numbers of the log were taken for the CUDA ordinals of the capture."]


def _scales(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Factor of each column; a share that never exceeds 1 in the whole log is 0..1, else it is percent."""
    scales = {}
    for column, about in _data().items():
        values = [row[column] for row in rows if column in row]
        scale = about["scale"]
        scales[column] = (100.0 if max(values, default=0.0) <= 1.0 else 1.0) if scale == "share" else float(scale)
    return scales


@cache
def _data() -> dict[str, dict[str, Any]]:
    return load_table("counters")


@cache
def _columns() -> dict[str, str]:
    return {name: column for column, about in _data().items() for name in about["names"]}
