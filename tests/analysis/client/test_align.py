"""One clock: every road on simulated runs with a truth, and its refusals in hostile worlds."""

import numpy as np
import pytest

from trace_analyze.analysis.client.align import align
from trace_analyze.analysis.client.steps import CaptureClock
from trace_analyze.fixtures.client_logs import Delivery, serve, watch, writers
from trace_analyze.fixtures.client_logs.engine_writers import (
    write_sglang_metrics,
    write_sglang_stats,
    write_trtllm_iterations,
    write_trtllm_perf_metrics,
    write_vllm_iterations,
)
from trace_analyze.fixtures.simulator.scheduler import Request, poisson_like
from trace_analyze.ingest.client_logs import open_client_log

from .worlds import MONOTONIC, NO_CLOCK, WALL, WALL_ZERO, busy, least_delivery_ms, log_of, steps_of


def right_steps(alignment, view, first=0):
    """Share of the placed messages that lie on the step that made them."""
    placed = alignment.placement.placed
    return float(np.mean(alignment.placement.step[placed] + first == view.message_step[placed]))


def offset_error_ms(alignment, view):
    """Stated offset against the true one, the unknowable constant part of delivery put aside."""
    return alignment.offset_ns / 1e6 - view.delivery.offset_ns / 1e6 + least_delivery_ms(view)


@pytest.mark.parametrize("count", [20, 60])
@pytest.mark.parametrize("jitter", [0, 1, 5])
@pytest.mark.parametrize("policy", ["chunked", "separate", "whole"])
def test_unrelated_clocks_are_fitted_within_a_millisecond(tmp_path, count, jitter, policy):
    served = busy(31 + count + jitter, count, policy=policy)
    view, log = log_of(tmp_path, served, Delivery(base_ms=0.5, jitter_ms=jitter))
    found = align(log, steps_of(served), NO_CLOCK)
    assert found.method == "fit", found.reason
    assert found.confident
    assert abs(offset_error_ms(found, view)) < 1
    assert right_steps(found, view) > 0.999
    assert "0.5 ms" in found.reason


@pytest.mark.parametrize("drift", [-100, -30, 0, 30, 100])
def test_a_drift_is_found_to_what_a_millisecond_allows(tmp_path, drift):
    served = busy(5, 150)
    view, log = log_of(tmp_path, served, Delivery(jitter_ms=5, drift_ppm=drift))
    found = align(log, steps_of(served), NO_CLOCK)
    seconds = (served.end_ns[-1] - served.start_ns[0]) / 1e9
    assert found.drift_ppm == pytest.approx(drift, abs=1e3 / seconds)
    assert abs(offset_error_ms(found, view)) < 1
    assert right_steps(found, view) > 0.999


@pytest.mark.parametrize(
    ("write", "offset", "clock"),
    [(writers.write_vllm, -4_990_000_000_000, MONOTONIC), (writers.write_aiperf_raw, -4_990_000_000_000, MONOTONIC),
     (writers.write_inference_perf, -4_990_000_000_000, MONOTONIC), (writers.write_aiperf, -WALL_ZERO, WALL),
     (writers.write_perf_analyzer, -WALL_ZERO, WALL)],
)  # fmt: skip
@pytest.mark.parametrize("delivery", [Delivery(), Delivery(base_ms=30, jitter_ms=5)], ids=["quick", "slow"])
def test_clocks_that_both_sides_carry_are_exact(tmp_path, write, offset, clock, delivery):
    served = busy(3)
    how = Delivery(base_ms=delivery.base_ms, jitter_ms=delivery.jitter_ms, offset_ns=offset)
    view, log = log_of(tmp_path, served, how, write)
    found = align(log, steps_of(served), clock)
    assert found.method == log.clock
    assert found.confident
    assert abs(found.offset_ns - offset) < 100_000
    assert found.drift_ppm == 0
    assert found.violations == 0
    assert found.delivery_known
    assert right_steps(found, view) > 0.999


@pytest.mark.parametrize("apart_ms", [-37, 37, 400])
def test_wall_clocks_of_two_hosts_are_refined_and_the_difference_is_said(tmp_path, apart_ms):
    served = busy(3)
    view, log = log_of(tmp_path, served, Delivery(jitter_ms=4, offset_ns=-WALL_ZERO + apart_ms * 1_000_000), writers.write_aiperf)  # fmt: skip
    found = align(log, steps_of(served), WALL)
    assert found.method == "wall"
    assert abs(offset_error_ms(found, view)) < 1
    assert "wall clocks differ by" in found.reason
    assert right_steps(found, view) > 0.999


