"""Captures that are odd in one way each, of any size: what the field brings and an ordinary benchmark does not.

``CASES[name].make(n)`` gives an unwritten ``Capture``; everything in it grows with ``n``, so that time in proportion to
rows is growth with exponent 1. Most are a vLLM server of a one-layer model (eager launches, one marker a step, a prompt
every twentieth step) with the oddity on top.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from typing import Any

import numpy as np

from trace_analyze.fixtures.cases import StepSpec
from trace_analyze.fixtures.kernels.kernel_sequences import all_rows, step_sequence
from trace_analyze.fixtures.simulator.config import RunConfig
from trace_analyze.fixtures.simulator.scheduler import Request
from trace_analyze.fixtures.writers.nsys_writer import MEMCPY, NVTX, RUNTIME, SYNC, Capture, global_pid

LEAD_NS = 60_000  # a launch call comes this long before its kernel
YEAR_NS = 31_557_600_000_000_000


@dataclass(frozen=True)
class Case:
    """One odd capture: what ``n`` counts, the size to be measured at, and the maker."""

    what: str
    size: int
    make: Callable[[int], Capture]


@dataclass(frozen=True)
class Template:
    """The kernels of one step as columns; ``names`` are positions in :func:`kernel_names`."""

    marker: str
    names: np.ndarray
    grids: np.ndarray
    blocks: np.ndarray
    ns: np.ndarray


NAMES: list[str] = []


@cache
def template(prefill_tokens: int, requests: int, layers: int = 1, ranks: int = 1) -> Template:
    """A step of ``requests`` decoding requests, and a prompt where ``prefill_tokens`` is not 0."""
    run = RunConfig("odd", (Request(0, 1, 1),), model="llama-3.2-1b", graphs="none", tensor_parallel=ranks)
    step = StepSpec(1.0, int(prefill_tokens > 0), prefill_tokens, requests)
    batch = step.batch(900)
    rows = [row for row, layer in all_rows(step_sequence(run, batch, batch.tokens)) if layer < layers]
    for row in rows:
        if row.launch.name not in NAMES:
            NAMES.append(row.launch.name)
    return Template(
        step.marker,
        np.array([NAMES.index(row.launch.name) for row in rows]),
        np.array([row.launch.grid for row in rows]),
        np.array([row.launch.block for row in rows]),
        np.array([round(row.ns) for row in rows]),
    )


@dataclass
class Served:
    """What :func:`serve` wrote, as columns of its kernels and its steps."""

    start: np.ndarray
    end: np.ndarray
    first_launch: np.ndarray  # of every step
    last_launch: np.ndarray


def serve(  # noqa: PLR0913 (a capture is stated by keywords)
    capture: Capture,
    steps: int,
    *,
    every: int = 20,
    layers: int = 1,
    ranks: int = 1,
    at: int = 50_000_000,
    pid: int | None = None,
    device: int = 0,
    stream: int | np.ndarray = 7,
    tid: int | None = None,
    names: Sequence[str] = (),
    graphs: int = 0,
) -> Served:
    """Write ``steps`` steps; every ``every``-th has a prompt.

    ``stream`` is one for all kernels or an array to take from in turn. ``names`` replace the kernels' own names, in
    turn. With ``graphs`` the steps without a prompt replay that many graphs in turn.
    """
    kinds = template(0, 8, layers, ranks), template(512, 8, layers, ranks)
    with_prompt = np.arange(steps) % every == every - 1
    sizes = np.where(with_prompt, len(kinds[1].ns), len(kinds[0].ns))
    rows = int(sizes.sum())
    step = np.repeat(np.arange(steps), sizes)
    place = np.arange(rows) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    prompt = with_prompt[step]

    def column(which: str) -> np.ndarray:
        decode, mixed = (getattr(kind, which) for kind in kinds)
        found = np.empty((rows, *decode.shape[1:]), dtype=np.int64)
        found[~prompt], found[prompt] = decode[place[~prompt]], mixed[place[prompt]]
        return found

    ns, grids, blocks = column("ns"), column("grids"), column("blocks")
    start = at + np.cumsum(ns + 500) - ns + 20_000 * step
    launch = start - LEAD_NS
    pid = capture.pid if pid is None else pid
    thread = global_pid(pid) + (pid if tid is None else tid)
    first = capture.next_correlation(rows + 1)
    correlation = first + np.arange(rows)
    opening = np.cumsum(sizes) - sizes
    graph: dict[str, Any] = {}
    own = np.ones(rows, dtype=bool)
    if graphs:
        own = prompt | (place == 0)
        correlation = np.where(prompt, correlation, correlation[opening][step])
        number = 1 + step % graphs
        graph = {
            "graphNodeId": np.ma.masked_array(number * 1000 + place, prompt).tolist(),
            "graphId": np.ma.masked_array(number, prompt).tolist(),
        }
    index = np.arange(rows) % len(names) if names else column("names")
    capture.kernel_columns(
        names or NAMES, index, start=start, end=start + ns, deviceId=device, correlationId=correlation,
        globalPid=global_pid(pid), streamId=np.resize(stream, rows), gridX=grids[:, 0], gridY=grids[:, 1],
        gridZ=grids[:, 2], blockX=blocks[:, 0], blockY=blocks[:, 1], blockZ=blocks[:, 2], **graph,
    )  # fmt: skip
    replay = np.where(prompt, capture.string("cudaLaunchKernel_v7000"), capture.string("cudaGraphLaunch_v10000"))
    capture.add(RUNTIME, {
        "start": launch[own], "end": launch[own] + 300, "eventClass": 0, "globalTid": thread,
        "correlationId": correlation[own], "returnValue": 0,
        "nameId": replay[own] if graphs else capture.string("cudaLaunchKernel_v7000"),
    })  # fmt: skip
    closing = np.cumsum(sizes) - 1
    capture.add(NVTX, {
        "start": launch[opening] - 400, "end": launch[closing] + 800, "eventType": 59, "globalTid": thread,
        "text": [kinds[int(p)].marker for p in with_prompt],
    })  # fmt: skip
    return Served(start, start + ns, launch[opening], launch[closing])


def server(**options: Any) -> Capture:
    """An empty capture of a vLLM server on one H100."""
    capture = Capture(command=("vllm", "serve", "meta-llama/Llama-3.2-1B-Instruct"), **options)
    capture.gpu("h100")
    return capture


def ordinary(steps: int) -> Capture:
    capture = server()
    serve(capture, steps, layers=16)
    return capture


def kernel_names(count: int) -> Capture:
    """Three launches of every name: what autotuning and just-in-time compilation leave behind."""
    capture = server()
    kinds = (
        "triton_poi_fused_add_mul_{}",
        "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int, int>, cutlass::gemm"
        "::collective::CollectiveMma<cutlass::gemm::MainloopSm90TmaGmmaWarpSpecialized<(int){}, cute::tuple<cute::C<(int)"
        "1>, cute::C<(int)2>, cute::C<(int)1>>, cutlass::gemm::KernelTmaWarpSpecializedPingpong>, cute::tuple<cute::C<"
        "(int)64>, cute::C<(int)128>, cute::C<(int)64>>, cutlass::bfloat16_t>>>(T1::Params)",
        "_{}_fwd_kernel_0d1d2de",
    )
    names = [kinds[i % 3].format(i if i % 3 < 2 else sha256(b"%d" % i).hexdigest()) for i in range(count)]
    serve(capture, 3 * count // len(template(0, 8).ns), names=names)
    return capture


def texts(count: int) -> Capture:
    """A range for every request with its id in the text, inside the steps' ranges."""
    capture = server()
    served = serve(capture, max(20, count // 100))
    inside = np.linspace(served.first_launch[0], served.last_launch[-1], count).astype(np.int64)
    thread = global_pid(capture.pid) + capture.pid + 1
    capture.add(NVTX, {
        "start": inside, "end": inside + 90, "eventType": 59, "globalTid": thread,
        "text": [f"request cmpl-{i * 2654435761 % 2**32:08x}-{i} generate" for i in range(count)],
    })  # fmt: skip
    return capture


def registered_texts(count: int) -> Capture:
    """The same through ``StringIds``, in the thread that launches."""
    capture = server()
    served = serve(capture, max(20, count // 100))
    inside = np.linspace(served.first_launch[0], served.last_launch[-1], count).astype(np.int64)
    capture.add(NVTX, {
        "start": inside, "end": inside + 90, "eventType": 59, "globalTid": global_pid(capture.pid) + capture.pid,
        "textId": capture.strings(f"request {i} token {i // 7}" for i in range(count)),
    })  # fmt: skip
    return capture


def steps(count: int) -> Capture:
    capture = server()
    serve(capture, count)
    return capture


def stalls(count: int) -> Capture:
    """Every second step has a prompt beside eight decoding requests."""
    capture = server()
    serve(capture, 2 * count, every=2)
    return capture


def processes(count: int) -> Capture:
    """Workers on one GPU, each with its own process, NVTX domain and twenty steps, all at once."""
    capture = server()
    for number in range(count):
        served = serve(capture, 20, pid=5000 + number, at=50_000_000 + 7_000 * number)
        first = int(served.first_launch[0])
        capture.nvtx("ncclAllReduce", first, first + 100, pid=5000 + number, domain="NCCL")
    return capture


def short_processes(count: int) -> Capture:
    """One after the other, each with two steps: a launcher that forks."""
    capture = server()
    for number in range(count):
        serve(capture, 2, every=2, pid=5000 + number, at=50_000_000 + 1_000_000 * number)
    return capture


def devices(count: int, *, processes: bool = True, steps: int = 100) -> Capture:
    """One rank a GPU, in step."""
    capture = Capture(command=("vllm", "serve", "meta-llama/Llama-3.2-1B-Instruct"))
    for number in range(count):
        capture.gpu("h100")
        serve(capture, steps, pid=5000 + number if processes else None, device=number, ranks=min(count, 8),
              at=50_000_000 + 900 * number, tid=6000 + number)  # fmt: skip
    return capture


def one_process_devices(count: int) -> Capture:
    return devices(count, processes=False)


def ranks(count: int) -> Capture:
    """Steps of eight tensor-parallel ranks, with collectives."""
    return devices(8, steps=count)


def streams(count: int) -> Capture:
    capture = server()
    serve(capture, count, stream=7 + np.arange(count))
    return capture


def threads(count: int) -> Capture:
    capture = server()
    at = 50_000_000
    for number in range(count):
        served = serve(capture, 4, every=4, tid=9000 + number, at=at)
        at = int(served.end[-1]) + 20_000
    return capture


def graphs(count: int) -> Capture:
    capture = server()
    serve(capture, 8 * count, graphs=count)
    return capture


def copies(count: int) -> Capture:
    """Small copies to the device between kernels, a hundred for each."""
    capture = server()
    served = serve(capture, max(20, count // 100 // len(template(0, 8).ns)))
    start = np.linspace(served.start[0], served.end[-1], count).astype(np.int64)
    correlation = capture.next_correlation(count) + np.arange(count)
    capture.add(MEMCPY, {
        "start": start, "end": start + 40, "deviceId": 0, "contextId": 1, "streamId": 9, "correlationId": correlation,
        "globalPid": global_pid(capture.pid), "bytes": 4096, "copyKind": 1, "srcKind": 1, "dstKind": 2,
    })  # fmt: skip
    return capture


def syncs(count: int) -> Capture:
    """Synchronising calls while the device waits: a host that polls."""
    capture = server()
    served = serve(capture, max(20, count // 20))
    start = np.linspace(served.first_launch[0], served.end[-1], count).astype(np.int64)
    correlation = capture.next_correlation(count) + np.arange(count)
    thread = global_pid(capture.pid) + capture.pid + 1
    capture.add(RUNTIME, {
        "start": start, "end": start + 900, "eventClass": 0, "globalTid": thread, "correlationId": correlation,
        "returnValue": 0, "nameId": capture.string("cudaStreamSynchronize_v3020"),
    })  # fmt: skip
    capture.add(SYNC, {"start": start, "end": start + 900, "correlationId": correlation,
                       "globalPid": global_pid(capture.pid), "syncType": 3, "deviceId": 0})  # fmt: skip
    return capture


def marks(count: int) -> Capture:
    capture = server()
    served = serve(capture, max(20, count // 100))
    time = np.linspace(served.first_launch[0], served.end[-1], count).astype(np.int64)
    capture.add(NVTX, {"start": time, "eventType": 34, "globalTid": global_pid(capture.pid) + capture.pid,
                       "text": [f"token {i}" for i in range(count)]})  # fmt: skip
    return capture


def sparse(count: int) -> Capture:
    """Kernels over two years, with long holes between them."""
    capture = server()
    start = np.linspace(0, 2 * YEAR_NS, count).astype(np.int64)
    capture.kernel_columns(NAMES_OF_ONE, np.zeros(count), start=start, end=start + 5_000, deviceId=0,
                           correlationId=capture.next_correlation(count) + np.arange(count))  # fmt: skip
    return capture


NAMES_OF_ONE = ("triton_poi_fused_mul_silu_2",)


def same_time(count: int) -> Capture:
    """Every kernel from the same instant to the same instant, on 16 streams."""
    capture = server()
    decode = template(0, 8)
    capture.kernel_columns(NAMES, np.resize(decode.names, count), start=1_000_000, end=1_500_000, deviceId=0,
                           streamId=7 + np.arange(count) % 16,
                           correlationId=capture.next_correlation(count) + np.arange(count))  # fmt: skip
    return capture


def overlapping(count: int) -> Capture:
    """Kernels that all run until the capture ends: every one overlaps every other."""
    capture = server()
    start = 1_000_000 + 1_000 * np.arange(count)
    capture.kernel_columns(NAMES_OF_ONE, np.zeros(count), start=start, end=int(start[-1]) + 5_000 + np.arange(count),
                           deviceId=0, streamId=7 + np.arange(count) % 128,
                           correlationId=capture.next_correlation(count) + np.arange(count))  # fmt: skip
    return capture


def nested(count: int) -> Capture:
    """Ranges 500 deep around every launch of a step: a call stack as ranges."""
    depth = 500
    capture = server()
    served = serve(capture, max(20, count // depth))
    level = np.arange(depth)
    start = (served.first_launch[:, None] - 1_000 - (depth - level)[None, :]).ravel()
    end = (served.last_launch[:, None] + 1_000 + (depth - level)[None, :]).ravel()
    capture.add(NVTX, {
        "start": start, "end": end, "eventType": 59, "globalTid": global_pid(capture.pid) + capture.pid,
        "textId": np.tile(capture.strings(f"frame {i}" for i in range(depth)), len(served.first_launch)),
    })  # fmt: skip
    return capture


def labels(count: int) -> Capture:
    """Step markers whose texts are all different, as TensorRT-LLM and SGLang write them with an iteration number."""
    capture = server()
    served = serve(capture, count)
    thread = global_pid(capture.pid) + capture.pid
    capture.chunks[NVTX].clear()
    capture.add(NVTX, {
        "start": served.first_launch - 400, "end": served.last_launch + 800, "eventType": 59, "globalTid": thread,
        "text": [f"[Executor] _forward_step {number}: 0 ctx reqs, 8 gen reqs" for number in range(1, count + 1)],
    })  # fmt: skip
    return capture


CASES: dict[str, Case] = {
    "ordinary": Case("steps of 200 kernels, nothing odd", 5_000, ordinary),
    "names": Case("distinct kernel names", 100_000, kernel_names),
    "texts": Case("distinct range texts", 1_000_000, texts),
    "registered texts": Case("distinct registered texts in the launching thread", 1_000_000, registered_texts),
    "labels": Case("marked steps, no two texts alike", 100_000, labels),
    "steps": Case("marked steps", 100_000, steps),
    "stalls": Case("stalls", 100_000, stalls),
    "processes": Case("processes at once on one GPU", 1_000, processes),
    "short processes": Case("processes one after the other", 1_000, short_processes),
    "devices": Case("devices, a process each", 64, devices),
    "one process": Case("devices of one process", 64, one_process_devices),
    "ranks": Case("steps on 8 devices with collectives", 2_000, ranks),
    "streams": Case("streams", 10_000, streams),
    "threads": Case("launching threads", 3_000, threads),
    "graphs": Case("CUDA graphs", 5_000, graphs),
    "copies": Case("copies", 1_000_000, copies),
    "syncs": Case("synchronising calls", 200_000, syncs),
    "marks": Case("NVTX marks, no two texts alike", 1_000_000, marks),
    "sparse": Case("kernels over two years", 10_000, sparse),
    "same time": Case("kernels at one instant", 300_000, same_time),
    "overlapping": Case("kernels that overlap all others", 300_000, overlapping),
    "nested": Case("ranges, 500 deep", 500_000, nested),
}
