"""Engines and settings as found in the field, each kernel beside its truth: steps, phases and counts of every one.

Each case is a few lines that state a run; what is asked of all is the same: no step cut in two or joined with another,
GPU time by phase right to half a percent, and every count either right or unknown.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from trace_analyze.fixtures.writers.nsys_writer import Capture

from . import field_torch as torch
from . import field_vllm as vllm
from .field_engines import llama, sglang, trtllm
from .field_run import Run, see

ATTENTION = {"fa2": vllm.fa2, "fa3": vllm.fa3, "flashinfer": vllm.infer, "triton": vllm.unified, "paged": vllm.paged}
TOLERATED_PCT = 0.5


def busy(step, decode, *, requests=5, prompts=((700,), (40,), (900,), (300, 200)), rounds=3):
    """Decode steps with prompts mixed in; ``step(chunks, decodes)`` and ``decode(requests)`` run one each."""
    for chunks in prompts:
        for _ in range(rounds):
            decode(requests)
        step(chunks, requests)
        requests += len(chunks)
    for _ in range(rounds):
        decode(requests)


def vllm_run(attention, *, graphs="full", run=None, prompts=((700,), (40,), (900,), (300, 200)), requests=5, **options):
    run = run or Run()
    options |= {"attention": ATTENTION[attention]}
    kinds = {"full": vllm.decode, "none": lambda r, n, **o: vllm.step(r, (), n, **o),
             "piecewise": lambda r, n, **o: vllm.piecewise(r, (), n, **o)}  # fmt: skip
    mixed = vllm.piecewise if graphs == "piecewise" else vllm.step
    busy(partial(mixed, run, **options), partial(kinds[graphs], run, **options), prompts=prompts, requests=requests)
    return [run]


def vllm_separate(attention, **options):
    """Without chunked prefill (V0): prompts have steps of their own."""
    run, users = Run(), 0
    for chunks in ((900,), (500, 700), (2500,)):
        vllm.step(run, chunks, 0, attention=ATTENTION[attention], **options)
        users += len(chunks)
        for _ in range(4):
            vllm.step(run, (), users, attention=ATTENTION[attention], **options)
    return [run]


def one_user(attention, **options):
    """Prompts down to five tokens, one user, decode from graphs."""
    run = Run()
    for prompt in (3000, 40, 5, 700):
        vllm.step(run, (prompt,), 0, attention=ATTENTION[attention], **options)
        for _ in range(5):
            vllm.decode(run, 1, attention=ATTENTION[attention], **options)
        run.cpu += 30_000_000
    return [run]


def replicas(attention):
    capture = Capture("2025.6")
    first, second = (Run(capture, device=d, pid=100 + d) for d in (0, 1))
    second.cpu += 7_777_000
    vllm_run(attention, run=first, prompts=((800,),))
    vllm_run(attention, run=second, prompts=((300,),), requests=11)
    return [first, second]


def ranks(attention, *, devices=(0, 1), pids=(100, 101), reduce=vllm.ALL_REDUCE, **options):
    """Tensor-parallel ranks that launch together."""
    capture = Capture("2025.6")
    runs = [Run(capture, device=d, pid=p) for d, p in zip(devices, pids, strict=True)]
    options |= {"attention": ATTENTION[attention], "reduce": reduce}

    def all_ranks(kind, *arguments):
        for run in runs:
            kind(run, *arguments, **options)
        together = max(run.cpu for run in runs)
        for run in runs:
            run.cpu = together

    busy(lambda c, n: all_ranks(vllm.step, c, n), lambda n: all_ranks(vllm.decode, n), prompts=((700,), (300,)))
    return runs


def middle_rank(attention, *, send=False):
    """A pipeline stage that neither looks up tokens nor samples."""
    run = Run()

    def stage(chunks, requests):
        vllm.step(
            run, chunks, requests, attention=ATTENTION[attention], head=False, sampler=None, embed=False, prepare=False
        )
        if send:
            run.k(vllm.SEND, 2, us=10)
        run.sync(50)

    busy(stage, partial(stage, ()), prompts=((900,), (300,)))
    return [run]


def worker(attention):
    """A prefill worker: requests pass through it and decode elsewhere."""
    run = Run()
    for chunks in ((900,), (300, 200), (4000,), (120,), (800,), (100,) * 6):
        vllm.step(run, chunks, 0, attention=ATTENTION[attention])
    return [run]


def speculative(attention, **options):
    run = Run()
    for number in range(8):
        vllm.verify(run, (700,) if number == 4 else (), 6 + (number > 4), attention=ATTENTION[attention], **options)
    return [run]


def cut(attention, **options):
    """The capture begins and ends inside a step."""
    end = max(vllm_run(attention, **options)[0].busy.values())
    return vllm_run(attention, run=Run(window=(4_500_000, end - 4_000_000)), **options)


def lossy(attention, *, launches=0.0, kernels=0.0, **options):
    dice = np.random.default_rng(4)
    run = Run(drop_launch=lambda _: dice.random() < launches, keep=lambda _: dice.random() >= kernels)
    return vllm_run(attention, run=run, **options)


def opaque(*, marker=False, head=True):
    """Graph replays recorded as a whole."""
    run = Run(Capture("2025.6", graph_mode="graph"))

    def replay(requests):
        run.begin("decode", 0, requests, 0, requests)
        scope = run.range(f"execute_context_0(0)_generation_{requests}({requests})") if marker else None
        if scope:
            scope.__enter__()
        run.k("_compute_slot_mapping_kernel", requests + 1)
        run.cpu += 8_000
        start = max(run.busy[7] + 1_000, run.cpu + 3_000)
        run.capture.graph_launch(300 + vllm.captured_size(requests), start, start + 5_000_000, launched_at=run.cpu)
        run.busy[7] = start + 5_000_000
        if head:
            run.k(vllm.HEAD, 132, us=400)
        run.k(vllm.ARGMAX, requests, us=9)
        if scope:
            scope.__exit__(None, None, None)
        run.copy("d2h", 8 * requests)
        run.sync(100)

    busy(partial(vllm.step, run, attention=vllm.fa3, marker=marker), replay, prompts=((700,), (300,)))
    return [run]


def two_graphs(attention):
    """Half of the layers in one graph, the rest in another."""
    run = Run()

    def replay(requests):
        size = vllm.captured_size(requests)
        run.begin("decode", 0, requests, 0, requests)
        run.k("_compute_slot_mapping_kernel", requests + 1)
        with run.graph(100 + size):
            run.k(vllm.GATHER, size)
            vllm.layers(run, 3, size, ATTENTION[attention], (), requests)
        with run.graph(200 + size):
            vllm.layers(run, 3, size, ATTENTION[attention], (), requests)
        run.k(vllm.GATHER, (requests, 2, 1))
        vllm.gemm(run, requests, 1050, names=(vllm.HEAD,))
        run.k(vllm.ARGMAX, requests)
        run.copy("d2h", 8 * requests)
        run.sync(100)

    busy(partial(vllm.step, run, attention=ATTENTION[attention]), replay, prompts=((700,),))
    return [run]


def warm_up(attention):
    """Profiling and graph capture at start-up, then service."""
    run = Run()
    for size in (8192, *(s for s in (64, 32, 16, 8, 4, 2, 1) for _ in range(2))):
        run.begin("other")
        run.k(vllm.GATHER, size)
        vllm.layers(run, 6, size, ATTENTION[attention], (size,) if size > 64 else (), 0 if size > 64 else size)
        vllm.gemm(run, 64, 1050, names=(vllm.HEAD,))
        if size <= 64:
            run.capture.call("cudaGraphInstantiateWithFlags_v11040", run.cpu, run.cpu + 300_000)
            run.cpu += 21_000_000
    run.sync(2_000_000)
    return vllm_run(attention, run=run, prompts=((700,),))


def sglang_run(attention, *, marker=False, **options):
    run, users = Run(), 0

    def extend(*chunks):
        text = f"step[EXTEND bs={len(chunks)} toks={sum(chunks)}]" if marker else None
        sglang(run, chunks, 0, attention=attention, marker=text, **options)

    for chunks in ((700,), (500, 900), (40,), (2048, 952)):
        for chunk in [chunks] if sum(chunks) < 3000 else [(c,) for c in chunks]:
            extend(*chunk)
        users += len(chunks) if sum(chunks) < 3000 else 1
        for _ in range(4):
            text = f"step[DECODE bs={users}]" if marker else None
            size = vllm.captured_size(users)
            sglang(run, (), users, attention=attention, graph=500 + size, padded=size, marker=text, **options)
    return [run]


def two_batch_overlap():
    """SGLang runs two halves of a batch on two streams; experts are on other ranks."""
    run = Run()

    def pass_(chunks, decodes):
        tokens, requests = sum(chunks) + decodes, len(chunks) + decodes
        run.begin("prefill" if chunks else "decode", sum(chunks), decodes, len(chunks), decodes)
        run.k("alloc_extend_kernel" if chunks else "alloc_decode_kernel", requests)
        run.k(vllm.GATHER, tokens)
        halves = ((7, tokens // 2), (20, tokens - tokens // 2))
        for _ in range(6):
            for stream, rows in halves:
                on = partial(run.k, stream=stream)
                on(vllm.FUSED_NORM, rows, us=3)
                on(vllm.SMALL[0] if rows < 64 else vllm.LARGE[0], 132, us=20 + rows * 0.1)
                on(vllm.FA3.format(m=64 if not chunks else 128), 132, us=10 + rows * 0.05)
                on(vllm.SMALL[1] if rows < 64 else vllm.LARGE[1], 132, us=15 + rows * 0.1)
                on(vllm.FUSED_NORM, rows, us=3)
                on("void deep_ep::internode_ll::dispatch<(bool)1, (int)7168>(T1)", 24, us=30)
                on("fused_moe_kernel", 500, us=50)
                on(vllm.ACT, rows, us=4)
                on("fused_moe_kernel", 500, us=40)
                on("void deep_ep::internode_ll::combine<(bool)1, (int)7168>(T1)", 24, us=30)
        run.wait_stream(20, 7)
        run.k(vllm.GATHER, (requests, 2, 1))
        run.k(vllm.HEAD, 132, us=300)
        run.k(vllm.ARGMAX, requests, us=9)
        run.copy("d2h", 8 * requests)
        run.sync(100)

    for chunks, users in (((1500, 900), 32), ((2000,), 33)):
        pass_(chunks, 0)
        for _ in range(4):
            pass_((), users)
    return [run]


def trt_run(*, label=None, graphs=True, **options):
    run, number = Run(), 100

    def iteration(chunks, users):
        nonlocal number
        number += 1
        text = label.format(n=number, c=len(chunks), t=sum(chunks), g=users) if label else None
        size = vllm.captured_size(users) if graphs and not chunks else None
        trtllm(run, chunks, users, graph=500 + size if size else None, padded=size, marker=text, **options)

    iteration((700,), 0)
    busy(iteration, partial(iteration, ()), requests=1, prompts=((500, 900), (40,), (4000,)))
    return [run]


NEW, OLD, CPP = (
    "[Executor] _forward_step {n}: {c} ctx reqs, {t} ctx tokens, {g} gen reqs",
    "[Executor] _forward_step: {c} ctx reqs, {g} gen reqs",
    "executeStep: {c} ctx reqs, {g} gen reqs",
)


def llama_one_slot():
    run = Run()
    for prompt in (600, 25, 5, 1500):
        for begin in range(0, prompt, 512):
            llama(run, (min(512, prompt - begin),))
        for number in range(5):
            llama(run, (), 1, graph=1 if number > 1 else None)
        run.cpu += 20_000_000
    return [run]


def llama_slots(users):
    run = Run()
    busy(partial(llama, run), partial(llama, run, ()), requests=users, prompts=((300,), (200, 200)), rounds=4)
    return [run]


def hugging_face(*arguments, **options):
    run = Run(gpu="a100-80gb", launch_ns=6_000)
    torch.generate(run, *arguments, **options)
    return [run]


def turbomind(**options):
    run = Run(gpu="a100-80gb")
    torch.turbomind(run, (600,), 0, **options)
    busy(
        partial(torch.turbomind, run, **options),
        partial(torch.turbomind, run, (), **options),
        requests=1,
        prompts=((300, 400), (1500,)),
    )
    return [run]


def labelled(prefill, decode):
    """Labels of engines that name a phase, around plain passes."""
    run = Run()
    for chunks, users in (((600,), 1), ((300, 400), 3)):
        for number in range(5):
            new = chunks if number == 0 else ()
            text = (prefill if new else decode).format(n=len(run.steps), b=len(new) or users, t=sum(new) or users)
            with run.range(text):
                vllm.step(run, new, 0 if new else users, attention=vllm.unified)
    return [run]


CASES = {
    **{f"vllm v0 {sampler}": partial(vllm_separate, "paged", sampler=sampler) for sampler in ("greedy", "random")},
    **{f"vllm eager {a}": partial(vllm_run, a, graphs="none") for a in ATTENTION},
    **{f"vllm eager compiled {a}": partial(vllm_run, a, graphs="none", compiled=True, sampler="gumbel") for a in ("fa3", "triton")},
    **{f"vllm full graphs {a}": partial(vllm_run, a, compiled=True) for a in ("fa2", "fa3", "flashinfer", "triton")},
    **{f"vllm full graphs, no wait for the sampler {a}": partial(vllm_run, a, asynchronous=True) for a in ("fa3", "triton")},
    **{f"vllm piecewise {a}": partial(vllm_run, a, graphs="piecewise", prompts=((60,), (900,), (3,), (40, 20)))
       for a in ("fa2", "fa3", "flashinfer", "triton")},
    **{f"vllm piecewise compiled {a}": partial(vllm_run, a, graphs="piecewise", prompts=((60,), (3,)), compiled=True) for a in ("fa3", "triton")},
    **{f"vllm v2 runner marked {a}": partial(vllm_run, a, marker=True, late=True, sampler="gumbel", asynchronous=True) for a in ("fa3", "flashinfer")},
    **{f"vllm small chunks {a}": partial(vllm_run, a, graphs="none", requests=30, prompts=((34,), (34,), (20,))) for a in ("fa3", "triton")},
    **{f"vllm batch above all graphs {a}": partial(vllm_run, a, graphs="none", requests=300, prompts=((1700,),)) for a in ("fa3", "triton")},
    **{f"vllm long contexts, 117 of 120 {a}": partial(vllm_run, a, requests=117, prompts=((40,),), kv=60_000) for a in ("fa2", "triton")},
    **{f"vllm few new tokens behind a cached prefix {a}": partial(vllm_run, a, prompts=((40,), (12,)), kv=3000) for a in ATTENTION},
    **{f"one user {a}": partial(one_user, a) for a in ("fa2", "fa3", "flashinfer", "triton")},
    "replicas": partial(replicas, "fa3"),
    **{f"ranks {a}": partial(ranks, a) for a in ("flashinfer", "triton")},
    "ranks of two processes that each call their GPU 0": partial(ranks, "fa3", devices=(0, 0)),
    "ranks of one process": partial(ranks, "fa2", pids=(100, 100), reduce=vllm.NCCL_REDUCE, compiled=True),
    **{f"middle pipeline rank {a}": partial(middle_rank, a) for a in ("fa2", "fa3", "flashinfer", "triton")},
    "middle pipeline rank that sends": partial(middle_rank, "fa3", send=True),
    **{f"prefill worker {a}": partial(worker, a) for a in ("fa2", "fa3", "flashinfer", "triton")},
    **{f"speculative {a}": partial(speculative, a, graph=g) for a, g in (("fa2", True), ("fa3", False), ("triton", True))},
    **{f"cut window {a}": partial(cut, a) for a in ("fa2", "triton")},
    "cut window marked": partial(cut, "fa3", marker=True),
    "no launch calls": lambda: vllm_run("flashinfer", run=Run(launches=False)),
    "no correlation ids": lambda: vllm_run("triton", run=Run(correlations=False), marker=True),
    "every twentieth launch call lost": partial(lossy, "fa3", launches=0.05),
    "every twentieth launch call lost, marked": partial(lossy, "fa3", launches=0.05, marker=True),
    "kernels lost": partial(lossy, "fa2", kernels=0.03),
    "whole replays": opaque,
    "whole replays marked": partial(opaque, marker=True),
    "whole replays with the output matrix inside": partial(opaque, head=False),
    "two graphs per step": partial(two_graphs, "triton"),
    "warm-up": partial(warm_up, "fa3"),
    **{f"sglang {a}": partial(sglang_run, a) for a in ("flashinfer", "fa3", "triton")},
    "sglang marked": partial(sglang_run, "fa3", marker=True),
    "sglang without allocation kernels": partial(sglang_run, "fa3", names=False, sampler="argmax", overlap=False),
    "sglang experts": partial(sglang_run, "flashinfer", moe="triton"),
    "sglang experts elsewhere": partial(sglang_run, "fa3", moe="deepep"),
    "sglang two batches overlapped": two_batch_overlap,
    **{f"tensorrt-llm {k}": partial(trt_run, xqa=x, graphs=g)
       for k, x, g in (("xqa", True, True), ("mmha", False, True), ("xqa eager", True, False))},
    "tensorrt-llm fused all-reduce": partial(trt_run, reduce=True, sampler="fast"),
    **{f"tensorrt-llm {k} scope": partial(trt_run, label=t) for k, t in (("numbered", NEW), ("old", OLD), ("c++", CPP))},
    **{f"tensorrt-llm {k} scope opened twice": partial(trt_run, label=t, twice=True) for k, t in (("numbered", NEW), ("old", OLD), ("c++", CPP))},
    "llama.cpp one slot": llama_one_slot,
    **{f"llama.cpp {n} slots": partial(llama_slots, n) for n in (2, 12)},
    **{f"hugging face {a} batch {b}": partial(hugging_face, batch=b, attention=a) for a in ("flash", "efficient", "unfused") for b in (1, 4)},
    "hugging face sampling": partial(hugging_face, batch=2, attention="unfused", sample=True),
    "hugging face static cache in a graph": partial(hugging_face, batch=4, attention="efficient", graph=7),
    "hugging face short prompts": partial(hugging_face, (5, 9), 12, 2, attention="efficient"),
    "hugging face one prompt": partial(hugging_face, (50,), 12, attention="unfused"),
    "turbomind": turbomind,
    "turbomind one stream": partial(turbomind, two_streams=False),
    "mlc": partial(labelled, "BatchPrefill num_seq={b} total_len={t}", "BatchDecode num_seqs={b}"),
    "megatron": partial(labelled, "Prefill", "Decode"),
    "numbered labels": partial(labelled, "prefill_step_{n}", "decode_step_{n}"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_steps_phases_and_counts(tmp_path, name):
    runs = CASES[name]()
    seen = see(tmp_path, *runs)
    assert seen.mixed_up == []
    at_edges = 2.0 if "cut" in name else 0.0  # what is left of a step that began before the capture
    assert seen.wrong_pct <= TOLERATED_PCT and seen.unknown_pct <= TOLERATED_PCT + at_edges, seen.wrong
    expected = {(pid, device, step) for run in runs for pid, device, _, _, step, _ in run.truth if step >= 0}
    assert abs(seen.result.steps.height - len(expected)) <= (1 if "cut" in name else 0)
    assert seen.counts()[0] == []
    assert seen.result.autoregressive


def program(write, *arguments, **options):
    run = Run(gpu="a100-80gb")
    write(run, *arguments, **options)
    return run


NOT_GENERATING = {
    "encoder": partial(program, torch.classify, (32, 32, 32, 32)),
    "encoder, large and small batches": partial(program, torch.classify, (32, 8, 8, 8, 8, 16, 8, 8, 8)),
    "embeddings": partial(program, torch.classify, (32, 8, 8, 8, 8), labels=False),
    "diffusion": partial(program, torch.diffuse),
    "training": partial(program, torch.train),
}


@pytest.mark.parametrize("name", NOT_GENERATING)
def test_what_generates_no_tokens_has_no_phases(tmp_path, name):
    result = see(tmp_path, NOT_GENERATING[name]()).result
    assert not result.autoregressive
    assert result.steps.height == 0
    assert "no autoregressive phases found" in result.reasons
    assert result.kernels["phase"].cast(str).unique().to_list() == ["unknown"]


def test_an_embedding_server_only_prefills(tmp_path):
    run = Run()
    for chunks in ((300, 200), (800,), (100,) * 8, (500, 400, 300), (90, 80)):
        vllm.step(run, chunks, 0, attention=vllm.fa2, head=False, sampler=None)
    seen = see(tmp_path, run)
    assert seen.result.steps["phase"].cast(str).to_list() == ["prefill"] * 5
    assert seen.counts()[0] == []


def test_where_every_step_mixes_the_first_one_does_too_and_its_counts_are_unknown(tmp_path):
    run, users = Run(), 20
    for chunks in ((500,), (500,), (300, 200), (500,), (100, 400)):
        vllm.step(run, chunks, users, attention=vllm.fa3)
        users += len(chunks)
    seen = see(tmp_path, run)
    assert seen.result.steps["phase"].cast(str).to_list() == ["mixed"] * 5
    assert seen.result.steps["prefill_tokens"].to_list()[0] is None
    assert seen.counts()[0] == []


def test_drafts_inside_a_range_do_not_add_to_the_layers(tmp_path):
    run = Run()
    for number in range(6):
        chunks = (500,) if number == 3 else ()
        text = f"execute_context_{len(chunks)}({sum(chunks)})_generation_6(24)"
        vllm.verify(run, chunks, 6, attention=vllm.fa3, inside=text)
    seen = see(tmp_path, run)
    assert seen.result.layers == 6
    assert seen.result.steps["phase"].cast(str).to_list() == ["decode"] * 3 + ["mixed"] + ["decode"] * 2
