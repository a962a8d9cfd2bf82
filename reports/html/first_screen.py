"""The page's own parts of the first screen: the tables of top kernels, and what is not known with how to record it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from ...analysis.numeric import number_text as fmt
from ...analysis.records.analysis import Analysis
from .. import key_text
from .sortable_tables import Column, Table, names, numbers, texts

TOP = 5
WORTH_A_TABLE = 0.02  # of kernel time that a phase must have


def top_tables(analysis: Analysis) -> list[tuple[str, Table]]:
    """The five heaviest kernels of each of the two phases that matter: decode, and the other that takes most time."""
    table = analysis.kernel_table
    by_phase = table.group_by("phase").agg(pl.col("total_ms").sum().alias("ms")).to_dicts()
    time = {row["phase"]: row["ms"] for row in by_phase if row["ms"]}
    if analysis.trace.holds_sums:  # a few names tell their phase: no reason to leave the others out
        return [("unknown", top_table(table.head(2 * TOP), "unknown", sum(time.values()), alone=True))]
    worth = {p for p, ms in time.items() if ms >= WORTH_A_TABLE * sum(time.values())}
    ranked = sorted(worth, key=lambda p: -time[p])
    # what users wait for comes first; beside it the phase that takes most time
    phases = (["decode"] if "decode" in worth else []) + [p for p in ranked if p != "decode"]
    phases = phases[:2]
    alone = len(phases) == 1
    rows = 2 * TOP if alone else TOP
    opaque = analysis.trust.opaque_graphs
    tables = [(p, top_table(table.filter(pl.col("phase") == p).head(rows), p, time[p], alone=alone)) for p in phases]
    return [(p, replace(t, caption=f"{t.caption}, of those recorded") if opaque else t) for p, t in tables]


def top_table(rows: pl.DataFrame, phase: str, phase_ms: float, *, alone: bool) -> Table:
    """One phase's heaviest kernels: MBU in decode, MFU elsewhere, both where there is room."""
    get = rows.get_column
    reasons = [r or "" for r in get("reason")]
    ratios = ("mfu_pct", "mbu_pct") if alone else ("mbu_pct",) if phase == "decode" else ("mfu_pct",)
    columns = [
        names("name", "Kernel", get("short_name").to_list(), get("name").to_list(), limit=60 if alone else 22),
        texts("op_class", "Class", [key_text.label(x) for x in get("op_class")]),
        numbers("count_per_step", "/ step", get("count_per_step").to_list(), help="launches per step"),
        numbers("median_us", "p50", get("median_us").to_list(), unit="µs"),
        numbers("share", "% of", [ms / phase_ms * 100 for ms in get("total_ms")], unit="time" if phase == "unknown" else phase, show=lambda v: f"{v:.1f}"),
        numbers("arithmetic_intensity", "AI", get("arithmetic_intensity").to_list(), unit="FLOP/B", reasons=reasons, help="arithmetic intensity"),
        *(ratio_column(rows, ratio, reasons) for ratio in ratios),
        texts("bound", "Bound", ["comm." if b == "communication" and not alone else str(b) for b in get("bound")], help="; ".join(dict.fromkeys(r for r in reasons if r))),
        numbers("headroom_ms", "Headroom", get("headroom_ms").to_list(), unit="ms", reasons=reasons, help="time above the roofline"),
    ]  # fmt: skip
    known = {c.key for c in columns if set(c.text) - {"–", "unknown"}}
    if alone:  # a column without any number is no help
        columns = [c for c in columns if c.key in known or c.key == "op_class"]
    return Table(
        f"top-{phase}",
        "Top kernels" if phase == "unknown" else f"Top kernels, {phase}",
        columns,
        rows.height,
        plain=True,
    )


def ratio_column(rows: pl.DataFrame, key: str, reasons: Sequence[str]) -> Column:
    """MFU or MBU with its numerator and denominator on hover."""
    label = "MFU" if key == "mfu_pct" else "MBU"
    amount, unit = ("flop", "FLOP") if key == "mfu_pct" else ("bytes", "B")
    values = rows.get_column(key).to_list()
    column = numbers(key, label, values, unit="%", show=lambda v: f"{v:.1f}", reasons=reasons)
    title = []
    for i, (value, total, ms) in enumerate(
        zip(values, rows.get_column(amount), rows.get_column("total_ms"), strict=True)
    ):
        if fmt.is_known(value):
            title.append(
                f"{fmt.scaled(total, unit)} in {fmt.milliseconds(ms)} of kernel time, over this device's ceiling"
            )
        else:
            title.append(column.title[i] if column.title else "")
    return Column(column.key, column.label, column.unit, column.kind, column.text, column.raw, title)


def undetermined(analysis: Analysis) -> tuple[list[tuple[str, str]], str]:
    """((what, consequence) pairs, one command to copy): what the capture cannot say and how to record it."""
    gaps = analysis.trace.gaps_in_evidence
    pairs = [(gap.what, gap.consequence) for gap in gaps]
    seen = {what for what, _ in pairs}
    # a reason may begin with the key it is about: that is for programs, a reader gets its words
    reasons = [
        re.sub(r"^[a-z]+(_[a-z0-9]+)+(?=: )", lambda m: key_text.split_key(m[0])[0], r) for r in analysis.reasons
    ]
    pairs += [(reason, "") for reason in reasons if reason not in seen]
    commands = [gap.recapture for gap in gaps if gap.recapture]
    return pairs, max(commands, key=len, default="")
