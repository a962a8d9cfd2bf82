"""The kinds of layer a decoder can be made of, and the weights of each.

A layer is a list of parts: mixers (attention of some kind, a state-space or linear-attention block) and feed-forward
networks. ``ModelShape.groups`` lists which layers have which parts; a model without groups has one kind of attention
and an MLP or experts in every layer, and needs none of this. Every part tells its weight matrices (``maps``) and the
parameters that are no matrix (``small``): norms, convolutions, decays. What a part computes and moves is in
``work.layer_kind_formulas``.

Symbols: h hidden; all counts are of the whole model, before tensor parallelism.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class LinearMap:
    """One kind of weight matrix: ``outputs`` x ``inputs``, with ``copies`` of it in each of ``layers`` layers."""

    place: str
    inputs: int  # K
    outputs: int  # N
    layers: int
    copies: int = 1  # experts
    active_copies: float = 1.0  # of which one token passes through this many
    bias: int = 0  # bias elements per copy

    @property
    def parameters(self) -> int:
        """Weights and biases in the whole model."""
        return (self.inputs * self.outputs + self.bias) * self.copies * self.layers

    @property
    def active_parameters(self) -> float:
        """Weights and biases that one token passes through."""
        return (self.inputs * self.outputs + self.bias) * self.active_copies * self.layers


@dataclass(frozen=True)
class Reach:
    """Which earlier tokens a query sees. All None: every one of them."""

    window: int | None = None  # itself and the window - 1 before it
    chunk: int | None = None  # those of its own chunk (Llama-4)
    selected: int | None = None  # so many that an indexer chooses (MiniMax-M3: blocks x their size)


EVERYTHING = Reach()


@dataclass(frozen=True)
class Indexer:
    """Scores every cached token (or block) with small heads; the best ``top`` are attended to.

    ``inputs`` is the width its queries are projected from: MLA's q_lora_rank, or the hidden size.
    """

    heads: int
    head_dim: int
    top: int  # tokens, or compressed rows
    inputs: int
    own: bool = True  # False: the choice of an earlier layer is used again, no weights and no scores (GLM-5.2)
    row_bytes: float = 132.0  # of the index cache a token: an fp8 key of 128 and its fp32 scale
    key_norm: bool = True  # a LayerNorm with bias on the keys

    def maps(self, hidden: int, layers: int) -> Iterator[LinearMap]:
        """Query, key and head-weight projections."""
        if self.own:
            yield LinearMap("index_q", self.inputs, self.heads * self.head_dim, layers)
            yield LinearMap("index_k", hidden, self.head_dim, layers)
            yield LinearMap("index_weights", hidden, self.heads, layers)

    @property
    def small(self) -> int:
        """The key's norm."""
        return 2 * self.head_dim if self.own and self.key_norm else 0


@dataclass(frozen=True)
class BlockIndexer:
    """MiniMax-M3's: one query vector per index head, one key; the best blocks of the cache by their highest score."""

    heads: int
    head_dim: int
    block: int
    top_blocks: int

    def maps(self, hidden: int, layers: int) -> Iterator[LinearMap]:
        """Query and key projections."""
        yield LinearMap("index_q", hidden, self.heads * self.head_dim, layers)
        yield LinearMap("index_k", hidden, self.head_dim, layers)

    @property
    def small(self) -> int:
        """Norms of queries and keys."""
        return 2 * self.head_dim


