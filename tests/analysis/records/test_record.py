"""Records read like the JSON objects they become."""

from __future__ import annotations

import msgspec
import pytest

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
