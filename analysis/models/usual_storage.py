"""How weights are stored and multiplied where only their type is known."""

from __future__ import annotations

from collections.abc import Mapping

from .model_shape import ModelShape, Quantisation

# How weights of a type are usually stored when only the type is known. Scales: nsight-independent conventions of the
# formats (GPTQ/AWQ groups of 128 with 16-bit scales, MXFP4 groups of 32 and NVFP4 groups of 16 with 8-bit scales).
USUAL_STORAGE: Mapping[str, Quantisation] = {
    "int4": Quantisation("int4", 4, group_size=128, scale_bytes=2.0),
    "awq": Quantisation("awq", 4, group_size=128, scale_bytes=2.0, zero_points=True),
    "int8": Quantisation("int8", 8, weight_only=False),
    "fp8": Quantisation("fp8", 8, weight_only=False),
    "fp4": Quantisation("nvfp4", 4, group_size=16, scale_bytes=1.0, weight_only=False),
    "mxfp4": Quantisation("mxfp4", 4, group_size=32, scale_bytes=1.0),
}


def arithmetic_dtype(shape: ModelShape, place: str) -> str:
    """The type a GEMM of this place computes in when its name does not say."""
    quantisation = shape.quantisation
    if quantisation is None:
        return shape.weight_dtype
    if place in quantisation.excluded:
        return shape.activation_dtype
    return quantisation.arithmetic_at(place, weights=shape.weight_dtype, activations=shape.activation_dtype)
