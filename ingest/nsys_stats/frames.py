"""The frames of a Trace from tables of ``nsys stats``: rows of the GPU trace, or sums by kernel name."""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from ...analysis.records.errors import CannotAnswerError
from ...analysis.records.trace import (
    COPIES,
    DEVICES,
    KERNELS,
    NAMES,
    RANGES,
    TEXTS,
    CaptureFacts,
    EvidenceGap,
    Schema,
    Trace,
    build_trace,
)
from ..short_names import short_name

ROWS_FORMAT, SUMS_FORMAT = "nsys_stats", "nsys_stats_summary"
LONGEST_NS = 10**18  # 30 years of GPU time: beyond it a table is no measurement, and its sums would not fit 64 bits
_DEVICE = re.compile(r"^(?P<name>.*?)\s*\((?P<ordinal>\d+)\)\s*$")
_OPERATION = re.compile(r"^\[(?:CUDA|cuda) ", re.IGNORECASE)
_COPY_KINDS = (
    ("memset", "memset"),
    ("h2d", "Host-to-Device|HtoD"),
    ("d2h", "Device-to-Host|DtoH"),
    ("d2d", "Device-to-Device|DtoD"),
    ("p2p", "Peer-to-Peer|PtoP"),
    ("h2h", "Host-to-Host|HtoH"),
)
_NO_LAUNCHES = EvidenceGap(
    "no launch calls, graphs or markers",
    "phases come from kernel names and geometry; idle time has no cause",
    "nsys export --type sqlite -o run.sqlite run.nsys-rep",
)
_NO_ORDER = EvidenceGap(
    "sums only: no order, no times, no launches",
    "no steps, stalls, idle time or spread; phases only where a kernel's own name tells",
    "nsys export --type sqlite -o run.sqlite run.nsys-rep",
)


def trace_of_rows(source_name: str, table: pl.DataFrame, projected: pl.DataFrame | None) -> Trace:
    """A Trace of the rows of ``cuda_gpu_trace`` (times in ns) and, where given, of projected NVTX ranges."""
    table, rejected = _sound(table)
    names = table["Name"].unique()
    operations = names.filter(names.str.contains(_OPERATION.pattern))
    is_kernel = ~pl.col("Name").is_in(operations.implode())
    if "GrdX" in table.columns:
        is_kernel &= pl.col("GrdX").is_not_null()
    if table.filter(is_kernel).is_empty():
        raise CannotAnswerError(f"{source_name} is a GPU trace without a single kernel ({table.height:,} copies).")
    devices, index_of = _devices(table)
    table = table.join(index_of, on="Device", maintain_order="left", nulls_equal=True)
    kernel_rows = table.filter(is_kernel)
    distinct = kernel_rows["Name"].unique().sort()
    kernels = kernel_rows.select(
        *_times(),
        pl.col("device_index"),
        pl.lit(0, dtype=pl.Int64).alias("process"),
        *(_number(kernel_rows, column, -1).alias(name) for column, name in (("Ctx", "context"), ("Strm", "stream"))),
        _number(kernel_rows, "CorrId", -1).cast(pl.Int64).alias("correlation_id"),
        _codes("Name", distinct).alias("name_id"),
        *(_number(kernel_rows, f"Grd{axis}").alias(f"grid_{axis.lower()}") for axis in "XYZ"),
        *(_number(kernel_rows, f"Blk{axis}").alias(f"block_{axis.lower()}") for axis in "XYZ"),
        _number(kernel_rows, "Reg/Trd").alias("registers"),
        # printed in MB with three decimals, too coarse for occupancy
        pl.lit(None, dtype=pl.Int32).alias("shared_memory_bytes"),
        pl.lit(0, dtype=pl.Int32).alias("cluster_size"),
        pl.lit(-1, dtype=pl.Int64).alias("graph_node_id"),
        pl.lit(-1, dtype=pl.Int64).alias("graph_id"),
    )
    kernels = _ordered(kernels, KERNELS)
    texts, ranges = _ranges(projected, kernels)
    return build_trace(
        CaptureFacts(
            source_name=source_name,
            format=ROWS_FORMAT,
            product="Nsight Systems (nsys stats)",
            duration_ns=int(np.max(table["Start"].to_numpy() + table["Duration"].to_numpy())),
            gpus_present=tuple(devices["gpu_name"].drop_nulls()),
            rejected_rows=rejected,
            tables_missing=("launches", "graphs") if ranges.height else ("launches", "graphs", "ranges"),
            notes=("Read from a GPU trace table: bytes of copies are rounded to kB, shared memory is left out.",),
        ),
        gaps_in_evidence=(_NO_LAUNCHES,),
        names=_names(distinct),
        texts=texts,
        kernels=kernels,
        copies=_copies(table.filter(~is_kernel)),
        ranges=ranges,
        devices=devices,
    )


