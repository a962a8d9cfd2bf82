"""Everything below the first screen, as a list of sections that the template walks through."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import polars as pl

from ...analysis.gpus.run_ceilings import main_dtype
from ...analysis.numeric import number_text as fmt
from ...analysis.records.analysis import Analysis
from .. import key_text
from ..short_names import shorten
from .first_screen import ratio_column
from .identity import ceilings_text
from .json_objects import Fact, facts_of, table_of, tables_of
from .section import Section
from .sortable_tables import MAX_NAME, Table, minor, names, numbers, si, texts, within_budget
from .time_sections import (
    collectives_section,
    devices_section,
    gaps_section,
    stalls_section,
    steps_section,
)


def sections(analysis: Analysis, *, drawn: Mapping[str, Any] | None) -> list[Section]:
    """All sections in reading order; ``drawn`` is the roofline drawing."""
    made = [
        Section("timeline", "Timeline", part="timeline"),
        _roofline(analysis, drawn),
        _kernels(analysis),
        stalls_section(analysis),
        gaps_section(analysis),
        steps_section(analysis),
        _step_table(analysis),
        devices_section(analysis),
        _groups(analysis),
        collectives_section(analysis),
        _graphs(analysis),
        _findings(analysis),
        _free("host", "Host side of decode", dict(analysis.host), "Where the host spends the time between decode steps."),
        _free("what-if", "What would help", dict(analysis.what_if), "A model fitted on this capture's own steps; each figure is a prediction within its stated range, not a measurement."),
        _free("workload", "Workload and techniques", dict(analysis.workload), "What kind of run this is, and where each technique would move it."),
        _free("traffic", "Decode traffic", dict(analysis.traffic), "The bytes a decode step moves, and the bandwidths that the steps themselves imply."),
        _free("measured", "Measured counters", dict(analysis.measured), "Nsight Compute results, GPU metrics samples and counters from beside the profiler."),
        _model(analysis),
        Section("formulas", "Formulas", part="formulas"),
        _capture(analysis),
        Section("glossary", "Words", part="glossary"),
    ]  # fmt: skip
    return [section for section in made if section.part or section.facts or section.tables or section.empty]


def _free(section_id: str, title: str, data: Mapping[str, Any], lead: str) -> Section:
    facts, tables = facts_of(data), tables_of(data, section_id)
    if not tables and not any(text.known for label, text in facts if label != "reason"):
        why = dict.fromkeys(text.reason or str(text) for _, text in facts)
        return Section(section_id, title, empty=f"Not known: {'; '.join(why)}." if why else "")
    return Section(section_id, title, lead, facts, tables)


def _roofline(analysis: Analysis, drawn: Mapping[str, Any] | None) -> Section:
    table = analysis.op_classes
    why = "No kernel has both a known amount of work and a ceiling to hold it against."
    tables = [] if table.is_empty() else [_work_table("op-classes", "By op class and phase", table, named=False)]
    lead = "Intensity against speed, both logarithmic. The area of a point is its GPU time; a point under the slope is limited by memory, one under the flat by compute."
    return Section("roofline", "Roofline", lead if drawn else why, tables=tables, part="roofline", data=drawn or {})


def _work_table(table_id: str, caption: str, table: pl.DataFrame, *, named: bool) -> Table:
    """The kernel table or the op class table."""
    total = table.height
    if named:
        widths = (table["name"].str.len_bytes().clip(0, MAX_NAME) + 260).to_list()
        table = table.head(within_budget(widths))
    get = table.get_column
    reasons = [r or "" for r in get("reason")]
    head = [names("name", "Kernel", get("short_name").to_list(), get("name").to_list())] if named else []
    columns = [
        *head,
        texts("op_class", "Class", [key_text.label(x) for x in get("op_class")]),
        texts("phase", "Phase", get("phase").cast(pl.String).to_list(), kind="phase"),
        numbers("count", "Count", get("count").to_list()),
        numbers("count_per_step", "Per step", get("count_per_step").to_list()),
        numbers("total_ms", "Time", get("total_ms").to_list(), unit="ms"),
        numbers("in_mixed_ms", "In mixed", get("in_mixed_ms").to_list(), unit="ms", help="time inside mixed steps"),
        numbers("median_us", "Median", get("median_us").to_list(), unit="µs"),
        numbers("flop", "FLOP", get("flop").to_list(), show=si(""), reasons=reasons),
        numbers("bytes", "Bytes", get("bytes").to_list(), show=si("B"), reasons=reasons),
        numbers("arithmetic_intensity", "AI", get("arithmetic_intensity").to_list(), unit="FLOP/B", reasons=reasons, help="arithmetic intensity, activations counted; by weights alone a GEMM has as many FLOP per byte as tokens at 16 bit"),
        ratio_column(table, "mfu_pct", reasons),
        ratio_column(table, "mbu_pct", reasons),
        texts("bound", "Bound", get("bound").cast(pl.String).to_list()),
        numbers("headroom_ms", "Headroom", get("headroom_ms").to_list(), unit="ms", reasons=reasons),
        texts("work_source", "Work from", get("work_source").to_list()),
        texts("evidence", "Evidence", [_shares(e) for e in get("evidence")]),
    ]  # fmt: skip
    if named:
        columns += [
            texts("library", "Library", get("library").to_list()),
            texts("dtype", "Type", get("dtype").to_list()),
            numbers("waves", "Waves", get("waves").to_list(), help="thread blocks over what the SMs hold at once"),
            numbers("sm_coverage_pct", "SMs used", get("sm_coverage_pct").to_list(), unit="%"),
            numbers("tail_waste_pct", "Tail", get("tail_waste_pct").to_list(), unit="%", help="share of SM time idle in the last wave"),
        ]  # fmt: skip
    columns.append(texts("reason", "Note", [shorten(r, 160) for r in reasons]))
    spare = (
        "count",
        "in_mixed_ms",
        "evidence",
        "work_source",
        "library",
        "dtype",
        "waves",
        "sm_coverage_pct",
        "tail_waste_pct",
    )
    return Table(table_id, caption, minor(columns, *spare), total)


def _shares(evidence: Any) -> str:
    """``marker 90%, step context 10%`` of a {kind: share} object."""
    if not isinstance(evidence, Mapping):
        return ""
    parts = sorted(((k, v) for k, v in evidence.items() if v), key=lambda p: -p[1])
    return ", ".join(f"{key_text.label(k)} {v * 100:.0f}%" if v < 0.995 else key_text.label(k) for k, v in parts)


def _kernels(analysis: Analysis) -> Section:
    if analysis.kernel_table.is_empty():
        return Section("kernels", "Kernels", empty="No kernel in the window.")
    lead = "One row per kernel name and own phase, by time. The whole name is on hover."
    return Section("kernels", "Kernels", lead, tables=[_work_table("kernels-table", "Kernels", analysis.kernel_table, named=True)])  # fmt: skip


def _step_table(analysis: Analysis) -> Section:
    table = analysis.step_table
    if table is None or table.is_empty():
        return Section("one-step", "One step")
    rows = table.drop("index", "device", "step_ms", "name", "phase").head(2_000).to_dicts()
    made = table_of("one-step-table", "Kernels of the step, by time", rows)
    step = table.row(0, named=True)
    lead = (
        f"Step {step['index']} on device {step['device']}, {fmt.milliseconds(step['step_ms'])}, chosen with --step: one row per "
        "kernel name and place in the model, with its launches added up."
    )
    return Section("one-step", "One step, kernel by kernel", lead, tables=[made])


def _groups(analysis: Analysis) -> Section:
    """One row per group of devices, where there are several."""
    if len(analysis.group_summaries) < 2:
        return Section("groups", "Groups")
    rows = [
        {
            "group": group.group,
            "kind": group.kind,
            "devices": group.devices,
            "step_count": group.step_count,
            "decode_step_p50_ms": group.decode_step_ms.p50,
            "gap_p50_ms": group.inter_token_gap_ms.p50,
            "gap_p99_ms": group.inter_token_gap_ms.p99,
            "decode_mbu_kernel_pct": group.decode_mbu_kernel_pct,
            "prefill_mfu_kernel_pct": group.prefill_mfu_kernel_pct,
            "stall_count": group.stall_count,
            "stall_ms": group.stall_ms,
        }
        for group in analysis.group_summaries
    ]
    return Section(
        "groups", "Groups", "Devices that run one step together.", tables=[table_of("groups-table", "Groups", rows)]
    )


def _graphs(analysis: Analysis) -> Section:
    frame = analysis.graphs
    if frame.is_empty():
        return Section("graphs", "CUDA graphs")
    rows = frame.sort("replays", descending=True).head(2_000).to_dicts()
    return Section("graphs", "CUDA graphs", "Each captured graph with the batch it was captured for and what it replayed.", tables=[replace(table_of("graphs-table", "Graphs", rows, fold=False), rows_in_page=10)])  # fmt: skip


def _findings(analysis: Analysis) -> Section:
    found = [
        {
            "id": f"finding-{f.id}",
            "sentence": f.sentence,
            "lever": f.lever[:1].upper() + f.lever[1:].rstrip(".") + "." if f.lever else "",
            "recoverable": fmt.milliseconds(f.recoverable_ms) if fmt.is_known(f.recoverable_ms) else "",
            "kind": f.kind,
            "facts": facts_of(dict(f.evidence)),
            "tables": [
                Table(t.id, t.caption, t.columns, t.total, plain=True)
                for t in tables_of(dict(f.evidence), f"finding-{f.id}")
            ],
        }
        for f in analysis.findings
    ]
    known = analysis.status != "could_not_look"
    lead = (
        "Ranked by the milliseconds they could give back."
        if found
        else ("Nothing was found that costs time and that this capture can show." if known else "Could not look.")
    )
    return Section("findings", "Findings", lead, part="findings", data={"found": found})


def _model(analysis: Analysis) -> Section:
    tables = []
    if analysis.devices:
        rows = [
            {
                "device": d.device,
                "gpu": d.gpu_name,
                "named_by": d.gpu_source,
                "SMs": d.sm_count,
                "ceilings": ceilings_text(d, main_dtype(analysis.kernel_table)),
                "all_peaks": ", ".join(f"{k} {fmt.number(v)}" for k, v in d.peak_tflops.items()) or None,
                "source": d.ceiling_source,
                "memory_bandwidth_gbps": d.memory_bandwidth_gbps,
            }
            for d in analysis.devices
        ]
        tables.append(table_of("ceilings-table", "Ceilings, dense, with their source (peaks in TFLOP/s)", rows))
    lead = (
        ""
        if analysis.model
        else "No model was given or recognised: work is bounded from names and grids, or not known."
    )
    return Section(
        "model",
        "Model and ceilings",
        lead,
        facts_of(dict(analysis.model)),
        [*tables, *tables_of(dict(analysis.model), "model")],
    )


def _capture(analysis: Analysis) -> Section:
    capture = analysis.trace.capture
    facts: list[Fact] = [
        ("file", key_text.Text(capture.source_name)),
        ("format", key_text.Text(capture.format)),
        ("schema", key_text.Text(capture.schema_version or fmt.NOT_KNOWN, known=capture.schema_version is not None)),
        (
            "GPUs present",
            key_text.Text(", ".join(capture.gpus_present) or fmt.NOT_KNOWN, known=bool(capture.gpus_present)),
        ),
    ]
    if capture.tables_missing:
        facts.append(("tables absent", key_text.Text(", ".join(capture.tables_missing))))
    facts += [(f"{d.severity}", key_text.Text(d.text)) for d in capture.diagnostics]
    facts += [("note", key_text.Text(note)) for note in capture.notes]
    skipped = ("gpu_time_by_evidence", "gpu_time_by_work_source", "contradictions")
    facts += [(f"trust: {k}", v) for k, v in facts_of({k: v for k, v in analysis.trust.items() if k not in skipped})]
    gaps = [
        {"not_in_the_capture": g.what, "so": g.consequence, "record_it_with": g.recapture or None}
        for g in analysis.trace.gaps_in_evidence
    ]
    tables = [table_of("gaps-in-evidence", "What the capture does not hold", gaps)] if gaps else []
    return Section("capture", "Capture and trust", "", facts, tables)
