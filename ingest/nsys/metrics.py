"""Sampled GPU metrics: one wide row per sample and GPU.

GPU_METRICS holds (timestamp, typeId, metricId, value); ``metricId`` repeats per ``typeId`` and is not stable, so names
come from TARGET_INFO_GPU_METRICS by both. The GPU is ``typeId & 0xFF`` as the sampler numbers it (``pwGpuId``).
Percentages are 0..100; clocks are in Hz although the name says [MHz]. Files from before the table have the samples as
JSON in GENERIC_EVENTS.
"""

from __future__ import annotations

import json
from contextlib import suppress

import polars as pl

from ...analysis.records.trace import GPU_METRICS, empty
from .context import Context
from .rows import in_order
from .sqlite_pages.columns import MISSING, Wanted, read_columns
from .sqlite_pages.database import as_int, as_text
from .vocabulary import vocabulary

MEGAHERTZ_BELOW = 1e5  # a clock below this can only be in MHz
JSON_BATCH = 100_000


def column_of(metric: str) -> tuple[str, int] | None:
    """The column a metric's name stands for and its rank among the names of that column; None for other metrics."""
    lowered = " ".join(metric.lower().split())
    if "[avg" in lowered:
        return None
    for column, names in vocabulary()["gpu_metrics"].items():
        for rank, name in enumerate(names):
            if lowered.startswith(name):
                return column, rank
    return None


def read_gpu_metrics(context: Context) -> pl.DataFrame:
    """The GPU_METRICS frame; empty where nothing was sampled."""
    samples = _from_table(context)
    if samples is None:
        samples = _from_generic_events(context)
    if samples is None or samples.is_empty():
        return empty(GPU_METRICS)
    samples = samples.with_columns(device_index=_device_index(samples["gpu"], context)).filter(
        pl.col("device_index") >= 0
    )
    if samples.is_empty():
        context.notes.say("GPU metrics were sampled on GPUs without GPU work only.")
        return empty(GPU_METRICS)
    return _wide(samples, context)


def _from_table(context: Context) -> pl.DataFrame | None:
    """(time_ns, gpu, column, value) from GPU_METRICS, or None without that table."""
    table, names = context.database.find("GPU_METRICS"), context.database.find("TARGET_INFO_GPU_METRICS")
    if table is None or names is None:
        return None
    chosen: dict[tuple[int, str], tuple[int, int]] = {}
    for row in context.database.rows(names, ["typeId", "metricId", "metricName"]):
        type_id, metric_id = as_int(row["typeId"]), as_int(row["metricId"])
        found = column_of(as_text(row["metricName"]) or "")
        if found is None or type_id is None or metric_id is None:
            continue
        column, rank = found
        if (type_id, column) not in chosen or rank < chosen[type_id, column][0]:
            chosen[type_id, column] = rank, metric_id
    if not chosen:
        return None
    meaning = pl.DataFrame(
        [(type_id, metric_id, column) for (type_id, column), (_, metric_id) in chosen.items()],
        schema={"type": pl.Int64, "metric": pl.Int64, "column": pl.String},
        orient="row",
    )
    columns = context.database.columns(table)
    if not {"timestamp", "typeid", "metricid", "value"} <= set(columns):
        return None
    wanted = {
        "time_ns": Wanted("timestamp", "i64"),
        "type": Wanted("typeId", "i64"),
        "metric": Wanted("metricId", "i64"),
        "value": Wanted("value", "i64"),
    }
    chosen_ids = ",".join(map(str, sorted({metric_id for _, metric_id in chosen.values()})))
    read = read_columns(context.database, table, wanted, where=f"metricId IN ({chosen_ids})")
    frame = pl.DataFrame(read.integers).filter((pl.col("value") != MISSING) & (pl.col("time_ns") != MISSING))
    return frame.join(meaning, on=["type", "metric"]).select(
        "time_ns", gpu=pl.col("type") & 0xFF, column="column", value=pl.col("value").cast(pl.Float64)
    )


def _from_generic_events(context: Context) -> pl.DataFrame | None:
    """The same from GENERIC_EVENTS, whose ``data`` is JSON with the metrics' names as keys."""
    table = context.database.find("GENERIC_EVENTS")
    if table is None or not {"data", "timestamp", "typeid"} <= set(context.database.columns(table)):
        return None
    like = " OR ".join(f"data LIKE '%{name}%'" for name in ("SMs Active", "SM Active", "GPC Clock"))
    cursor = context.database.connection.execute(f'SELECT timestamp, typeId, data FROM "{table}" WHERE {like}')
    known: dict[str, tuple[str, int] | None] = {}
    rows: list[tuple[int, int, str, float]] = []
    for timestamp, type_id, data in cursor:
        with suppress(ValueError, RecursionError, TypeError):
            fields = json.loads(data)
            best: dict[str, tuple[int, float]] = {}
            for key, value in fields.items() if isinstance(fields, dict) else ():
                if key not in known:
                    known[key] = column_of(key)
                found = known[key]
                if found is not None and (found[0] not in best or found[1] < best[found[0]][0]):
                    best[found[0]] = found[1], float(value)
            rows.extend((int(timestamp), int(type_id) & 0xFF, column, value) for column, (_, value) in best.items())
    schema = {"time_ns": pl.Int64, "gpu": pl.Int64, "column": pl.String, "value": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _device_index(gpu: pl.Series, context: Context) -> pl.Series:
    index = {}
    distinct = gpu.unique().sort().to_list()
    for perfworks_id in distinct:
        place = context.places.index_of_perfworks_id(perfworks_id)
        if place is None and len(distinct) == 1:
            place = context.places.index_of_only_device()  # one GPU sampled, one GPU at work
        index[perfworks_id] = -1 if place is None else place
    return gpu.replace_strict(index, return_dtype=pl.Int32)


def _wide(samples: pl.DataFrame, context: Context) -> pl.DataFrame:
    invalid = samples.filter((pl.col("time_ns") - context.base.offset) < 0).height
    context.notes.reject("GPU metric: sampled before the capture (negative time)", invalid)
    samples = samples.with_columns(time_ns=pl.col("time_ns") - context.base.offset).filter(pl.col("time_ns") >= 0)
    wide = samples.group_by("time_ns", "device_index").agg(
        [
            pl.col("value").filter(pl.col("column") == column).last().alias(column)
            for column in vocabulary()["gpu_metrics"]
        ]
    )
    percent = [
        pl.when((pl.col(name) >= 0) & (pl.col(name) <= 110)).then(pl.col(name).clip(upper_bound=100.0)).alias(name)
        for name in vocabulary()["gpu_metrics"]
        if name.endswith("_pct")
    ]
    clock = pl.col("sm_clock_hz")
    wide = wide.with_columns(*percent, sm_clock_hz=pl.when(clock < MEGAHERTZ_BELOW).then(clock * 1e6).otherwise(clock))
    return in_order(wide.select(pl.col(name).cast(dtype) for name, dtype in GPU_METRICS.items()))


__all__ = ["column_of", "read_gpu_metrics"]
