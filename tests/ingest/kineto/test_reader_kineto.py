"""Traces of the PyTorch profiler, written here event by event, and the real ones where they are at hand."""

from __future__ import annotations

import gzip
import json
import time
from decimal import Decimal
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trace_analyze.analysis.records.errors import CannotAnswerError, NotACaptureError
from trace_analyze.ingest.api_names import kind_of_call, plain_name
from trace_analyze.ingest.kineto import reader as kineto
from trace_analyze.ingest.kineto.events import Event, nanoseconds
from trace_analyze.ingest.kineto.json_stream import EventStream, inflate_head

HOST = {"pid": 100, "tid": 101}
GPU = {"pid": 0, "tid": 7}
H100 = {
    "id": 0,
    "name": "NVIDIA H100 80GB HBM3",
    "totalGlobalMem": 85017493504,
    "computeMajor": 9,
    "computeMinor": 0,
    "maxThreadsPerMultiprocessor": 2048,
    "regsPerMultiprocessor": 65536,
    "warpSize": 32,
    "sharedMemPerMultiprocessor": 233472,
    "numSms": 132,
}
FACTS = {
    "schemaVersion": 1,
    "deviceProperties": [H100],
    "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8},
    "baseTimeNanoseconds": 1_700_000_000_000_000_000,
}


def event(cat, name, ts, dur, args=None, **place):
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "args": args or {}, **place}


def launch(name, ts, correlation, **args):
    return event("cuda_runtime", name, ts, 5, {"correlation": correlation, **args}, **HOST)


def kernel(name, ts, dur, correlation, **args):
    place = {"device": 0, "context": 1, "stream": 7, "grid": [4, 2, 1], "block": [128, 1, 1]}
    shape = {"registers per thread": 32, "shared memory": 2048}
    return event("kernel", name, ts, dur, {**place, **shape, "correlation": correlation, **args}, **GPU)


def write(path: Path, events, facts=None, **kwargs) -> Path:
    path.write_text(json.dumps({**(FACTS if facts is None else facts), "traceEvents": events}, **kwargs))
    return path


def one_step():
    return [
        event("user_annotation", "step[DECODE bs=2]", 1000.0, 100, **HOST),
        event("cpu_op", "aten::mm", 1010, 20, {"Input Dims": [[16, 4096], [4096, 6144]], "External id": 5}, **HOST),
        event("cpu_op", "aten::view", 1035, 2, {"Input Dims": [[16, 4096]]}, **HOST),
        event("cpu_op", "aten::item", 1040, 2, {"Input Dims": [[], []]}, **HOST),
        launch("cudaLaunchKernel", 1015.5, 7),
        kernel("void ns::gemm<64, 128>(int*)", 1050.125, 30.25, 7),
        event("gpu_user_annotation", "step[DECODE bs=2]", 1050.125, 30.25, **GPU),
        {"ph": "s", "id": 7, "cat": "ac2g", "name": "ac2g", "ts": 1015.5, **HOST},
        launch("cudaMemcpyAsync", 1085, 8),
        event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 1090, 2, {"device": 0, "stream": 7, "correlation": 8, "bytes": 64}, **GPU),
        event("gpu_memset", "Memset (Device)", 1093, 1, {"device": 0, "stream": 7, "correlation": 9, "bytes": 8}, **GPU),
        launch("cudaStreamSynchronize", 1095, 10),
    ]  # fmt: skip


def texts(trace, frame):
    return frame.join(trace.texts, on="text_id", maintain_order="left")["text"].to_list()


