"""Layers whose memory of a request does not grow: state-space models, linear attention, short convolutions.

Each tells its weight matrices (``maps``), the parameters that are no matrix (``small``), the width of its convolution
and the elements of its recurrent state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from .linear_map import LinearMap


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


Recurrent: TypeAlias = "Mamba2 | Mamba1 | GatedDelta | KimiDelta | Lightning | ShortConv"
RECURRENT = (Mamba2, Mamba1, GatedDelta, KimiDelta, Lightning, ShortConv)
