"""A folder with the files that the documents' examples name, made from the shipped captures."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from trace_analyze.fixtures.build import CAPTURES
from trace_analyze.fixtures.parquet_writer import write_tables
from trace_analyze.fixtures.stats_writer import gpu_trace_csv

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs"))

from doc_pages import PAGES, REPOSITORY, blocks

SGLANG = CAPTURES / "sglang-qwen3-8b-h100.sqlite"
CHUNKED = CAPTURES / "vllm-llama-3.1-8b-a100-chunked-prefill.sqlite"


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """The working folder of a reader who tries the examples."""
    (tmp_path / "fixtures").symlink_to(REPOSITORY / "fixtures")
    (tmp_path / "baseline").mkdir()
    for name in ("run.sqlite", "before.sqlite", "after.sqlite", "baseline/run.sqlite"):
        shutil.copy(SGLANG, tmp_path / name)
    shutil.copy(CAPTURES / "tp2-collectives.sqlite", tmp_path / "tp2.sqlite")
    for name, capture in (("chunk=512/bs=8/run-a", SGLANG), ("chunk=1024/bs=8/run-b", CHUNKED)):
        target = tmp_path / "archive" / f"{name}.sqlite"
        target.parent.mkdir(parents=True)
        shutil.copy(capture, target)
    write_tables(SGLANG, tmp_path / "run_pqtdir")
    (tmp_path / "run.csv").write_text(gpu_trace_csv(SGLANG))
    for page in PAGES:
        for text in blocks(page, "toml"):
            # the first line of a file in the documents is its name
            (tmp_path / text.splitlines()[0].removeprefix("# ")).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path
