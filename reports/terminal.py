"""The first screen in the terminal: the same content and order as the HTML report's, in 24 to 40 lines.

Right at 80 columns, without colour and piped: phases carry their letter as well as their colour.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from .. import __version__
from ..analysis.gate import GateResult
from ..analysis.result import Analysis
from .format import is_known, milliseconds, number, percent, plural, reason_for, shorten

PHASE_STYLES = {"decode": "#0072B2", "prefill": "#D55E00", "mixed": "#CC79A7", "other": "grey50", "unknown": "grey50"}
PHASE_LETTERS = {"decode": "D", "prefill": "P", "mixed": "M", "other": "o", "unknown": "?"}
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_LABEL_WIDTH = 12
_TOP = 4  # kernels of the phase that takes most time
_FINDINGS = 2  # the report has five


def plain(text: str) -> str:
    """A recorded name made safe for a terminal: control characters (escape sequences too) become '?'."""
    return _UNPRINTABLE.sub("?", text)


def print_screen(
    analysis: Analysis, *, written: Sequence[Path] = (), gates: Sequence[GateResult] = (), color: bool = True
) -> None:
    """Print the first screen to stdout; ``written`` are the files to name, ``gates`` the checks to list."""
    # rendered to text first: grids pad their lines, and a piped screen should not end in spaces
    buffer = io.StringIO()
    known = Console(file=sys.stdout)
    width = min(known.width, 110)
    console = Console(
        file=buffer, width=width, force_terminal=known.is_terminal, no_color=not color or known.no_color,
        highlight=False, markup=False, emoji=False,
    )  # fmt: skip
    for block in screen(analysis, width):
        console.print(block)
    for result in gates:
        console.print(_line("Gate", Text(result.sentence, style="bold" if result.passed is not True else "")))
    lines = [line.rstrip() for line in buffer.getvalue().splitlines()]
    # a path is for copying: never folded
    lines += [f"{'Written':<{_LABEL_WIDTH}} {path}" for path in written]
    print("\n".join(lines))


def screen(analysis: Analysis, width: int) -> list[Any]:
    """The blocks of the first screen, in order."""
    greyed = analysis.trust.get("verdict") == "unreliable"
    blocks: list[Any] = [_title(analysis, width), _headline(analysis)]
    blocks += _identity(analysis)
    blocks += _trust(analysis)
    numbers = Group(*_numbers(analysis), *_strip(analysis, width))
    blocks.append(numbers if not greyed else Group(Text("The numbers below are not reliable:"), numbers))
    blocks += _top_kernels(analysis, width)
    blocks += _findings(analysis)
    blocks += _undetermined(analysis)
    return blocks


def _line(label: str, value: Text | str) -> Table:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=_LABEL_WIDTH, style="bold")
    grid.add_column(overflow="fold")
    grid.add_row(label, value if isinstance(value, Text) else Text(value))
    return grid


def _title(analysis: Analysis, width: int) -> Text:
    facts = analysis.trace.capture
    product = " ".join(x for x in (facts.product, facts.product_version) if x)
    name = f"trace-analyze {__version__}  {facts.source_name}"
    whole = f"{name}  ({product})" if product else name
    return Text(plain(whole if len(whole) <= width else name), style="dim")


def _headline(analysis: Analysis) -> Text:
    headline = analysis.summary.get("headline") or "; ".join(analysis.reasons) or "Nothing could be determined."
    return Text(plain(str(headline)), style="bold")


def _identity(analysis: Analysis) -> list[Table]:
    model = analysis.model
    known = [str(model[k]) for k in ("name", "weight_dtype") if model.get(k)]
    parts = [" ".join(known) if known else "model not known"]
    if model.get("tensor_parallel"):
        parts.append(f"TP {model['tensor_parallel']}")
    if model.get("source"):
        parts.append(f"from {str(model['source']).replace('_', ' ')}")
    engine = analysis.trust.get("engine") or analysis.trace.capture.serving.engine
    if engine:
        parts.append(f"engine {engine}")
    steps = analysis.steps
    window = [
        f"{milliseconds(analysis.summary.get('window_ms'))} of {milliseconds(analysis.summary.get('capture_ms'))} captured",
        plural(int(analysis.summary.get("step_count") or 0), "step"),
    ]
    excluded = int(steps["excluded"].sum()) if len(steps) else 0
    partial = int(steps["partial"].sum()) if len(steps) else 0
    if excluded or partial:
        window.append(f"{excluded} warm-up and {partial} partial left out")
    if analysis.trace.capture.graph_trace_mode:
        window.append(f"graph trace {analysis.trace.capture.graph_trace_mode}")
    lines = [_line("GPU", plain(gpu_line(analysis.devices)))]
    lines.append(_line("Model", plain(", ".join(parts))))
    lines.append(_line("Window", ", ".join(window)))
    return lines


def gpu_line(devices: Sequence[Mapping[str, Any]]) -> str:
    """The GPUs with their peaks and where each came from: ``2 x NVIDIA A100-SXM4-80GB, 312 TFLOP/s bf16, ...``."""
    if not devices:
        return "none with activity"
    kinds: dict[str, tuple[int, Mapping[str, Any]]] = {}
    for device in devices:
        name = device.get("gpu_name") or "GPU not known (use --gpu)"
        kinds[name] = (kinds.get(name, (0, device))[0] + 1, device)
    texts = []
    for name, (count, device) in kinds.items():
        parts = [f"{count} x {name}" if count > 1 else name]
        peaks = device.get("peak_tflops") or {}
        dtype = next((d for d in ("bf16", "fp16", "fp32") if is_known(peaks.get(d))), None)
        if dtype:
            parts.append(f"{number(peaks[dtype])} TFLOP/s {dtype}")
        bandwidth = device.get("memory_bandwidth_gbps")
        if is_known(bandwidth):
            parts.append(f"{number(bandwidth)} GB/s")
            if dtype:
                parts.append(f"ridge {number(peaks[dtype] * 1e3 / float(bandwidth or 1))}")
        if device.get("gpu_source"):
            parts.append(f"named by {device['gpu_source']}")
        if device.get("contradiction"):
            parts.append(str(device["contradiction"]))
        elif device.get("candidates"):
            parts.append(f"could also be {', '.join(device['candidates'])}")
        elif not dtype and device.get("ceiling_reason"):
            parts.append(str(device["ceiling_reason"]))
        texts.append(", ".join(parts))
    return " | ".join(texts)


def _trust(analysis: Analysis) -> list[Table]:
    trust = analysis.trust
    parts = [str(trust.get("verdict") or "not known")]
    shares = trust.get("gpu_time_by_evidence") or {}
    told = sorted(((v, k) for k, v in shares.items() if is_known(v) and v >= 0.005), reverse=True)
    if told:
        parts.append("phases by " + ", ".join(f"{k.replace('_', ' ')} {percent(100 * v)}" for v, k in told[:4]))
    if is_known(trust.get("kernels_per_step")):
        layers = f" ({trust['layers']} layers)" if trust.get("layers") else ""
        parts.append(f"{number(trust['kernels_per_step'])} kernels a step{layers}")
    if is_known(trust.get("devices_present")):
        parts.append(f"{trust.get('devices_with_kernels')} of {trust['devices_present']} devices")
    if trust.get("node_tracing_inflates_decode"):
        parts.append("node-level graph tracing slows decode")
    lines = [_line("Trust", Text(plain(", ".join(parts)), style="bold" if trust.get("verdict") != "good" else ""))]
    contradictions = trust.get("contradictions") or ()
    for item in list(contradictions)[:2]:
        text = item.get("sentence") if isinstance(item, Mapping) else item
        lines.append(_line("", Text(plain(str(text)), style="bold")))
    return lines


def _numbers(analysis: Analysis) -> list[Table]:
    summary = analysis.summary
    lines = [_line("GPU time", _phase_split(summary))]
    step = summary.get("decode_step_ms") or {}
    lines.append(_line("Decode step", _spread(step) or _why(summary, "decode_step_ms")))
    gap = summary.get("inter_token_gap_ms") or {}
    lines.append(_line("Token gap", _spread(gap) or _why(summary, "inter_token_gap_ms")))
    lines.append(_line("Decode MBU", _ratio(summary, "decode_mbu", summary.get("decode_mbu_is_lower_bound"))))
    lines.append(_line("Prefill MFU", _ratio(summary, "prefill_mfu", None)))
    lines.append(_line("Stalls", stall_line(summary)))
    idle = summary.get("gpu_idle_ms")
    window = summary.get("window_ms")
    if idle is not None and is_known(idle) and window:
        lines.append(
            _line(
                "Idle",
                f"{milliseconds(idle)} ({percent(100 * idle / window)} of the window); nvidia-smi would say "
                f"{percent(summary.get('nvml_utilization_pct'))} busy",
            )
        )
    else:
        lines.append(_line("Idle", _why(summary, "gpu_idle_ms")))
    return lines


def _phase_split(summary: Mapping[str, Any]) -> Text:
    text = Text()
    milliseconds_by_phase = summary.get("phase_ms") or {}
    shares = summary.get("phase_pct") or {}
    for phase, ms in milliseconds_by_phase.items():
        if not is_known(ms) or ms <= 0:
            continue
        if text:
            text.append("  ")
        text.append(f"{phase} ", style=PHASE_STYLES.get(phase, ""))
        text.append(f"{percent(shares.get(phase))} {milliseconds(ms)}")
    return text if text else Text(_why(summary, "phase_ms"))


def _spread(values: Mapping[str, Any]) -> str:
    if not values.get("n"):
        return ""
    parts = [f"{key} {milliseconds(values[key])}" for key in ("p50", "p95", "p99", "max") if is_known(values.get(key))]
    return f"{'  '.join(parts)}  (n = {values['n']:,})"


def _ratio(summary: Mapping[str, Any], name: str, lower_bound: object) -> str:
    kernel, wall = summary.get(f"{name}_kernel_pct"), summary.get(f"{name}_wall_pct")
    if not is_known(kernel) and not is_known(wall):
        return _why(summary, f"{name}_kernel_pct")
    bound = bool(lower_bound)
    text = f"{percent(kernel, at_least=bound)} of peak (kernel time), {percent(wall, at_least=bound)} (wall)"
    return text + (", weights only" if bound else "")


def stall_line(summary: Mapping[str, Any]) -> str:
    """The stalls in one line; people read episodes."""
    count = summary.get("stall_count")
    if not is_known(count):
        return _why(summary, "stall_count")
    if not count:
        return "none: no decoding request waited for a prefill"
    episodes = int(summary.get("stall_episode_count") or 0)
    text = (
        f"{milliseconds(summary.get('stall_ms'))} ({percent(summary.get('stall_pct_of_window'))}) in "
        f"{plural(episodes, 'episode')} of {plural(int(count or 0), 'stall')}"
    )
    longest = summary.get("stall_episode_max_ms")
    return text + f"; longest {milliseconds(longest if is_known(longest) else summary.get('stall_max_ms'))}"


def _why(summary: Mapping[str, Any], key: str) -> str:
    reason = reason_for(summary, key)
    return f"not known: {reason}" if reason else "not known"


def _strip(analysis: Analysis, width: int) -> list[Any]:
    """Steps over time as one line of letters; a second line marks the stalls."""
    steps = analysis.steps
    if not len(steps):
        return []
    first = steps.filter((pl.col("group") == steps["group"][0]) & ~pl.col("excluded"))
    if not len(first):
        return []
    first = first.filter(pl.col("device_index") == first["device_index"][0])
    cells = max(20, width - _LABEL_WIDTH - 2)
    start, end = int(first["start_ns"].min()), int(first["end_ns"].max())  # type: ignore[arg-type]
    letters = _cells(first, start, end, cells)
    text = Text()
    for phase in letters:
        text.append(PHASE_LETTERS.get(phase, "."), style=PHASE_STYLES.get(phase, "dim"))
    lines: list[Any] = [_line("Steps", text)]
    if len(analysis.stalls):
        marks = np.full(cells, " ", dtype=object)
        own = analysis.stalls.filter(pl.col("group") == first["group"][0])
        span = max(end - start, 1)
        for a, b in zip(own["start_ns"].to_list(), own["end_ns"].to_list(), strict=True):
            low = int((a - start) * cells // span)
            high = int((b - start) * cells // span)
            marks[max(low, 0) : min(max(high, low + 1), cells)] = "^"
        told = "".join(marks).rstrip()
        legend = "  ^ decode stalled"
        lines.append(_line("", Text(told + legend if len(told + legend) < cells else told)))
    return lines


def _cells(steps: pl.DataFrame, start: int, end: int, cells: int) -> list[str]:
    """The phase that covers most of each of ``cells`` equal parts of the time, '' where no step runs."""
    edges = np.linspace(start, end, cells + 1)
    phases = list(PHASE_LETTERS)
    cover = np.zeros((len(phases), cells))
    a, b = steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy()
    names = steps["phase"].to_list()
    for row, phase in enumerate(phases):
        chosen = np.array([name == phase for name in names])
        if chosen.any():
            # overlap of every cell with a sorted set of intervals, by the integral of their coverage
            low, high = np.sort(a[chosen]), np.sort(b[chosen])
            cover[row] = np.diff(_covered(edges, low, high))
    best = cover.argmax(axis=0)
    return [phases[i] if cover[i, column] > 0 else "" for column, i in enumerate(best)]


def _covered(at: np.ndarray[Any, Any], starts: np.ndarray[Any, Any], ends: np.ndarray[Any, Any]) -> Any:
    """Total time covered before each time in ``at``, by intervals given as sorted starts and sorted ends."""

    def passed(edges: np.ndarray[Any, Any]) -> Any:
        sums = np.concatenate(([0.0], np.cumsum(edges, dtype=float)))
        count = np.searchsorted(edges, at)
        return count * at - sums[count]

    return passed(starts) - passed(ends)


def _top_kernels(analysis: Analysis, width: int) -> list[Any]:
    table = analysis.kernel_table
    totals = table.group_by("phase").agg(pl.col("total_ms").sum()).sort("total_ms", descending=True)
    present = [p for p in totals["phase"].to_list() if p in ("decode", "prefill", "mixed")]
    phases = present[:2] or totals["phase"].to_list()[:1]
    if not phases:
        return []
    grid = Table(box=None, padding=(0, 1), pad_edge=False, show_edge=False, header_style="dim", width=width)
    grid.add_column(Text("Top kernels", style="bold"), no_wrap=True, ratio=1)
    for title in ("n/step", "µs", "share", "FLOP/B", "MFU", "MBU", "bound"):
        grid.add_column(title, justify="left" if title == "bound" else "right", no_wrap=True)
    for phase, count in zip(phases, (_TOP, _TOP - 1) if len(phases) > 1 else (2 * _TOP,), strict=True):
        _add_kernels(grid, table.filter(pl.col("phase") == phase), phase, count)
    return [Text(""), grid]


def _add_kernels(grid: Table, rows: pl.DataFrame, phase: str, count: int) -> None:
    total = float(rows["total_ms"].sum() or 0.0)
    for row in rows.sort("total_ms", "name", descending=[True, False]).head(count).iter_rows(named=True):
        name = Text(f"{PHASE_LETTERS.get(phase, ' ')} ", style=PHASE_STYLES.get(phase, ""))
        name.append(plain(shorten(row["short_name"] or row["name"], 60)), style="default")
        grid.add_row(
            name,
            number(row["count_per_step"]) if is_known(row["count_per_step"]) else "-",
            number(row["median_us"]) if is_known(row["median_us"]) else "-",
            percent(100 * row["total_ms"] / total) if total else "-",
            number(row["arithmetic_intensity"]) if is_known(row["arithmetic_intensity"]) else "-",
            *(percent(row[k]) if is_known(row[k]) else "-" for k in ("mfu_pct", "mbu_pct")),
            row["bound"] or "-",
        )


def _findings(analysis: Analysis) -> list[Any]:
    lines: list[Any] = []
    for order, finding in enumerate(analysis.findings[:_FINDINGS], start=1):
        lines.append(_line(f"Finding {order}", plain(finding.sentence)))
    return [Text(""), *lines] if lines else []


def _undetermined(analysis: Analysis) -> list[Any]:
    lines: list[Any] = []
    gaps = analysis.trace.gaps_in_evidence
    for gap in gaps[:1]:
        more = f" ({len(gaps) - 1} more in the report)" if len(gaps) > 1 else ""
        lines.append(_line("Not known", plain(f"{gap.what}: {gap.consequence}{more}")))
    recapture = next((g.recapture for g in gaps if g.recapture), "")
    if recapture:
        lines.append(_line("Recapture", plain(recapture)))
    return lines
