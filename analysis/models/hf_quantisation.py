"""How a checkpoint stores its weights, from the ``quantization_config`` of its config.json.

Which matrices stay at 16 bit, or are stored otherwise than most, is found per module (``hf_module_places``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from .hf_mixed_storage import (
    GENERIC_TARGETS,
    Entry,
    arithmetic_of,
    by_place,
    fp4_experts,
    listed_layers,
    not_listed,
    quark_entries,
    quark_storage,
    target_entries,
)
from .hf_module_places import config_groups, excluded_places
from .model_shape import ModelShape, Quantisation

_FLOATS = {4: "fp4", 8: "fp8"}

# quant_algo of NVIDIA's ModelOpt: data type, storage
MODELOPT: Mapping[str, tuple[str, Quantisation]] = {
    "FP8": ("fp8", Quantisation("modelopt", 8, weight_only=False)),
    "FP8_PER_CHANNEL_PER_TOKEN": ("fp8", Quantisation("modelopt", 8, weight_only=False)),
    "FP8_PB_WO": ("fp8", Quantisation("modelopt", 8, group_size=128, group_rows=128, scale_bytes=4.0)),
    "FP8_BLOCK_SCALES": ("fp8", Quantisation("modelopt", 8, 128, 128, 4.0, weight_only=False)),
    "NVFP4": ("fp4", Quantisation("modelopt", 4, group_size=16, scale_bytes=1.0, weight_only=False)),
    "NVFP4_AWQ": ("fp4", Quantisation("modelopt", 4, group_size=16, scale_bytes=1.0, weight_only=False)),
    "W4A16_AWQ": ("int4", Quantisation("modelopt", 4, group_size=128)),
    "W4A8_AWQ": ("int4", Quantisation("modelopt", 4, group_size=128, arithmetic="fp8")),
    "W4A16_NVFP4": ("fp4", Quantisation("modelopt", 4, group_size=16, scale_bytes=1.0)),
    "W4A8_NVFP4_FP8": ("fp4", Quantisation("modelopt", 4, group_size=16, scale_bytes=1.0, arithmetic="fp8")),
    "W4A8_MXFP4_FP8": ("fp4", Quantisation("modelopt", 4, group_size=32, scale_bytes=1.0, arithmetic="fp8")),
    "MXFP4": ("fp4", Quantisation("modelopt", 4, group_size=32, scale_bytes=1.0, weight_only=False)),
    "MXFP8": ("fp8", Quantisation("modelopt", 8, group_size=32, scale_bytes=1.0, weight_only=False)),
    "W8A16": ("int8", Quantisation("modelopt", 8)),
    "W8A8_SQ_PER_CHANNEL": ("int8", Quantisation("modelopt", 8, weight_only=False)),
}
# Words that tell a type where a tool of no known layout names it.
_WORDS = (
    (r"mxfp4|mx_fp4", "fp4", Quantisation("", 4, group_size=32, scale_bytes=1.0)),
    (r"nvfp4", "fp4", Quantisation("", 4, group_size=16, scale_bytes=1.0, weight_only=False)),
    (r"mxfp8", "fp8", Quantisation("", 8, group_size=32, scale_bytes=1.0, weight_only=False)),
    (r"fp8|float8|e4m3", "fp8", Quantisation("", 8, weight_only=False)),
    (r"int8da?_?int8|w8a8", "int8", Quantisation("", 8, weight_only=False)),
    (r"int8|8bit", "int8", Quantisation("", 8)),
    (r"u?int4|4bit|nf4", "int4", Quantisation("", 4, group_size=128)),
)


@dataclass(frozen=True)
class Stored:
    """What a ``quantization_config`` says. ``quantisation`` None = not understood or none: 16 bit, with a note."""

    weight_dtype: str = "bf16"
    quantisation: Quantisation | None = None
    notes: tuple[str, ...] = ()


def read_quantisation(config: Mapping[str, object], shape: ModelShape) -> Stored:
    """Storage of ``shape``'s weights by a ``quantization_config``."""
    inner = config.get("quantization")  # hf_quant_config.json
    if isinstance(inner, Mapping):
        config = {"quant_method": "modelopt", **inner}
    method = str(config.get("quant_method") or _method_by_keys(config)).lower().replace("_", "-")
    read = _READERS.get(method, _by_words)(config)
    if read is None:
        return Stored(
            notes=(f"quantisation {method!r} is not known: weights counted at 16 bit; pass --weight-dtype to correct",)
        )
    kind, quantisation, notes = read
    excluded, partly = excluded_places(config, shape)
    entries = _entries(config)
    others = by_place(entries, (kind, quantisation), shape)
    if str(config.get("expert_dtype")) == "fp4" and kind == "fp8":
        others = (*fp4_experts(), *others)
    if "quantized_layers" in config and method.startswith("modelopt"):
        listed = [*entries, Entry(_usual_modules(config), kind, quantisation)]
        more, partly = not_listed(listed, shape)
        excluded = (*excluded, *more)
    if partly:
        some = ", ".join(f"{place} in {share:.0%}" for place, share in partly)
        notes = [*notes, f"left out of quantisation in some layers: {some} of them; counted at their mean"]
    if config.get("kv_cache_scheme") or config.get("kv_cache_quant_algo"):
        notes = [*notes, "the checkpoint has scales for an 8-bit KV cache; pass --kv-dtype fp8 if the engine used them"]
    return Stored(
        kind, replace(quantisation, method=method, excluded=excluded, partly=partly, by_place=others), tuple(notes)
    )


