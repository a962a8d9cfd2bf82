"""The shell of the smaller pages (archive index, comparison): one file, no network, light and dark, sortable tables."""

from __future__ import annotations

from functools import cache
from importlib import resources

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

_HERE = "trace_analyze.reports.pages"


def asset(name: str) -> str:
    """The text of a file of this folder."""
    return resources.files(__package__ or _HERE).joinpath(name).read_text(encoding="utf-8")


@cache
def environment() -> Environment:
    """Jinja with every name escaped; templates are the files of this folder."""
    from jinja2 import FunctionLoader

    made = Environment(autoescape=True, undefined=StrictUndefined, loader=FunctionLoader(asset), trim_blocks=True)
    made.globals["css"] = Markup(asset("page.css"))  # our own file, not a captured name
    made.globals["script"] = Markup(asset("page.js"))  # our own file, not a captured name
    return made


def render_page(template: str, **values: object) -> str:
    """One page as text."""
    return environment().get_template(template).render(**values)
