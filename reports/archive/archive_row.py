"""One row per file: the columns of ``runs.csv`` and ``runs.parquet``, declared once.

``state`` is one of ``analysed``, ``partial``, ``could not look``, ``unreadable``; ``reason`` says why where it is not
``analysed``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_type_hints

import polars as pl

from ...analysis.gates import GateResult, exit_code
from ...analysis.records.analysis import Analysis
from ...analysis.records.plain_values import clean
from ...analysis.records.record import Record

STATES = {"ok": "analysed", "partial": "partial", "could_not_look": "could not look"}
ANALYSED = ("analysed", "partial")


class ArchiveRow(Record, frozen=True, kw_only=True):
    """One file of an archive; its fields are the columns."""

    file: str
    state: str
    reason: str | None = None
    fingerprint: str | None = None
    duplicate_of: str | None = None
    report: str | None = None
    captured_utc_ns: int | None = None
    format: str | None = None
    product_version: str | None = None
    gpu_name: str | None = None
    devices: int | None = None
    model: str | None = None
    engine: str | None = None
    tensor_parallel: int | None = None
    verdict: str | None = None
    headline: str | None = None
    capture_ms: float | None = None
    window_ms: float | None = None
    gpu_busy_ms: float | None = None
    gpu_idle_ms: float | None = None
    kernel_count: int | None = None
    step_count: int | None = None
    prefill_ms: float | None = None
    decode_ms: float | None = None
    mixed_ms: float | None = None
    other_ms: float | None = None
    unknown_ms: float | None = None
    decode_steps: int | None = None
    decode_step_p50_ms: float | None = None
    decode_step_p95_ms: float | None = None
    decode_step_p99_ms: float | None = None
    inter_token_gap_p50_ms: float | None = None
    inter_token_gap_p99_ms: float | None = None
    inter_token_gap_max_ms: float | None = None
    decode_mbu_kernel_pct: float | None = None
    decode_mbu_wall_pct: float | None = None
    decode_mbu_is_lower_bound: bool | None = None
    prefill_mfu_kernel_pct: float | None = None
    prefill_mfu_wall_pct: float | None = None
    decode_tokens_per_s: float | None = None
    stall_count: int | None = None
    stall_ms: float | None = None
    stall_max_ms: float | None = None
    stall_pct_of_window: float | None = None
    stall_episode_count: int | None = None
    gate: str | None = None  # 'passed' | 'failed' | 'could not look', null without gates
    gate_detail: str | None = None
    key: str | None = None  # content, tool version and options: what --resume looks for
    profile: str | None = None  # the comparison profile as JSON, for `compare --baseline`; Parquet only


_COLUMN_TYPES: Mapping[object, type[pl.DataType]] = {
    str: pl.String, int: pl.Int64, float: pl.Float64, bool: pl.Boolean,
    str | None: pl.String, int | None: pl.Int64, float | None: pl.Float64, bool | None: pl.Boolean,
}  # fmt: skip
COLUMNS: Mapping[str, type[pl.DataType]] = {
    name: _COLUMN_TYPES[kind]
    for name, kind in get_type_hints(ArchiveRow).items()
    if name in ArchiveRow.__struct_fields__
}


_FROM_SUMMARY = (
    "headline", "capture_ms", "window_ms", "gpu_busy_ms", "gpu_idle_ms", "kernel_count", "step_count",
    "decode_mbu_kernel_pct", "decode_mbu_wall_pct", "decode_mbu_is_lower_bound", "prefill_mfu_kernel_pct",
    "prefill_mfu_wall_pct", "stall_count", "stall_ms", "stall_max_ms", "stall_pct_of_window",
    "stall_episode_count",
)  # fmt: skip


def as_text(text: str) -> str:
    """``text`` as every table and page takes it: bytes of a file name that are no UTF-8 read ``\\xff``."""
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # no bytes at all, as in names of Windows
        return text.encode("utf-8", "backslashreplace").decode("utf-8")


def refused_row(file: str, fingerprint: str | None, state: str, reason: str) -> ArchiveRow:
    """The row of a file that gave no analysis."""
    return ArchiveRow(file=file, fingerprint=fingerprint, state=state, reason=as_text(reason))


def analysed_row(
    file: str, fingerprint: str, analysis: Analysis, report: str, gates: list[GateResult], profile: str | None
) -> ArchiveRow:
    """The row of an analysed capture."""
    summary, facts, phases = analysis.summary, analysis.trace.capture, analysis.summary.phase_ms
    step, gap = summary.decode_step_ms, summary.inter_token_gap_ms
    tokens, window = summary.decode_tokens, summary.window_ms
    names = sorted({device.gpu_name for device in analysis.devices if device.gpu_name})
    return ArchiveRow(
        file=file,
        state=STATES[analysis.status],
        reason="; ".join(analysis.reasons) or None,
        fingerprint=fingerprint,
        report=report,
        captured_utc_ns=facts.session_start_utc_ns,
        format=facts.format,
        product_version=facts.product_version,
        gpu_name=", ".join(names) or None,
        devices=len(analysis.devices),
        model=analysis.model.get("name"),
        engine=analysis.trust.engine or facts.serving.engine,
        tensor_parallel=analysis.model.get("tensor_parallel"),
        verdict=analysis.trust.verdict,
        **{key: clean(summary[key]) for key in _FROM_SUMMARY},
        **{f"{phase}_ms": ms for phase, ms in phases.items()},
        decode_steps=step.n,
        **{f"decode_step_{q}_ms": step[q] for q in ("p50", "p95", "p99")},
        **{f"inter_token_gap_{q}_ms": gap[q] for q in ("p50", "p99", "max")},
        decode_tokens_per_s=tokens / window * 1e3 if tokens is not None and window else None,
        gate={0: "passed", 1: "failed", 3: "could not look"}[exit_code(gates)] if gates else None,
        gate_detail="; ".join(g.sentence for g in gates) if gates else None,
        profile=profile,
    )


def runs_frame(rows: Sequence[ArchiveRow], labels: Mapping[str, Sequence[str | None]]) -> pl.DataFrame:
    """All rows as one frame: ``file``, then a column for each label with a value a row, then the other columns."""
    files, *others = [
        pl.Series(name, [row.get(name) for row in rows], dtype, strict=False) for name, dtype in COLUMNS.items()
    ]
    told = [_numbers_where_all_are(pl.Series(name, values, pl.String)) for name, values in labels.items()]
    return pl.DataFrame([files, *told, *others])


def _numbers_where_all_are(column: pl.Series) -> pl.Series:
    """A label column as numbers where every value of it is one, so that trends sort by size."""
    numbers = column.cast(pl.Float64, strict=False)
    return numbers if numbers.null_count() == column.null_count() else column
