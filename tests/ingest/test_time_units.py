"""Times and windows as people type them."""

import pytest

from trace_analyze.analysis.records.errors import UsageError
from trace_analyze.ingest.time_units import parse_milliseconds, parse_window


@pytest.mark.parametrize(
    ("text", "window"),
    [
        ("1:2", (1_000_000_000, 2_000_000_000)),
        ("500ms:1.5s", (500_000_000, 1_500_000_000)),
        (":2", (None, 2_000_000_000)),
        ("250us:", (250_000, None)),
        ("0:10ns", (0, 10)),
        (":", (None, None)),
    ],
)
def test_window(text, window):
    assert parse_window(text) == window


@pytest.mark.parametrize("text", ["", "1", "2:1", "1:1", "a:b", "1:2:3", "1h:2h"])
def test_wrong_windows_are_usage_errors(text):
    with pytest.raises(UsageError, match="--window"):
        parse_window(text)


@pytest.mark.parametrize(("text", "ms"), [("50", 50.0), ("50ms", 50.0), ("0.05s", 50.0), ("200us", 0.2)])
def test_milliseconds(text, ms):
    assert parse_milliseconds(text, "--itl-target") == ms


def test_zero_target_is_refused():
    with pytest.raises(UsageError, match="--itl-target"):
        parse_milliseconds("0", "--itl-target")
