"""What each layer of a config.json is made of, for architectures whose layers are not all attention and MLP.

One function an architecture: it reads the config's own pattern keys and gives the parts of every layer with its number
of norms. A layer type that is in nobody's list becomes an ``UnknownPart``: the rest of the layer is counted still.
Sources: the configuration and modelling files of Hugging Face transformers 5.24 for each ``model_type``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeAlias

from .layer_kinds import (
    Attention,
    BlockIndexer,
    CompressedAttention,
    Experts,
    GatedDelta,
    Indexer,
    KimiDelta,
    LatentAttention,
    LayerGroup,
    Lightning,
    Mamba1,
    Mamba2,
    Mlp,
    Part,
    Reach,
    ShortConv,
    UnknownPart,
    group_layers,
)

Made: TypeAlias = "tuple[tuple[Part, ...], int]"  # parts of a layer, and its norms
ORDINARY_KINDS = ("full_attention", "sliding_attention", "chunked_attention", "attention", "global_attention")


class Keys(Protocol):
    """A config's keys, as the reader gives them."""

    config: dict[str, Any]

    def whole(self, name: str, default: int | None = None) -> int:
        """A whole number by the keys of a field of ModelShape."""

    def number(self, *keys: str, default: int | None = None) -> int:
        """A whole number by the first of ``keys`` that is present."""


def layer_types(keys: Keys, *names: str) -> list[str]:
    """The config's list of layer types under the first of ``names`` (or ``layer_types``), [] where it has none."""
    for name in (*names, "layer_types"):
        listed = keys.config.get(name)
        if isinstance(listed, list) and listed:
            return [str(each) for each in listed]
    return []


def _listed(keys: Keys, name: str) -> list[int]:
    """A list of whole numbers; [] where the key is absent or no such list."""
    value = keys.config.get(name)
    return [int(each) for each in value if isinstance(each, int | float)] if isinstance(value, list) else []


def _inner(keys: Keys, name: str) -> Mapping[str, Any]:
    value = keys.config.get(name)
    return value if isinstance(value, Mapping) else {}


def _state_type(keys: Keys, *names: str, default: str = "fp32") -> str:
    """Type of a recurrent state; 'auto' and absent are ``default``."""
    said = next((str(keys.config[name]) for name in names if keys.config.get(name)), "")
    return {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}.get(said.removeprefix("torch."), default)


def _attention(keys: Keys, **more: Any) -> Attention:
    heads = keys.whole("heads")
    size = keys.whole("head_dim", 0) or keys.whole("hidden") // max(heads, 1)
    bias = bool(keys.config.get("attention_bias", False))
    kv_heads = keys.whole("kv_heads", heads) or heads
    return replace(Attention(heads, kv_heads, size, qkv_bias=bias, o_bias=bias), **more)


def _latent(keys: Keys, **more: Any) -> LatentAttention:
    return LatentAttention(
        keys.whole("heads"),
        keys.whole("q_lora_rank", 0),
        keys.whole("kv_lora_rank"),
        keys.whole("qk_nope_head_dim"),
        keys.number("qk_rope_head_dim", default=64),
        keys.whole("v_head_dim"),
        **more,
    )


def _experts(keys: Keys, **more: Any) -> Experts:
    """Experts by the usual keys; a shared width is a key of its own or so many experts' widths."""
    width = keys.whole("moe_intermediate", 0) or keys.whole("intermediate")
    shared = keys.whole("shared_intermediate", 0) or keys.whole("shared_experts", 0) * width
    made = Experts(keys.whole("experts"), keys.whole("experts_per_token"), width, shared)
    return replace(made, **more)


def _mlp(keys: Keys) -> Mlp:
    return Mlp(keys.whole("intermediate"), bias=bool(keys.config.get("mlp_bias", False)))


def _dense_layers(keys: Keys, layers: int) -> set[int]:
    """Layers with a plain MLP, by whichever key says so."""
    named = keys.config.get("mlp_layer_types")
    if isinstance(named, list):
        return {layer for layer, kind in enumerate(named[:layers]) if str(kind) == "dense"}
    listed = _listed(keys, "moe_layer_freq")
    if listed:
        return {layer for layer, moe in enumerate(listed[:layers]) if not moe}
    return set(range(min(layers, keys.whole("first_dense_layers", 0)))) | set(_listed(keys, "mlp_only_layers"))


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
            state_dtype=_state_type(keys, "mamba_ssm_cache_dtype"),
        ),
        "attention": lambda: _attention(keys),
        "mlp": lambda: replace(_mlp(keys), gated=False),
        "moe": lambda: _experts(keys, **gated),
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
        state_dtype=_state_type(keys, "mamba_ssm_cache_dtype", "mamba_ssm_dtype", default="bf16"),
    )


