"""The matrix that stands at each place of a layer, as one tensor-parallel rank holds it.

Column-parallel matrices (qkv, gate_up, lm_head) divide their outputs, row-parallel ones (o, down) their inputs; the
router and MLA's down-projections are replicated; a rank holds at least one kv head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...models.model_shape import ModelShape


@dataclass(frozen=True)
class Matrix:
    """``outputs`` x ``inputs`` weights of one rank; ``grouped`` = one such matrix per expert."""

    inputs: float  # K
    outputs: float  # N
    grouped: bool = False
    per_head: int = 0  # MLA's absorbed GEMMs: so many small matrices of inputs x outputs


@dataclass(frozen=True)
class RankShape:
    """A model and the share of it that one rank computes."""

    model: ModelShape
    tensor_parallel: int = 1

    @property
    def heads(self) -> float:
        """Query heads of this rank."""
        return self.model.heads / self.tensor_parallel

    @property
    def kv_heads(self) -> float:
        """KV heads of this rank: never less than one, so they are replicated beyond K ranks."""
        return max(1.0, self.model.kv_heads / self.tensor_parallel)

    @property
    def kv_elements(self) -> float:
        """Cached elements of one token in one layer on this rank; MLA's latent is replicated."""
        m = self.model
        return m.kv_lora_rank + m.qk_rope_head_dim if m.is_mla else 2.0 * self.kv_heads * m.head_dim


def _q_width(r: RankShape) -> float:
    m = r.model
    return r.heads * (m.qk_nope_head_dim + m.qk_rope_head_dim if m.is_mla else m.head_dim)


def _kv_width(r: RankShape) -> float:
    return r.kv_heads * r.model.head_dim


def _mlp(r: RankShape, width: int) -> float:
    return width / r.tensor_parallel


_ORDINARY: dict[str, Callable[[RankShape], Matrix]] = {
    "qkv": lambda r: Matrix(r.model.hidden, _q_width(r) + 2 * _kv_width(r)),
    "k": lambda r: Matrix(r.model.hidden, _kv_width(r)),
    "v": lambda r: Matrix(r.model.hidden, _kv_width(r)),
    "kv": lambda r: Matrix(r.model.hidden, 2 * _kv_width(r)),
    "o": lambda r: Matrix(r.heads * r.model.head_dim, r.model.hidden),
}
_LATENT: dict[str, Callable[[RankShape], Matrix]] = {
    "q_a": lambda r: Matrix(r.model.hidden, r.model.q_lora_rank),
    "kv_a": lambda r: Matrix(r.model.hidden, r.model.kv_lora_rank + r.model.qk_rope_head_dim),
    "qkv_a": lambda r: Matrix(r.model.hidden, r.model.q_lora_rank + r.model.kv_lora_rank + r.model.qk_rope_head_dim),
    "q_b": lambda r: Matrix(r.model.q_lora_rank, _q_width(r)),
    "kv_b": lambda r: Matrix(r.model.kv_lora_rank, r.heads * (r.model.qk_nope_head_dim + r.model.v_head_dim)),
    "absorb_q": lambda r: Matrix(r.model.qk_nope_head_dim, r.model.kv_lora_rank, per_head=round(r.heads)),
    "absorb_o": lambda r: Matrix(r.model.kv_lora_rank, r.model.v_head_dim, per_head=round(r.heads)),
    "o": lambda r: Matrix(r.heads * r.model.v_head_dim, r.model.hidden),
}
_EVERYWHERE: dict[str, Callable[[RankShape], Matrix]] = {
    "q": lambda r: Matrix(r.model.hidden, _q_width(r)),
    "gate_up": lambda r: Matrix(r.model.hidden, r.model.mlp_matrices * _mlp(r, r.model.intermediate)),
    "gate": lambda r: Matrix(r.model.hidden, _mlp(r, r.model.intermediate)),
    "up": lambda r: Matrix(r.model.hidden, _mlp(r, r.model.intermediate)),
    "down": lambda r: Matrix(_mlp(r, r.model.intermediate), r.model.hidden),
    "lm_head": lambda r: Matrix(r.model.hidden, r.model.vocab / r.tensor_parallel),
}
_EXPERTS: dict[str, Callable[[RankShape], Matrix]] = {
    "router": lambda r: Matrix(r.model.hidden, r.model.experts),
    "expert_gate_up": lambda r: Matrix(r.model.hidden, r.model.mlp_matrices * _mlp(r, r.model.moe_intermediate), True),
    "expert_down": lambda r: Matrix(_mlp(r, r.model.moe_intermediate), r.model.hidden, True),
}
_SHARED: dict[str, Callable[[RankShape], Matrix]] = {
    "shared_gate": lambda r: Matrix(r.model.hidden, 1),
    "shared_gate_up": lambda r: Matrix(r.model.hidden, r.model.mlp_matrices * _mlp(r, r.model.shared_intermediate)),
    "shared_down": lambda r: Matrix(_mlp(r, r.model.shared_intermediate), r.model.hidden),
}


def rank_matrices(rank: RankShape) -> dict[str, Matrix]:
    """The matrices this model has, by place, as one rank holds them."""
    model = rank.model
    makers = dict(_EVERYWHERE)
    makers.update(_LATENT if model.is_mla else _ORDINARY)
    if model.experts:
        makers.update(_EXPERTS)
        if model.shared_intermediate:
            makers.update(_SHARED)
    return {place: make(rank) for place, make in makers.items()}


def places_of_shape(rank: RankShape, outputs: int, inputs: int) -> tuple[str, ...]:
    """Places whose matrix on this rank is ``outputs`` x ``inputs``, in the order of a layer."""
    return tuple(
        place
        for place, matrix in rank_matrices(rank).items()
        if round(matrix.outputs) == outputs and round(matrix.inputs) == inputs
    )
