"""Reading the keys of a config.json that tell what its layers are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeAlias

from .layer_kinds import Attention, Experts, LatentAttention, Mlp, Part, UnknownPart

Made: TypeAlias = "tuple[tuple[Part, ...], int]"  # parts of a layer, and its norms
ORDINARY_KINDS = ("full_attention", "sliding_attention", "chunked_attention", "attention", "global_attention")


TEXT_MODELS = ("text_config", "llm_config", "language_config", "thinker_config")


class Keys(Protocol):
    """A config's keys, as the reader gives them."""

    config: dict[str, object]

    def whole(self, name: str, default: int | None = None) -> int:
        """A whole number by the keys of a field of ModelShape."""

    def number(self, *keys: str, default: int | None = None) -> int:
        """A whole number by the first of ``keys`` that is present."""


def layer_types(keys: Keys, *names: str) -> list[str]:
    """The config's list of layer types under the first of ``names`` (or ``layer_types``), [] where it has none."""
    for name in (*names, "layer_types"):
        said = keys.config.get(name)
        if isinstance(said, list) and said:
            return [str(each) for each in said]
    return []


def listed(keys: Keys, name: str) -> list[int]:
    """A list of whole numbers; [] where the key is absent or no such list."""
    value = keys.config.get(name)
    return [int(each) for each in value if isinstance(each, int | float)] if isinstance(value, list) else []


def inner(keys: Keys, name: str) -> Mapping[str, Any]:
    """A table inside the config; empty where there is none."""
    value = keys.config.get(name)
    return value if isinstance(value, Mapping) else {}


def state_type(keys: Keys, *names: str, default: str = "fp32") -> str:
    """Type of a recurrent state; 'auto' and absent are ``default``."""
    said = next((str(keys.config[name]) for name in names if keys.config.get(name)), "")
    return {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}.get(said.removeprefix("torch."), default)


def attention(keys: Keys, **more: Any) -> Attention:
    """Attention by the usual keys, with ``more`` fields set."""
    heads = keys.whole("heads")
    size = keys.whole("head_dim", 0) or keys.whole("hidden") // max(heads, 1)
    bias = bool(keys.config.get("attention_bias", False))
    kv_heads = keys.whole("kv_heads", heads) or heads
    return replace(Attention(heads, kv_heads, size, qkv_bias=bias, o_bias=bias), **more)


def latent_attention(keys: Keys, **more: Any) -> LatentAttention:
    """MLA by the usual keys, with ``more`` fields set."""
    return LatentAttention(
        keys.whole("heads"),
        keys.whole("q_lora_rank", 0),
        keys.whole("kv_lora_rank"),
        keys.whole("qk_nope_head_dim"),
        keys.number("qk_rope_head_dim", default=64),
        keys.whole("v_head_dim"),
        **more,
    )


def experts_of(keys: Keys, **more: Any) -> Experts:
    """Experts by the usual keys; a shared width is a key of its own or so many experts' widths."""
    width = keys.whole("moe_intermediate", 0) or keys.whole("intermediate")
    shared = keys.whole("shared_intermediate", 0) or keys.whole("shared_experts", 0) * width
    made = Experts(keys.whole("experts"), keys.whole("experts_per_token"), width, shared)
    return replace(made, **more)


def mlp(keys: Keys) -> Mlp:
    """The MLP by the usual keys."""
    return Mlp(keys.whole("intermediate"), bias=bool(keys.config.get("mlp_bias", False)))


def dense_layers(keys: Keys, layers: int) -> set[int]:
    """Layers with a plain MLP, by whichever key says so."""
    named = keys.config.get("mlp_layer_types")
    if isinstance(named, list):
        return {layer for layer, kind in enumerate(named[:layers]) if str(kind) == "dense"}
    routed = listed(keys, "moe_layer_freq")
    if routed:
        return {layer for layer, moe in enumerate(routed[:layers]) if not moe}
    return set(range(min(layers, keys.whole("first_dense_layers", 0)))) | set(listed(keys, "mlp_only_layers"))


def mixer_of(keys: Keys, kind: str, linear: Part, names: Sequence[str], **more: Any) -> Part:
    """The mixer of one layer by its type's name."""
    if kind in names:
        return linear
    return attention(keys, **more) if kind in ORDINARY_KINDS else UnknownPart(kind)


def text_model(config: Mapping[str, object]) -> tuple[dict[str, object], bool]:
    """The part of a config that describes the language model, and whether it is nested."""
    for key in TEXT_MODELS:
        inner = config.get(key)
        if isinstance(inner, dict) and inner:
            text, _ = text_model(inner)
            shared = ("quantization_config", "compression_config", "torch_dtype", "dtype", "tie_word_embeddings")
            return {**{k: config[k] for k in shared if config.get(k) is not None}, **text}, True
    return dict(config), False


def laid_open(config: Mapping[str, object]) -> dict[str, object]:
    """``config`` with the inner tables that some architectures keep their numbers in laid open."""
    opened = dict(config)
    for key in ("attn_config", "ffn_config", "moe"):
        inner = config.get(key)
        if isinstance(inner, Mapping):
            opened |= {k: v for k, v in inner.items() if k not in opened}
    return opened
