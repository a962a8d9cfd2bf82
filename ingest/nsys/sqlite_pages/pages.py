"""Integers and texts of a SQLite table read from its pages, whole columns at a time.

SQLite hands out one cell at a time; a million rows of twenty columns are twenty million calls, whoever makes them.
The file format is documented and frozen (sqlite.org/fileformat2.html), and a table is a chain of leaf pages of equal
layout: cell pointers, then cells of (payload length, row number, header of serial types, values). Here each of those is
one numpy operation for some ten thousand rows, in two threads.

What is not as expected is not guessed: a *row* that is odd (a text or a float in a column of integers, a value on an
overflow page, fewer columns than the table has) is asked of SQLite by its number; a *page* that is odd raises
``UnexpectedPage`` and the whole table is read through ``sqlite3``, which also tells damage.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
MISSING = int(np.iinfo(np.int64).min)  # NULL
LEAVES_AT_ONCE = 256  # 1 MiB of the usual 4 KiB pages: what a core's cache holds
INTERIOR, LEAF = 5, 13
HEADER_BYTES, INTERIOR_HEADER = 8, 12
NULL, REAL, ZERO, ONE, RESERVED, FIRST_TEXT = 0, 7, 8, 9, 10, 13
DEEPEST = 20
LONGEST = 1 << 32  # of a value that may be believed; a sum of as many as a row can have fits 64 bits
NOT_STORED = {NULL: MISSING, ZERO: 0, ONE: 1}  # serial types that are the value
PADDING = 4096  # a header's walk may run past the last cell before it is found odd

# Bytes of a value by its serial type; 10 and 11 are reserved, from 12 on blobs and texts.
SIZES = np.array([0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0] + [(kind - 12) // 2 for kind in range(12, 256)], dtype=np.int64)


_seek_lock = threading.Lock()


class UnexpectedPage(Exception):
    """A page is not what the format says, or not what this reader can take."""


@dataclass(frozen=True)
class Leaves:
    """The leaf pages of a table in the order of its rows, and the row number before which each one ends."""

    pages: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]  # the last row number a leaf may hold
    page_bytes: int
    usable: int  # bytes of a page without the reserved tail


@dataclass
class Part:
    """Columns of some consecutive leaves."""

    row_numbers: Array
    integers: dict[int, Array] = field(default_factory=dict)  # column place -> int8, int16 or int64; MISSING = NULL
    texts: dict[int, tuple[Array, list[bytes]]] = field(default_factory=dict)  # column place -> codes, texts
    odd: Array = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # rows to be asked of SQLite


def find_leaves(path: Path, root: int, first_row: int, last_row: int) -> Leaves:
    """Walk the tree below page ``root`` of the file at ``path``."""
    with path.open("rb") as file:
        head = file.read(100)
        page_bytes = int.from_bytes(head[16:18], "big")
        page_bytes = 65536 if page_bytes == 1 else page_bytes
        count = path.stat().st_size // page_bytes
        level = np.array([root], dtype=np.int64)
        ends = np.array([last_row], dtype=np.int64)
        for _ in range(DEEPEST):
            if level.min() < 1 or level.max() > count or level.size > count:
                raise UnexpectedPage("a page beyond the file")
            kinds = np.frombuffer(_pages(file.fileno(), level[:1], page_bytes), dtype=np.uint8)[:1]
            if kinds[0] == LEAF:
                if np.unique(level).size != level.size or (np.diff(ends, prepend=first_row - 1) <= 0).any():
                    raise UnexpectedPage("pages out of order")
                return Leaves(level, ends, page_bytes, page_bytes - head[20])
            level, ends = _children(file.fileno(), level, ends, page_bytes)
    raise UnexpectedPage("a tree too deep")


def _children(descriptor: int, level: Array, ends: Array, page_bytes: int) -> tuple[Array, Array]:
    """The pages below a level of interior pages, and the last row number of each."""
    pages = np.frombuffer(_pages(descriptor, level, page_bytes), dtype=np.uint8)
    base = np.arange(level.size, dtype=np.int64) * page_bytes
    if (pages[base] != INTERIOR).any():
        raise UnexpectedPage("no interior page")
    counts = _big_endian(pages, base + 3, 2)
    if (counts * 2 + INTERIOR_HEADER > page_bytes).any():
        raise UnexpectedPage("too many cells")
    owner = np.repeat(np.arange(level.size), counts)
    cells = base[owner] + _big_endian(pages, base[owner] + INTERIOR_HEADER + 2 * _places(counts), 2)
    if cells.size and int((cells - base[owner]).max()) > page_bytes - 5:
        raise UnexpectedPage("a cell beyond its page")
    keys, _ = _varints(pages, cells + 4)
    rightmost = np.cumsum(counts + 1) - 1
    children = np.empty(int(counts.sum()) + level.size, dtype=np.int64)
    last_rows = np.empty_like(children)
    inner = np.ones(children.size, dtype=bool)
    inner[rightmost] = False
    children[inner], last_rows[inner] = _big_endian(pages, cells, 4), keys
    children[rightmost], last_rows[rightmost] = _big_endian(pages, base + 8, 4), ends
    return children, last_rows


def _pages(descriptor: int, numbers: Array, page_bytes: int) -> bytearray:
    """Pages one behind the other, with some room behind the last; neighbours are read together."""
    room = bytearray(numbers.size * page_bytes + PADDING)
    view = memoryview(room)
    breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
    for begin, end in pairwise([0, *breaks.tolist(), numbers.size]):
        target = view[begin * page_bytes : end * page_bytes]
        if _read_into(target, descriptor, (int(numbers[begin]) - 1) * page_bytes) != len(target):
            raise UnexpectedPage("the file ends early")
    return room


def _read_into(target: memoryview, descriptor: int, offset: int) -> int:
    """Fill ``target`` from a place in a file, without moving any other reader's; how many bytes there were."""
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [target], offset)
    with _seek_lock:  # Windows has no reading at a place
        os.lseek(descriptor, offset, os.SEEK_SET)
        data = os.read(descriptor, len(target))
    target[: len(data)] = data
    return len(data)


