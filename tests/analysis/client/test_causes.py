"""Causes of clients' gaps and first tokens: by hand, and against the truth of simulated runs."""

import numpy as np
import pytest

from trace_analyze.analysis.client.align import align
from trace_analyze.analysis.client.first_tokens import CAUSES, first_tokens
from trace_analyze.analysis.client.gaps import arrival_gaps, causes_of, client_gaps, gpu_parts
from trace_analyze.analysis.client.ledger import GapLedger, baselines, simple_ledger
from trace_analyze.fixtures.client_logs import Delivery, writers
from trace_analyze.fixtures.client_logs.served import step_length_ns

from .hand import hand_steps
from .worlds import MONOTONIC, NO_CLOCK, busy, log_of, steps_of

MS = 1_000_000


def in_ms(ledger, row):
    return {c: v / MS for c, v in zip(ledger.causes, ledger.parts_ns[row].tolist(), strict=True) if v}


# five decode steps of 10 ms with 1 ms between, a prefill step of 100 ms, a decode step, a mixed one of 40 ms
HAND = [("decode", 0, 10), ("decode", 11, 21), ("decode", 22, 32), ("decode", 33, 43), ("decode", 44, 54), ("prefill", 55, 155),
        ("decode", 158, 168), ("mixed", 169, 209), ("other", 210, 213), ("decode", 214, 226)]  # fmt: skip


def test_a_ledger_by_hand():
    ledger = simple_ledger(hand_steps(HAND))
    assert ledger.gap_ns.tolist() == [v * MS for v in (10, 11, 11, 11, 11, 114, 41, 17)]
    assert in_ms(ledger, 1) == {"decode": 10, "host": 1}
    assert in_ms(ledger, 5) == {"decode": 10, "prefill_before": 100, "host": 4}
    assert in_ms(ledger, 6) == {"decode": 10, "prefill_in_step": 30, "host": 1}
    assert in_ms(ledger, 7) == {"decode": 10, "other_steps": 3, "host": 2, "unexplained": 2}


def test_without_five_pure_decode_steps_there_is_no_baseline():
    ledger = simple_ledger(hand_steps([*HAND[:4], ("mixed", 44, 84)]))
    assert np.isnan(ledger.baseline_ns).all()
    assert in_ms(ledger, 4) == {"unexplained": 40, "host": 1}


def test_steps_that_overlap_count_an_instant_once():
    ledger = simple_ledger(hand_steps([*HAND[:5], ("decode", 50, 64)]))
    assert ledger.gap_ns[5] == 10 * MS
    assert in_ms(ledger, 5) == {"decode": 10}


def test_the_baseline_is_that_of_a_like_batch():
    spans = [("decode", 100 * k, 100 * k + (10 if k < 5 else 20)) for k in range(10)]
    steps = hand_steps(spans, decode_requests=[8] * 5 + [64] * 5)
    assert (baselines(steps) / MS).tolist() == [10] * 5 + [20] * 5


@pytest.mark.parametrize("parts", [np.zeros((2, 1), dtype=np.int64), np.zeros((3, 2), dtype=np.int64)])
def test_a_ledger_whose_causes_do_not_sum_to_its_gaps_is_refused(parts):
    with pytest.raises(ValueError, match=r"ledger needs|must sum"):
        GapLedger(("decode",), np.array([1, 2]), parts, np.array([np.nan, np.nan]))


def test_a_gap_over_several_steps_sums_their_causes():
    steps = hand_steps(HAND)
    ledger = simple_ledger(steps)
    parts = gpu_parts(steps, ledger, np.array([4]), np.array([7]))[0] / MS
    assert dict(zip(ledger.causes, parts.tolist(), strict=True)) == {
        "decode": 20, "prefill_before": 100, "prefill_in_step": 30, "other_steps": 0, "host": 5, "unexplained": 0,
    }  # fmt: skip


def test_behind_a_first_token_from_a_prefill_step_only_the_rest_of_its_gap_counts():
    steps = hand_steps(HAND)
    ledger = simple_ledger(steps)
    parts = gpu_parts(steps, ledger, np.array([5]), np.array([6]))[0] / MS  # prefill ends at 155, decode at 168
    assert dict(zip(ledger.causes, parts.tolist(), strict=True)) == {
        "decode": 10, "prefill_before": 0, "prefill_in_step": 0, "other_steps": 0, "host": 3, "unexplained": 0,
    }  # fmt: skip


def test_messages_read_at_once_are_one_arrival():
    row = np.array([0, 0, 0, 0, 1, 1])
    at = np.array([0.0, 10.0, 10.02, 10.04, 10.05, 20.0]) * MS
    before, after = arrival_gaps(row, at)
    assert (before.tolist(), after.tolist()) == ([0, 4], [1, 5])


