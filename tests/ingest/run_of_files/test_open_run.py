"""A run in several files is the run in one file: same steps, phases, stalls and waits, whatever the hosts' clocks said."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trace_analyze.analysis.records.errors import CannotAnswerError, NotACaptureError
from trace_analyze.analysis.records.trace import FRAMES
from trace_analyze.fixtures import cases
from trace_analyze.fixtures.matrix import MATRIX, TOGETHER, busy
from trace_analyze.fixtures.simulator.serving import simulate, write_together
from trace_analyze.fixtures.writers.kineto_writer import write_kineto
from trace_analyze.ingest import is_capture_folder, open_trace
from trace_analyze.ingest.run_of_files.clock_skew import Collectives, find_skew
from trace_analyze.ingest.run_of_files.file_names import (
    Recording,
    at_one_time,
    candidates,
    parts,
    pattern_name,
    run_name,
    why_not_apart,
)
from trace_analyze.ingest.run_of_files.open_run import NotOneRunError, place, stated_rank
from trace_analyze.reports.python_api import analyze

MS = 1_000_000


@pytest.fixture(scope="module")
def tp2():
    return simulate(replace(MATRIX["vllm-llama-8b-h100-tp2"], max_steps=40))


def write_ranks(run, folder: Path, *, began_ms=(0.0, 0.0), clock_ms=(0.0, 0.0), name="run_rank{}.sqlite") -> Path:
    """One file per rank. Rank i's session began ``began_ms[i]`` late, and its host's clock is ``clock_ms[i]`` ahead."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, (began, clock) in enumerate(zip(began_ms, clock_ms, strict=True)):
        capture = run.capture(ranks=[rank])
        capture.utc_ns = run.config.utc_ns + round((began + clock) * MS)
        for rows in capture.chunks.values():
            for _, columns in rows:
                for column in ("start", "end", "timestamp"):
                    if columns.get(column) is not None:
                        columns[column] = columns[column] - round(began * MS)
        capture.write(folder / name.format(rank))
    return folder


def steps(analysis) -> pl.DataFrame:
    return analysis.steps.select("device_index", "index", "phase", "kernel_count", "start_ns", "end_ns").sort(
        "device_index", "index"
    )


# -- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", parts(), ids=lambda part: part.what)
def test_every_row_of_the_table_matches_its_examples(part):
    assert part.examples
    assert all(part.pattern.search(example.lower()) for example in part.examples)


@pytest.mark.parametrize(
    ("names", "together"),
    [
        (["run_rank0.sqlite", "run_rank1.sqlite", "run_rank10.sqlite"], True),
        (["run_0.sqlite", "run_1.sqlite"], True),
        (["host_gpu-a07_4711.nsys-rep", "host_gpu-b01_99.nsys-rep"], True),
        (["gpu-a07_4711.sqlite", "gpu-b01_9901.sqlite"], True),
        (["dp0_pp0_tp0_dcp0_ep0_rank0.1766123456789.pt.trace.json.gz",
          "dp0_pp0_tp1_dcp0_ep1_rank1.1766123456999.pt.trace.json.gz"], True),
        (["1766123456.12-TP-0.trace.json.gz", "1766123456.12-TP-1.trace.json.gz"], True),
        (["node3_77.1766123456789.pt.trace.json", "node4_78.1766123456790.pt.trace.json"], True),
        (["prefill.sqlite", "decode.sqlite"], True),
        (["prefill_rank0.sqlite", "prefill_rank1.sqlite", "decode_rank0.sqlite"], True),
        (["chunk512_rank0.sqlite", "chunk2048_rank0.sqlite"], False),
        (["before.sqlite", "after.sqlite"], False),
        (["llama.sqlite", "qwen.sqlite"], False),
    ],
)  # fmt: skip
def test_names_of_one_run(names, together):
    found = candidates([Recording(Path(name), "nsys") for name in names])
    assert [len(group) for group in found] == ([len(names)] if together else [])


def test_ranks_are_in_the_order_of_their_numbers():
    (group,) = candidates([Recording(Path(f"r_rank{n}.sqlite"), "nsys") for n in (10, 2, 0)])
    assert [r.path.name for r in group] == ["r_rank0.sqlite", "r_rank2.sqlite", "r_rank10.sqlite"]


def test_an_export_beside_its_report_is_one_recording():
    names = ["r_rank0.nsys-rep", "r_rank0.sqlite", "r_rank1.nsys-rep", "r_rank1.sqlite"]
    (group,) = candidates([Recording(Path(name), "nsys") for name in names])
    assert [r.path.name for r in group] == ["r_rank0.sqlite", "r_rank1.sqlite"]


