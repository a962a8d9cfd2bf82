"""Every row of the data files is reached by its own example, and says where it comes from."""

import polars as pl
import pytest

from trace_analyze.analysis.kernels.classify import classify_names
from trace_analyze.analysis.phases.engine import engine_rules
from trace_analyze.analysis.phases.step_evidence import STEP_EVIDENCE
from trace_analyze.analysis.phases.tokens.launch_geometry import geometry_rules
from trace_analyze.analysis.records.tables import STEPS

SECTIONS = ("rule", "rows", "tokens", "few", "many", "prepare")
ROWS = [(section, row) for section in SECTIONS for row in geometry_rules(section)]


@pytest.mark.parametrize("section, row", ROWS, ids=[f"{section}-{row['name']}" for section, row in ROWS])
def test_geometry_row_is_the_first_that_its_example_matches(section, row):
    example = pl.Series([row["example"]])
    first = next(other for other in geometry_rules(section) if example.str.contains(other["regex"]).item())
    assert first is row
    assert row["source"]


def test_kernels_that_tell_tokens_have_the_class_they_claim():
    for row in geometry_rules("tokens"):
        names = pl.DataFrame(
            {"name_id": [0], "name": [row["example"]], "short_name": [""]}, schema_overrides={"name_id": pl.UInt32}
        )
        assert classify_names(names)["op_class"].cast(str).to_list() == [row["op_class"]]


@pytest.mark.parametrize("row", [row for row in engine_rules() if row.pattern], ids=lambda row: row.name)
def test_engine_row_is_the_first_that_its_example_matches(row):
    for example in row.examples:
        name = pl.Series([example])
        assert next(o for o in engine_rules() if o.pattern and name.str.contains(o.pattern).item()) is row


def test_evidence_shares_with_the_steps_only_what_they_take_over():
    """final_steps fills what a step lacks: evidence under a name of STEPS would be taken for the stage's own result."""
    shared = set(STEP_EVIDENCE) & set(STEPS)
    assert shared == {"start_ns", "end_ns", "kernel_count", "graph_id", "excluded"}
    assert all(STEP_EVIDENCE[name] == STEPS[name] for name in shared)
