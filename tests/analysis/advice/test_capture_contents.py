"""What a capture holds, what is missing, and the command that records it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trace_analyze.analysis.advice import capture_contents as doctor
from trace_analyze.analysis.advice.capture_contents import capture_commands, diagnose, recipe_for, recipes
from trace_analyze.fixtures.build import CAPTURES
from trace_analyze.fixtures.writers.nsys_writer import Capture
from trace_analyze.fixtures.writers.stats_writer import kernel_summary_csv
from trace_analyze.ingest import open_trace

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "capturing.md"
ENGINES = [row["key"] for row in capture_commands()["engine"]]


def states(diagnosis):
    return {question.question.split(" ", 1)[0] + " " + question.question.split(" ", 2)[1]: question.state for question in diagnosis.questions}  # fmt: skip


@pytest.fixture(scope="module")
def sglang():
    return diagnose(open_trace(CAPTURES / "sglang-qwen3-8b-h100.sqlite"))


def test_a_marked_capture(sglang):
    assert (sglang.engine, sglang.engine_name) == ("sglang", "SGLang")
    assert dict(sglang.contents)["kernels"] == 8050
    assert states(sglang) == {
        "Where does": "yes",
        "Which kernels": "yes",
        "How many": "yes",
        "When does": "yes",
        "How near": "yes",
        "How long": "partly",
        "What are": "partly",
        "Why is": "yes",
        "Which rank": "yes",
        "What were": "no",
        "Is the": "yes",
    }
    assert "sglang.launch_server" in sglang.recipe.command()
    assert all(question.fix for question in sglang.questions if question.state == "no")


def test_unmarked_ranks(tmp_path):
    found = diagnose(open_trace(CAPTURES / "tp2-collectives.sqlite"))
    assert states(found)["Which kernels"] == "partly"
    rank = next(question for question in found.questions if question.question.startswith("Which rank"))
    assert (rank.state, rank.because) == ("yes", "2 of 2 GPUs are in this capture")


def opaque(tmp_path):
    capture = Capture("2025.6")
    capture.gpu("h100")
    capture.kernel("gemm", 0, 20_000, launched_at=1)
    capture.graph_launch(1, 30_000, 90_000, launched_at=25_000)
    return open_trace(capture.write(tmp_path / "run.sqlite"))


def test_opaque_graphs_need_node_tracing(tmp_path):
    found = diagnose(opaque(tmp_path))
    assert (found.questions[0].state, found.questions[0].fix) == ("partly", "--cuda-graph-trace=node")
    assert found.size.bytes is None
    assert "unknown" in found.size.reason


def test_sums_have_no_timeline(tmp_path):
    path = tmp_path / "sums.csv"
    path.write_text(kernel_summary_csv(CAPTURES / "tp2-collectives.sqlite"))
    found = diagnose(open_trace(path))
    assert states(found)["When does"] == "no"
    assert states(found)["Why is"] == "no"
    assert found.size.bytes is None


def test_size_is_rows_per_second_times_bytes(tmp_path):
    capture = Capture("2025.6")
    capture.gpu("h100")
    for step in range(100):  # 100 kernels, each with its launch, in 1 ms
        capture.kernel("gemm", step * 10_000, step * 10_000 + 10_000, launched_at=step * 10_000)
    size = diagnose(open_trace(capture.write(tmp_path / "run.sqlite"))).size
    # 100 x (100 + 41) bytes per ms: 14,100 x 10,000 in 10 s
    assert size.bytes == 141_000_000
    assert size.gpu_metrics_bytes == 72_000_000  # 10 kHz x 20 metrics x 36 bytes x 10 s


@pytest.mark.parametrize(
    ("engine", "version", "since"),
    [
        ("vllm", None, "0.27.1"),
        ("vllm", "0.33.0", "0.27.1"),
        ("vllm", "0.27.0", "0.14.1"),
        ("vllm", "0.12.0rc1", "0.12.0"),
        ("vllm", "0.8.5.post1", ""),
        ("sglang", "0.5.23", "0.5.11"),
        ("sglang", "0.5.10.post1", ""),
        ("tensorrt_llm", "1.2.0", "1.0"),
        ("llama.cpp", None, ""),
        ("lmdeploy", "0.9", ""),
        (None, None, ""),
    ],
)
def test_the_recipe_of_a_version(engine, version, since):
    assert recipe_for(engine, version).since == since


@pytest.mark.parametrize("engine", ENGINES)
def test_every_recipe_records_what_is_needed(engine):
    for recipe in recipes(engine):
        assert recipe.engine == engine
        for flag in (
            "--trace=cuda,nvtx",
            "--cuda-graph-trace=node",
            "--sample=none",
            "--cpuctxsw=none",
            "--output=run",
        ):
            assert flag in recipe.serve, flag
        bounded = "--capture-range=cudaProfilerApi" in recipe.serve or "--duration=" in recipe.serve
        assert bounded and recipe.markers in ("full", "tokens", "requests", "none")
        assert ("--capture-range" in recipe.serve) == bool(recipe.under_load or "START_STOP" in recipe.serve)


def test_the_guide_holds_every_command():
    guide = GUIDE.read_text(encoding="utf-8")
    blocks = {block.strip() for block in re.findall(r"```sh\n(.*?)```", guide, re.DOTALL)}
    for engine in ENGINES:
        row = doctor._engine(engine)
        assert f"## {row['name']}\n" in guide
        for recipe in recipes(engine):
            assert recipe.command() in blocks, f"{engine} {recipe.since}"
            for note in recipe.notes:
                assert note in guide, note
        if row["torch"]:
            assert row["torch"].strip() in blocks
    nsys = capture_commands()["nsys"]
    for flag, why in nsys["flags"]:
        assert f"`{flag}`" in guide and why in guide
    assert nsys["gpu_metrics"] in guide and nsys["gpu_metrics_note"] in guide
    known = {recipe.command() for engine in ENGINES for recipe in recipes(engine)}
    torch = {row["torch"].strip() for row in capture_commands()["engine"]}
    exports = {nsys["export"], nsys["export_fast"]}
    assert {block for block in blocks if "nsys profile" in block} <= known
    assert blocks <= known | torch | exports | {f"trace-analyze doctor {name}" for name in ("run.sqlite",)}