def test_repeats_of_one_run_are_split_by_time():
    spans = {"a_rank0": (0, 10), "a_rank1": (2, 9), "b_rank0": (20, 30), "b_rank1": (21, 28), "untimed": (None, None)}
    found = at_one_time([Recording(Path(n), "nsys", *span) for n, span in spans.items()])
    assert [[r.path.name for r in group] for group in found] == [["a_rank0", "a_rank1"], ["b_rank0", "b_rank1"]]


def test_numbers_alone_need_another_process_or_gpu():
    def recording(name, place):
        return Recording(Path(name), "nsys", places=lambda: frozenset([place]) if place else None)

    assert why_not_apart([recording("run_0.sqlite", (1, 0)), recording("run_1.sqlite", (2, 0))]) is None
    assert "same process" in why_not_apart([recording("run_0.sqlite", (1, 0)), recording("run_1.sqlite", (1, 0))])
    assert "which rank" in why_not_apart([recording("run_0.sqlite", None), recording("run_1.sqlite", None)])
    assert why_not_apart([recording("rank0.sqlite", None), recording("rank1.sqlite", None)]) is None


def test_a_name_for_all():
    assert pattern_name(["run_rank0.sqlite", "run_rank12.sqlite"]) == "run_rank*.sqlite"
    assert run_name("run.sqlite") is None


# -- clocks -----------------------------------------------------------------------------------------------------------


def served(count: int, *, seed: int, every: int = 40) -> np.ndarray:
    """Ends of 65 collectives a step of about 4 ms, some steps six times as long."""
    random = np.random.default_rng(seed)
    ends, now = [], 0.0
    for step in range(count):
        length = (4e6 + abs(random.normal(0, 20_000))) * (6 if every and step % every == every - 1 else 1)
        ends.append(now + (np.arange(65) + 0.5) / 65 * length * 0.97 + random.normal(0, 300, 65))
        now += length
    return np.sort(np.concatenate(ends).astype(np.int64))


def collectives(ends: np.ndarray) -> Collectives:
    return Collectives(np.sort(ends), np.zeros(len(ends), dtype=np.int64))


@given(ahead_us=st.integers(-2_000_000, 2_000_000), seed=st.integers(0, 50), lost=st.sampled_from([0.0, 0.001]))
@settings(max_examples=8)
def test_skew_is_found_within_a_microsecond(ahead_us, seed, lost):
    random = np.random.default_rng(seed)
    one = served(120, seed=seed)
    other = one + ahead_us * 1000 + random.normal(0, 2000, len(one)).astype(np.int64)
    keep = random.random(len(one)) >= lost
    found = find_skew(collectives(one[keep]), collectives(other), clock_known=True)
    assert found is not None or lost
    assert found is None or abs(found.ahead_ns - ahead_us * 1000) < 1000
    assert found is None or 1000 < found.spread_ns < 3000


def test_drift_is_found():
    one = served(500, seed=1)
    other = np.round(one * (1 + 15e-6)).astype(np.int64) + 4 * MS
    found = find_skew(collectives(one), collectives(other), clock_known=True)
    assert found.drift == pytest.approx(15e-6, rel=0.01)
    at_one = (found.at_ns - 4 * MS) / (1 + 15e-6)
    assert found.ahead_ns == pytest.approx(found.at_ns - at_one, abs=1000)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("every", [0, 40])
def test_replicas_do_not_set_each_others_clock(seed, every):
    one, other = served(150, seed=seed, every=every), served(150, seed=seed + 100, every=every)
    assert find_skew(collectives(one), collectives(other), clock_known=True) is None


def test_perfectly_even_collectives_tell_nothing():
    one = np.arange(2000, dtype=np.int64) * 60_000
    assert find_skew(collectives(one), collectives(one + 3 * MS), clock_known=True) is None


