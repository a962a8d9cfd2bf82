"""Every walk of CONTRIBUTING.md, followed to the letter on a copy of the project: it must end with its check passed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from .conftest import REPOSITORY

PAGE = REPOSITORY / ".github" / "CONTRIBUTING.md"
NEEDED = ("analysis", "docs", "fixtures", "ingest", "reports", "tests", "pyproject.toml", "py.typed", "README.md")
MAX_PRODUCT_FILES = 2

_STEP = re.compile(
    r"(?P<verb>Write|[Ii]n)\s+`(?P<path>[\w./-]+)`"
    r"(?:,\s+(?P<where>before|after)\s+the\s+line\s+with\s+(?P<quote>`+)(?P<anchor>.+?)(?P=quote))?"
    r"(?:,\s+add\b[^`]*?(?:\(\[[^\n]*\)\))?:|:)\s*\Z",
    re.DOTALL,
)
_STARTS = re.compile(r"\b(?:Write|[Ii]n)\s+`")
_FENCE = re.compile(r"^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Change:
    """One block of a walk: ``text`` for the file ``path``, as a new file, at its end, or beside the line with ``anchor``."""

    path: str
    text: str
    new: bool
    where: str | None
    anchor: str | None

    def apply(self, project: Path) -> None:
        file = project / self.path
        if self.new:
            assert not file.exists(), f"{self.path} is there already"
            file.write_text(self.text, encoding="utf-8")
            return
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
        at = len(lines)
        if self.anchor is not None:
            found = [number for number, line in enumerate(lines) if self.anchor in line]
            assert len(found) == 1, f"{self.path}: {len(found)} lines with {self.anchor!r}"
            at = found[0] + (self.where == "after")
        file.write_text("".join([*lines[:at], self.text, *lines[at:]]), encoding="utf-8")

    @property
    def of_product(self) -> bool:
        """Whether the file is the product's: no test and no page."""
        return not self.path.startswith(("tests/", "docs/"))


@dataclass(frozen=True)
class Walk:
    """A section ``### ...``: its changes in their order, and the commands that check it."""

    title: str
    changes: tuple[Change, ...]
    check: str


def walks() -> list[Walk]:
    """The walks of the page. Raises ValueError for a block that no sentence leads to."""
    sections = re.split(r"^### \.\.\. ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return [walk_of(section) for section in sections]


def walk_of(section: str) -> Walk:
    title, _, body = section.partition("\n")
    changes, checks, begin = [], [], 0
    for fence in _FENCE.finditer(body):
        said = body[begin : fence.start()]
        begin = fence.end()
        if fence["language"] == "sh":
            checks.append(fence["text"])
            continue
        starts = [match.start() for match in _STARTS.finditer(said)]
        step = _STEP.match(said, starts[-1]) if starts else None
        if step is None:
            raise ValueError(f"{title}: no sentence says where this goes:\n{fence['text']}")
        changes.append(Change(step["path"], fence["text"], step["verb"] == "Write", step["where"], step["anchor"]))
    (check,) = checks
    return Walk(title, tuple(changes), check)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project under the name that makes it the package: a folder on the path has it as ``trace_analyze``."""
    project = tmp_path_factory.mktemp("walks") / "trace_analyze"
    project.mkdir()
    for name in (*NEEDED, *(path.name for path in REPOSITORY.glob("*.py"))):
        if (REPOSITORY / name).is_dir():
            shutil.copytree(REPOSITORY / name, project / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(REPOSITORY / name, project / name)
    return project


@pytest.fixture
def project(copy: Path) -> Iterator[Path]:
    """The copy, put back afterwards as it was."""
    before = {path: path.read_bytes() for path in sources(copy)}
    yield copy
    for path in sources(copy):
        if path not in before:
            path.unlink()
        elif path.read_bytes() != before[path]:
            path.write_bytes(before[path])


def sources(project: Path) -> list[Path]:
    kinds = (".py", ".toml", ".md")
    return [path for path in project.rglob("*") if path.suffix in kinds and path.is_file()]


def run(command: str, project: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """A line of a check, in the copy, with the copy's own ``trace-analyze`` and ``python``."""
    commands = folder / "commands"
    commands.mkdir(exist_ok=True)
    for name, words in (("python", ""), ("trace-analyze", " -m trace_analyze")):
        script = commands / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}"{words} "$@"\n')
        script.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(project.parent),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_ADDOPTS": "-p no:cacheprovider -p no:xdist",
    }
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


WALKS = walks()


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk.title)
def test_walk(walk, project, tmp_path):
    first, *_ = walk.check.splitlines()
    assert run(first, project, tmp_path).returncode != 0, f"passes before anything was added: {first}"
    for change in walk.changes:
        change.apply(project)
    for line in walk.check.splitlines():
        done = run(line, project, tmp_path)
        assert done.returncode == 0, f"{line}\n{done.stdout[-3000:]}{done.stderr[-2000:]}"


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk.title)
def test_walk_is_short(walk):
    assert len({change.path for change in walk.changes if change.of_product}) <= MAX_PRODUCT_FILES


def test_the_page_walks_through_what_people_add():
    wanted = ("a GPU", "a model", "a kernel rule", "an engine's markers", "an input format", "a finding",
              "a metric with its gate", "a section of the report", "an operator's cost")  # fmt: skip
    assert tuple(walk.title for walk in WALKS) == wanted


def test_a_block_without_its_sentence_is_refused():
    with pytest.raises(ValueError, match="no sentence says where"):
        walk_of("a thing\n\nSome words.\n\n```python\nx = 1\n```\n\n```sh\ntrue\n```\n")


def test_where_a_block_goes(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    walk = walk_of(
        "a thing\n\nWords. In `a.txt`, before the\nline with `two`, add:\n\n```text\nx\n```\n\n```sh\ntrue\n```\n"
    )
    for change in walk.changes:
        change.apply(tmp_path)
    assert (tmp_path / "a.txt").read_text() == "one\nx\ntwo\n"
    with pytest.raises(AssertionError, match="0 lines with"):
        Change("a.txt", "y\n", False, "after", "three").apply(tmp_path)
