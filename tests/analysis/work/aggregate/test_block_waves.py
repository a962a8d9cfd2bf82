"""Waves, coverage and tail waste, worked out by hand for an A100 (108 SMs, 64 warps, 65,536 registers, 164 KB)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trace_analyze.analysis.work.aggregate.block_waves import SmLimits, waves

A100 = SmLimits(sm_count=108, max_warps=64, max_blocks=32, registers=65536, shared_memory_bytes=167936)


def one(blocks, threads=256, registers=32, shared=0, limits=A100, cluster=None):
    columns = [np.array([value], np.int64) for value in (blocks, threads, registers, shared)]
    return waves(*columns, limits, None if cluster is None else np.array([cluster]))


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "per_sm"),
    [
        (256, 32, 0, 8),  # 8 warps of 64
        (1024, 32, 0, 2),
        (32, 32, 0, 32),  # the block limit
        (256, 128, 0, 2),  # 65,536 / (128 x 32) = 16 warps
        (256, 255, 0, 1),  # 256 x 32 = 8,192 a warp: 8 warps
        (128, 32, 81920, 2),  # 80 KB + 1 KB, twice in 164 KB
        (128, 32, 163840, 1),
        (48, 32, 0, 32),  # two warps, the second half empty
    ],
)
def test_blocks_per_sm(threads, registers, shared, per_sm):
    assert one(108, threads, registers, shared).blocks_per_sm[0] == per_sm


def test_one_full_wave_wastes_nothing():
    found = one(108 * 8)
    assert found.waves[0] == 1.0
    assert found.tail_waste_pct[0] == 0.0
    assert found.sm_coverage_pct[0] == 100.0


def test_one_block_more_costs_a_wave():
    found = one(108 * 8 + 1)
    assert found.waves[0] == pytest.approx(865 / 864)
    assert found.tail_waste_pct[0] == pytest.approx(100 * (1 - 865 / 864 / 2))


def test_few_blocks_leave_sms_empty():
    assert one(40).sm_coverage_pct[0] == pytest.approx(100 * 40 / 108)


def test_clusters_are_placed_whole():
    h100 = SmLimits(sm_count=132, max_warps=64, registers=65536)
    assert one(132, 1024, 32, limits=h100, cluster=8).waves[0] == pytest.approx(132 / (128 * 2))


def test_unknown_limits_leave_only_coverage():
    found = one(54, limits=SmLimits(sm_count=108))
    assert np.isnan(found.waves[0])
    assert found.sm_coverage_pct[0] == 50.0


@given(st.integers(1, 10**6), st.integers(1, 1024), st.integers(0, 255), st.integers(0, 227 * 1024))
def test_waste_and_coverage_are_percentages(blocks, threads, registers, shared):
    found = one(blocks, threads, registers, shared)
    assert 0 <= found.tail_waste_pct[0] < 100
    assert 0 < found.sm_coverage_pct[0] <= 100
    assert found.blocks_per_sm[0] >= 1
