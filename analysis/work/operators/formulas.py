"""FLOPs and least bytes of one operation, one small function each. Every argument may be a number or an array.

Conventions (printed beside the figures that follow from them):

* a multiply-add is 2 FLOP; one comparison, exponential or addition is 1;
* bytes are the least that must cross device memory: every operand once, caches are not guessed at;
* attention is exact causal: a token sees itself and what came before; ``rectangle`` is the other convention in use,
  which counts a fresh prompt up to twice;
* NaN is "unknown" and spreads, so an unknown length can never become a small number.

Symbols: T tokens of the step, h hidden, H heads, K kv heads, d head dimension, q_i new tokens and S_i KV length after
the step of request i, E experts of which k per token, n/r/c/v the MLA widths (no-rope, rope, latent, value).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Number: TypeAlias = "float | npt.NDArray[np.float64]"

NORM_FLOP_PER_ELEMENT = 4.0  # square, accumulate, scale by the root, scale by the weight
ACTIVATION_FLOP_PER_ELEMENT = 5.0  # SiLU (negate, exponential, add, divide) and the gate's product
ROPE_FLOP_PER_ELEMENT = 3.0  # per pair: four products and two sums


@dataclass(frozen=True)
class Work:
    """FLOPs of an operation and its bytes by what they are."""

    flop: Number
    weights: Number = 0.0
    kv: Number = 0.0
    activations: Number = 0.0

    @property
    def bytes(self) -> Number:
        """All bytes to and from device memory."""
        return self.weights + self.kv + self.activations

    def __add__(self, other: Work) -> Work:
        return Work(
            self.flop + other.flop,
            self.weights + other.weights,
            self.kv + other.kv,
            self.activations + other.activations,
        )


def gemm(
    rows: Number, inputs: Number, outputs: Number, *, weight_bytes: Number = 2.0, activation_bytes: float = 2.0
) -> Work:
    """Y[rows, outputs] = X[rows, inputs] W: 2MNK FLOP; b_w NK + b_a (MK + MN) bytes.

    ``weight_bytes`` per weight includes its share of scales and zero points.
    """
    return Work(
        flop=2.0 * rows * inputs * outputs,
        weights=weight_bytes * inputs * outputs,
        activations=activation_bytes * rows * (inputs + outputs),
    )


def causal_pairs(query_tokens: Number, query_times_length: Number, query_squared: Number) -> Number:
    """Query-key pairs of exact causal attention, from the sums over requests of q, q S and q^2.

    Request i has q (S - q) pairs with what was cached and q (q + 1) / 2 within itself: q S - (q^2 - q) / 2.
    """
    return query_times_length - (query_squared - query_tokens) / 2.0


def decode_pairs(length_sum: Number, requests: Number, width: Number = 1.0) -> Number:
    """Causal pairs of ``requests`` decoding ``width`` tokens each, with ``length_sum`` = sum of S_i."""
    return width * length_sum - requests * width * (width - 1.0) / 2.0


def rectangle_pairs(query_times_length: Number) -> Number:
    """The full-rectangle convention, sum of q S: what engines' own MFU counters use."""
    return query_times_length


def windowed_pairs(queries: Number, length: Number, window: int) -> Number:
    """Causal pairs of one request under a sliding window: each row sees min(its position, window) keys."""
    first = length - queries  # positions before the first new row
    below = np.clip(window - first, 0.0, queries)  # rows whose whole history fits
    return below * first + below * (below + 1.0) / 2.0 + (queries - below) * window


@dataclass(frozen=True)
class Attended:
    """What attention looks at: query-key pairs, new tokens (the queries), and cached tokens over all requests."""

    pairs: Number
    query_tokens: Number
    length_sum: Number


@dataclass(frozen=True)
class OrdinaryHeads:
    """H query heads and K kv heads of d elements."""

    heads: Number
    kv_heads: Number
    head_dim: int


@dataclass(frozen=True)
class LatentHeads:
    """MLA's H heads: n without and r with position of queries and keys, v of values, over a cached latent of c + r."""

    heads: Number
    nope: int
    rope: int
    value: int
    latent: int


def attention(seen: Attended, heads: OrdinaryHeads, *, activation_bytes: float = 2.0, kv_bytes: float = 2.0) -> Work:
    """Scores and values: 4 H d per pair; q and output b_a 2 T H d; each cached token once per kv head, b_kv 2 K d."""
    return Work(
        flop=4.0 * heads.heads * heads.head_dim * seen.pairs,
        kv=kv_bytes * 2.0 * heads.kv_heads * heads.head_dim * seen.length_sum,
        activations=activation_bytes * 2.0 * seen.query_tokens * heads.heads * heads.head_dim,
    )


