"""Which places of a model the entries of a checkpoint's quantisation config mean.

The module names that such a model has are written out, layer by layer, and each is matched against entries of
``ignore`` / ``modules_to_not_convert`` / ``quantized_layers``: exact names, parts of names, globs and ``re:``.
"""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from .layer_kinds import (
    Attention,
    CompressedAttention,
    Experts,
    GatedDelta,
    KimiDelta,
    LatentAttention,
    Lightning,
    Mamba1,
    Mamba2,
    Mlp,
    ShortConv,
)
from .model_shape import NEVER_QUANTISED, ModelShape, layer_groups

MOSTLY = 0.5  # a place counts as left out (its arithmetic, too) where more than this share of its layers is

_Table: TypeAlias = "dict[tuple[str, ...], tuple[str, ...]]"  # places -> names of their modules

_IGNORED = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules", "exclude", "llm_int8_skip_modules")
# Module names of each place, behind ``model.layers.N.``; one excluded name excludes the place.
_ATTENTION: _Table = {
    ("qkv", "q", "k", "v", "kv"): (
        *("self_attn.q_proj", "self_attn.qkv_proj", "self_attn.W_pack", "self_attention.query_key_value"),
        *("attention.wqkv", "attn.c_attn", "mixer.q_proj", "mixer.qkv_proj"),
    ),
    ("o",): (
        "self_attn.o_proj",
        "self_attn.out_proj",
        "self_attention.dense",
        "attention.wo",
        "attn.c_proj",
        "mixer.o_proj",
    ),
}
_LATENT: _Table = {
    ("q",): ("self_attn.q_proj",),
    ("o",): ("self_attn.o_proj",),
    ("q_a", "qkv_a"): ("self_attn.q_a_proj", "self_attn.fused_qkv_a_proj_with_mqa"),
    ("kv_a",): ("self_attn.kv_a_proj_with_mqa",),
    ("q_b",): ("self_attn.q_b_proj",),
    ("kv_b",): ("self_attn.kv_b_proj",),
}
_DENSE: _Table = {
    ("gate_up", "gate", "up"): (
        *("mlp.gate_proj", "mlp.up_proj", "mlp.gate_up_proj", "feed_forward.w1", "mlp.fc1", "mixer.up_proj"),
        "shared_mlp.input_linear",
    ),
    ("down",): ("mlp.down_proj", "feed_forward.w2", "mlp.fc2", "mixer.down_proj", "shared_mlp.output_linear"),
}
_EXPERTS: _Table = {
    ("expert_gate_up",): (
        *("mlp.experts.0.gate_proj", "mlp.experts.gate_up_proj", "block_sparse_moe.experts.0.w1"),
        *("feed_forward.experts.gate_up_proj", "mlp.experts", "ffn.experts.0.w1", "mixer.experts.0.up_proj"),
    ),
    ("expert_down",): (
        *("mlp.experts.0.down_proj", "mlp.experts.down_proj", "block_sparse_moe.experts.0.w2"),
        *("feed_forward.experts.down_proj", "mlp.experts", "ffn.experts.0.w2", "mixer.experts.0.down_proj"),
    ),
    ("shared_gate_up",): (
        *("mlp.shared_experts.gate_proj", "mlp.shared_expert.gate_proj", "feed_forward.shared_expert.gate_proj"),
        *("ffn.shared_experts.w1", "mixer.shared_experts.up_proj"),
    ),
    ("shared_down",): (
        *("mlp.shared_experts.down_proj", "mlp.shared_expert.down_proj", "feed_forward.shared_expert.down_proj"),
        *("ffn.shared_experts.w2", "mixer.shared_experts.down_proj"),
    ),
}
_INDEXER: _Table = {
    ("index_q",): ("self_attn.indexer.wq_b", "self_attn.indexer.q_b_proj", "attn.indexer.wq_b"),
    ("index_k",): ("self_attn.indexer.wk", "attn.indexer.compressor.wkv"),
}
_COMPRESSED: _Table = {
    ("q_a",): ("attn.wq_a", "self_attn.q_a_proj"),
    ("q_b",): ("attn.wq_b", "self_attn.q_b_proj"),
    ("kv",): ("attn.wkv", "self_attn.kv_proj"),
    ("o_a",): ("attn.wo_a", "self_attn.o_a_proj"),
    ("o_b",): ("attn.wo_b", "self_attn.o_b_proj"),
    ("compress",): ("attn.compressor.wkv", "attn.compressor.wgate", "self_attn.compressor.kv_proj"),
}
_MAMBA: _Table = {
    ("mamba_in",): ("mixer.in_proj", "mamba.in_proj"),
    ("mamba_x",): ("mixer.x_proj", "mamba.x_proj"),
    ("mamba_dt",): ("mixer.dt_proj", "mamba.dt_proj"),
    ("mamba_out",): ("mixer.out_proj", "mamba.out_proj"),
}
_DELTA: _Table = {
    ("linear_in",): ("linear_attn.in_proj_qkvz", "linear_attn.in_proj_qkv", "linear_attn.in_proj_z"),
    ("linear_gates",): ("linear_attn.in_proj_ba", "linear_attn.in_proj_b"),
    ("linear_out",): ("linear_attn.out_proj",),
}
_LINEAR: _Table = {
    ("linear_in",): ("self_attn.q_proj", "self_attn.qkv_proj"),
    ("linear_gates",): ("self_attn.b_proj",),
    ("linear_gate_a",): ("self_attn.f_a_proj", "self_attn.g_a_proj"),
    ("linear_gate_b",): ("self_attn.f_b_proj", "self_attn.g_b_proj"),
    ("linear_gate",): ("self_attn.output_gate", "self_attn.g_proj"),
    ("linear_out",): ("self_attn.o_proj", "self_attn.out_proj"),
}
_CONVOLUTION: _Table = {("conv_in",): ("conv.in_proj",), ("conv_out",): ("conv.out_proj",)}
_LATENT_EXPERTS: _Table = {
    ("latent_in",): ("mixer.fc1_latent_proj", "mlp.fc1_latent_proj"),
    ("latent_out",): ("mixer.fc2_latent_proj", "mlp.fc2_latent_proj"),
}
_TABLES: Mapping[type, _Table] = {
    Attention: _ATTENTION,
    LatentAttention: _LATENT | _INDEXER,
    CompressedAttention: _COMPRESSED | _INDEXER,
    **dict.fromkeys((Mamba1, Mamba2), _MAMBA),
    GatedDelta: _DELTA,
    **dict.fromkeys((KimiDelta, Lightning), _LINEAR),
    ShortConv: _CONVOLUTION,
    Mlp: _DENSE,
    Experts: _EXPERTS | _LATENT_EXPERTS,
}
_PREFIXES = (
    *("model.layers.", "language_model.model.layers.", "model.language_model.layers.", "layers.", "backbone.layers."),
    *("language_model.layers.", "transformer.h.", "model.backbone.layers."),
)