def _expanded(keys: Keys) -> int:
    return keys.number("mamba_expand", "expand", default=2) * keys.whole("hidden")


def granite_hybrid(keys: Keys) -> list[Made]:
    """Granite-4-H: Mamba-2 or attention, then experts with a shared MLP (0 experts: that MLP alone)."""
    count = keys.whole("experts", 0)
    shared = keys.number("shared_intermediate_size", default=0)
    feed: Part = Mlp(shared) if not count else _experts(keys, shared=shared)
    mamba = _mamba2(keys, _expanded(keys), gated_norm=True)
    kinds = layer_types(keys, "layers_block_type") or ["mamba"] * keys.whole("layers")
    return [((_mixer(keys, kind, mamba, ("mamba", "linear_attention")), feed), 2) for kind in kinds]


def _mixer(keys: Keys, kind: str, linear: Part, names: Sequence[str], **attention: Any) -> Part:
    """The mixer of one layer by its type's name."""
    if kind in names:
        return linear
    return _attention(keys, **attention) if kind in ORDINARY_KINDS else UnknownPart(kind)


def bamba(keys: Keys) -> list[Made]:
    """Bamba: Mamba-2, attention at ``attn_layer_indices``, an MLP everywhere."""
    mamba, at = _mamba2(keys, _expanded(keys), gated_norm=True), set(_listed(keys, "attn_layer_indices"))
    layers = range(keys.whole("layers"))
    return [((_attention(keys) if layer in at else mamba, _mlp(keys)), 2) for layer in layers]


def falcon_h1(keys: Keys) -> list[Made]:
    """Falcon-H1: attention and Mamba-2 side by side in every layer, then an MLP."""
    width = keys.number("mamba_d_ssm", default=0) or _expanded(keys)
    mamba = _mamba2(keys, width, gated_norm=keys.config.get("mamba_rms_norm") is True)
    return [((_attention(keys), mamba, _mlp(keys)), 2)] * keys.whole("layers")


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
        mixer = _attention(keys) if layer % max(period, 1) == offset else mamba
        feed = _experts(keys) if routed and layer % max(every, 1) == first else _mlp(keys)
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
        state_dtype=_state_type(keys, "mamba_ssm_dtype"),
    )
    gate = "" if keys.config.get("attn_output_gate") is False else "element"
    routed = keys.whole("experts", 0) > 1
    feed: Part = _experts(keys, shared_gate=True) if routed else _mlp(keys)
    dense = _dense_layers(keys, layers) if routed else set()
    names = ("linear_attention",)
    return [
        (
            (
                _mixer(keys, kind, delta, names, output_gate=gate, qk_norm="head"),
                _mlp(keys) if layer in dense else feed,
            ),
            2,
        )
        for layer, kind in enumerate(kinds[:layers])
    ]


def olmo_hybrid(keys: Keys) -> list[Made]:
    """OLMo-Hybrid: gated DeltaNet by Qwen's keys, plain attention with whole query and key norms."""
    made = qwen_delta(keys)
    full = _attention(keys, qk_norm="whole")
    return [((full if isinstance(parts[0], Attention) else parts[0], *parts[1:]), norms) for parts, norms in made]


