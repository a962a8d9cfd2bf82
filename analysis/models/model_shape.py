"""The shape of a model: every architecture number that work and parameter counts need.

``ModelShape`` is the one description of a model, whether it comes from the table (``models``) or from a config.json
(``hf_config``). ``linear_maps`` lists its weight matrices, and both the parameter counts here and the work of each GEMM come from
that one list, so that they cannot disagree. Parameter counts follow the published checkpoints (no multi-token
prediction layers, no quantisation scales).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .layer_kinds import (
    RECURRENT,
    Attention,
    CompressedAttention,
    Experts,
    LatentAttention,
    LayerGroup,
    LinearMap,
    Mlp,
    Part,
    Reach,
    Recurrent,
    group_layers,
)

BYTES_PER_ELEMENT: Mapping[str, float] = {
    "fp64": 8.0,
    "fp32": 4.0,
    "tf32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "fp4": 0.5,
    "int4": 0.5,
}

# Engines keep these at 16 bit: tables, routers, and MLA's absorbed matrices, which they make of the dequantised kv_b.
NEVER_QUANTISED = ("embedding", "lm_head", "router", "shared_gate", "absorb_q", "absorb_o")
KIND_NEVER_QUANTISED = ("index_weights", "o_a")  # of other layer kinds: an indexer's head weights, grouped outputs
FULL_PRECISION = ("stream_mix",)  # fp32 in every checkpoint


@dataclass(frozen=True)
class Quantisation:
    """How packed weights are stored. ``group_size`` elements along K (times ``group_rows`` along N) share a scale."""

    method: str  # 'gptq' | 'awq' | 'fp8' | 'compressed-tensors' | 'modelopt' | 'mxfp4' | ...
    bits: float  # of one packed weight: 4, 8
    group_size: int = -1  # along K; -1 = one scale per output channel
    group_rows: int = 1  # along N: 128 for DeepSeek's 128 x 128 blocks
    scale_bytes: float = 2.0
    zero_points: bool = False  # a packed zero point of ``bits`` bits beside every scale
    excluded: tuple[str, ...] = NEVER_QUANTISED  # places kept at the unquantised type
    weight_only: bool = True  # activations stay at activation_dtype and so does the arithmetic
    arithmetic: str | None = None  # the kernels' type where it is neither (int4 weights under fp8 activations: 'fp8')
    by_place: tuple[tuple[str, str, Quantisation], ...] = ()  # (place, data type, storage) of places stored otherwise
    partly: tuple[tuple[str, float], ...] = ()  # (place, share of its layers that stay at the unquantised type)

    def at(self, place: str) -> Quantisation:
        """How the packed weights of ``place`` are stored."""
        return next((stored for other, _, stored in self.by_place if other == place), self)

    def arithmetic_at(self, place: str, *, weights: str, activations: str) -> str:
        """The type that a GEMM over packed weights of ``place`` computes in.

        Weight-only storage is unpacked to the activations' type: FP4 weights under a bf16 MMA have the bf16 ceiling.
        """
        stored, own = next(((own, kind) for other, kind, own in self.by_place if other == place), (self, weights))
        return stored.arithmetic or (activations if stored.weight_only else own)

    @property
    def bits_with_scales(self) -> float:
        """Bits of one packed weight with its share of scales and zero points; a scale per channel is left out."""
        if self.group_size <= 0:
            return self.bits
        extra = 8 * self.scale_bytes + (self.bits if self.zero_points else 0.0)
        return self.bits + extra / (self.group_size * self.group_rows)


def has_part(group: LayerGroup, kind: type) -> bool:
    """Whether the layers of ``group`` hold a part of that kind."""
    return any(isinstance(part, kind) for part in group.parts)


@dataclass(frozen=True)
class ModelShape:
    """Architecture numbers of one decoder. Counts are of the whole model, before tensor parallelism."""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int  # of the dense MLP (also of the dense layers of an MoE model)
    vocab: int
    tied_embeddings: bool = False
    gated_mlp: bool = True
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    lm_head_bias: bool = False
    qk_norm: bool = False  # an RMSNorm over head_dim on q and on k
    qk_norm_whole: bool = False  # its weights span all heads (Command R+, OLMo 2)
    norms_per_layer: int = 2  # 4 in Gemma 2 and 3, 1 where attention and MLP run in parallel
    norm_bias: bool = False  # LayerNorm with a bias (OPT, GPT-2)
    embedding_norm: bool = False  # one more norm behind the embedding (BLOOM)
    learned_positions: int = 0  # rows of a learned position embedding (OPT: 2050)
    attention_sinks: bool = False  # one learned logit per head (gpt-oss)
    sliding_window: int | None = None
    sliding_layers: tuple[int, ...] = ()  # which layers see only the window
    attention_chunk: int | None = None  # tokens see those of their own chunk (Llama-4)
    chunked_layers: tuple[int, ...] = ()  # in these layers
    # mixture of experts; experts = 0 is a dense model
    experts: int = 0
    experts_per_token: int = 0
    moe_intermediate: int = 0
    shared_intermediate: int = 0  # width of all shared experts together
    shared_gate: bool = False  # a sigmoid gate vector on the shared expert (Qwen2 MoE)
    router_bias: bool = False
    first_dense_layers: int = 0
    moe_layer_frequency: int = 1  # layer i >= first_dense_layers is MoE when (i + moe_layer_offset) % frequency == 0
    moe_layer_offset: int = 0
    other_dense_layers: tuple[int, ...] = ()  # dense layers that the two rules above do not say
    # multi-head latent attention; kv_lora_rank = 0 is ordinary attention
    q_lora_rank: int = 0  # 0 with MLA: q is projected directly
    kv_lora_rank: int = 0
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0
    # layers of other kinds, or of several; () = every layer as the fields above say
    groups: tuple[LayerGroup, ...] = ()
    # storage
    weight_dtype: str = "bf16"
    activation_dtype: str = "bf16"
    kv_dtype: str = "bf16"
    quantisation: Quantisation | None = None
    notes: tuple[str, ...] = ()  # what was inferred or is not counted; said wherever the model is named

    @property
    def is_mla(self) -> bool:
        """Whether attention is multi-head latent attention."""
        return self.kv_lora_rank > 0

    def is_moe_layer(self, layer: int) -> bool:
        """Whether a layer routes its tokens to experts."""
        if self.groups:
            return any(layer in group.layers and has_part(group, Experts) for group in self.groups)
        if not self.experts or layer < self.first_dense_layers or layer in self.other_dense_layers:
            return False
        return (layer + self.moe_layer_offset) % self.moe_layer_frequency == 0

    @property
    def moe_layers(self) -> int:
        """How many layers route tokens to experts."""
        return sum(self.is_moe_layer(layer) for layer in range(self.layers))

    @property
    def dense_layers(self) -> int:
        """How many layers have an ordinary MLP."""
        if self.groups:
            return sum(len(group.layers) for group in self.groups if has_part(group, Mlp))
        return self.layers - self.moe_layers

    @property
    def needs_layer_kinds(self) -> bool:
        """Whether formulas for equal attention layers, each with an MLP or experts, would count this model wrongly."""
        fits = {(LatentAttention, Mlp), (LatentAttention, Experts), (Attention, Mlp), (Attention, Experts)}
        if any(tuple(type(part) for part in group.parts) not in fits for group in self.groups):
            return True
        mixers = {part for group in self.groups for part in group.parts if isinstance(part, Attention)}
        alike = (self.heads, self.kv_heads, self.head_dim, 0, "", None)
        return any(
            (m.heads, m.kv_heads, m.head_dim, m.value_dim, m.output_gate, m.index) != alike or m.key_is_value
            for m in mixers
        )

    @property
    def mlp_matrices(self) -> int:
        """Matrices of width ``intermediate`` before the activation: gate and up, or up alone."""
        return 2 if self.gated_mlp else 1


def linear_maps(model: ModelShape) -> tuple[LinearMap, ...]:
    """Every weight matrix that tokens are multiplied with, lm_head included, the embedding table not."""
    maps = [each for group in model.groups for each in group.maps(model.hidden)]
    if not model.groups:
        maps = [*_attention_maps(model), *_mlp_maps(model)]
    maps.append(LinearMap("lm_head", model.hidden, model.vocab, 1, bias=model.vocab if model.lm_head_bias else 0))
    return tuple(maps)


def _attention_maps(m: ModelShape) -> Iterator[LinearMap]:
    if not m.is_mla:
        width = (m.heads + 2 * m.kv_heads) * m.head_dim
        yield LinearMap("qkv", m.hidden, width, m.layers, bias=width if m.qkv_bias else 0)
        yield LinearMap("o", m.heads * m.head_dim, m.hidden, m.layers, bias=m.hidden if m.o_bias else 0)
        return
    q_width = m.heads * (m.qk_nope_head_dim + m.qk_rope_head_dim)
    if m.q_lora_rank:
        yield LinearMap("q_a", m.hidden, m.q_lora_rank, m.layers)
        yield LinearMap("q_b", m.q_lora_rank, q_width, m.layers)
    else:
        yield LinearMap("q", m.hidden, q_width, m.layers)
    yield LinearMap("kv_a", m.hidden, m.kv_lora_rank + m.qk_rope_head_dim, m.layers)
    yield LinearMap("kv_b", m.kv_lora_rank, m.heads * (m.qk_nope_head_dim + m.v_head_dim), m.layers)
    yield LinearMap("o", m.heads * m.v_head_dim, m.hidden, m.layers)


def _mlp_maps(m: ModelShape) -> Iterator[LinearMap]:
    def mlp(prefix: str, width: int, layers: int, copies: int, active: float) -> Iterator[LinearMap]:
        up = m.mlp_matrices * width
        bias = m.mlp_bias
        yield LinearMap(f"{prefix}gate_up", m.hidden, up, layers, copies, active, up if bias else 0)
        yield LinearMap(f"{prefix}down", width, m.hidden, layers, copies, active, m.hidden if bias else 0)

    if m.dense_layers:
        yield from mlp("", m.intermediate, m.dense_layers, 1, 1.0)
    if m.moe_layers:
        yield LinearMap("router", m.hidden, m.experts, m.moe_layers, bias=m.experts if m.router_bias else 0)
        yield from mlp("expert_", m.moe_intermediate, m.moe_layers, m.experts, float(m.experts_per_token))
        if m.shared_intermediate:
            yield from mlp("shared_", m.shared_intermediate, m.moe_layers, 1, 1.0)
        if m.shared_gate:
            yield LinearMap("shared_gate", m.hidden, 1, m.moe_layers)


def _small_parameters(m: ModelShape) -> int:
    """Norm weights, attention sinks and learned positions; with ``groups``, all that is no matrix in their parts."""
    if m.groups:
        return sum(group.small(m.hidden) for group in m.groups) + m.hidden * (1 + m.embedding_norm)
    per_norm = m.hidden * (2 if m.norm_bias else 1)
    count = (m.norms_per_layer * m.layers + 1 + m.embedding_norm) * per_norm + m.learned_positions * m.hidden
    if m.qk_norm:
        count += m.head_dim * (m.heads + m.kv_heads if m.qk_norm_whole else 2) * m.layers
    if m.is_mla:
        count += (m.q_lora_rank + m.kv_lora_rank) * m.layers
    if m.attention_sinks:
        count += m.heads * m.layers
    return count


def _around_the_maps(m: ModelShape) -> int:
    """Parameters that are no weight matrix of a layer: both tables (one where tied), norms and the like."""
    tables = m.vocab * m.hidden * (1 if m.tied_embeddings else 2)
    return tables + (m.vocab if m.lm_head_bias else 0) + _small_parameters(m)


def parameters_total(model: ModelShape) -> int:
    """All parameters of the model; tied embeddings count once."""
    maps = sum(each.parameters for each in linear_maps(model) if each.place != "lm_head")
    return maps + _around_the_maps(model)


def parameters_active(model: ModelShape) -> int:
    """Parameters one token passes through, both embedding tables counted whole, as model cards do."""
    maps = sum(each.active_parameters for each in linear_maps(model) if each.place != "lm_head")
    return round(maps + _around_the_maps(model))


def kv_bytes_per_token(model: ModelShape) -> float:
    """KV cache bytes that one token occupies over all layers: 2 L K d b_kv, or L (c + r) b_kv with MLA.

    Layers without a cache that grows (state-space, linear attention) add none; compressed rows their share of a token.
    """
    if model.groups:
        return sum(len(each.layers) * _part_kv_bytes(part, model) for each in model.groups for part in each.parts)
    return model.layers * kv_elements_per_token_and_layer(model) * BYTES_PER_ELEMENT[model.kv_dtype]


def _part_kv_bytes(part: Part, model: ModelShape) -> float:
    """Bytes that one token adds to the cache of one layer's ``part``, an indexer's cache included."""
    if isinstance(part, CompressedAttention):
        index = part.index.row_bytes if part.index else 0.0
        return (part.row_bytes + index) / part.ratio if part.ratio else 0.0
    if isinstance(part, LatentAttention):
        index = part.index.row_bytes if part.index and part.index.own else 0.0
        return latent_row_bytes(part, model.kv_dtype) + index
    if isinstance(part, Attention):
        return part.cache_elements * BYTES_PER_ELEMENT[model.kv_dtype]
    return 0.0


def latent_row_bytes(part: LatentAttention, kv_dtype: str) -> float:
    """Bytes of one cached latent; sparse attention's 8-bit layout has fp32 scales per 128 and keeps rope at 16 bit."""
    if part.index and kv_dtype == "fp8":
        return part.kv_lora_rank + 4.0 * part.kv_lora_rank / 128 + 2.0 * part.rope
    return part.cache_elements * BYTES_PER_ELEMENT[kv_dtype]