def test_a_monotonic_clock_of_another_host_breaks_causality_and_is_not_used(tmp_path):
    served = busy(3)
    view, log = log_of(tmp_path, served, Delivery(offset_ns=-4_990_000_000_000 - 123_000_000))
    found = align(log, steps_of(served), MONOTONIC)
    assert found.method == "fit"
    assert "not that of the capture's host" in found.reason
    assert abs(offset_error_ms(found, view)) < 1


def test_a_wall_clock_a_day_off_is_another_run(tmp_path):
    served = busy(3)
    _, log = log_of(tmp_path, served, Delivery(offset_ns=-WALL_ZERO - 86_400_000_000_000), writers.write_aiperf)
    found = align(log, steps_of(served), WALL)
    assert not found.aligned
    assert "another run" in found.reason


@pytest.mark.parametrize("write", [writers.write_sglang, writers.write_trtllm_client])
@pytest.mark.parametrize("jitter", [0, 2, 5])
def test_logs_without_start_times_are_aligned_by_shape(tmp_path, write, jitter):
    served = busy(12 + jitter, 30, policy="separate")
    view, log = log_of(tmp_path, served, Delivery(jitter_ms=jitter), write)
    found = align(log, steps_of(served), MONOTONIC)
    assert found.method == "shape", found.reason
    assert found.offset_ns is None
    assert right_steps(found, view) > 0.999


def test_bundled_sglang_tokens_are_aligned_by_their_counts(tmp_path):
    served = busy(8, 30, policy="separate")
    view, log = log_of(tmp_path, served, Delivery(jitter_ms=3, stream_interval=4), writers.write_sglang)
    found = align(log, steps_of(served), NO_CLOCK)
    assert found.method == "shape", found.reason
    assert right_steps(found, view) > 0.999


def test_a_stream_interval_that_nobody_states_is_found(tmp_path):
    served = busy(9, 30)
    view, log = log_of(tmp_path, served, Delivery(jitter_ms=3, stream_interval=4))
    found = align(log, steps_of(served), NO_CLOCK)
    assert found.method == "fit", found.reason
    assert right_steps(found, view) > 0.999


@pytest.mark.parametrize("write", [writers.write_vllm, writers.write_sglang])
def test_speculative_bursts_are_one_step_a_message(tmp_path, write):
    served = busy(9, 40, draft=3)
    view, log = log_of(tmp_path, served, Delivery(jitter_ms=2), write)
    found = align(log, steps_of(served), NO_CLOCK)
    assert found.aligned, found.reason
    assert right_steps(found, view) > 0.99


def test_a_client_that_reads_late_is_still_aligned(tmp_path):
    served = busy(6)
    view, log = log_of(tmp_path, served, Delivery(busy_every_ms=300, busy_ms=80))
    for clock in (NO_CLOCK, MONOTONIC):
        found = align(log, steps_of(served), clock)
        assert found.aligned, found.reason
        assert right_steps(found, view) > 0.99


@pytest.mark.parametrize("held", [0.02, 0.3])
@pytest.mark.parametrize("policy", ["chunked", "separate"])
@pytest.mark.parametrize("clock", [NO_CLOCK, MONOTONIC], ids=["fit", "exact"])
def test_messages_that_do_not_say_how_many_tokens_they_hold(tmp_path, held, policy, clock):
    served = busy(3, 60, policy=policy)
    view, log = log_of(tmp_path, served, Delivery(jitter_ms=2, held=held))
    found = align(log, steps_of(served), clock)
    assert found.aligned, found.reason
    assert "preempted" not in found.reason
    assert right_steps(found, view) > 0.995
    assert abs(found.offset_ns / 1e6 - view.delivery.offset_ns / 1e6) < 1


@pytest.mark.parametrize("pair", range(15))
def test_such_a_log_of_another_run_fits_nowhere_either(tmp_path, pair):
    served = busy(300 + pair, 40)
    _, log = log_of(tmp_path, busy(400 + pair, 40), Delivery(jitter_ms=2, held=0.3))
    assert not align(log, steps_of(served), NO_CLOCK).aligned


