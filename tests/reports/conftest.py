"""The hand-made Analyses, each made and rendered once."""

import importlib.util
from pathlib import Path

import pytest

from trace_analyze.reports.html import render_html

_PATH = Path(__file__).with_name("analysis_factory.py")


def _load():
    spec = importlib.util.spec_from_file_location("analysis_factory", _PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def factory():
    return _load()


@pytest.fixture(scope="session")
def pages(factory):
    """Name of a factory function -> (Analysis, page), made on first use."""
    made = {}

    def page(name):
        if name not in made:
            analysis = getattr(factory, name)()
            made[name] = (analysis, render_html(analysis))
        return made[name]

    return page
