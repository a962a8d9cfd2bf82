"""Layers of configs with state-space, linear-attention and convolution layers: one function an architecture.

Sources: the configuration and modelling files of Hugging Face transformers 5.24 for each ``model_type``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from .hf_layer_keys import (
    Keys,
    Made,
    attention,
    dense_layers,
    experts_of,
    inner,
    latent_attention,
    layer_types,
    listed,
    mixer_of,
    mlp,
    state_type,
)
from .layer_kinds import Attention, GatedDelta, KimiDelta, Lightning, Mamba1, Mamba2, Mlp, Part, ShortConv, UnknownPart

# -- state-space models ------------------------------------------------------------------------------------------------

_NEMOTRON = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


def nemotron_h(keys: Keys) -> list[Made]:
    """Nemotron-H and Nemotron-3: each entry of the pattern is one block with one norm."""
    pattern = keys.config.get("hybrid_override_pattern") or keys.config.get("hybrid_layer_pattern")
    kinds = list(pattern) if isinstance(pattern, str) else layer_types(keys, "layers_block_type")
    config = keys.config
    gated = {"gated": False, "router_bias": True, "latent": keys.number("moe_latent_size", default=0)}
    blocks: dict[str, Callable[[], Part]] = {
        "mamba": lambda: Mamba2(
            keys.number("mamba_num_heads"),
            keys.number("mamba_head_dim"),
            keys.number("n_groups", "mamba_n_groups", default=8),
            keys.number("ssm_state_size", "mamba_d_state", default=128),
            keys.number("conv_kernel", "mamba_d_conv", default=4),
            conv_bias=config.get("use_conv_bias", True) is not False,
            proj_bias=config.get("use_bias") is True,
            chunk=keys.number("chunk_size", "mamba_chunk_size", default=128),
            state_dtype=state_type(keys, "mamba_ssm_cache_dtype"),
        ),
        "attention": lambda: attention(keys),
        "mlp": lambda: replace(mlp(keys), gated=False),
        "moe": lambda: experts_of(keys, **gated),
    }
    same = {"linear_attention": "mamba", "full_attention": "attention", **_NEMOTRON}
    named = [same.get(kind, kind) for kind in kinds if kind not in "| "]
    return [((blocks[kind]() if kind in blocks else UnknownPart(kind),), 1) for kind in named]


def _mamba2(keys: Keys, width: int, *, gated_norm: bool) -> Mamba2:
    """Mamba-2 by the keys that Granite, Bamba and Falcon-H1 share; ``width`` = heads x head_dim."""
    heads = keys.number("mamba_n_heads", "num_heads", default=128)
    size = keys.config.get("mamba_d_head", keys.config.get("head_dim"))
    return Mamba2(
        heads,
        size if isinstance(size, int) and size > 0 else width // max(heads, 1),
        keys.number("mamba_n_groups", "n_groups", default=1),
        keys.number("mamba_d_state", "state_size", default=256),
        keys.number("mamba_d_conv", "conv_kernel", default=4),
        conv_bias=keys.config.get("mamba_conv_bias", keys.config.get("use_conv_bias", True)) is not False,
        proj_bias=keys.config.get("mamba_proj_bias", keys.config.get("use_bias")) is True,
        gated_norm=gated_norm,
        chunk=keys.number("mamba_chunk_size", "chunk_size", default=256),
        state_dtype=state_type(keys, "mamba_ssm_cache_dtype", "mamba_ssm_dtype", default="bf16"),
    )


def _expanded(keys: Keys) -> int:
    return keys.number("mamba_expand", "expand", default=2) * keys.whole("hidden")


def granite_hybrid(keys: Keys) -> list[Made]:
    """Granite-4-H: Mamba-2 or attention, then experts with a shared MLP (0 experts: that MLP alone)."""
    count = keys.whole("experts", 0)
    shared = keys.number("shared_intermediate_size", default=0)
    feed: Part = Mlp(shared) if not count else experts_of(keys, shared=shared)
    mamba = _mamba2(keys, _expanded(keys), gated_norm=True)
    kinds = layer_types(keys, "layers_block_type") or ["mamba"] * keys.whole("layers")
    return [((mixer_of(keys, kind, mamba, ("mamba", "linear_attention")), feed), 2) for kind in kinds]


def bamba(keys: Keys) -> list[Made]:
    """Bamba: Mamba-2, attention at ``attn_layer_indices``, an MLP everywhere."""
    mamba, at = _mamba2(keys, _expanded(keys), gated_norm=True), set(listed(keys, "attn_layer_indices"))
    layers = range(keys.whole("layers"))
    return [((attention(keys) if layer in at else mamba, mlp(keys)), 2) for layer in layers]


def falcon_h1(keys: Keys) -> list[Made]:
    """Falcon-H1: attention and Mamba-2 side by side in every layer, then an MLP."""
    width = keys.number("mamba_d_ssm", default=0) or _expanded(keys)
    mamba = _mamba2(keys, width, gated_norm=keys.config.get("mamba_rms_norm") is True)
    return [((attention(keys), mamba, mlp(keys)), 2)] * keys.whole("layers")


def _mamba1(keys: Keys, *, inner_norms: bool) -> Mamba1:
    hidden = keys.whole("hidden")
    rank = keys.config.get("mamba_dt_rank", keys.config.get("time_step_rank"))
    return Mamba1(
        keys.number("intermediate_size", default=0) if not inner_norms else _expanded(keys),
        keys.number("mamba_d_state", "state_size", default=16),
        rank if isinstance(rank, int) and rank > 0 else math.ceil(hidden / 16),
        keys.number("mamba_d_conv", "conv_kernel", default=4),
        conv_bias=keys.config.get("mamba_conv_bias", keys.config.get("use_conv_bias", True)) is not False,
        proj_bias=keys.config.get("mamba_proj_bias", keys.config.get("use_bias")) is True,
        inner_norms=inner_norms,
    )


def jamba(keys: Keys) -> list[Made]:
    """Jamba: Mamba-1 but every n-th layer attention; every other MLP experts."""
    layers, mamba = keys.whole("layers"), _mamba1(keys, inner_norms=True)
    period, offset = keys.number("attn_layer_period", default=8), keys.number("attn_layer_offset", default=4)
    every, first = keys.number("expert_layer_period", default=2), keys.number("expert_layer_offset", default=1)
    routed = keys.whole("experts", 16) > 1

    def made(layer: int) -> Made:
        mixer = attention(keys) if layer % max(period, 1) == offset else mamba
        feed = experts_of(keys) if routed and layer % max(every, 1) == first else mlp(keys)
        return (mixer, feed), 2

    return [made(layer) for layer in range(layers)]


def mamba_alone(keys: Keys) -> list[Made]:
    """Falcon-Mamba and Mamba: Mamba-1 in every layer."""
    return [((_mamba1(keys, inner_norms=False),), 1)] * keys.whole("layers")


def mamba2_alone(keys: Keys) -> list[Made]:
    """Mamba-2 in every layer (Codestral-Mamba)."""
    return [((_mamba2(keys, _expanded(keys), gated_norm=True),), 1)] * keys.whole("layers")


# -- linear attention --------------------------------------------------------------------------------------------------


def qwen_delta(keys: Keys) -> list[Made]:
    """Qwen3-Next, Qwen3.5 and 3.6: gated DeltaNet, and gated full attention in every fourth layer."""
    layers = keys.whole("layers")
    every = keys.number("full_attention_interval", default=4) or 4
    kinds = layer_types(keys) or [
        "linear_attention" if (layer + 1) % every else "full_attention" for layer in range(layers)
    ]
    heads = keys.number("linear_num_key_heads", default=keys.whole("heads")) or 1
    size = keys.number("linear_key_head_dim", default=int(0.75 * keys.whole("hidden") / heads))  # OLMo-Hybrid's rule
    delta = GatedDelta(
        heads,
        keys.number("linear_num_value_heads", default=heads),
        size,
        keys.number("linear_value_head_dim", default=2 * size),
        keys.number("linear_conv_kernel_dim", default=4),
        state_dtype=state_type(keys, "mamba_ssm_dtype"),
    )
    gate = "" if keys.config.get("attn_output_gate") is False else "element"
    routed = keys.whole("experts", 0) > 1
    feed: Part = experts_of(keys, shared_gate=True) if routed else mlp(keys)
    dense = dense_layers(keys, layers) if routed else set()
    names = ("linear_attention",)
    return [
        (
            (
                mixer_of(keys, kind, delta, names, output_gate=gate, qk_norm="head"),
                mlp(keys) if layer in dense else feed,
            ),
            2,
        )
        for layer, kind in enumerate(kinds[:layers])
    ]


def olmo_hybrid(keys: Keys) -> list[Made]:
    """OLMo-Hybrid: gated DeltaNet by Qwen's keys, plain attention with whole query and key norms."""
    made = qwen_delta(keys)
    full = attention(keys, qk_norm="whole")
    return [((full if isinstance(parts[0], Attention) else parts[0], *parts[1:]), norms) for parts, norms in made]


