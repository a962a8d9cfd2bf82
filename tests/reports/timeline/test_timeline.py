"""The timeline's data: coded and decoded, levels, which kernels are drawn, that no stall is lost."""

import base64
import json
import re
import zlib
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trace_analyze.reports.short_names import shorten
from trace_analyze.reports.timeline import timeline_payload
from trace_analyze.reports.timeline.byte_planes import Pack
from trace_analyze.reports.timeline.covered_levels import visible
from trace_analyze.reports.timeline.kernel_selection import choose
from trace_analyze.reports.timeline.lanes import depths


class Reader:
    """The same reading as assets/arrays.js does, written a second time."""

    def __init__(self, text):
        raw = zlib.decompress(base64.b64decode(text))
        length = int.from_bytes(raw[:4], "little")
        self.header = json.loads(raw[4 : 4 + length])
        self.body = raw[4 + length :]

    def whole(self, ref):
        n = ref["n"]
        planes = [np.frombuffer(self.body, np.uint8, n, ref["at"] + p * n) for p in range(ref["planes"])]
        return sum(plane.astype(np.int64) << (8 * p) for p, plane in enumerate(planes))

    def signed(self, ref):
        coded = self.whole(ref)
        return (coded >> 1) ^ -(coded & 1)

    def floats(self, ref):
        n = ref["n"]
        planes = [np.frombuffer(self.body, np.uint8, n, ref["at"] + p * n) for p in range(4)]
        return np.stack(planes, 1).ravel().view("<f4")

    def intervals(self, ref):
        lengths = self.whole(ref["length"])
        end, out = 0, []
        for step, length in zip(self.signed(ref["step"]), lengths, strict=True):
            out.append((int(end + step), int(end + step + length)))
            end = out[-1][1]
        return out


@given(st.lists(st.integers(0, 2**48 - 1), max_size=40))
def test_whole_numbers_return(values):
    pack = Pack()
    reference = pack.whole(np.array(values, dtype=np.int64))
    assert Reader(pack.finish({})).whole(reference).tolist() == values if values else reference["n"] == 0


@given(st.lists(st.integers(-(2**46), 2**46), min_size=1, max_size=40))
def test_signed_numbers_return(values):
    pack = Pack()
    reference = pack.signed(values)
    assert Reader(pack.finish({})).signed(reference).tolist() == values


def test_floats_return_with_their_unknowns():
    pack = Pack()
    reference = pack.floats([1.5, float("nan"), -2.25])
    assert np.array_equal(Reader(pack.finish({})).floats(reference), np.float32([1.5, np.nan, -2.25]), equal_nan=True)


def test_holes_of_years_return():
    """Clocks go wrong: two kernels two years apart are drawn two years apart."""
    starts = np.array([0, 63_115_200_000_000_000, 63_115_200_000_000_500])
    pack = Pack()
    reference = pack.intervals(starts, starts + 400)
    assert Reader(pack.finish({})).intervals(reference) == [(int(at), int(at) + 400) for at in starts]


def test_a_negative_value_is_refused():
    with pytest.raises(ValueError, match="negative"):
        Pack().whole(np.array([-1]))


def test_what_is_there_is_visible():
    assert visible(np.array([0.0, 1e-9, 0.5, 1.0])).tolist() == [0, 1, 32, 63] or visible(np.array([1e-9]))[0] == 1


def test_depth_is_the_number_of_ranges_still_open():
    starts, ends = np.array([0, 1, 2, 5, 9]), np.array([8, 4, 3, 7, 10])
    assert depths(starts, ends).tolist() == [0, 1, 2, 1, 0]


def kernels_of(analysis, lane):
    """The kernels of the lane's device and stream, in time order."""
    own = (pl.col("device_index") == lane["device"]) & (pl.col("stream") == lane["stream"])
    return analysis.kernels.filter(own)


def test_all_kernels_are_there_where_they_fit(pages):
    analysis, _ = pages("serving_run")
    payload = timeline_payload(analysis)
    reader = Reader(payload.data)
    lanes = [lane for lane in reader.header["lanes"] if lane["kind"] == "kernels"]
    streams = analysis.kernels.select("device_index", "stream").unique()
    assert sorted(lane["label"] for lane in lanes) == sorted(f"GPU {d} stream {s}" for d, s in streams.iter_rows())
    assert payload.line.startswith("All 24,870 kernels of the window are drawn")
    start = analysis.window.start_ns
    for lane in lanes:
        mine = kernels_of(analysis, lane)
        expected = list(zip((mine["start_ns"] - start).to_list(), (mine["end_ns"] - start).to_list(), strict=True))
        assert reader.intervals(lane["items"]) == expected