def sums_by_name(source_name: str, table: pl.DataFrame) -> Trace:
    """A Trace of ``cuda_gpu_kern_sum`` (times in ns): a kernel row is a sum, its launches are in ``launch_counts``.

    The launches of a name are taken to last its mean. Where the total does not divide by their number, two rows hold it:
    some launches last a nanosecond longer, so that counts and totals are those of the table.
    """
    table, rejected = _sound_sums(source_name, table)
    ordinals = _device_of_sums(table).to_numpy()
    instances, totals = table["Instances"].to_numpy(), table["Total Time"].to_numpy()
    mean, longer = totals // instances, totals % instances
    launches = np.column_stack([longer, instances - longer]).ravel()
    row = np.repeat(np.arange(table.height), 2)[launches > 0]
    duration = (np.column_stack([mean + 1, mean]).ravel() * launches)[launches > 0]
    launches = launches[launches > 0]
    distinct = table["Name"].unique().sort()
    codes = table.select(_codes("Name", distinct))["Name"].to_numpy()
    indices = {int(ordinal): index for index, ordinal in enumerate(np.unique(ordinals))}
    device_index = np.array([indices[int(ordinal)] for ordinal in ordinals])[row]
    end = np.zeros(row.size, dtype=np.int64)
    for index in range(len(indices)):
        mine = device_index == index
        end[mine] = np.cumsum(duration[mine])
    grids = {
        f"{name}_{axis}": values[row]
        for column, name in (("GridXYZ", "grid"), ("BlockXYZ", "block"))
        for axis, values in zip("xyz", _triples(table, column), strict=True)
    }
    kernels = pl.DataFrame(
        {
            "start_ns": end - duration,
            "end_ns": end,
            "device_index": device_index.astype(np.int32),
            "name_id": codes[row].astype(np.uint32),
            **{
                name: pl.Series(values, dtype=pl.Float64).fill_nan(None).cast(pl.Int32, strict=False)
                for name, values in grids.items()
            },
        }
    ).with_columns(
        *(pl.lit(value, dtype=KERNELS[name]).alias(name) for name, value in _ABSENT.items()),
        pl.lit(None, dtype=pl.Int32).alias("registers"),
        pl.lit(None, dtype=pl.Int32).alias("shared_memory_bytes"),
    )
    # several devices: their rows are sorted into each other, and the counts go with them
    ordered = kernels.select(pl.col(name).cast(dtype) for name, dtype in KERNELS.items())
    ordered = ordered.with_columns(pl.Series("launch_count", launches, dtype=pl.Int64)).sort(list(KERNELS))
    devices = [
        {"device_index": index, "device": ordinal, "process": 0, "mapping": "none"}
        for ordinal, index in indices.items()
    ]
    return build_trace(
        CaptureFacts(
            source_name=source_name,
            format=SUMS_FORMAT,
            product="Nsight Systems (kernel summary)",
            duration_ns=int(end.max()),
            rejected_rows=rejected,
            tables_missing=("launches", "graphs", "ranges", "copies"),
            notes=(
                "Read from sums by kernel name: each launch is taken to last its name's mean. Totals and counts are exact; "
                "medians, gaps, steps and stalls are not in the table.",
            ),
        ),
        gaps_in_evidence=(_NO_ORDER,),
        names=_names(distinct),
        kernels=ordered.drop("launch_count"),
        launch_counts=ordered.select("launch_count"),
        devices=pl.DataFrame(devices, schema=dict(DEVICES)),
    )