def kimi_linear(keys: Keys) -> list[Made]:
    """Kimi-Linear and the text model of Kimi-K3: delta attention, and MLA without rotation in every fourth layer."""
    said, layers = _inner(keys, "linear_attn_config"), keys.whole("layers")
    full = {layer - 1 for layer in said.get("full_attn_layers", ()) if isinstance(layer, int)}  # counted from 1
    kinds = layer_types(keys) or ["full_attention" if layer in full else "linear_attention" for layer in range(layers)]
    delta = KimiDelta(
        int(said.get("num_heads") or keys.number("linear_num_heads")),
        int(said.get("head_dim") or keys.number("linear_head_dim")),
        int(said.get("short_conv_kernel_size") or keys.number("linear_conv_kernel_dim", default=4)),
        full_rank_gate=(said.get("use_full_rank_gate") or keys.config.get("use_full_rank_gate")) is True,
    )
    latent = _latent(keys, output_gate=keys.config.get("mla_use_output_gate") is True)
    routed = _experts(keys, router_bias=True, latent=keys.number("routed_expert_hidden_size", default=0))
    dense = _dense_layers(keys, layers)

    def mixer(kind: str) -> Part:
        return {"full_attention": latent, "linear_attention": delta}.get(kind, UnknownPart(kind))

    return [((mixer(kind), _mlp(keys) if layer in dense else routed), 2) for layer, kind in enumerate(kinds[:layers])]


def minimax_lightning(keys: Keys) -> list[Made]:
    """MiniMax-Text-01 and M1: lightning attention, full attention where ``attn_type_list`` has 1 or by default."""
    layers, said = keys.whole("layers"), _listed(keys, "attn_type_list")
    kinds = ["full_attention" if each else "linear_attention" for each in said] or layer_types(keys)
    kinds = kinds or ["linear_attention" if (layer + 1) % 2 else "full_attention" for layer in range(layers)]
    full = _attention(keys)
    linear = Lightning(full.heads, full.head_dim, keys.number("block_size", default=256), _state_type(keys, default="bf16"))
    return [((_mixer(keys, kind, linear, ("linear_attention",)), _experts(keys)), 2) for kind in kinds[:layers]]


def lfm2(keys: Keys) -> list[Made]:
    """LFM2: short convolutions, a few layers of attention; the MLP's width is rounded as its code rounds it."""
    layers, full = keys.whole("layers"), set(_listed(keys, "full_attn_idxs"))
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
    feeds = [Mlp(width) if layer < dense else _experts(keys, router_bias=True) for layer in range(layers)]
    mixers = [_mixer(keys, kind, conv, ("conv",), qk_norm="head") for kind in kinds[:layers]]
    return [((mixer, feed), 2) for mixer, feed in zip(mixers, feeds, strict=True)]


# -- sparse, windowed and compressed attention -------------------------------------------------------------------------


def deepseek_v4(keys: Keys) -> list[Made]:
    """DeepSeek-V4: a window, and compressed rows by ``compress_ratios`` (0 none, 4 with an indexer, 128 all of them)."""
    layers, ratios = keys.whole("layers"), _listed(keys, "compress_ratios")
    if not ratios:
        rates = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
        ratios = [rates.get(kind, 0) for kind in layer_types(keys)]
    query = keys.whole("q_lora_rank")
    heads, size = keys.number("index_n_heads", default=64), keys.number("index_head_dim", default=128)
    # index keys are cached in fp4, and each stands for four tokens
    index = Indexer(heads, size, keys.number("index_topk", default=512), query, row_bytes=size / 2, key_norm=False)
    by_hash = keys.number("num_hash_layers", default=0)

    def made(layer: int, ratio: int) -> Made:
        mixer = CompressedAttention(
            keys.whole("heads"),
            keys.whole("head_dim"),
            query,
            keys.number("o_groups"),
            keys.number("o_lora_rank"),
            keys.whole("sliding_window"),
            ratio,
            index if ratio == 4 else None,
            keys.number("hc_mult", default=4),
        )
        return (mixer, _experts(keys, router_bias=layer >= by_hash, by_hash=layer < by_hash)), 2

    return [made(layer, ratio) for layer, ratio in enumerate(ratios[:layers])]