def test_one_step_as_a_trace(tmp_path):
    trace = kineto.read(write(tmp_path / "a.pt.trace.json", one_step()))
    row = trace.kernels.row(0, named=True)
    # 1,050.125 us is 50,125 ns after the first event at 1,000 us
    assert (row["start_ns"], row["end_ns"]) == (50_125, 80_375)
    assert (row["grid_x"], row["grid_y"], row["block_x"], row["registers"], row["shared_memory_bytes"]) == (4, 2, 128, 32, 2048)  # fmt: skip
    assert (row["correlation_id"], row["process"], row["stream"], row["context"]) == (7, 100, 7, 1)
    assert (row["graph_node_id"], row["graph_id"]) == (-1, -1)
    assert trace.names["short_name"].to_list() == ["gemm"]
    assert trace.launches["kind"].to_list() == ["kernel"]
    assert trace.launches["thread"].to_list() == [(100 << 24) | 101]
    assert trace.api_calls["kind"].to_list() == ["copy", "sync"]
    assert trace.copies.select("kind", "bytes").rows() == [("d2h", 64), ("memset", 8)]
    assert trace.capture.session_start_utc_ns == 1_700_000_000_000_000_000 + 1_000_000
    assert (trace.capture.rank, trace.capture.world_size) == (3, 8)


def test_ranges_are_annotations_and_shaped_operators_that_launch(tmp_path):
    trace = kineto.read(write(tmp_path / "a.json", one_step()))
    found = list(zip(texts(trace, trace.ranges), trace.ranges["kind"], trace.ranges["thread"], strict=True))
    thread = (100 << 24) | 101
    assert found == [
        ("step[DECODE bs=2]", "annotation", thread),
        # the text that emit_nvtx would have written; aten::view launches nothing, aten::item has no sizes
        ("aten::mm, sizes = [[16, 4096], [4096, 6144]]", "annotation", thread),
        ("step[DECODE bs=2]", "gpu_annotation", -1),
    ]
    gpu = trace.ranges.filter(pl.col("kind") == "gpu_annotation").row(0, named=True)
    assert (gpu["device_index"], gpu["stream"], gpu["start_ns"]) == (0, 7, 50_125)


def test_devices_come_from_device_properties(tmp_path):
    device = kineto.read(write(tmp_path / "a.json", one_step())).devices.row(0, named=True)
    assert device["gpu_name"] == "NVIDIA H100 80GB HBM3"
    assert (device["gpu_source"], device["mapping"]) == ("deviceProperties", "exact")
    assert (device["sm_count"], device["compute_capability"], device["max_warps_per_sm"]) == (132, "9.0", 64)
    assert device["memory_bandwidth_bytes_per_s"] is None  # a trace never says


@pytest.mark.parametrize(
    ("listed", "mapping", "name"),
    [
        ([], "none", None),
        ([{**H100, "id": 0}, {**H100, "id": 1}], "one_name", H100["name"]),
        ([{**H100, "id": 0}, {**H100, "id": 1, "name": "NVIDIA A40"}], "none", None),
        ([{**H100, "id": 5, "name": "NVIDIA A40"}, H100], "exact", "NVIDIA A40"),
    ],
)
def test_device_5_among_the_listed_ones(tmp_path, listed, mapping, name):
    events = [kernel("k", 10, 1, 1, device=5)]
    trace = kineto.read(write(tmp_path / "a.json", events, {**FACTS, "deviceProperties": listed}))
    device = trace.devices.row(0, named=True)
    assert (device["device"], device["mapping"], device["gpu_name"]) == (5, mapping, name)


def test_rocm_device_ids_prove_nothing_and_a_grid_may_be_in_threads(tmp_path):
    events = [
        launch("hipExtModuleLaunchKernel", 1, 4),
        kernel("Cijk_Alik_Bljk", 10, 1, 4, grid=[114944, 1, 1], block=[256, 1, 1]),  # 449 blocks of 256 threads
        launch("hipModuleLaunchKernel", 2, 5),
        kernel("triton_poi_fused_0", 20, 1, 5, grid=[32, 1, 1], block=[256, 1, 1]),
    ]
    facts = {"roctracer_version": 4.1, "deviceProperties": [{**H100, "name": "AMD Instinct MI300X", "warpSize": 64}]}
    trace = kineto.read(write(tmp_path / "a.json", events, facts))
    assert trace.kernels["grid_x"].to_list() == [449, 32]
    device = trace.devices.row(0, named=True)
    assert (device["mapping"], device["compute_capability"], device["max_warps_per_sm"]) == ("one_name", None, 32)


