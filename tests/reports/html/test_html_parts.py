"""Tables, free-form mappings, the picture and the roofline, each on its own."""

import base64
import json
import zlib
from dataclasses import replace

import polars as pl
import pytest

from trace_analyze.reports.html import sortable_tables as tables
from trace_analyze.reports.html.json_objects import facts_of, grouped, table_of, tables_of
from trace_analyze.reports.html.roofline import roofline
from trace_analyze.reports.html.steps_picture import nice, picture, time_ticks


def test_number_column_shows_a_dash_with_its_reason():
    column = tables.numbers("mfu_pct", "MFU", [48.2, None], unit="%", reasons=["", "no GPU"])
    assert column.text == ["48.2", "–"]
    assert column.title == ["", "not known: no GPU"]
    assert column.raw == [48.2, None]


def test_name_column_keeps_the_whole_name_on_hover():
    column = tables.names("name", "Kernel", ["gemm"], ["void gemm<128>(Params)"])
    assert (column.text, column.title) == (["gemm"], ["void gemm<128>(Params)"])


def test_packed_tables_carry_every_row_and_page_only_the_first():
    column = tables.numbers("x", "X", list(range(100)))
    table = tables.Table("t", "T", [column], 100, rows_in_page=5)
    content = json.loads(zlib.decompress(base64.b64decode(tables.packed([table]))))
    assert content["t"]["columns"][0]["raw"] == list(range(100))
    assert len(list(table.page_rows())) == 5


@pytest.mark.parametrize(
    ("widths", "rows", "size", "kept"),
    [([10] * 5, 10, 100, 5), ([10] * 5, 3, 100, 3), ([10] * 5, 10, 25, 2), ([], 10, 10, 0), ([99], 10, 10, 0)],
)
def test_within_budget(widths, rows, size, kept):
    assert tables.within_budget(widths, rows=rows, size=size) == kept


def test_facts_take_units_from_keys_and_reasons_from_beside():
    facts = facts_of(
        {
            "fit": {"base_ms": 2.1, "r2": 0.991},
            "clock_mhz": None,
            "clock_mhz_reason": "not sampled",
            "kinds": ["a", "b"],
        }
    )
    assert [(label, str(text), text.reason) for label, text in facts] == [
        ("fit: base", "2.10 ms", ""),
        ("fit: R²", "0.991", ""),
        ("clock", "not known", "not sampled"),
        ("kinds", "a, b", ""),
    ]


def test_unit_of_a_mapping_reaches_its_members():
    facts = facts_of({"idle_ns_by_cause": {"host_sync_ns": 4_000_000}, "decode_step_ms": {"n": 53, "p50": 2.05}})
    assert [(label, str(text)) for label, text in facts] == [
        ("idle ns by cause: host sync", "4.00 ms"),
        ("decode step: n", "53"),
        ("decode step: p50", "2.05 ms"),
    ]


def test_lists_of_objects_become_tables():
    (table,) = tables_of(
        {"chunks": [{"tokens": 256, "gap_p99_ms": 11.0}, {"tokens": 512, "gap_p99_ms": None}]}, "what-if"
    )
    assert [c.label for c in table.columns] == ["tokens", "gap p99"]
    assert table.columns[1].text == ["11.0", "–"]


def test_facts_gather_under_the_heading_they_share():
    facts = facts_of({"fit": {"base_ms": 2.0, "r2": 0.9, "steps": 60}, "schedule": "mixed", "one": {"x": 1}})
    groups = [(heading, [label for label, _ in members]) for heading, members in grouped(facts)]
    assert groups == [("", ["schedule seen", "one: x"]), ("fit", ["base", "R²", "steps"])]


def test_keys_that_few_rows_have_share_a_column():
    rows = [{"technique": str(i), "pays": "yes"} for i in range(5)]
    rows[0] |= {"predicted_gap_max_ms": 73.9}
    rows[3] |= {"intensity_factor": 4, "extrapolated": True}
    table = table_of("t", "T", rows)
    assert [c.label for c in table.columns] == ["technique", "pays", "also"]
    assert table.columns[2].text == ["longest gap then 73.9 ms", "–", "–", "AI times 4, beyond the fitted range", "–"]
    assert len(table_of("t", "T", rows, fold=False).columns) == 5


