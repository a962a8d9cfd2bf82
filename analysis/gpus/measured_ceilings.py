"""Measured ceilings (``--ceilings FILE.toml``): what a benchmark reached on this machine, instead of the datasheet.

    ["NVIDIA A100-SXM4-80GB"]          # device name, table key or alias; "*" stands for every device
    memory_bandwidth_gbps = 1790       # optional, 1e9 byte/s
    source = "stream + cublasLt, May"  # optional, shown beside the numbers

    ["NVIDIA A100-SXM4-80GB".peak_tflops]   # optional, TFLOP/s by data type; types not named keep the published peak
    bf16 = 268

The first table that fits a device counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..facts.load import read_user_file
from ..records.errors import UsageError

DTYPES = ("bf16", "fp16", "tf32", "fp32", "fp64", "fp8", "int8", "fp4")
_KEYS = ("memory_bandwidth_gbps", "peak_tflops", "source")


@dataclass(frozen=True)
class MeasuredRow:
    """Measured ceilings of one kind of device."""

    memory_bandwidth_gbps: float | None
    peak_tflops: Mapping[str, float]
    source: str


@dataclass(frozen=True)
class MeasuredCeilings:
    """A file of measured ceilings."""

    path: Path
    rows: Mapping[str, MeasuredRow]


def read_ceilings(path: Path) -> MeasuredCeilings:
    """Read and check a file of measured ceilings. Raises ``UsageError`` that names the table and the key."""
    data = read_user_file("--ceilings", path)
    if not data:
        raise UsageError(f'--ceilings {path.name} is empty: it needs a table per device, such as ["*"].')
    return MeasuredCeilings(path=path, rows={name: _row(path.name, name, row) for name, row in data.items()})


def _row(file: str, name: str, row: object) -> MeasuredRow:
    where = f'--ceilings {file}, table ["{name}"]'
    if not isinstance(row, dict):
        raise UsageError(f"{where}: expected a table of numbers, not {row!r}.")
    unknown = sorted(set(row) - set(_KEYS))
    if unknown:
        raise UsageError(f"{where}: unknown key {unknown[0]!r}; known are {', '.join(_KEYS)}.")
    peaks = row.get("peak_tflops", {})
    if not isinstance(peaks, dict):
        raise UsageError(f"{where}: peak_tflops is a table of data types, such as bf16 = 268.")
    for dtype in peaks:
        if dtype not in DTYPES:
            raise UsageError(f"{where}: unknown data type {dtype!r}; known are {', '.join(DTYPES)}.")
    if "memory_bandwidth_gbps" not in row and not peaks:
        raise UsageError(f"{where}: gives neither memory_bandwidth_gbps nor peak_tflops.")
    bandwidth = row.get("memory_bandwidth_gbps")
    return MeasuredRow(
        memory_bandwidth_gbps=None if bandwidth is None else _positive(where, "memory_bandwidth_gbps", bandwidth),
        peak_tflops={dtype: _positive(where, f"peak_tflops.{dtype}", value) for dtype, value in peaks.items()},
        source=str(row.get("source", "")),
    )


def _positive(where: str, key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise UsageError(f"{where}: {key} must be a positive number, not {value!r}.")
    return float(value)