def _places(counts: Array) -> Array:
    """0, 1, 2, ... anew for each count."""
    places: Array = np.arange(int(counts.sum()), dtype=np.int64) - np.repeat(np.cumsum(counts) - counts, counts)
    return places


def _big_endian(data: Array, at: Array, size: int) -> Array:
    value: Array = data[at].astype(np.int64)
    for step in range(1, size):
        value = (value << 8) | data[at + step]
    return value


def _varints(data: Array, at: Array) -> tuple[Array, Array]:
    """Variable-length integers of one to nine bytes: their values and lengths."""
    first = data[at]
    value = (first & 0x7F).astype(np.int64)
    length = np.ones(at.size, dtype=np.int64)
    longer = np.flatnonzero(first >= 0x80)
    for step in range(1, 9):
        if not longer.size:
            break
        byte = data[at[longer] + step]
        if step == 8:
            value[longer] = (value[longer] << 8) | byte
        else:
            value[longer] = (value[longer] << 7) | (byte & 0x7F)
        length[longer] += 1
        longer = longer[byte >= 0x80] if step < 8 else longer[:0]
    return value, length


def read_part(descriptor: int, leaves: Leaves, begin: int, end: int, wanted: Sequence[tuple[int, bool]]) -> Part:
    """The columns ``wanted``, as (place in the table, whether it is text), of the leaves from ``begin`` to ``end``."""
    page_bytes = leaves.page_bytes
    room = _pages(descriptor, leaves.pages[begin:end], page_bytes)
    data = np.frombuffer(room, dtype=np.uint8)
    base = np.arange(end - begin, dtype=np.int64) * page_bytes
    if (data[base] != LEAF).any():
        raise UnexpectedPage("no leaf page")
    counts = _big_endian(data, base + 3, 2)
    if (counts * 2 + HEADER_BYTES > leaves.usable).any():
        raise UnexpectedPage("too many cells")
    page_of = np.repeat(base, counts)
    pointers = _big_endian(data, page_of + HEADER_BYTES + 2 * _places(counts), 2)
    if pointers.size and (int(pointers.max()) >= leaves.usable - 2 or int(pointers.min()) < HEADER_BYTES):
        raise UnexpectedPage("a cell beyond its page")
    cells = page_of + pointers
    payload, length = _varints(data, cells)
    row_numbers, more = _varints(data, cells + length)
    head = cells + length + more
    _check_row_numbers(row_numbers, counts, leaves, begin, end)
    header, length = _varints(data, head)
    local_end = head + _local_bytes(payload, leaves.usable)
    if (local_end > page_of + leaves.usable).any() or (header < 1).any() or (payload < header).any():
        raise UnexpectedPage("a cell beyond its page")
    return _columns(room, data, Part(row_numbers), head + length, head + header, local_end, wanted)


def _check_row_numbers(rows: Array, counts: Array, leaves: Leaves, begin: int, end: int) -> None:
    """Row numbers ascend within a leaf and stay between its neighbours' (the tree's own order)."""
    if (np.diff(rows) <= 0).any():
        raise UnexpectedPage("rows out of order")
    filled = np.flatnonzero(counts)
    last = np.cumsum(counts)[filled] - 1
    if (rows[last] > leaves.ends[begin:end][filled]).any():
        raise UnexpectedPage("rows out of order")
    if begin and rows.size and rows[0] <= leaves.ends[begin - 1]:
        raise UnexpectedPage("rows out of order")


def _local_bytes(payload: Array, usable: int) -> Array:
    """Bytes of a payload that lie on the leaf itself; the rest is on overflow pages."""
    most = usable - 35
    if not payload.size or int(payload.max()) <= most:
        return payload
    least = (usable - 12) * 32 // 255 - 23
    kept = least + (payload - least) % (usable - 4)
    return np.where(payload <= most, payload, np.where(kept <= most, kept, least))


