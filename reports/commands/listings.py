"""The tables of ``trace-analyze gpus``, ``models`` and ``markers``: what the data files know, as text."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from ...analysis.numeric.number_text import is_known, number
from ..screen import Screen

_GAP = "  "


def _print(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: int,
    spare: Sequence[str] = (),
) -> None:
    """A table, the first ``left`` columns and the last flush left.

    Into a pipe every column is whole and every row one line, for grep. A terminal folds the last column; where it is
    too narrow it loses the columns ``spare`` first, then those before the last, one by one.
    """
    if not sys.stdout.isatty():
        _print_lines(title, columns, rows, left=left)
        return
    console = Screen()
    kept = list(range(len(columns)))
    to_go = [columns.index(each) for each in spare]
    while len(kept) > 2 and _least_width(columns, rows, kept) > console.width:
        kept.remove(to_go.pop(0) if to_go else kept[-2])
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for index in kept:
        last = index == len(columns) - 1
        table.add_column(
            columns[index], justify="left" if index < left or last else "right", no_wrap=not last, overflow="fold"
        )
    for row in rows:
        table.add_row(*(Text(row[index]) for index in kept))
    console.print(Text(title))
    console.print(table)


def _print_lines(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, left: int) -> None:
    widths = [max(len(row[index]) for row in (columns, *rows)) for index in range(len(columns))]
    flush_left = [index < left or index == len(columns) - 1 for index in range(len(columns))]
    print(title)
    for row in (columns, *rows):
        cells = [
            cell.ljust(width) if at_left else cell.rjust(width)
            for cell, width, at_left in zip(row, widths, flush_left, strict=True)
        ]
        print(_GAP.join(cells).rstrip())


def _least_width(columns: Sequence[str], rows: Sequence[Sequence[str]], kept: Sequence[int]) -> int:
    """Characters that the kept columns need, the last one of the table folded to 16."""
    widths = [max(len(columns[i]), *(len(row[i]) for row in rows)) for i in kept]
    if kept[-1] == len(columns) - 1:
        widths[-1] = min(widths[-1], 16)
    return sum(widths) + 2 * len(kept)


def _cell(value: float | None) -> str:
    return number(value) if is_known(value) else "-"


def print_gpus() -> None:
    """Every GPU of gpus.toml: dense peaks, bandwidth, ridge, confidence, and the names --gpu accepts."""
    from ...analysis.gpus.gpu_table import list_gpus

    rows = [
        [
            str(gpu["name"]),
            *(_cell(gpu["peak_tflops"].get(dtype)) for dtype in ("bf16", "fp16", "fp8", "int8", "fp4")),
            _cell(gpu["bandwidth_gbps"]),
            _cell(gpu["ridge_flop_per_byte"]),
            _cell(gpu["sm_count"]),
            _cell(gpu["memory_gb"]),
            str(gpu["confidence"]),
            ", ".join(gpu["also"]),
        ]
        for gpu in list_gpus()
    ]
    columns = ["GPU", "bf16", "fp16", "fp8", "int8", "fp4", "GB/s", "ridge", "SMs", "GB", "confidence", "--gpu"]
    _print("Dense peaks in TFLOP/s (no sparsity), bandwidth in GB/s, ridge in FLOP/byte.", columns, rows, left=1)


def print_models() -> None:
    """Every model of models.toml: parameters, bytes of KV per token, the batch at which decode GEMMs meet the ridge."""
    from ...analysis.models.find_model import list_models

    rows = [
        [
            str(model["name"]),
            f"{model['parameters'] / 1e9:,.2f}",
            f"{model['parameters_active'] / 1e9:,.2f}",
            str(model["layers"]),
            f"{model['kv_bytes_per_token'] / 1024:,.0f}",
            _cell(model["ridge_batch_a100"]),
            _cell(model["ridge_batch_h100"]),
            str(model["weight_dtype"]),
            ", ".join(model["aliases"]),
        ]
        for model in list_models()
    ]
    columns = ["model", "params", "active", "layers", "KV KiB", "A100", "H100", "weights", "also as"]
    _print(
        "Models by the names --model takes, case and punctuation aside. Parameters in billions; KV cache of one token "
        "in KiB; A100, H100: ridge batch, the tokens a step at which weight GEMMs turn compute-bound (A100 SXM 80 GB, "
        "H100 SXM). Any other model: --model path/to/config.json.",
        columns, rows, left=1, spare=("also as", "weights"),
    )  # fmt: skip


def print_markers() -> None:
    """Every grammar of markers.toml by engine, with an example and what it gives."""
    from ...analysis.markers.grammar import list_markers

    rows = [[m[key] for key in ("engine", "role", "gives", "versions", "example")] for m in list_markers()]
    _print(
        "NVTX and profiler range texts that are recognised; add your own with --markers FILE.toml.",
        ["engine", "role", "gives", "about", "example"], rows, left=5,
    )  # fmt: skip