_Read = tuple[str, Quantisation, list[str]]


def _method_by_keys(config: Mapping[str, object]) -> str:
    if config.get("quant_algo"):
        return "modelopt"
    if config.get("config_groups"):
        return "compressed-tensors"
    if config.get("load_in_4bit") or config.get("load_in_8bit"):
        return "bitsandbytes"
    return "unknown"


def _number(config: Mapping[str, object], *keys: str) -> float | None:
    """The first of ``keys`` that is a finite number."""
    for key in keys:
        value = config.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e9:
            return float(value)
    return None


def _bits(config: Mapping[str, object], *keys: str) -> float | None:
    """Bits of a packed weight, where they can be that."""
    bits = _number(config, *keys)
    return bits if bits is not None and 1 <= bits <= 8 else None


def _integer_type(bits: float) -> str:
    return "int4" if bits <= 4 else "int8"


def _gptq(config: Mapping[str, object]) -> _Read | None:
    bits = _bits(config, "bits", "w_bit", "wbits", "nbits")
    if bits is None:
        return None
    group = _number(config, "group_size", "q_group_size", "groupsize")
    zero_points = config.get("sym") is False or config.get("zero_point") is True
    stored = Quantisation("", bits, int(group) if group and group >= 1 else -1, zero_points=zero_points)
    return _integer_type(bits), stored, []


def _block(value: object) -> tuple[int, int] | None:
    """Rows and columns of weights that share a scale."""
    if isinstance(value, list) and len(value) == 2 and all(type(size) is int and size > 0 for size in value):
        return value[0], value[1]
    return None


def _fp8(config: Mapping[str, object]) -> _Read | None:
    stored = Quantisation("", 8, weight_only=False)
    block = _block(config.get("weight_block_size"))
    if block is not None:
        stored = replace(stored, group_rows=block[0], group_size=block[1], scale_bytes=4.0)
    return "fp8", stored, []


def _mxfp4(_: Mapping[str, object]) -> _Read | None:
    return "fp4", Quantisation("", 4, group_size=32, scale_bytes=1.0), []


def _bitsandbytes(config: Mapping[str, object]) -> _Read | None:
    if config.get("load_in_4bit") or config.get("_load_in_4bit"):
        # blocks of 64 share an fp32 scale; double quantisation makes it 8 bit with one fp32 scale for 256 of them
        scale = 1.0 + 4.0 / 256.0 if config.get("bnb_4bit_use_double_quant") else 4.0
        return "int4", Quantisation("", 4, group_size=64, scale_bytes=scale), []
    return "int8", Quantisation("", 8, weight_only=False), []


def _modelopt(config: Mapping[str, object]) -> _Read | None:
    usual = _usual_algorithm(config)
    algorithm, group = usual or (str(config.get("quant_algo", "")).upper(), _number(config, "group_size"))
    known = _modelopt_storage(algorithm, group)
    if known is None:
        return _compressed(config) if config.get("config_groups") else None
    return *known, []


def _modelopt_storage(algorithm: str, group: float | None) -> tuple[str, Quantisation] | None:
    known = MODELOPT.get(algorithm)
    if known is None:
        return None
    kind, stored = known
    if group and group >= 1 and stored.group_size > 0 and stored.group_rows == 1:
        stored = replace(stored, group_size=int(group))
    return kind, stored


def _usual_algorithm(config: Mapping[str, object]) -> tuple[str, int] | None:
    """The (algorithm, group size) of most modules in ``quantized_layers``, of those that are known."""
    listed = {key: names for key, names in listed_layers(config).items() if key[0] in MODELOPT}
    return max(listed, key=lambda key: len(listed[key])) if listed else None


def _usual_modules(config: Mapping[str, object]) -> tuple[str, ...]:
    usual = _usual_algorithm(config)
    return listed_layers(config)[usual] if usual else ()


