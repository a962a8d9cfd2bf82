"""Lengths of the live requests, booked from step to step: which prompts have joined the decoding batch, how long each is.

Steps tell only counts: so many requests decode, so many prompt tokens are prefilled. From step to step that decides
which chunks were one prompt (the batch grew by one) and which were several (it grew by as many). When requests finish
nothing says which, so the lengths are booked twice: in ``low`` the longest finish first, in ``high`` the shortest.
Sorted, the true lengths lie between the two, element by element.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class PromptChunk:
    """The prefill part of one step."""

    row: int
    tokens: float
    requests: float
    finished: float | None  # prompts whose last token it held; None = cannot be seen


@dataclass(frozen=True)
class KnownPrompt:
    """What became known of one step's prefill: KV length after it, and whether it was one request's alone."""

    row: int
    tokens: float
    length: float
    single: bool = True


@dataclass
class RequestLengths:
    """What is known of the requests of one group between two steps."""

    low: Floats = field(default_factory=lambda: np.zeros(0))
    high: Floats = field(default_factory=lambda: np.zeros(0))
    live: int = 0  # requests that decoded in the last decode-bearing step
    chunks: list[PromptChunk] = field(default_factory=list)  # prefilled, not yet seen decoding
    known: bool = True  # whether ``low`` and ``high`` hold every live request
    split_known: bool = True  # false: some lengths are known only in sum, so a finish loses the level
    resolved: list[KnownPrompt] = field(default_factory=list)

    @property
    def sum_bounds(self) -> tuple[float, float] | None:
        """Least and most sum of lengths of the decoding requests, None = unknown."""
        if not self.known:
            return None
        return float(self.low.sum()), float(self.high.sum())

    def forget(self) -> None:
        """A step in between could not be read: the level is lost until every live request is a new one."""
        self.known = False
        self.chunks = []

    def prefill(self, chunk: PromptChunk) -> None:
        """Admit the prompt tokens of a step."""
        self.chunks.append(chunk)

    def decode(self, requests: int, tokens: float, *, has_prefill: bool) -> None:
        """A step decodes ``requests`` requests; ``has_prefill``: it prefills too, so a prompt may be unfinished."""
        joined = self._joined(requests, has_prefill=has_prefill)
        if joined is None:  # which prompts ended cannot be told
            self.forget()
            joined = 0
        finished = self.live + joined - requests
        if not self.known and joined == requests and self.chunks:
            self.known, self.split_known = True, True  # only new requests decode: all others have finished
            self.low = self.high = np.zeros(0)
        elif finished > 0 and self.known:
            self._finish(finished)  # among those that were there: the new ones are here
        if joined:
            self._join(joined, everything=not has_prefill)
        if len(self.low) != requests:
            self.known = False
        if not has_prefill:
            self.chunks = []
        self.live = requests
        if tokens != requests:
            self.known = False  # drafts: how many were accepted is not recorded
        if self.known:
            self.low, self.high = self.low + 1.0, self.high + 1.0
        else:  # nothing is read of them until the level is known anew, and a long capture would pile them up
            self.low = self.high = np.zeros(0)

    def close(self) -> None:
        """The capture ends: prompts never seen decoding, whole within one step, still have their lengths.

        A prompt that may have gone on into the next step is left alone: nothing confirms where it ended.
        """
        whole = [chunk.finished == chunk.requests for chunk in self.chunks]
        for at, chunk in enumerate(self.chunks):
            if whole[at] and (at == 0 or whole[at - 1]):
                self.resolved.append(KnownPrompt(chunk.row, chunk.tokens, chunk.tokens, single=chunk.requests == 1))

    def _joined(self, requests: int, *, has_prefill: bool) -> int | None:
        """How many prompts among the chunks decode for the first time in this step; None where it cannot be told."""
        if not self.chunks:
            return 0
        most = int(sum(chunk.requests for chunk in self.chunks))
        if all(chunk.finished is not None for chunk in self.chunks):
            return min(int(sum(chunk.finished or 0.0 for chunk in self.chunks)), most)
        if not has_prefill and len(self.chunks) == 1:
            return most  # every prompt of the step before is complete
        grown = requests - self.live
        if grown == most or (self.live == 0 and 0 < grown < most):
            return grown
        return None

    def _join(self, joined: int, *, everything: bool) -> None:
        if all(chunk.requests == 1 for chunk in self.chunks):
            lengths = self._split_singles(joined)
            if lengths is not None:
                self._add(lengths)
                return
        if not everything or len(self.chunks) > 1:
            self.forget()  # prompts that ended shared a step with one that goes on: how they split is not known
            return
        only = self.chunks[0]
        self.resolved.append(KnownPrompt(only.row, only.tokens, only.tokens, single=False))
        self.split_known = self.split_known and joined == 1
        self._add([only.tokens / joined] * joined)
        self.chunks = []

    def _split_singles(self, joined: int) -> list[float] | None:
        """Lengths of the prompts that single-request chunks form, or None where the split is not determined."""
        ends = [chunk.finished for chunk in self.chunks]
        if all(end is not None for end in ends):
            is_end = [bool(end) for end in ends]
        elif joined == len(ends):
            is_end = [True] * len(ends)
        elif joined == 1:
            is_end = [False] * (len(ends) - 1) + [True]
        else:
            return None
        lengths, length, left = [], 0.0, []
        for chunk, end in zip(self.chunks, is_end, strict=True):
            length += chunk.tokens
            self.resolved.append(KnownPrompt(chunk.row, chunk.tokens, length))
            left.append(chunk)
            if end:
                lengths.append(length)
                length, left = 0.0, []
        self.chunks = left
        return lengths

    def _add(self, lengths: list[float]) -> None:
        self.low = np.append(self.low, lengths)
        self.high = np.append(self.high, lengths)

    def _finish(self, finished: int) -> None:
        left = len(self.low) - finished
        if left > 0 and not self.split_known:
            self.known = False
            return
        self.low = np.sort(self.low)[: max(left, 0)]
        self.high = np.sort(self.high)[finished:]
        if left == 0:
            self.split_known = True