def test_graph_replay_shares_one_correlation_and_node_0_means_none(tmp_path):
    events = [
        launch("cudaGraphLaunch_v10000", 1, 9),
        kernel("a", 10, 1, 9, **{"graph id": 3, "graph node id": 8589934592}),
        kernel("b", 12, 1, 9, **{"graph id": 3, "graph node id": 8589934593}),
        launch("cuLaunchKernelEx", 20, 10),
        kernel("c", 30, 1, 10, **{"graph id": 0, "graph node id": 0}),
    ]
    trace = kineto.read(write(tmp_path / "a.json", events))
    assert trace.launches["kind"].to_list() == ["graph", "kernel"]
    assert texts(trace, trace.launches) == ["cudaGraphLaunch", "cuLaunchKernelEx"]
    assert trace.kernels.select("graph_id", "graph_node_id").rows() == [(3, 8589934592), (3, 8589934593), (-1, -1)]
    assert trace.capture.graph_trace_mode == "node"


def merged(labels, devices):
    """Two ranks in one file; each counts its correlation ids from 7."""
    events = []
    for place, (label, device) in enumerate(zip(labels, devices, strict=True)):
        rank = [launch("cudaLaunchKernel", 10 + place, 7), kernel(f"rank {place}", 20 + place, 5, 7, device=device)]
        rank.append(event("gpu_user_annotation", "step", 20 + place, 5, pid=device, tid=7))
        for one in rank:
            host = one["cat"] == "cuda_runtime"
            number = (100 if label else 100 + place) if host else one["pid"] if one["cat"] != "kernel" else device
            events.append({**one, "pid": f"{label} {number}" if label else number})
    return events


@pytest.mark.parametrize(
    ("labels", "devices"),
    [
        (("[TP00]", "[TP01]"), (0, 1)),
        (("[TP00-DP00]", "[TP00-DP01]"), (0, 0)),  # each rank sees its GPU as number 0
        (("", ""), (0, 1)),  # merged by hand, pids kept
    ],
)
def test_merged_ranks_stay_apart(tmp_path, labels, devices):
    trace = kineto.read(write(tmp_path / "merged.json", merged(labels, devices)))
    assert trace.devices["device"].to_list() == list(devices)
    assert trace.kernels["device_index"].to_list() == [0, 1]
    assert trace.kernels["process"].n_unique() == 2
    tied = trace.kernels.join(trace.launches, on=["process", "correlation_id"], suffix="_launch").sort("start_ns")
    assert tied.select((pl.col("start_ns") - pl.col("start_ns_launch")).alias("lag"))["lag"].to_list() == [10_000] * 2
    assert trace.ranges["device_index"].to_list() == [0, 1]
    assert trace.ranges["process"].to_list() == trace.kernels["process"].to_list()


def test_without_runtime_calls_external_ids_lead_to_operators(tmp_path):
    events = [
        event("cpu_op", "aten::mm", 10, 20, {"External id": 5}, **HOST),
        kernel("gemm", 50, 3, 7, **{"External id": 5}),
        kernel("stray", 60, 3, 8, **{"External id": 6}),
    ]
    trace = kineto.read(write(tmp_path / "a.json", events))
    assert trace.launches.select("correlation_id", "start_ns", "end_ns").rows() == [(7, 0, 20_000)]
    assert texts(trace, trace.launches) == ["aten::mm"]
    assert "no runtime calls" in [gap.what for gap in trace.gaps_in_evidence]