def test_a_kernels_ratio_returns_from_its_kind_and_time(pages):
    analysis, _ = pages("serving_run")
    reader = Reader(timeline_payload(analysis).data)
    lane, kinds = reader.header["lanes"][0], reader.header["kinds"]
    what = reader.whole(lane["items"]["what"])
    length = reader.whole(lane["items"]["length"])
    mbu = reader.floats(kinds["mbu_ns"])[what] / length
    mine = kernels_of(analysis, lane)
    expected = mine["mbu_pct"].cast(pl.Float64).fill_null(float("nan")).to_numpy()
    assert np.isfinite(expected).sum() > 1000
    assert np.allclose(mbu, expected, rtol=1e-4, equal_nan=True)
    names = [kinds["names"][i][1] for i in reader.whole(kinds["name"])[what]]
    wanted = mine.join(analysis.trace.names, on="name_id", how="left", maintain_order="left")["name"]
    assert names == [shorten(name, 300) for name in wanted]


def test_big_capture_keeps_every_stall_and_says_what_is_drawn(examples):
    analysis = examples.repeated(examples.serving_run(), 16)
    payload = timeline_payload(analysis, budget=60_000)
    reader = Reader(payload.data)
    assert [s["stall"] for s in reader.header["groups"][0]["stalls"]] == analysis.stalls["stall"].to_list()
    drawn = sum(lane["items"]["n"] for lane in reader.header["lanes"] if lane["kind"] == "kernels")
    assert 0 < drawn <= 60_000
    assert f"{drawn:,} of {16 * 24_870:,} kernels are drawn one by one" in payload.line
    assert not reader.header["whole"]
    stall = analysis.stalls.sort("stall_ms", descending=True).row(0, named=True)
    start = reader.header["start_ns"]
    assert any(a <= stall["start_ns"] - start and stall["end_ns"] - start <= b for a, b in reader.header["windows"])


def test_kernels_outside_the_window_are_counted_not_drawn(pages):
    analysis, _ = pages("serving_run")
    kernels = analysis.kernels.with_columns(in_window=pl.int_range(pl.len()) >= 100)
    payload = timeline_payload(replace(analysis, kernels=kernels))
    assert "100 kernels outside the analysed window" in payload.line
    assert "All 24,770 kernels" in payload.line


def test_nothing_to_draw_without_kernels(pages):
    analysis, _ = pages("serving_run")
    assert timeline_payload(replace(analysis, kernels=analysis.kernels.clear())) is None


@given(st.integers(1, 400), st.integers(1, 500))
def test_detail_never_exceeds_its_budget_nor_counts_wrong(count, budget):
    starts = np.arange(count, dtype=np.int64) * 10
    stalls = pl.DataFrame({"start_ns": [0, count], "end_ns": [count * 3, count * 6], "stall_ms": [1.0, 2.0]})
    steps = pl.DataFrame(
        {
            "group": [0] * 20,
            "index": list(range(20)),
            "start_ns": [i * count // 2 for i in range(20)],
            "end_ns": [(i + 1) * count // 2 for i in range(20)],
        }
    )
    detail = choose(starts, stalls, steps, (0, count * 10), budget)
    assert detail.kernels <= budget
    inside = sum(any(a <= s < b for a, b in detail.windows) for s in starts.tolist())
    assert detail.kernels == inside


def test_detail_without_steps_takes_even_slices():
    starts = np.arange(10_000, dtype=np.int64)
    empty = pl.DataFrame(
        schema={"group": pl.Int32, "index": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64, "stall_ms": pl.Float64}
    )
    detail = choose(starts, empty, empty, (0, 10_000), 1_000)
    assert len(detail.windows) > 30
    assert 0 < detail.kernels <= 1_000


def test_kernels_that_are_all_different_stay_within_the_page(examples, monkeypatch):
    from trace_analyze.reports import timeline

    analysis = examples.repeated(examples.serving_run(), 3)
    rng = np.random.default_rng(3)
    n = analysis.kernels.height
    kernels = analysis.kernels.with_columns(
        flop=pl.Series(rng.random(n)),
        bytes=pl.Series(rng.random(n)),
        grid_x=pl.Series(rng.integers(1, 10**6, n), dtype=pl.Int32),
    )
    noisy = replace(analysis, kernels=kernels)
    monkeypatch.setattr(timeline, "MAX_BYTES", 400_000)
    payload = timeline_payload(noisy)
    assert len(payload.data) <= 400_000
    assert re.match(r"[\d,]+ of 74,610 kernels are drawn one by one", payload.line)
