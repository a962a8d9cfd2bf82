"""One row per file: the columns of ``runs.csv`` and ``runs.parquet``, declared once.

``state`` is one of ``analysed``, ``partial``, ``could not look``, ``unreadable``; ``reason`` says why where it is not
``analysed``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from ...analysis.gates import GateResult, exit_code
from ...analysis.records.analysis import Analysis
from ...analysis.records.plain_values import clean

STATES = {"ok": "analysed", "partial": "partial", "could_not_look": "could not look"}
ANALYSED = ("analysed", "partial")

COLUMNS: Mapping[str, type[pl.DataType]] = {
    "file": pl.String,
    "state": pl.String,
    "reason": pl.String,
    "fingerprint": pl.String,
    "duplicate_of": pl.String,
    "report": pl.String,
    "captured_utc_ns": pl.Int64,
    "format": pl.String,
    "product_version": pl.String,
    "gpu_name": pl.String,
    "devices": pl.Int64,
    "model": pl.String,
    "engine": pl.String,
    "tensor_parallel": pl.Int64,
    "verdict": pl.String,
    "headline": pl.String,
    "capture_ms": pl.Float64,
    "window_ms": pl.Float64,
    "gpu_busy_ms": pl.Float64,
    "gpu_idle_ms": pl.Float64,
    "kernel_count": pl.Int64,
    "step_count": pl.Int64,
    "prefill_ms": pl.Float64,
    "decode_ms": pl.Float64,
    "mixed_ms": pl.Float64,
    "other_ms": pl.Float64,
    "unknown_ms": pl.Float64,
    "decode_steps": pl.Int64,
    "decode_step_p50_ms": pl.Float64,
    "decode_step_p95_ms": pl.Float64,
    "decode_step_p99_ms": pl.Float64,
    "inter_token_gap_p50_ms": pl.Float64,
    "inter_token_gap_p99_ms": pl.Float64,
    "inter_token_gap_max_ms": pl.Float64,
    "decode_mbu_kernel_pct": pl.Float64,
    "decode_mbu_wall_pct": pl.Float64,
    "decode_mbu_is_lower_bound": pl.Boolean,
    "prefill_mfu_kernel_pct": pl.Float64,
    "prefill_mfu_wall_pct": pl.Float64,
    "decode_tokens_per_s": pl.Float64,
    "stall_count": pl.Int64,
    "stall_ms": pl.Float64,
    "stall_max_ms": pl.Float64,
    "stall_pct_of_window": pl.Float64,
    "stall_episode_count": pl.Int64,
    "gate": pl.String,  # 'passed' | 'failed' | 'could not look', null without gates
    "gate_detail": pl.String,
    "key": pl.String,  # content, tool version and options: what --resume looks for
    "profile": pl.String,  # the comparison profile as JSON, for `compare --baseline`; Parquet only
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


def blank_row(file: str, fingerprint: str | None) -> dict[str, Any]:
    """A row that says nothing yet but which file it is of."""
    return {**dict.fromkeys(COLUMNS), "file": file, "fingerprint": fingerprint}


def refused_row(file: str, fingerprint: str | None, state: str, reason: str) -> dict[str, Any]:
    """The row of a file that gave no analysis."""
    return {**blank_row(file, fingerprint), "state": state, "reason": as_text(reason)}


def analysed_row(
    file: str, fingerprint: str, analysis: Analysis, report: str, gates: list[GateResult], profile: str | None
) -> dict[str, Any]:
    """The row of an analysed capture."""
    summary = analysis.summary
    facts = analysis.trace.capture
    row = blank_row(file, fingerprint)
    row |= {key: clean(getattr(summary, key)) for key in _FROM_SUMMARY}
    row |= {f"{phase}_ms": getattr(summary.phase_ms, phase) for phase in _PHASES}
    step, gap = summary.decode_step_ms, summary.inter_token_gap_ms
    row |= {"decode_step_p50_ms": step.p50, "decode_step_p95_ms": step.p95, "decode_step_p99_ms": step.p99}
    row |= {"inter_token_gap_p50_ms": gap.p50, "inter_token_gap_p99_ms": gap.p99, "inter_token_gap_max_ms": gap.max}
    if summary.decode_tokens is not None and summary.window_ms:
        row["decode_tokens_per_s"] = summary.decode_tokens / summary.window_ms * 1e3
    names = sorted({str(d.gpu_name) for d in analysis.devices if d.gpu_name})
    row |= {
        "state": STATES[analysis.status],
        "reason": "; ".join(analysis.reasons) or None,
        "report": report,
        "captured_utc_ns": facts.session_start_utc_ns,
        "format": facts.format,
        "product_version": facts.product_version,
        "gpu_name": ", ".join(names) or None,
        "devices": len(analysis.devices),
        "model": analysis.model.get("name"),
        "engine": analysis.trust.engine or facts.serving.engine,
        "tensor_parallel": analysis.model.get("tensor_parallel"),
        "verdict": analysis.trust.verdict,
        "decode_steps": step.n,
        "profile": profile,
    }
    if gates:
        row["gate"] = {0: "passed", 1: "failed", 3: "could not look"}[exit_code(gates)]
        row["gate_detail"] = "; ".join(g.sentence for g in gates)
    return row


_PHASES = ("prefill", "decode", "mixed", "other", "unknown")


def runs_frame(rows: list[dict[str, Any]], labels: list[str]) -> pl.DataFrame:
    """All rows as one frame: the label columns after ``file``, then the declared columns."""
    schema: dict[str, Any] = {"file": pl.String, **dict.fromkeys(labels, pl.String), **COLUMNS}
    frame = pl.DataFrame({name: [row.get(name) for row in rows] for name in schema}, schema=schema, strict=False)
    return frame.with_columns([_numbers_where_all_are(frame[name]) for name in labels])


def _numbers_where_all_are(column: pl.Series) -> pl.Series:
    """A label column as numbers where every value of it is one, so that trends sort by size."""
    numbers = column.cast(pl.Float64, strict=False)
    return numbers if numbers.null_count() == column.null_count() else column