def test_bad_rows_are_counted(tmp_path):
    events = [
        kernel("good", 10, 1, 1),
        {**kernel("no duration", 10, 1, 2), "dur": None},
        kernel("runs backwards", 10, -1, 3),
        kernel("never timed", 0, 0, 4),
        kernel("odd args", 11, 1, 5, stream="7", grid="(1,1,1)"),
        {**kernel("no args", 12, 1, 5), "args": None},
    ]
    trace = kineto.read(write(tmp_path / "a.json", events))
    assert trace.kernels.height == 3
    assert trace.capture.rejected_rows == {
        "kernel without a start or a duration": 1,
        "kernel with a negative duration": 1,
        "kernel whose timing was not collected": 1,
    }
    odd = trace.kernels.row(1, named=True)
    assert (odd["stream"], odd["grid_x"], odd["block_x"]) == (7, None, 128)


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        (b"4909914216204.635", 4_909_914_216_204_635),  # a float64 of this is 4909914216204.6348
        (b"1700000000123456.789", 1_700_000_000_123_456_789),  # here a float64 is wrong by up to 125 ns
        (b"13.7", 13_700),
        (b"13", 13_000),
        (b"-0.5", -500),
        (b'"7.25"', 7_250),
        (b"1.2345", 1_235),  # a fourth digit rounds
        (b"1.5e3", 1_500_000),
        (b"null", None),
        (b"9223372036854775807", None),  # beyond what 64 bits of ns can hold
        (b"1e400", None),
        (b"", None),
    ],
)
def test_times_are_exact(text, ns):
    assert nanoseconds([text]).to_list() == [ns]


@given(st.integers(-(10**17), 10**17))
def test_every_time_with_three_decimals_survives(ns):
    assert nanoseconds([f"{Decimal(ns) / 1000:f}".encode()]).to_list() == [ns]


@given(
    st.lists(st.text(alphabet='ab{}[],"\\ \n:é', max_size=12), max_size=30),
    st.sampled_from([None, 2]),
    st.integers(8, 400),
    st.booleans(),
)
def test_batches_never_lose_or_split_an_event(tmp_path_factory, names, indent, block, facts_last):
    events = [{"ph": "X", "name": name, "ts": place, "args": {"list": [{"a": 1}, {"name": "b"}]}} for place, name in enumerate(names)]  # fmt: skip
    facts = {"baseTimeNanoseconds": 5, "traceName": "x"}
    whole = {"traceEvents": events, **facts} if facts_last else {**facts, "traceEvents": events}
    path = tmp_path_factory.mktemp("stream") / "t.json"
    path.write_text(json.dumps(whole, indent=indent, ensure_ascii=False))
    stream = EventStream(path, Event, block_bytes=block)
    found = [one.name for batch in stream for one in batch]
    assert found == names
    assert stream.facts == facts


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_gzip_is_streamed_and_sniffed(tmp_path, name):
    text = json.dumps({**FACTS, "traceEvents": one_step()}).encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    assert kineto.sniff(path, path.read_bytes()[:4096])
    assert kineto.read(path).kernels.height == 1


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        (b'\xef\xbb\xbf{"schemaVersion": 1, "deviceProperties": []', True),
        (b'[\n{"ph": "X", "cat": "kernel"', True),
        (b'{"model_type": "llama"}', False),
        (b'[{"a": 1}]', False),
        (b"SQLite format 3\0", False),
        (b"", False),
    ],
)
def test_sniff_looks_at_content(text, taken):
    assert kineto.sniff(Path("x"), text) is taken


def test_array_form_bare_nan_and_broken_utf8_are_read(tmp_path):
    text = json.dumps([kernel("caf\xe9", 10, 1, 1, **{"memory bandwidth (GB/s)": "@"})], ensure_ascii=False)
    path = tmp_path / "a.json"
    path.write_bytes(text.replace('"@"', "-nan").encode("latin-1"))
    assert kineto.read(path).names["name"].to_list() == ["caf�"]


