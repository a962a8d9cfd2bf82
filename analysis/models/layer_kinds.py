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

from .attention_kinds import EVERYTHING, Attention, BlockIndexer, CompressedAttention, Indexer, LatentAttention, Reach
from .linear_map import LinearMap
from .recurrent_kinds import RECURRENT, GatedDelta, KimiDelta, Lightning, Mamba1, Mamba2, Recurrent, ShortConv

__all__ = [
    "EVERYTHING",
    "RECURRENT",
    "Attention",
    "BlockIndexer",
    "CompressedAttention",
    "Experts",
    "GatedDelta",
    "Indexer",
    "KimiDelta",
    "LatentAttention",
    "LayerGroup",
    "Lightning",
    "LinearMap",
    "Mamba1",
    "Mamba2",
    "Mlp",
    "Part",
    "Reach",
    "Recurrent",
    "ShortConv",
    "UnknownPart",
    "group_layers",
    "unknown_kinds",
]


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


Part: TypeAlias = "Attention | LatentAttention | CompressedAttention | Recurrent | Mlp | Experts | UnknownPart"


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
    same: dict[tuple[int, ...], list[int]] = {}  # by the parts' identity, which spares comparing them field by field
    for layer, (parts, norms) in enumerate(layers):
        identity = (norms, *map(id, parts))
        if identity not in same:
            same[identity] = found.setdefault((parts, norms), [])
        same[identity].append(layer)
    return tuple(LayerGroup(tuple(numbers), parts, norms) for (parts, norms), numbers in found.items())


def unknown_kinds(groups: tuple[LayerGroup, ...]) -> dict[str, int]:
    """Layers by the name of the part in them that nobody knows."""
    counted: dict[str, int] = {}
    for group in groups:
        for part in group.parts:
            if isinstance(part, UnknownPart):
                counted[part.name] = counted.get(part.name, 0) + len(group.layers)
    return counted
