"""Gates: what is accepted, what a null means, and which exit code follows."""

import pytest

from trace_analyze.analysis.gates import evaluate, evaluate_all, exit_code, parse_gate
from trace_analyze.analysis.records.errors import UsageError

RESULT = {
    "status": "ok",
    "reasons": [],
    "summary": {
        "decode_step_ms": {"n": 40, "p50": 10.0, "p95": 11.5},
        "decode_mbu_kernel_pct": None,
        "stall_ms": 240.0,
        "stall_count": 1,
        "reasons": {"decode_mbu_kernel_pct": "the GPU is not known"},
    },
    "devices": [{"idle_ns": 5_000_000}],
    "delta": {"decode_step_ms": {"p50": 12.0}},
}


@pytest.mark.parametrize(
    ("text", "passed"),
    [
        ("decode_step_ms.p95 < 12", True),
        ("decode_step_ms.p95<11", False),
        ("decode_step_ms.p95 < 0.012s", True),
        ("decode_step_ms.p95 < 11000us", False),
        ("stall_ms == 240", True),
        ("stall_count != 0", True),
        ("devices[0].idle_ns <= 5ms", True),
        ("delta.decode_step_ms.p50 < 3%", False),
        ("summary.stall_ms >= 2.4e2", True),
        ("decode_mbu_kernel_pct >= 60", None),
    ],
)
def test_gate(text, passed):
    assert evaluate(parse_gate(text), RESULT).passed is passed


def test_null_is_could_not_look_with_its_reason():
    result = evaluate(parse_gate("decode_mbu_kernel_pct >= 60%"), RESULT)
    assert result.value is None
    assert "the GPU is not known" in result.sentence


@pytest.mark.parametrize(
    "text", ["", "stall_ms", "stall_ms = 3", "__import__('os') < 1", "stall_ms < 3%", "stall_count < 3ms", "a < b"]
)
def test_malformed_gates_are_usage_errors(text):
    with pytest.raises(UsageError, match="--gate"):
        parse_gate(text)


def test_unknown_key_names_the_nearest():
    with pytest.raises(UsageError, match="stall_ms"):
        evaluate(parse_gate("stal_ms < 3"), RESULT)


@pytest.mark.parametrize(
    ("gates", "code"),
    [
        (["stall_ms > 0"], 0),
        (["stall_ms > 0", "stall_ms < 1"], 1),
        (["stall_ms < 1", "decode_mbu_kernel_pct > 1"], 3),
        ([], 0),
    ],
)
def test_exit_code_three_beats_one(gates, code):
    assert exit_code(evaluate_all(map(parse_gate, gates), RESULT)) == code
