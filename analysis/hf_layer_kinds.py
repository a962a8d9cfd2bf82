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
from .layer_kinds import Indexer, LatentAttention, LayerGroup, UnknownPart, group_layers

__all__ = ["BUILDERS", "ORDINARY_KINDS", "group_layers", "layer_types", "with_indexer", "with_unknown"]

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