def state_bytes_per_request(model: ModelShape) -> float:
    """Bytes of state that one request holds in layers whose memory does not grow: convolutions and recurrences."""
    return sum(
        len(group.layers) * (part.state_elements * BYTES_PER_ELEMENT[part.state_dtype] + conv_state_bytes(part, model))
        for group in model.groups
        for part in group.parts
        if isinstance(part, RECURRENT)
    )


def conv_state_bytes(part: Recurrent, model: ModelShape) -> float:
    """Bytes of the last inputs that a short convolution keeps of one request in one layer."""
    return part.conv_width * (part.conv - 1) * BYTES_PER_ELEMENT[model.activation_dtype]


def kv_elements_per_token_and_layer(model: ModelShape) -> int:
    """Cached elements of one token in one layer: keys and values of every kv head, or MLA's latent and rope part."""
    if model.is_mla:
        return model.kv_lora_rank + model.qk_rope_head_dim
    return 2 * model.kv_heads * model.head_dim


def bytes_per_weight(model: ModelShape, place: str) -> float:
    """Bytes that one weight of ``place`` occupies, its share of scales and zero points included.

    A per-channel scale (group_size -1) is left out here: it depends on K and is under 0.1% of the weights. Where some
    layers of the place stay at 16 bit, the mean over its layers.
    """
    if place in FULL_PRECISION:
        return 4.0
    quantisation = model.quantisation
    if quantisation is None:
        return BYTES_PER_ELEMENT[model.weight_dtype]
    plain = BYTES_PER_ELEMENT[model.activation_dtype]
    share = dict(quantisation.partly).get(place, 0.0)
    if (place in quantisation.excluded and not share) or place in KIND_NEVER_QUANTISED:
        return plain
    return share * plain + (1.0 - share) * quantisation.at(place).bits_with_scales / 8


