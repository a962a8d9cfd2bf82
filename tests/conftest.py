"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

# A loaded machine is slow, not wrong: no property has a deadline. The same examples in every run, so that a change that
# breaks nothing never fails by another's luck; HYPOTHESIS_PROFILE=search tries others.
hypothesis.settings.register_profile("tests", deadline=None, derandomize=True)
hypothesis.settings.register_profile("search", deadline=None, max_examples=1000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "tests"))

TRACES_VARIABLE = "TRACE_ANALYZE_TRACES"
REPOSITORY = Path(__file__).resolve().parent.parent


def traces_folder() -> Path | None:
    """The folder of captures made by others (not part of the project), or None where it is absent."""
    named = os.environ.get(TRACES_VARIABLE)
    folder = Path(named) if named else REPOSITORY.parent / "shared" / "traces"
    return folder if folder.is_dir() else None


@pytest.fixture(scope="session")
def shared_traces() -> Path:
    """The folder of captures made by others; the test is skipped, saying so, where it is absent."""
    folder = traces_folder()
    if folder is None:
        pytest.skip(f"no captures by others: set {TRACES_VARIABLE} or put them in ../shared/traces")
    return folder


@pytest.fixture
def folder_stays_as_it_was(tmp_path: Path) -> Iterator[Callable[[], None]]:
    """Asserts after the test that ``tmp_path`` holds the same files with the same bytes as when it was called."""
    seen: dict[Path, bytes] = {}

    def remember() -> None:
        seen.update({path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()})

    yield remember
    if seen:
        now = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        assert now.keys() == seen.keys(), f"files appeared or vanished: {sorted(now.keys() ^ seen.keys())}"
        assert now == seen, "a file was written to"
