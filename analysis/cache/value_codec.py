"""What an Analysis holds beside its frames, as MessagePack and back, exactly: typed, NaN stays NaN, an int an int."""

from __future__ import annotations

import msgspec
import polars as pl

from ..records.advice import Finding
from ..records.analysis import Analysis
from ..records.devices import Device, Window
from ..records.host import HostSide
from ..records.summary import GroupSummary, Summary
from ..records.trust import Trust
from ..records.what_if import WhatIf
from ..records.work import Measured, Model, Roofline, Traffic
from ..records.workload import Workload


class NotStorableError(TypeError):
    """A value of a kind that has no form here: a fault of ours, and the Analysis is not kept."""


class KeptValues(msgspec.Struct):
    """The fields of an Analysis that are no frames, by their names."""

    status: str
    reasons: tuple[str, ...]
    devices: tuple[Device, ...]
    model: Model
    window: Window
    trust: Trust
    summary: Summary
    group_summaries: tuple[GroupSummary, ...]
    findings: tuple[Finding, ...]
    roofline: Roofline
    traffic: Traffic
    host: HostSide
    what_if: WhatIf
    workload: Workload
    measured: Measured


_VALUES = msgspec.msgpack.Decoder(KeptValues)
_SHARES = msgspec.msgpack.Decoder(dict[str, float])


def encode_values(analysis: Analysis) -> bytes:
    """The fields of ``KeptValues``. Raises NotStorableError."""
    return _encoded(KeptValues(**{name: getattr(analysis, name) for name in KeptValues.__struct_fields__}))


def decode_values(content: bytes) -> dict[str, object]:
    """The fields that ``encode_values`` was given. Raises ValueError where it cannot have written this."""
    return msgspec.structs.asdict(_VALUES.decode(content))


def encode_objects(column: pl.Series) -> pl.Series:
    """A column of objects (shares by name) as bytes. Raises NotStorableError."""
    return pl.Series(column.name, [_encoded(value) for value in column.to_list()], dtype=pl.Binary)


def decode_objects(column: pl.Series) -> pl.Series:
    """The column that ``encode_objects`` was given. Raises ValueError where it cannot have written this."""
    return pl.Series(column.name, [_SHARES.decode(content) for content in column], dtype=pl.Object)


def _encoded(value: object) -> bytes:
    try:
        return msgspec.msgpack.encode(value)
    except (TypeError, OverflowError, UnicodeEncodeError) as error:
        raise NotStorableError(str(error)) from error