def kimi_linear(keys: Keys) -> list[Made]:
    """Kimi-Linear and the text model of Kimi-K3: delta attention, and MLA without rotation in every fourth layer."""
    said, layers = inner(keys, "linear_attn_config"), keys.whole("layers")
    full = {layer - 1 for layer in said.get("full_attn_layers", ()) if isinstance(layer, int)}  # counted from 1
    kinds = layer_types(keys) or ["full_attention" if layer in full else "linear_attention" for layer in range(layers)]
    delta = KimiDelta(
        int(said.get("num_heads") or keys.number("linear_num_heads")),
        int(said.get("head_dim") or keys.number("linear_head_dim")),
        int(said.get("short_conv_kernel_size") or keys.number("linear_conv_kernel_dim", default=4)),
        full_rank_gate=(said.get("use_full_rank_gate") or keys.config.get("use_full_rank_gate")) is True,
    )
    latent = latent_attention(keys, output_gate=keys.config.get("mla_use_output_gate") is True)
    routed = experts_of(keys, router_bias=True, latent=keys.number("routed_expert_hidden_size", default=0))
    dense = dense_layers(keys, layers)

    mixers: dict[str, Part] = {"full_attention": latent, "linear_attention": delta}

    def mixer(kind: str) -> Part:
        return mixers.get(kind, UnknownPart(kind))

    return [((mixer(kind), mlp(keys) if layer in dense else routed), 2) for layer, kind in enumerate(kinds[:layers])]


