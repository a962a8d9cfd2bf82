"""Layers of configs with sparse, windowed, compressed or doubled attention: one function an architecture.

Sources: the configuration and modelling files of Hugging Face transformers 5.24 for each ``model_type``.
"""

from __future__ import annotations

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
    mlp,
)
from .layer_kinds import (
    Attention,
    BlockIndexer,
    CompressedAttention,
    Experts,
    Indexer,
    Mlp,
    Part,
    Reach,
    UnknownPart,
)

# -- sparse, windowed and compressed attention -------------------------------------------------------------------------


def deepseek_v4(keys: Keys) -> list[Made]:
    """DeepSeek-V4: a window, and compressed rows by ``compress_ratios`` (0 none, 4 with an indexer, 128 all of them)."""
    layers, ratios = keys.whole("layers"), listed(keys, "compress_ratios")
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
        return (mixer, experts_of(keys, router_bias=layer >= by_hash, by_hash=layer < by_hash)), 2

    return [made(layer, ratio) for layer, ratio in enumerate(ratios[:layers])]


def gemma4(keys: Keys) -> list[Made]:
    """Gemma-4: windows with heads of their own, full layers whose keys are the values, experts beside the MLP."""
    layers = keys.whole("layers")
    kinds = layer_types(keys) or ["full_attention" if not (at + 1) % 6 else "sliding_attention" for at in range(layers)]
    window = attention(keys, qk_norm="head", reach=Reach(window=keys.whole("sliding_window")))
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
    experts: tuple[Part, ...] = (experts_of(keys, shared=0),) if beside else ()
    inputs = keys.number("hidden_size_per_layer_input", default=0)
    unknown: tuple[Part, ...] = (UnknownPart("per-layer input embedding"),) if inputs else ()

    def made(layer: int, kind: str) -> Made:
        known = {"sliding_attention": window, "full_attention": full}.get(kind)
        borrows = layer >= borrowed
        mixer: Part = replace(known, borrows_cache=borrows) if known else UnknownPart(kind)
        mlp = Mlp(keys.number("intermediate_size") * (wide if borrows else 1))
        return (mixer, mlp, *experts, *unknown), 8 if beside else 4  # with experts three more norms and a scale

    return [made(layer, kind) for layer, kind in enumerate(kinds[:layers])]


def gemma3n(keys: Keys) -> list[Made]:
    """Gemma-3n: windows, the last layers with the cache of earlier ones; its four residual streams and the inputs of
    each layer are of no kind that is counted."""
    layers, width = keys.whole("layers"), keys.config.get("intermediate_size")
    kinds = layer_types(keys) or ["full_attention" if not (at + 1) % 5 else "sliding_attention" for at in range(layers)]
    full = attention(keys, qk_norm="head")
    window = replace(full, reach=Reach(window=keys.whole("sliding_window", 512)))
    borrowed = layers - keys.number("num_kv_shared_layers", default=15)
    widths = width if isinstance(width, list) else [keys.number("intermediate_size")] * layers
    rest = UnknownPart("AltUp streams and per-layer inputs")

    def made(layer: int, kind: str) -> Made:
        known = {"sliding_attention": window, "full_attention": full}.get(kind)
        mixer: Part = replace(known, borrows_cache=layer >= borrowed) if known else UnknownPart(kind)
        return (mixer, Mlp(int(widths[min(layer, len(widths) - 1)])), rest), 4

    return [made(layer, kind) for layer, kind in enumerate(kinds[:layers])]


