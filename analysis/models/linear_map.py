"""One kind of weight matrix of a model, and how many parameters it holds."""

from __future__ import annotations

from dataclasses import dataclass


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