def minimax_lightning(keys: Keys) -> list[Made]:
    """MiniMax-Text-01 and M1: lightning attention, full attention where ``attn_type_list`` has 1 or by default."""
    layers, said = keys.whole("layers"), listed(keys, "attn_type_list")
    kinds = ["full_attention" if each else "linear_attention" for each in said] or layer_types(keys)
    kinds = kinds or ["linear_attention" if (layer + 1) % 2 else "full_attention" for layer in range(layers)]
    full = attention(keys)
    linear = Lightning(
        full.heads, full.head_dim, keys.number("block_size", default=256), state_type(keys, default="bf16")
    )
    return [((mixer_of(keys, kind, linear, ("linear_attention",)), experts_of(keys)), 2) for kind in kinds[:layers]]


def lfm2(keys: Keys) -> list[Made]:
    """LFM2: short convolutions, a few layers of attention; the MLP's width is rounded as its code rounds it."""
    layers, full = keys.whole("layers"), set(listed(keys, "full_attn_idxs"))
    kinds = layer_types(keys) or ["full_attention" if layer in full else "conv" for layer in range(layers)]
    conv = ShortConv(keys.whole("hidden"), keys.number("conv_L_cache", default=3), keys.config.get("conv_bias") is True)
    routed = keys.whole("experts", 0) > 1
    width = keys.number("block_ff_dim", "intermediate_size")
    if not routed and keys.config.get("block_auto_adjust_ff_dim", True):
        factor = keys.config.get("block_ffn_dim_multiplier", 1.0)
        width = int((factor if isinstance(factor, int | float) else 1.0) * int(2 * width / 3))
        multiple = keys.number("block_multiple_of", default=256) or 1
        width = multiple * -(-width // multiple)
    dense = keys.number("num_dense_layers", default=2) if routed else layers
    feeds = [Mlp(width) if layer < dense else experts_of(keys, router_bias=True) for layer in range(layers)]
    mixers = [mixer_of(keys, kind, conv, ("conv",), qk_norm="head") for kind in kinds[:layers]]
    return [((mixer, feed), 2) for mixer, feed in zip(mixers, feeds, strict=True)]
