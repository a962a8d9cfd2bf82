"""Cut names stay readable and different."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trace_analyze.reports.short_names import distinct_names, shorten


@given(st.text(max_size=300), st.integers(3, 80))
def test_shorten_never_exceeds_its_limit_and_keeps_both_ends(text, limit):
    short = shorten(text, limit)
    assert len(short) <= max(limit, 3)
    assert short[:1] == text[:1]
    assert short[-1:] == text[-1:]


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
    assert distinct_names(short, full, limit) == shown


@given(st.lists(st.text("ab_x1", min_size=1, max_size=60), min_size=1, max_size=8, unique=True), st.integers(16, 60))
def test_different_names_read_differently_within_the_limit(names, limit):
    shown = distinct_names(names, names, limit)
    assert len(set(shown)) == len(names)
    assert all(len(text) <= limit for text in shown)
