"""How a checkpoint stores its weights, from the ``quantization_config`` of its config.json.

Which matrices stay at 16 bit is found by writing out the module names such a model has, layer by layer, and matching
each against the entries of ``ignore`` / ``modules_to_not_convert``: exact names, parts of names, globs and ``re:``.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .model_shape import NEVER_QUANTISED, ModelShape, Quantisation

MOSTLY = 0.5  # a place is excluded where more than this share of its layers is
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
    "W4A8_AWQ": ("int4", Quantisation("modelopt", 4, group_size=128)),
    "W8A16": ("int8", Quantisation("modelopt", 8)),
    "W8A8_SQ_PER_CHANNEL": ("int8", Quantisation("modelopt", 8, weight_only=False)),
}
# Words that tell a type where a tool of no known layout names it.
_WORDS = (
    (r"mxfp4|mx_fp4", "fp4", Quantisation("", 4, group_size=32, scale_bytes=1.0)),
    (r"nvfp4", "fp4", Quantisation("", 4, group_size=16, scale_bytes=1.0, weight_only=False)),
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


def read_quantisation(config: Mapping[str, Any], shape: ModelShape) -> Stored:
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
    if partly:
        notes = [*notes, f"{', '.join(partly)}: some layers are left out of quantisation, most are not; counted as not"]
    if config.get("kv_cache_scheme") or config.get("kv_cache_quant_algo"):
        notes = [*notes, "the checkpoint has scales for an 8-bit KV cache; pass --kv-dtype fp8 if the engine used them"]
    return Stored(kind, replace(quantisation, method=method, excluded=excluded), tuple(notes))


_Read = tuple[str, Quantisation, list[str]]


def _method_by_keys(config: Mapping[str, Any]) -> str:
    if config.get("quant_algo"):
        return "modelopt"
    if config.get("config_groups"):
        return "compressed-tensors"
    if config.get("load_in_4bit") or config.get("load_in_8bit"):
        return "bitsandbytes"
    return "unknown"


def _number(config: Mapping[str, Any], *keys: str) -> float | None:
    """The first of ``keys`` that is a finite number."""
    for key in keys:
        value = config.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e9:
            return float(value)
    return None


def _bits(config: Mapping[str, Any], *keys: str) -> float | None:
    """Bits of a packed weight, where they can be that."""
    bits = _number(config, *keys)
    return bits if bits is not None and 1 <= bits <= 8 else None


def _groups(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The groups of a compressed-tensors config."""
    groups = config.get("config_groups")
    return [group for group in groups.values() if isinstance(group, Mapping)] if isinstance(groups, Mapping) else []


def _integer_type(bits: float) -> str:
    return "int4" if bits <= 4 else "int8"


def _gptq(config: Mapping[str, Any]) -> _Read | None:
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


def _fp8(config: Mapping[str, Any]) -> _Read | None:
    stored = Quantisation("", 8, weight_only=False)
    block = _block(config.get("weight_block_size"))
    if block is not None:
        stored = replace(stored, group_rows=block[0], group_size=block[1], scale_bytes=4.0)
    return "fp8", stored, []


def _mxfp4(_: Mapping[str, Any]) -> _Read | None:
    return "fp4", Quantisation("", 4, group_size=32, scale_bytes=1.0), []


def _bitsandbytes(config: Mapping[str, Any]) -> _Read | None:
    if config.get("load_in_4bit") or config.get("_load_in_4bit"):
        # blocks of 64 share an fp32 scale; double quantisation makes it 8 bit with one fp32 scale for 256 of them
        scale = 1.0 + 4.0 / 256.0 if config.get("bnb_4bit_use_double_quant") else 4.0
        return "int4", Quantisation("", 4, group_size=64, scale_bytes=scale), []
    return "int8", Quantisation("", 8, weight_only=False), []


def _modelopt(config: Mapping[str, Any]) -> _Read | None:
    known = MODELOPT.get(str(config.get("quant_algo", "")).upper())
    if known is None:
        return _compressed(config) if config.get("config_groups") else None
    kind, stored = known
    group = _number(config, "group_size")
    if group and group >= 1 and stored.group_size > 0 and stored.group_rows == 1:
        stored = replace(stored, group_size=int(group))
    return kind, stored, []


