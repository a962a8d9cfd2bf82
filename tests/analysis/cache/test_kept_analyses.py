"""A second look with ``--cache``: the same answer to the byte, and none from another capture, option, file or tool."""

from __future__ import annotations

import math
import shutil
from dataclasses import fields, replace
from pathlib import Path

import msgspec
import polars as pl
import pytest
from msgspec import structs

import trace_analyze as ta
from trace_analyze.analysis import road
from trace_analyze.analysis.cache import kept_analyses as store
from trace_analyze.analysis.cache.value_codec import (
    KeptValues,
    NotStorableError,
    decode_values,
    encode_objects,
    encode_values,
)
from trace_analyze.analysis.option_files import options_digest
from trace_analyze.analysis.records.analysis import Analysis
from trace_analyze.analysis.records.errors import CannotAnswerError, UsageError
from trace_analyze.analysis.records.options import Options
from trace_analyze.analysis.records.trace import FRAMES
from trace_analyze.analysis.road import Capture, analyze_capture
from trace_analyze.fixtures import cases
from trace_analyze.fixtures.build import CAPTURES, SHIPPED
from trace_analyze.fixtures.matrix import MATRIX
from trace_analyze.fixtures.simulator.serving import simulate
from trace_analyze.fixtures.writers.kineto_writer import write_kineto
from trace_analyze.fixtures.writers.ncu_writer import write_ncu_csv
from trace_analyze.ingest.cache.cache_entries import Entry
from trace_analyze.reports.json_report import to_json
from trace_analyze.reports.outputs import render
from trace_analyze.reports.perfetto import to_perfetto
from trace_analyze.reports.table_files import kernel_rows, result_tables
from trace_analyze.reports.terminal import print_screen

SGLANG = CAPTURES / "sglang-qwen3-8b-h100.sqlite"
NCU = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC",'
    '"gpu__time_duration.sum","dram__bytes_read.sum","dram__bytes_write.sum"\n'
    '"","","","","","","","","","","","ns","byte","byte"\n'
    '"0","7","python3","h","nvjet_tst_128x64_64x6_1x1_v_bz_TNT","1","7","(384, 1, 1)","(132, 1, 1)","0","9.0",'
    '"10,000","16,000,000","4,000,000"\n'
)


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def analyses(monkeypatch):
    """How often something was analysed, rather than taken from the cache."""
    counted = []
    really = road.analyze_options

    def counting(trace, options, **rest):
        counted.append(trace.capture.source_name)
        return really(trace, options, **rest)

    monkeypatch.setattr(road, "analyze_options", counting)
    return counted


def everything(analysis: Analysis, capsys) -> dict[str, str | bytes]:
    """All that is ever shown of a result."""
    shown: dict[str, str | bytes] = {form: render(analysis, form) for form in ("json", "html", "md")}
    shown |= {name: table.write_csv() for name, table in result_tables(analysis).items()}
    capsys.readouterr()
    print_screen(analysis)
    shown["screen"] = capsys.readouterr().out
    return shown | {"kernels": kernel_rows(analysis).write_csv(), "perfetto": to_perfetto(analysis)}


@pytest.fixture
def same(capsys):
    """Asserts that every field has the same values of the same kinds, and every output the same bytes."""

    def same(one: Analysis, other: Analysis) -> None:
        for field in fields(Analysis):
            mine, its = getattr(one, field.name), getattr(other, field.name)
            if isinstance(mine, pl.DataFrame):
                assert its.schema == mine.schema, field.name
            elif field.name != "trace":
                assert repr(its) == repr(mine), field.name
        for name in FRAMES:
            assert getattr(other.trace, name).equals(getattr(one.trace, name)), name
        assert other.kernels.equals(one.kernels)
        assert other.trace.capture == one.trace.capture
        assert other.trace.gaps_in_evidence == one.trace.gaps_in_evidence
        assert everything(other, capsys) == everything(one, capsys)

    return same


def looks(path: Path, options: Options, cache: Path, files=()) -> tuple[Analysis, Analysis, Analysis]:
    """The analysis without a cache, that of the first look with it, and that of the second."""
    return (
        analyze_capture(Capture(path, tuple(files)), options),
        analyze_capture(Capture(path, tuple(files)), options, cache=cache),
        analyze_capture(Capture(path, tuple(files)), options, cache=cache),
    )


def of_shipped(name):
    return lambda folder: (CAPTURES / f"{name}.sqlite", Options())


def with_options(folder):
    return SGLANG, Options(
        gpu_override="h200", step="median-decode", itl_target_ms=30.0, window="0.01:", kv_dtype="fp8"
    )


