"""Every pattern of the tables of facts finds the names that stand beside it."""

import re
import tomllib

import polars as pl
import pytest

from trace_analyze.analysis.facts.load import FOLDER
from trace_analyze.analysis.facts.name_signs import name_signs
from trace_analyze.analysis.kernels.canonical_names import canonical


def tables_inside(value):
    """Every table of a parsed file, at any depth."""
    if isinstance(value, dict):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from tables_inside(each)


def rows_with_patterns():
    """(table, pattern, example) of every row that has both, under either pair of keys."""
    for path in sorted(FOLDER.glob("*.toml")):
        for row in tables_inside(tomllib.loads(path.read_text(encoding="utf-8"))):
            pattern = row.get("pattern") or row.get("regex")
            examples = row.get("examples", [row["example"]] if "example" in row else [])
            if isinstance(pattern, str) and isinstance(examples, list):
                yield from ((path.stem, pattern, example) for example in examples if isinstance(example, str))


ROWS = list(rows_with_patterns())


def test_tables_with_patterns_are_all_here():
    assert {table for table, _, _ in ROWS} >= {"kernels", "engines", "memory_passes", "name_signs", "launch_geometry"}


def finds(table, pattern, example):
    """Whether the pattern is found as the readers of its table look for it."""
    if table == "kernels":
        return canonical(pl.Series([example])).str.contains(pattern).item()
    if table == "run_files":  # whatever its case; they look ahead and behind, which polars cannot
        return re.search(pattern, example, re.IGNORECASE) is not None
    return pl.Series([example]).str.contains(pattern).item()


@pytest.mark.parametrize("table", sorted({table for table, _, _ in ROWS}))
def test_pattern_finds_its_examples(table):
    missed = [(pattern, example) for of, pattern, example in ROWS if of == table and not finds(table, pattern, example)]
    assert missed == []


@pytest.mark.parametrize("sign", sorted(name_signs()))
def test_sign_has_examples_and_a_source(sign):
    row = name_signs()[sign]
    assert row.examples and row.source
    assert all(re.search(row.pattern, example) for example in row.examples)
