"""The log's side: messages of the requests that can be laid on steps, as flat columns.

A request's messages are a chain: after its first token every decode-bearing step brings it one token, so a message's place
in the chain is known though its step is not. What one message advances the chain by is a hypothesis: one step per message
('message': also speculative decoding, several tokens a step), or one step per token ('token': stream intervals).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from ...ingest.client_logs.records import ClientLog
from .steps import Flags, Floats, Ints


@dataclass(frozen=True)
class Messages:
    """Messages of a log, ordered by request, then time.

    ``row``: row of the request in ``log.requests``; ``at_ns``: on the log's clock less ``zero_ns`` (since sending where the
    log has no start times); ``tokens`` 0 = unknown; ``place``: position in the chain, 0 = the first message.
    ``strict``: the chain is certain under the hypothesis (False: how many steps a message covers is not known).
    ``complete``: all requests of the log are here, so that streams of a step can be counted.
    """

    zero_ns: int
    row: Ints
    at_ns: Floats
    tokens: Ints
    place: Ints
    strict: Flags
    hypothesis: str
    complete: bool = True

    @property
    def is_first(self) -> Flags:
        """The messages with a request's first token."""
        return np.equal(self.place, 0)

    def trusted(self) -> Messages:
        """The same with every chain taken for certain."""
        return replace(self, strict=np.ones(len(self.row), dtype=bool))

    def only(self, keep: Flags) -> Messages:
        """Some of the messages."""
        if keep.all():
            return self
        return Messages(self.zero_ns, self.row[keep], self.at_ns[keep], self.tokens[keep], self.place[keep], self.strict[keep], self.hypothesis, False)  # fmt: skip


def messages_of(log: ClientLog, hypothesis: str) -> Messages:
    """The messages of all requests that did not fail, under a hypothesis ('message' or 'token')."""
    requests = log.requests
    counts = requests["message_count"].cast(pl.Int64).fill_null(0).to_numpy().copy()
    counts[requests["failed"].to_numpy()] = 0
    first = requests["first_message"].fill_null(0).to_numpy()
    row = np.repeat(np.arange(len(counts)), counts)
    place = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    source = np.repeat(first, counts) + place
    after = log.messages["after_ns"].to_numpy()[source]
    tokens = log.messages["tokens"].cast(pl.Int64).fill_null(0).to_numpy()[source]
    tokens = _stream_interval(tokens, requests["output_tokens"].cast(pl.Float64).to_numpy()[row], place, counts[row])
    sent = requests["sent_ns"]
    zero = int(sent.min() or 0) if log.has_starts else 0  # type: ignore[arg-type]
    since = sent.fill_null(zero).to_numpy() - zero if log.has_starts else np.zeros(len(counts), dtype=np.int64)
    at = (since[row] + after).astype(np.float64)
    known = tokens > 0
    if hypothesis == "token":
        steps = np.where(place == 0, 0, np.where(known, tokens, 1))
        total = np.cumsum(steps)
        begin = np.repeat(np.cumsum(counts) - counts, counts)
        place = total - total[begin] if len(total) else total
    whole = np.bincount(row, weights=~known, minlength=len(counts)) == 0
    return Messages(zero, row, at, tokens, place, whole[row], hypothesis)


def _stream_interval(tokens: Ints, output: Floats, place: Ints, count: Ints) -> Ints:
    """Tokens per message where a file does not say but all requests fit one stream interval: 1, k, k, ..., rest."""
    unknown = tokens == 0
    if not unknown.any() or np.isnan(output[unknown]).any():
        return tokens
    first = unknown & (place == 0)
    long = first & (count >= 3)
    if not long.any():
        return tokens
    interval = int(np.ceil(np.max((output[long] - 1) / (count[long] - 1))))
    fits = count[first] == 1 + np.ceil(np.maximum(output[first] - 1, 0) / max(interval, 1))
    if interval < 1 or not fits.all():
        return tokens
    rest = output - 1 - interval * (count - 2)
    filled = np.where(place == 0, 1, np.where(place == count - 1, rest, interval)).astype(np.int64)
    return np.where(unknown, filled, tokens)


def hypotheses(log: ClientLog) -> tuple[str, ...]:
    """The hypotheses worth trying: one where every message is known to hold one token, else both."""
    tokens = log.messages["tokens"]
    if not len(tokens) or (tokens.null_count() == 0 and tokens.max() == 1):
        return ("message",)
    return ("message", "token")
