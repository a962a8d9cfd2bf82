"""The documents link to what exists, their Python runs, their TOML is read, and what is generated is up to date."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import polars as pl
import pytest
import refresh
from doc_pages import DOCS, PAGES, REPOSITORY, blocks

import trace_analyze as ta
from trace_analyze.analysis.gpus.measured_ceilings import read_ceilings
from trace_analyze.analysis.markers.grammar import parse_texts
from trace_analyze.fixtures.build import CAPTURES
from trace_analyze.reports.archive.archive_row import COLUMNS
from trace_analyze.reports.table_files import kernel_rows, result_tables

LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as forges make them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_resolve(page):
    for link in LINK.findall(page.read_text("utf-8")):
        if link.startswith(("http://", "https://")):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), f"{page.name}: {link} leads nowhere"
        if anchor:
            assert anchor in anchors(target), f"{page.name}: {link}: no such heading"


def test_the_index_names_every_document():
    linked = {
        (DOCS / link.partition("#")[0]).resolve() for link in LINK.findall((DOCS / "index.md").read_text("utf-8"))
    }
    assert {page.resolve() for page in PAGES} - {DOCS / "index.md"} <= linked


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name)
def test_python_examples_run(page, desk):
    for block in blocks(page, "python"):
        code = compile(block, f"{page.name} example", "exec")
        if not block.startswith("# not run here: "):
            exec(code, {})


def test_what_is_generated_is_up_to_date():
    stale = [path.name for path, text in refresh.contents().items() if path.read_text("utf-8") != text]
    assert not stale, f"python docs/refresh.py remakes {', '.join(stale)}"


def test_the_marker_file_gives_what_it_says(desk):
    path = desk / "my-markers.toml"
    rows = tomllib.loads(path.read_text())["grammar"]
    examples = [example for row in rows for example in row.get("examples", [])]
    assert len(examples) >= 2
    for example in examples:
        texts = pl.DataFrame({"text_id": pl.Series([0], dtype=pl.UInt32), "text": [example["text"]]})
        found = parse_texts(texts, path).row(0, named=True)
        assert found["grammar"] in {row["id"] for row in rows}
        assert {key: found[key] for key in example["gives"]} == example["gives"]


def test_every_key_of_a_grammar_and_of_ceilings_is_documented(desk):
    from trace_analyze.analysis.gpus import measured_ceilings as ceilings_file
    from trace_analyze.analysis.markers import grammar as markers

    page = (DOCS / "markers.md").read_text("utf-8")
    assert all(f"`{word}`" in page for word in (*markers._KEYS, *markers.ROLES, *markers.PHASE_RULES, *markers.COUNTS))
    page = (DOCS / "ceilings.md").read_text("utf-8")
    assert all(key in page for key in ceilings_file._KEYS)
    assert all(f"`{dtype}`" in page for dtype in ceilings_file.DTYPES)
    (row,) = read_ceilings(desk / "ceilings.toml").rows.values()
    assert (row.memory_bandwidth_gbps, dict(row.peak_tflops)) == (2950, {"bf16": 720})


def test_the_columns_of_every_launch_and_the_tables_are_documented():
    result = ta.analyze(ta.open_trace(CAPTURES / "tp2-collectives.sqlite"), step="median-decode")
    page = (DOCS / "python.md").read_text("utf-8")
    section = page.split("## `kernel_rows`")[1].split("\n## ")[0]
    columns = [name for cell in re.findall(r"^\| (`.*?) \|", section, re.M) for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(columns) == sorted(kernel_rows(result).columns)
    assert all(f"`{name}`" in page for name in result_tables(result))


def test_no_figure_of_speed_outside_its_page():
    """Speed is stated where it is measured."""
    for page in (REPOSITORY / "README.md", DOCS / "index.md"):
        assert not re.search(
            r"\d(?:\.\d+)? (?:s|seconds|MB/s|GB)\b(?! of)",
            re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.S),
        )


def test_thresholds_are_those_of_the_code():
    from trace_analyze.analysis.compare import adjusted_difference as statistics
    from trace_analyze.analysis.compare import compare_runs as verdict
    from trace_analyze.analysis.compare import run_profile as profile
    from trace_analyze.analysis.work.aggregate import ratios
    from trace_analyze.analysis.work.kv_lengths import step_kv_lengths as kv
    from trace_analyze.analysis.work.measured import ncu_join
    from trace_analyze.analysis.work.operators import formulas

    stated = {
        "roofline.md": [
            f"({ratios.MAX_MFU_PCT:.0f}% where clocks are not known)",
            f"MBU up to {ratios.MAX_MBU_PCT:.0f}%",
            f"under {100 * ratios.MAX_LATENCY_SHARE:.0f}% of the",
            f"more than {ncu_join.MAX_MODEL_RATIO} times",
            f"| {formulas.NORM_FLOP_PER_ELEMENT:.0f} T h; {formulas.NORM_FLOP_PER_ELEMENT + 1:.0f} T h |",
            f"| {formulas.ROPE_FLOP_PER_ELEMENT:.0f} T w |",
            f"| {formulas.ACTIVATION_FLOP_PER_ELEMENT:.0f} T I |",
        ],
        "batch.md": [
            f"|t| > {statistics.SIGNIFICANT_T}",
            f"at most {profile.MAX_STEPS_KEPT:,} of a run",
            f"at least {100 * verdict.MIN_SHARE_OF_STEP:g}% of the step",
            f"Kernels of at least {100 * verdict.MIN_NEW_KERNEL_SHARE:g}% of a run",
        ],
        "design.md": [f"agree within {100 * kv.MAX_TRACKED_SPREAD:g}%"],
    }
    for name, sentences in stated.items():
        page = " ".join((DOCS / name).read_text("utf-8").split())
        assert not [sentence for sentence in sentences if sentence not in page], name


def test_pictures_are_small():
    pictures = list((DOCS / "images").iterdir())
    assert {f"docs/images/{picture.name}" for picture in pictures} <= set(
        LINK.findall((REPOSITORY / "README.md").read_text("utf-8"))
    )
    assert all(picture.stat().st_size < 150_000 for picture in pictures)


def test_labels_and_columns_of_an_archive(desk, capsys):
    from trace_analyze import cli

    assert cli.main(["batch", "archive", "-o", "reports", "--label", "chunk={chunk}/bs={bs}", "--quiet"]) == 0
    runs = pl.read_parquet(desk / "reports" / "runs.parquet")
    assert runs.columns == ["file", "chunk", "bs", *(name for name in COLUMNS if name != "file")]
    assert sorted(runs["chunk"]) == [512, 1024]
    assert set(runs.columns) - set(pl.read_csv(desk / "reports" / "runs.csv").columns) == {"key", "profile"}
