"""Rules for the tests themselves that no linter knows."""

from __future__ import annotations

import ast

import hypothesis
import pytest

from .conftest import REPOSITORY

TESTS = sorted((REPOSITORY / "tests").rglob("*.py"))


def test_no_property_has_a_deadline():
    assert hypothesis.settings().deadline is None


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.relative_to(REPOSITORY).as_posix())
def test_no_test_sets_a_deadline_of_its_own(path):
    """tests/conftest.py sets it once."""
    if path != REPOSITORY / "tests" / "conftest.py":
        assert not deadlines_in(path.read_text(encoding="utf-8"))


def deadlines_in(source: str) -> list[int]:
    """Lines of the calls with a ``deadline=``."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return [call.lineno for call in calls if any(k.arg == "deadline" for k in call.keywords)]


def test_what_counts_as_a_deadline():
    assert deadlines_in("x = 1\n@settings(max_examples=3, deadline=200)\ndef f(): pass\n") == [2]
    assert deadlines_in("deadline = 3\nrun(limit=deadline)\n") == []
