"""The rows of a frame by a number they carry: split once, however many devices, processes or groups there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import polars as pl

MAX_KEYS_UNSORTED = 8  # above these the rows are sorted once; up to them, a pass for each key is cheaper


def split_by(frame: pl.DataFrame, column: str) -> Callable[[int], pl.DataFrame]:
    """For each number in ``column`` its rows in their order; none for a number that does not occur.

    What ``frame.filter(pl.col(column) == number)`` gives, but a thousand of them cost one sort, not a thousand passes.
    """
    keys = frame[column].to_numpy()
    if len(keys) == 0 or (keys == keys[0]).all():
        only = int(keys[0]) if len(keys) else None
        return lambda number: frame if number == only else frame.clear()
    if (keys[1:] < keys[:-1]).any():
        order = stable_order(keys)
        frame, keys = frame[order], keys[order]
    places = places_of(keys)

    def rows(number: int) -> pl.DataFrame:
        own = places.get(number)
        return frame.clear() if own is None else frame[own]

    return rows


def places_of(ascending: npt.NDArray[np.integer]) -> dict[int, slice]:
    """Where each number of an ascending column stands."""
    if not len(ascending):
        return {}
    starts = np.append(0, np.flatnonzero(ascending[1:] != ascending[:-1]) + 1)
    ends = np.append(starts[1:], len(ascending))
    keys = ascending[starts].tolist()
    return {key: slice(begin, end) for key, begin, end in zip(keys, starts.tolist(), ends.tolist(), strict=True)}


def stable_order(keys: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """The rows by rising key, equal keys in their order; in 16 bits where the keys fit, which NumPy sorts by radix."""
    low = int(keys.min(initial=0))
    narrow = int(keys.max(initial=0)) - low < 2**16
    return np.argsort((keys - low).astype(np.uint16) if narrow else keys, kind="stable")


def rows_by_key(key: npt.NDArray[np.integer], values: npt.NDArray[np.integer]) -> Iterator[npt.NDArray[np.int64]]:
    """For each of ``values`` the rows that carry it in ``key``: a pass for each of a few, one sort for many."""
    if len(values) <= MAX_KEYS_UNSORTED:
        for value in values:
            yield np.flatnonzero(key == value)
        return
    order = stable_order(key)
    ascending = key[order]
    begins = np.searchsorted(ascending, values, side="left")
    for begin, end in zip(begins, np.searchsorted(ascending, values, side="right"), strict=True):
        yield order[begin:end]


def rows_by_value(keys: npt.NDArray[np.integer]) -> list[tuple[int, slice | npt.NDArray[np.int64]]]:
    """Each number in ``keys``, rising, with its rows in their order; nothing is sorted where there is only one."""
    if not len(keys):
        return []
    if keys.min() == keys.max():
        return [(int(keys[0]), slice(None))]
    order = stable_order(keys)
    return [(number, order[own]) for number, own in places_of(keys[order]).items()]