@dataclass(frozen=True)
class Attention:
    """Softmax attention over cached keys and values, with grouped heads."""

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int = 0  # 0: as head_dim
    reach: Reach = EVERYTHING
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: str = ""  # '' | 'head' (over head_dim) | 'whole' (over all heads)
    output_gate: str = ""  # '' | 'element' (q projection twice as wide) | 'head' (one number a head)
    key_is_value: bool = False  # no value projection; keys and values are still cached apart
    borrows_cache: bool = False  # uses the keys and values of an earlier layer (Gemma-3n, Gemma-4)
    sinks: bool = False
    index: BlockIndexer | None = None

    @property
    def kind(self) -> str:
        """How tables call it."""
        if self.reach.window:
            return "window attention"
        if self.reach.chunk:
            return "chunked attention"
        return "block-sparse attention" if self.index else "attention"

    @property
    def width_v(self) -> int:
        """Width of one value head."""
        return self.value_dim or self.head_dim

    @property
    def cache_elements(self) -> int:
        """Cached elements of one token."""
        return 0 if self.borrows_cache else self.kv_heads * (self.head_dim + self.width_v)

    def maps(self, hidden: int, layers: int) -> Iterator[LinearMap]:
        """qkv (with an element gate), o, a gate per head, the indexer."""
        width = self.heads * self.head_dim * (2 if self.output_gate == "element" else 1)
        if not self.borrows_cache:
            width += self.kv_heads * (self.head_dim + (0 if self.key_is_value else self.width_v))
        yield LinearMap("qkv", hidden, width, layers, bias=width if self.qkv_bias else 0)
        yield LinearMap("o", self.heads * self.width_v, hidden, layers, bias=hidden if self.o_bias else 0)
        if self.output_gate == "head":
            yield LinearMap("attention_gate", hidden, self.heads, layers)
        if self.index:
            yield from self.index.maps(hidden, layers)

    @property
    def small(self) -> int:
        """Norms of queries and keys, sinks."""
        norms = {"": 0, "head": 2, "whole": self.heads + self.kv_heads}[self.qk_norm] * self.head_dim
        if self.borrows_cache and self.qk_norm:
            norms = (1 if self.qk_norm == "head" else self.heads) * self.head_dim
        return norms + (self.heads if self.sinks else 0) + (self.index.small if self.index else 0)


@dataclass(frozen=True)
class LatentAttention:
    """MLA: one latent of ``kv_lora_rank`` and a rope part are cached; an indexer may choose what is read."""

    heads: int
    q_lora_rank: int  # 0: q is projected directly
    kv_lora_rank: int
    nope: int
    rope: int
    value: int
    output_gate: bool = False  # h -> heads x value, on the output (Kimi-K3)
    index: Indexer | None = None

    @property
    def kind(self) -> str:
        """How tables call it."""
        return "sparse latent attention" if self.index else "latent attention"

    @property
    def cache_elements(self) -> int:
        """Cached elements of one token."""
        return self.kv_lora_rank + self.rope

    def maps(self, hidden: int, layers: int) -> Iterator[LinearMap]:
        """The low-rank projections, o, and the indexer's."""
        q_width = self.heads * (self.nope + self.rope)
        if self.q_lora_rank:
            yield LinearMap("q_a", hidden, self.q_lora_rank, layers)
            yield LinearMap("q_b", self.q_lora_rank, q_width, layers)
        else:
            yield LinearMap("q", hidden, q_width, layers)
        yield LinearMap("kv_a", hidden, self.kv_lora_rank + self.rope, layers)
        yield LinearMap("kv_b", self.kv_lora_rank, self.heads * (self.nope + self.value), layers)
        if self.output_gate:
            yield LinearMap("attention_gate", hidden, self.heads * self.value, layers)
        yield LinearMap("o", self.heads * self.value, hidden, layers)
        if self.index:
            yield from self.index.maps(hidden, layers)

    @property
    def small(self) -> int:
        """Norms of the latents."""
        return self.q_lora_rank + self.kv_lora_rank + (self.index.small if self.index else 0)


@dataclass(frozen=True)
class CompressedAttention:
    """DeepSeek-V4: one shared head that is key and value, a window, and rows that stand for ``ratio`` tokens each.

    ``ratio`` 0: the window alone; 4: an indexer chooses among the compressed rows; 128: all of them are read.
    """

    heads: int
    head_dim: int
    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    window: int
    ratio: int = 0
    index: Indexer | None = None
    streams: int = 0  # residual streams that two small fp32 matrices a layer mix (hyper-connections)
    row_bytes: float = 584.0  # of one cached row: 448 e4m3, 64 bf16 and 8 bytes of scales

    @property
    def kind(self) -> str:
        """How tables call it."""
        return "compressed attention" if self.ratio else "window attention, shared key and value"

    @property
    def overlap(self) -> int:
        """Rows of width head_dim that the compressor makes of a token: two where neighbours overlap (ratio 4)."""
        return 2 if self.index else 1

    def maps(self, hidden: int, layers: int) -> Iterator[LinearMap]:
        """Low-rank q, the shared kv, the grouped low-rank o, compressors, indexer, and the mixing of streams."""
        group = self.heads * self.head_dim // self.o_groups
        yield LinearMap("q_a", hidden, self.q_lora_rank, layers)
        yield LinearMap("q_b", self.q_lora_rank, self.heads * self.head_dim, layers)
        yield LinearMap("kv", hidden, self.head_dim, layers)
        yield LinearMap("o_a", group, self.o_lora_rank, layers, copies=self.o_groups, active_copies=self.o_groups)
        yield LinearMap("o_b", self.o_groups * self.o_lora_rank, hidden, layers)
        if self.ratio:
            yield LinearMap("compress", hidden, 2 * self.overlap * self.head_dim, layers)
        if self.index:  # its keys come from a compressor of their own, so index_k is twice two rows wide
            yield LinearMap("index_q", self.index.inputs, self.index.heads * self.index.head_dim, layers)
            yield LinearMap("index_k", hidden, 4 * self.index.head_dim, layers)
            yield LinearMap("index_weights", hidden, self.index.heads, layers)
        if self.streams:
            yield LinearMap(
                "stream_mix", self.streams * hidden, (2 + self.streams) * self.streams, layers, copies=2, active_copies=2.0
            )

    @property
    def small(self) -> int:
        """Norms, sinks, and the learned positions of the compressors."""
        positions = 2 * self.ratio * self.overlap * self.head_dim // 2 + self.head_dim if self.ratio else 0
        index = 2 * self.ratio * self.index.head_dim + self.index.head_dim if self.index else 0
        return self.q_lora_rank + self.head_dim + self.heads + positions + index


