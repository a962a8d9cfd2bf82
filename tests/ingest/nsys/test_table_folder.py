"""Folders of Parquet and Arrow files say what the SQLite export says."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from trace_analyze.analysis.records.errors import CannotAnswerError, NotACaptureError
from trace_analyze.analysis.records.trace import FRAMES
from trace_analyze.fixtures.writers.nsys_writer import Capture
from trace_analyze.fixtures.writers.parquet_writer import write_tables
from trace_analyze.ingest import nsys, open_trace
from trace_analyze.ingest.nsys import table_folder as nsys_tables

GENERATIONS = ["2022", "2023.4", "2025.1", "2025.6"]


def export(tmp_path, generation="2025.6"):
    capture = Capture(generation)
    capture.gpu("h100")
    capture.kernel("void gemm<64>(float*)", 10_000, 20_000, launched_at=5_000)
    capture.kernel("norm", 40_000, 45_000, launched_at=30_000)
    capture.nvtx("step[DECODE bs=1]", 4_000, 31_000)
    return capture.write(tmp_path / "run.sqlite")


def assert_same(one, other):
    for name in FRAMES:
        assert getattr(one, name).equals(getattr(other, name)), name
    named = replace(other.capture, format=one.capture.format, source_name=one.capture.source_name)
    assert named == one.capture
    assert other.gaps_in_evidence == one.gaps_in_evidence


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize("generation", GENERATIONS)
def test_the_same_trace_as_from_sqlite(tmp_path, kind, generation):
    sqlite = export(tmp_path, generation)
    folder = write_tables(sqlite, tmp_path / "run_pqtdir", kind=kind)
    assert nsys_tables.sniff(folder, b"")
    trace = open_trace(folder)
    assert (trace.kernels.height, trace.capture.format) == (2, f"nsys_{kind}")
    assert_same(nsys.read(sqlite), trace)


def test_unsigned_ids_temporal_columns_and_arrow_streams(tmp_path):
    sqlite = export(tmp_path)
    folder = write_tables(sqlite, tmp_path / "arrow", kind="arrow")
    for file in folder.glob("CUPTI*.arrow"):
        frame = pl.read_ipc(file.read_bytes())
        frame = frame.with_columns(pl.col("^global.*id$").reinterpret(signed=False), pl.col("start").cast(pl.Datetime("ns")))  # fmt: skip
        frame.write_ipc_stream(file)
    assert_same(nsys.read(sqlite), nsys_tables.read(folder))


def test_a_folder_of_other_files_is_not_taken(tmp_path):
    assert not nsys_tables.sniff(tmp_path, b"")
    (tmp_path / "StringIds.txt").write_text("x")
    pl.DataFrame({"a": [1]}).write_parquet(tmp_path / "sales.parquet")
    assert not nsys_tables.sniff(tmp_path, b"")
    assert not nsys_tables.sniff(tmp_path / "sales.parquet", b"PAR1")


def test_a_damaged_table_is_named(tmp_path):
    folder = write_tables(export(tmp_path), tmp_path / "run_pqtdir")
    file = folder / "CUPTI_ACTIVITY_KIND_KERNEL.parquet"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(NotACaptureError, match=r"CUPTI_ACTIVITY_KIND_KERNEL.parquet is damaged.*parquetdir"):
        nsys_tables.read(folder)
    file.write_bytes(whole[:40] + bytes(200) + whole[240:])  # the footer is whole, the pages are not
    with pytest.raises(NotACaptureError, match=r"damaged"):
        nsys_tables.read(folder)


def test_no_kernels_is_the_same_refusal(tmp_path):
    folder = write_tables(export(tmp_path), tmp_path / "run_pqtdir")
    (folder / "CUPTI_ACTIVITY_KIND_KERNEL.parquet").unlink()
    with pytest.raises(CannotAnswerError, match="run_pqtdir is an Nsight Systems export without kernels"):
        nsys_tables.read(folder)


def test_real_captures(shared_traces, tmp_path):
    for name in ("2026.2.1-h100x2-dit-nccl", "2025.3.1-t4-nvtx-by-textid", "2023.3.3-a30-mig-2g"):
        sqlite = shared_traces / "nsys" / f"{name}.sqlite"
        assert_same(nsys.read(sqlite), nsys_tables.read(write_tables(sqlite, tmp_path / name)))


def test_statements_beyond_the_dialect_go_through_sqlite(tmp_path):
    folder = write_tables(export(tmp_path), tmp_path / "run_pqtdir")
    with nsys_tables.Folder(folder) as tables:
        query = 'SELECT total(streamId), typeof(start) FROM "CUPTI_ACTIVITY_KIND_KERNEL"'
        assert tables.connection.execute(query).fetchone() == (14.0, "integer")
        assert tables.connection.execute('SELECT count(*) FROM "CUPTI_ACTIVITY_KIND_KERNEL"').fetchall() == [(2,)]