def test_columns_of_words_and_lists():
    table = table_of("t", "T", [{"name": "x", "steps": [1, 2], "ok": True}, {"name": None, "steps": [], "ok": False}])
    assert [c.text for c in table.columns] == [["x", "–"], ["1, 2", "–"], ["yes", "no"]]


def test_picture_has_one_path_per_phase_and_every_stall(pages):
    analysis, _ = pages("serving_run")
    drawn = picture(analysis)
    (lane,) = drawn.lanes
    assert [phase for phase, _ in lane.paths] == ["prefill", "mixed", "decode"]
    assert sum(path.count("M") for _, path in lane.paths) == 60
    assert [mark.stall for mark in lane.marks] == [0, 1, 2, 3, 4]
    assert lane.marks[1].label == "5.19 ms · 1,016 tokens"  # the longest has room
    assert "8 requests held" in lane.marks[0].title


def test_picture_of_many_steps_stays_small(examples):
    base = examples.serving_run()
    few = replace(base, kernels=base.kernels.clear())
    analysis = examples.repeated(few, 140)
    drawn = picture(analysis)
    (lane,) = drawn.lanes
    assert analysis.steps.height == 140 * 120
    assert sum(len(path) for _, path in lane.paths) < 120_000
    assert 0 < len(lane.marks) <= analysis.stalls.height


def test_stalls_that_share_a_place_share_a_mark_named_by_the_longest(pages):
    analysis, _ = pages("serving_run")
    start, end = analysis.window.start_ns, analysis.window.end_ns
    tiny = (end - start) // 100_000
    stalls = analysis.stalls.with_columns(
        start_ns=pl.lit(start) + pl.col("stall").cast(pl.Int64) * tiny,
        end_ns=pl.lit(start) + (pl.col("stall").cast(pl.Int64) + 1) * tiny,
    )
    (lane,) = picture(replace(analysis, stalls=stalls)).lanes
    (mark,) = lane.marks
    assert mark.stall == 1
    assert "and 4 more here" in mark.title


def test_no_picture_without_steps(pages):
    assert picture(pages("no_phases")[0]) is None


@pytest.mark.parametrize(("value", "expected"), [(1, 1), (1.9, 1), (2, 2), (4.99, 2), (77.4, 50), (0.03, 0.02)])
def test_nice(value, expected):
    assert nice(value) == pytest.approx(expected)


@pytest.mark.parametrize("span", [3, 999, 10_000, 310_000_000, 16_500_000_000, 7_200_000_000_000])
def test_time_axis_has_a_handful_of_round_ticks(span):
    ticks = time_ticks(span)
    assert 2 <= len(ticks) <= 18
    assert ticks[0] == (0.0, ticks[0][1])
    assert all(0 <= left < 100 for left, _ in ticks)


def test_roofline_places_points_by_their_logarithms(pages):
    drawn = roofline(pages("serving_run")[0])
    points = {(p["name"], p["phase"]): p for p in drawn["points"]}
    decode, prefill = points["gemm", "decode"], points["gemm", "prefill"]
    assert decode["x"] < prefill["x"]
    assert decode["y"] > prefill["y"]  # y grows downwards
    assert max(p["r"] for p in drawn["points"]) == decode["r"]  # the most time, the largest
    # no kernel computes in int8, so its ceiling is not drawn
    assert [c["ridge"] for c in drawn["ceilings"]] == ["ridge 153 FLOP/byte"]
    assert "bound by memory" in decode["title"]


def test_roofline_leaves_out_and_counts_points_without_work(pages):
    analysis, _ = pages("serving_run")
    points = analysis.roofline["points"]
    unknown = {**points[0], "op_class": "norm", "arithmetic_intensity": None, "tflops": None}
    data = {**analysis.roofline, "points": [*points, unknown]}
    without_work = sum(not point["tflops"] for point in points)  # copies have no FLOP, so no place
    assert without_work == 9
    assert roofline(replace(analysis, roofline=data))["left_out"] == without_work + 1


def test_no_roofline_without_ceilings(pages):
    analysis, _ = pages("serving_run")
    assert roofline(replace(analysis, roofline={**analysis.roofline, "ceilings": []})) is None
