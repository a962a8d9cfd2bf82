"""The values of an Analysis as JSON and back, exactly: a tuple stays a tuple, NaN stays NaN, an int an int.

What JSON has is written as it is. Everything else is an object of one key that begins with ``$`` and says what it is; a
dictionary that JSON could not hold, or that has such a key itself, is a list of pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ..records.analysis import Finding

_MARK = "$"
_LARGEST = 1 << 63
_RECORDS: Mapping[str, type[Any]] = {"Finding": Finding}
_NUMPY_KINDS = "biufU"


class NotStorableError(TypeError):
    """A value of a kind that has no form here: a fault of ours, and the Analysis is not kept."""


def encode(value: Any) -> bytes:
    """The value as JSON. Raises NotStorableError."""
    try:
        return msgspec.json.encode(_packed(value))
    except UnicodeEncodeError as error:
        raise NotStorableError("text that is no Unicode") from error


def decode(content: bytes | str) -> Any:
    """The value that ``encode`` was given. Raises ValueError where it cannot have written this."""
    try:
        return _unpacked(msgspec.json.decode(content))
    except (TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"not a stored value: {error}") from error


def _packed(value: Any) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        form = _PLAIN[kind](value)
    elif isinstance(value, Mapping):
        form = _packed_mapping(value)
    else:
        form = _packed_object(value)
    return form


def _packed_mapping(value: Mapping[Any, Any]) -> Any:
    if all(type(key) is str and not key.startswith(_MARK) for key in value):
        return {key: _packed(each) for key, each in value.items()}
    return {"$dict": [[_packed(key), _packed(each)] for key, each in value.items()]}


def _packed_object(value: Any) -> Any:
    if isinstance(value, np.generic) and value.dtype.kind in _NUMPY_KINDS:
        return {"$numpy": [value.dtype.str, _packed(value.item())]}
    if isinstance(value, np.ndarray) and value.dtype.kind in _NUMPY_KINDS:
        return {"$array": [value.dtype.str, list(value.shape), _packed(value.ravel().tolist())]}
    if isinstance(value, Path):
        return {"$path": str(value)}
    for name, kind in _RECORDS.items():
        if type(value) is kind:
            return {"$record": [name, {f.name: _packed(getattr(value, f.name)) for f in fields(kind)}]}
    raise NotStorableError(f"no stored form of {type(value)}")


def _same(value: Any) -> Any:
    return value


_PLAIN: Mapping[type, Callable[[Any], Any]] = {
    type(None): _same,
    bool: _same,
    str: _same,
    int: lambda value: value if -_LARGEST <= value < _LARGEST else {"$int": str(value)},
    float: lambda value: value if math.isfinite(value) else {"$float": repr(value)},
    list: lambda value: [_packed(each) for each in value],
    tuple: lambda value: {"$tuple": [_packed(each) for each in value]},
}


def _unpacked(value: Any) -> Any:
    if isinstance(value, list):
        return [_unpacked(each) for each in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((key, content),) = value.items()
        if key in _READERS:
            return _READERS[key](content)
    return {key: _unpacked(each) for key, each in value.items()}


def _dtype(name: str) -> np.dtype[Any]:
    dtype: np.dtype[Any] = np.dtype(name)
    if dtype.kind not in _NUMPY_KINDS:
        raise ValueError(f"no stored form of {name}")
    return dtype


def _record(content: Any) -> Any:
    name, values = content
    return _RECORDS[name](**{key: _unpacked(each) for key, each in values.items()})


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "$int": int,
    "$float": float,
    "$tuple": lambda content: tuple(map(_unpacked, content)),
    "$dict": lambda content: {_unpacked(key): _unpacked(each) for key, each in content},
    "$numpy": lambda content: _dtype(content[0]).type(_unpacked(content[1])),
    "$array": lambda content: np.array(_unpacked(content[2]), dtype=_dtype(content[0])).reshape(content[1]),
    "$path": Path,
    "$record": _record,
}
