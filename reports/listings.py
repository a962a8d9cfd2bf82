"""The tables of ``trace-analyze gpus``, ``models`` and ``markers``: what the data files know, as text."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .format import is_known, number

_WIDE = 200  # a piped listing is for grep: one line a row


def _print(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, left: int) -> None:
    """A table whose first column never breaks; a narrow terminal loses the columns before the last, one by one."""
    wide = None if sys.stdout.isatty() else _WIDE
    console = Console(file=sys.stdout, width=wide, highlight=False, markup=False, emoji=False)
    kept = list(range(len(columns)))
    while len(kept) > 2 and _least_width(columns, rows, kept) > console.width:
        del kept[-2]
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


def _least_width(columns: Sequence[str], rows: Sequence[Sequence[str]], kept: Sequence[int]) -> int:
    """Characters that the kept columns need, the last one folded to 16."""
    widths = [max(len(columns[i]), *(len(row[i]) for row in rows)) for i in kept[:-1]]
    return sum(widths) + 2 * len(kept) + 16


def _cell(value: float | None) -> str:
    return number(value) if is_known(value) else "-"


def print_gpus() -> None:
    """Every GPU of hardware.toml: dense peaks, bandwidth, ridge, confidence, and the names --gpu accepts."""
    from ..analysis.gpu_table import list_gpus

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
    from ..analysis.models import list_models

    rows = [
        [
            str(model["name"]),
            f"{model['parameters'] / 1e9:.2f}",
            f"{model['parameters_active'] / 1e9:.2f}",
            str(model["layers"]),
            f"{model['kv_bytes_per_token'] / 1024:,.0f}",
            _cell(model["ridge_batch_a100"]),
            _cell(model["ridge_batch_h100"]),
            str(model["weight_dtype"]),
            ", ".join(model["aliases"]),
        ]
        for model in list_models()
    ]
    columns = ["model", "B params", "active", "layers", "KiB/token", "ridge A100", "ridge H100", "weights", "--model"]
    _print(
        "Parameters in billions; KV cache per token in bf16; ridge batch: tokens a step at which weight GEMMs turn "
        "compute-bound (A100 80 GB, H100 SXM).",
        columns, rows, left=1,
    )  # fmt: skip


def print_markers() -> None:
    """Every grammar of markers.toml by engine, with an example and what it gives."""
    from ..analysis.markers import list_markers

    rows = [
        [str(m["engine"]), str(m["role"]), str(m["gives"]), str(m["example"]), str(m["versions"])]
        for m in list_markers()
    ]
    _print(
        "NVTX and profiler range texts that are recognised; add your own with --markers FILE.toml.",
        ["engine", "role", "gives", "example", "versions"], rows, left=5,
    )  # fmt: skip
