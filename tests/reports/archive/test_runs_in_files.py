"""A run in several files has a row and a report of its own, beside those of its files."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from trace_analyze import cli
from trace_analyze.fixtures.matrix import MATRIX
from trace_analyze.fixtures.simulator.serving import simulate


def batch(*words):
    return cli.main(["batch", *map(str, words), "--quiet"])


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """Two ranks of one run, and one after another: two repeats whose names differ in a number."""
    root = tmp_path_factory.mktemp("archive")
    run = simulate(replace(MATRIX["vllm-llama-8b-h100-tp2"], max_steps=12))
    (root / "tp2").mkdir()
    (root / "repeats").mkdir()
    for rank in range(2):
        run.write(root / "tp2" / f"run_rank{rank}.sqlite", ranks=[rank])
        again = simulate(replace(run.config, tensor_parallel=1, seed=rank + 5))
        capture = again.capture()
        capture.utc_ns += rank * 3_600_000_000_000
        capture.write(root / "repeats" / f"run_{rank}.sqlite")
    return root


def test_a_run_in_files_has_a_row_and_a_report(archive, tmp_path):
    out = tmp_path / "out"
    assert batch(archive, "-o", out, "--jobs", "2") == 0
    runs = pl.read_parquet(out / "runs.parquet")
    assert runs["file"].to_list() == [
        "repeats/run_0.sqlite", "repeats/run_1.sqlite", "tp2/run_rank*.sqlite", "tp2/run_rank0.sqlite",
        "tp2/run_rank1.sqlite",
    ]  # fmt: skip
    assert runs["devices"].to_list() == [1, 1, 2, 1, 1]
    row = runs.row(2, named=True)
    assert row["report"] == "reports/tp2__run_rankall.sqlite.html"
    assert (out / row["report"]).exists()
    assert row["report"] in (out / "index.html").read_text()

    before = {p.relative_to(out): p.read_bytes() for p in out.rglob("*") if p.is_file()}
    stamp = (out / row["report"]).stat().st_mtime_ns
    assert batch(archive, "-o", out, "--resume", "--jobs", "1") == 0
    assert {p.relative_to(out): p.read_bytes() for p in out.rglob("*") if p.is_file()} == before
    assert (out / row["report"]).stat().st_mtime_ns == stamp
    assert batch(archive, "-o", tmp_path / "one", "--jobs", "1") == 0
    assert {
        p.relative_to(tmp_path / "one"): p.read_bytes() for p in (tmp_path / "one").rglob("*") if p.is_file()
    } == before


def test_a_second_batch_takes_captures_and_runs_from_the_cache(archive, tmp_path):
    cache = tmp_path / "cache"
    results, entries = [], []
    for turn, more in enumerate(([], ["--cache", cache], ["--cache", cache])):
        out = tmp_path / f"out{turn}"
        assert batch(archive, "-o", out, "--jobs", "1", *more) == 0
        results.append({p.relative_to(out): p.read_bytes() for p in out.rglob("*") if p.is_file()})
        entries.append({p: p.stat().st_ino for p in cache.iterdir()} if more else {})
    assert results[0] == results[1] == results[2]
    assert len(entries[1]) == 2 * 5  # four files and a run: what was read, and what the analysis made of it
    assert entries[1] == entries[2]
