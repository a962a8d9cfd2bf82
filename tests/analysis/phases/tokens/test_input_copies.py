"""Real tokens of steps in padded graphs, told by the copies that fill the graphs' inputs."""

from dataclasses import replace

import polars as pl
import pytest

from trace_analyze.analysis.kernels.classify import classify_names
from trace_analyze.analysis.phases import find_phases
from trace_analyze.analysis.phases.tokens.input_copies import agreed_counts, possible_counts
from trace_analyze.analysis.phases.tokens.launch_geometry import input_copy_rules
from trace_analyze.analysis.records.trace import ServingFacts
from trace_analyze.fixtures.matrix import MATRIX
from trace_analyze.fixtures.simulator.serving import simulate
from trace_analyze.ingest import open_trace

RULES = {rule["engine"]: rule for rule in input_copy_rules()}
TOLD_BY_MARKER = {  # file: (engine, tokens of its marker)
    "vllm-mixed-9-prefill-37-decode-piecewise-graph": ("vllm", 8155 + 37),
    "vllm-decode-full-graph-bs32": ("vllm", 32),
    "vllm-tp8-rank0-prefill-eager-b200": ("vllm", 888),
    "sglang-qwen3-8b-decode-bs32-mi300x": ("sglang", 32),
}


def counts(rule, copies):
    """Counts that these (kind, bytes) before one replay agree on."""
    sizes = pl.DataFrame(copies, schema={"kind": pl.String, "bytes": pl.Int64}, orient="row")
    sizes = sizes.group_by("kind", "bytes").len().with_columns(number=pl.lit(0, dtype=pl.Int64))
    return sorted(agreed_counts(sizes, rule)["tokens"].to_list())


def steps_of(engine, trace, facts):
    """The steps of a trace whose command line tells the engine."""
    capture = replace(trace.capture, serving=ServingFacts(engine=engine))
    return find_phases(replace(trace, capture=capture), facts).steps


@pytest.mark.parametrize("engine", RULES)
def test_every_row_reads_its_example(engine):
    rule = RULES[engine]
    copies = [(rule["kinds"][0], size) for size in rule["example"]["copies"]]
    assert counts(rule, copies) == [rule["example"]["tokens"]]
    assert rule["source"]


def test_one_copy_of_a_fitting_size_is_chance():
    assert counts(RULES["sglang"], [("d2d", 256)]) == []
    assert counts(RULES["vllm"], [("h2d", 7104), ("h2d", 7104)]) == []  # no token ids of 4 bytes
    assert counts(RULES["sglang"], [("h2d", 256), ("h2d", 256)]) == []  # prompts on their way, not a graph's inputs


@pytest.mark.parametrize("name", TOLD_BY_MARKER)
def test_copies_of_real_runs_agree_on_the_markers_count_and_on_no_other(shared_traces, name):
    engine, tokens = TOLD_BY_MARKER[name]
    copies = open_trace(shared_traces / "kineto" / f"{name}.json.gz").copies
    assert counts(RULES[engine], copies.select(pl.col("kind").cast(pl.String), "bytes").rows()) == [tokens]


def test_a_batch_that_fits_a_smaller_graph_would_have_replayed_that():
    steps = pl.DataFrame(
        {
            "number": [0, 1, 2, 3, 4],
            "lane": [0, 0, 0, 0, 1],
            "full_graph": [False, False, True, False, False],
            "graph_id": [5, 6, 7, None, 6],
            "launched": [416, 400, 8, 909, 416],
        }
    )
    found = possible_counts(steps).sort("number")
    # 400 was replayed on lane 0; else captured sizes double at most
    assert found.select("number", "above", "most").rows() == [(0, 400, 416), (1, 200, 400), (2, 4, 8), (4, 208, 416)]


# -- a miniature engine -----------------------------------------------------------------------------------------------


def decoding(mini, copies, engine="vllm"):
    """Eight decode steps in a graph of 16 whose requests no kernel shows, with (kind, bytes) copies before each."""
    run = mini()
    for _ in range(8):
        for kind, size in copies:
            run.copy(kind, size)
        run.step("decode", 16, 13, graph=5000, attention="attention_decode", gather=False, sampler=False)
        run.copy("d2h", 104)
    trace, facts = run.build()
    steps = steps_of(engine, trace, facts)
    assert steps["phase"].to_list() == ["decode"] * 8
    assert steps["padded_tokens"].to_list() == [16] * 8
    return steps


INPUTS = [("h2d", 104), ("h2d", 52), ("h2d", 104)]  # 13 slots, 13 ids, 13 positions


def test_requests_of_a_padded_decode_graph(mini):
    steps = decoding(mini, INPUTS)
    assert steps["decode_requests"].to_list() == steps["decode_tokens"].to_list() == [13] * 8


def test_without_copies_only_the_size_is_known(mini):
    steps = decoding(mini, [])
    assert steps["decode_requests"].null_count() == steps["decode_tokens"].null_count() == 8


@pytest.mark.parametrize(
    ("copies", "engine"),
    [
        ([("h2d", 104), ("h2d", 104)], "vllm"),  # the ids are missing
        ([*INPUTS, ("h2d", 88), ("h2d", 44)], "vllm"),  # 11 tokens as well
        ([("h2d", 136), ("h2d", 68)], "vllm"),  # 17 tokens do not fit the graph
        (INPUTS, "tensorrt_llm"),  # nothing is known of its copies
    ],
)
def test_what_does_not_tell_leaves_the_count_unknown(mini, copies, engine):
    assert decoding(mini, copies, engine)["decode_requests"].null_count() == 8


