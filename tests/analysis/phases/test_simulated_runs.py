"""Every simulated run of the matrix, with its markers and with them removed, against the truth beside it."""

from dataclasses import replace
from functools import lru_cache

import polars as pl
import pytest

from trace_analyze.analysis.kernels.classify import classify_names
from trace_analyze.analysis.phases import find_phases
from trace_analyze.fixtures.matrix import MATRIX
from trace_analyze.fixtures.simulator.serving import simulate
from trace_analyze.ingest import open_trace

LARGE = {"vllm-llama-70b-h100-tp8-unmarked": 12, "vllm-llama-70b-h200-tp4-fp8": 12, "trtllm-llama-70b-b200-tp4": 12}
KEY = ["process", "correlation_id", "start_ns", "end_ns"]
SHARE_UNMARKED = 0.995


# A run without markers is one case; of the others the second case has every range and mark removed.
CASES = [
    (name, variant)
    for name, config in MATRIX.items()
    for variant in ("as recorded", "unmarked")
    if variant == "as recorded" or config.markers != "none"
]


@pytest.fixture(scope="module")
def read_run(tmp_path_factory):
    """``read_run(name)``: the simulated run and its capture read back; the last one is kept."""

    @lru_cache(maxsize=1)
    def read(name):
        simulated = simulate(replace(MATRIX[name], max_steps=LARGE.get(name, MATRIX[name].max_steps)))
        return simulated, open_trace(simulated.write(tmp_path_factory.mktemp("runs") / "run.sqlite"))

    return read


@pytest.fixture(scope="module", params=CASES, ids=" ".join)
def analysed(request, read_run):
    """The run's phases."""
    name, variant = request.param
    simulated, trace = read_run(name)
    if variant == "unmarked":
        trace = replace(trace, ranges=trace.ranges.clear(), marks=trace.marks.clear())
    result = find_phases(trace, classify_names(trace.names))
    return simulated, trace, result, tagged(simulated, trace, result)


def tagged(simulated, trace, result):
    """Kernels as tagged beside the truth about each."""
    truth = simulated.truth.kernels.filter("recorded").select(
        *KEY, pl.col("step").alias("true_step"), pl.col("phase").alias("true_phase"), "place"
    )
    devices = trace.devices.select("device_index", pl.col("device").alias("rank_device"))
    names = trace.names.select("name_id", "short_name")
    kernels = result.kernels.join(devices, on="device_index", how="left").join(names, on="name_id", how="left")
    both = kernels.join(truth, on=KEY, how="left")
    assert both.height == result.kernels.height == both["true_phase"].count()
    return both


def wrong_kernels(kernels):
    """Time and names of the kernels whose phase is not the true one, for the failure message."""
    wrong = kernels.filter(pl.col("phase").cast(pl.String) != pl.col("true_phase"))
    listed = wrong.group_by("short_name", "place", "phase", "true_phase", "true_step").agg(
        pl.len(), (pl.col("end_ns") - pl.col("start_ns")).sum().alias("ns")
    )
    return listed.sort("ns", descending=True)


def test_kernels_have_their_true_phase(analysed):
    simulated, trace, _, kernels = analysed
    listed = wrong_kernels(kernels)
    total = kernels.select((pl.col("end_ns") - pl.col("start_ns")).sum()).item()
    right = 1 - listed["ns"].sum() / total
    marked = trace.ranges.height > 0 and simulated.config.markers not in ("none", "marks")
    needed = 1.0 if marked and not simulated.config.drop_launches else SHARE_UNMARKED
    assert right >= needed, listed.rows(named=True)


def test_step_boundaries_are_all_right(analysed):
    simulated, _, result, kernels = analysed
    of_step = (
        kernels.filter(pl.col("step") >= 0)
        .group_by("step")
        .agg(pl.col("true_step").n_unique().alias("steps_inside"), pl.col("true_step").mode().min())
    )
    mixed_up = of_step.filter(pl.col("steps_inside") > 1)
    if not simulated.config.drop_launches:
        assert mixed_up.rows() == []
    seen = kernels.filter(pl.col("op_class").cast(pl.String).is_in(["attention", "gemm"]))
    true_steps = seen.select("device_index", "true_step").n_unique()
    assert result.steps.height == true_steps
    outside = seen.filter(pl.col("step") < 0)
    assert outside.height == 0


def test_token_counts_are_exact_where_kernels_show_them(analysed):
    """Rows launched for; tokens and requests wherever they are not null."""
    simulated, _, result, kernels = analysed
    first = (
        kernels.filter(pl.col("step") >= 0)
        .group_by("step")
        .agg(pl.col("true_step").mode().min(), pl.col("rank_device").first())
    )
    truth = simulated.truth.steps.select(
        pl.col("step").alias("true_step"),
        pl.col("device").cast(pl.Int32).alias("rank_device"),
        "launch_mode",
        "role",
        *[
            pl.col(name).alias(f"true_{name}")
            for name in ("prefill_tokens", "decode_tokens", "prefill_requests", "decode_requests", "padded_tokens")
        ],
    )
    steps = result.steps.join(first, on="step").join(truth, on=["true_step", "rank_device"]).filter(~pl.col("partial"))
    serving = steps.filter(pl.col("role") == "serve")
    for name in ("prefill_tokens", "decode_tokens", "prefill_requests", "decode_requests"):
        wrong = serving.filter(pl.col(name) != pl.col(f"true_{name}"))
        assert wrong.select("true_step", "phase", name, f"true_{name}").rows() == [], name
    launched = serving.filter(pl.col("kernel_count") > 100)
    padded = launched.filter(pl.col("padded_tokens") != pl.col("true_padded_tokens"))
    assert padded.select("true_step", "padded_tokens", "true_padded_tokens").rows() == []


def test_ranks_share_a_group_and_the_index_of_each_step(analysed):
    simulated, _, result, kernels = analysed
    ranks = simulated.config.tensor_parallel
    assert result.groups["kind"].to_list() == ["single" if ranks == 1 else "tensor_parallel"]
    first = kernels.filter(pl.col("step") >= 0).group_by("step").agg(pl.col("true_step").mode().min())
    steps = result.steps.join(first, on="step")
    assert steps.group_by("index").agg(pl.col("true_step").n_unique()).filter(pl.col("true_step") > 1).height == 0
    per_index = steps.group_by("index").len()["len"]
    assert per_index.max() <= ranks
    assert (per_index == ranks).sum() >= len(per_index) - 2