def with_ncu(folder):
    run = simulate(replace(MATRIX["vllm-llama-8b-h100-decode-only"], max_steps=8))
    write_ncu_csv(run, folder / "raw.csv", step=3)
    return run.write(folder / "run.sqlite"), Options(model="llama-3.1-8b", ncu=(folder / "raw.csv",))


def of_ncu_alone(folder):
    (folder / "kernels.csv").write_text(NCU)
    return folder / "kernels.csv", Options(gpu="h100")


def of_kineto(folder):
    return write_kineto(SGLANG, folder / "run.pt.trace.json.gz"), Options()


def of_ranks(folder):
    run = simulate(replace(MATRIX["vllm-llama-8b-h100-tp2"], max_steps=20))
    (folder / "ranks").mkdir()
    for rank in range(2):
        run.capture(ranks=[rank]).write(folder / "ranks" / f"run_rank{rank}.sqlite")
    return folder / "ranks", Options()


def of_opaque_graphs(folder):
    return cases.opaque_graphs().write(folder / "opaque.sqlite"), Options()


def of_hostile_text(folder):
    return cases.hostile_text().write(folder / "hostile.sqlite"), Options()


INPUTS = {
    **{name: of_shipped(name) for name in SHIPPED},
    "options": with_options,
    "ncu": with_ncu,
    "ncu alone": of_ncu_alone,
    "kineto": of_kineto,
    "ranks": of_ranks,
    "opaque graphs": of_opaque_graphs,
    "hostile text": of_hostile_text,
}


@pytest.mark.parametrize("name", INPUTS)
def test_a_second_look_gives_the_same_to_the_byte(name, tmp_path, cache, same, analyses):
    path, options = INPUTS[name](tmp_path)
    plain, first, second = looks(path, options, cache)
    assert len(analyses) == 2  # without the cache, and for the first look
    same(plain, first)
    same(plain, second)


def test_runs_in_several_files_are_kept_too(tmp_path, cache, same, analyses):
    folder, options = of_ranks(tmp_path)
    plain, _, second = looks(folder, options, cache, sorted(folder.iterdir()))
    assert len(analyses) == 2
    assert plain.trace.capture.source_name == "run_rank*.sqlite"
    same(plain, second)


def test_one_content_under_another_name(tmp_path, cache, analyses):
    once = analyze_capture(Capture(SGLANG), Options(), cache=cache)
    shutil.copy(SGLANG, tmp_path / "copy.sqlite")
    again = analyze_capture(Capture(tmp_path / "copy.sqlite"), Options(), cache=cache)
    assert len(analyses) == 1
    assert again.trace.capture.source_name == "copy.sqlite"
    assert to_json(again) == to_json(once).replace(SGLANG.name.encode(), b"copy.sqlite")


def test_could_not_look_is_an_answer_and_an_error_is_none(tmp_path, cache, analyses, same):
    path, options = of_opaque_graphs(tmp_path)
    plain, _, second = looks(path, options, cache)
    assert plain.status == second.status != "ok"
    entries = len(list(cache.iterdir()))
    for _ in range(2):
        with pytest.raises(CannotAnswerError):
            analyze_capture(Capture(SGLANG), Options(window="900:"), cache=cache)
    assert len(list(cache.iterdir())) == entries + 1  # what was read of the capture; the failure is not kept
    assert len(analyses) == 4


def test_frames_are_read_when_they_are_asked_for(cache, monkeypatch):
    analyze_capture(Capture(SGLANG), Options(), cache=cache)
    taken = []
    really = Entry.frame
    monkeypatch.setattr(Entry, "frame", lambda entry, name: taken.append(name) or really(entry, name))
    found = analyze_capture(Capture(SGLANG), Options(), cache=cache)
    assert taken == []
    to_json(found)
    assert "steps" in taken
    assert not {"kernels", "kernel_columns", "launches"} & set(taken)
    render(found, "html")
    assert {"kernels", "kernel_columns"} <= set(taken)
    assert "launches" not in taken
    assert len(taken) == len(set(taken))


# ------------------------------------------------------------------------------------------ what makes another entry


def test_options_and_the_content_of_their_files_shape_the_analysis(tmp_path, cache, analyses):
    ceilings = tmp_path / "measured.toml"
    for measured in (3000, 2900):
        ceilings.write_text(f'["*"]\nmemory_bandwidth_gbps = {measured}\n')
        for _ in range(2):
            found = analyze_capture(Capture(SGLANG), Options(ceilings=ceilings), cache=cache)
        assert found.devices[0]["memory_bandwidth_gbps"] == measured
    assert len(analyses) == 2
    analyze_capture(Capture(SGLANG), Options(step="3"), cache=cache)
    analyze_capture(Capture(SGLANG), Options(), cache=cache)
    assert len(analyses) == 4
    assert len(list(cache.iterdir())) == 1 + 4  # the capture was read once


