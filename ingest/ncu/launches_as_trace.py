"""A Trace of launches that were profiled one by one: no timeline, so they stand end to end in their order."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from ...analysis.records.errors import CannotAnswerError
from ...analysis.records.trace import DEVICES, KERNELS, NAMES, CaptureFacts, EvidenceGap, Trace, build_trace
from ..short_names import short_name

NO_TIMELINE = (
    "Nsight Compute profiles launches one at a time: there is no timeline, so kernels are laid end to end and neither "
    "steps, phases nor stalls can be found."
)
OTHER_CLOCK = (
    "Durations are those under Nsight Compute (clocks locked to base and caches flushed unless told otherwise)."
)
_RECAPTURE = "nsys profile --trace=cuda,nvtx --cuda-graph-trace=node -o run <command>"


def trace_of(path: Path, launches: pl.DataFrame, format_name: str) -> Trace:
    """The Trace of ``launches`` (``ncu_metrics.SCHEMA``). Raises CannotAnswerError when none has a duration."""
    timed = launches.filter(pl.col("duration_ns").is_not_null() & (pl.col("duration_ns") > 0))
    if timed.is_empty():
        raise CannotAnswerError(
            f"{path.name} holds {launches.height:,} profiled launches, none with a duration (gpu__time_duration). "
            "Profile again with --set full or --set roofline."
        )
    rejected = launches.height - timed.height
    durations = timed["duration_ns"].round().cast(pl.Int64)
    ends = durations.cum_sum()
    names = timed["name"].unique(maintain_order=True)
    devices = timed.group_by("device", maintain_order=True).first().sort("device").with_row_index("device_index")
    kernels = (
        timed.with_row_index("row")
        .with_columns((ends - durations).alias("start_ns"), ends.alias("end_ns"))
        .join(devices.select("device", pl.col("device_index").cast(pl.Int32)), on="device", maintain_order="left")
        .with_columns(
            pl.Series("name_id", _codes(timed["name"], names), dtype=pl.UInt32),
            pl.col("row").cast(pl.Int64).alias("correlation_id"),
            pl.lit(-1).alias("graph_node_id"),
            pl.lit(-1).alias("graph_id"),
            pl.lit(0).alias("cluster_size"),
        )
    )
    capture = CaptureFacts(
        source_name=path.name,
        format=format_name,
        product="Nsight Compute",
        duration_ns=int(ends[-1]),
        gpus_present=tuple(devices["device_name"].drop_nulls()),
        rejected_rows={"launch without a duration": rejected} if rejected else {},
        notes=(NO_TIMELINE, OTHER_CLOCK),
    )
    return build_trace(
        capture,
        gaps_in_evidence=(EvidenceGap("no timeline", "no steps, phases, idle time or stalls", _RECAPTURE),),
        kernels=_as(kernels, dict(KERNELS)),
        names=pl.DataFrame(
            {"name_id": range(len(names)), "name": names, "short_name": [short_name(name) for name in names]},
            schema=dict(NAMES),
        ),
        devices=_devices(devices),
    )


def _codes(values: pl.Series, distinct: pl.Series) -> pl.Series:
    return values.replace_strict(distinct, pl.Series(range(len(distinct)), dtype=pl.UInt32))


def _devices(first: pl.DataFrame) -> pl.DataFrame:
    """The ``devices`` frame from the first launch on each GPU."""
    known = pl.col("device_name").is_not_null()
    frame = first.with_columns(
        pl.col("device_index").cast(pl.Int32),
        pl.col("device_name").alias("gpu_name"),
        pl.when(known).then(pl.lit("device__attribute_display_name")).alias("gpu_source"),
        pl.when(known).then(pl.lit("exact")).otherwise(pl.lit("none")).alias("mapping"),
        pl.col("memory_bandwidth_bytes_per_s").round(),
        pl.col("max_clock_hz").round(),
        pl.col("device_name").str.contains(" MIG ").fill_null(False).alias("mig"),
    )
    missing = [pl.lit(None, dtype=dtype).alias(name) for name, dtype in DEVICES.items() if name not in frame.columns]
    return _as(frame.with_columns(missing), dict(DEVICES))


def _as(frame: pl.DataFrame, schema: dict[str, pl.DataType | type[pl.DataType]]) -> pl.DataFrame:
    return frame.select(pl.col(column).cast(dtype) for column, dtype in schema.items())
