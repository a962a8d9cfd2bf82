"""Kept rows: they come back whole, with their report only, and what is damaged or of others is left."""

import polars as pl
import pytest

from trace_analyze.reports.archive.archive_row import ArchiveRow, runs_frame
from trace_analyze.reports.archive.finished_rows import RowStore

KEY = "0123456789abcdef" * 2


@pytest.fixture
def kept(tmp_path):
    """A store in a folder with the report of its one row."""
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "a.html").write_text("")
    row = ArchiveRow(
        file="a.sqlite", state="analysed", fingerprint="f", report="reports/a.html", devices=2, window_ms=1.5, key=KEY,
        decode_mbu_is_lower_bound=True,
    )  # fmt: skip
    return RowStore(tmp_path), row


def test_a_row_comes_back_from_its_file(kept):
    store, row = kept
    store.keep(row)
    assert store.load() == {KEY: row}


def test_a_row_comes_back_from_the_table_without_its_labels(kept, tmp_path):
    store, row = kept
    runs_frame([row], {"batch": ["8"]}).write_parquet(tmp_path / "runs.parquet")
    assert store.load() == {KEY: row}


@pytest.mark.parametrize(
    "content", [b"{", b"[]", b'{"key": "x"}', b'{"file": "a", "state": "analysed", "devices": "two"}']
)
def test_damaged_rows_are_done_again(kept, tmp_path, content):
    store, row = kept
    store.keep(row)
    (tmp_path / ".rows" / "damaged.json").write_bytes(content)
    assert store.load() == {KEY: row}


def test_a_table_of_others_is_left(kept, tmp_path):
    store, _ = kept
    pl.DataFrame({"key": [KEY], "report": ["reports/a.html"]}).write_parquet(tmp_path / "runs.parquet")
    assert store.load() == {}


def test_a_row_without_its_report_is_done_again(kept, tmp_path):
    store, row = kept
    store.keep(row)
    (tmp_path / "reports" / "a.html").unlink()
    assert store.load() == {}