def _columns(
    room: bytearray,
    data: Array,
    part: Part,
    at: Array,
    body: Array,
    local_end: Array,
    wanted: Sequence[tuple[int, bool]],
) -> Part:
    """Walk the headers from column to column; ``at`` is where a column's type stands, ``body`` where its value does."""
    words = np.ndarray((len(room) - 8,), dtype=">i8", buffer=room, strides=(1,))  # eight bytes from any place on
    odd = np.zeros(at.size, dtype=bool)
    header_end, body = body, body.copy()
    as_text = dict(wanted)
    for place in range(max(as_text) + 1) if at.size else ():
        kinds = data[at]
        at = at + 1
        low, high = int(kinds.min()), int(kinds.max())
        # One type in all rows is the usual case, and cheaper.
        sizes: Any = int(SIZES[low]) if low == high else SIZES.take(kinds)
        if high >= 0x80:  # a long text: its type takes several bytes
            kinds, sizes, at = _long_kinds(data, kinds, at)
        if place in as_text:
            if as_text[place]:
                part.texts[place], strange = _texts(room, kinds, sizes, body)
            else:
                part.integers[place], strange = _integers(data, words, kinds, sizes, body)
            if strange is not None:
                odd |= strange
        body += sizes
    odd |= (at > header_end) | (body > local_end)  # fewer columns than the table has; values on overflow pages
    part.odd = np.flatnonzero(odd)
    return part


def _long_kinds(data: Array, kinds: Array, at: Array) -> tuple[Array, Array, Array]:
    """Serial types of which some take several bytes, their sizes, and the places behind them."""
    long = np.flatnonzero(kinds >= 0x80)
    values, lengths = _varints(data, at[long] - 1)
    sizes = SIZES.take(kinds)
    kinds, at = kinds.astype(np.int64), at.copy()
    kinds[long] = np.where(values < 0, RESERVED, values)  # of a row too short, whose values were read as types
    sizes[long] = np.clip(values - 12, 0, LONGEST) // 2
    at[long] += lengths - 1
    return kinds, sizes, at


def _integers(data: Array, words: Array, kinds: Array, sizes: Any, body: Array) -> tuple[Array, Array | None]:
    """The values of a column, and which rows hold no integer (None: all do)."""
    low, high = int(kinds.min()), int(kinds.max())
    if low == high and low in NOT_STORED:  # the same in every row
        return np.broadcast_to(np.int64(NOT_STORED[low]), kinds.size), None
    if int(body.max()) >= words.size:  # behind a text that goes on elsewhere; such rows are odd
        body = np.minimum(body, words.size - 1)
    values = _stored(data, words, sizes, body)
    if low == NULL:
        values = values.astype(np.int64)
        values[kinds == NULL] = MISSING
    if low != high and high >= ZERO:
        np.copyto(values, kinds - ZERO, where=(kinds == ZERO) | (kinds == ONE), casting="unsafe")
    return values, None if high < REAL else (kinds == REAL) | (kinds >= RESERVED)


def _stored(data: Array, words: Array, sizes: Any, body: Array) -> Array:
    """Signed values of ``sizes`` bytes (0 to 8), in the least type; most columns need a byte or two, the faster ways."""
    longest = int(np.max(sizes))
    if longest > 2:
        values: Array = words[body].astype(np.int64)
        values >>= np.minimum(64 - 8 * sizes, 63)
        return values
    values = data.view(np.int8).take(body)
    if longest < 2:
        return values
    values = values.astype(np.int16)
    values <<= 8
    values |= data.take(body + 1)
    if np.ndim(sizes):
        values >>= np.minimum(16 - 8 * sizes, 15).astype(np.int16)
    return values


def _texts(room: bytearray, kinds: Array, sizes: Any, body: Array) -> tuple[tuple[Array, list[bytes]], Array | None]:
    """A code for the text of each row (-1 for NULL) with the distinct texts, and which rows hold no text."""
    if not kinds.any():
        return (np.broadcast_to(np.int32(-1), kinds.size), []), None
    is_text = (kinds >= FIRST_TEXT) & (kinds % 2 == 1)
    rows = np.flatnonzero(is_text)
    begins = body[rows]
    ends = begins + (sizes[rows] if np.ndim(sizes) else sizes)
    raw = bytes(room)
    known: dict[bytes, int] = {}
    found = (
        known.setdefault(raw[begin:end], len(known)) for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
    )
    codes = np.full(kinds.size, -1, dtype=np.int32)
    codes[rows] = np.fromiter(found, dtype=np.int32, count=rows.size)
    return (codes, list(known)), ~is_text & (kinds != NULL)


def read_parts(path: Path, leaves: Leaves, wanted: Sequence[tuple[int, bool]], take: Any) -> None:
    """Read all leaves in two threads; ``take(place of the first leaf, part)`` is called by either thread."""
    begins = range(0, leaves.pages.size, LEAVES_AT_ONCE)
    with path.open("rb") as file, ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:

        def work(begin: int) -> None:
            end = min(begin + LEAVES_AT_ONCE, leaves.pages.size)
            take(begin, read_part(file.fileno(), leaves, begin, end, wanted))

        try:
            for _ in pool.map(work, begins):
                pass
        except IndexError as error:
            raise UnexpectedPage("a value beyond its page") from error
