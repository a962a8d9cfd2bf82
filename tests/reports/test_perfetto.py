"""The Chrome trace: JSON that a viewer opens, numeric microseconds from the window's start, every kernel once."""

import json
from dataclasses import replace

import polars as pl
import pytest
from msgspec import structs

from trace_analyze.reports.perfetto import to_perfetto


def events_of(analysis):
    return json.loads(to_perfetto(analysis))["traceEvents"]


@pytest.mark.parametrize("name", ["serving_run", "no_phases", "hostile", "could_not_look"])
def test_every_event_is_well_formed(pages, name):
    analysis, _ = pages(name)
    for event in events_of(analysis):
        assert event["ph"] in ("X", "M")
        assert isinstance(event["args"], dict)
        if event["ph"] == "X":
            assert isinstance(event["ts"], (int, float))
            assert event["dur"] >= 0


def test_kernels_steps_and_stalls_are_all_there_at_their_times(pages):
    analysis, _ = pages("serving_run")
    spans = [e for e in events_of(analysis) if e["ph"] == "X"]
    threads = {
        (e["pid"], e["tid"]): e["args"]["name"] for e in events_of(analysis) if e["name"] == "thread_name"
    }  # fmt: skip
    by_lane = {}
    for event in spans:
        by_lane.setdefault(threads[event["pid"], event["tid"]], []).append(event)
    assert len(by_lane["steps"]) == analysis.steps.height
    assert len(by_lane["stalls"]) == analysis.stalls.height
    streams = [e for lane, events in by_lane.items() if lane.startswith("stream") for e in events]
    assert len(streams) == analysis.kernels.height
    origin = analysis.window.start_ns
    first = analysis.kernels.filter(pl.col("device_index") == 0).sort("start_ns").row(0, named=True)
    assert streams[0]["ts"] == round((first["start_ns"] - origin) / 1e3, 3)
    assert sum(e["dur"] for e in streams) == pytest.approx(
        (analysis.kernels["end_ns"] - analysis.kernels["start_ns"]).sum() / 1e3
    )
    assert {e["name"] for e in by_lane["steps"]} == set(analysis.steps["phase"].cast(pl.String))


def test_times_stay_exact_far_from_zero(pages):
    """1.7e18 ns (epoch clocks) in a float would lose hundreds of ns; relative to the window nothing is lost."""
    analysis, _ = pages("serving_run")
    far = 1_700_000_000_000_000_000
    shift = [(pl.col("start_ns") + far).alias("start_ns"), (pl.col("end_ns") + far).alias("end_ns")]
    moved = replace(
        analysis,
        kernels=analysis.kernels.with_columns(shift),
        steps=analysis.steps.with_columns(shift),
        stalls=analysis.stalls.with_columns(shift),
        trace=replace(analysis.trace, copies=analysis.trace.copies.with_columns(shift)),
        window=structs.replace(analysis.window, start_ns=analysis.window.start_ns + far),
    )
    assert to_perfetto(moved) == to_perfetto(analysis)


def test_devices_are_processes_and_stalls_are_once_a_group(pages):
    analysis, _ = pages("serving_run")
    events = events_of(analysis)
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert len(names) == 2
    assert all(name.startswith("device ") for name in names.values())
    assert len({e["pid"] for e in events if e["name"] == "stall"}) == 1


def test_hostile_names_are_strings(pages):
    analysis, _ = pages("hostile")
    names = {e["name"] for e in events_of(analysis) if e["ph"] == "X"}
    assert any("<" in name for name in names)
