"""CSV and Parquet: one file per table of the result, columns as in docs/json.md.

``kernel_rows`` (every kernel with its tags and work) is written to Parquet only: a CSV of millions of rows helps nobody.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import polars as pl

from ..analysis.records.analysis import Analysis
from ..analysis.records.plain_values import clean
from .whole_files import check_target, write_whole


def result_tables(analysis: Analysis) -> dict[str, pl.DataFrame]:
    """The tables of one result by name, nested values as JSON text so that every reader takes them."""
    tables = {
        "steps": analysis.steps,
        "stalls": analysis.stalls,
        "inter_token_gaps": analysis.gaps,
        "kernels": analysis.kernel_table,
        "op_classes": analysis.op_classes,
        "idle": analysis.idle,
        "graphs": analysis.graphs,
        "collectives": analysis.collectives,
        "devices": _records([dict(d) for d in analysis.devices]),
        "findings": _records(
            [
                {"id": f.id, "sentence": f.sentence, "recoverable_ms": f.recoverable_ms, "lever": f.lever}
                for f in analysis.findings
            ]
        ),
    }
    if analysis.step_table is not None:
        tables["step_table"] = analysis.step_table
    return {name: flatten(frame) for name, frame in tables.items()}


def _records(rows: list[dict[str, object]]) -> pl.DataFrame:
    flat = [{k: _as_json(v) if isinstance(v, Mapping | list | tuple) else v for k, v in row.items()} for row in rows]
    return pl.DataFrame(flat, infer_schema_length=None)


def _as_json(value: object) -> str:
    return orjson.dumps(clean(value), option=orjson.OPT_NON_STR_KEYS).decode()


def flatten(frame: pl.DataFrame) -> pl.DataFrame:
    """Object and list columns as JSON text, enumerations as strings."""
    columns = []
    for name, dtype in frame.schema.items():
        if dtype == pl.Object or isinstance(dtype, pl.List | pl.Struct):
            texts = [None if v is None else _as_json(v) for v in frame[name].to_list()]
            columns.append(pl.Series(name, texts, dtype=pl.String))
        elif isinstance(dtype, pl.Enum):
            columns.append(frame[name].cast(pl.String))
        else:
            columns.append(frame[name])
    return pl.DataFrame(columns)


def kernel_rows(analysis: Analysis) -> pl.DataFrame:
    """Every kernel with its short name, tags and work; one row a launch.

    Of an input of sums there are no launches: a row stands for the ``launch_count`` that its last column says.
    """
    names = analysis.trace.names.select("name_id", "name", "short_name")
    rows = flatten(analysis.kernels.join(names, on="name_id", how="left", maintain_order="left"))
    return rows.hstack(analysis.trace.launch_counts) if analysis.trace.holds_sums else rows


def pandas_frames(analysis: Analysis) -> dict[str, Any]:
    """The tables of one result and ``kernel_rows`` as pandas frames; enumerations become strings."""
    frames = result_tables(analysis) | {"kernel_rows": kernel_rows(analysis)}
    return {name: frame.to_pandas() for name, frame in frames.items()}


def write_table(frame: pl.DataFrame, path: Path) -> None:
    """Write one table as CSV or Parquet, as the suffix says, in place of an earlier one of mostly the same columns.

    By way of memory: polars itself takes UTF-8 names only and hides a full disk. Raises UsageError.
    """
    content = io.BytesIO()
    if path.suffix == ".csv":
        frame.write_csv(content)
    else:
        frame.write_parquet(content)
    write_whole(path, content.getvalue(), ours=lambda there: _has_columns(there, frame.columns))


def check_table(path: Path, columns: Sequence[str]) -> None:
    """Raise UsageError where ``write_table`` of a frame with ``columns`` would not write ``path``."""
    check_target(path, ours=lambda there: _has_columns(there, columns))


def _has_columns(path: Path, columns: Sequence[str]) -> bool:
    """Whether at least half of the columns of the table ``path`` are among ``columns``."""
    try:
        if path.suffix == ".csv":
            with path.open(encoding="utf-8", newline="") as file:
                there = next(csv.reader(file), [])
        else:
            there = list(pl.read_parquet_schema(path.read_bytes()))
    except (OSError, UnicodeDecodeError, csv.Error, pl.exceptions.PolarsError):
        return False
    known = [name for name in there if name]
    return 2 * len(set(known) & set(columns)) >= len(known)


def write_tables(analysis: Analysis, folder: Path, output_format: str) -> list[Path]:
    """Write every table into ``folder`` as ``<table>.csv`` or ``<table>.parquet``; returns the files."""
    written = []
    tables = result_tables(analysis)
    if output_format == "parquet":
        tables["kernel_rows"] = kernel_rows(analysis)
    for name, frame in tables.items():
        path = folder / f"{name}.{output_format}"
        write_table(frame, path)
        written.append(path)
    return written
