"""The example Analyses, each made and rendered once."""

import pytest

from trace_analyze.reports.html import render_html

from . import example_analyses


@pytest.fixture(scope="session")
def examples():
    return example_analyses


@pytest.fixture(scope="session")
def pages():
    """Name of an example -> (Analysis, page), made on first use."""
    made = {}

    def page(name):
        if name not in made:
            analysis = getattr(example_analyses, name)()
            made[name] = (analysis, render_html(analysis))
        return made[name]

    return page