def weight_bytes_per_token(model: ModelShape, *, touched: float = 1.0) -> float:
    """Bytes of weight matrices, lm_head included, that a decode step of one token reads.

    Experts count as far as one token passes through them. The embedding table is read by row and not counted.
    ``touched`` multiplies the experts: E / k gives a step in which every expert is read.
    """
    total = 0.0
    for each in linear_maps(model):
        copies = min(each.active_copies * touched, each.copies) if each.copies > 1 else each.active_copies
        total += each.inputs * each.outputs * copies * each.layers * bytes_per_weight(model, each.place)
    return total


def ridge_batch(model: ModelShape, ridge: float) -> float:
    """Tokens a step at which the weight GEMMs turn compute-bound: 2 N_active T / weight bytes = ``ridge`` FLOP/byte.

    Weights-only convention; every expert is taken as touched, which holds long before the ridge.
    """
    active = sum(each.inputs * each.outputs * each.active_copies * each.layers for each in linear_maps(model))
    return ridge * weight_bytes_per_token(model, touched=float("inf")) / (2.0 * active)


def layer_groups(model: ModelShape) -> tuple[LayerGroup, ...]:
    """The layers of any model by what they are made of: its own ``groups``, or those its other fields describe."""
    if model.groups:
        return model.groups
    return group_layers([_ordinary_layer(model, layer) for layer in range(model.layers)])


