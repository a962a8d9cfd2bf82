"""KV-cache lengths of each step: what markers say, what the capture's own prompts imply, else unknown.

A capture seldom records lengths. But a request whose prompt was prefilled inside the capture has a known length: its
prompt and one token per step since. While every decoding request is such a one, the sum over requests is known
(``tracked``). Prompts served from a prefix cache are longer than the tokens computed for them; a capture without
length markers cannot show that.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from ..operators.formulas import windowed_pairs
from .request_ledger import Chunk, Ledger

Floats = npt.NDArray[np.float64]

TRACKED_SPREAD = 0.01  # widest relative distance of the two bookings at which a sum still counts as tracked

_COLUMNS = (
    *("prefill_tokens", "decode_tokens", "prefill_requests", "decode_requests", "prompts_finished"),
    *("kv_tokens", "prefill_kv_tokens", "prefill_qk", "prefill_qq"),
)


@dataclass(frozen=True)
class KvLengths:
    """Per row of steps; NaN = unknown. ``*_window_*`` are under the model's sliding window (NaN without one)."""

    decode_sum: Floats  # sum over decoding requests of S_i, after the step
    decode_window_sum: Floats
    prefill_sum: Floats
    prefill_qk: Floats  # sum of q_i S_i
    prefill_qq: Floats  # sum of q_i^2
    prefill_window_sum: Floats  # cached tokens the prefill's rows can see
    prefill_window_pairs: Floats  # causal pairs
    source: list[str | None]

    @property
    def known(self) -> bool:
        """Whether any step with decoding requests has a known length."""
        return bool(np.nansum(self.decode_sum) > 0)


class _Sums:
    """Output columns under construction."""

    def __init__(self, rows: int) -> None:
        self.decode, self.decode_window = np.full(rows, np.nan), np.full(rows, np.nan)
        self.prefill, self.qk, self.qq = (np.full(rows, np.nan) for _ in range(3))
        self.prefill_window, self.pairs = np.full(rows, np.nan), np.full(rows, np.nan)
        self.source: list[str | None] = [None] * rows

    def set_prefill(self, row: int, tokens: float, length: float, window: int | None) -> None:
        """One request that prefills ``tokens`` and is ``length`` long afterwards."""
        self.prefill[row], self.qk[row], self.qq[row] = length, tokens * length, tokens * tokens
        if window:
            self.prefill_window[row] = min(length, tokens + window - 1)
            self.pairs[row] = float(windowed_pairs(tokens, length, window))


def kv_lengths(steps: pl.DataFrame, window: int | None = None) -> KvLengths:
    """Lengths for every row of ``steps`` (STEPS); the ranks of a group share what its first device shows."""
    sums = _Sums(steps.height)
    columns = {name: np.array(steps[name].cast(pl.Float64).to_numpy(), np.float64) for name in _COLUMNS}
    phase = steps["phase"].cast(pl.String).to_list()
    skip = (steps["excluded"].fill_null(False) | (steps["phase"] == "other")).to_numpy()
    rows = steps.select("group", "index", "device_index").with_row_index("row")
    first = rows.sort("group", "index", "device_index").unique(["group", "index"], keep="first", maintain_order=True)
    for group in first.partition_by("group", maintain_order=True):
        ledger = Ledger()
        for row in group["row"].to_list():
            if not skip[row]:
                values = {name: float(column[row]) for name, column in columns.items()}
                _advance(ledger, values, phase[row], window, sums, row)
        ledger.close()
        for prompt in ledger.resolved:
            sums.set_prefill(prompt.row, prompt.tokens, prompt.length, window if prompt.single else None)
            if not prompt.single:  # how the tokens split over the requests is not known, only their sum
                sums.qk[prompt.row] = sums.qq[prompt.row] = np.nan
    for row in first["row"].to_list():
        if not skip[row]:
            _overrule(sums, {name: float(column[row]) for name, column in columns.items()}, phase[row], window, row)
    taken = rows.join(first.select("group", "index", first="row"), on=["group", "index"], maintain_order="left")
    take = taken["first"].to_numpy()
    return KvLengths(
        decode_sum=sums.decode[take],
        decode_window_sum=sums.decode_window[take],
        prefill_sum=sums.prefill[take],
        prefill_qk=sums.qk[take],
        prefill_qq=sums.qq[take],
        prefill_window_sum=sums.prefill_window[take],
        prefill_window_pairs=sums.pairs[take],
        source=[sums.source[row] for row in take],
    )