@dataclass(frozen=True)
class Mamba2:
    """A state-space block with one decay a head: state heads x head_dim x state, and a short convolution."""

    heads: int
    head_dim: int
    groups: int
    state: int
    conv: int = 4
    conv_bias: bool = True
    proj_bias: bool = False
    gated_norm: bool = True
    chunk: int = 256
    state_dtype: str = "fp32"

    kind = "Mamba-2"

    @property
    def width(self) -> int:
        """d = heads x head_dim."""
        return self.heads * self.head_dim

    @property
    def conv_width(self) -> int:
        """c = d + 2 G N: what the convolution runs over."""
        return self.width + 2 * self.groups * self.state

    @property
    def state_elements(self) -> int:
        """Recurrent state of one request and layer."""
        return self.width * self.state

    def maps(self, hidden: int, layers: int) -> Iterator[LinearMap]:
        """One projection in (gate, x, B, C, dt), one out."""
        into = self.width + self.conv_width + self.heads
        yield LinearMap("mamba_in", hidden, into, layers, bias=into if self.proj_bias else 0)
        yield LinearMap("mamba_out", self.width, hidden, layers, bias=hidden if self.proj_bias else 0)

    @property
    def small(self) -> int:
        """Convolution, A, D and dt of each head, the gated norm."""
        conv = self.conv_width * (self.conv + self.conv_bias)
        return conv + 3 * self.heads + (self.width if self.gated_norm else 0)


@dataclass(frozen=True)
class Mamba1:
    """A state-space block with a decay per channel: state width x state."""

    width: int
    state: int
    dt_rank: int
    conv: int = 4
    conv_bias: bool = True
    proj_bias: bool = False
    inner_norms: bool = False  # on dt, B and C (Jamba)
    state_dtype: str = "fp32"

    kind = "Mamba-1"

    @property
    def conv_width(self) -> int:
        """What the convolution runs over."""
        return self.width

    @property
    def state_elements(self) -> int:
        """Recurrent state of one request and layer."""
        return self.width * self.state

    def maps(self, hidden: int, layers: int) -> Iterator[LinearMap]:
        """In (x and gate), the data-dependent dt, B and C, dt's second half, out."""
        yield LinearMap("mamba_in", hidden, 2 * self.width, layers, bias=2 * self.width if self.proj_bias else 0)
        yield LinearMap("mamba_x", self.width, self.dt_rank + 2 * self.state, layers)
        yield LinearMap("mamba_dt", self.dt_rank, self.width, layers, bias=self.width)
        yield LinearMap("mamba_out", self.width, hidden, layers, bias=hidden if self.proj_bias else 0)

    @property
    def small(self) -> int:
        """Convolution, A, D, and the inner norms."""
        norms = self.dt_rank + 2 * self.state if self.inner_norms else 0
        return self.width * (self.conv + self.conv_bias) + self.width * self.state + self.width + norms


