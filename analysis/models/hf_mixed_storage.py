"""Checkpoints that store some modules otherwise than most: modelopt's MIXED_PRECISION, several groups of
compressed-tensors, quark's per-layer settings, DeepSeek-V4's FP4 experts in an fp8 model.

Each reader gives entries (module names or patterns) with their storage; ``by_place`` turns them into places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from .hf_module_places import MOSTLY, shares_of_places
from .model_shape import ModelShape, Quantisation

GENERIC_TARGETS = ("Linear", "RowParallelLinear", "ColumnParallelLinear", "MoEGMM", "FusedMoE")
EXPERT_PLACES = ("expert_gate_up", "expert_down")
FP4_EXPERTS = Quantisation("fp8", 4, group_size=32, scale_bytes=1.0, weight_only=False, arithmetic="fp8")


@dataclass(frozen=True)
class Entry:
    """Modules that share a storage, as the config names them."""

    modules: tuple[str, ...]
    weight_dtype: str
    storage: Quantisation


def listed_layers(config: Mapping[str, object]) -> dict[tuple[str, int], tuple[str, ...]]:
    """modelopt's ``quantized_layers``: module names by (algorithm, group size; 0 = that algorithm's own)."""
    layers = config.get("quantized_layers")
    found: dict[tuple[str, int], list[str]] = {}
    for module, stored in layers.items() if isinstance(layers, Mapping) else ():
        if isinstance(stored, Mapping) and isinstance(stored.get("quant_algo"), str):
            group = stored.get("group_size")
            key = (stored["quant_algo"].upper(), group if type(group) is int and group > 0 else 0)
            found.setdefault(key, []).append(str(module))
    return {key: tuple(names) for key, names in found.items()}


def by_place(
    entries: Iterable[Entry], usual: tuple[str, Quantisation], shape: ModelShape
) -> tuple[tuple[str, str, Quantisation], ...]:
    """(place, data type, storage) of places most of whose layers are stored otherwise than ``usual``."""
    found: dict[str, tuple[str, Quantisation]] = {}
    for entry in entries:
        if (entry.weight_dtype, entry.storage) != usual:
            shares = shares_of_places(entry.modules, shape)
            found |= {place: (entry.weight_dtype, entry.storage) for place, share in shares.items() if share > MOSTLY}
    if set(EXPERT_PLACES) <= set(found):
        found["experts"] = found["expert_gate_up"]
    return tuple((place, kind, stored) for place, (kind, stored) in found.items())


def not_listed(entries: Iterable[Entry], shape: ModelShape) -> tuple[tuple[str, ...], tuple[tuple[str, float], ...]]:
    """Places that no entry names in most layers, and (place, share of layers) of those named in some."""
    shares = shares_of_places([module for entry in entries for module in entry.modules], shape)
    left = {place: 1.0 - share for place, share in shares.items()}
    excluded = [place for place, share in left.items() if share > MOSTLY]
    if set(EXPERT_PLACES) <= set(excluded):
        excluded.append("experts")
    return tuple(excluded), tuple((place, share) for place, share in left.items() if 0.0 < share < 1.0)


def fp4_experts() -> tuple[tuple[str, str, Quantisation], ...]:
    """DeepSeek-V4's ``expert_dtype`` "fp4": MXFP4 experts under fp8 activations, computed in fp8."""
    return tuple((place, "fp4", FP4_EXPERTS) for place in (*EXPERT_PLACES, "experts"))


def arithmetic_of(weight_dtype: str, activations: object) -> str | None:
    """The type kernels compute in where activations are stored wider than the weights; None: as the weights, or 16 bit.

    Int4 weights under 8-bit activations are widened to them; so are FP4 weights under fp8 activations.
    """
    if not isinstance(activations, Mapping):
        return None
    bits, kind = activations.get("num_bits"), activations.get("type")
    if bits != 8 or weight_dtype in ("fp8", "int8"):
        return None
    return "fp8" if kind == "float" else "int8"


def target_entries(
    groups: Iterable[Mapping[str, object]], read: Callable[[Mapping[str, object]], tuple[str, Quantisation]]
) -> list[Entry]:
    """Groups of compressed-tensors that name modules, not classes of layers."""
    entries: list[Entry] = []
    for group in groups:
        targets = group.get("targets")
        named = [str(each) for each in targets if each not in GENERIC_TARGETS] if isinstance(targets, list) else []
        if named:
            entries.append(Entry(tuple(named), *read(group)))
    return entries


_QUARK_TYPES: Mapping[str, tuple[str, float]] = {
    "fp4": ("fp4", 4.0),
    "mxfp4": ("fp4", 4.0),
    "fp8_e4m3": ("fp8", 8.0),
    "fp8_e5m2": ("fp8", 8.0),
    "int4": ("int4", 4.0),
    "uint4": ("int4", 4.0),
    "int8": ("int8", 8.0),
}


def quark_storage(settings: object) -> tuple[str, Quantisation] | None:
    """The storage that one quark setting (``weight``, ``input_tensors``) tells; of stacked weights the stored one."""
    if not isinstance(settings, Mapping):
        return None
    weight = settings.get("weight")
    if isinstance(weight, list) and weight:
        weight = weight[-1]
    if not isinstance(weight, Mapping) or str(weight.get("dtype")) not in _QUARK_TYPES:
        return None
    kind, bits = _QUARK_TYPES[str(weight["dtype"])]
    stored = Quantisation("quark", bits, weight_only=not settings.get("input_tensors"))
    group = weight.get("group_size")
    if type(group) is int and group > 0 and weight.get("qscheme") == "per_group":
        scale = 1.0 if kind in ("fp4", "fp8") else 2.0
        stored = replace(stored, group_size=group, scale_bytes=scale, zero_points=weight.get("symmetric") is False)
    inputs = settings.get("input_tensors")
    if kind == "fp4" and isinstance(inputs, Mapping) and str(inputs.get("dtype")).startswith("fp8"):
        stored = replace(stored, arithmetic="fp8")
    return kind, stored


def quark_entries(config: Mapping[str, object]) -> list[Entry]:
    """Quark's ``layer_quant_config``: module patterns with a setting of their own."""
    layers = config.get("layer_quant_config")
    read = {
        str(module): quark_storage(settings)
        for module, settings in (layers.items() if isinstance(layers, Mapping) else ())
    }
    return [Entry((module,), *stored) for module, stored in read.items() if stored is not None]
