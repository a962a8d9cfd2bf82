"""Columns taken from paths."""

import pytest

from trace_analyze.analysis.records.errors import UsageError
from trace_analyze.reports.archive.path_labels import LabelPattern


@pytest.mark.parametrize(
    ("pattern", "path", "labels"),
    [
        ("chunk={chunk}/bs={bs}", "a/chunk=512/bs=8/run.sqlite", {"chunk": "512", "bs": "8"}),
        ("chunk={chunk}/bs={bs}", "other/run.sqlite", {"chunk": None, "bs": None}),
        ("{model}/{day}/", "llama/2026-11-29/x.sqlite", {"label_model": "llama", "day": "2026-11-29"}),
        ("tp{tp}", "runs/tp4/x.sqlite", {"tp": "4"}),
        ("bs={bs}.sqlite", "bs=16.sqlite", {"bs": "16"}),
    ],
)
def test_labels(pattern, path, labels):
    assert LabelPattern(pattern).match(path) == labels


@pytest.mark.parametrize("pattern", ["", "plain", "{a}/{a}"])
def test_unusable_patterns_are_refused(pattern):
    with pytest.raises(UsageError, match="--label"):
        LabelPattern(pattern)