def _compressed(config: Mapping[str, Any]) -> _Read | None:
    groups = [group for group in _groups(config) if isinstance(group.get("weights"), Mapping)]
    groups = [group for group in groups if _bits(group["weights"], "num_bits") is not None]
    if not groups:
        return None
    group = min(groups, key=lambda each: float(each["weights"]["num_bits"]))
    weights, notes = group["weights"], []
    if len(groups) > 1:
        notes.append("several quantisation groups: all quantised matrices counted as the narrowest")
    sparsity = config.get("sparsity_config")
    if isinstance(sparsity, Mapping) and sparsity.get("format") not in (None, "dense"):
        notes.append("sparse weights counted as dense")
    bits = float(weights["num_bits"])
    kind = _FLOATS.get(int(bits), "fp8") if weights.get("type") == "float" else _integer_type(bits)
    stored = Quantisation("", bits, weight_only=not group.get("input_activations"))
    size, block = _number(weights, "group_size"), _block(weights.get("block_structure"))
    if block is not None:
        stored = replace(stored, group_rows=block[0], group_size=block[1], scale_bytes=4.0)
    elif size and size >= 1:
        scale = 1.0 if kind == "fp4" else 2.0
        stored = replace(stored, group_size=int(size), scale_bytes=scale, zero_points=weights.get("symmetric") is False)
    return kind, stored, notes


def _by_words(config: Mapping[str, Any]) -> _Read | None:
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


def _leaves(config: Mapping[str, Any], depth: int = 0) -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, Mapping) and depth < 6:
            yield from _leaves(value, depth + 1)
        else:
            yield str(key), value


_READERS: Mapping[str, Callable[[Mapping[str, Any]], _Read | None]] = {
    "gptq": _gptq,
    "gptqmodel": _gptq,
    "awq": _gptq,
    "auto-round": _gptq,
    "intel/auto-round": _gptq,
    "fp8": _fp8,
    "fbgemm-fp8": _fp8,
    "mxfp4": _mxfp4,
    "bitsandbytes": _bitsandbytes,
    "modelopt": _modelopt,
    "modelopt-fp4": _modelopt,
    "compressed-tensors": _compressed,
}

# -- what stays at 16 bit ----------------------------------------------------------------------------------------------

_IGNORED = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules", "exclude", "llm_int8_skip_modules")
# Module names of each place, behind ``model.layers.N.``; one excluded name excludes the place.
_ATTENTION = {
    ("qkv", "q", "k", "v", "kv"): (
        *("self_attn.q_proj", "self_attn.qkv_proj", "self_attn.W_pack", "self_attention.query_key_value"),
        *("attention.wqkv", "attn.c_attn"),
    ),
    ("o",): ("self_attn.o_proj", "self_attn.out_proj", "self_attention.dense", "attention.wo", "attn.c_proj"),
}
_LATENT = {
    ("q",): ("self_attn.q_proj",),
    ("o",): ("self_attn.o_proj",),
    ("q_a", "qkv_a"): ("self_attn.q_a_proj", "self_attn.fused_qkv_a_proj_with_mqa"),
    ("kv_a",): ("self_attn.kv_a_proj_with_mqa",),
    ("q_b",): ("self_attn.q_b_proj",),
    ("kv_b",): ("self_attn.kv_b_proj",),
}
_DENSE = {
    ("gate_up", "gate", "up"): ("mlp.gate_proj", "mlp.up_proj", "mlp.gate_up_proj", "feed_forward.w1", "mlp.fc1"),
    ("down",): ("mlp.down_proj", "feed_forward.w2", "mlp.fc2"),
}
_EXPERTS = {
    ("expert_gate_up",): (
        *("mlp.experts.0.gate_proj", "mlp.experts.gate_up_proj", "block_sparse_moe.experts.0.w1"),
        *("feed_forward.experts.gate_up_proj", "mlp.experts"),
    ),
    ("expert_down",): (
        *("mlp.experts.0.down_proj", "mlp.experts.down_proj", "block_sparse_moe.experts.0.w2"),
        *("feed_forward.experts.down_proj", "mlp.experts"),
    ),
    ("shared_gate_up",): (
        *("mlp.shared_experts.gate_proj", "mlp.shared_expert.gate_proj", "feed_forward.shared_expert.gate_proj"),
    ),
    ("shared_down",): (
        *("mlp.shared_experts.down_proj", "mlp.shared_expert.down_proj", "feed_forward.shared_expert.down_proj"),
    ),
}
_PREFIXES = ("model.layers.", "language_model.model.layers.", "model.language_model.layers.", "layers.")