@dataclass(frozen=True)
class GatedDelta:
    """Gated DeltaNet: a delta-rule state of key_dim x value_dim for each value head."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv: int = 4
    chunk: int = 64
    state_dtype: str = "fp32"

    kind = "gated DeltaNet"

    @property
    def key_width(self) -> int:
        """K = key heads x their width."""
        return self.key_heads * self.key_dim

    @property
    def value_width(self) -> int:
        """V = value heads x their width."""
        return self.value_heads * self.value_dim

    @property
    def conv_width(self) -> int:
        """2 K + V: what the convolution runs over."""
        return 2 * self.key_width + self.value_width

    @property
    def state_elements(self) -> int:
        """Recurrent state of one request and layer."""
        return self.value_heads * self.key_dim * self.value_dim

    def maps(self, hidden: int, layers: int) -> Iterator[LinearMap]:
        """q, k, v and output gate; beta and decay; out."""
        yield LinearMap("linear_in", hidden, 2 * self.key_width + 2 * self.value_width, layers)
        yield LinearMap("linear_gates", hidden, 2 * self.value_heads, layers)
        yield LinearMap("linear_out", self.value_width, hidden, layers)

    @property
    def small(self) -> int:
        """Convolution, decay's A and dt, the norm."""
        return self.conv_width * self.conv + 2 * self.value_heads + self.value_dim


@dataclass(frozen=True)
class KimiDelta:
    """Kimi delta attention: gated DeltaNet with a decay per channel."""

    heads: int
    head_dim: int
    conv: int = 4
    full_rank_gate: bool = False
    chunk: int = 64
    state_dtype: str = "fp32"

    kind = "Kimi linear attention"

    @property
    def width(self) -> int:
        """D = heads x head_dim."""
        return self.heads * self.head_dim

    @property
    def conv_width(self) -> int:
        """3 D: q, k and v each have a convolution."""
        return 3 * self.width

    @property
    def state_elements(self) -> int:
        """Recurrent state of one request and layer."""
        return self.heads * self.head_dim * self.head_dim

    def maps(self, hidden: int, layers: int) -> Iterator[LinearMap]:
        """q, k, v; beta; decay and output gate (of low rank, or the output gate of full rank); out."""
        yield LinearMap("linear_in", hidden, 3 * self.width, layers)
        yield LinearMap("linear_gates", hidden, self.heads, layers)
        low = 1 if self.full_rank_gate else 2
        yield LinearMap("linear_gate_a", hidden, self.head_dim, layers, copies=low, active_copies=low)
        yield LinearMap("linear_gate_b", self.head_dim, self.width, layers, copies=low, active_copies=low)
        if self.full_rank_gate:
            yield LinearMap("linear_gate", hidden, self.width, layers)
        yield LinearMap("linear_out", self.width, hidden, layers)

    @property
    def small(self) -> int:
        """Convolutions, A, dt, the norm."""
        return self.conv_width * self.conv + self.heads + self.width + self.head_dim


@dataclass(frozen=True)
class Lightning:
    """Linear attention with a constant decay a head (MiniMax-Text-01)."""

    heads: int
    head_dim: int
    chunk: int = 256
    state_dtype: str = "fp32"

    kind = "lightning attention"
    conv_width = 0
    conv = 1

    @property
    def width(self) -> int:
        """D = heads x head_dim."""
        return self.heads * self.head_dim

    @property
    def state_elements(self) -> int:
        """Recurrent state of one request and layer."""
        return self.heads * self.head_dim * self.head_dim

    def maps(self, hidden: int, layers: int) -> Iterator[LinearMap]:
        """q, k, v; output gate; out."""
        yield LinearMap("linear_in", hidden, 3 * self.width, layers)
        yield LinearMap("linear_gate", hidden, self.width, layers)
        yield LinearMap("linear_out", self.width, hidden, layers)

    @property
    def small(self) -> int:
        """The norm on the output."""
        return self.width


@dataclass(frozen=True)
class ShortConv:
    """A gated convolution over the last ``conv`` tokens, and no other state (LFM2)."""

    width: int
    conv: int = 3
    bias: bool = False

    kind = "short convolution"
    state_elements = 0
    state_dtype = "bf16"

    @property
    def conv_width(self) -> int:
        """What the convolution runs over."""
        return self.width

    def maps(self, hidden: int, layers: int) -> Iterator[LinearMap]:
        """In (B, C and x), out."""
        yield LinearMap("conv_in", hidden, 3 * self.width, layers, bias=3 * self.width if self.bias else 0)
        yield LinearMap("conv_out", self.width, hidden, layers, bias=hidden if self.bias else 0)

    @property
    def small(self) -> int:
        """The convolution."""
        return self.width * (self.conv + self.bias)


@dataclass(frozen=True)
class Mlp:
    """A feed-forward network; ``gated``: gate and up before the activation, else up alone."""

    width: int
    gated: bool = True
    bias: bool = False
    prefix: str = ""  # 'shared_' for a shared expert

    kind = "MLP"
    small = 0

    def maps(self, hidden: int, layers: int) -> Iterator[LinearMap]:
        """gate_up and down."""
        up = self.width * (2 if self.gated else 1)
        yield LinearMap(f"{self.prefix}gate_up", hidden, up, layers, bias=up if self.bias else 0)
        yield LinearMap(f"{self.prefix}down", self.width, hidden, layers, bias=hidden if self.bias else 0)