@pytest.mark.parametrize(
    ("copies", "engine", "found"),
    [
        # 7 requests verify a draft each, 14 tokens: ids, positions and slots, then request rows and lengths
        ([("d2d", 112)] * 3 + [("d2d", 56)] * 2, "sglang", 14),
        # the tokens are written by a kernel; only the requests' rows and lengths are copied
        ([("d2d", 56)] * 2, "sglang", None),
        # 4 bytes for 14 ids and for 7 lengths are 8 and 4 bytes for 7
        ([("h2d", 56), ("h2d", 28)], "vllm", None),
        ([("h2d", 112), ("h2d", 56), ("h2d", 28)], "vllm", 14),
    ],
)
def test_requests_that_verify_drafts_are_not_their_tokens(mini, copies, engine, found):
    assert decoding(mini, copies, engine)["decode_tokens"].to_list() == [found] * 8


def test_buffers_that_are_always_copied_whole_count_nothing(mini):
    """128 and 64 bytes would be 16 tokens; they come before every step, those of a graph of 4 as well."""
    run = mini()
    for number in range(9):
        run.copy("h2d", 128)
        run.copy("h2d", 64)
        size, base = (16, 5000) if number % 3 == 0 else (4, 9000)
        run.step("decode", size, 3, graph=base, attention="attention_decode", gather=False, sampler=False)
        run.copy("d2h", 24)
    trace, facts = run.build()
    assert steps_of("vllm", trace, facts)["decode_requests"].null_count() == 9


def test_copies_between_the_kernels_of_the_step_before_belong_to_nobody(mini):
    run = mini()
    for _ in range(4):
        run.step("decode", 16, 13, graph=5000, attention="attention_decode", gather=False, sampler=False)
    trace, facts = run.build()
    middle = find_phases(trace, facts).steps.select((pl.col("start_ns") + pl.col("end_ns")) // 2).to_series()
    for at in middle:
        for kind, size in INPUTS:
            run.copy(kind, size)
            run.copies[-1] |= {"start_ns": at, "end_ns": at + 1000}
    trace, _ = run.build()
    assert steps_of("vllm", trace, facts)["decode_requests"].null_count() == 4


def test_rows_that_a_sampler_shows_are_not_overruled(mini):
    run = mini()
    for _ in range(8):
        for kind, size in INPUTS:
            run.copy(kind, size)
        run.step("decode", 16, 14, graph=5000, attention="attention_decode")
    trace, facts = run.build()
    assert steps_of("vllm", trace, facts)["decode_requests"].to_list() == [14] * 8


# -- simulated runs ---------------------------------------------------------------------------------------------------

COPIES = "sglang-qwen3-8b-h100-piecewise-copies"
PROMPTS = [1900, 330, 2700, 2048, 3900]  # the fourth fills its graph


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The simulated run and its capture read back."""
    run = simulate(MATRIX[COPIES])
    return run, open_trace(run.write(tmp_path_factory.mktemp("copies") / "run.sqlite"))


def prefills(trace):
    """Tokens of the prefill steps, and the size of their graphs."""
    steps = find_phases(trace, classify_names(trace.names)).steps.filter(pl.col("phase") == "prefill")
    return steps["prefill_tokens"].to_list(), steps["padded_tokens"].to_list()


def test_prompts_in_piecewise_graphs_are_counted_by_their_copies(recorded):
    run, trace = recorded
    assert sorted(prefills(trace)[0]) == sorted(PROMPTS)
    truth = run.truth.steps.filter(pl.col("phase") == "prefill")
    assert prefills(trace) == (truth["prefill_tokens"].to_list(), truth["padded_tokens"].to_list())


def test_without_copies_prompts_are_unknown_and_their_graphs_size_is_known(recorded):
    run, trace = recorded
    truth = run.truth.steps.filter(pl.col("phase") == "prefill")["padded_tokens"].to_list()
    assert prefills(replace(trace, copies=trace.copies.clear())) == ([None] * 5, truth)


def test_a_second_count_that_fits_makes_the_step_unknown(recorded):
    """1,900 tokens ran in a graph of 2,048: a pair of copies for 2,000 fits it too."""
    _, trace = recorded
    of_1900 = (pl.col("bytes") == 8 * 1900) & (pl.col("kind") == "d2d")
    more = trace.copies.filter(of_1900).with_columns(bytes=pl.lit(8 * 2000, dtype=pl.Int64))
    assert more.height == 3
    found, padded = prefills(replace(trace, copies=pl.concat([trace.copies, more]).sort("start_ns")))
    assert found[padded.index(2048)] is None
    assert found.count(None) == 1


def test_a_single_remaining_copy_does_not_count(recorded):
    _, trace = recorded
    of_1900 = (pl.col("bytes") == 8 * 1900) & (pl.col("kind") == "d2d")
    kept = pl.concat([trace.copies.filter(~of_1900), trace.copies.filter(of_1900).head(1)]).sort("start_ns")
    found, _ = prefills(replace(trace, copies=kept))
    assert sorted(n for n in found if n is not None) == sorted(set(PROMPTS) - {1900})
