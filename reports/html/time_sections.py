"""The sections about time: stalls, inter-token gaps, steps, devices with their idle time, collectives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import polars as pl
from msgspec import structs

from ...analysis.numeric import number_text as fmt
from ...analysis.records.analysis import Analysis
from ...analysis.records.summary import ByCause, ByPhase, LongestRun, Spread, WorstEpisode
from .. import key_text
from ..first_screen.lines import percentiles
from ..short_names import shorten
from .json_objects import facts_of
from .section import Section
from .sortable_tables import Column, Table, minor, names, numbers, si, texts

MOST = 5_000  # rows of a table that a page carries
STEP_SPARE = ("evidence", "padded_tokens", "kv_tokens_source", "graph_id", "flop", "bytes", "label")


def stalls_section(analysis: Analysis) -> Section:
    """Every stall with what it cost, whom it held and against which baseline."""
    stalls = analysis.stalls
    if stalls.is_empty():
        reason = analysis.summary.reasons.get("stall_count", "")
        known = analysis.summary.stall_count is not None
        said = (
            "No decoding request waited for a prefill in this window."
            if known
            else f"Not known: {reason or 'no decode-bearing steps were found'}."
        )
        return Section("stalls", "Stalls", empty=said)
    origin = analysis.window.start_ns
    shown = _longest_first_kept(stalls, "stall_ms")
    get = shown.get_column
    reasons = [r or "" for r in get("reason")]
    columns = [
        texts("stall", "Stall", get("stall").to_list(), kind="stall"),
        *_group_column(analysis, shown),
        numbers("start", "Start", _since(get("start_ns"), origin), unit="ms", show=_precise, help="since the window's start"),
        numbers("stall_ms", "Stall", get("stall_ms").to_list(), unit="ms"),
        texts("kind", "Kind", [key_text.label(k) for k in get("kind")]),
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
    summary = analysis.summary
    found = {"worst_episode": summary.worst_episode, "longest_run_without_decode": summary.longest_run_without_decode}
    told = {key: _from_window(where, origin) for key, where in found.items() if where is not None}
    return Section("stalls", "Stalls", lead, facts_of(told), [table])


def _from_window(found: WorstEpisode | LongestRun, origin: int) -> WorstEpisode | LongestRun:
    """An episode or run of the summary with its times since the window's start."""
    return structs.replace(found, start_ns=found.start_ns - origin, end_ns=found.end_ns - origin)


def _longest_first_kept(frame: pl.DataFrame, key: str, most: int = MOST) -> pl.DataFrame:
    """All rows in their order, or where there are more than ``most`` those with the largest ``key``."""
    if frame.height <= most:
        return frame
    return (
        frame.with_row_index("__row").sort(key, descending=True, nulls_last=True).head(most).sort("__row").drop("__row")
    )


def _since(times: pl.Series, origin: int) -> list[float | None]:
    return ((times - origin) / 1e6).to_list()


def _precise(value: float) -> str:
    """Times since the start are places to look up, so they keep µs."""
    return f"{value:,.3f}"


def _steps_text(steps: Iterable[int] | None, most: int = 6) -> str:
    values = list(steps) if steps is not None else []
    return ", ".join(map(str, values[:most])) + (f", … ({len(values)})" if len(values) > most else "")


def _group_column(analysis: Analysis, frame: pl.DataFrame) -> list[Column]:
    return [numbers("group", "Group", frame["group"].to_list())] if analysis.groups.height > 1 else []


def gaps_section(analysis: Analysis) -> Section:
    """Every inter-token gap with its parts."""
    gaps = analysis.gaps
    if gaps.is_empty():
        return Section(
            "gaps", "Inter-token gaps", empty="No two consecutive decode-bearing steps, so no inter-token gap."
        )
    origin = analysis.window.start_ns
    shown = gaps.sort("gap_ms", "end_ns", descending=[True, False]).head(MOST)
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
        texts("stall", "Stall", [None if s is None or s < 0 else s for s in get("stall")], kind="stall"),
        texts("counted", "Counted", ["yes" if c else "no: nobody waited" for c in get("counted")]),
    ]
    lead = "Time between the ends of two consecutive decode-bearing steps of one group, as the GPU sees it. The parts of a gap sum to it; the longest come first."
    return Section(
        "gaps",
        "Inter-token gaps",
        lead + _spread(analysis.summary.inter_token_gap_ms),
        tables=[Table("gaps-table", "Gaps", minor(columns, "counted"), gaps.height)],
    )


