"""Numbers read the same in every report."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trace_analyze.analysis.numeric import number_text as fmt


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (7, "7"),
        (1_234_567, "1,234,567"),
        (0.0, "0"),
        (1234.4, "1,234"),
        (99.97, "100"),
        (61.23, "61.2"),
        (9.999, "10.0"),
        (3.714, "3.71"),
        (0.1234, "0.123"),
        (0.0371, "0.0371"),
        (0.0000123, "1.2e-05"),
        (-2.5, "-2.50"),
        (None, "not known"),
        (math.nan, "not known"),
    ],
)
def test_number(value, text):
    assert fmt.number(value) == text


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (240.0, "240 ms"),
        (16_500.0, "16.5 s"),
        (9_000.0, "9,000 ms"),
        (0.0412, "41.2 µs"),
        (0, "0 ms"),
        (None, "not known"),
    ],
)
def test_milliseconds(ms, text):
    assert fmt.milliseconds(ms) == text


def test_nanoseconds():
    assert fmt.nanoseconds(4_140_800) == "4.14 ms"


@pytest.mark.parametrize(
    ("value", "at_least", "text"),
    [
        (61.23, False, "61.2%"),
        (61.23, True, "≥ 61.2%"),
        (0, False, "0.0%"),
        (0.012, False, "0.012%"),
        (None, True, "not known"),
    ],
)
def test_percent(value, at_least, text):
    assert fmt.percent(value, at_least=at_least) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (13.3e9, "B", "13.3 GB"),
        (2.15e12, "FLOP", "2.15 TFLOP"),
        (512, "B", "512 B"),
        (999.6, "B", "1.00 kB"),
        (None, "B", "not known"),
    ],
)
def test_scaled(value, unit, text):
    assert fmt.scaled(value, unit) == text


def test_plural():
    assert [fmt.plural(n, "stall") for n in (0, 1, 7_000)] == ["0 stalls", "1 stall", "7,000 stalls"]


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=1e-3, max_value=1e12))
def test_number_is_within_half_a_percent_of_the_value(value):
    assert float(fmt.number(value).replace(",", "")) == pytest.approx(value, rel=0.0051)


def test_sentences_say_numbers_shorter():
    assert [fmt.short_duration(x) for x in (0.0123, 9.617, 240, 1712.2)] == ["12.3 µs", "9.62 ms", "240 ms", "1.71 s"]
    assert [fmt.short_percent(x) for x in (61.2, 4.21, 0.312)] == ["61%", "4.2%", "0.31%"]
    assert [fmt.short_number(x) for x in (61.0, 0.00001, 1234.5, math.inf)] == ["61", "0.00001", "1,234", "unknown"]