def true_parts(view, served):
    """Per message behind a request's first: true causes from the formula of the simulated steps, ns, and its length."""
    base = np.array([step_length_ns(b) - b.prefill_tokens * 30e3 for b in served.batches])
    span = (served.end_ns - served.start_ns).astype(float)
    decode = np.array([len(b.decode_requests) > 0 for b in served.batches])
    prefill = np.where(decode, np.where([b.phase == "mixed" for b in served.batches], span - base, 0.0), span)
    decoding = np.where(decode, span - prefill, 0.0)
    total = {"decode": np.cumsum(decoding), "prefill": np.cumsum(prefill), "all": served.end_ns.astype(float)}
    request, step = view.message_request, view.message_step
    inner = np.flatnonzero(request[1:] == request[:-1]) + 1
    a, b = step[inner - 1], step[inner]
    found = {k: v[b] - v[a] for k, v in total.items()}
    length = (view.message_ns[inner] - view.message_ns[inner - 1]).astype(float)
    parts = {
        "decode": found["decode"],
        "prefill": found["prefill"],
        "host": found["all"] - found["decode"] - found["prefill"],
    }
    return parts | {"after_gpu": length - found["all"]}, length


WORLDS = {
    "chunked": ({}, Delivery(jitter_ms=3)),
    "separate": ({"policy": "separate"}, Delivery(jitter_ms=3)),
    "whole": ({"policy": "whole"}, Delivery(jitter_ms=1)),
    "pauses": ({"host_pauses_ms": {60: 90, 200: 120, 333: 80, 500: 100}}, Delivery(jitter_ms=2)),
    "heavy tail": ({}, Delivery(jitter_ms=3, heavy_tail=0.03)),
    "late reader": ({}, Delivery(jitter_ms=1, busy_every_ms=700, busy_ms=90)),
    "drift": ({}, Delivery(jitter_ms=3, drift_ppm=80)),
}


@pytest.mark.parametrize(("name", "clock"), [(n, c) for n in WORLDS for c in (NO_CLOCK, MONOTONIC) if n != "drift" or c is NO_CLOCK])  # fmt: skip
def test_the_worst_percent_of_gaps_is_explained_within_3_points(tmp_path, name, clock):
    options, delivery = WORLDS[name]
    served = busy(21, 60, **options)
    view, log = log_of(tmp_path, served, delivery)
    steps = steps_of(served)
    placement = align(log, steps, clock).placement
    gaps = client_gaps(placement, steps)
    worst = np.flatnonzero(gaps.length_ns >= np.percentile(gaps.length_ns, 99))
    causes, parts = causes_of(gaps, worst, steps, simple_ledger(steps))
    assert np.allclose(parts.sum(axis=1), gaps.length_ns[worst], atol=2)
    found = dict(zip(causes, 100 * parts.sum(axis=0) / parts.sum(), strict=True))
    true, length = true_parts(view, served)
    chosen = length >= np.percentile(length, 99)
    share = {k: 100 * v[chosen].sum() / length[chosen].sum() for k, v in true.items()}
    assert found["decode"] + found["unexplained"] == pytest.approx(share["decode"], abs=3)
    assert found["prefill_before"] + found["prefill_in_step"] == pytest.approx(share["prefill"], abs=3)
    assert found["host"] == pytest.approx(share["host"], abs=3)
    assert found["after_gpu"] == pytest.approx(share["after_gpu"], abs=3)


def true_first(view, served, request):
    steps = served.prefill_steps[request]
    own = sum(int(served.end_ns[s] - served.start_ns[s]) for s in steps)
    first, last = steps[0], steps[-1]
    at = int(view.message_ns[view.of_request(request)][0])
    return [served.start_ns[first] - view.sent_ns[request], own, served.end_ns[last] - served.start_ns[first] - own, at - served.end_ns[last]]  # fmt: skip


@pytest.mark.parametrize("policy", ["chunked", "separate", "whole"])
@pytest.mark.parametrize(("clock", "write"), [(NO_CLOCK, writers.write_vllm), (MONOTONIC, writers.write_vllm), (NO_CLOCK, writers.write_sglang)])  # fmt: skip
def test_times_to_first_token_are_explained_within_3_percent(tmp_path, policy, clock, write):
    served = busy(22, 60, rate=10, policy=policy, max_batched_tokens=1024)
    view, log = log_of(tmp_path, served, Delivery(jitter_ms=3), write)
    steps = steps_of(served)
    found = first_tokens(align(log, steps, clock).placement, log, steps)
    assert len(found.request) >= 50
    true = np.array([true_first(view, served, r) for r in found.request.tolist()], dtype=float)
    assert np.allclose(found.parts_ns.sum(axis=1), found.length_ns, atol=2)
    assert np.allclose(found.length_ns, true.sum(axis=1), atol=1000)
    error = np.abs(found.parts_ns.sum(axis=0) - true.sum(axis=0)) / true.sum()
    assert error.max() < 0.03, dict(zip(CAUSES, error, strict=True))
    right = np.abs(found.parts_ns[:, 1] - true[:, 1]) < 1000
    assert right.mean() > 0.97
    assert found.certain.mean() > 0.97


def test_a_prompt_in_the_cache_takes_only_its_rest(tmp_path):
    served = busy(22, 30)
    _, log = log_of(tmp_path, served, Delivery(jitter_ms=2))
    steps = steps_of(served)
    placement = align(log, steps, NO_CLOCK).placement
    from dataclasses import replace

    import polars as pl

    # the log's prompts are 500 tokens longer than what was computed, and it says so
    longer = log.requests.with_columns(
        pl.col("prompt_tokens") + 500, pl.lit(500, dtype=pl.Int32).alias("cached_tokens")
    )
    same = first_tokens(placement, replace(log, requests=longer), steps)
    assert np.array_equal(same.first_step, first_tokens(placement, log, steps).first_step)
    assert same.certain.mean() > 0.9
