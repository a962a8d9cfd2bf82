"""Records read like the JSON objects they become."""

from __future__ import annotations

from typing import ClassVar

import msgspec
import pytest
from msgspec import UNSET, UnsetType

from trace_analyze.analysis.records.plain_values import clean
from trace_analyze.analysis.records.record import Record


class Point(Record):
    mfu_pct: float | None
    note: str | msgspec.UnsetType = msgspec.UNSET


def test_a_field_is_a_key_and_null_is_not_absent():
    point = Point(mfu_pct=None)
    assert point["mfu_pct"] is None
    assert "note" not in point
    assert point.keys() == ("mfu_pct",)
    assert point.get("note", "none") == "none"
    assert msgspec.json.encode(point) == b'{"mfu_pct":null}'


@pytest.mark.parametrize("key", ["note", "other", "keys"])
def test_what_is_no_key_raises(key):
    with pytest.raises(KeyError):
        Point(mfu_pct=1.0)[key]


def test_a_record_cannot_be_changed():
    with pytest.raises(AttributeError):
        Point(mfu_pct=1.0).mfu_pct = 2.0


class Inner(Record, frozen=True, kw_only=True):
    n: int


class Base(Record, frozen=True, kw_only=True):
    ms: float | None
    ms_reason: str | UnsetType = UNSET


class Outer(Base, frozen=True, kw_only=True):
    FIRST_KEYS: ClassVar[tuple[str, ...]] = ("name",)

    name: str
    inner: Inner
    parts: tuple[Inner, ...] = ()


def test_keys_stand_in_the_order_of_the_fields_with_the_first_ones_before_inherited_ones():
    assert list(Outer(ms=None, ms_reason="why", name="a", inner=Inner(n=1))) == [
        "name",
        "ms",
        "ms_reason",
        "inner",
        "parts",
    ]


def test_plain_data_has_null_for_what_is_no_number():
    record = Outer(ms=float("nan"), name="a", inner=Inner(n=1), parts=(Inner(n=2),))
    assert clean(record) == {"name": "a", "ms": None, "inner": {"n": 1}, "parts": [{"n": 2}]}