def _spread(spread: Spread) -> str:
    """`` p50 2.05, p95 2.11, p99 2.14, max 2.14 ms (n = 53).``"""
    return f" {', '.join(percentiles(spread, show=fmt.number))} ms (n = {fmt.whole(spread.n)})." if spread.n else ""


def steps_section(analysis: Analysis) -> Section:
    """Every step and device."""
    steps = analysis.steps
    if steps.is_empty():
        return Section(
            "steps",
            "Steps",
            empty="No steps were found: " + (analysis.reasons[0] if analysis.reasons else "nothing closes one") + ".",
        )
    origin = analysis.window.start_ns
    # warm-up and graph capture come last: they are there to be counted, not read
    shown = _longest_first_kept(steps, "busy_ns").sort("excluded", maintain_order=True)
    get = shown.get_column
    several = shown["device_index"].n_unique() > 1
    span = ((get("end_ns") - get("start_ns")) / 1e6).to_list()
    unknown = _unknown_tokens(shown)
    columns = [
        texts("index", "Step", get("index").to_list(), kind="step"),
        *_group_column(analysis, shown),
        *([numbers("device", "Device", get("device").to_list())] if several else []),
        texts("phase", "Phase", get("phase").cast(pl.String).to_list(), kind="phase"),
        texts("evidence", "Evidence", [key_text.label(e) for e in get("evidence")]),
        numbers("start", "Start", _since(get("start_ns"), origin), unit="ms", show=_precise, help="since the window's start"),
        numbers("span_ms", "Span", span, unit="ms"),
        numbers("busy_ms", "Busy", (get("busy_ns") / 1e6).to_list(), unit="ms"),
        numbers("prefill_tokens", "Prefill", get("prefill_tokens").to_list(), unit="tokens", reasons=unknown),
        numbers("decode_tokens", "Decode", get("decode_tokens").to_list(), unit="tokens", reasons=unknown),
        numbers("prefill_requests", "Prefill", get("prefill_requests").to_list(), unit="requests"),
        numbers("decode_requests", "Decode", get("decode_requests").to_list(), unit="requests"),
        numbers("padded_tokens", "Padded to", get("padded_tokens").to_list(), unit="tokens"),
        numbers("kv_tokens", "KV", get("kv_tokens").to_list(), unit="tokens"),
        texts("kv_tokens_source", "KV from", get("kv_tokens_source").to_list()),
        numbers("kernel_count", "Kernels", get("kernel_count").to_list()),
        texts("graph_id", "Graph", get("graph_id").to_list()),
        numbers("flop", "FLOP", get("flop").to_list(), show=si(""), reasons=unknown),
        numbers("bytes", "Bytes", get("bytes").to_list(), show=si("B")),
        numbers("mfu_pct", "MFU", get("mfu_pct").to_list(), unit="%", show=lambda v: f"{v:.1f}", reasons=unknown),
        numbers("mbu_pct", "MBU", get("mbu_pct").to_list(), unit="%", show=lambda v: f"{v:.1f}"),
        texts("state", "State", _states(shown)),
        texts("label", "Marker", [None if x is None else shorten(x, 80) for x in get("label")]),
    ]  # fmt: skip
    anchors = _step_anchors(shown)
    table = Table("steps-table", "Steps", minor(columns, *STEP_SPARE), steps.height, anchors=anchors)
    pure = _spread(analysis.summary.decode_step_ms)
    lead = "One row per step and device. Steps cut by the window's edge and warm-up stay out of all statistics."
    lead += f" Pure decode steps:{pure}" if pure else ""
    return Section("steps", "Steps", lead, tables=[table])