# -- a run in files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("began_ms", "clock_ms"),
    [((0.0, 0.0), (0.0, 0.0)), ((0.0, 12.5), (0.0, 3.7)), ((9.0, 0.0), (0.0, -0.041)), ((0.0, 2.0), (0.0, 900.0))],
)
def test_ranks_in_files_equal_the_run_in_one_file(tp2, tmp_path, began_ms, clock_ms):
    together = analyze(open_trace(tp2.write(tmp_path / "one.sqlite")))
    trace = open_trace(write_ranks(tp2, tmp_path / "run", began_ms=began_ms, clock_ms=clock_ms))
    apart = analyze(trace)
    assert apart.groups.equals(together.groups)
    assert apart.groups["kind"].to_list() == ["tensor_parallel"]
    one, other = steps(together), steps(apart)
    assert other.drop("start_ns", "end_ns").equals(one.drop("start_ns", "end_ns"))
    first = min(began_ms)  # the earliest session start is 0 on the common clock
    for column in ("start_ns", "end_ns"):
        moved = (other[column] - one[column]).to_numpy() + round(first * MS)
        constant = moved[0]  # where rank 1's session is the earliest, its skew is part of the common zero
        assert np.abs(moved - constant).max() <= 1000
    assert apart.stalls.height == together.stalls.height
    assert apart.summary["stall_ms"] == pytest.approx(together.summary["stall_ms"], abs=0.01)
    keys = ["name", "group", "phase"]
    waits = together.collectives.join(apart.collectives, on=keys, suffix="_apart")
    assert waits.height == together.collectives.height > 0
    per_call = (waits["wait_ms"] - waits["wait_ms_apart"]).abs() / waits["count"]
    assert per_call.max() < 1e-3
    assert waits["late_device"].to_list() == waits["late_device_apart"].to_list()
    assert any("run_rank1.sqlite: its session began" in note for note in trace.capture.notes)


def test_skew_is_reported_with_its_spread(tp2, tmp_path):
    trace = open_trace(write_ranks(tp2, tmp_path / "run", began_ms=(0, 12.5), clock_ms=(0, 3.7)))
    note = next(n for n in trace.capture.notes if n.startswith("run_rank1.sqlite"))
    assert "16.200 ms after" in note
    assert "clock runs 3,70" in note
    assert "spread" in note
    assert trace.capture.source_name == "run"
    assert trace.devices["device"].to_list() == [0, 1]


def test_every_frame_keeps_the_contract(tp2, tmp_path):
    """Ids point into the pools, rows are sorted, keys of the two files stay apart."""
    one = open_trace(tp2.write(tmp_path / "one.sqlite"))
    trace = open_trace(write_ranks(tp2, tmp_path / "run", began_ms=(0, 5)))
    for name in FRAMES:
        frame, whole = getattr(trace, name), getattr(one, name)
        assert frame.height == whole.height, name
        times = [c for c in ("start_ns", "time_ns") if c in frame.columns]
        assert all(frame[c].is_sorted() for c in times), name
    read = trace.kernels.join(trace.names, on="name_id").group_by("name").len().sort("name")
    assert read.equals(one.kernels.join(one.names, on="name_id").group_by("name").len().sort("name"))
    assert trace.ranges.join(trace.texts, on="text_id").height == trace.ranges.height
    assert trace.kernels["device_index"].n_unique() == 2


def test_equal_processes_and_ordinals_of_two_hosts_stay_apart(tp2, tmp_path):
    """Containers give every rank the same process id and call every GPU 0."""
    for host in "ab":
        target = tmp_path / "run" / f"host_{host}_71104.sqlite"
        target.parent.mkdir(exist_ok=True)
        capture = simulate(replace(tp2.config, tensor_parallel=1, seed=ord(host))).capture()
        capture.write(target)
    trace = open_trace(tmp_path / "run")
    assert trace.kernels["process"].n_unique() == 2
    assert {p & 0xFFFFFF for p in trace.kernels["process"].unique()} == {71104}
    assert trace.launches["thread"].n_unique() == 2
    assert trace.devices["device"].to_list() == [0, 1]
    assert any("number their GPUs alike" in note for note in trace.capture.notes)


def test_prefill_and_decode_workers_side_by_side(tmp_path):
    prefill, decode = (simulate(config) for config in TOGETHER["prefill-and-decode-workers"])
    together = analyze(open_trace(write_together([prefill, decode], tmp_path / "one.sqlite")))
    (tmp_path / "run").mkdir()
    prefill.write(tmp_path / "run" / "prefill.sqlite")
    decode.write(tmp_path / "run" / "decode.sqlite")
    trace = open_trace(tmp_path / "run")
    apart = analyze(trace)
    assert apart.groups["kind"].to_list() == ["single", "single"]
    assert apart.summary["stall_count"] == together.summary["stall_count"] == 0
    phases = {frozenset(s["phase"].unique()) for s in apart.steps.partition_by("group")}
    assert phases == {frozenset({"prefill"}), frozenset({"decode"})}
    assert any("no collectives in common" in note for note in trace.capture.notes)


def test_tensor_parallel_prefill_and_decode_workers_are_checked_among_themselves(tmp_path):
    config = replace(MATRIX["vllm-llama-8b-h100-tp2"], max_steps=24)
    prefill, decode = (
        simulate(config),
        simulate(replace(config, first_device=2, seed=77, requests=busy(3.1, output=30))),
    )
    for name, run in (("prefill", prefill), ("decode", decode)):
        write_ranks(run, tmp_path / "run", clock_ms=(0.0, 2.0), name=name + "_rank{}.sqlite")
    trace = open_trace(tmp_path / "run")
    said = [n for n in trace.capture.notes if "collectives end together" in n]
    assert [n.split(":")[0] for n in said] == ["decode_rank1.sqlite", "prefill_rank1.sqlite"]
    assert "with prefill_rank0.sqlite" in said[1]
    assert analyze(trace).groups["kind"].to_list() == ["tensor_parallel", "tensor_parallel"]