@pytest.mark.parametrize("share", [0.5, 0.2])
def test_one_of_several_clients_of_a_server_is_enough(tmp_path, share):
    served = busy(4, 80)
    view = watch(served, Delivery(jitter_ms=3))
    run = writers.vllm_run(view)
    mine = np.random.default_rng(1).random(80) < share
    lists = {k: [x for x, m in zip(v, mine, strict=True) if m] for k, v in run.items() if isinstance(v, list)}
    log = open_client_log(writers.write_vllm_runs([run | lists], tmp_path / "log"))
    found = align(log, steps_of(served), NO_CLOCK)
    assert found.method == "fit", found.reason
    own = np.isin(view.message_request, np.flatnonzero(mine))
    assert found.placement.step.tolist() == view.message_step[own].tolist()


def test_preempted_requests_go_on_behind_the_steps_they_missed(tmp_path):
    served = busy(3, 60, preempt={200: 10, 300: 25, 500: 40})
    view, log = log_of(tmp_path, served, Delivery(jitter_ms=2))
    for clock in (NO_CLOCK, MONOTONIC):
        found = align(log, steps_of(served), clock)
        assert found.aligned, found.reason
        assert "preempted" in found.reason
        assert right_steps(found, view) > 0.995


def test_part_of_a_run_is_enough_and_the_rest_is_outside(tmp_path):
    served = busy(8, 60)
    view, log = log_of(tmp_path, served, Delivery(jitter_ms=5))
    for clock in (NO_CLOCK, MONOTONIC):
        found = align(log, steps_of(served, 200, 500), clock)
        assert found.aligned, found.reason
        assert right_steps(found, view, 200) > 0.999


def decoding(count=16, **options):
    return serve([Request(0, 700 + i, 150 + options.get("apart", 0) * i, prefilled=True) for i in range(count)])


@pytest.mark.parametrize("write", [writers.write_vllm, writers.write_sglang])
@pytest.mark.parametrize("apart", [0, 7])
def test_a_steady_rhythm_fits_many_offsets_and_is_refused(tmp_path, write, apart):
    served = decoding(apart=apart)
    _, log = log_of(tmp_path, served, Delivery(jitter_ms=3), write)
    found = align(log, steps_of(served, 20, 120), NO_CLOCK)
    assert not found.aligned
    assert found.reason.startswith("Not aligned: ")


def test_a_steady_rhythm_with_known_clocks_is_aligned_but_not_confident(tmp_path):
    served = decoding()
    view, log = log_of(tmp_path, served, Delivery(jitter_ms=2))
    found = align(log, steps_of(served), MONOTONIC)
    assert found.method == "monotonic"
    assert not found.confident
    assert found.offset_ns == view.delivery.offset_ns


@pytest.mark.parametrize("seed", range(6))
def test_a_closed_loop_of_equal_requests_is_right_or_unconfirmed(tmp_path, seed):
    """Nothing tells one wave from the next but the clock: a fit may refuse, a shared clock may not."""
    requests = [Request(i * 120_000_000, 1000, 60) for i in range(30)]
    served = serve(requests, policy=("chunked", "separate", "whole")[seed % 3], seed=seed)
    view, log = log_of(tmp_path, served, Delivery(jitter_ms=5, seed=seed))
    steps = steps_of(served, 150, 400)
    known = align(log, steps, MONOTONIC)
    assert known.method == "monotonic", known.reason
    assert known.offset_ns == view.delivery.offset_ns
    found = align(log, steps, NO_CLOCK)
    assert not found.aligned or right_steps(found, view, 150) > 0.99


@pytest.mark.parametrize("pair", range(100))
def test_a_log_of_another_run_fits_nowhere(tmp_path, pair):
    """Every fourth pair: no start times; others with unrelated clocks; policies and sizes vary."""
    policy = ("chunked", "separate", "whole")[pair % 3]
    served = busy(2000 + pair, 30 + pair % 30, policy=policy)
    other = busy(1000 + pair, 20 + 3 * (pair % 20), policy=policy)
    write = writers.write_sglang if pair % 4 == 3 else writers.write_vllm
    _, log = log_of(tmp_path, other, Delivery(jitter_ms=(0, 2, 5)[pair % 3]), write)
    found = align(log, steps_of(served), NO_CLOCK)
    assert not found.aligned
    assert found.reason.startswith("Not aligned: ")


@pytest.mark.parametrize("pair", range(12))
def test_the_same_requests_served_again_with_the_same_clock_are_refused(tmp_path, pair):
    """A repetition of the same benchmark looks alike; its clock says otherwise."""
    requests = poisson_like(40, rate_per_s=8, prompt=(200, 4000), output=(40, 200), seed=pair)
    served, again = serve(requests, seed=1 + pair), serve(requests, seed=100 + pair)
    _, log = log_of(tmp_path, again, Delivery(offset_ns=-WALL_ZERO - 60_000_000_000), writers.write_aiperf)
    assert not align(log, steps_of(served), WALL).aligned


