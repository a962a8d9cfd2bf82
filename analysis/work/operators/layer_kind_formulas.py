"""FLOPs and least bytes of the operators that only layers of other kinds than attention and MLP have.

Conventions as in ``formulas``. A state-space or linear-attention layer keeps, for each request, the last inputs of a
short convolution and a recurrent state: its cache, which does not grow. It is read and written once per step, so its
bytes follow the number of requests, not the context. ``flop`` is that of the exact recurrence (useful); prefill kernels
work in chunks of C tokens and execute more, which ``executed`` gives.

Symbols: T tokens, H heads, P (or d) their width, G groups, N state, C chunk, k taps of the convolution, q new tokens of
a request and S its length after the step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...models.layer_kinds import GatedDelta, KimiDelta, Lightning, Mamba1, Mamba2, Reach, Recurrent, ShortConv
from .formulas import windowed_pairs

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Batch:
    """The requests of one step: ``queries`` new tokens and ``lengths`` after the step of each; ``phase`` of them all."""

    queries: Floats
    lengths: Floats
    phase: str  # 'prefill' | 'decode'

    @classmethod
    def of(cls, queries: npt.ArrayLike, lengths: npt.ArrayLike, phase: str) -> Batch:
        """A batch of plain lists."""
        return cls(np.asarray(queries, np.float64), np.asarray(lengths, np.float64), phase)

    @property
    def decodes(self) -> bool:
        """Whether its tokens are decoded (one, or a few to verify, per request)."""
        return self.phase == "decode"

    @property
    def tokens(self) -> float:
        """New tokens."""
        return float(self.queries.sum())

    @property
    def requests(self) -> int:
        """Requests."""
        return len(self.queries)

    @property
    def continued(self) -> float:
        """Requests that had a state or cache before this step."""
        return float((self.lengths > self.queries).sum())

    @property
    def states_written(self) -> float:
        """Times a request's state is written: once; after each token where drafts are verified."""
        return self.tokens if self.decodes else float(self.requests)


@dataclass(frozen=True)
class Seen:
    """What attention looks at in one layer: query-key pairs, and cached tokens that must be read."""

    pairs: float
    tokens: float


def causal_pairs_of(batch: Batch) -> float:
    """Query-key pairs of exact causal attention over everything: sum of q S - (q^2 - q) / 2."""
    q, length = batch.queries, batch.lengths
    return float((q * length - (q * q - q) / 2.0).sum())


def seen(reach: Reach, batch: Batch) -> Seen:
    """Pairs and cached tokens under a layer's reach.

    ``selected``: a query takes min(n, selected); the rows that the queries of a prompt choose differ, so at most all
    cached ones are read, and no row twice.
    """
    q, length = batch.queries, batch.lengths
    if reach.window:
        within = np.minimum(length, q + reach.window - 1)
        return Seen(float(np.sum(windowed_pairs(q, length, reach.window))), float(within.sum()))
    if reach.chunk:
        pairs = _chunk_pairs(length, reach.chunk) - _chunk_pairs(length - q, reach.chunk)
        first = np.floor((length - q) / reach.chunk) * reach.chunk  # where the chunk of the first new token begins
        return Seen(float(pairs.sum()), float((length - first).sum()))
    if reach.selected:
        chosen = np.asarray(windowed_pairs(q, length, reach.selected))
        return Seen(float(chosen.sum()), float(np.minimum(length, chosen).sum()))
    return Seen(causal_pairs_of(batch), float(length.sum()))


def _chunk_pairs(length: Floats, chunk: int) -> Floats:
    """Pairs of all positions below ``length``: position p sees p mod C + 1 keys."""
    whole, rest = np.floor(length / chunk), np.mod(length, chunk)
    return np.asarray(whole * chunk * (chunk + 1) / 2.0 + rest * (rest + 1) / 2.0)


def compressed_rows(batch: Batch, ratio: int, top: int | None = None) -> Seen:
    """Rows of a compressed cache: a query at length n sees floor(n / ratio) of them, at most ``top``."""
    q, length = batch.queries, batch.lengths
    pairs = _rows_below(length, ratio, top) - _rows_below(length - q, ratio, top)
    return Seen(float(pairs.sum()), float(np.minimum(np.floor(length / ratio), pairs).sum()))


