"""Work of steps whose kernels are not recorded: the whole model's, from the step's tokens and lengths.

Nsight Systems records a CUDA graph as one row unless told otherwise, so in most captures the kernels of decode are not
there. What a step must do does not depend on how it is launched: every matrix of the model once per layer, attention over
the cached tokens, the small kernels around them. That gives the step its FLOPs and bytes, and its time is that of its
graph rows and the kernels beside them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from ...gpus.device_ceilings import DeviceCeilings
from ...models.find_model import ModelShape
from ...models.model_shape import linear_maps
from ..operators.layer_matrices import RankShape
from ..operators.name_arrays import DTYPES, place_defaults
from .place_costs import ROW_CODE, StepSums, work_table

Floats = npt.NDArray[np.float64]

MATRIX_PLACES = ("attention", "attention/window")  # besides the matrices themselves: what MFU counts


@dataclass(frozen=True)
class WholeSteps:
    """Per step; NaN = unknown. ``kv`` NaN with ``weights`` known: lengths are missing, the bytes are a lower bound."""

    flop: Floats
    weights: Floats
    kv: Floats
    activations: Floats
    compute_s: Floats
    memory_s: Floats

    def only(self, chosen: npt.NDArray[np.bool_]) -> WholeSteps:
        """The same with steps that are not ``chosen`` unknown."""
        return WholeSteps(*(np.where(chosen, getattr(self, each.name), np.nan) for each in fields(self)))


def kernels_per_step(model: ModelShape) -> dict[str, float]:
    """How often each row of the work table occurs in one step of the model."""
    counts: dict[str, float] = {}
    for each in linear_maps(model):
        counts[each.place] = counts.get(each.place, 0.0) + each.layers
    sliding = len(model.sliding_layers) if model.sliding_window else 0
    counts |= {"attention": model.layers - sliding, "attention/window": sliding}
    counts |= {"rope": model.layers, "kv_write": model.layers, "qk_norm": model.layers if model.qk_norm else 0}
    # a layer's norms add the residual: they move and compute what two plain norms move, and a quarter more
    counts |= {"norm": 2.0 * 2 * model.layers, "final_norm": 2.0, "embedding": 1.0}
    counts["activation"] = model.dense_layers
    counts |= dict.fromkeys(("expert_activation", "expert_sum"), model.moe_layers if model.experts else 0)
    counts["shared_activation"] = model.moe_layers if model.shared_intermediate else 0
    if model.is_mla:  # decode works on the latents; what decompresses them runs for prefill alone, over its own lengths
        counts |= {"absorb_q": model.layers, "absorb_o": model.layers}
    return {place: float(count) for place, count in counts.items() if count}


def whole_steps(
    rank: RankShape, sums: StepSums, device: npt.NDArray[np.int32], ceilings: Sequence[DeviceCeilings]
) -> WholeSteps:
    """Work of one rank in every step, and its ideal times at the ceilings of the step's ``device``."""
    table = work_table(rank, sums)
    weight_bytes, dtypes = place_defaults(rank.model)
    matrices = {each.place for each in linear_maps(rank.model)} | {"absorb_q", "absorb_o"}
    peaks = _peaks(ceilings, device)
    steps = len(sums.tokens)
    flop, weights, activations, compute = (np.zeros(steps) for _ in range(4))
    kv = np.zeros(steps)
    for place, count in kernels_per_step(rank.model).items():
        at = ROW_CODE[place]
        code = ROW_CODE[place.partition("/")[0]]
        is_attention = place in MATRIX_PLACES
        if place in matrices or is_attention:
            own = table.flop[at]
            if place in ("absorb_q", "absorb_o"):
                own = np.where(sums.decode_tokens > 0, own, 0.0)
            # unknown lengths leave attention's FLOPs out: a few percent, and the least that is known
            own = np.where(np.isnan(own) & is_attention, 0.0, own)
            flop += count * own
            compute += count * own / peaks[DTYPES[dtypes[code]]]
        reads = table.weight_elements[at] * np.nan_to_num(weight_bytes[code]) + table.weight_bytes[at]
        if place in ("absorb_q", "absorb_o"):
            reads = np.where(sums.decode_tokens > 0, reads, 0.0)
        if place == "kv_b":
            reads = np.where(sums.prefill_tokens > 0, reads, 0.0)
        weights += count * reads
        kv += count * table.kv[at]
        activations += count * np.nan_to_num(table.activations[at])
    activations = np.where(np.isnan(sums.tokens), np.nan, activations)
    size = weights + np.nan_to_num(kv) + np.nan_to_num(activations)
    return WholeSteps(flop, weights, kv, activations, compute, size / peaks["memory"])


def _peaks(ceilings: Sequence[DeviceCeilings], device: npt.NDArray[np.int32]) -> Mapping[str, Floats]:
    """Peak FLOP/s of every data type and bytes/s (``memory``) of each step's device; NaN where unknown."""
    found: dict[str, Floats] = {}
    for dtype in ("", *DTYPES, "memory"):
        values = np.full(len(device), np.nan)
        for ceiling in ceilings:
            peak = ceiling.memory_bandwidth_gbps if dtype == "memory" else ceiling.peak_tflops.get(dtype)
            if peak:
                values[device == ceiling.device_index] = peak * (1e9 if dtype == "memory" else 1e12)
        found[dtype] = values
    return found
