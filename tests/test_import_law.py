"""The law of imports: no module imports itself by way of others, be it inside a function or for types alone.

Which room may import from which is a contract of import-linter (pyproject.toml), which the lint step of CI checks.
"""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from .conftest import REPOSITORY

ROOMS = ("analysis", "fixtures", "ingest", "reports")


def product_modules() -> dict[str, Path]:
    """Every module of the product by its dotted name below the package."""
    files = [p for room in ROOMS for p in (REPOSITORY / room).rglob("*.py")]
    files += [REPOSITORY / "cli.py", REPOSITORY / "__init__.py", REPOSITORY / "__main__.py"]
    names = {p: p.relative_to(REPOSITORY).with_suffix("").as_posix().replace("/", ".") for p in files}
    return {name.removesuffix("__init__").removesuffix("."): path for path, name in names.items()}


def imports_of(name: str, path: Path, modules: dict[str, Path]) -> set[str]:
    """The modules of the product that the source of ``name`` imports, anywhere in it."""
    package = name.split(".") if path.name == "__init__.py" and name else name.split(".")[:-1]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1] + (node.module.split(".") if node.module else [])
            for alias in node.names:
                inner = ".".join([*base, alias.name])
                found.add(inner if inner in modules else ".".join(base))
    return found & modules.keys()


def graph() -> dict[str, set[str]]:
    modules = product_modules()
    return {name: imports_of(name, path, modules) for name, path in modules.items()}


def test_no_circle_of_imports():
    try:
        TopologicalSorter(graph()).prepare()
    except CycleError as error:
        pytest.fail("a circle of imports: " + " -> ".join(error.args[1]))


def test_what_counts_as_an_import(tmp_path):
    source = "def late():\n    from .b import thing\nif TYPE_CHECKING:\n    from ..other import c, d\nfrom . import e\n"
    path = tmp_path / "a.py"
    path.write_text(source)
    modules = {"room.a": path, "room.b": path, "other": path, "other.c": path, "room.e": path}
    assert imports_of("room.a", path, modules) == {"room.b", "other.c", "other", "room.e"}


def test_records_and_facts_know_nothing_of_the_stages():
    for name, imported in graph().items():
        if name.startswith(("analysis.records.", "analysis.facts.", "analysis.numeric.")):
            strangers = {
                i for i in imported if not i.startswith(("analysis.records", "analysis.facts", "analysis.numeric"))
            }
            assert not strangers, f"{name} imports {strangers}"
