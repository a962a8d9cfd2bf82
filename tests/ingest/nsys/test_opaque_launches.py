"""Graph launch calls whose kernels were not recorded."""

import polars as pl
import pytest

from trace_analyze.ingest.nsys import calls

# (launches: process, correlation id, kind), (kernels: process, correlation id), opaque launches
CASES = {
    "every replay left kernels": ([(1, 10, "graph"), (1, 11, "graph")], [(1, 10), (1, 10), (1, 11)], 0),
    "one left none": ([(1, 10, "graph"), (1, 11, "graph")], [(1, 10)], 1),
    "kernel launches do not count": ([(1, 10, "kernel"), (1, 11, "graph")], [(1, 11)], 0),
    "the same id in another process": ([(1, 10, "graph"), (2, 10, "graph")], [(1, 10)], 1),
    "two processes, both recorded": ([(1, 10, "graph"), (2, 10, "graph")], [(1, 10), (2, 10)], 0),
    "no kernels": ([(1, 10, "graph"), (1, 12, "graph")], [], 2),
    "no id": ([(1, -1, "graph")], [], 0),
    "no launches": ([], [(1, 10)], 0),
}


@pytest.mark.parametrize("most_ids", [calls.MOST_IDS, 0], ids=["flags", "search"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_opaque_launches(case, most_ids, monkeypatch):
    monkeypatch.setattr(calls, "MOST_IDS", most_ids)
    launches, kernels, expected = case
    ids = {"process": pl.Int64, "correlation_id": pl.Int64}
    launch_frame = pl.DataFrame(launches, schema={**ids, "kind": pl.String}, orient="row")
    launch_frame = launch_frame.with_columns(pl.col("kind").cast(calls.LAUNCH_KINDS))
    assert calls.opaque_launches(launch_frame, pl.DataFrame(kernels, schema=ids, orient="row")) == expected
