"""KV lengths from counts alone: scenes told in one line a step, and random schedules compared with what happened."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trace_analyze.analysis.records.tables import STEPS
from trace_analyze.analysis.work.kv_lengths.request_lengths import PromptChunk, RequestLengths
from trace_analyze.analysis.work.kv_lengths.step_kv_lengths import fill_steps, kv_lengths


def steps_of(rows):
    """STEPS from (phase, {column: value}) rows of one group and device."""
    full = []
    for index, (phase, values) in enumerate(rows):
        row = {
            "step": index,
            "index": index,
            "device": 0,
            "device_index": 0,
            "group": 0,
            "phase": phase,
            "excluded": False,
            "partial": False,
            "prefill_tokens": 0,
            "decode_tokens": 0,
            "prefill_requests": 0,
            "decode_requests": 0,
        }
        full.append(row | values)
    return pl.DataFrame(
        [pl.Series(name, [row.get(name) for row in full], dtype=dtype) for name, dtype in STEPS.items()]
    )


def prefill(tokens, requests=1, finished=None):
    return ("prefill", {"prefill_tokens": tokens, "prefill_requests": requests, "prompts_finished": finished})


def decode(requests, tokens=None):
    return ("decode", {"decode_requests": requests, "decode_tokens": requests if tokens is None else tokens})


def mixed(tokens, decodes, requests=1, finished=None):
    return (
        "mixed",
        {
            "prefill_tokens": tokens,
            "prefill_requests": requests,
            "decode_requests": decodes,
            "decode_tokens": decodes,
            "prompts_finished": finished,
        },
    )


def decode_sums(*rows):
    return kv_lengths(steps_of(rows)).decode_sum.tolist()


def same(found, expected):
    return np.array_equal(np.array(found, float), np.array(expected, float), equal_nan=True)


UNKNOWN = float("nan")


@pytest.mark.parametrize(
    ("what", "rows", "expected"),
    [
        ("one user", [prefill(100), decode(1), decode(1)], [0, 101, 102]),
        ("the next question of one user", [prefill(100), decode(1), prefill(50), decode(1)], [0, 101, 0, 51]),
        ("two prompts one by one", [prefill(100), prefill(40), decode(2), decode(2)], [0, 0, 142, 144]),
        ("one prompt in two chunks", [prefill(100), prefill(40), decode(1)], [0, 0, 141]),
        ("a batch of prompts", [prefill(300, 3), decode(3), decode(3)], [0, 303, 306]),
        ("chunks beside decode", [prefill(100), mixed(64, 1, finished=0), mixed(36, 1, finished=1), decode(2)], [0, 101, 102, 103 + 101]),
        ("a second prompt after the first chunked one", [prefill(10), mixed(64, 1, finished=1), mixed(20, 2, finished=1), decode(3)], [0, 11, 12 + 65, 13 + 66 + 21]),
        ("a chunk that may have ended", [prefill(100), mixed(64, 1), mixed(36, 1)], [0, 101, UNKNOWN]),
        ("somebody was decoding before", [decode(4), decode(4), prefill(50), decode(5)], [UNKNOWN, UNKNOWN, 0, UNKNOWN]),
        ("a stranger among the first", [prefill(50), decode(2)], [0, UNKNOWN]),
        ("one of two equal requests ends", [prefill(100), prefill(100), decode(2), decode(1)], [0, 0, 202, 102]),
        ("one of two different requests ends", [prefill(100), prefill(900), decode(2), decode(1)], [0, 0, 1002, UNKNOWN]),
        ("one of a batch of unknown split ends", [prefill(300, 3), decode(3), decode(2)], [0, 303, UNKNOWN]),
        ("drafts are accepted", [prefill(100), decode(1, 4), decode(1, 4)], [0, UNKNOWN, UNKNOWN]),
        ("an unknown step between", [prefill(100), decode(1), ("unknown", {}), decode(1)], [0, 101, UNKNOWN, UNKNOWN]),
        ("all new after that", [decode(3), prefill(80), decode(1), decode(1)], [UNKNOWN, 0, 81, 82]),
        ("a step that says what finished", [prefill(10, 1, 1), prefill(64, 1, 0), prefill(36, 1, 1), decode(2)], [0, 0, 0, 11 + 101]),
    ],
)  # fmt: skip
def test_scenes(what, rows, expected):
    assert same(decode_sums(*rows), expected), what


def test_chunk_lengths_become_known_when_their_prompt_joins():
    found = kv_lengths(steps_of([prefill(100), prefill(40), decode(1)]))
    assert found.prefill_sum[:2].tolist() == [100, 140]
    assert found.prefill_qk[:2].tolist() == [100 * 100, 40 * 140]
    assert found.prefill_qq[:2].tolist() == [100 * 100, 40 * 40]


def test_a_batch_of_prompts_is_known_in_sum_only():
    found = kv_lengths(steps_of([prefill(300, 3), decode(3)]))
    assert found.prefill_sum[0] == 300
    assert np.isnan(found.prefill_qk[0])


def test_markers_beat_the_requests():
    rows = [prefill(100), decode(1)]
    rows[1][1].update(kv_tokens=500)
    rows[0][1].update(prefill_qk=1.5e4, prefill_qq=1.0e4, kv_tokens=150)
    steps = steps_of(rows)
    found = kv_lengths(steps)
    assert found.decode_sum.tolist() == [0, 500]
    assert found.prefill_sum[0] == 150
    assert found.prefill_qk[0] == 1.5e4
    assert found.source == ["marker", "marker"]
    filled = fill_steps(steps, found)
    assert filled["kv_tokens"].to_list() == [150, 500]
    assert filled.schema == steps.schema


def test_excluded_and_other_steps_are_passed_over():
    rows = [prefill(100), ("other", {"decode_requests": 7}), decode(1)]
    rows.insert(0, ("decode", {"decode_requests": 9, "decode_tokens": 9, "excluded": True}))
    assert same(decode_sums(*rows), [UNKNOWN, 0, UNKNOWN, 101])


def test_sliding_window_clamps_each_request():
    found = kv_lengths(steps_of([prefill(100), prefill(40), decode(2), decode(2)]), window=64)
    assert found.decode_window_sum.tolist() == [0, 0, 64 + 41, 64 + 42]


def test_ranks_share_what_the_first_shows():
    steps = steps_of([prefill(100), decode(1)])
    other = steps.with_columns(device_index=pl.lit(1, pl.Int32), decode_requests=pl.lit(None, pl.Int64))
    both = pl.concat([steps, other])
    assert kv_lengths(both).decode_sum.tolist() == [0, 101, 0, 101]


def test_no_steps():
    assert len(kv_lengths(steps_of([])).decode_sum) == 0


class Server:
    """A scheduler of the simplest kind, which knows every length."""

    def __init__(self, seed, chunk):
        self.random = np.random.default_rng(seed)
        self.chunk = chunk
        self.running = []  # [length, tokens left]
        self.waiting = None  # [done, total, output]
        self.rows, self.truth = [], []

    def step(self, *, admit, prompt, output):
        chunk = 0
        if self.waiting is None and admit:
            self.waiting = [0, prompt, output]
        self.running = [[length + 1, left - 1] for length, left in self.running]
        decodes = len(self.running)
        lengths = sum(length for length, _ in self.running)
        if self.waiting is not None:
            chunk = min(self.chunk, self.waiting[1] - self.waiting[0])
            self.waiting[0] += chunk
            if self.waiting[0] == self.waiting[1]:
                self.running.append([self.waiting[1], self.waiting[2]])
                self.waiting = None
        if chunk and decodes:
            self.rows.append(mixed(chunk, decodes))
        elif chunk:
            self.rows.append(prefill(chunk))
        elif decodes:
            self.rows.append(decode(decodes))
        else:
            return
        self.truth.append(lengths)
        self.running = [each for each in self.running if each[1] > 0]


@settings(max_examples=60)
@given(
    st.integers(0, 10**6),
    st.lists(st.tuples(st.booleans(), st.integers(1, 400), st.integers(1, 25)), min_size=5, max_size=60),
)
def test_what_is_claimed_is_true(seed, plan):
    """Whatever the schedule, a sum called tracked is within the stated spread of the truth (whole prompts)."""
    server = Server(seed, chunk=10**6)
    for admit, prompt, output in plan:
        server.step(admit=admit, prompt=prompt, output=output)
    if not server.rows:
        return
    found = kv_lengths(steps_of(server.rows))
    for claimed, true in zip(found.decode_sum, server.truth, strict=True):
        if np.isnan(claimed):
            continue
        assert abs(claimed - true) <= max(0.02 * true, 0.5)


@given(st.lists(st.integers(1, 500), min_size=1, max_size=12), st.data())
def test_the_two_books_hold_the_truth_between_them(lengths, data):
    """Whoever finishes, the sorted true lengths lie between the two bookings, element by element."""
    requests = RequestLengths(low=np.array(lengths, float), high=np.array(lengths, float), live=len(lengths))
    truth = sorted(lengths)
    while truth:
        finished = data.draw(st.integers(0, len(truth)))
        for _ in range(finished):
            truth.pop(data.draw(st.integers(0, len(truth) - 1)))
        if not truth:
            break
        requests.decode(len(truth), float(len(truth)), has_prefill=False)
        truth = sorted(length + 1 for length in truth)
        if not requests.known:
            break
        assert (np.sort(requests.low) <= truth).all()
        assert (truth <= np.sort(requests.high)).all()
        if finished == 0:
            break


def test_prompts_that_never_decode_have_lengths_too():
    """A worker that only prefills hands its requests to another; a prompt in chunks stays unknown."""
    found = kv_lengths(steps_of([prefill(80, 1, 1), prefill(60, 2, 2), prefill(100, 1, 0), prefill(40, 1, 1)]))
    assert found.prefill_sum[:2].tolist() == [80, 60]
    assert found.prefill_qk[0] == 80 * 80
    assert np.isnan(found.prefill_qk[1:]).all()


def test_requests_of_unknown_length_are_not_piled_up():
    """A server that decodes before the capture begins takes a prompt in every step: nothing is known, nothing is kept."""
    requests = RequestLengths()
    for row in range(50):
        requests.decode(8, 8.0, has_prefill=True)
        requests.prefill(PromptChunk(row, 512.0, 1.0, 1.0))
    assert requests.sum_bounds is None
    assert len(requests.low) == len(requests.high) == 0