def _sound_sums(source_name: str, table: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, int]]:
    """The rows with a name, a count and a time that can be true, and how many others there are."""
    read = table.with_columns(
        pl.col("Total Time", "Instances").cast(pl.Int64, strict=False), pl.col("Name").cast(pl.String)
    )
    # a GPU cannot launch a kernel more often than once a nanosecond: anything else is no count
    sound = (pl.col("Instances") > 0) & (pl.col("Total Time") >= pl.col("Instances")) & pl.col("Name").is_not_null()
    kept = read.filter(sound & (pl.col("Total Time") <= LONGEST_NS))
    if kept.is_empty() or float(kept["Total Time"].cast(pl.Float64).sum()) > LONGEST_NS:
        raise CannotAnswerError(f"{source_name} lists no kernel with a count and a time that can be true.")
    rejected = read.height - kept.height
    return kept, {"kernel without a sound count and time": rejected} if rejected else {}


def _device_of_sums(table: pl.DataFrame) -> pl.Series:
    column = next((column for column in ("Device ID", "Device", "Rank") if column in table.columns), None)
    return table[column].cast(pl.Int32, strict=False).fill_null(0) if column else pl.Series([0] * table.height)


_ABSENT = {
    "process": 0,
    "context": -1,
    "stream": -1,
    "correlation_id": -1,
    "cluster_size": 0,
    "graph_node_id": -1,
    "graph_id": -1,
}


def _triples(table: pl.DataFrame, column: str) -> list[np.ndarray]:
    """Three columns from text such as " 896    1    1"; NaN where the table has none."""
    if column not in table.columns:
        return [np.full(table.height, np.nan)] * 3
    parts = table[column].cast(pl.String).str.extract_all(r"\d+")
    return [parts.list.get(place, null_on_oob=True).cast(pl.Float64).fill_null(np.nan).to_numpy() for place in range(3)]


def _sound(table: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, int]]:
    known = table.filter(
        pl.col("Start").is_not_null() & pl.col("Duration").is_not_null() & pl.col("Name").is_not_null()
    )
    kept = known.filter(pl.col("Duration") >= 0)
    rejected = {
        "row without a start, a duration or a name": table.height - known.height,
        "row with a negative duration": known.height - kept.height,
    }
    if "Device" not in kept.columns:
        kept = kept.with_columns(pl.lit(None, dtype=pl.String).alias("Device"))
    return kept.with_columns(pl.col("Device").cast(pl.String)), {why: rows for why, rows in rejected.items() if rows}


def _times() -> tuple[pl.Expr, pl.Expr]:
    return pl.col("Start").alias("start_ns"), (pl.col("Start") + pl.col("Duration")).alias("end_ns")


def _number(table: pl.DataFrame, column: str, absent: int | None = None) -> pl.Expr:
    if column not in table.columns:
        return pl.lit(absent, dtype=pl.Int32)
    value = pl.col(column).cast(pl.Float64, strict=False).fill_nan(None).cast(pl.Int32, strict=False)
    return value if absent is None else value.fill_null(absent)


def _codes(column: str, distinct: pl.Series) -> pl.Expr:
    return pl.col(column).replace_strict(
        distinct, pl.Series(range(len(distinct)), dtype=pl.UInt32), return_dtype=pl.UInt32
    )


def _names(distinct: pl.Series) -> pl.DataFrame:
    short = [short_name(name) for name in distinct]
    return pl.DataFrame({"name_id": range(len(distinct)), "name": distinct, "short_name": short}, schema=dict(NAMES))


