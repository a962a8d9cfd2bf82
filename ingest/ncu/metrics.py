"""From the metrics of profiled launches to one row per launch.

Nsight Compute names the same quantity in several ways (by version, chip and page); ``ncu_metrics.toml`` lists them.
FLOPs are the operations the chip executed, padding included. Tensor-core counters ``sm__ops_path_tensor_*`` already
count a multiply and an add as two and form a tree (all of a source type; by result type; by sparsity; by instruction),
so one level is taken, never parent and child together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import polars as pl

from ...analysis.facts.load import load_table
from .printed_values import Locale, base_unit

TENSOR_DTYPES = ("bf16", "fp16", "tf32", "fp8", "fp4", "int8", "int4", "int1", "fp64")
_TENSOR = re.compile(
    r"^sm__ops_path_tensor(?:_op_(?P<op>[a-z0-9]+))?_src_(?P<src>[a-z0-9_]+?)"
    r"(?:_dst_(?P<dst>[a-z0-9]+))?(?:_sparsity_(?P<sparsity>off|on))?(?:\.sum)?$"
)

SCHEMA: Mapping[str, pl.DataType | type[pl.DataType]] = {
    "launch_id": pl.Int64,  # Nsight Compute's own number of the launch
    "process": pl.Int64,
    "device": pl.Int32,  # CUDA ordinal
    "context": pl.Int32,
    "stream": pl.Int32,
    "name": pl.String,
    "grid_x": pl.Int64,
    "grid_y": pl.Int64,
    "grid_z": pl.Int64,
    "block_x": pl.Int64,
    "block_y": pl.Int64,
    "block_z": pl.Int64,
    "device_name": pl.String,
    "compute_capability": pl.String,
    "sm_count": pl.Int64,
    "memory_bandwidth_bytes_per_s": pl.Float64,  # 2 x maximum memory clock x bus width, where both are recorded
    "max_clock_hz": pl.Float64,
    "duration_ns": pl.Float64,  # at the clock of the profiler (base clock unless told otherwise), not of serving
    "dram_bytes": pl.Float64,
    "dram_read_bytes": pl.Float64,
    "dram_write_bytes": pl.Float64,
    "l2_bytes": pl.Float64,
    "flop": pl.Float64,  # executed, padding included
    "flop_tensor": pl.Float64,
    **{f"flop_tensor_{dtype}": pl.Float64 for dtype in TENSOR_DTYPES},
    "flop_cuda_fp32": pl.Float64,
    "flop_cuda_fp16": pl.Float64,
    "flop_cuda_fp64": pl.Float64,
    "sm_clock_hz": pl.Float64,
    "dram_clock_hz": pl.Float64,
    "dram_pct": pl.Float64,
    "sm_pct": pl.Float64,
    "memory_pct": pl.Float64,
    "tensor_active_pct": pl.Float64,
    "occupancy_pct": pl.Float64,
    "registers": pl.Int64,
    "shared_memory_bytes": pl.Float64,
    "reason": pl.String,  # why something above is null, '' when nothing needed is missing
}


@dataclass
class Launch:
    """One profiled launch as read: identity and its metrics with their units."""

    launch_id: int
    process: int = 0
    device: int = 0
    context: int = -1
    stream: int = -1
    name: str = ""
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    compute_capability: str | None = None
    metrics: dict[str, tuple[str, str]] = field(default_factory=dict)  # raw name -> (value, unit)
    labels: dict[tuple[str, str], list[tuple[str, str]]] = field(default_factory=dict)  # (section, label) -> values


@cache
def _data() -> dict[str, Any]:
    return load_table("ncu_metrics")


@cache
def wanted(metric: str) -> bool:
    """Whether the raw metric ``metric`` is of use here (a full report has a thousand others)."""
    names = {name for quantity in _data()["quantity"] for entry in quantity["metrics"] for name in _names(entry)}
    return metric in names or metric.startswith(("sm__ops_path_tensor_", "derived__smsp__sass_thread_inst_executed_op_")) or (
        "_sass_thread_inst_executed_op_" in metric and "peak" not in metric
    )  # fmt: skip


def _names(entry: str | list[str]) -> list[str]:
    parts = [entry] if isinstance(entry, str) else entry
    return [part.split(" * ")[0] for part in parts]


def frame_of(launches: list[Launch], locale: Locale) -> pl.DataFrame:
    """One row per launch with the columns of ``SCHEMA``."""
    return pl.DataFrame([_row(launch, locale) for launch in launches], schema=dict(SCHEMA), orient="row")


def _row(launch: Launch, locale: Locale) -> dict[str, Any]:
    found: dict[str, Any] = {
        quantity["column"]: _quantity(launch, quantity, locale) for quantity in _data()["quantity"]
    }
    duration = found["duration_ns"]
    rate = found.pop("dram_bytes_per_s")
    if found["dram_bytes"] is None and rate is not None and duration:
        found["dram_bytes"] = rate * duration / 1e9
    flop, flop_reason = _flop(launch, found, locale)
    reasons = [flop_reason] if flop_reason else []
    if duration is None:
        reasons.insert(0, "no duration (gpu__time_duration)")
    if found["dram_bytes"] is None:
        reasons.append("no DRAM bytes (dram__bytes; profile with --set full or --section MemoryWorkloadAnalysis)")
    clock, bus = found.pop("max_memory_clock_khz"), found.pop("memory_bus_bits")
    major, minor = found.pop("compute_major"), found.pop("compute_minor")
    max_clock = found.pop("max_sm_clock_khz")
    for what, given in (("grid", launch.grid), ("block", launch.block)):
        if given:
            found.update(zip((f"{what}_x", f"{what}_y", f"{what}_z"), given, strict=True))
    capability = f"{major:.0f}.{minor:.0f}" if major is not None and minor is not None else launch.compute_capability
    row = {
        "launch_id": launch.launch_id,
        "process": launch.process,
        "device": launch.device,
        "context": launch.context,
        "stream": launch.stream,
        "name": launch.name,
        "compute_capability": capability,
        "memory_bandwidth_bytes_per_s": 2 * clock * 1e3 * bus / 8 if clock and bus else None,
        "max_clock_hz": max_clock * 1e3 if max_clock else None,
        **found,
        **flop,
        "reason": "; ".join(reasons),
    }
    whole = {column for column, kind in SCHEMA.items() if kind in (pl.Int64, pl.Int32)}
    return {
        column: round(row[column]) if column in whole and isinstance(row.get(column), float) else row.get(column)
        for column in SCHEMA
    }


def _quantity(launch: Launch, quantity: Mapping[str, Any], locale: Locale) -> Any:
    """The value of one quantity in its base unit, None when no name of it has a value of the right kind."""
    unit = quantity["unit"]
    for entry in quantity["metrics"]:
        values = [_metric(launch, part, unit, locale) for part in ([entry] if isinstance(entry, str) else entry)]
        if all(value is not None for value in values):
            return values[0] if len(values) == 1 else sum(values)
    for section, label in quantity.get("labels", ()):
        for (title, name), values in launch.labels.items():
            if name == label and title.startswith(section):
                for text, printed in values:
                    value = _value(text, printed, unit, locale)
                    if value is not None:
                        return value
    return None


def _metric(launch: Launch, name: str, unit: str, locale: Locale) -> Any:
    name, _, times = name.partition(" * ")
    if name not in launch.metrics:
        return None
    text, printed = launch.metrics[name]
    if times:  # sectors: a count that becomes bytes
        value = _value(text, printed, "count", locale)
        return None if value is None else value * float(times)
    return _value(text, printed, unit, locale)


def _value(text: str, printed: str, unit: str, locale: Locale) -> Any:
    if unit == "text":
        return text.strip() or None
    kind, factor = base_unit(printed)
    number = locale.number(text)
    if number is None or (kind != unit and not (kind == "count" and printed.strip() == "")):
        return None  # attributes carry no unit in some versions
    return number * factor


def _flop(launch: Launch, found: dict[str, Any], locale: Locale) -> tuple[dict[str, Any], str]:
    """Executed FLOPs by data path, and the reason when their sum cannot be told."""
    tensor = tensor_flop(launch, locale)
    cores = cuda_core_flop(launch, found, locale)
    active, instructions = found.get("tensor_active_pct"), found.pop("tensor_instructions")
    # Integer operations are no FLOPs of a model's arithmetic type, but they are its tensor work all the same.
    tensor_sum = sum(tensor.values()) if tensor else None
    cores_sum = sum(cores.values()) if cores else None
    idle_tensor = (instructions == 0) if instructions is not None else (active == 0 if active is not None else None)
    total, reason = None, ""
    if tensor_sum is not None and cores_sum is not None:
        total = tensor_sum + cores_sum
    elif tensor_sum:  # the CUDA cores' share beside tensor cores is small
        total = tensor_sum
    elif cores_sum is not None and idle_tensor:
        total = cores_sum
    elif cores_sum is not None:
        reason = "FLOPs of the CUDA cores only: tensor-core counters (sm__ops_path_tensor) were not collected"
    elif tensor_sum is not None:
        reason = "tensor cores did nothing and FLOPs of the CUDA cores (smsp__sass_thread_inst) were not collected"
    else:
        reason = "no FLOP counters (profile with --set full, or --metrics as in the capturing guide)"
    columns = {f"flop_tensor_{dtype}": value for dtype, value in tensor.items()}
    columns |= {f"flop_cuda_{dtype}": value for dtype, value in cores.items()}
    return {"flop": total, "flop_tensor": tensor_sum, **columns}, reason


def tensor_flop(launch: Launch, locale: Locale) -> dict[str, float]:
    """Executed operations of the tensor cores by data type; a type without any counter is absent.

    The tree of counters is read at each of its levels and the largest reading taken: a level that is incomplete or
    that a chip leaves at 0 (``op_hmma`` beside warp-group instructions) reads low, never high.
    """
    tree: dict[str, dict[str, dict[str, dict[str, float]]]] = {}  # source -> instruction -> result -> sparsity -> value
    for name, (text, printed) in launch.metrics.items():
        match = _TENSOR.match(name)
        value = _value(text, printed, "count", locale) if match else None
        if match is not None and value is not None:
            results = tree.setdefault(match["src"], {}).setdefault(match["op"] or "", {})
            results.setdefault(match["dst"] or "", {})[match["sparsity"] or ""] = value
    flop: dict[str, float] = {}
    for source, instructions in tree.items():
        dtype = _data()["tensor_sources"].get(source)
        if dtype:
            flop[dtype] = max(
                flop.get(dtype, 0.0), _largest({op: _by_result(node) for op, node in instructions.items()})
            )
    return flop


def _by_result(results: Mapping[str, Mapping[str, float]]) -> float:
    return _largest({result: _largest(by_sparsity) for result, by_sparsity in results.items()})


def _largest(node: Mapping[str, float]) -> float:
    """The parent ('') or the sum of its children, whichever saw more."""
    return max(node.get("", 0.0), sum(value for child, value in node.items() if child))


def cuda_core_flop(launch: Launch, found: Mapping[str, Any], locale: Locale) -> dict[str, float]:
    """Executed FLOPs of the CUDA cores by data type, from instruction counts or from their rate per cycle."""
    cycles = None
    if found["sm_clock_hz"] is not None and found["duration_ns"] is not None:
        cycles = found["sm_clock_hz"] * found["duration_ns"] / 1e9
    flop: dict[str, float] = {}
    for dtype, instructions in _data()["cuda_cores"].items():
        counts = [
            (count, times)
            for operation, times in instructions.items()
            if (count := _instructions(launch, operation, cycles, locale)) is not None
        ]
        if counts:
            flop[dtype] = sum(count * times for count, times in counts)
    return flop


def _instructions(launch: Launch, operation: str, cycles: float | None, locale: Locale) -> float | None:
    """How many instructions of one kind ran: counted, else rate per cycle times cycles."""
    for unit in ("smsp", "sm"):
        base = f"{unit}__sass_thread_inst_executed_op_{operation}_pred_on.sum"
        counted = _metric(launch, base, "count", locale)
        if counted is not None:
            return float(counted)
    if cycles is None:
        return None
    rate = _rate(launch, f"smsp__sass_thread_inst_executed_op_{operation}_pred_on.sum.per_cycle_elapsed", locale)
    if rate is not None:
        return rate * cycles
    for times in (2, 4):
        rate = _rate(launch, f"derived__smsp__sass_thread_inst_executed_op_{operation}_pred_on_x{times}", locale)
        if rate is not None:
            return rate / times * cycles
    return None


def _rate(launch: Launch, name: str, locale: Locale) -> float | None:
    entry = launch.metrics.get(name)
    return None if entry is None else locale.number(entry[0])