def excluded_places(config: Mapping[str, Any], shape: ModelShape) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Places that stay at 16 bit, and places of which only a minority of layers does."""
    patterns = tuple(_patterns(config))
    excluded = list(NEVER_QUANTISED)
    if config.get("lm_head") is True or any("lm_head" in target for target in _targets(config)):
        excluded.remove("lm_head")
    partly: list[str] = []
    if patterns:
        matcher = _Matcher(patterns)
        for places, modules, layers in _modules(shape):
            share = sum(matcher.any_of(modules, layer) for layer in layers) / len(layers)
            if share > MOSTLY:
                excluded += places
            elif share > 0:
                partly.append(places[0])
    if {"expert_gate_up", "expert_down"} <= set(excluded):
        excluded.append("experts")
    return tuple(dict.fromkeys(excluded)), tuple(partly)


def _patterns(config: Mapping[str, Any]) -> Iterator[str]:
    for key in _IGNORED:
        listed = config.get(key)
        if isinstance(listed, list):
            yield from (str(each) for each in listed if isinstance(each, str) and each)
    dynamic = config.get("dynamic")  # GPTQModel: '-:regex' leaves modules out
    if isinstance(dynamic, Mapping):
        yield from ("re:" + key[2:] for key in dynamic if isinstance(key, str) and key.startswith("-:"))


def _targets(config: Mapping[str, Any]) -> Iterator[str]:
    for group in _groups(config):
        targets = group.get("targets")
        yield from (str(target) for target in targets) if isinstance(targets, list) else ()


def _modules(shape: ModelShape) -> Iterator[tuple[tuple[str, ...], tuple[str, ...], Sequence[int]]]:
    """(places, their module names, layers that have them) of this model."""
    every = range(shape.layers)
    moe = [layer for layer in every if shape.is_moe_layer(layer)]
    dense = [layer for layer in every if not shape.is_moe_layer(layer)]
    attention = _LATENT if shape.is_mla else _ATTENTION
    for table, layers in ((attention, every), (_DENSE, dense), (_EXPERTS, moe)):
        if layers:
            yield from ((places, modules, layers) for places, modules in table.items())


class _Matcher:
    """Entries of an ignore list against module names."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self.exact = {_without_prefix(each) for each in patterns if not each.startswith("re:") and not _is_glob(each)}
        self.parts = {each for each in self.exact if not re.match(r"\d+\.", each)}
        self.globs = [re.compile(fnmatch.translate(each)) for each in patterns if _is_glob(each)]
        self.globs += [re.compile(fnmatch.translate(each + ".*")) for each in patterns if _is_glob(each)]
        self.regexes = [found for each in patterns if each.startswith("re:") and (found := _compiled(each[3:]))]

    def any_of(self, modules: Sequence[str], layer: int) -> bool:
        return any(self._matches(f"{layer}.{module}") for module in modules)

    def _matches(self, name: str) -> bool:
        components = name.split(".")
        prefixes = {".".join(components[:count]) for count in range(1, len(components) + 1)}
        if self.exact & (prefixes - {components[0]}) or components[0] in self.exact:
            return True
        runs = {".".join(components[a:b]) for a in range(1, len(components)) for b in range(a + 1, len(components) + 1)}
        if self.parts & runs:
            return True
        whole = [prefix + name for prefix in _PREFIXES]
        return any(each.match(text) for each in (*self.globs, *self.regexes) for text in whole)


def _without_prefix(name: str) -> str:
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name


def _is_glob(pattern: str) -> bool:
    return not pattern.startswith("re:") and any(c in pattern for c in "*?[")


def _compiled(pattern: str) -> re.Pattern[str] | None:
    try:
        return re.compile(pattern)
    except re.error:
        return None