def test_kineto_traces_of_two_ranks(tp2, tmp_path):
    folder = write_ranks(tp2, tmp_path / "nsys")
    (tmp_path / "run").mkdir()
    for rank in range(2):
        write_kineto(
            folder / f"run_rank{rank}.sqlite", tmp_path / "run" / f"vllm_rank{rank}.17661234567{rank}.pt.trace.json.gz"
        )
    trace = open_trace(tmp_path / "run")
    assert trace.capture.format == "kineto_json"
    assert analyze(trace).groups["kind"].to_list() == ["tensor_parallel"]


def test_stated_rank_is_read_from_the_beginning(tmp_path):
    path = tmp_path / "a.pt.trace.json"
    path.write_text(
        '{"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8}, "traceEvents": []}'
    )
    assert stated_rank(path) == 3
    assert stated_rank(tmp_path / "absent") is None


# -- refusals ---------------------------------------------------------------------------------------------------------


def test_unrelated_captures_are_refused_with_a_way_on(tp2, tmp_path):
    write_ranks(tp2, tmp_path / "f")
    shutil.copy(tmp_path / "f" / "run_rank0.sqlite", tmp_path / "f" / "other.sqlite")
    with pytest.raises(NotOneRunError, match=r"2 files like run_rank0.sqlite, other.sqlite.*trace-analyze batch"):
        open_trace(tmp_path / "f")


def test_files_of_different_times_are_refused(tp2, tmp_path):
    write_ranks(tp2, tmp_path / "f", clock_ms=(0, 3_600_000))
    with pytest.raises(NotOneRunError, match=r"do not overlap in time.*3600"):
        open_trace(tmp_path / "f")


def test_a_copy_is_no_second_rank(tp2, tmp_path):
    write_ranks(tp2, tmp_path / "f")
    shutil.copy(tmp_path / "f" / "run_rank0.sqlite", tmp_path / "f" / "run_rank1.sqlite")
    with pytest.raises(NotOneRunError, match="one is a copy"):
        open_trace(tmp_path / "f")


def test_a_file_without_session_start_is_placed_by_its_collectives_or_refused(tp2, tmp_path):
    first, second = (
        open_trace(write_ranks(tp2, tmp_path / "f", began_ms=(0, 7.0)) / f"run_rank{i}.sqlite") for i in range(2)
    )
    silent = replace(second, capture=replace(second.capture, session_start_utc_ns=None))
    placements, notes = place([first, silent])
    assert placements[1].shift_ns - placements[0].shift_ns == pytest.approx(7 * MS, abs=1000)
    assert "placed by its collectives" in notes[0]
    without = replace(silent, kernels=silent.kernels.head(20))
    with pytest.raises(CannotAnswerError, match="does not record when its session began"):
        place([first, without])


def test_a_file_without_gpu_work_is_left_out_and_said(tp2, tmp_path):
    folder = write_ranks(tp2, tmp_path / "f")
    cases.no_kernels().write(folder / "run_rank2.sqlite")
    trace = open_trace(folder)
    assert "run_rank2.sqlite was left out: no GPU work in it." in trace.capture.notes
    assert trace.devices.height == 2


def test_a_damaged_file_is_named(tp2, tmp_path):
    folder = write_ranks(tp2, tmp_path / "f")
    whole = (folder / "run_rank1.sqlite").read_bytes()
    (folder / "run_rank1.sqlite").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(NotACaptureError, match=r"run_rank1.sqlite.*move it away"):
        open_trace(folder)


def test_a_folder_of_ranks_is_no_capture_folder(tp2, tmp_path):
    assert not is_capture_folder(write_ranks(tp2, tmp_path / "f"))


def test_the_cache_gives_the_same_run(tp2, tmp_path):
    folder = write_ranks(tp2, tmp_path / "f", began_ms=(0, 3))
    once = open_trace(folder, cache=tmp_path / "cache")
    again = open_trace(folder, cache=tmp_path / "cache")
    assert again.capture == once.capture
    assert again.kernels.equals(once.kernels)


def test_the_working_folder_is_a_run_with_a_name(tp2, tmp_path, monkeypatch):
    monkeypatch.chdir(write_ranks(tp2, tmp_path / "ranks"))
    assert open_trace(".").capture.source_name == "ranks"
