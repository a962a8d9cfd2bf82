"""The host's side of decode bubbles, each part placed by hand."""

import pytest

from trace_analyze.analysis.records.host import HostParts, LaunchesInFlight
from trace_analyze.analysis.records.trace import FRAMES
from trace_analyze.analysis.time.host_side import host_side
from trace_analyze.analysis.time.time_accounting import account_time
from trace_analyze.fixtures.hand_frames import HandRun, frame

US = 1_000


def host_of(run: HandRun, texts=("",), ranges=()):
    made = run.build()
    trace = made.trace
    object.__setattr__(trace, "texts", frame(FRAMES["texts"], [{"text_id": i, "text": t} for i, t in enumerate(texts)]))
    rows = [
        {"start_ns": a, "end_ns": b, "text_id": texts.index(t), "process": 1, "thread": 11, "end_thread": 11}
        | {"domain_text_id": 0, "kind": "push_pop", "device_index": -1, "stream": -1}
        for t, a, b in ranges
    ]
    object.__setattr__(trace, "ranges", frame(FRAMES["ranges"], rows))
    time = account_time(trace, made.kernels, made.steps, made.groups, made.window_start_ns, made.window_end_ns)
    return host_side(trace, made, time)


def two_decode_steps() -> HandRun:
    """A decode step ends at 100 us; the next starts at 200 us, its graph launch runs from 170 to 195 us."""
    run = HandRun()
    for index, (start, launch) in enumerate(((0, (-30, -5)), (200, (170, 195)))):
        row = run.launch(launch[0] * US, launch[1] * US, kind="graph")
        run.kernel(start * US, (start + 100) * US, launch=row, step_phase="decode", step_index=index)
        run.step_rows.append(
            {"index": index, "device": 0, "device_index": 0, "start_ns": start * US, "end_ns": (start + 100) * US}
            | {"busy_ns": 100 * US, "phase": "decode", "decode_requests": 4}
        )
    return run


def test_a_bubble_is_split_by_what_the_thread_did():
    run = two_decode_steps()
    run.call("sync", 50 * US, 104 * US).call("copy", 150 * US, 155 * US).call("sync", 100 * US, 190 * US, thread=12)
    texts = ("", "schedule: allocate_slots", "gpu_model_runner: preprocess", "gpu_model_runner: sample")
    ranges = [(texts[3], 104 * US, 110 * US), (texts[1], 110 * US, 130 * US), (texts[2], 135 * US, 160 * US)]
    host = host_of(run, texts, ranges)
    assert host["bubble_ms"] == pytest.approx(0.1)
    in_us = {name: round(ms * 1000, 6) for name, ms in host["parts_ms"].items()}
    assert in_us == {
        "waiting": 4,
        "graph_launch": 25,
        "kernel_launch": 0,
        "copies": 5,
        "sampling": 6,
        "input_preparation": 20,  # 25 us, 5 of them in a copy call
        "scheduling": 20,
        "unnamed_host_code": 20,
    }
    assert sum(in_us.values()) == 100
    assert host["bubble_ms_per_decode_step"] == pytest.approx(0.1)
    assert host["share_of_decode_pct"] == pytest.approx(50)
    assert host.launches_in_flight == LaunchesInFlight(p50=0, max=0)


def test_queued_work_is_dispatch_and_not_a_bubble():
    run = HandRun()
    rows = [run.launch(k * US, k * US + 500) for k in range(4)]
    for k in range(4):
        start = 100 + k * 102
        run.kernel(start * US, (start + 100) * US, launch=rows[k], step_phase="decode", step_index=k)
        run.step_rows.append(
            {"index": k, "device": 0, "device_index": 0, "start_ns": start * US, "end_ns": (start + 100) * US}
            | {"busy_ns": 100 * US, "phase": "decode", "decode_requests": 4}
        )
    host = host_of(run)
    assert host["bubble_ms"] == 0
    assert host["dispatch_ms"] == pytest.approx(3 * 0.002)
    assert host.launches_in_flight == LaunchesInFlight(p50=1.5, max=3)
    assert set(host["parts_ms"]) == set(HostParts.__struct_fields__)


def test_without_launch_calls_nothing_is_said():
    host = host_of(HandRun().step("decode", 10, times=5, decode_requests=1))
    assert host["bubble_ms"] is None
    assert host["bubble_ms_reason"] == "the capture records no launch calls"