def mla_attention_absorbed(
    seen: Attended, heads: LatentHeads, *, activation_bytes: float = 2.0, kv_bytes: float = 2.0
) -> Work:
    """MLA decode on the cached latent: 2 H (2c + r) per pair; the latent is read once for all heads, b_kv (c + r)."""
    return Work(
        flop=2.0 * heads.heads * (2 * heads.latent + heads.rope) * seen.pairs,
        kv=kv_bytes * (heads.latent + heads.rope) * seen.length_sum,
        activations=activation_bytes * seen.query_tokens * heads.heads * (2 * heads.latent + heads.rope),
    )


def mla_attention_decompressed(
    seen: Attended, heads: LatentHeads, *, activation_bytes: float = 2.0, kv_bytes: float = 2.0
) -> Work:
    """MLA prefill on decompressed keys and values: 2 H (n + r + v) per pair.

    Least traffic: the cached latents once, b_kv (c + r) a token, and queries and outputs; the keys and values that the
    kv_b GEMM makes of the latents are not counted again.
    """
    width = heads.heads * (heads.nope + heads.rope + heads.value)
    return Work(
        flop=2.0 * width * seen.pairs,
        kv=kv_bytes * (heads.latent + heads.rope) * seen.length_sum,
        activations=activation_bytes * width * seen.query_tokens,
    )


def mla_absorb(
    tokens: Number, *, heads: Number, head_width: int, latent: int, weight_bytes: Number = 2.0, activation_bytes: float
) -> Work:
    """One of MLA decode's two batched GEMMs per head: 2 H n c (queries) or 2 H c v (outputs) per token."""
    return Work(
        flop=2.0 * tokens * heads * head_width * latent,
        weights=weight_bytes * heads * head_width * latent,
        activations=activation_bytes * tokens * heads * (head_width + latent),
    )


def expected_distinct_experts(experts: int, per_token: float, tokens: Number) -> Number:
    """Experts that T tokens touch under even routing: E (1 - (1 - k/E)^T)."""
    return experts * (1.0 - (1.0 - per_token / experts) ** tokens)


def expert_gemm(
    tokens: Number,
    inputs: Number,
    outputs: Number,
    *,
    experts: int,
    per_token: float,
    weight_bytes: Number = 2.0,
    activation_bytes: float = 2.0,
) -> Work:
    """A grouped GEMM: each token passes k experts; only the experts touched are read (an expectation)."""
    rows = tokens * per_token
    return Work(
        flop=2.0 * rows * inputs * outputs,
        weights=weight_bytes * inputs * outputs * expected_distinct_experts(experts, per_token, tokens),
        activations=activation_bytes * rows * (inputs + outputs),
    )


def kv_write(tokens: Number, *, kv_elements: Number, activation_bytes: float = 2.0, kv_bytes: float = 2.0) -> Work:
    """New keys and values (2 K d elements a token) read as activations and written to the cache."""
    return Work(
        flop=0.0,
        kv=kv_bytes * tokens * kv_elements,
        activations=activation_bytes * tokens * kv_elements,
    )


def norm(tokens: Number, width: Number, *, fused_add: bool = False, activation_bytes: float = 2.0) -> Work:
    """A norm reads and writes T h; with the residual added it reads and writes that too (2 T h, 4 T h)."""
    per_element = NORM_FLOP_PER_ELEMENT + (1.0 if fused_add else 0.0)
    return Work(
        flop=per_element * tokens * width,
        activations=activation_bytes * tokens * width * (4.0 if fused_add else 2.0),
    )


def rope(tokens: Number, width: Number, *, activation_bytes: float = 2.0) -> Work:
    """Rotation of ``width`` query and key elements a token, in place."""
    return Work(flop=ROPE_FLOP_PER_ELEMENT * tokens * width, activations=activation_bytes * 2.0 * tokens * width)


def activation(tokens: Number, width: Number, *, gated: bool = True, activation_bytes: float = 2.0) -> Work:
    """SiLU(gate) * up: reads 2 T I, writes T I (3 T I); without a gate 2 T I."""
    return Work(
        flop=(ACTIVATION_FLOP_PER_ELEMENT if gated else ACTIVATION_FLOP_PER_ELEMENT - 1) * tokens * width,
        activations=activation_bytes * tokens * width * (3.0 if gated else 2.0),
    )


def embedding(tokens: Number, hidden: int, *, weight_bytes: float = 2.0, activation_bytes: float = 2.0) -> Work:
    """One row of the table read and written per token: the table is not streamed."""
    return Work(flop=0.0, weights=weight_bytes * tokens * hidden, activations=activation_bytes * tokens * hidden)
