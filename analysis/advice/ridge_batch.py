"""The batch at which this model's GEMMs meet the GPU's ridge: below it decode is bound by memory bandwidth.

A GEMM over T tokens does 2 T FLOP per weight and reads the weight once, so its intensity is 2 T / bytes per weight and
meets the ridge at T = ridge x bytes per weight / 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..gpus.device_ceilings import DeviceCeilings
from ..records.work import Model

#: Bytes per stored weight (4-bit formats with the scales of groups of 32 to 128).
BYTES_PER_WEIGHT: Mapping[str, float] = {
    "fp32": 4.0,
    "tf32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "int4": 0.53,
    "fp4": 0.56,
}
#: What the tensor cores compute in; the first that the GPU has a peak for. Packed 4-bit integers are unpacked to bf16.
COMPUTES_IN: Mapping[str, tuple[str, ...]] = {
    "fp32": ("tf32", "fp32"),
    "tf32": ("tf32",),
    "bf16": ("bf16", "fp16"),
    "fp16": ("fp16", "bf16"),
    "fp8": ("fp8", "bf16"),
    "int8": ("int8", "bf16"),
    "int4": ("bf16", "fp16"),
    "fp4": ("fp4", "bf16"),
}


def ridge_batch(ceilings: Sequence[DeviceCeilings], model: Model | None) -> float | None:
    """Tokens per step at the ridge for the model's weights (bf16 where unknown); None without a peak or a bandwidth."""
    weight = str((model and model.weight_dtype) or "bf16")
    stored = BYTES_PER_WEIGHT.get(weight, 2.0)
    for ceiling in ceilings:
        for dtype in COMPUTES_IN.get(weight, ("bf16",)):
            peak = ceiling.peak_tflops.get(dtype)
            if peak and ceiling.memory_bandwidth_gbps:
                return peak * 1e3 / ceiling.memory_bandwidth_gbps * stored / 2
    return None


def mean_bandwidth_gbps(ceilings: Sequence[DeviceCeilings]) -> float | None:
    """Mean peak memory bandwidth over the devices, GB/s; None where any is unknown."""
    known = [c.memory_bandwidth_gbps for c in ceilings if c.memory_bandwidth_gbps]
    return sum(known) / len(known) if known and len(known) == len(ceilings) else None
