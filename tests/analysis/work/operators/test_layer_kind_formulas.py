"""Recurrences, windows, chunks and compressed rows against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trace_analyze.analysis.models.layer_kinds import GatedDelta, KimiDelta, Lightning, Mamba1, Mamba2, Reach, ShortConv
from trace_analyze.analysis.work.operators.layer_kind_formulas import (
    Batch,
    causal_pairs_of,
    chunk_state_bytes,
    chunked_flop,
    compressed_rows,
    recurrence_elements,
    recurrence_flop,
    seen,
)

QWEN3_NEXT = GatedDelta(16, 32, 128, 128)
NEMOTRON_H_8B = Mamba2(128, 64, 8, 128, chunk=128)
KIMI_LINEAR = KimiDelta(32, 128)
MINIMAX_01 = Lightning(64, 128, 256)
JAMBA = Mamba1(8192, 16, 256)


@pytest.mark.parametrize(
    ("part", "state", "flop"),
    [
        (QWEN3_NEXT, 524_288, 3_670_016),  # 32 heads of 128 x 128; 7 FLOP an element
        (NEMOTRON_H_8B, 1_048_576, 5_242_880),  # 128 heads of 64 x 128; 5
        (KIMI_LINEAR, 524_288, 3_670_016),
        (MINIMAX_01, 1_048_576, 5_242_880),  # 64 heads of 128 x 128; 5
        (JAMBA, 131_072, 1_179_648),  # 8192 channels of 16; 9
        (ShortConv(2048), 0, 0),
    ],
)
def test_state_and_flop_of_one_token(part, state, flop):
    assert part.state_elements == state
    assert recurrence_flop(part) == flop


@pytest.mark.parametrize(
    ("part", "flop"),
    [
        # 6 x 16384 + 2 x 64 x 640 + 64^2 / 3 = 98,304 + 81,920 + 1,365.3 a head, 32 heads
        (QWEN3_NEXT, 32 * 181_589.333),
        (KIMI_LINEAR, 32 * 181_589.333),
        # 128 heads of 2 x 128 x 64 + 4 x 64 x 128 = 49,152, and 8 groups of 2 x 128 x 128 = 32,768
        (NEMOTRON_H_8B, 128 * 49_152 + 8 * 32_768),
        # 64 heads of 4 x 256 x 128 + 4 x 128 x 128 = 196,608
        (MINIMAX_01, 64 * 196_608),
        (JAMBA, 1_179_648),
    ],
)
def test_prefill_kernels_execute_chunks(part, flop):
    assert chunked_flop(part) == pytest.approx(flop)


def test_useful_share_of_a_chunked_delta_rule():
    """7 dk dv of 115 k useful FLOP in 182 k executed."""
    assert recurrence_flop(QWEN3_NEXT) / chunked_flop(QWEN3_NEXT) == pytest.approx(0.63, abs=0.005)


@pytest.mark.parametrize(
    ("part", "elements"),
    [
        (QWEN3_NEXT, 2 * 2048 + 2 * 4096),
        (KIMI_LINEAR, 5 * 4096 + 32),
        (NEMOTRON_H_8B, 2 * 8192 + 2 * 8 * 128 + 128),
        (MINIMAX_01, 4 * 8192),
        (JAMBA, 3 * 8192 + 32),
        (ShortConv(2048), 0),
    ],
)
def test_inputs_and_output_of_a_recurrence(part, elements):
    assert recurrence_elements(part) == elements


def test_states_between_chunks():
    """8192 tokens of Qwen3-Next: 128 chunks x 32 heads x 128 x 128 at 2 bytes = 134 MB each way."""
    batch = Batch.of([8192], [8192], "prefill")
    assert chunk_state_bytes(QWEN3_NEXT, batch) == 2 * 134_217_728
    assert chunk_state_bytes(NEMOTRON_H_8B, batch) == 4 * 64 * 1_048_576 * 4
    assert chunk_state_bytes(MINIMAX_01, batch) == 0


# -- what attention sees -----------------------------------------------------------------------------------------------


def by_hand(reach, queries, length):
    """Pairs by counting, position by position."""
    pairs = 0
    for position in range(length - queries, length):
        if reach.window:
            pairs += min(position + 1, reach.window)
        elif reach.chunk:
            pairs += position % reach.chunk + 1
        else:
            pairs += min(position + 1, reach.selected or position + 1)
    return pairs


@settings(max_examples=50)
@given(
    st.sampled_from([Reach(window=7), Reach(chunk=8), Reach(selected=5), Reach()]),
    st.integers(1, 30),
    st.integers(0, 40),
)
def test_pairs_are_those_counted_one_by_one(reach, queries, before):
    batch = Batch.of([queries, 1], [before + queries, 3], "prefill")
    assert seen(reach, batch).pairs == by_hand(reach, queries, before + queries) + by_hand(reach, 1, 3)


def test_cached_tokens_that_are_read():
    decode = Batch.of([1, 1], [5000, 100], "decode")
    assert seen(Reach(window=128), decode).tokens == 128 + 100
    assert seen(Reach(selected=2048), decode).tokens == 2048 + 100
    assert seen(Reach(), decode).tokens == 5100
    # 10,001 tokens in chunks of 8192: the last one sees 10,000 mod 8192 + 1
    assert seen(Reach(chunk=8192), Batch.of([1], [10_001], "decode")).tokens == 1809
    # a prompt of 100 from 8150 on begins inside the first chunk, all of which it must read
    assert seen(Reach(chunk=8192), Batch.of([100], [8250], "prefill")).tokens == 8250
    # queries of a prompt choose different rows, each read once at most
    assert seen(Reach(selected=16), Batch.of([100], [1000], "prefill")).tokens == 1000


@settings(max_examples=50)
@given(st.integers(1, 60), st.integers(0, 80), st.sampled_from([None, 3, 9]))
def test_compressed_rows_are_those_counted_one_by_one(queries, before, top):
    length = before + queries
    expected = sum(min(n // 4, top if top is not None else n) for n in range(before + 1, length + 1))
    assert compressed_rows(Batch.of([queries], [length], "prefill"), 4, top).pairs == expected


def test_compressed_rows_of_decode():
    """At 8192 tokens, 2048 rows of 4 of which 512 are chosen, and 64 rows of 128."""
    decode = Batch.of([1], [8192], "decode")
    assert compressed_rows(decode, 4, 512).tokens == 512
    assert compressed_rows(decode, 128).tokens == 64


def test_causal_pairs():
    """Prompts of 4 and of 2 after 3 cached: 1 + 2 + 3 + 4, and 4 + 5."""
    assert causal_pairs_of(Batch.of([4, 2], [4, 5], "prefill")) == 19


def test_an_unknown_length_spreads():
    batch = Batch.of([1, 1], [10, np.nan], "decode")
    assert np.isnan(seen(Reach(), batch).pairs)
    assert np.isnan(seen(Reach(window=4), batch).pairs)
    assert np.isnan(compressed_rows(batch, 4).pairs)


def test_states_written():
    """Once a step, and after every drafted token that is verified."""
    assert Batch.of([100, 20], [100, 20], "prefill").states_written == 2
    assert Batch.of([4, 4], [100, 200], "decode").states_written == 8
    assert Batch.of([100, 20], [100, 120], "prefill").continued == 1
