"""``trace-analyze doctor``: what a capture holds, what it cannot answer and why, and how to record one that can."""

from __future__ import annotations

import re
from pathlib import Path

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ...analysis.advice.capture_contents import Diagnosis, SizeEstimate, diagnose
from ...analysis.numeric.number_text import scaled, whole
from ...analysis.road import Capture, read_capture
from ..progress import Progress
from ..screen import Screen
from ..terminal import plain

LONGEST_FLAG = 32  # kept whole also on a narrow screen
_ONE = (
    ("launches", "launch"),
    ("processes", "process"),
    ("copies", "copy"),
    ("ranges and annotations", "range or annotation"),
    *((f"{word}s", word) for word in ("kernel", "device", "call", "mark", "row", "sample")),
)
_STATES = {"yes": "yes", "partly": "partly", "no": "NO"}


def run_doctor(capture: Path, *, color: bool = True) -> int:
    """Read ``capture``, print the diagnosis to stdout; returns 0. Raises TraceAnalyzeErrors of reading."""
    with Progress() as progress:
        progress.stage(f"reading {capture.name}")
        diagnosis = diagnose(read_capture(Capture(capture), progress=progress.stage))
    console = Screen(no_color=not color)
    for block in blocks(diagnosis):
        console.print(block)
    # commands are for copying: never folded
    print("\n" + plain_lines(diagnosis.recipe.command()))
    if diagnosis.torch_profiler:
        print(f"\nor with the PyTorch profiler: {plain_lines(diagnosis.torch_profiler)}")
    return 0


def plain_lines(text: str) -> str:
    """A text of several lines without control characters."""
    return "\n".join(plain(line) for line in text.splitlines())


def blocks(diagnosis: Diagnosis) -> list[RenderableType]:
    """What is printed, in order: the capture, its contents, the questions, and how to record."""
    facts = diagnosis.capture
    product = " ".join(x for x in (facts.product, facts.product_version) if x) or facts.format
    engine = " ".join(x for x in (diagnosis.engine_name, diagnosis.engine_version) if x)
    lines: list[RenderableType] = [
        Text(plain(f"{facts.source_name}  ({product})"), style="bold"),
        Text(plain(f"engine: {engine} ({diagnosis.recognised_by})")),
        Text("holds: " + ", ".join(_counted(rows, what) for what, rows in diagnosis.contents)),
        Text(""),
        _questions(diagnosis),
        Text(""),
    ]
    lines += [Text(plain(f"note: {note}")) for note in facts.notes]
    lines += [Text(plain(f"the profiler said ({d.severity}): {d.text}")) for d in facts.diagnostics]
    lines += [Text("How to record it", style="bold"), _flags(diagnosis), Text(plain(diagnosis.processes))]
    lines += [Text(plain(f"{diagnosis.gpu_metrics}: {diagnosis.gpu_metrics_note}"))]
    lines += [Text(plain(note)) for note in diagnosis.recipe.notes]
    lines.append(Text(size_line(diagnosis.size)))
    return lines


def _counted(rows: int, what: str) -> str:
    """``1 kernel``, ``2 devices with GPU work``."""
    for many, one in _ONE if rows == 1 else ():
        what = re.sub(rf"\b{many}\b", one, what)
    return f"{whole(rows)} {what}"


def size_line(size: SizeEstimate) -> str:
    """How large a capture of this run would be: ``10 s of this run would take about 120 MB, ...``."""
    if size.bytes is None:
        return f"size of a capture: not known, {size.reason}"
    metrics = f", and {scaled(size.gpu_metrics_bytes, 'B')} of GPU metrics" if size.gpu_metrics_bytes else ""
    return f"{size.seconds:g} s of this run would take about {scaled(size.bytes, 'B')}{metrics} ({size.reason})"


def _questions(diagnosis: Diagnosis) -> Table:
    grid = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    longest = max((len(word) for q in diagnosis.questions for word in q.fix.split()), default=0)
    for title in ("question", "answered", "because"):
        grid.add_column(title, overflow="fold")
    # a flag in two pieces could not be copied
    grid.add_column("what would change it", overflow="fold", width=max(20, min(longest, LONGEST_FLAG)))
    for q in diagnosis.questions:
        style = "" if q.state == "yes" else "bold"
        grid.add_row(*(Text(plain(x), style=style) for x in (q.question, _STATES[q.state], q.because, q.fix)))
    return grid


def _flags(diagnosis: Diagnosis) -> Table:
    grid = Table.grid(padding=(0, 2))
    for flag, purpose in diagnosis.nsys_flags:
        grid.add_row(Text(plain(flag)), Text(plain(purpose)))
    return grid
