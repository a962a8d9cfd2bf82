"""Rows of facts are checked when they are loaded, and a mistake is told by its file, row and key."""

import pytest

from trace_analyze.analysis.facts.load import check_rows, load_rows
from trace_analyze.analysis.facts.rows import EngineRow, MemoryPassRow

GOOD = {
    "name": "argmax",
    "pattern": "ArgMax",
    "examples": ["ArgMaxOps"],
    "of": "logits",
    "bytes": 4.0,
    "source": "read",
}


@pytest.mark.parametrize(
    "change, told",
    [
        ({"bytes": "four"}, "Expected `float`, got `str` - at `$.bytes`"),
        ({"of": 4}, "Expected `str`, got `int` - at `$.of`"),
        ({"byte": 4.0}, "Object contains unknown field `byte`"),
        ({"examples": [1]}, r"Expected `str`, got `int` - at `$.examples[0]`"),
    ],
)
def test_mistake_is_told_by_file_row_and_key(change, told):
    with pytest.raises(ValueError) as error:
        check_rows([GOOD, GOOD | change], MemoryPassRow, "memory_passes.toml, [[pass]]")
    assert str(error.value) == f"memory_passes.toml, [[pass]] row 2: {told}"


def test_missing_key_and_missing_section_are_told():
    with pytest.raises(ValueError, match=r"^x row 1: Object missing required field `bytes`"):
        check_rows([{key: value for key, value in GOOD.items() if key != "bytes"}], MemoryPassRow, "x")
    with pytest.raises(ValueError, match=r"engines.toml, \[\[motor\]\]: no such list of rows"):
        load_rows("engines", "motor", EngineRow)