ODD = [None, -1, 2**63, -(2**70), 1.5, 1e308, "x", "12", [], [2**40, 1, 1], {}, True]


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_one_odd_value_costs_no_more_than_its_row(tmp_path, odd):
    events = [*one_step(), kernel("sound", 2000, 1, 99)]
    for one in one_step():
        events += [{**one, field: odd} for field in ("cat", "name", "pid", "tid", "ts", "dur", "args")]
        events += [{**one, "args": {**one.get("args", {}), field: odd}} for field in one.get("args", ())]
    facts = {**FACTS, "deviceProperties": [H100, *({**H100, field: odd} for field in H100), odd]}
    trace = kineto.read(write(tmp_path / "a.json", events, facts))
    assert "sound" in trace.names["name"].to_list()
    sound = trace.names.filter(pl.col("name") == "sound")["name_id"][0]
    assert trace.kernels.filter(pl.col("name_id") == sound)["grid_x"].to_list() == [4]
    for field in FACTS:
        assert kineto.read(write(tmp_path / "a.json", one_step(), {**FACTS, field: odd})).kernels.height == 1


@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.99])
def test_a_cut_off_trace_is_refused(tmp_path, share):
    text = json.dumps({**FACTS, "traceEvents": one_step() * 40})
    path = tmp_path / "cut.json"
    path.write_text(text[: int(len(text) * share)])
    with pytest.raises(NotACaptureError, match=r"damaged or cut off|without a 'traceEvents' array"):
        kineto.read(path)
    zipped = tmp_path / "cut.json.gz"
    whole = gzip.compress(text.encode())
    zipped.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(NotACaptureError):
        kineto.read(zipped)


def test_json_without_kernels_is_told_apart(tmp_path):
    browser = write(tmp_path / "chrome.json", [{"ph": "X", "cat": "devtools", "name": "x", "ts": 1, "dur": 1}], {})
    with pytest.raises(NotACaptureError, match="not of the PyTorch profiler"):
        kineto.read(browser)
    cpu_only = write(tmp_path / "cpu.json", [event("cpu_op", "aten::mm", 1, 1, **HOST)])
    with pytest.raises(CannotAnswerError, match="without a single GPU kernel"):
        kineto.read(cpu_only)


def test_graph_capture_is_no_run(tmp_path):
    captured = [launch("cudaStreamBeginCapture", 1, 1)] + [launch("cudaLaunchKernel", 2 + i, 10 + i) for i in range(9)]
    with pytest.raises(CannotAnswerError, match="capture of a CUDA graph, not a run"):
        kineto.read(write(tmp_path / "a.json", [*captured, kernel("fill", 50, 1, 10)]))
    replay = [launch("cudaGraphLaunch", 60, 30), kernel("fill", 70, 1, 30)]
    assert kineto.read(write(tmp_path / "b.json", [*captured, *replay])).kernels.height == 1


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        ("cudaLaunchKernel_v7000", "kernel"),
        ("cudaLaunchKernelExC_v11060", "kernel"),
        ("cudaLaunchCooperativeKernel_ptsz", "kernel"),
        ("cuLaunchKernelEx", "kernel"),
        ("hipExtModuleLaunchKernel", "kernel"),
        ("cudaGraphLaunch_v10000", "graph"),
        ("hipGraphLaunch", "graph"),
        ("cudaGraphKernelNodeSetParams", "other"),
        ("cudaLaunchHostFunc", "other"),
        ("cudaMemcpyAsync_v3020", "copy"),
        ("cuMemsetD32Async", "memset"),
        ("cudaMalloc", "malloc"),
        ("cuMemAlloc_v2", "malloc"),
        ("cudaEventSynchronize", "sync"),
        ("cudaStreamWaitEvent", "event"),
        ("cudaEventRecordWithFlags", "event"),
        ("hipPointerGetAttribute", "other"),
    ],
)
def test_calls_by_name(call, kind):
    assert kind_of_call(call) == kind