@dataclass(frozen=True)
class Experts:
    """Experts of which each token takes ``per_token``; ``latent``: they work at that width, not at the hidden one.

    ``identity`` experts have no weights (LongCat): the router knows them, and a token's choice falls on them as often
    as on any other.
    """

    count: int
    per_token: int
    width: int
    shared: int = 0  # width of all shared experts together
    shared_gate: bool = False
    router_bias: bool = False
    bias: bool = False
    gated: bool = True
    latent: int = 0
    identity: int = 0
    by_hash: bool = False  # the token's id chooses: the router's weights score only (DeepSeek-V4)
    input_norms: int = 0  # further norms or scales of the hidden width (Gemma-4)

    kind = "experts"

    @property
    def per_token_with_weights(self) -> float:
        """Experts with weights that a token passes through, on average."""
        return self.per_token * self.count / (self.count + self.identity)

    def maps(self, hidden: int, layers: int) -> Iterator[LinearMap]:
        """Router, the projections to and from the latent width, the experts, the shared ones and their gate."""
        routed = self.count + self.identity
        yield LinearMap("router", hidden, routed, layers, bias=routed if self.router_bias else 0)
        inner, up = self.latent or hidden, self.width * (2 if self.gated else 1)
        if self.latent:
            yield LinearMap("latent_in", hidden, self.latent, layers)
            yield LinearMap("latent_out", self.latent, hidden, layers)
        active = self.per_token_with_weights
        yield LinearMap("expert_gate_up", inner, up, layers, self.count, active, up if self.bias else 0)
        yield LinearMap("expert_down", self.width, inner, layers, self.count, active, inner if self.bias else 0)
        if self.shared:
            yield from Mlp(self.shared, self.gated, self.bias, "shared_").maps(hidden, layers)
        if self.shared_gate:
            yield LinearMap("shared_gate", hidden, 1, layers)

    @property
    def small(self) -> int:
        """Nothing that is no matrix; the input norms are counted with the layer's."""
        return 0


@dataclass(frozen=True)
class UnknownPart:
    """A part whose kind nobody here knows: neither its weights nor its work are counted, and that is said."""

    name: str

    small = 0

    @property
    def kind(self) -> str:
        """How tables call it."""
        return f"unknown ({self.name})"

    def maps(self, hidden: int, layers: int) -> Iterator[LinearMap]:
        """None that is known."""
        del hidden, layers
        yield from ()


Recurrent: TypeAlias = "Mamba2 | Mamba1 | GatedDelta | KimiDelta | Lightning | ShortConv"
Part: TypeAlias = "Attention | LatentAttention | CompressedAttention | Recurrent | Mlp | Experts | UnknownPart"
RECURRENT = (Mamba2, Mamba1, GatedDelta, KimiDelta, Lightning, ShortConv)


@dataclass(frozen=True)
class LayerGroup:
    """Layers that are made alike."""

    layers: tuple[int, ...]
    parts: tuple[Part, ...]
    norms: int = 2  # of the hidden width

    def maps(self, hidden: int) -> Iterator[LinearMap]:
        """The weight matrices of all layers of the group."""
        for part in self.parts:
            yield from part.maps(hidden, len(self.layers))

    def small(self, hidden: int) -> int:
        """Parameters of all layers of the group that are no matrix."""
        return (sum(part.small for part in self.parts) + self.norms * hidden) * len(self.layers)


def group_layers(layers: list[tuple[tuple[Part, ...], int]]) -> tuple[LayerGroup, ...]:
    """Groups of (parts, norms) per layer, in the order in which they first occur."""
    found: dict[tuple[tuple[Part, ...], int], list[int]] = {}
    for layer, made in enumerate(layers):
        found.setdefault(made, []).append(layer)
    return tuple(LayerGroup(tuple(numbers), parts, norms) for (parts, norms), numbers in found.items())


def unknown_kinds(groups: tuple[LayerGroup, ...]) -> dict[str, int]:
    """Layers by the name of the part in them that nobody knows."""
    counted: dict[str, int] = {}
    for group in groups:
        for part in group.parts:
            if isinstance(part, UnknownPart):
                counted[part.name] = counted.get(part.name, 0) + len(group.layers)
    return counted