def gemma4(keys: Keys) -> list[Made]:
    """Gemma-4: windows with heads of their own, full layers whose keys are the values, experts beside the MLP."""
    layers = keys.whole("layers")
    kinds = layer_types(keys) or ["full_attention" if not (at + 1) % 6 else "sliding_attention" for at in range(layers)]
    window = _attention(keys, qk_norm="head", reach=Reach(window=keys.whole("sliding_window")))
    full = replace(
        window,
        kv_heads=keys.number("num_global_key_value_heads", default=window.kv_heads) or window.kv_heads,
        head_dim=keys.number("global_head_dim", default=window.head_dim) or window.head_dim,
        reach=Reach(),
        key_is_value=keys.config.get("attention_k_eq_v") is True,
    )
    borrowed = layers - keys.number("num_kv_shared_layers", default=0)
    wide = 2 if keys.config.get("use_double_wide_mlp") is True else 1
    beside = keys.config.get("enable_moe_block") is True or keys.whole("experts", 0) > 1
    experts: tuple[Part, ...] = (_experts(keys, shared=0),) if beside else ()
    inputs = keys.number("hidden_size_per_layer_input", default=0)
    unknown: tuple[Part, ...] = (UnknownPart("per-layer input embedding"),) if inputs else ()

    def made(layer: int, kind: str) -> Made:
        known = {"sliding_attention": window, "full_attention": full}.get(kind)
        borrows = layer >= borrowed
        mixer: Part = replace(known, borrows_cache=borrows) if known else UnknownPart(kind)
        mlp = Mlp(keys.number("intermediate_size") * (wide if borrows else 1))
        return (mixer, mlp, *experts, *unknown), 8 if beside else 4  # with experts three more norms and a scale

    return [made(layer, kind) for layer, kind in enumerate(kinds[:layers])]


def mimo_v2(keys: Keys) -> list[Made]:
    """MiMo-V2-Flash: five layers of a window to one of full attention, each with its own heads; sinks on windows."""
    layers, pattern = keys.whole("layers"), _listed(keys, "hybrid_layer_pattern")
    kinds = ["sliding_attention" if each else "full_attention" for each in pattern] or layer_types(keys)
    kinds = kinds or ["sliding_attention" if at and (at + 1) % 6 else "full_attention" for at in range(layers)]
    value = keys.number("v_head_dim", default=0)
    full = _attention(keys, value_dim=value, o_bias=False)
    window = replace(
        full,
        heads=keys.number("swa_num_attention_heads", default=full.heads),
        kv_heads=keys.number("swa_num_key_value_heads", default=8),
        head_dim=keys.number("swa_head_dim", default=full.head_dim),
        value_dim=keys.number("swa_v_head_dim", default=value),
        reach=Reach(window=keys.whole("sliding_window", 128)),
        sinks=keys.config.get("add_swa_attention_sink_bias") is not False,
    )
    dense = _dense_layers(keys, layers) or {0}
    routed = _experts(keys, router_bias=True)
    return [
        ((_by_reach(kind, full, window), _mlp(keys) if layer in dense else routed), 2)
        for layer, kind in enumerate(kinds[:layers])
    ]


def _by_reach(kind: str, full: Attention, window: Attention) -> Part:
    return {"full_attention": full, "sliding_attention": window}.get(kind, UnknownPart(kind))


def step3(keys: Keys) -> list[Made]:
    """Step-3.5 and 3.7-Flash: windows with more heads than the full layers, and a gate a head."""
    layers = keys.whole("layers")
    kinds = layer_types(keys) or ["sliding_attention" if at % 4 else "full_attention" for at in range(layers)]
    groups = keys.number("num_attention_groups", "num_key_value_heads", default=8)
    full = _attention(keys, kv_heads=groups, output_gate="head", qk_norm="head")
    other = _inner(keys, "attention_other_setting").get("num_attention_heads")
    heads = keys.number("num_sliding_attention_heads", default=0) or (other if isinstance(other, int) else full.heads)
    window = replace(full, heads=heads, reach=Reach(window=keys.whole("sliding_window", 512)))
    said = keys.config.get("moe_layers_enum")
    if isinstance(said, str):
        said = [int(each) for each in said.split(",") if each.strip().isdigit()]
    moe = set(said) if isinstance(said, list) else set(range(layers)) - (_dense_layers(keys, layers) or {0, 1, 2})
    routed = _experts(keys, shared=keys.number("share_expert_dim", "share_expert_dims", default=0), router_bias=True)
    return [
        ((_by_reach(kind, full, window), routed if layer in moe else _mlp(keys)), 2)
        for layer, kind in enumerate(kinds[:layers])
    ]


