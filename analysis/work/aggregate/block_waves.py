"""Thread blocks against what the SMs can hold: waves, tail waste, SM coverage.

A kernel of 40 blocks on 108 SMs cannot use more than 37% of the GPU whatever its intensity, and one of 1.1 waves
spends half of its time with most SMs idle: reasons for a ``latency`` verdict that a reader can check.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

REGISTER_UNIT = 256  # registers are given to a warp in units of this (CUDA occupancy rules, compute capability 7+)
SHARED_UNIT = 128  # bytes
SHARED_RESERVED = 1024  # bytes per block that the driver keeps (compute capability 8 and later)
WARP = 32


@dataclass(frozen=True)
class SmLimits:
    """What one SM holds; None = unknown, then that limit is not applied."""

    sm_count: int
    max_warps: int | None = None
    max_blocks: int | None = None
    registers: int | None = None
    shared_memory_bytes: int | None = None


@dataclass(frozen=True)
class Waves:
    """Per launch; NaN where the limits are unknown."""

    blocks: Ints
    blocks_per_sm: Floats
    waves: Floats
    sm_coverage_pct: Floats
    tail_waste_pct: Floats


def blocks_per_sm(threads: Ints, registers: Ints, shared_memory: Ints, limits: SmLimits) -> Floats:
    """Blocks that fit on one SM by warps, registers, shared memory and the block limit; NaN when warps are unknown."""
    if limits.max_warps is None:
        return np.full(len(threads), np.nan)
    warps = np.maximum(-(-threads // WARP), 1)
    fit = (limits.max_warps // warps).astype(np.float64)
    if limits.registers:
        per_warp = -(-np.maximum(registers, 1) * WARP // REGISTER_UNIT) * REGISTER_UNIT
        by_registers = (limits.registers // per_warp) // warps
        fit = np.where(registers > 0, np.minimum(fit, by_registers), fit)
    if limits.shared_memory_bytes:
        taken = -(-(np.maximum(shared_memory, 0) + SHARED_RESERVED) // SHARED_UNIT) * SHARED_UNIT
        by_shared = limits.shared_memory_bytes // taken
        # a block that ran fits at least once, whatever the carve-out says
        fit = np.where(shared_memory > 0, np.minimum(fit, np.maximum(by_shared, 1)), fit)
    if limits.max_blocks:
        fit = np.minimum(fit, limits.max_blocks)
    return np.maximum(fit, 1.0)


def waves(
    grid_blocks: Ints,
    threads: Ints,
    registers: Ints,
    shared_memory: Ints,
    limits: SmLimits,
    cluster: Ints | None = None,
) -> Waves:
    """Waves of each launch. Tail waste: share of block slots that stay empty in the last wave, over all waves.

    Clusters are placed whole: an SM count that is no multiple of the cluster leaves SMs unused.
    """
    per_sm = blocks_per_sm(threads, registers, shared_memory, limits)
    usable = np.full(len(grid_blocks), limits.sm_count, np.float64)
    if cluster is not None:
        size = np.maximum(cluster, 1)
        usable = np.where(size > 1, (limits.sm_count // size) * size, usable)
    usable = np.maximum(usable, 1)
    count = grid_blocks / (usable * per_sm)
    whole = np.ceil(count)
    tail = np.where(whole > 0, 100.0 * (1.0 - count / np.maximum(whole, 1)), np.nan)
    coverage = 100.0 * np.minimum(1.0, grid_blocks / limits.sm_count)
    return Waves(blocks=grid_blocks, blocks_per_sm=per_sm, waves=count, sm_coverage_pct=coverage, tail_waste_pct=tail)
