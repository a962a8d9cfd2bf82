"""The example Analyses, each made and rendered once."""

from collections.abc import Callable
from types import ModuleType

import pytest

from trace_analyze.analysis.records.analysis import Analysis
from trace_analyze.reports.html import render_html

from . import example_analyses


@pytest.fixture(scope="session")
def examples() -> ModuleType:
    return example_analyses


@pytest.fixture(scope="session")
def pages() -> Callable[[str], tuple[Analysis, str]]:
    """Name of an example -> (Analysis, page), made on first use."""
    made: dict[str, tuple[Analysis, str]] = {}

    def page(name: str) -> tuple[Analysis, str]:
        if name not in made:
            analysis = getattr(example_analyses, name)()
            made[name] = (analysis, render_html(analysis))
        return made[name]

    return page
