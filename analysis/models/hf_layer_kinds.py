"""What each layer of a config.json is made of, for architectures whose layers are not all attention and MLP.

One function an architecture (``hf_recurrent_layers``, ``hf_sparse_layers``): it reads the config's own pattern keys and gives the parts of every layer with its number
of norms. A layer type that is in nobody's list becomes an ``UnknownPart``: the rest of the layer is counted still.
Sources: the configuration and modelling files of Hugging Face transformers 5.24 for each ``model_type``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from .hf_layer_keys import ORDINARY_KINDS, Keys, Made, layer_types
from .hf_recurrent_layers import (
    bamba,
    falcon_h1,
    granite_hybrid,
    jamba,
    kimi_linear,
    lfm2,
    mamba2_alone,
    mamba_alone,
    minimax_lightning,
    nemotron_h,
    olmo_hybrid,
    qwen_delta,
)
from .hf_sparse_layers import deepseek_v4, gemma3n, gemma4, longcat, mimo_v2, minimax_m3, step3
from .layer_kinds import Attention, Experts, Indexer, LatentAttention, LayerGroup, Mlp, UnknownPart, group_layers

__all__ = [
    "BUILDERS",
    "ORDINARY_KINDS",
    "STRANGE_KEYS",
    "fields_of_parts",
    "group_layers",
    "layer_types",
    "with_indexer",
    "with_unknown",
]

# Keys that only configs with layers of other kinds have: of an unknown architecture, what its mixers are is not known.
STRANGE_KEYS = (
    "mamba_",
    "ssm_",
    "linear_num_",
    "linear_attn_",
    "compress_ratios",
    "index_topk",
    "conv_L_cache",
    "hybrid_",
)

BUILDERS: Mapping[str, Callable[[Keys], list[Made]]] = {
    each.__name__: each
    for each in (
        *(nemotron_h, granite_hybrid, bamba, falcon_h1, jamba, mamba_alone, mamba2_alone),
        *(qwen_delta, olmo_hybrid, kimi_linear, minimax_lightning, lfm2),
        *(deepseek_v4, gemma3n, gemma4, mimo_v2, step3, minimax_m3, longcat),
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


def fields_of_parts(groups: Sequence[LayerGroup]) -> dict[str, object]:
    """What a ModelShape's single fields say of layers of several kinds: the first part of each sort."""
    parts = [part for group in groups for part in group.parts]
    values: dict[str, object] = {"heads": 0, "kv_heads": 0, "head_dim": 0, "intermediate": 0}
    for part in reversed(parts):
        if isinstance(part, Attention):
            values |= {"heads": part.heads, "kv_heads": part.kv_heads, "head_dim": part.head_dim}
        elif isinstance(part, LatentAttention):
            values |= {"heads": part.heads, "kv_heads": part.heads, "head_dim": part.nope + part.rope}
            values |= {"q_lora_rank": part.q_lora_rank, "kv_lora_rank": part.kv_lora_rank}
            values |= {"qk_nope_head_dim": part.nope, "qk_rope_head_dim": part.rope, "v_head_dim": part.value}
        elif isinstance(part, Mlp):
            values |= {"intermediate": part.width, "gated_mlp": part.gated}
        elif isinstance(part, Experts):
            values |= {"experts": part.count, "experts_per_token": part.per_token, "moe_intermediate": part.width}
            values |= {"shared_intermediate": part.shared, "shared_gate": part.shared_gate}
    windows = [
        (group.layers, part.reach.window) for group in groups for part in group.parts if isinstance(part, Attention)
    ]
    sliding = [layer for layers, window in windows if window for layer in layers]
    if sliding:
        values |= {"sliding_window": min(window for _, window in windows if window)}
        values |= {"sliding_layers": tuple(sorted(sliding))}
    return values
