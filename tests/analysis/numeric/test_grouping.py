"""Rows by a number they carry."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trace_analyze.analysis.numeric import grouping
from trace_analyze.analysis.numeric.grouping import places_of, rows_by_key, split_by, stable_order
from trace_analyze.analysis.phases import kernel_arrays as phase_columns
from trace_analyze.analysis.time import host_side as host
from trace_analyze.analysis.time import idle_causes as idle
from trace_analyze.fixtures.build import CAPTURES

NUMBERS = st.lists(st.one_of(st.integers(-3, 3), st.sampled_from([-(2**62), 2**40, 2**62])), max_size=30)


def test_each_device_gets_its_rows_in_their_order():
    frame = pl.DataFrame({"device": [1, 0, 1, 7], "start": [10, 20, 30, 40]})
    of_device = split_by(frame, "device")
    assert of_device(1)["start"].to_list() == [10, 30]
    assert of_device(7)["start"].to_list() == [40]
    assert of_device(2).is_empty()
    assert of_device(2).schema == frame.schema


def test_a_frame_of_one_device_is_not_copied():
    frame = pl.DataFrame({"device": [3, 3], "start": [10, 20]})
    of_device = split_by(frame, "device")
    assert of_device(3) is frame
    assert of_device(0).is_empty()


@given(NUMBERS)
def test_splitting_gives_what_filtering_gives(numbers):
    frame = pl.DataFrame({"key": pl.Series(numbers, dtype=pl.Int64)}).with_row_index("row")
    of_key = split_by(frame, "key")
    for number in {*numbers, 0}:
        assert of_key(number).equals(frame.filter(pl.col("key") == number))


@given(NUMBERS)
def test_places_cover_the_sorted_numbers(numbers):
    keys = np.array(numbers, dtype=np.int64)
    order = stable_order(keys)
    assert order.tolist() == sorted(range(len(keys)), key=lambda row: keys[row])
    places = places_of(keys[order])
    assert {key: order[place].tolist() for key, place in places.items()} == {
        key: np.flatnonzero(keys == key).tolist() for key in numbers
    }


@given(NUMBERS)
def test_many_keys_are_found_like_few(numbers):
    keys, wanted = np.array(numbers, dtype=np.int64), np.arange(-4, 5 + grouping.MAX_KEYS_UNSORTED)
    assert [rows.tolist() for rows in rows_by_key(keys, wanted)] == [
        np.flatnonzero(keys == value).tolist() for value in wanted
    ]


@pytest.mark.parametrize("capture", ["tp2-collectives", "sglang-qwen3-8b-h100"])
def test_the_roads_of_many_devices_lead_to_the_same_result(capture, monkeypatch):
    """With the thresholds at 0 every capture goes the way of one with a thousand devices and processes."""
    import trace_analyze as ta

    path = CAPTURES / f"{capture}.sqlite"
    usual = ta.analyze(path)
    monkeypatch.setattr(phase_columns, "MAX_LANES_UNSORTED", 0)
    monkeypatch.setattr(grouping, "MAX_KEYS_UNSORTED", 0)
    monkeypatch.setattr(idle, "MAX_MATES_MERGED_EACH", 0)
    monkeypatch.setattr(host, "MIN_LAUNCHES_PER_KERNEL_TO_SORT", 0)
    other = ta.analyze(path)
    assert other.kernels.equals(usual.kernels)
    assert other.to_dict() == usual.to_dict()
