"""Kinds of attention and their weights: grouped heads, windows, chunks, latents, indexers, compressed rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .linear_map import LinearMap


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
                "stream_mix",
                self.streams * hidden,
                (2 + self.streams) * self.streams,
                layers,
                copies=2,
                active_copies=2.0,
            )

    @property
    def small(self) -> int:
        """Norms, sinks, and the learned positions of the compressors."""
        positions = 2 * self.ratio * self.overlap * self.head_dim // 2 + self.head_dim if self.ratio else 0
        index = 2 * self.ratio * self.index.head_dim + self.index.head_dim if self.index else 0
        return self.q_lora_rank + self.head_dim + self.heads + positions + index