def _unknown_tokens(steps: pl.DataFrame) -> list[str]:
    """Why the counts of steps are not known where their graph's padded size is all that is; else ''."""
    unknown = pl.col("prefill_tokens").is_null() | pl.col("decode_tokens").is_null()
    padded = unknown & pl.col("graph_id").is_not_null() & pl.col("padded_tokens").is_not_null()
    said = pl.lit("only the size its graph was padded to is known")
    return steps.select(pl.when(padded).then(said).otherwise(pl.lit("")).alias("why"))["why"].to_list()


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


def devices_section(analysis: Analysis) -> Section:
    """Time per device and the longest idle times."""
    devices = analysis.devices
    if not devices:
        return Section("devices", "Devices", empty="No device ran a kernel.")

    columns = [
        numbers("device", "Device", [d.device for d in devices]),
        numbers("group", "Group", [d.group for d in devices]),
        texts("gpu_name", "GPU", [d.gpu_name for d in devices]),
        numbers("kernel_count", "Kernels", [d.kernel_count for d in devices]),
        numbers("window", "Window", [d.window_ns / 1e6 for d in devices], unit="ms"),
        numbers("busy", "Busy", [d.busy_ns / 1e6 for d in devices], unit="ms"),
        numbers("copy_only", "Copies only", [d.copy_only_ns / 1e6 for d in devices], unit="ms"),
        numbers("idle", "Idle", [None if d.idle_ns is None else d.idle_ns / 1e6 for d in devices], unit="ms"),
        *_part_columns("idle_ns_by_cause", "Idle: ", [d.idle_ns_by_cause for d in devices]),
        *_part_columns("phase_ns", "Busy: ", [d.phase_ns for d in devices]),
    ]
    tables = [Table("devices-table", "Time by device: busy + copies only + idle = window", columns, len(devices))]
    longest = (
        analysis.idle.with_columns(ms=(pl.col("end_ns") - pl.col("start_ns")) / 1e6)
        .sort("ms", descending=True)
        .head(100)
    )
    if not longest.is_empty():
        origin = analysis.window.start_ns
        idle = [
            numbers("device", "Device", longest["device"].to_list()),
            numbers("start", "Start", _since(longest["start_ns"], origin), unit="ms", show=_precise),
            numbers("ms", "Idle", longest["ms"].to_list(), unit="ms"),
            texts("cause", "Cause", [key_text.label(c) for c in longest["cause"]]),
        ]
        tables.append(Table("idle-table", "Longest idle times", idle, analysis.idle.height, rows_in_page=10))
    lead = "Busy is the union of a device's kernels, never their sum; copies without a kernel are counted apart; idle is the rest, by cause."
    lead += " nvidia-smi's utilization is only the share of time in which any kernel ran."
    return Section("devices", "Devices and idle time", lead, facts_of(_utilization(analysis)), tables)


def _utilization(analysis: Analysis) -> dict[str, object]:
    """What other tools show, each null with its reason."""
    summary = analysis.summary
    shown: dict[str, object] = dict(summary.utilization)
    for key in [k for k, v in shown.items() if v is None and summary.reasons.get(k, "")]:
        shown[f"{key}_reason"] = summary.reasons.get(key, "")
    if summary.decode_mbu_is_lower_bound and summary.decode_mbu_kernel_pct is not None:
        shown["decode_mbu_kernel_pct"] = fmt.percent(summary.decode_mbu_kernel_pct, at_least=True)
    return shown


def _part_columns(key: str, prefix: str, parts: Sequence[ByCause[int] | ByPhase[int] | None]) -> list[Column]:
    """A column for each part that any device has time in."""
    columns = []
    for part in dict.fromkeys(name for own in parts for name in own or ()):
        values = [None if own is None else own[part] for own in parts]
        if any(values):
            shown = [None if v is None else v / 1e6 for v in values]
            columns.append(numbers(f"{key}-{part}", f"{prefix}{key_text.label(part)}", shown, unit="ms"))
    return columns


def collectives_section(analysis: Analysis) -> Section:
    """Collectives, transfer apart from waiting."""
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