def _advance(ledger: Ledger, v: dict[str, float], phase: str, window: int | None, sums: _Sums, row: int) -> None:
    """Move the ledger over one step and write what it knows of its decoding requests."""
    prefills = phase != "decode" and v["prefill_tokens"] != 0
    decodes = phase != "prefill" and v["decode_requests"] != 0
    if phase == "unknown" or (decodes and np.isnan(v["decode_requests"])):
        ledger.forget()
        return
    if decodes:
        ledger.decode(int(v["decode_requests"]), v["decode_tokens"], has_prefill=prefills)
        bounds = ledger.bounds
        if bounds is not None and bounds[1] - bounds[0] <= TRACKED_SPREAD * bounds[1]:
            sums.decode[row] = sum(bounds) / 2.0
            if window and ledger.split_known:
                sums.decode_window[row] = float(np.minimum((ledger.low + ledger.high) / 2.0, window).sum())
    else:
        sums.decode[row] = sums.decode_window[row] = 0.0
    if not prefills:
        sums.prefill[row] = sums.qk[row] = sums.qq[row] = sums.prefill_window[row] = sums.pairs[row] = 0.0
    elif np.isnan(v["prefill_tokens"]) or np.isnan(v["prefill_requests"]):
        ledger.forget()
    else:
        finished = None if np.isnan(v["prompts_finished"]) else v["prompts_finished"]
        ledger.prefill(Chunk(row, v["prefill_tokens"], v["prefill_requests"], finished))


def _overrule(sums: _Sums, v: dict[str, float], phase: str, window: int | None, row: int) -> None:
    """Lengths in the marker's own text beat the ledger."""
    for own, marked in ((sums.qk, "prefill_qk"), (sums.qq, "prefill_qq")):
        if not np.isnan(v[marked]):
            own[row] = v[marked]
    if np.isnan(v["kv_tokens"]):
        known = not np.isnan(sums.decode[row] + sums.prefill[row])
        sums.source[row] = "tracked" if known else None
        return
    prefill_kv = {"decode": 0.0, "prefill": v["kv_tokens"]}.get(phase, v["prefill_kv_tokens"])
    sums.prefill[row] = prefill_kv
    sums.decode[row] = v["kv_tokens"] - prefill_kv
    sums.source[row] = "marker"
    if window and np.isnan(sums.decode_window[row]) and sums.decode[row] <= window:
        sums.decode_window[row] = sums.decode[row]  # every request is inside the window


def padded_prefill(steps: pl.DataFrame) -> pl.Series:
    """Steps whose prompt tokens are not known but for the size that their graphs were padded to."""
    prefills = pl.col("phase").cast(pl.String).is_in(["prefill", "mixed"]) & pl.col("graph_id").is_not_null()
    return steps.select(
        prefills & pl.col("prefill_tokens").is_null() & pl.col("padded_tokens").is_not_null()
    ).to_series()


def fill_steps(steps: pl.DataFrame, lengths: KvLengths) -> pl.DataFrame:
    """``steps`` with the KV columns filled where the marker left them null and the ledger knows."""

    def column(name: str, values: Floats) -> pl.Expr:
        kind: object = steps.schema[name]
        known = pl.Series(name, values).fill_nan(None)
        own = known.round(0).cast(kind) if kind == pl.Int64 else known
        return pl.coalesce(pl.col(name), pl.lit(own)).alias(name)

    return steps.with_columns(
        column("kv_tokens", lengths.decode_sum + lengths.prefill_sum),
        column("prefill_kv_tokens", lengths.prefill_sum),
        column("prefill_qk", lengths.prefill_qk),
        column("prefill_qq", lengths.prefill_qq),
        pl.Series("kv_tokens_source", lengths.source, dtype=pl.String),
    )
