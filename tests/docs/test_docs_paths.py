"""Every file and folder of this project that a page names is there."""

from __future__ import annotations

import re

import pytest

from .conftest import REPOSITORY

# CONTRIBUTING.md names files that its reader will make; its walks are executed
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
_NAMED = re.compile(r"`((?:analysis|ingest|reports|fixtures|tests|benchmarks|docs)/[\w./-]*)`")

_TO_BE_WRITTEN = re.compile(r"\bWrite\s+`([\w./-]+)`")  # the reader's own file, in a walk of CONTRIBUTING.md


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_exist(page):
    text = page.read_text(encoding="utf-8")
    to_be_written = _TO_BE_WRITTEN.findall(text)
    missing = [p for p in _NAMED.findall(text) if not (REPOSITORY / p).exists() and p not in to_be_written]
    assert not missing


def test_the_pattern_finds_paths():
    assert _NAMED.findall("see `analysis/time/` and `docs/json.md`, not `time/x.py`") == [
        "analysis/time/",
        "docs/json.md",
    ]
