"""Whatever the kernels are: nothing is lost, steps do not share kernels, and the numbers of a step are its kernels'."""

import polars as pl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trace_analyze.analysis.phases import find_phases
from trace_analyze.analysis.records.tables import GRAPHS, GROUPS, KERNEL_TAGS, STEPS

NAMES = ["embedding_kernel", "rms_norm", "gemm_qkv", "attention_any", "attention_decode", "attention_context", "sampler",
         "metadata", "all_reduce", "send_recv", "repack", "cache_write", "router_softmax", "vectorized_gather_kernel"]  # fmt: skip
kernel = st.tuples(st.sampled_from(NAMES), st.integers(0, 2), st.integers(0, 40), st.integers(1, 3000), st.booleans())


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(kernel, max_size=60), launches=st.booleans(), marks=st.lists(st.integers(0, 100), max_size=6))
def test_any_order_of_kernels(mini, rows, launches, marks):
    run = mini(with_launches=launches)
    run.steps.append("unknown")
    for name, device, grid, gap_us, graphed in rows:
        run.kernel(name, (grid, 1, 1), device=device, gap=gap_us * 1000, graph=77 if graphed else None, node=grid)
    for n in marks:
        run.range("step[DECODE bs=8]" if n % 2 else "_dummy_run", n * 1000, n * 1500 + 1)
    trace, facts = run.build()
    result = find_phases(trace, facts)
    check(trace, result)


def check(trace, result):
    assert result.kernels.select(trace.kernels.columns).equals(trace.kernels)
    assert result.kernels.schema == {**trace.kernels.schema, **KERNEL_TAGS}
    assert result.steps.schema == dict(STEPS)
    assert result.groups.schema == dict(GROUPS)
    assert result.graphs.schema == dict(GRAPHS)
    assert result.steps["step"].to_list() == list(range(result.steps.height))
    inside = result.kernels.filter(pl.col("step") >= 0)
    own = inside.group_by("step").agg(
        pl.len().alias("kernels"), pl.col("start_ns").min().alias("first"), pl.col("end_ns").max().alias("last"),
        pl.col("device_index").n_unique().alias("devices"), (pl.col("end_ns") - pl.col("start_ns")).sum().alias("ns"),
    )  # fmt: skip
    steps = result.steps.join(own, on="step", how="left")
    assert (steps["kernels"] == steps["kernel_count"]).all()
    assert (steps["first"] == steps["start_ns"]).all()
    assert (steps["last"] == steps["end_ns"]).all()
    assert (steps["devices"] == 1).all()
    assert (steps["busy_ns"] <= steps["ns"]).all()
    assert (steps["busy_ns"] <= steps["end_ns"] - steps["start_ns"]).all()
    assert not steps.select("group", "device_index", "index", "start_ns").is_duplicated().any()
