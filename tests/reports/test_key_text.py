"""JSON keys as words, values with the unit of their key."""

import pytest

from trace_analyze.reports import key_text


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
    assert str(key_text.by_key(key, value)) == text


def test_label_keeps_the_fields_abbreviations():
    assert key_text.label("decode_mbu_wall") == "decode MBU wall"


def test_reason_stands_beside_the_null():
    assert key_text.reason_for({"x": None, "x_reason": "no GPU"}, "x") == "no GPU"
    assert key_text.reason_for({"x": None}, "x") == ""
