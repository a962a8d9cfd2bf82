"""The one record behind all client logs: requests and the messages that brought their tokens.

Times are int64 ns of the log's own clock; what a file does not say is null, never 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from ...analysis.records.trace import Schema, check

#: 'monotonic' and 'wall': absolute times of that clock; 'unknown': times that share a zero nobody states;
#: 'none': durations only, requests stand in no relation to each other.
CLOCKS = ("monotonic", "wall", "unknown", "none")

REQUESTS: Schema = {
    "request": pl.Int32,  # place in the file's order of issue
    "sent_ns": pl.Int64,  # null: the file has no start times
    "prompt_tokens": pl.Int32,
    "cached_tokens": pl.Int32,  # of the prompt, found in the engine's cache
    "output_tokens": pl.Int32,
    "failed": pl.Boolean,
    "warmup": pl.Boolean,
    "cancelled": pl.Boolean,
    "client_queue_ns": pl.Int64,  # wait inside the client, before sent_ns
    "scheduled_ns": pl.Int64,  # first step began, as the engine says, on the log's clock
    "last_token_ns": pl.Int64,  # where the file holds no messages after the first
    "first_step": pl.Int64,  # the engine's number of the step that made the first token
    "last_step": pl.Int64,
    "first_message": pl.Int64,  # row in ``messages`` of the first one
    "message_count": pl.Int32,
}
MESSAGES: Schema = {  # ordered by request, then time; the first message of a request brings its first token
    "after_ns": pl.Int64,  # since the request was sent
    "tokens": pl.Int32,  # null: the file does not say
}
ITERATIONS: Schema = {  # steps as the engine logged them
    "iteration": pl.Int64,
    "prefill_requests": pl.Int32,
    "prefill_tokens": pl.Int32,
    "decode_requests": pl.Int32,
    "elapsed_ms": pl.Float64,
}


@dataclass(frozen=True)
class ClientLog:
    """One client's (or engine's) log.

    ``itl_as_recorded_ns`` are the gaps exactly as the file has them (spread ones too), so that a user finds his own
    percentile again. ``all_messages``: whether every message of a request is there, not only its first. ``lacking``:
    what the file does not hold and which option of the program writes it, '' where nothing is missing.
    """

    source: str  # the format: 'vllm', 'sglang', 'aiperf', ...
    file_name: str  # without its folder
    clock: str  # one of CLOCKS
    requests: pl.DataFrame  # REQUESTS
    messages: pl.DataFrame  # MESSAGES
    iterations: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=dict(ITERATIONS)))
    itl_as_recorded_ns: npt.NDArray[np.float64] | None = None
    all_messages: bool = True
    lacking: str = ""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.clock not in CLOCKS:
            raise ValueError(f"clock {self.clock!r} is none of {', '.join(CLOCKS)}")
        check(self.requests, REQUESTS, "requests")
        check(self.messages, MESSAGES, "messages")
        check(self.iterations, ITERATIONS, "iterations")

    @property
    def has_starts(self) -> bool:
        """Whether requests that succeeded say when they were sent."""
        good = self.requests.filter(~pl.col("failed"))
        return good.height > 0 and good["sent_ns"].null_count() < good.height


def requests_frame(columns: dict[str, Sequence[Any] | npt.NDArray[Any]]) -> pl.DataFrame:
    """REQUESTS from the columns a reader has; flags default to false, ``request`` to the row, others to null."""
    height = len(next(iter(columns.values()))) if columns else 0
    flags = {"failed", "warmup", "cancelled"}
    series = []
    for name, dtype in REQUESTS.items():
        if name in columns:
            series.append(pl.Series(name, columns[name], dtype=dtype, strict=False))
        elif name == "request":
            series.append(pl.Series(name, np.arange(height), dtype=dtype))
        else:
            series.append(pl.Series(name, [False if name in flags else None], dtype=dtype).new_from_index(0, height))
    return pl.DataFrame(series)


def messages_frame(after_ns: npt.NDArray[np.int64], tokens: npt.NDArray[np.int64] | None) -> pl.DataFrame:
    """MESSAGES; ``tokens`` None (or 0 in a place): not known."""
    frame = pl.DataFrame({"after_ns": after_ns}, schema_overrides={"after_ns": pl.Int64})
    if tokens is None:
        return frame.with_columns(pl.lit(None, dtype=pl.Int32).alias("tokens"))
    known = pl.Series("tokens", tokens, dtype=pl.Int32)
    return frame.with_columns(known.set(known == 0, None))


def first_rows(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Where each request's messages begin, from how many each has."""
    return np.cumsum(counts) - counts


def nanoseconds(seconds: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Seconds as whole ns."""
    return np.rint(seconds * 1e9).astype(np.int64)