def _ordinary_layer(m: ModelShape, layer: int) -> tuple[tuple[Part, ...], int]:
    mixer: Part = Attention(
        heads=m.heads,
        kv_heads=m.kv_heads,
        head_dim=m.head_dim,
        reach=Reach(
            window=m.sliding_window if layer in m.sliding_layers else None,
            chunk=m.attention_chunk if layer in m.chunked_layers else None,
        ),
        qkv_bias=m.qkv_bias,
        o_bias=m.o_bias,
        qk_norm=("whole" if m.qk_norm_whole else "head") if m.qk_norm else "",
        sinks=m.attention_sinks,
    )
    if m.is_mla:
        mixer = LatentAttention(
            m.heads, m.q_lora_rank, m.kv_lora_rank, m.qk_nope_head_dim, m.qk_rope_head_dim, m.v_head_dim
        )
    feed: Part = Mlp(m.intermediate, m.gated_mlp, m.mlp_bias)
    if m.is_moe_layer(layer):
        feed = Experts(
            m.experts,
            m.experts_per_token,
            m.moe_intermediate,
            shared=m.shared_intermediate,
            shared_gate=m.shared_gate,
            router_bias=m.router_bias,
            bias=m.mlp_bias,
            gated=m.gated_mlp,
        )
    return (mixer, feed), m.norms_per_layer


def sliding_by_period(layers: int, period: int) -> tuple[int, ...]:
    """Layers under the window where every ``period``-th layer sees everything; period 0: all are under the window."""
    return tuple(layer for layer in range(layers) if not period or (layer + 1) % period)
