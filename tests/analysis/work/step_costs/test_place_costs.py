"""The table of work per place and step, for single steps worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from trace_analyze.analysis.models.load_model import load_model
from trace_analyze.analysis.records.tables import STEPS
from trace_analyze.analysis.work.kv_lengths.step_kv_lengths import kv_lengths
from trace_analyze.analysis.work.operators.layer_matrices import RankShape
from trace_analyze.analysis.work.step_costs.place_costs import ROW_CODE, step_sums, work_table

LLAMA = load_model("llama-3.1-8b")


def steps_of(*rows):
    plain = {"group": 0, "device_index": 0, "excluded": False, "partial": False, "evidence": "marker"}
    full = [{**plain, "index": at, "step": at, **row} for at, row in enumerate(rows)]
    return pl.DataFrame(
        [pl.Series(name, [row.get(name) for row in full], dtype=dtype) for name, dtype in STEPS.items()]
    )


def decode(requests, kv=None, **more):
    return {"phase": "decode", "decode_requests": requests, "decode_tokens": requests, "kv_tokens": kv, **more}


def prefill(tokens, kv=None, **more):
    return {"phase": "prefill", "prefill_tokens": tokens, "prefill_requests": 1, "kv_tokens": kv, **more}


def cell(model, row, place, field="flop", ranks=1, **options):
    steps = steps_of(*row) if isinstance(row, tuple) else steps_of(row)
    lengths = kv_lengths(steps, model.sliding_window)
    table = work_table(RankShape(model, ranks), step_sums(steps, lengths, **options))
    return float(getattr(table, field)[ROW_CODE[place], -1])


@pytest.mark.parametrize(
    ("place", "flop"),
    [
        ("qkv", 2 * 8 * 4096 * 6144),
        ("q", 2 * 8 * 4096 * 4096),
        ("k", 2 * 8 * 4096 * 1024),
        ("o", 2 * 8 * 4096 * 4096),
        ("gate_up", 2 * 8 * 4096 * 2 * 14336),
        ("down", 2 * 8 * 4096 * 14336),
        ("lm_head", 2 * 8 * 4096 * 128256),
        ("attention", 4 * 32 * 128 * 5000),
    ],
)
def test_decode_of_eight(place, flop):
    assert cell(LLAMA, decode(8, 5000), place) == flop


def test_one_rank_of_four_does_a_quarter():
    for place in ("qkv", "o", "gate_up", "down", "lm_head", "attention"):
        assert cell(LLAMA, decode(8, 5000), place, ranks=4) == cell(LLAMA, decode(8, 5000), place) / 4


def test_padding_is_executed_and_not_useful():
    row = decode(5, 5000, padded_tokens=8, graph_id=3)
    assert cell(LLAMA, row, "gate_up") == 2 * 5 * 4096 * 2 * 14336
    assert cell(LLAMA, row, "gate_up", "flop_executed") == 2 * 8 * 4096 * 2 * 14336


def test_unknown_tokens_leave_the_weights_known():
    row = {"phase": "decode", "padded_tokens": 8}
    assert np.isnan(cell(LLAMA, row, "gate_up"))
    assert cell(LLAMA, row, "gate_up", "weight_elements") == 4096 * 2 * 14336


def test_unknown_lengths_leave_attention_unknown():
    assert np.isnan(cell(LLAMA, decode(8), "attention"))
    assert np.isnan(cell(LLAMA, decode(8), "attention", "kv"))


def test_prefill_by_both_conventions():
    row = prefill(2000, prefill_qk=4e6, prefill_qq=4e6)
    exact, rectangle = (cell(LLAMA, row, "attention", rectangle=each) for each in (False, True))
    assert exact == 4 * 32 * 128 * 2000 * 2001 / 2
    assert rectangle == 4 * 32 * 128 * 2000 * 2000


def test_logits_of_a_prompt_are_one_row():
    assert cell(LLAMA, prefill(2000), "lm_head") == 2 * 4096 * 128256


def test_a_mixed_step_has_two_parts():
    row = {
        "phase": "mixed",
        "prefill_tokens": 100,
        "prefill_requests": 1,
        "decode_tokens": 4,
        "decode_requests": 4,
        "kv_tokens": 2100,
        "prefill_kv_tokens": 100,
        "prefill_qk": 1e4,
        "prefill_qq": 1e4,
    }
    parts = [cell(LLAMA, row, place) for place in ("attention_prefill", "attention_decode", "attention")]
    assert parts[0] == 4 * 32 * 128 * 5050
    assert parts[1] == 4 * 32 * 128 * 2000
    assert parts[2] == parts[0] + parts[1]
    assert cell(LLAMA, row, "qkv") == 2 * 104 * 4096 * 6144


def test_speculative_verification_multiplies_the_rows():
    row = decode(2, 30, decode_tokens=6)
    row["decode_tokens"] = 6
    assert cell(LLAMA, row, "attention") == 4 * 32 * 128 * (27 + 57)
    assert cell(LLAMA, row, "lm_head") == 2 * 6 * 4096 * 128256


class TestWindow:
    MODEL = replace(LLAMA, sliding_window=64, sliding_layers=tuple(range(0, 32, 2)))

    def test_tracked_lengths_are_clamped_one_by_one(self):
        rows = (prefill(100), {**prefill(40)}, decode(2), decode(2))
        assert cell(self.MODEL, rows, "attention/window") == 4 * 32 * 128 * (64 + 42)
        assert cell(self.MODEL, rows, "attention") == 4 * 32 * 128 * (102 + 42)
        assert cell(self.MODEL, rows, "attention/window", "kv") == 2 * 2 * 8 * 128 * (64 + 42)

    def test_a_sum_beyond_the_window_is_unknown(self):
        assert np.isnan(cell(self.MODEL, decode(4, 1000), "attention/window"))
        assert cell(self.MODEL, decode(4, 60), "attention/window") == 4 * 32 * 128 * 60

    def test_prefill_sees_the_window(self):
        rows = (prefill(100, prompts_finished=1),)
        pairs = 64 * 65 / 2 + 36 * 64
        assert cell(self.MODEL, rows, "attention/window") == 4 * 32 * 128 * pairs


class TestExperts:
    MODEL = load_model("qwen3-30b-a3b")

    def test_only_the_touched_experts_are_read(self):
        elements = cell(self.MODEL, decode(16, 100), "expert_gate_up", "weight_elements")
        assert elements == pytest.approx(82.4 * 2048 * 2 * 768, rel=1e-3)

    def test_each_token_passes_eight(self):
        assert cell(self.MODEL, decode(16, 100), "expert_down") == 2 * 16 * 8 * 768 * 2048

    def test_one_kernel_for_both(self):
        both = sum(cell(self.MODEL, decode(16, 100), place) for place in ("expert_gate_up", "expert_down"))
        assert cell(self.MODEL, decode(16, 100), "experts") == both


class TestLatent:
    MODEL = load_model("deepseek-v3")

    def test_decode_is_absorbed(self):
        assert cell(self.MODEL, decode(4, 1000), "attention") == 2 * 128 * (2 * 512 + 64) * 1000
        assert cell(self.MODEL, decode(4, 1000), "attention", "kv") == 2 * 576 * 1000
        assert cell(self.MODEL, decode(4, 1000), "absorb_q") == 2 * 4 * 128 * 128 * 512

    def test_prefill_is_decompressed(self):
        row = prefill(100, 100, prefill_qk=1e4, prefill_qq=1e4)
        assert cell(self.MODEL, row, "attention") == 2 * 128 * (128 + 64 + 128) * 5050
        assert cell(self.MODEL, row, "kv_b") == 2 * 100 * 512 * 128 * 256


@pytest.mark.parametrize(
    ("place", "size"),
    [
        ("norm", 2 * 2 * 8 * 4096),
        ("rope", 2 * 2 * 8 * 40 * 128),
        ("activation", 2 * 3 * 8 * 14336),
        ("embedding", 2 * 8 * 4096),
        ("row_gather", 2 * 2 * 8 * 4096),
        ("quantize_down", 3 * 8 * 14336),
    ],
)
def test_small_kernels_move_activations(place, size):
    assert cell(LLAMA, decode(8, 5000), place, "activations") == size


def test_cache_writes_are_kv_traffic():
    assert cell(LLAMA, decode(8, 5000), "kv_write", "kv") == 2 * 8 * 2 * 1024
    assert cell(replace(LLAMA, kv_dtype="fp8"), decode(8, 5000), "kv_write", "kv") == 8 * 2 * 1024