def excluded_places(
    config: Mapping[str, object], shape: ModelShape
) -> tuple[tuple[str, ...], tuple[tuple[str, float], ...]]:
    """Places that stay at 16 bit in most of their layers, and (place, share of layers) where only some of them do."""
    excluded = list(NEVER_QUANTISED)
    if config.get("lm_head") is True or any("lm_head" in target for target in _targets(config)):
        excluded.remove("lm_head")
    shares = shares_of_places(tuple(_patterns(config)), shape)
    excluded += [place for place, share in shares.items() if share > MOSTLY]
    if {"expert_gate_up", "expert_down"} <= set(excluded):
        excluded.append("experts")
    return tuple(dict.fromkeys(excluded)), tuple((place, share) for place, share in shares.items() if 0 < share < 1)


def shares_of_places(patterns: Iterable[str], shape: ModelShape) -> dict[str, float]:
    """The share of each place's layers in which a module of it is named by one of ``patterns``."""
    matcher = _Matcher(tuple(patterns))
    if matcher.is_empty:
        return {}
    matched: dict[str, int] = {}
    layers: dict[str, int] = {}
    for group in layer_groups(shape):
        parts = {type(part): part for part in group.parts}
        for part in parts.values():
            for places, modules in _TABLES.get(type(part), {}).items():
                number = matcher.layers_with(modules, group.layers)
                for place in places:
                    matched[place] = matched.get(place, 0) + number
                    layers[place] = layers.get(place, 0) + len(group.layers)
    return {place: number / layers[place] for place, number in matched.items()}


def _patterns(config: Mapping[str, object]) -> Iterator[str]:
    for key in _IGNORED:
        listed = config.get(key)
        if isinstance(listed, list):
            yield from (str(each) for each in listed if isinstance(each, str) and each)
    dynamic = config.get("dynamic")  # GPTQModel: '-:regex' leaves modules out
    if isinstance(dynamic, Mapping):
        yield from ("re:" + key[2:] for key in dynamic if isinstance(key, str) and key.startswith("-:"))


def _targets(config: Mapping[str, object]) -> Iterator[str]:
    for group in config_groups(config):
        targets = group.get("targets")
        yield from (str(target) for target in targets) if isinstance(targets, list) else ()


class _Matcher:
    """Entries of an ignore list against module names."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self.numbered = any(re.search(r"[0-9\[]", each) for each in patterns)
        self.exact = {_without_prefix(each) for each in patterns if not each.startswith("re:") and not _is_glob(each)}
        self.parts = {each for each in self.exact if not re.match(r"\d+\.", each)}
        self.globs = [re.compile(fnmatch.translate(each)) for each in patterns if _is_glob(each)]
        self.globs += [re.compile(fnmatch.translate(each + ".*")) for each in patterns if _is_glob(each)]
        self.regexes = [found for each in patterns if each.startswith("re:") and (found := _compiled(each[3:]))]

    def layers_with(self, modules: Sequence[str], layers: Sequence[int]) -> int:
        """How many of ``layers`` have one of ``modules`` that matches.

        Entries without a digit can tell layers apart by the length of their number at most.
        """
        if self.numbered:
            return sum(self.any_of(modules, layer) for layer in layers)
        by_length = Counter(len(str(layer)) for layer in layers)
        shown = {len(str(layer)): layer for layer in layers}
        return sum(count for length, count in by_length.items() if self.any_of(modules, shown[length]))

    @property
    def is_empty(self) -> bool:
        """Whether nothing can match."""
        return not (self.exact or self.globs or self.regexes)

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


def config_groups(config: Mapping[str, object]) -> list[Mapping[str, object]]:
    """The groups of a compressed-tensors config."""
    groups = config.get("config_groups")
    return [group for group in groups.values() if isinstance(group, Mapping)] if isinstance(groups, Mapping) else []