def test_a_model_is_its_config_and_what_lies_beside_it(tmp_path, monkeypatch):
    folder = tmp_path / "mine"
    folder.mkdir()
    config = folder / "config.json"
    seen = set()
    for content in ('{"a": 1}', '{"a": 2}'):
        config.write_text(content)
        seen |= {options_digest(Options(model=str(folder))), options_digest(Options(model=str(config)))}
    (folder / "hf_quant_config.json").write_text("{}")
    seen.add(options_digest(Options(model=str(folder))))
    assert len(seen) == 5
    # a config without a name is called after its folder, which the option need not say
    monkeypatch.chdir(folder)
    here = options_digest(Options(model="config.json"))
    shutil.copytree(folder, tmp_path / "yours")
    monkeypatch.chdir(tmp_path / "yours")
    assert options_digest(Options(model="config.json")) != here


def test_another_tool_never_meets_an_entry(cache, analyses, monkeypatch):
    analyze_capture(Capture(SGLANG), Options(), cache=cache)
    monkeypatch.setattr(store, "_tool", lambda: "changed")
    analyze_capture(Capture(SGLANG), Options(), cache=cache)
    assert len(analyses) == 2


# --------------------------------------------------------------------------------------------------- damaged entries


def damages():
    yield "truncated", lambda file: file.write_bytes(file.read_bytes()[:-1])
    yield "other bytes", lambda file: file.write_bytes(bytes(len(file.read_bytes())))
    yield "gone", lambda file: file.unlink()


@pytest.mark.parametrize("damage", [pytest.param(each, id=name) for name, each in damages()])
@pytest.mark.parametrize("name", ["index", "steps", "kernel_columns", "trace_names", "copies", "kernels"])
def test_a_damaged_entry_is_made_anew(name, damage, cache, same):
    plain, _, _ = looks(SGLANG, Options(), cache)
    files = [file for file in cache.glob("*/*") if file.stem == name]
    before = {file: file.read_bytes() for file in files}
    assert before
    for file in files:
        damage(file)
    same(plain, analyze_capture(Capture(SGLANG), Options(), cache=cache))
    assert {file.stat().st_size for file in files} == {len(content) for content in before.values()}
    assert not [file for file in cache.iterdir() if file.name.startswith(".")]


def test_an_entry_that_vanishes_while_it_is_read(cache, same):
    plain, _, second = looks(SGLANG, Options(), cache)
    shutil.rmtree(cache)
    same(plain, second)


def test_an_entry_of_something_else_is_made_anew(cache, same):
    plain, _, _ = looks(SGLANG, Options(), cache)
    (trace, own) = sorted(cache.iterdir(), key=lambda entry: len(entry.name))
    shutil.rmtree(own)
    shutil.copytree(trace, own)
    same(plain, analyze_capture(Capture(SGLANG), Options(), cache=cache))


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="--cache: cannot write"):
        analyze_capture(Capture(SGLANG), Options(), cache=tmp_path / "file" / "cache")


# -------------------------------------------------------------------------------------------------------- the values
# -------------------------------------------------------------------------------------------------------- the values


def test_values_come_back_with_their_types():
    one = ta.analyze(SGLANG, itl_target_ms=30)
    odd = replace(one, summary=structs.replace(one.summary, gpu_busy_ms=math.nan, capture_ms=math.inf))
    again = decode_values(encode_values(odd))
    assert {name: repr(value) for name, value in again.items()} == {
        name: repr(getattr(odd, name)) for name in KeptValues.__struct_fields__
    }
    assert type(again["what_if"].itl_target.target_ms) is int  # as it was given


def test_what_has_no_form_is_refused():
    one = ta.analyze(SGLANG)
    for value in (object(), "\ud800", 1 << 70):
        with pytest.raises(NotStorableError):
            encode_values(replace(one, status=value))
        with pytest.raises(NotStorableError):
            encode_objects(pl.Series("evidence", [{"marker": value}], dtype=pl.Object))


@pytest.mark.parametrize("content", [b"", b"\xc1", msgspec.msgpack.encode({"status": 1})])
def test_foreign_values_are_refused(content):
    with pytest.raises(ValueError, match=r".*"):
        decode_values(content)
