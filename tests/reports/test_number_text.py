"""Numbers read the same in every report."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trace_analyze.reports import number_text as fmt


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


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("stall_ms", 240.0, "240 ms"),
        ("busy_ns", 2_500_000, "2.50 ms"),
        ("decode_mbu_pct", 61.2, "61.2%"),
        ("memory_bandwidth_gbps", 2039.0, "2,039 GB/s"),
        ("kv_bytes_per_token", 131_072, "131 kB/token"),
        ("prefill_tokens_per_s", 27_000.0, "27,000 token/s"),
        ("kept", True, "yes"),
        ("name", "llama", "llama"),
        ("stall_ms", None, "not known"),
    ],
)
def test_unit_comes_from_the_key(key, value, text):
    assert str(fmt.by_key(key, value)) == text


def test_label_keeps_the_fields_abbreviations():
    assert fmt.label("decode_mbu_wall") == "decode MBU wall"


def test_reason_stands_beside_the_null():
    assert fmt.reason_for({"x": None, "x_reason": "no GPU"}, "x") == "no GPU"
    assert fmt.reason_for({"x": None}, "x") == ""


def test_plural():
    assert [fmt.plural(n, "stall") for n in (0, 1, 7_000)] == ["0 stalls", "1 stall", "7,000 stalls"]


@given(st.text(max_size=300), st.integers(3, 80))
def test_shorten_never_exceeds_its_limit_and_keeps_both_ends(text, limit):
    short = fmt.shorten(text, limit)
    assert len(short) <= max(limit, 3)
    assert short[:1] == text[:1]
    assert short[-1:] == text[-1:]


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=1e-3, max_value=1e12))
def test_number_is_within_half_a_percent_of_the_value(value):
    assert float(fmt.number(value).replace(",", "")) == pytest.approx(value, rel=0.0051)


@pytest.mark.parametrize(
    ("short", "full", "limit", "shown"),
    [
        # the tile differs in the middle: it stays
        (["nvjet_tst_64x8_64x16_4x1_v_bz_TNT", "nvjet_tst_64x16_64x16_2x1_v_bz_TNT"], ["a", "b"], 22,
         ["nvjet_tst_64x8…_bz_TNT", "nvjet_tst_64x1…_bz_TNT"]),
        # one function for two types: the first word in which the whole names differ
        (["gemvx::kernel"] * 2, ["void gemvx::kernel<int, float>", "void gemvx::kernel<int, bf16>"], 60,
         ["gemvx::kernel~float", "gemvx::kernel~bf16"]),
        # one kernel in two phases is one kernel
        (["rope", "rope"], ["void rope()", "void rope()"], 60, ["rope", "rope"]),
        # nothing but signs differs
        (["f", "f"], ["f<*>", "f<&>"], 60, ["f~1", "f~2"]),
        (["", "g"], ["void h()", "g"], 60, ["void h()", "g"]),
    ],
)  # fmt: skip
def test_names_are_told_apart(short, full, limit, shown):
    assert fmt.distinct_names(short, full, limit) == shown


@given(st.lists(st.text("ab_x1", min_size=1, max_size=60), min_size=1, max_size=8, unique=True), st.integers(16, 60))
def test_different_names_read_differently_within_the_limit(names, limit):
    shown = fmt.distinct_names(names, names, limit)
    assert len(set(shown)) == len(names)
    assert all(len(text) <= limit for text in shown)