def _entries(config: Mapping[str, object]) -> list[Entry]:
    """What the config says of modules that are stored otherwise than most."""
    entries = target_entries(_readable_groups(config), _group_storage)
    for (algorithm, size), names in listed_layers(config).items():
        stored = _modelopt_storage(algorithm, size)
        if stored is not None:
            entries.append(Entry(names, *stored))
    return entries + quark_entries(config)


def _quark(config: Mapping[str, object]) -> _Read | None:
    stored = quark_storage(config.get("global_quant_config"))
    return (*stored, []) if stored is not None else _by_words(config)


def _readable_groups(config: Mapping[str, object]) -> list[Mapping[str, object]]:
    """The groups of compressed-tensors whose weights have a number of bits."""
    groups = [group for group in config_groups(config) if isinstance(group.get("weights"), Mapping)]
    return [group for group in groups if _bits(_weights(group), "num_bits") is not None]


def _weights(group: Mapping[str, object]) -> Mapping[str, object]:
    """How a group of compressed-tensors stores its weights; empty where it does not say."""
    weights = group.get("weights")
    return weights if isinstance(weights, Mapping) else {}


def _compressed(config: Mapping[str, object]) -> _Read | None:
    groups = _readable_groups(config)
    if not groups:
        return None
    notes: list[str] = []
    general = [group for group in groups if _is_general(group)]
    if len(general) > 1:
        notes.append("several quantisation groups of the same layers: all counted as the narrowest")
    usual = min(general or groups, key=lambda each: _bits(_weights(each), "num_bits") or 0.0)
    sparsity = config.get("sparsity_config")
    if isinstance(sparsity, Mapping) and sparsity.get("format") not in (None, "dense"):
        notes.append("sparse weights counted as dense")
    return *_group_storage(usual), notes


def _is_general(group: Mapping[str, object]) -> bool:
    """Whether a group is of a class of layers, not of modules by name."""
    targets = group.get("targets")
    return not isinstance(targets, list) or any(each in GENERIC_TARGETS for each in targets)


def _group_storage(group: Mapping[str, object]) -> tuple[str, Quantisation]:
    weights, inputs = _weights(group), group.get("input_activations")
    bits = _bits(weights, "num_bits") or 0.0  # a group without them is no readable one
    kind = _FLOATS.get(int(bits), "fp8") if weights.get("type") == "float" else _integer_type(bits)
    stored = Quantisation("", bits, weight_only=not inputs, arithmetic=arithmetic_of(kind, inputs))
    size, block = _number(weights, "group_size"), _block(weights.get("block_structure"))
    if block is not None:
        stored = replace(stored, group_rows=block[0], group_size=block[1], scale_bytes=4.0)
    elif size and size >= 1:
        scale = 1.0 if kind == "fp4" or str(weights.get("scale_dtype")) == "torch.uint8" else 2.0
        stored = replace(stored, group_size=int(size), scale_bytes=scale, zero_points=weights.get("symmetric") is False)
    return kind, stored


def _by_words(config: Mapping[str, object]) -> _Read | None:
    """A tool whose layout is not known: its number of bits, or the words it uses."""
    flat = {key: value for key, value in _leaves(config) if isinstance(value, int | float | str)}
    read = _gptq(flat)
    if read is not None:
        return read
    words = " ".join(f"{key}={value}" for key, value in flat.items() if isinstance(value, str)).lower()
    for pattern, kind, stored in _WORDS:
        if re.search(pattern, words):
            return kind, stored, ["storage told from words of the config alone"]
    return None


def _leaves(config: Mapping[str, object], depth: int = 0) -> Iterator[tuple[str, object]]:
    for key, value in config.items():
        if isinstance(value, Mapping) and depth < 6:
            yield from _leaves(value, depth + 1)
        else:
            yield str(key), value


_READERS: Mapping[str, Callable[[Mapping[str, object]], _Read | None]] = {
    "gptq": _gptq,
    "gptqmodel": _gptq,
    "gptq-marlin": _gptq,
    "auto-gptq": _gptq,
    "awq": _gptq,
    "awq-marlin": _gptq,
    "auto-awq": _gptq,
    "moe-wna16": _gptq,
    "quark": _quark,
    "auto-round": _gptq,
    "intel/auto-round": _gptq,
    "fp8": _fp8,
    "fbgemm-fp8": _fp8,
    "deepseek-v4-fp8": _fp8,
    "mxfp4": _mxfp4,
    "gpt-oss-mxfp4": _mxfp4,
    "bitsandbytes": _bitsandbytes,
    "modelopt": _modelopt,
    "modelopt-fp4": _modelopt,
    "modelopt-mxfp8": _modelopt,
    "modelopt-mixed": _modelopt,
    "compressed-tensors": _compressed,
}