def minimax_m3(keys: Keys) -> list[Made]:
    """MiniMax-M3: the first layers full attention with an MLP, the others block-sparse attention with experts."""
    layers, said = keys.whole("layers"), _inner(keys, "sparse_attention_config")

    def sparse(name: str, key: str, default: int) -> int:
        value = said.get(name)
        return value if isinstance(value, int) else keys.number(key, default=default)

    block = sparse("sparse_block_size", "index_block_size", 128)
    index = BlockIndexer(
        sparse("sparse_num_index_heads", "index_n_heads", 4),
        sparse("sparse_index_dim", "index_head_dim", 128),
        block,
        sparse("sparse_topk_blocks", "index_topk_blocks", 16),
    )
    full = _attention(keys, qk_norm="head")
    seen = (index.top_blocks + sparse("sparse_local_block", "index_local_blocks", 1)) * block
    chosen = replace(full, index=index, reach=Reach(selected=seen))
    dense = _dense_layers(keys, layers) or {0, 1, 2}
    freq = said.get("sparse_attention_freq")
    full_at = {at for at, each in enumerate(freq) if not each} if isinstance(freq, list) else dense
    wide = Mlp(keys.number("dense_intermediate_size", default=12288))
    routed = _experts(keys, router_bias=True)
    return [
        ((full if layer in full_at else chosen, wide if layer in dense else routed), 2) for layer in range(layers)
    ]


def longcat(keys: Keys) -> list[Made]:
    """LongCat-Flash: two MLA blocks, two MLPs and one set of experts (some without weights) in every layer."""
    latent, mlp = _latent(keys), Mlp(keys.number("ffn_hidden_size", "intermediate_size"))
    routed = Experts(
        keys.whole("experts"),
        keys.whole("experts_per_token"),
        keys.number("expert_ffn_hidden_size", "moe_intermediate_size"),
        router_bias=True,
        identity=keys.number("zero_expert_num", default=0),
    )
    return [((latent, mlp, latent, mlp, routed), 4)] * keys.number("num_layers", "num_hidden_layers")


BUILDERS: Mapping[str, Callable[[Keys], list[Made]]] = {
    each.__name__: each
    for each in (
        *(nemotron_h, granite_hybrid, bamba, falcon_h1, jamba, mamba_alone, mamba2_alone),
        *(qwen_delta, olmo_hybrid, kimi_linear, minimax_lightning, lfm2),
        *(deepseek_v4, gemma4, mimo_v2, step3, minimax_m3, longcat),
    )
}


# -- changes to ordinary layers ----------------------------------------------------------------------------------------


def with_indexer(keys: Keys, groups: Sequence[LayerGroup], layers: int) -> tuple[LayerGroup, ...]:
    """MLA layers with DeepSeek sparse attention's indexer; GLM-5.2's layers that share a choice have none."""
    top = keys.number("index_topk", default=0)
    if not top:
        return ()
    index = Indexer(
        keys.number("index_n_heads", default=64),
        keys.number("index_head_dim", default=128),
        top,
        keys.whole("q_lora_rank", 0) or keys.whole("hidden"),
    )
    owns = _own_indexers(keys, layers)
    made: list[Made] = []
    for layer in range(layers):
        group = next(each for each in groups if layer in each.layers)
        own = replace(index, own=owns[layer])
        parts = tuple(replace(part, index=own) if isinstance(part, LatentAttention) else part for part in group.parts)
        made.append((parts, group.norms))
    return group_layers(made)


def _own_indexers(keys: Keys, layers: int) -> list[bool]:
    """Which layers choose for themselves: ``indexer_types``, a pattern of F and S, or one in ``index_topk_freq``."""
    said = keys.config.get("indexer_types") or keys.config.get("index_topk_pattern")
    if isinstance(said, list | str) and len(said) >= layers:
        return [str(each).lower() in ("full", "f") for each in said[:layers]]
    every, first = keys.number("index_topk_freq", default=1) or 1, keys.number("index_skip_topk_offset", default=2)
    return [max(layer - first + 1, 0) % every == 0 for layer in range(layers)]


def with_unknown(groups: Sequence[LayerGroup], kinds: Sequence[str], strange: Sequence[str]) -> tuple[LayerGroup, ...]:
    """Ordinary layers, with an unknown mixer where the config names a kind that nobody here knows."""
    made: list[Made] = []
    for layer, kind in enumerate(kinds):
        group = next((each for each in groups if layer in each.layers), groups[-1])
        parts = (UnknownPart(kind), *group.parts[1:]) if kind in strange else group.parts
        made.append((parts, group.norms))
    return group_layers(made)