def mimo_v2(keys: Keys) -> list[Made]:
    """MiMo-V2-Flash: five layers of a window to one of full attention, each with its own heads; sinks on windows."""
    layers, pattern = keys.whole("layers"), listed(keys, "hybrid_layer_pattern")
    kinds = ["sliding_attention" if each else "full_attention" for each in pattern] or layer_types(keys)
    kinds = kinds or ["sliding_attention" if at and (at + 1) % 6 else "full_attention" for at in range(layers)]
    value = keys.number("v_head_dim", default=0)
    full = attention(keys, value_dim=value, o_bias=False)
    window = replace(
        full,
        heads=keys.number("swa_num_attention_heads", default=full.heads),
        kv_heads=keys.number("swa_num_key_value_heads", default=8),
        head_dim=keys.number("swa_head_dim", default=full.head_dim),
        value_dim=keys.number("swa_v_head_dim", default=value),
        reach=Reach(window=keys.whole("sliding_window", 128)),
        sinks=keys.config.get("add_swa_attention_sink_bias") is not False,
    )
    dense = dense_layers(keys, layers) or {0}
    routed = experts_of(keys, router_bias=True)
    return [
        ((_by_reach(kind, full, window), mlp(keys) if layer in dense else routed), 2)
        for layer, kind in enumerate(kinds[:layers])
    ]


def _by_reach(kind: str, full: Attention, window: Attention) -> Part:
    return {"full_attention": full, "sliding_attention": window}.get(kind, UnknownPart(kind))


def step3(keys: Keys) -> list[Made]:
    """Step-3.5 and 3.7-Flash: windows with more heads than the full layers, and a gate a head."""
    layers = keys.whole("layers")
    kinds = layer_types(keys) or ["sliding_attention" if at % 4 else "full_attention" for at in range(layers)]
    groups = keys.number("num_attention_groups", "num_key_value_heads", default=8)
    full = attention(keys, kv_heads=groups, output_gate="head", qk_norm="head")
    other = inner(keys, "attention_other_setting").get("num_attention_heads")
    heads = keys.number("num_sliding_attention_heads", default=0) or (other if isinstance(other, int) else full.heads)
    window = replace(full, heads=heads, reach=Reach(window=keys.whole("sliding_window", 512)))
    said = keys.config.get("moe_layers_enum")
    if isinstance(said, str):
        said = [int(each) for each in said.split(",") if each.strip().isdigit()]
    moe = set(said) if isinstance(said, list) else set(range(layers)) - (dense_layers(keys, layers) or {0, 1, 2})
    routed = experts_of(keys, shared=keys.number("share_expert_dim", "share_expert_dims", default=0), router_bias=True)
    return [
        ((_by_reach(kind, full, window), routed if layer in moe else mlp(keys)), 2)
        for layer, kind in enumerate(kinds[:layers])
    ]


def minimax_m3(keys: Keys) -> list[Made]:
    """MiniMax-M3: the first layers full attention with an MLP, the others block-sparse attention with experts."""
    layers, said = keys.whole("layers"), inner(keys, "sparse_attention_config")

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
    full = attention(keys, qk_norm="head")
    seen = (index.top_blocks + sparse("sparse_local_block", "index_local_blocks", 1)) * block
    chosen = replace(full, index=index, reach=Reach(selected=seen))
    dense = dense_layers(keys, layers) or {0, 1, 2}
    freq = said.get("sparse_attention_freq")
    full_at = {at for at, each in enumerate(freq) if not each} if isinstance(freq, list) else dense
    wide = Mlp(keys.number("dense_intermediate_size", default=12288))
    routed = experts_of(keys, router_bias=True)
    return [((full if layer in full_at else chosen, wide if layer in dense else routed), 2) for layer in range(layers)]


def longcat(keys: Keys) -> list[Made]:
    """LongCat-Flash: two MLA blocks, two MLPs and one set of experts (some without weights) in every layer."""
    latent, mlp = latent_attention(keys), Mlp(keys.number("ffn_hidden_size", "intermediate_size"))
    routed = Experts(
        keys.whole("experts"),
        keys.whole("experts_per_token"),
        keys.number("expert_ffn_hidden_size", "moe_intermediate_size"),
        router_bias=True,
        identity=keys.number("zero_expert_num", default=0),
    )
    return [((latent, mlp, latent, mlp, routed), 4)] * keys.number("num_layers", "num_hidden_layers")
