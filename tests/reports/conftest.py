"""The hand-made Analyses, each made and rendered once."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from trace_analyze.analysis.records.analysis import Analysis
from trace_analyze.reports.html import render_html

_PATH = Path(__file__).with_name("analysis_factory.py")


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("analysis_factory", _PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def factory() -> ModuleType:
    return _load()


@pytest.fixture(scope="session")
def pages(factory: ModuleType) -> Callable[[str], tuple[Analysis, str]]:
    """Name of a factory function -> (Analysis, page), made on first use."""
    made: dict[str, tuple[Analysis, str]] = {}

    def page(name: str) -> tuple[Analysis, str]:
        if name not in made:
            analysis = getattr(factory, name)()
            made[name] = (analysis, render_html(analysis))
        return made[name]

    return page
