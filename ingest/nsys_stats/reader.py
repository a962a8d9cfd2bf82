"""Outputs of ``nsys stats`` and ``nsys recipe``: tables that people keep when the report itself is gone.

Two reports hold kernels. ``cuda_gpu_trace`` (CSV, or the same columns as Parquet) has one row per kernel and copy with
its times, so steps and stalls can be found, but no launch calls, graphs or markers; where the projected NVTX ranges of
``nvtx_gpu_proj_trace`` stand in the same file they are read as ranges on GPU time. ``cuda_gpu_kern_sum`` (CSV, or the
output folder or Parquet files of the recipe of that name) has one row per kernel name, so it answers where time went and
nothing about order. The columns are described in the Nsight Systems Analysis Guide, "Statistical Reports". Lines that
``nsys stats`` prints around a table, several tables in one file, and every ``--timeunit`` are accepted. So are the tables
it shows on a terminal (``printed_tables.py``), which cut long names, and CSV by tabs or semicolons.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import polars as pl

from ...analysis.records.errors import CannotAnswerError, NotACaptureError
from ...analysis.records.trace import Trace
from .frames import sums_by_name, trace_of_rows
from .printed_tables import MisalignedTableError, is_printed, printed_tables, with_plain_numbers

TRACE, SUMMARY, PROJECTION = "cuda_gpu_trace", "cuda_gpu_kern_sum", "nvtx_gpu_proj_trace"
PARQUET_MAGIC = b"PAR1"
HEAD_BYTES = 65536
# The recipe writes the same table three ways; the finest one present is read.
RECIPE_FILES = ("rank_stats_by_device.parquet", "rank_stats.parquet", "all_stats.parquet", "all_stats.csv")
_HEADER = re.compile(
    r'^"?(?:Start ?\((?:ns|nsec|us|usec|ms|msec|s|sec)\)"?[,;\t]"?Duration|Name"?[,;\t]"?Projected Start|'
    r'Time ?\(%\)"?[,;\t]"?Total Time|Name"?[,;\t]"?Time"?[,;\t]"?Total Time).*$',
    re.MULTILINE,
)
_HEADER_STARTS = (b"\nStart (", b'\n"Start (', b"\nName,", b'\n"Name","', b"\nTime (%)", b'\n"Time (%)"')
_SEPARATOR = re.compile(r'^(?:"[^"]*"|[^",;\t]*)([,;\t])')
_UTF16 = (b"\xff\xfe", b"\xfe\xff")  # what PowerShell redirects output as
_CUT = r"(?:\.\.\.|\x{2026})$"
_UNIT = re.compile(r"\((ns|nsec|us|usec|ms|msec|s|sec)\)")
_NS = {"ns": 1, "nsec": 1, "us": 1e3, "usec": 1e3, "ms": 1e6, "msec": 1e6, "s": 1e9, "sec": 1e9}
_WHOLE_NAMES = "nsys stats --report cuda_gpu_kern_sum --format csv run.nsys-rep > run.csv"
_ASK = "nsys stats --report cuda_gpu_trace --format csv --output run run.nsys-rep"


def sniff(path: Path, head: bytes) -> bool:
    """Whether this is a table of such a report in any of its forms, or the output folder of a recipe."""
    if path.is_dir():
        return _recipe_file(path) is not None
    if head.startswith(PARQUET_MAGIC):
        return _kind(_parquet_columns(path)) is not None
    text = _utf8(head).replace(b"\r\n", b"\n").decode("utf-8", "replace")
    return bool(_HEADER.search(text)) or is_printed(text)


def read(path: Path, *, progress: Callable[[str], None] | None = None) -> Trace:
    """A Trace of the rows of ``cuda_gpu_trace``, or of the sums of ``cuda_gpu_kern_sum``.

    Raises NotACaptureError for another report, CannotAnswerError when the table has no kernel.
    """
    tables = list(_tables(path))
    if progress:
        progress(f"{sum(len(table) for _, table in tables):,} rows read")
    kinds = {kind: table for kind, table in tables if kind}
    if TRACE in kinds:
        return _with_cut_names_told(trace_of_rows(path.name, kinds[TRACE], kinds.get(PROJECTION)))
    if SUMMARY in kinds:
        return _with_cut_names_told(sums_by_name(path.name, kinds[SUMMARY]))
    if PROJECTION in kinds:
        raise CannotAnswerError(
            f"{path.name} is the report {PROJECTION}: ranges without kernels. Add the kernels, in one file: "
            f"nsys stats --report {PROJECTION},{TRACE} --format csv run.nsys-rep > run.csv"
        )
    raise NotACaptureError(
        f"{path.name} is a table of `nsys stats` or `nsys recipe` without kernels by name and time. "
        f"Expected the report {TRACE} or {SUMMARY}. Make one with: {_ASK}"
    )


def _with_cut_names_told(trace: Trace) -> Trace:
    """The Trace with a note on the kernel names that the table holds only in part."""
    cut = int(trace.names["name"].str.contains(_CUT).sum())
    if not cut:
        return trace
    told = (
        f"{cut} of {trace.names.height} kernel names are cut in this table: they are matched as far as they go, and kernels "
        f"whose names are cut to the same text count as one. For whole names: {_WHOLE_NAMES}"
    )
    return replace(trace, capture=replace(trace.capture, notes=(*trace.capture.notes, told)))


def _tables(path: Path) -> Iterator[tuple[str | None, pl.DataFrame]]:
    """Tables of the file with their kind; times in ns, column names without units."""
    if path.is_dir():
        chosen = _recipe_file(path)
        if chosen is None:
            raise NotACaptureError(f"{path.name} is a folder without the tables of a kernel recipe.")
        path = chosen
    with path.open("rb") as file:
        is_parquet = file.read(4) == PARQUET_MAGIC
    try:
        if is_parquet:
            yield _normal(_from_pandas(path))
            return
        data = _utf8(path.read_bytes())
        found = False
        for block in _blocks(data):
            found = True
            yield _normal(_csv(block))
        if not found:
            printed = data.replace(b"\r\n", b"\n").decode("utf-8", "replace")
            yield from (_normal(with_plain_numbers(table)) for table in printed_tables(printed))
    except MisalignedTableError as error:
        raise NotACaptureError(
            f"{path.name} is a printed table of `nsys stats` that cannot be read: {error}. Print it as CSV: {_WHOLE_NAMES}"
        ) from error
    except (ValueError, OSError, pl.exceptions.PolarsError) as error:  # pandas' errors are ValueErrors
        raise NotACaptureError(f"{path.name} is damaged or cut off ({error}). Make it again with: {_ASK}") from error


def _from_pandas(path: Path) -> pl.DataFrame:
    """Recipes write frames of pandas, whose index (the kernel's name) only pandas gives back."""
    import pandas as pd

    frame: pl.DataFrame = pl.from_pandas(pd.read_parquet(path).reset_index())
    return frame


def _utf8(data: bytes) -> bytes:
    return data.decode("utf-16", "replace").encode() if data.startswith(_UTF16) else data


def _blocks(data: bytes) -> Iterator[bytes]:
    """The CSV tables in what ``nsys stats`` printed: each from its header to an empty line or the next header."""
    data = data.removeprefix(b"\xef\xbb\xbf")
    if b"\r" in data[:HEAD_BYTES]:
        data = data.replace(b"\r\n", b"\n")
    for section in data.split(b"\n\n"):
        yield from _tables_of_section(section)


def _tables_of_section(section: bytes) -> Iterator[bytes]:
    place = 0
    while place < len(section):
        head = section[place : place + HEAD_BYTES].decode("utf-8", "replace")
        found = _HEADER.search(head)
        if found is None:
            return
        start = place + len(head[: found.start()].encode())
        following = (section.find(mark, start + 1) for mark in _HEADER_STARTS)
        place = min((end for end in following if end >= 0), default=len(section))
        yield section[start:place].rstrip() + b"\n"


def _csv(block: bytes) -> pl.DataFrame:
    header = block.partition(b"\n")[0].decode("utf-8", "replace")
    found = _SEPARATOR.match(header)
    separator = found.group(1) if found else ","
    names = header.replace('"', "").split(separator)
    texts = {name: pl.String for name in names if name.strip() in ("Name", "Device", "Style", "RangeStack")}
    try:
        table = pl.read_csv(
            block, separator=separator, schema_overrides=texts, infer_schema_length=10_000, encoding="utf8-lossy"
        )
    except pl.exceptions.PolarsError:  # a number where ten thousand rows had none: the columns are cast one by one
        table = pl.read_csv(
            block, separator=separator, infer_schema=False, encoding="utf8-lossy", truncate_ragged_lines=True
        )
    return with_plain_numbers(table)


def _normal(table: pl.DataFrame) -> tuple[str | None, pl.DataFrame]:
    """The table with plain column names, times in ns, and which report it is."""
    columns = []
    for name in table.columns:
        unit = _UNIT.search(name)
        plain = _UNIT.sub("", name).replace("Time (%)", "Share").replace("Time(%)", "Share").strip()
        values = table[name]
        columns.append((_nanoseconds(values, _NS[unit.group(1)]) if unit else values).alias(plain))
    frame = pl.DataFrame(columns)
    return _kind(frame.columns), frame


def _nanoseconds(values: pl.Series, factor: float) -> pl.Series:
    if factor == 1 and values.dtype.is_integer():
        return values.cast(pl.Int64)
    return (values.cast(pl.Float64, strict=False) * factor).fill_nan(None).round().cast(pl.Int64)


def _kind(columns: list[str]) -> str | None:
    """Which report a table with these columns (without units) is, or None."""
    plain = {_UNIT.sub("", column).strip() for column in columns}
    if {"Start", "Duration", "Name"} <= plain and ({"GrdX", "CorrId"} & plain):
        return TRACE
    if {"Projected Start", "Projected Duration", "Name"} <= plain:
        return PROJECTION
    if {"Total Time", "Instances", "Name"} <= plain and not ({"Style", "Category", "Operation"} & plain):
        return SUMMARY
    return None


def _parquet_columns(path: Path) -> list[str]:
    try:
        return list(pl.read_parquet_schema(path))
    except (OSError, pl.exceptions.PolarsError):
        return []


def _recipe_file(folder: Path) -> Path | None:
    """The table of a kernel recipe's output folder, None when the folder is something else."""
    for name in RECIPE_FILES:
        file = folder / name
        if not file.is_file():
            continue
        columns = _parquet_columns(file) if file.suffix == ".parquet" else _first_line(file)
        if _kind(columns) == SUMMARY and _is_kernel_recipe(folder):
            return file
    return None


def _first_line(file: Path) -> list[str]:
    with file.open(encoding="utf-8-sig", errors="replace") as stream:
        return stream.readline().strip().replace('"', "").split(",")


def _is_kernel_recipe(folder: Path) -> bool:
    """Whether the folder's ``.nsys-analysis`` names a kernel recipe; without one the columns decide."""
    for described in filter(Path.is_file, folder.glob("*.nsys-analysis")):  # not a pipe of that name
        text = described.read_text(encoding="utf-8", errors="replace")
        return "kern" in text
    return True
