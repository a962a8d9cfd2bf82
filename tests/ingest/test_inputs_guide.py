"""docs/inputs.md names every reader and the commands that the code prints."""

from __future__ import annotations

import re
from pathlib import Path

from trace_analyze.analysis.records.formats import FORMATS
from trace_analyze.ingest import counters
from trace_analyze.ingest.nsys import report_file as nsys_rep

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "inputs.md").read_text(encoding="utf-8")


def test_commands_are_those_of_the_code():
    assert nsys_rep.export_command("run.nsys-rep") in GUIDE
    assert counters.HOW_DMON in GUIDE
    assert counters.HOW_DCGM in GUIDE


def test_every_reader_has_a_row():
    """The guide says how each input is made: in the words that errors use, or by the ending of its files' names."""
    unnamed = [each.words for each in FORMATS if how_it_is_made(each.words) not in GUIDE]
    assert not unnamed
    assert "## One run in several files" in GUIDE


def how_it_is_made(words: str) -> str:
    """``nsys export --type sqlite`` of ``an Nsight Systems SQLite export (nsys export --type sqlite)``."""
    in_brackets = re.search(r"\((.+?)(?:, | or |\))", words)
    return (
        in_brackets[1]
        if in_brackets
        else words.split(" or ", maxsplit=1)[0].split(",", maxsplit=1)[0].removeprefix("a folder of ")
    )


def test_how_it_is_made():
    assert how_it_is_made("results (ncu --csv --page raw or details)") == "ncu --csv --page raw"
    assert how_it_is_made("a folder of nsys export --type parquetdir or arrowdir") == "nsys export --type parquetdir"
