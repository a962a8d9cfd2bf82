"""Markdown for a merge request: names are never markup, tables keep their columns, numbers are the screen's."""

import re
from dataclasses import replace

import polars as pl
import pytest

from trace_analyze.analysis.gates import evaluate, parse_gate
from trace_analyze.reports.markdown import escape, gate_lines, table, to_markdown
from trace_analyze.reports.short_names import distinct_names

PAGES = ("serving_run", "no_phases", "unknown_stalls", "could_not_look", "hostile")


def cells(line):
    return re.split(r"(?<!\\)\|", line.strip().strip("|"))


@pytest.mark.parametrize("name", PAGES)
def test_every_table_row_has_its_columns(pages, name):
    analysis, _ = pages(name)
    lines = to_markdown(analysis).splitlines()
    for at, line in enumerate(lines):
        if re.fullmatch(r"\|(---\|)+", line):
            width = len(cells(line))
            below = next(i for i in range(at, len(lines) + 1) if i == len(lines) or not lines[i].startswith("|"))
            assert {len(cells(row)) for row in lines[at - 1 : below]} == {width}


@pytest.mark.parametrize(
    "text",
    [
        "</script><img src=x onerror=alert(1)>",
        "**bold** _x_ `code`",
        "a|b",
        "# title",
        "[x](javascript:1)",
        "~~x~~",
        "\x1b[31m",
    ],
)
def test_nothing_of_a_name_is_markup(text):
    safe = escape(text)
    assert not re.search(r"(?<!\\)[`*_{}\[\]<>#|~\x1b]", safe)
    assert re.sub(r"\\(.)", r"\1", safe) == text.replace("\x1b", "?")


def test_hostile_names_stay_text(pages):
    analysis, _ = pages("hostile")
    body = to_markdown(analysis).replace("<sub>", "").replace("</sub>", "")
    assert not re.search(r"(?<!\\)<", body)


def test_numbers_are_those_of_the_result(pages):
    analysis, _ = pages("serving_run")
    text = to_markdown(analysis)
    summary = analysis.summary
    assert f"p50 {summary.decode_step_ms.p50:.2f} ms" in text
    assert f"(n = {summary.decode_step_ms.n})" in text
    assert f"| Decode MBU | ≥ {summary.decode_mbu_kernel_pct:.1f}% of peak (kernel time)" in text
    top = (
        analysis.kernel_table.filter(pl.col("phase") == "decode")
        .sort("total_ms", "name", descending=[True, False])
        .head(5)
    )
    for name in distinct_names(top["short_name"].to_list(), top["name"].to_list(), 60):
        assert f"| {escape(name)} | " in text


def test_a_run_without_phases_still_has_its_kernels(pages):
    analysis, _ = pages("no_phases")
    text = to_markdown(analysis)
    assert "| Top kernels | class |" in text
    assert "not known" in text
    assert "None" not in text


def test_mixed_steps_have_their_table(pages):
    analysis, _ = pages("serving_run")
    mixed = analysis.kernel_table.with_columns(
        pl.lit("mixed").cast(analysis.kernel_table.schema["phase"]).alias("phase")
    )
    assert "| Top mixed kernels |" in to_markdown(replace(analysis, kernel_table=mixed))


def test_gates():
    results = [
        evaluate(parse_gate(text), {"summary": {"stall_count": 6, "stall_ms": None}})
        for text in ("summary.stall_count < 9", "summary.stall_count < 1", "summary.stall_ms < 1")
    ]
    lines = gate_lines(results)
    assert [cells(line)[2].strip() for line in lines[3:]] == ["passed", "**failed**", "**could not look**"]
    assert gate_lines([]) == []


def test_table():
    assert table(["a", "b"], [["1", "2"]]) == ["| a | b |", "|---|---|", "| 1 | 2 |"]