def _rows_below(length: Floats, ratio: int, top: int | None) -> Floats:
    """Sum over n = 1 .. length of min(floor(n / ratio), top)."""
    last = length if top is None else np.minimum(length, ratio * top - 1)
    full = np.floor(last / ratio)
    rows = ratio * full * (full - 1) / 2.0 + full * (last - ratio * full + 1)
    return np.asarray(rows if top is None else rows + (length - last) * top)


def recurrence_flop(part: Recurrent) -> float:
    """FLOPs of one token in the exact recurrence of one layer.

    Per element of the state - Mamba-2: decay, outer product and add (3), C S (2) = 5; gated delta rule and KDA: decay 1,
    k S 2, rank-1 update 2, q S 2 = 7; lightning: decay 1, update 2, q S 2 = 5; Mamba-1: 9, its exponential included.
    """
    per_element = {Mamba2: 5.0, GatedDelta: 7.0, KimiDelta: 7.0, Lightning: 5.0, Mamba1: 9.0, ShortConv: 0.0}
    return per_element[type(part)] * part.state_elements


def chunked_flop(part: Recurrent) -> float:
    """FLOPs of one token as prefill kernels execute them, in chunks of C tokens.

    Delta rules, per head: 6 dk dv + 2 C (3 dk + 2 dv) + C^2 / 3 (its inverse). Mamba-2: H (2 C P + 4 P N) + 2 G C N.
    Lightning, per head: 4 C d + 4 d d. Mamba-1 scans token by token.
    """
    if isinstance(part, GatedDelta):
        return part.value_heads * _delta_chunk(part.key_dim, part.value_dim, part.chunk)
    if isinstance(part, KimiDelta):
        return part.heads * _delta_chunk(part.head_dim, part.head_dim, part.chunk)
    if isinstance(part, Mamba2):
        head = 2.0 * part.chunk * part.head_dim + 4.0 * part.head_dim * part.state
        return part.heads * head + 2.0 * part.groups * part.chunk * part.state
    if isinstance(part, Lightning):
        return part.heads * (4.0 * part.chunk * part.head_dim + 4.0 * part.head_dim**2)
    return recurrence_flop(part)


def _delta_chunk(keys: int, values: int, chunk: int) -> float:
    return 6.0 * keys * values + 2.0 * chunk * (3 * keys + 2 * values) + chunk * chunk / 3.0


def recurrence_elements(part: Recurrent) -> float:
    """Activations of one token that the recurrence reads and writes: its inputs and its output.

    Delta rule: q, k, v, output = 2 K + 2 V. KDA: also the decay of every channel and beta. Mamba-2: x and output 2 d, B
    and C 2 G N, dt H. Mamba-1: x, dt, output 3 d, B and C. Lightning: q, k, v, output.
    """
    if isinstance(part, GatedDelta):
        return 2.0 * part.key_width + 2.0 * part.value_width
    if isinstance(part, KimiDelta):
        return 5.0 * part.width + part.heads
    if isinstance(part, Mamba2):
        return 2.0 * part.width + 2.0 * part.groups * part.state + part.heads
    if isinstance(part, Mamba1):
        return 3.0 * part.width + 2.0 * part.state
    return 4.0 * part.width if isinstance(part, Lightning) else 0.0


def chunk_state_bytes(part: Recurrent, batch: Batch) -> float:
    """Bytes that prefill kernels write, and read again, of states between chunks: traffic beyond the least.

    Delta rules keep one 16-bit state per chunk and head, written once and read once; Mamba-2 fp32 states, moved three
    times beyond that (written, passed on, read).
    """
    if isinstance(part, GatedDelta | KimiDelta):
        return float(np.ceil(batch.queries / part.chunk).sum()) * part.state_elements * 2.0 * 2.0
    if isinstance(part, Mamba2):
        return float(np.ceil(batch.queries / part.chunk).sum()) * part.state_elements * 4.0 * 4.0
    return 0.0
