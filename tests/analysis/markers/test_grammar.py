"""Markers: every grammar with its examples, the tail of emit_nvtx, a user's own rules."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trace_analyze.analysis.facts.load import load_table
from trace_analyze.analysis.markers.grammar import MARKER_FACTS, ROLES, known_grammars, parse_texts
from trace_analyze.analysis.records.errors import UsageError
from trace_analyze.analysis.records.tables import PHASES

DATA = load_table("markers")["grammar"]
EXAMPLES = [(row["id"], example["text"], example["gives"]) for row in DATA for example in row["examples"]]
TAIL = ", seq = 12, op_id = 345, sizes = [[16, 4096], []], input_op_ids = [(12,0),(0,-1)]"


def parse(*texts: str | None, extra: Path | None = None) -> pl.DataFrame:
    ids = pl.Series("text_id", range(len(texts)), dtype=pl.UInt32)
    return parse_texts(pl.DataFrame({"text_id": ids, "text": pl.Series(texts, dtype=pl.String)}), extra)


def read(text: str, extra: Path | None = None) -> dict:
    return parse(text, extra=extra).row(0, named=True)


# -- every grammar -----------------------------------------------------------------------------------------------------


def test_every_grammar_has_an_example_and_known_words():
    assert [row["id"] for row in DATA if not row.get("examples")] == []
    assert len({row["id"] for row in DATA}) == len(DATA)
    assert {grammar.role for grammar in known_grammars()} <= set(ROLES)
    phases = {*PHASES.categories, "by_counts", "by_new", None}
    assert {grammar.phase for grammar in known_grammars()} <= phases


@pytest.mark.parametrize(("grammar", "text", "gives"), EXAMPLES, ids=[text for _, text, _ in EXAMPLES])
def test_every_example_reads_as_stated(grammar, text, gives):
    found = read(text)
    assert found["grammar"] == grammar
    assert {column: found[column] for column in gives} == gives
    assert found["role"] == next(row["role"] for row in DATA if row["id"] == grammar)


@pytest.mark.parametrize(("grammar", "text", "gives"), EXAMPLES, ids=[text for _, text, _ in EXAMPLES])
@pytest.mark.parametrize("tail", [", seq = 5", ", op_id = 7", ", seq = 5, op_id = 7", TAIL])
def test_the_tail_of_emit_nvtx_is_stripped_first(grammar, text, gives, tail):
    found = read(text + tail)
    assert found["grammar"] == grammar
    assert {column: found[column] for column in gives if column != "shapes"} == {
        column: value for column, value in gives.items() if column != "shapes"
    }


@pytest.mark.parametrize(("grammar", "text", "gives"), EXAMPLES, ids=[text for _, text, _ in EXAMPLES])
def test_grammars_are_anchored(grammar, text, gives):
    open_ended = {"warm-up", "functions trace", "vllm scopes", "megatron parts", "nccl", "host noise"}
    before, after = read("\N{BULLET}" + text), read(text + " \N{BULLET}x")
    assert before["grammar"] != grammar or "_dummy_run" in text
    assert after["grammar"] != grammar or grammar in open_ended | {"layer-wise module", "compiled module"}


# -- meanings ----------------------------------------------------------------------------------------------------------

STEPS = [
    ("execute_context_0(0)_generation_20(20)", {"phase": "decode", "decode_requests": 20, "decode_tokens": 20, "verify_width": 1}),
    ("execute_context_1(2048)_generation_8(8)", {"phase": "mixed", "prefill_tokens": 2048, "decode_requests": 8}),
    ("execute_context_0(0)_generation_8(32)", {"phase": "decode", "verify_width": 4, "prefill_requests": 0}),
    ("execute_context_0(0)_generation_8(35)", {"phase": "decode", "verify_width": 5}),  # uneven: rounded up
    ("execute_context_3(4096)_generation_0(0)", {"phase": "prefill", "verify_width": None}),
    ("step[EXTEND bs=4 toks=3072]", {"phase": "prefill", "prefill_requests": 4, "prefill_tokens": 3072, "decode_requests": None}),
    ("step[DECODE bs=32 g_sq=32 g_sqsq=32 g_sqsk=50923 g_sk=50923]", {"phase": "decode", "decode_requests": 32, "decode_kv": 50923, "decode_qk": 50923}),
    ("step[DECODE g_sk=50923 bs=32]", {"phase": "decode", "decode_requests": 32, "decode_kv": 50923, "decode_tokens": 32}),
    ("step[DECODE]", {"phase": "decode", "decode_requests": None, "decode_tokens": None}),
    ("step[DECODE bs=32 new_key=a.b/c-d]", {"phase": "decode", "decode_requests": 32}),  # keys of a later version
    ("step[mixed bs=9 ext=2048 dec=8]", {"phase": "mixed", "prefill_requests": 1}),
    ("step[TARGET_VERIFY bs=4 g_sq=20]", {"phase": "decode", "verify_width": 5}),
    ("step[VERIFY bs=4]", {"phase": "decode", "decode_tokens": None, "verify_width": None}),
    ("step[DRAFT_EXTEND_V2 bs=4]", {"phase": "other", "part": "draft"}),
    ("step[SOMETHING_NEW bs=4]", {"phase": "unknown", "role": "step"}),
    ("[Executor] _forward_step 7: 0 ctx reqs, 0 gen reqs", {"phase": "other", "step_index": 7}),
    ("[executor] _forward_step 7: 1 ctx req, 2 gen reqs", {"phase": "mixed"}),
    ("decode[tok=117 bs=117/128]", {"phase": "decode", "decode_requests": 117, "padded_requests": 128}),
    ("prefill[bs=2 tok=900]", {"phase": "prefill", "prefill_requests": 2, "prefill_tokens": 900, "padded_requests": None}),
    ("BatchVerifyToLastHidden num_tokens=10", {"phase": "decode", "decode_tokens": 10}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), STEPS, ids=[text for text, _ in STEPS])
def test_steps(text, expected):
    found = read(text)
    assert {column: found[column] for column in expected} == expected


@pytest.mark.parametrize(
    "text",
    ["iteration 5", "iterations_helper", "prefilling the cache", "decode", "decoder layer 3", "step", "step[]", "forward",
     "execute_context_1(512)_generation_15(15)_x", "my execute_context_1(512)_generation_15(15)", "", "aten::mm",
     "ncc", "capture_x_FULL", "é" * 40],
)  # fmt: skip
def test_loose_texts_are_no_markers(text):
    assert read(text)["grammar"] is None


# -- shapes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "operator", "shapes"),
    [
        ("aten::mm" + TAIL, "aten::mm", [[16, 4096], []]),
        (
            "aten::linear, op_id = 3, sizes = [[16, 4096], [6144, 4096], []]",
            "aten::linear",
            [[16, 4096], [6144, 4096], []],
        ),
        ("aten::add, sizes = []", "aten::add", []),
        ("aten::cat, sizes = [[[1, 2], [3, 4]], []]", "aten::cat", None),  # a list of tensors nests deeper
        (
            "autograd::engine::evaluate_function: AddBackward0, seq = 3, sizes = [[4]]",
            "autograd::engine::evaluate_function: AddBackward0",
            [[4]],
        ),
    ],
)
def test_operators_with_recorded_sizes(text, operator, shapes):
    found = read(text)
    assert (found["role"], found["grammar"], found["part"], found["shapes"]) == ("shape", "emit_nvtx", operator, shapes)


def test_an_operator_without_sizes_says_nothing():
    assert read("aten::mm, seq = 5, op_id = 3")["grammar"] is None


def test_outputs_of_a_module_are_no_shapes():
    found = read("{'Module': 'model.layers.0.mlp', 'Outputs': [[16, 4096]]}")
    assert (found["role"], found["module"], found["shapes"]) == ("module", "model.layers.0.mlp", None)


def test_bias_follows_weight():
    found = read(
        "{'Module': 'm.qkv', 'TrainableParams': {'weight': [6144, 4096], 'bias': [6144]}, 'Inputs': [[16, 4096]]}"
    )
    assert found["shapes"] == [[16, 4096], [6144, 4096], [6144]]


# -- rows and order ----------------------------------------------------------------------------------------------------


def test_rows_follow_the_texts():
    found = parse("step[DECODE bs=2]", "nothing", None, "aten::mm" + TAIL, "step[DECODE bs=3]")
    assert dict(found.schema) == dict(MARKER_FACTS)
    assert found["text_id"].to_list() == [0, 1, 2, 3, 4]
    assert found["decode_requests"].to_list() == [2, None, None, None, 3]
    assert found["role"].to_list() == ["step", None, None, "shape", "step"]


def test_no_texts_and_no_markers():
    assert dict(parse().schema) == dict(MARKER_FACTS)
    assert parse("a", "b").select(pl.exclude("text_id")).null_count().row(0) == (2,) * (len(MARKER_FACTS) - 1)


@given(st.lists(st.text(max_size=60), max_size=8))
def test_any_text_survives(texts):
    assert parse(*texts).height == len(texts)


@given(st.integers(0, 99), st.integers(0, 9999), st.integers(0, 512), st.integers(0, 4096))
def test_vllm_counts_come_back(context, context_tokens, generation, generation_tokens):
    found = read(f"execute_context_{context}({context_tokens})_generation_{generation}({generation_tokens})")
    assert [found[c] for c in ("prefill_requests", "prefill_tokens", "decode_requests", "decode_tokens")] == [
        context, context_tokens, generation, generation_tokens,
    ]  # fmt: skip
    prefill, decode = context > 0 and context_tokens > 0, generation > 0 and generation_tokens > 0
    expected = "mixed" if prefill and decode else "prefill" if prefill else "decode" if decode else "other"
    assert found["phase"] == expected


# -- a user's own rules ------------------------------------------------------------------------------------------------


def test_a_user_rule_comes_first(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        "[[grammar]]\nid = 'mine'\nengine = 'my-server'\n"
        r"pattern = 'iter (?P<step_index>\d+) p=(?P<prefill_requests>\d+) d=(?P<decode_requests>\d+)'" + "\n"
        "[[grammar]]\npattern = 'PrefillStart'\nrole = 'step'\nphase = 'prefill'\n"
    )
    found = read("iter 3 p=1 d=4", path)
    assert (found["grammar"], found["engine"], found["role"], found["phase"]) == ("mine", "my-server", "step", "mixed")
    assert (found["step_index"], found["prefill_requests"], found["decode_requests"]) == (3, 1, 4)
    assert read("PrefillStart", path)["role"] == "step"
    assert read("PrefillStart")["role"] == "edge"
    assert read("iter 3 p=1 d=4 and more", path)["grammar"] is None  # anchored
    assert read("step[DECODE bs=2]", path)["grammar"] == "sglang step"


def test_a_user_rule_with_words(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        "[[grammar]]\n"
        r"pattern = '(?i)run <(?P<mode>\w+)(?P<pairs>[^>]*)>'" + "\n"
        "modes = { PRE = 'prefill', DEC = 'decode', SPEC = 'verify' }\nkeys = { kv = 'decode_kv' }\n"
        "[grammar.keys_in.decode]\nn = 'decode_requests'\nt = 'decode_tokens'\n"
    )
    found = read("run <spec n=4/8 t=12 kv=99>", path)
    expected = {
        "phase": "decode",
        "decode_requests": 4,
        "padded_requests": 8,
        "decode_tokens": 12,
        "decode_kv": 99,
        "verify_width": 3,
    }
    assert {column: found[column] for column in expected} == expected
    assert read("run <pre n=4>", path)["decode_requests"] is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = ", "is not TOML"),
        ("x = 1", "at least one [[grammar]]"),
        ("[[grammar]]\nid = 'a'", "needs a pattern"),
        ("[[grammar]]\npattern = 'a'", "a step needs a phase"),
        ("[[grammar]]\npattern = '(a'\nphase = 'decode'", "no regular expression"),
        ("[[grammar]]\npattern = '(?=a)'\nphase = 'decode'", "no regular expression"),
        ("[[grammar]]\npattern = 'a'\nphase = 'decoding'", "unknown phase 'decoding'"),
        ("[[grammar]]\npattern = 'a'\nphase = 'decode'\nrole = 'stage'", "unknown role 'stage'"),
        ("[[grammar]]\npattern = '(?P<batch>\\\\d+)'\nphase = 'decode'".replace("\\\\", "\\"), "unknown group 'batch'"),
        ("[[grammar]]\npattern = 'a'\nphase = 'decode'\nregex = 'b'", "unknown key 'regex'"),
        ("[[grammar]]\npattern = 'a'\nmodes = { A = 'fast' }", "unknown meaning of a mode 'fast'"),
        ("[[grammar]]\npattern = 'a'\nphase = 'decode'\nkeys = { a = 'batch' }", "unknown column 'batch'"),
        ("[[grammar]]\npattern = 'a'\nphase = 'decode'\nmodes = 'decode'", "modes must be a table"),
        ("[[grammar]]\npattern = 'a'\nphase = 'decode'\n[grammar.keys_in]\ndecode = 'x'", "decode must be a table"),
    ],
)
def test_a_bad_rule_file_is_explained(tmp_path, text, message):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=re.escape(message)):
        parse("a", extra=path)


def test_a_missing_rule_file(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        parse("a", extra=tmp_path / "none.toml")


# -- captures by others ------------------------------------------------------------------------------------------------

REAL_STEPS = {
    "vllm-mixed-9-prefill-37-decode-piecewise-graph": {"phase": "mixed", "prefill_requests": 9, "prefill_tokens": 8155, "decode_requests": 37, "decode_kv": 34489},
    "vllm-decode-full-graph-bs32": {"phase": "decode", "decode_requests": 32, "decode_kv": 55086},
    "sglang-qwen3-8b-decode-bs32-mi300x": {"phase": "decode", "decode_requests": 32, "decode_kv": 32785},
    "vllm-tp8-rank0-prefill-eager-b200": {"phase": "prefill", "prefill_requests": 1, "prefill_tokens": 888},
}  # fmt: skip


@pytest.mark.parametrize(("file", "expected"), REAL_STEPS.items(), ids=list(REAL_STEPS))
def test_annotations_of_real_steps(shared_traces, file, expected):
    with gzip.open(shared_traces / "kineto" / f"{file}.json.gz") as stream:
        events = json.load(stream)["traceEvents"]
    texts = sorted({event["name"] for event in events if event.get("cat", "").endswith("user_annotation")})
    found = parse(*texts)
    assert found["role"].null_count() == 0
    steps = found.filter(pl.col("role") == "step").sort("decode_kv", descending=True, nulls_last=True)
    assert {column: steps[column][0] for column in expected} == expected


def test_graph_capture_is_no_step(shared_traces):
    with gzip.open(shared_traces / "kineto" / "vllm-graph-capture-not-a-run.json.gz") as stream:
        events = json.load(stream)["traceEvents"]
    texts = sorted({event["name"] for event in events if event.get("cat", "").endswith("user_annotation")})
    assert set(parse(*texts)["role"]) == {"capture", "ignore"}