def test_version_suffixes_go():
    names = ["cudaLaunchKernel_v7000", "cudaLaunchKernel_ptsz_v7000", "cuLaunchKernelEx_ptsz", "cuMemAlloc_v2"]
    assert [plain_name(name) for name in names] == ["cudaLaunchKernel", "cudaLaunchKernel", "cuLaunchKernelEx", "cuMemAlloc"]  # fmt: skip


# Counts by hand (grep) from the real files; kernels, launches, graph launches, copies.
@pytest.mark.parametrize(
    ("name", "kernels", "launches", "graphs", "copies", "world"),
    [
        ("vllm-mixed-9-prefill-37-decode-piecewise-graph", 413, 52, 25, 10, 1),
        ("vllm-decode-full-graph-bs32", 425, 4, 1, 9, 1),
        ("sglang-qwen3-8b-decode-bs32-mi300x", 555, 11, 1, 3, 1),
        ("vllm-tp8-rank0-prefill-eager-b200", 768, 768, 0, 161, 8),
    ],
)
def test_real_steps(shared_traces, name, kernels, launches, graphs, copies, world):
    trace = kineto.read(shared_traces / "kineto" / f"{name}.json.gz")
    kinds = trace.launches["kind"]
    assert (trace.kernels.height, (kinds == "kernel").sum(), (kinds == "graph").sum()) == (kernels, launches, graphs)
    assert (trace.copies.height, trace.capture.world_size) == (copies, world)
    linked = trace.kernels.join(trace.launches, on=["process", "correlation_id"], how="semi").height
    assert linked == kernels


def test_real_graph_capture_is_refused(shared_traces):
    with pytest.raises(CannotAnswerError, match="428 launches"):
        kineto.read(shared_traces / "kineto" / "vllm-graph-capture-not-a-run.json.gz")


# ------------------------------------------------------------------------------------------------- hostile inputs

GOOD = '{"ph":"X","cat":"kernel","name":"good","pid":0,"tid":7,"ts":1,"dur":2,"args":{"device":0,"stream":7}}'


def odd_kernel(**changed):
    """One kernel event as text, values given as JSON text."""
    values = {"ts": "1", "dur": "2", "device": "0", "stream": "7", "correlation": "1", "grid": "[1,1,1]"} | changed
    args = ",".join(f'"{key}":{values[key]}' for key in ("device", "stream", "correlation", "grid"))
    return f'{{"ph":"X","cat":"kernel","name":"odd","pid":0,"tid":7,"ts":{values["ts"]},"dur":{values["dur"]},"args":{{{args}}}}}'


def write_text(path, *events, before='"schemaVersion":1,', after=""):
    path.write_text(f'{{{before}"traceEvents":[{",".join(events)}]{after}}}')
    return path


@pytest.mark.parametrize("field", ["ts", "dur"])
@pytest.mark.parametrize("value", ["1e900000", '"1e900000"', "-1e900000", "1e99", "9" * 5000, '"nan"', '"inf"'])
def test_a_time_beyond_all_times_costs_its_row_and_no_time(tmp_path, field, value):
    began = time.process_time()
    trace = kineto.read(write_text(tmp_path / "t.json", GOOD, odd_kernel(**{field: value})))
    assert time.process_time() - began < 5  # it was 20 s: a number of 900,000 digits was written out
    assert trace.kernels.height == 1
    assert sum(trace.capture.rejected_rows.values()) == 1


def test_a_time_too_small_to_see_is_zero(tmp_path):
    trace = kineto.read(write_text(tmp_path / "t.json", GOOD, odd_kernel(ts="1e-900000")))
    assert trace.kernels["start_ns"].to_list() == [0, 1000]


