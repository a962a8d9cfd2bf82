"""docs/json.md against what the program writes: every key documented, every documented key written, types as said."""

from __future__ import annotations

import dataclasses
import datetime
import json
from pathlib import Path

import json_schema
import jsonschema
import orjson
import polars as pl
import pytest
from json_page import read_page

import trace_analyze as ta
from trace_analyze.analysis.compare import compare_profiles, profile_of
from trace_analyze.analysis.records.errors import TraceAnalyzeError
from trace_analyze.fixtures import cases
from trace_analyze.fixtures.build import CAPTURES
from trace_analyze.fixtures.demo import write_demo
from trace_analyze.fixtures.matrix import MATRIX, TOGETHER
from trace_analyze.fixtures.simulator.serving import simulate, write_together
from trace_analyze.fixtures.writers.ncu_writer import write_ncu_csv
from trace_analyze.reports.archive.archive_row import COLUMNS
from trace_analyze.reports.comparison.comparison_json import comparison_json
from trace_analyze.reports.json_report import to_json

DOCUMENTS = read_page()
SGLANG = CAPTURES / "sglang-qwen3-8b-h100.sqlite"
CHUNKED = CAPTURES / "vllm-llama-3.1-8b-a100-chunked-prefill.sqlite"


def analysed(path: Path, **options):
    result = ta.analyze(ta.open_trace(path), **options)
    return orjson.loads(to_json(result))


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Runs that between them say everything the JSON can say."""
    folder = tmp_path_factory.mktemp("json")
    found = {path.stem: analysed(path, step="median-decode") for path in sorted(CAPTURES.glob("*.sqlite"))}
    found["demo"] = analysed(write_demo(folder / "demo.sqlite"), itl_target_ms=30.0)
    found["unreachable target"] = analysed(folder / "demo.sqlite", itl_target_ms=0.5)
    kinds = ("opaque-graphs", "one-user", "prefill-only", "async-unmarked")
    for name in (f"vllm-llama-8b-h100-{kind}" for kind in kinds):
        found[name] = analysed(simulate(MATRIX[name]).write(folder / f"{name}.sqlite"))
    found["workers"] = analysed(
        write_together([simulate(each) for each in TOGETHER["prefill-and-decode-workers"]], folder / "workers.sqlite")
    )
    found["stalled"] = analysed(cases.separate_prefill().write(folder / "stalled.sqlite"))
    found["encoder"] = analysed(cases.decode_attention().write(folder / "few.sqlite"))
    found |= dict(odd_ones(folder))
    return found


def odd_ones(folder):
    """Runs for the keys that few runs have."""
    yield "dmon", analysed(CHUNKED, dmon=counter_log(folder / "dmon.csv"))
    yield "dcgm", analysed(CHUNKED, dcgm=counter_log(folder / "dcgm.log"))
    run = simulate(MATRIX["vllm-llama-8b-h100"])
    write_ncu_csv(run, folder / "kernels.csv", step=0)
    yield "ncu", analysed(run.write(folder / "run.sqlite"), ncu=[folder / "kernels.csv"])
    # ceilings that some steps exceed by more than is believed, and others do not
    yield "refused in part", analysed(CHUNKED, ceilings=ceilings(folder, 2039 * 0.75 / 1.05, 312 * 0.67))
    yield "prefill refused in part", analysed(SGLANG, ceilings=ceilings(folder, 3352, 989.4 * 0.649 / 1.082))
    yield "no baseline", analysed(CHUNKED, window="90ms:300ms")
    trace = ta.open_trace(cases.separate_prefill().write(folder / "loose.sqlite"))
    loose = trace.launches.with_columns(correlation_id=pl.lit(-7, dtype=pl.Int64))
    yield "no GPU, no geometry", orjson.loads(to_json(ta.analyze(bare(ta.open_trace(CHUNKED)))))
    yield "no launch fits", orjson.loads(to_json(ta.analyze(dataclasses.replace(trace, launches=loose))))


def bare(trace):
    """The trace without what tells GPU, token counts and markers."""
    facts = ("gpu_name", "sm_count", "memory_bandwidth_bytes_per_s", "total_memory_bytes", "max_clock_hz", "chip")
    devices = trace.devices.with_columns(pl.lit(None, dtype=trace.devices.schema[name]).alias(name) for name in facts)
    kernels = trace.kernels.with_columns(grid_x=pl.lit(0, dtype=pl.Int32), grid_y=pl.lit(0, dtype=pl.Int32))
    return dataclasses.replace(trace, devices=devices, kernels=kernels, ranges=trace.ranges.clear())


def ceilings(folder, bandwidth, peak):
    path = folder / "ceilings.toml"
    path.write_text(f'["*"]\nmemory_bandwidth_gbps = {bandwidth}\n["*".peak_tflops]\nbf16 = {peak}\n')
    return path


def counter_log(path):
    """Samples every 20 ms over the capture, as nvidia-smi or dcgmi prints them."""
    start = ta.open_trace(CHUNKED).capture.session_start_utc_ns / 1e9
    times = [datetime.datetime.fromtimestamp(start + 0.02 * i, datetime.UTC) for i in range(20)]
    if path.name == "dmon.csv":
        lines = ["timestamp, index, utilization.gpu [%]"]
        lines += [f"{t:%Y/%m/%d %H:%M:%S}.{t.microsecond // 1000:03d}, 0, 98 %" for t in times]
    else:
        lines = [f"{times[0]:%Y-%m-%dT%H:%M:%S}.000Z #Entity   SMACT        TENSO        DRAMA"]
        lines += [f"{t:%Y-%m-%dT%H:%M:%S}.{t.microsecond // 1000:03d}Z GPU 0     0.9   0.3   0.1" for t in times]
    path.write_text("\n".join(lines) + "\n")
    return path


def paths(value, prefix=""):
    """Every key of a JSON value as a path of the page: 'summary.phase_ms.decode', 'steps[].index'."""
    if isinstance(value, dict):
        for key, inner in value.items():
            path = f"{prefix}.{key}" if prefix else key
            yield path
            yield from paths(inner, path)
    elif isinstance(value, list):
        for inner in value:
            yield from paths(inner, f"{prefix}[]")


def documented(document):
    """Paths that the page names, and the prefixes below which any key may stand."""
    keys = DOCUMENTS[document]
    named = {key.path for key in keys} | {f"{key.path}.{part}" for key in keys for part in key.parts}
    free = tuple(
        f"{key.path}{mark}" for key in keys if "map of" in key.type or "any" in key.type for mark in (".", "[]")
    )
    return named, free


def assert_documented(document, seen):
    named, free = documented(document)
    unknown = sorted(path for path in seen if path not in named and not path.startswith(free))
    assert not unknown, f"not in docs/json.md: {unknown}"
    return sorted(named - seen)


def test_every_key_is_documented_and_every_documented_key_is_written(results):
    missing = assert_documented("result", {path for each in results.values() for path in paths(each)})
    assert not missing, f"documented, but no run has it: {missing}"


def test_every_run_has_every_key_that_is_not_optional(results):
    needed = [key.path for key in DOCUMENTS["result"] if not key.optional and "[]" not in key.path]
    for name, each in results.items():
        have = set(paths(each))
        nulls = {path for path in needed if any(path.startswith(f"{null}.") for null in null_paths(each))}
        optional = tuple(f"{key.path}." for key in DOCUMENTS["result"] if key.optional)
        assert not [path for path in needed if path not in have | nulls and not path.startswith(optional)], name


def null_paths(value, prefix=""):
    if isinstance(value, dict):
        for key, inner in value.items():
            path = f"{prefix}.{key}" if prefix else key
            if inner is None:
                yield path
            yield from null_paths(inner, path)


def test_the_schema_holds(results):
    schema = json_schema.build()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for name, each in results.items():
        errors = [f"{'.'.join(map(str, e.absolute_path))}: {e.message[:100]}" for e in validator.iter_errors(each)]
        assert not errors, f"{name}: {errors[:5]}"


def test_the_schema_can_fail(results):
    validator = jsonschema.Draft202012Validator(json_schema.build())
    broken = json.loads(json.dumps(results["demo"]))
    broken["summary"]["stall_ms"] = "long"
    del broken["steps"][0]["phase"]
    assert len(list(validator.iter_errors(broken))) == 2


def test_a_null_has_its_reason(results):
    """Null numbers of the summary are explained under their own name."""
    stated = {key.path.removeprefix("summary.") for key in DOCUMENTS["result"] if key.path.startswith("summary.")}
    events = {"worst_episode", "longest_run_without_decode", "decode_ramp"}  # null where there was none
    for name, each in results.items():
        summary = each["summary"]
        unexplained = {k for k, v in summary.items() if v is None and k in stated} - set(summary["reasons"]) - events
        assert not unexplained, f"{name}: {unexplained}"


def test_captures_made_by_others(shared_traces):
    validator = jsonschema.Draft202012Validator(json_schema.build())
    seen = 0
    for path in sorted(path for path in shared_traces.glob("*/*") if path.is_file()):
        try:
            each = analysed(path, ncu=[path] if path.parent.name == "ncu" else [])
        except TraceAnalyzeError:
            continue  # no capture, or nothing in it
        assert_documented("result", set(paths(each)))
        errors = [f"{'.'.join(map(str, e.absolute_path))}: {e.message[:100]}" for e in validator.iter_errors(each)]
        assert not errors, f"{path.name}: {errors[:5]}"
        seen += 1
    assert seen >= 20


def test_the_comparison(results, tmp_path):
    capture = ta.analyze(ta.open_trace(SGLANG))
    other = ta.analyze(ta.open_trace(CHUNKED))
    seen = set()
    schema = json_schema.build()["$defs"]["comparison"]
    for before, after in ((capture, capture), (capture, other)):
        comparison = compare_profiles(profile_of(before), profile_of(after))
        written = orjson.loads(comparison_json(comparison))
        jsonschema.validate(written, schema)
        seen |= set(paths(written))
    lists = {"new_kernels[].", "vanished_kernels[]."}
    missing = assert_documented("comparison", seen)
    assert not [path for path in missing if not path.startswith(tuple(lists))]


def test_the_runs_table():
    keys = [key.path for key in DOCUMENTS["runs"]]
    assert keys and sorted(keys) == sorted(COLUMNS)
    kinds = {"string": pl.String, "integer": pl.Int64, "number": pl.Float64, "boolean": pl.Boolean}
    assert {key.path: kinds[key.type] for key in DOCUMENTS["runs"]} == dict(COLUMNS)
