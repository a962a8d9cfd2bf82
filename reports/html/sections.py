"""Everything below the first screen, as a list of sections that the template walks through."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from ...analysis.result import Analysis
from .. import format as fmt
from .first_screen import ceilings_text, ratio_column
from .mapping import Fact, facts_of, table_of, tables_of
from .tables import MAX_NAME, Table, names, numbers, texts, within_budget


@dataclass(frozen=True)
class Section:
    """A heading with its lead sentence, facts, tables and, where ``part`` says so, a part of the template."""

    id: str
    title: str
    lead: str = ""
    facts: Sequence[Fact] = ()
    tables: Sequence[Table] = ()
    part: str = ""  # name of a template block: 'timeline' | 'roofline' | 'findings' | 'glossary' | 'formulas'
    empty: str = ""  # said where there is nothing to show
    data: Mapping[str, Any] = field(default_factory=dict)


def sections(analysis: Analysis, *, drawn: Mapping[str, Any] | None) -> list[Section]:
    """All sections in reading order; ``drawn`` is the roofline drawing."""
    made = [
        Section("timeline", "Timeline", part="timeline"),
        _roofline(analysis, drawn),
        _kernels(analysis),
        _stalls(analysis),
        _gaps(analysis),
        _steps(analysis),
        _step_table(analysis),
        _devices(analysis),
        _collectives(analysis),
        _graphs(analysis),
        _findings(analysis),
        _free("host", "Host side of decode", analysis.host, "Where the host spends the time between decode steps."),
        _free("what-if", "What would help", analysis.what_if, "A model fitted on this capture's own steps; each figure is a prediction within its stated range, not a measurement."),
        _free("workload", "Workload and techniques", analysis.workload, "What kind of run this is, and where each technique would move it."),
        _free("traffic", "Decode traffic", analysis.traffic, "The bytes a decode step moves, and the bandwidths that the steps themselves imply."),
        _free("measured", "Measured counters", analysis.measured, "Nsight Compute results, GPU metrics samples and counters from beside the profiler."),
        _model(analysis),
        Section("formulas", "Formulas", part="formulas"),
        _capture(analysis),
        Section("glossary", "Words", part="glossary"),
    ]  # fmt: skip
    return [section for section in made if section.part or section.facts or section.tables or section.empty]


def _free(section_id: str, title: str, data: Mapping[str, Any], lead: str) -> Section:
    return Section(section_id, title, lead, facts_of(data), tables_of(data, section_id))


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
        texts("op_class", "Class", [fmt.label(x) for x in get("op_class")]),
        texts("phase", "Phase", get("phase").cast(pl.String).to_list(), kind="phase"),
        numbers("count", "Count", get("count").to_list()),
        numbers("count_per_step", "Per step", get("count_per_step").to_list()),
        numbers("total_ms", "Time", get("total_ms").to_list(), unit="ms"),
        numbers("in_mixed_ms", "In mixed", get("in_mixed_ms").to_list(), unit="ms", help="time inside mixed steps"),
        numbers("median_us", "Median", get("median_us").to_list(), unit="µs"),
        numbers("flop", "FLOP", get("flop").to_list(), show=_si(""), reasons=reasons),
        numbers("bytes", "Bytes", get("bytes").to_list(), show=_si("B"), reasons=reasons),
        numbers("arithmetic_intensity", "AI", get("arithmetic_intensity").to_list(), unit="FLOP/B", reasons=reasons, help="arithmetic intensity"),
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
    columns.append(texts("reason", "Note", [fmt.shorten(r, 160) for r in reasons]))
    return Table(table_id, caption, columns, total)


def _si(unit: str) -> Callable[[Any], str]:
    return lambda value: fmt.scaled(value, unit)


def _shares(evidence: Any) -> str:
    """``marker 90%, step context 10%`` of a {kind: share} object."""
    if not isinstance(evidence, Mapping):
        return ""
    parts = sorted(((k, v) for k, v in evidence.items() if v), key=lambda p: -p[1])
    return ", ".join(f"{fmt.label(k)} {v * 100:.0f}%" if v < 0.995 else fmt.label(k) for k, v in parts)


def _kernels(analysis: Analysis) -> Section:
    if analysis.kernel_table.is_empty():
        return Section("kernels", "Kernels", empty="No kernel in the window.")
    lead = "One row per kernel name and own phase, by time. The whole name is on hover."
    return Section("kernels", "Kernels", lead, tables=[_work_table("kernels-table", "Kernels", analysis.kernel_table, named=True)])  # fmt: skip


def _stalls(analysis: Analysis) -> Section:
    stalls = analysis.stalls
    if stalls.is_empty():
        reason = fmt.reason_for(analysis.summary, "stall_count")
        known = fmt.is_known(analysis.summary.get("stall_count"))
        said = (
            "No decoding request waited for a prefill in this window."
            if known
            else f"Not known: {reason or 'no decode-bearing steps were found'}."
        )
        return Section("stalls", "Stalls", empty=said)
    origin = analysis.window.get("start_ns") or 0
    shown = _longest_first_kept(stalls, "stall_ms")
    get = shown.get_column
    reasons = [r or "" for r in get("reason")]
    columns = [
        texts("stall", "Stall", get("stall").to_list(), kind="stall"),
        *_group_column(analysis, shown),
        numbers("start", "Start", _since(get("start_ns"), origin), unit="ms", show=_precise, help="since the window's start"),
        numbers("stall_ms", "Stall", get("stall_ms").to_list(), unit="ms"),
        texts("kind", "Kind", [fmt.label(k) for k in get("kind")]),
        numbers("episode", "Episode", get("episode").to_list()),
        numbers("prefill_tokens", "Prefill", get("prefill_tokens").to_list(), unit="tokens", reasons=reasons),
        numbers("requests_held", "Held", get("requests_held").to_list(), unit="requests", reasons=reasons),
        numbers("request_ms_lost", "Lost", get("request_ms_lost").to_list(), unit="request·ms", reasons=reasons),
        numbers("baseline_ms", "Baseline", get("baseline_ms").to_list(), unit="ms", reasons=reasons, help="median pure decode step at about this batch"),
        numbers("baseline_n", "of n", get("baseline_n").to_list(), reasons=reasons),
        numbers("gap_before_ms", "Gap before", get("gap_before_ms").to_list(), unit="ms"),
        numbers("gap_ms", "Gap", get("gap_ms").to_list(), unit="ms"),
        numbers("gap_after_ms", "Gap after", get("gap_after_ms").to_list(), unit="ms"),
        texts("steps", "Steps", [_steps_text(x) for x in get("steps")]),
        texts("note", "Note", reasons),
    ]  # fmt: skip
    table = Table("stalls-table", "Stalls", columns, stalls.height, anchors=[f"stall-{i}" for i in get("stall")])
    lead = "An inter-token gap in which prefill work kept decoding requests waiting. Click a number to see it in the timeline."
    return Section("stalls", "Stalls", lead, tables=[table])


def _longest_first_kept(frame: pl.DataFrame, key: str, most: int = 5_000) -> pl.DataFrame:
    """All rows in their order, or where there are more than ``most`` those with the largest ``key``."""
    if frame.height <= most:
        return frame
    return frame.with_row_index("__row").sort(key, descending=True).head(most).sort("__row").drop("__row")


def _since(times: pl.Series, origin: int) -> list[float | None]:
    return ((times - origin) / 1e6).to_list()


def _precise(value: float) -> str:
    """Times since the start are places to look up, so they keep µs."""
    return f"{value:,.3f}"


def _steps_text(steps: Any, most: int = 6) -> str:
    values = list(steps) if steps is not None else []
    return ", ".join(map(str, values[:most])) + (f", … ({len(values)})" if len(values) > most else "")


def _group_column(analysis: Analysis, frame: pl.DataFrame) -> list[Any]:
    return [numbers("group", "Group", frame["group"].to_list())] if analysis.groups.height > 1 else []


def _gaps(analysis: Analysis) -> Section:
    gaps = analysis.gaps
    if gaps.is_empty():
        return Section(
            "gaps", "Inter-token gaps", empty="No two consecutive decode-bearing steps, so no inter-token gap."
        )
    origin = analysis.window.get("start_ns") or 0
    shown = _longest_first_kept(gaps, "gap_ms")
    get = shown.get_column
    parts = [
        ("decode_ms", "Decode"),
        ("prefill_ms", "Prefill"),
        ("collective_wait_ms", "Collective wait"),
        ("copy_ms", "Copies"),
        ("idle_launch_bound_ms", "Idle: launch"),
        ("idle_host_sync_ms", "Idle: host sync"),
        ("idle_waiting_rank_ms", "Idle: rank"),
        ("idle_between_requests_ms", "Idle: no work"),
        ("idle_unknown_ms", "Idle: unknown"),
    ]
    columns = [
        texts("index", "Step", get("index").to_list(), kind="step"),
        *_group_column(analysis, shown),
        numbers("end", "End", _since(get("end_ns"), origin), unit="ms", show=_precise, help="since the window's start"),
        numbers("gap_ms", "Gap", get("gap_ms").to_list(), unit="ms"),
        *(numbers(key, label, get(key).to_list(), unit="ms") for key, label in parts),
        numbers("decode_requests", "Decoding", get("decode_requests").to_list(), unit="requests"),
        texts("stall", "Stall", [None if s < 0 else s for s in get("stall")], kind="stall"),
        texts("counted", "Counted", ["yes" if c else "no: nobody waited" for c in get("counted")]),
    ]
    spread = _spread_facts(analysis, "inter_token_gap_ms")
    lead = "Time between the ends of two consecutive decode-bearing steps of one group, as the GPU sees it. The parts of a gap sum to it."
    return Section("gaps", "Inter-token gaps", lead, spread, [Table("gaps-table", "Gaps", columns, gaps.height)])


def _spread_facts(analysis: Analysis, key: str) -> list[Fact]:
    spread = analysis.summary.get(key) or {}
    unit = fmt.split_key(key)[1]
    return [(k, fmt.Text(fmt.number(v), "" if k == "n" else unit, known=fmt.is_known(v))) for k, v in spread.items()]


def _steps(analysis: Analysis) -> Section:
    steps = analysis.steps
    if steps.is_empty():
        return Section(
            "steps",
            "Steps",
            empty="No steps were found: " + (analysis.reasons[0] if analysis.reasons else "nothing closes one") + ".",
        )
    origin = analysis.window.get("start_ns") or 0
    shown = _longest_first_kept(steps, "busy_ns")
    get = shown.get_column
    several = shown["device_index"].n_unique() > 1
    span = ((get("end_ns") - get("start_ns")) / 1e6).to_list()
    columns = [
        texts("index", "Step", get("index").to_list(), kind="step"),
        *_group_column(analysis, shown),
        *([numbers("device", "Device", get("device").to_list())] if several else []),
        texts("phase", "Phase", get("phase").cast(pl.String).to_list(), kind="phase"),
        texts("evidence", "Evidence", [fmt.label(e) for e in get("evidence")]),
        numbers("start", "Start", _since(get("start_ns"), origin), unit="ms", show=_precise, help="since the window's start"),
        numbers("span_ms", "Span", span, unit="ms"),
        numbers("busy_ms", "Busy", (get("busy_ns") / 1e6).to_list(), unit="ms"),
        numbers("prefill_tokens", "Prefill", get("prefill_tokens").to_list(), unit="tokens"),
        numbers("decode_tokens", "Decode", get("decode_tokens").to_list(), unit="tokens"),
        numbers("prefill_requests", "Prefill", get("prefill_requests").to_list(), unit="requests"),
        numbers("decode_requests", "Decode", get("decode_requests").to_list(), unit="requests"),
        numbers("padded_tokens", "Padded to", get("padded_tokens").to_list(), unit="tokens"),
        numbers("kv_tokens", "KV", get("kv_tokens").to_list(), unit="tokens"),
        texts("kv_tokens_source", "KV from", get("kv_tokens_source").to_list()),
        numbers("kernel_count", "Kernels", get("kernel_count").to_list()),
        texts("graph_id", "Graph", get("graph_id").to_list()),
        numbers("flop", "FLOP", get("flop").to_list(), show=_si("")),
        numbers("bytes", "Bytes", get("bytes").to_list(), show=_si("B")),
        numbers("mfu_pct", "MFU", get("mfu_pct").to_list(), unit="%", show=lambda v: f"{v:.1f}"),
        numbers("mbu_pct", "MBU", get("mbu_pct").to_list(), unit="%", show=lambda v: f"{v:.1f}"),
        texts("state", "State", _states(shown)),
        texts("label", "Marker", [None if x is None else fmt.shorten(x, 80) for x in get("label")]),
    ]  # fmt: skip
    anchors = _step_anchors(shown)
    table = Table("steps-table", "Steps", columns, steps.height, anchors=anchors)
    lead = "One row per step and device. Steps cut by the window's edge and warm-up stay out of all statistics."
    return Section("steps", "Steps", lead, _spread_facts(analysis, "decode_step_ms"), [table])


def _states(steps: pl.DataFrame) -> list[str | None]:
    pairs = zip(steps["partial"], steps["excluded"], strict=True)
    return ["left out" if excluded else "cut by the window" if partial else None for partial, excluded in pairs]


def _step_anchors(steps: pl.DataFrame) -> list[str]:
    """``step-17`` for the first device of the first group; others carry their group and device."""
    first = steps["group"].min()
    out, seen = [], set()
    for index, group, device in zip(steps["index"], steps["group"], steps["device_index"], strict=True):
        name = f"step-{index}" if group == first else f"step-{group}-{index}"
        out.append(f"{name}-device-{device}" if name in seen else name)
        seen.add(name)
    return out


def _step_table(analysis: Analysis) -> Section:
    table = analysis.step_table
    if table is None or table.is_empty():
        return Section("one-step", "One step")
    rows = table.head(2_000).to_dicts()
    made = table_of("one-step-table", "Kernels of the step in order", rows)
    return Section("one-step", "One step, kernel by kernel", "The step chosen with --step.", tables=[made])


def _devices(analysis: Analysis) -> Section:
    devices = analysis.devices
    if not devices:
        return Section("devices", "Devices", empty="No device ran a kernel.")
    row = lambda key: [d.get(key) for d in devices]  # noqa: E731
    ms = lambda key: [None if d.get(key) is None else d[key] / 1e6 for d in devices]  # noqa: E731
    columns = [
        numbers("device", "Device", row("device")),
        numbers("group", "Group", row("group")),
        texts("gpu_name", "GPU", row("gpu_name")),
        numbers("kernel_count", "Kernels", row("kernel_count")),
        numbers("window", "Window", ms("window_ns"), unit="ms"),
        numbers("busy", "Busy", ms("busy_ns"), unit="ms"),
        numbers("copy_only", "Copies only", ms("copy_only_ns"), unit="ms"),
        numbers("idle", "Idle", ms("idle_ns"), unit="ms"),
        *_nested_columns(devices, "idle_ns_by_cause", "Idle: "),
        *_nested_columns(devices, "phase_ns", "Busy: "),
    ]
    tables = [Table("devices-table", "Time by device: busy + copies only + idle = window", columns, len(devices))]
    longest = (
        analysis.idle.with_columns(ms=(pl.col("end_ns") - pl.col("start_ns")) / 1e6)
        .sort("ms", descending=True)
        .head(100)
    )
    if not longest.is_empty():
        origin = analysis.window.get("start_ns") or 0
        idle = [
            numbers("device", "Device", longest["device"].to_list()),
            numbers("start", "Start", _since(longest["start_ns"], origin), unit="ms", show=_precise),
            numbers("ms", "Idle", longest["ms"].to_list(), unit="ms"),
            texts("cause", "Cause", [fmt.label(c) for c in longest["cause"]]),
        ]
        tables.append(Table("idle-table", "Longest idle times", idle, analysis.idle.height, rows_in_page=10))
    lead = "Busy is the union of a device's kernels, never their sum; copies without a kernel are counted apart; idle is the rest, by cause."
    return Section("devices", "Devices and idle time", lead, tables=tables)


def _nested_columns(devices: Sequence[Mapping[str, Any]], key: str, prefix: str) -> list[Any]:
    inner = dict.fromkeys(k for d in devices for k in (d.get(key) or {}))
    values = {k: [(d.get(key) or {}).get(k) for d in devices] for k in inner}
    return [
        numbers(f"{key}-{k}", f"{prefix}{fmt.label(k)}", [None if v is None else v / 1e6 for v in column], unit="ms")
        for k, column in values.items()
        if any(column)
    ]


def _collectives(analysis: Analysis) -> Section:
    frame = analysis.collectives
    if frame.is_empty():
        return Section("collectives", "Collectives")
    get = frame.get_column
    reasons = [r or "" for r in get("reason")]
    full = get("name").to_list()
    columns = [
        names("name", "Collective", full, full),
        *_group_column(analysis, frame),
        texts("phase", "Phase", get("phase").cast(pl.String).to_list(), kind="phase"),
        numbers("count", "Count", get("count").to_list()),
        numbers("total_ms", "Time", get("total_ms").to_list(), unit="ms"),
        numbers("transfer_ms", "Transfer", get("transfer_ms").to_list(), unit="ms", reasons=reasons, help="the shortest over the ranks"),
        numbers("wait_ms", "Waiting", get("wait_ms").to_list(), unit="ms", reasons=reasons, help="the rest: for the last rank"),
        numbers("late_device", "Late device", get("late_device").to_list(), reasons=reasons),
        texts("reason", "Note", reasons),
    ]  # fmt: skip
    return Section("collectives", "Collectives", "Transfer is the shortest time over the ranks; what a rank takes longer it waits for the last one. No MFU or MBU applies.", tables=[Table("collectives-table", "Collectives", columns, frame.height)])  # fmt: skip


def _graphs(analysis: Analysis) -> Section:
    frame = analysis.graphs
    if frame.is_empty():
        return Section("graphs", "CUDA graphs")
    rows = frame.rename({"real_batch_median": "median_batch_replayed"}).head(2_000).to_dicts()
    return Section("graphs", "CUDA graphs", "Each captured graph with the batch it was captured for and what it replayed.", tables=[table_of("graphs-table", "Graphs", rows)])  # fmt: skip


def _findings(analysis: Analysis) -> Section:
    found = [
        {
            "id": f"finding-{f.id}",
            "sentence": f.sentence,
            "lever": f.lever,
            "recoverable": fmt.milliseconds(f.recoverable_ms) if fmt.is_known(f.recoverable_ms) else "",
            "kind": f.kind,
            "facts": facts_of(f.evidence),
            "tables": [
                Table(t.id, t.caption, t.columns, t.total, plain=True) for t in tables_of(f.evidence, f"finding-{f.id}")
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
            {"device": d.get("device"), "gpu": d.get("gpu_name"), "named_by": d.get("gpu_source"), "SMs": d.get("sm_count"), "ceilings": ceilings_text(d), "all_peaks": ", ".join(f"{k} {fmt.number(v)}" for k, v in (d.get("peak_tflops") or {}).items()) or None, "source": d.get("ceiling_source"), "memory_bandwidth_gbps": d.get("memory_bandwidth_gbps")}
            for d in analysis.devices
        ]  # fmt: skip
        tables.append(table_of("ceilings-table", "Ceilings, dense, with their source (peaks in TFLOP/s)", rows))
    lead = (
        ""
        if analysis.model
        else "No model was given or recognised: work is bounded from names and grids, or not known."
    )
    return Section(
        "model", "Model and ceilings", lead, facts_of(analysis.model), [*tables, *tables_of(analysis.model, "model")]
    )


def _capture(analysis: Analysis) -> Section:
    capture = analysis.trace.capture
    facts: list[Fact] = [
        ("file", fmt.Text(capture.source_name)),
        ("format", fmt.Text(capture.format)),
        ("schema", fmt.Text(capture.schema_version or fmt.NOT_KNOWN, known=capture.schema_version is not None)),
        ("GPUs present", fmt.Text(", ".join(capture.gpus_present) or fmt.NOT_KNOWN, known=bool(capture.gpus_present))),
    ]
    if capture.tables_missing:
        facts.append(("tables absent", fmt.Text(", ".join(capture.tables_missing))))
    facts += [(f"{d.severity}", fmt.Text(d.text)) for d in capture.diagnostics]
    facts += [("note", fmt.Text(note)) for note in capture.notes]
    skipped = ("gpu_time_by_evidence", "gpu_time_by_work_source", "contradictions")
    facts += [(f"trust: {k}", v) for k, v in facts_of({k: v for k, v in analysis.trust.items() if k not in skipped})]
    gaps = [
        {"not_in_the_capture": g.what, "so": g.consequence, "record_it_with": g.recapture or None}
        for g in analysis.trace.gaps_in_evidence
    ]
    tables = [table_of("gaps-in-evidence", "What the capture does not hold", gaps)] if gaps else []
    return Section("capture", "Capture and trust", "", facts, tables)
