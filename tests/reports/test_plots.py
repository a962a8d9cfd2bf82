"""Figures: every one is written, in use ceilings only, with its reason where nothing is known."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import polars as pl
import pytest

from trace_analyze.analysis.gpus.run_ceilings import ceilings_in_use, main_dtype
from trace_analyze.reports.plots import write_plots

CEILINGS = [
    {"dtype": dtype, "peak_tflops": peak, "bandwidth_gbps": 2039.0, "ridge": peak * 1e3 / 2039.0}
    for dtype, peak in (("bf16", 312.0), ("fp16", 312.0), ("int8", 624.0), ("fp32", 19.5))
]


def texts(path):
    root = ElementTree.parse(path).getroot()
    return ["".join(node.itertext()).strip() for node in root.iter() if node.tag.endswith("}text")]


@pytest.fixture
def svgs(tmp_path):
    def draw(analysis):
        paths = write_plots(analysis, tmp_path, "run", "svg")
        assert [path.name for path in paths] == ["run-roofline.svg", "run-utilisation.svg", "run-intensity.svg"]
        return {path.stem.removeprefix("run-"): texts(path) for path in paths}

    return draw


@pytest.fixture
def run(pages):
    analysis, _ = pages("serving_run")
    return replace(analysis, roofline={**analysis.roofline, "ceilings": CEILINGS})


def test_only_the_ceilings_of_matrix_kernels_are_drawn(svgs, run):
    # a sampler that computes in fp32 does not make fp32 a ceiling of the run
    sampler = pl.col("op_class").cast(pl.String) == "sampling"
    mixed = run.kernel_table.with_columns(dtype=pl.when(sampler).then(pl.lit("fp32")).otherwise("dtype"))
    drawn = svgs(replace(run, kernel_table=mixed))["roofline"]
    assert [t for t in drawn if "TFLOP/s, ridge" in t] == ["bf16 312 TFLOP/s, ridge 153"]


def test_types_that_share_a_ceiling_share_its_label(run):
    both = run.kernel_table.with_columns(
        dtype=pl.Series(["bf16", "fp16"] * run.kernel_table.height).head(run.kernel_table.height)
    )
    (ceiling,) = ceilings_in_use(replace(run, kernel_table=both))
    assert sorted(ceiling.dtypes) == ["bf16", "fp16"]
    assert ceiling.ridge == pytest.approx(153.0, abs=0.1)


def test_all_ceilings_where_no_kernel_names_its_type(run):
    silent = run.kernel_table.with_columns(dtype=pl.lit(None, dtype=pl.String))
    found = ceilings_in_use(replace(run, kernel_table=silent))
    assert [c.peak_tflops for c in found] == [624.0, 312.0, 19.5]


def test_the_ridge_of_intensity_is_that_of_the_type_most_time_computes_in(svgs, run):
    table = run.kernel_table.with_row_index("row")
    longest = pl.col("row") == pl.col("total_ms").arg_max()
    both = table.with_columns(dtype=pl.when(longest).then(pl.lit("bf16")).otherwise(pl.lit("int8"))).drop("row")
    heavy = both.with_columns(total_ms=pl.when(pl.col("dtype") == "bf16").then(1e6).otherwise("total_ms"))
    analysis = replace(run, kernel_table=heavy)
    assert main_dtype(analysis.kernel_table) == "bf16"
    assert [t for t in svgs(analysis)["intensity"] if t.startswith("ridge")] == ["ridge 153 FLOP/byte (bf16)"]


def test_labels_do_not_cover_each_other(tmp_path, run):
    crowd = [
        {"op_class": name, "phase": "decode", "arithmetic_intensity": 1.0 + i / 1e3, "tflops": 1.0, "total_ms": 9.0 - i, "bound": "memory"}
        for i, name in enumerate(("gemm", "attention", "norm", "rope"))
    ]  # fmt: skip
    far = {**crowd[0], "op_class": "activation", "arithmetic_intensity": 80.0, "tflops": 90.0, "total_ms": 1.0}
    write_plots(replace(run, roofline={**run.roofline, "points": [*crowd, far]}), tmp_path, "run", "svg")
    drawn = texts(tmp_path / "run-roofline.svg")
    assert [t for t in drawn if t in {"gemm", "attention", "norm", "rope", "activation"}] == ["gemm", "activation"]


@pytest.mark.parametrize("name", ["no_phases", "could_not_look"])
def test_a_figure_without_numbers_gives_its_reason(svgs, pages, name):
    analysis, _ = pages(name)
    for drawn in svgs(analysis).values():
        assert any(text.startswith("not known") for text in drawn)


def test_a_figure_does_not_change_from_one_writing_to_the_next(tmp_path, run):
    first = [path.read_bytes() for path in write_plots(run, tmp_path / "a", "run", "svg")]
    assert first == [path.read_bytes() for path in write_plots(run, tmp_path / "b", "run", "svg")]


def test_names_stay_text_and_png_is_a_png(tmp_path, pages):
    analysis, _ = pages("hostile")
    for path in write_plots(analysis, tmp_path, "run", "svg"):
        assert not re.search(r"<script|onerror=", path.read_text("utf-8"))
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in write_plots(analysis, tmp_path, "run", "png"))