def _devices(table: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Devices from texts such as "NVIDIA L4 (0)"; without a number, in order of appearance of their names."""
    rows, seen = [], set()
    for index, text in enumerate(table["Device"].unique().sort().to_list()):
        match = _DEVICE.match(text or "")
        name = (match["name"] if match else text) or None
        ordinal = int(match["ordinal"]) if match else index
        while ordinal in seen:
            ordinal += 1
        seen.add(ordinal)
        rows.append((text, ordinal, name))
    rows.sort(key=lambda row: row[1])
    devices = pl.DataFrame(
        [
            {
                "device_index": index,
                "device": ordinal,
                "process": 0,
                "gpu_name": name,
                "gpu_source": "nsys stats" if name else None,
                "mapping": "ordinal" if name else "none",
                "mig": None if name is None else " MIG " in name,
            }
            for index, (_, ordinal, name) in enumerate(rows)
        ],
        schema=dict(DEVICES),
    )
    texts = pl.Series("Device", [text for text, _, _ in rows], dtype=pl.String)
    return devices, pl.DataFrame({"Device": texts, "device_index": pl.Series(range(len(rows)), dtype=pl.Int32)})


def _copies(rows: pl.DataFrame) -> pl.DataFrame:
    kind = pl.lit("other")
    for name, pattern in reversed(_COPY_KINDS):
        kind = pl.when(pl.col("Name").str.contains(f"(?i){pattern}")).then(pl.lit(name)).otherwise(kind)
    megabytes = next((column for column in rows.columns if column.startswith("Bytes")), None)
    size = (
        pl.col(megabytes).cast(pl.Float64, strict=False).fill_nan(None) * 1e6
        if megabytes
        else pl.lit(None, dtype=pl.Float64)
    )
    copies = rows.select(
        *_times(),
        pl.col("device_index"),
        pl.lit(0, dtype=pl.Int64).alias("process"),
        *(_number(rows, column, -1).alias(name) for column, name in (("Ctx", "context"), ("Strm", "stream"))),
        _number(rows, "CorrId", -1).cast(pl.Int64).alias("correlation_id"),
        kind.cast(COPIES["kind"]).alias("kind"),
        size.round().cast(pl.Int64).alias("bytes"),
        pl.lit(-1, dtype=pl.Int64).alias("graph_node_id"),
    )
    return _ordered(copies, COPIES)


def _ranges(projected: pl.DataFrame | None, kernels: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Texts and ranges on GPU time. The table does not name their stream: it is the one with the most kernels."""
    if projected is None or projected.is_empty():
        return pl.DataFrame(schema=dict(TEXTS)), pl.DataFrame(schema=dict(RANGES))
    known = projected.filter(pl.col("Projected Start").is_not_null() & pl.col("Projected Duration").is_not_null())
    # nvtx_gpu_proj_trace writes "domain:text", with nothing before the colon for the default domain
    known = known.with_columns(pl.col("Name").cast(pl.String).fill_null("").str.strip_prefix(":"))
    distinct = pl.concat([pl.Series("Name", [""]), known["Name"]]).unique().sort()
    device, stream = (
        kernels.group_by("device_index", "stream")
        .len()
        .sort("len", "device_index", "stream", descending=[True, False, False])
        .row(0)[:2]
    )
    ranges = known.select(
        pl.col("Projected Start").alias("start_ns"),
        (pl.col("Projected Start") + pl.col("Projected Duration")).alias("end_ns"),
        pl.lit(0, dtype=pl.Int64).alias("process"),
        pl.lit(-1, dtype=pl.Int64).alias("thread"),
        pl.lit(-1, dtype=pl.Int64).alias("end_thread"),
        _codes("Name", distinct).alias("text_id"),
        pl.lit(0, dtype=pl.UInt32).alias("domain_text_id"),
        pl.lit("gpu_annotation", dtype=RANGES["kind"]).alias("kind"),
        pl.lit(device, dtype=pl.Int32).alias("device_index"),
        pl.lit(stream, dtype=pl.Int32).alias("stream"),
    )
    texts = pl.DataFrame({"text_id": range(len(distinct)), "text": distinct}, schema=dict(TEXTS))
    return texts, _ordered(ranges, RANGES)


def _ordered(frame: pl.DataFrame, schema: Schema) -> pl.DataFrame:
    frame = frame.select(pl.col(name).cast(dtype) for name, dtype in schema.items())
    return frame.sort(frame.columns)