@pytest.mark.parametrize(
    "value", ["1e999", "-1e999", "9" * 5000, str(2**62), str(-(2**63)), "Infinity", '"x"', "1.5", "[]"]
)
@pytest.mark.parametrize("field", ["device", "stream", "correlation", "grid"])
def test_a_number_beyond_its_field_costs_that_value(tmp_path, field, value):
    given = f"[{value},1,1]" if field == "grid" and value != "Infinity" else value
    trace = kineto.read(write_text(tmp_path / "t.json", GOOD, odd_kernel(**{field: given})))
    assert trace.kernels.height == 2
    kept = trace.kernels.select("device_index", "stream", "context", "correlation_id")
    assert kept.null_count().row(0) == (0, 0, 0, 0)  # what is absent is -1


@pytest.mark.parametrize(
    ("event_text", "why"),
    [
        ('{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7}', "without a start or a duration"),
        (odd_kernel(dur="-1"), "with a negative duration"),
        (odd_kernel(ts="0", dur="0"), "whose timing was not collected"),
        (odd_kernel(ts="1e900000"), "without a start or a duration"),
    ],
)
def test_no_kernel_with_a_time_is_no_answer(tmp_path, event_text, why):
    with pytest.raises(CannotAnswerError, match=f"no kernel with a time that can be true .1 rows: kernel {why}"):
        kineto.read(write_text(tmp_path / "t.json", event_text))


NESTED = "[" * 3000 + "]" * 3000


@pytest.mark.parametrize(
    "parts",
    [
        {"events": [GOOD, odd_kernel(grid=NESTED)]},
        {"events": [GOOD, GOOD[:-1] + f',"name":{NESTED}}}']},
        {"events": [GOOD, GOOD[:-1] + f',"unknown":{NESTED}}}']},
        {"events": [GOOD], "before": f'"schemaVersion":1,"x":{NESTED},'},
        {"events": [GOOD], "after": f',"x":{NESTED}'},
        {"events": [NESTED]},
    ],
)
def test_three_thousand_brackets_are_damage(tmp_path, parts):
    path = write_text(tmp_path / "t.json", *parts.pop("events"), **parts)
    with pytest.raises(NotACaptureError, match="nested more than a thousand deep"):
        kineto.read(path)


@pytest.mark.parametrize(
    ("begin", "filling", "said"),
    [
        (b'{"schemaVersion":1,"traceEvents":[{"ph":"X","name":"', b"a", "one event longer than 200,000 bytes"),
        (b'{"schemaVersion":1,"traceEvents":[', b" ", "one event longer than 200,000 bytes"),
        (b'{"schemaVersion":1,"traceEvents":[{"a":1}', b'},{"a":', "one event longer than 200,000 bytes"),
        (b'{"schemaVersion":1,', b"\n", "no event in its first 100,000 bytes"),
        (b'{"schemaVersion":1,"x":"', b"b", "no event in its first 100,000 bytes"),
        (b"", b" ", "no event in its first 100,000 bytes"),
    ],
)
def test_gzip_that_swells_is_given_up_within_a_budget(tmp_path, begin, filling, said):
    path = tmp_path / "t.json.gz"
    with gzip.open(path, "wb") as file:
        file.write(begin + filling * (4_000_000 // len(filling)))
    assert path.stat().st_size < 40_000
    stream = EventStream(path, Event, block_bytes=10_000, most_facts_bytes=100_000, most_event_bytes=200_000)
    with pytest.raises(NotACaptureError, match=said):
        list(stream)
    assert stream._read_bytes < 300_000
    assert len(inflate_head(path.read_bytes())) <= 1 << 20


def test_a_long_event_and_long_facts_within_the_budget_are_read(tmp_path):
    path = write_text(tmp_path / "t.json", *[GOOD.replace("good", "g" * 5_000)] * 3, before=f'"x":"{"b" * 9_000}",')
    stream = EventStream(path, Event, block_bytes=100, most_facts_bytes=20_000, most_event_bytes=20_000)
    assert sum(len(batch) for batch in stream) == 3
    assert len(stream.facts["x"]) == 9_000
