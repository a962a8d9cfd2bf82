"""A folder with the files that the documents' examples name, made from the shipped captures."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from trace_analyze.fixtures.build import CAPTURES
from trace_analyze.fixtures.matrix import MATRIX
from trace_analyze.fixtures.simulator.serving import simulate
from trace_analyze.fixtures.writers.parquet_writer import write_tables
from trace_analyze.fixtures.writers.stats_writer import gpu_trace_csv

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs"))

from doc_pages import PAGES, REPOSITORY, blocks

SGLANG = CAPTURES / "sglang-qwen3-8b-h100.sqlite"
CHUNKED = CAPTURES / "vllm-llama-3.1-8b-a100-chunked-prefill.sqlite"


@pytest.fixture(scope="session")
def desk_of_everyone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files once; ``desk`` copies them."""
    folder = tmp_path_factory.mktemp("desk")
    names = ["run", "before", "after", "baseline/run", "archive/chunk=512/bs=8/run-a"]
    captures = [(name, SGLANG) for name in names]
    captures += [("tp2", CAPTURES / "tp2-collectives.sqlite"), ("archive/chunk=1024/bs=8/run-b", CHUNKED)]
    for name, capture in captures:
        target = folder / f"{name}.sqlite"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(capture, target)
    write_tables(SGLANG, folder / "run_pqtdir")
    (folder / "tp2_ranks").mkdir()
    ranks = simulate(replace(MATRIX["vllm-llama-8b-h100-tp2"], max_steps=12))
    for rank in range(2):
        ranks.write(folder / "tp2_ranks" / f"run_rank{rank}.sqlite", ranks=[rank])
    (folder / "run.csv").write_text(gpu_trace_csv(SGLANG))
    for page in PAGES:
        for text in blocks(page, "toml"):
            # the first line of a file in the documents is its name
            (folder / text.splitlines()[0].removeprefix("# ")).write_text(text)
    return folder


@pytest.fixture
def desk(desk_of_everyone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of a reader who tries the examples."""
    shutil.copytree(desk_of_everyone, tmp_path, dirs_exist_ok=True)
    (tmp_path / "fixtures").symlink_to(REPOSITORY / "fixtures")
    monkeypatch.chdir(tmp_path)
    return tmp_path
