"""What the installed package is to those who import it: its API, its type information, its command as a module."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.machinery import PathFinder
from importlib.metadata import version
from pathlib import Path

import trace_analyze

from .conftest import REPOSITORY


def test_dir_shows_the_api():
    assert {"Analysis", "Trace", "__version__", "analyze", "open_trace"} <= set(dir(trace_analyze))


def test_dir_in_a_fresh_interpreter_names_what_can_be_had():
    """Nothing of the API is imported before it is asked for, and all of it can be named."""
    code = "import trace_analyze as t; print([n for n in t.__all__ if n not in dir(t) or getattr(t, n) is None])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_version_is_that_of_the_distribution():
    assert trace_analyze.__version__ == version("trace-analyze")


def test_module_is_the_command(tmp_path):
    """``python -m trace_analyze`` from any folder."""
    words = [sys.executable, "-m", "trace_analyze"]
    told = subprocess.run([*words, "--version"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert trace_analyze.__version__ in told.stdout
    wrong = subprocess.run([*words, "no-such-file.sqlite"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert wrong.returncode == 2 and "no-such-file.sqlite" in wrong.stderr


def test_tools_that_run_no_code_find_the_package():
    """Type checkers and editors look for a folder on the path; an import hook of the installer says nothing to them."""
    found = PathFinder.find_spec("trace_analyze")
    assert found is not None, "installed by a hook: install again with pip install -e ."
    assert found.origin is not None
    assert Path(found.origin).with_name("py.typed").exists()


def test_every_folder_of_modules_is_packaged():
    """A folder that the list lacks is missing from the wheel, and one that is gone stops the install."""
    root = REPOSITORY
    told = set(tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["packages"])
    rooms = (p.parent for room in ("analysis", "fixtures", "ingest", "reports") for p in (root / room).rglob("*.py"))
    found = {"trace_analyze." + folder.relative_to(root).as_posix().replace("/", ".") for folder in rooms}
    assert told == {"trace_analyze", *found}