@pytest.mark.parametrize("seed", range(8))
def test_another_server_on_the_same_host_and_time_is_refused(tmp_path, seed):
    served, other = busy(50 + seed), busy(80 + seed)
    _, log = log_of(tmp_path, other, Delivery(jitter_ms=2))
    assert not align(log, steps_of(served), MONOTONIC).aligned


def test_steps_without_counts_still_align(tmp_path):
    served = busy(3)
    view, log = log_of(tmp_path, served, Delivery(jitter_ms=3))
    found = align(log, steps_of(served, counts=False), NO_CLOCK)
    assert found.method == "fit", found.reason
    assert right_steps(found, view) > 0.999


@pytest.mark.parametrize("write", [write_trtllm_iterations, write_vllm_iterations])
def test_an_iteration_log_beside_request_metrics_needs_no_clock(tmp_path, write):
    served = busy(3)
    view, log = log_of(tmp_path, served, Delivery(jitter_ms=3), write_trtllm_perf_metrics)
    engine = open_client_log(write(view, tmp_path / "iterations"))
    found = align(log, steps_of(served, 100, 400), NO_CLOCK, [engine])
    assert found.method == "step_ids", found.reason
    placed = found.placement.placed
    assert placed.sum() > 5
    first = [view.message_step[view.of_request(r)][0] for r in found.placement.messages.row[placed]]
    assert (found.placement.step[placed] + 100).tolist() == first


def test_request_metrics_on_a_known_clock_need_no_iteration_log(tmp_path):
    served = busy(3)
    view, log = log_of(tmp_path, served, Delivery(), write_trtllm_perf_metrics)
    found = align(log, steps_of(served), MONOTONIC)
    assert found.method == "monotonic"
    assert abs(found.offset_ns - view.delivery.offset_ns) < 100_000


@pytest.mark.parametrize("pair", range(20))
def test_first_tokens_alone_find_their_own_run_and_no_other(tmp_path, pair):
    served = busy(600 + pair, 20 + 3 * pair)
    view, own = log_of(tmp_path, served, Delivery(jitter_ms=2), write_trtllm_perf_metrics)
    found = align(own, steps_of(served), NO_CLOCK)
    assert found.method == "fit", found.reason
    assert abs(offset_error_ms(found, view)) < 1
    _, other = log_of(tmp_path, busy(700 + pair, 40), Delivery(jitter_ms=2), write_trtllm_perf_metrics)
    assert not align(other, steps_of(served), NO_CLOCK).aligned


@pytest.mark.parametrize("drift", [-100, 100])
def test_a_drift_is_found_without_token_counts_too(tmp_path, drift):
    served = busy(5, 300)
    view, log = log_of(tmp_path, served, Delivery(jitter_ms=2, drift_ppm=drift, held=0.3))
    found = align(log, steps_of(served), NO_CLOCK)
    assert found.method == "fit", found.reason
    assert found.drift_ppm == pytest.approx(drift, abs=30)
    assert right_steps(found, view) > 0.98


def test_sglang_request_metrics_are_on_the_wall_clock(tmp_path):
    served = busy(3, policy="separate")
    _, log = log_of(tmp_path, served, Delivery(offset_ns=-WALL_ZERO), write_sglang_metrics)
    assert align(log, steps_of(served), WALL).method == "wall"


def test_what_a_log_lacks_is_the_reason(tmp_path):
    served = busy(3)
    view, log = log_of(tmp_path, served, Delivery(), writers.write_vllm, detailed=False)
    assert "--save-detailed" in align(log, steps_of(served), NO_CLOCK).reason
    stats = open_client_log(write_sglang_stats(view, tmp_path / "stats"))
    assert "no times of single tokens" in align(stats, steps_of(served), NO_CLOCK).reason


def test_a_capture_without_steps_says_so(tmp_path):
    served = busy(3)
    _, log = log_of(tmp_path, served)
    assert "no whole steps" in align(log, _no_steps(served), CaptureClock()).reason


def _no_steps(served):
    from dataclasses import replace

    steps = steps_of(served)
    none = np.zeros(0, dtype=np.int64)
    flags = np.zeros(0, dtype=bool)
    return replace(steps, index=none, start_ns=none, end_ns=none, has_prefill=flags, has_decode=flags,
                   counts={k: v[:0] for k, v in steps.counts.items()}, iteration=steps.iteration[:0])  # fmt: skip
