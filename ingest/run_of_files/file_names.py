"""Which files are of one run: what their names, times, ranks and processes say.

Names make candidates (``run_files.toml``: the parts in which files of one run differ). Evidence decides: the files were
recorded at the same time, and no two can be of the same rank.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl

from ...analysis.facts.load import load_table

Places = frozenset[tuple[int, int]]  # (process, CUDA ordinal) of GPU work

SUFFIX = re.compile(
    r"(?:\.(?:pt|trace|json|gz|sqlite3?|db|nsys-rep|qdrep)|[._-](?:pqtdir|arwdir|parquetdir|arrowdir))+$"
)


@dataclass(frozen=True)
class Part:
    """A row of ``run_files.toml``."""

    what: str
    pattern: re.Pattern[str]
    proves: bool
    last: bool
    examples: tuple[str, ...]


@dataclass(frozen=True)
class RunName:
    """A file name taken apart: ``key`` has ``*`` for every part that varies, ``told`` the parts that prove a rank."""

    key: str
    told: tuple[str, ...]
    stem: str


@dataclass(frozen=True)
class Recording:
    """One file as a candidate for a run; times in ns on the wall clock, None = not known.

    ``places`` is asked only where names and ranks do not tell files apart; it gives None where that is not known.
    """

    path: Path
    kind: str  # files of one run are of one kind ('nsys', 'kineto')
    start_ns: int | None = None
    end_ns: int | None = None
    rank: int | None = None
    places: Callable[[], Places | None] = lambda: None


@cache
def _table() -> Mapping[str, Any]:
    return load_table("run_files")


def collective_names(names: pl.Series) -> pl.Series:
    """Which kernel names are those of collectives that end at one moment on all ranks."""
    table = _table()
    return names.str.contains(table["collectives"]) & ~names.str.contains(table["not_collectives"])


@cache
def parts() -> tuple[Part, ...]:
    """The rows of ``run_files.toml``, in order."""
    return tuple(
        Part(
            row["what"], re.compile(row["pattern"], re.IGNORECASE), row["proves"], row.get("last", False),
            tuple(row["examples"]),
        )
        for row in _table()["part"]
    )  # fmt: skip


def run_name(name: str) -> RunName | None:
    """What a file name says of its run; None where no part of it is one that varies."""
    stem = SUFFIX.sub("", name.lower())
    key, told, matched = stem, [], False
    for number, part in enumerate(parts()):
        if part.last and matched:
            break
        matched |= number > 0 and part.pattern.search(key) is not None  # the first row is the time of writing
        if part.proves:
            told += [match[0] for match in part.pattern.finditer(key)]
        key = part.pattern.sub("*", key)
    return None if key == stem else RunName(key, tuple(told), stem)


def candidates(recordings: Iterable[Recording]) -> list[list[Recording]]:
    """Sets of at least two recordings whose names differ only in parts that vary within a run, in order of names.

    Of one recording in two formats (``a.nsys-rep``, ``a.sqlite``) the one that is quickest to read is taken.
    """
    found: dict[tuple[str, str, str], dict[str, Recording]] = {}
    for recording in sorted(recordings, key=lambda r: (_needs_export(r.path), natural(r.path.name))):
        name = run_name(recording.path.name)
        if name is not None:
            group = found.setdefault((str(recording.path.parent), recording.kind, name.key), {})
            group.setdefault(name.stem, recording)
    groups = [sorted(group.values(), key=lambda r: natural(r.path.name)) for _, group in sorted(found.items())]
    return [group for group in groups if len(group) > 1]


def _needs_export(path: Path) -> bool:
    return path.suffix.lower() in {".nsys-rep", ".qdrep"}


def natural(name: str) -> list[tuple[int, str]]:
    """A key that sorts ``rank2`` before ``rank10``."""
    return [(int(text), "") if text.isdigit() else (-1, text) for text in re.findall(r"\d+|\D+", name)]


def at_one_time(recordings: Sequence[Recording]) -> list[list[Recording]]:
    """Split into sets that overlap in time, each in the order given; those without times belong to none."""
    timed = [r for r in recordings if r.start_ns is not None and r.end_ns is not None]
    sets: list[list[Recording]] = []
    until = 0
    for recording in sorted(timed, key=lambda r: (r.start_ns, r.end_ns, natural(r.path.name))):
        assert recording.start_ns is not None and recording.end_ns is not None
        if sets and recording.start_ns < until:
            sets[-1].append(recording)
            until = max(until, recording.end_ns)
        else:
            sets.append([recording])
            until = recording.end_ns
    place = {id(r): number for number, r in enumerate(recordings)}
    return [sorted(group, key=lambda r: place[id(r)]) for group in sets]


def why_not_apart(recordings: Sequence[Recording]) -> str | None:
    """Why two of the recordings may be of the same rank, in words; None where all are told apart."""
    same: dict[tuple[object, ...], list[Recording]] = {}
    for recording in recordings:
        name = run_name(recording.path.name)
        same.setdefault((name.told if name else (), recording.rank), []).append(recording)
    for group in same.values():
        if len(group) == 1:
            continue
        seen: dict[tuple[int, int], Recording] = {}
        for recording in group:
            places = recording.places()
            if places is None:
                return f"neither its name nor its content says which rank {recording.path.name} is of"
            for place in sorted(places):
                if place in seen:
                    return f"{seen[place].path.name} and {recording.path.name} record the same process on the same GPU"
            seen |= dict.fromkeys(places, recording)
    return None


def pattern_name(names: Sequence[str]) -> str:
    """One name for several: what all begin and end with, and ``*`` between; ``run_rank0``, ``run_rank1`` -> ``run_rank*``."""
    first, last = min(names), max(names)
    begin = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    head = first[:begin].rstrip("0123456789")
    stem = SUFFIX.sub("", names[0].lower())
    suffix = names[0][len(stem) :]
    return f"{head}*{suffix}" if all(n.endswith(suffix) for n in names) else f"{head}*"
