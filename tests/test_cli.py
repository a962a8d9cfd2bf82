"""The command line as a user types it: what appears where, which exit code, and what is never left behind."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from trace_analyze import analyze, cli, open_trace
from trace_analyze.fixtures import cases

CAPTURES = Path(__file__).parent.parent / "fixtures" / "captures"
CHUNKED = CAPTURES / "vllm-llama-3.1-8b-a100-chunked-prefill.sqlite"
SGLANG = CAPTURES / "sglang-qwen3-8b-h100.sqlite"


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    """Run one command line in an empty folder: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        code = cli.main([str(w) for w in words])
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def stalled(tmp_path):
    """20 decode steps of 10 ms for 8 requests, one prefill step of 240 ms, 20 decode steps."""
    return cases.separate_prefill().write(tmp_path / "stalled.sqlite")


def test_bare_form_prints_one_screen_and_writes_one_file(run, tmp_path):
    code, out, err = run(CHUNKED)
    assert code == 0
    assert err == ""
    assert 24 <= len(out.splitlines()) <= 40
    assert max(map(len, out.splitlines())) <= 80
    assert "A100-SXM4-80GB" in out
    assert [p.name for p in tmp_path.iterdir()] == [f"{CHUNKED.stem}.html"]


def test_options_stand_before_or_after_the_capture(run):
    before = run("--gpu", "a100", "--no-color", CHUNKED)
    after = run(CHUNKED, "--no-color", "--gpu", "a100")
    assert before == after


def test_known_truth_one_stall_of_240_ms(run, stalled):
    code, out, _ = run(stalled, "--format", "json", "-o", "-")
    assert code == 0
    result = json.loads(out)
    assert result["summary"]["stall_count"] == 1
    assert result["summary"]["stall_ms"] == pytest.approx(240, rel=0.01)
    (stall,) = result["stalls"]
    assert stall["kind"] == "prefill_step"
    assert stall["requests_held"] == 8


def test_json_alone_on_stdout_has_the_contract_s_keys(run):
    code, out, err = run(SGLANG, "--format", "json", "-o", "-")
    result = json.loads(out)
    assert (code, err) == (0, "")
    assert list(result)[:4] == ["schema_version", "tool_version", "status", "reasons"]
    wanted = {"source", "devices", "model", "window", "trust", "summary", "groups", "steps", "stalls", "kernels"}
    wanted |= {"op_classes", "idle", "graphs", "collectives", "findings"}
    assert wanted <= set(result)
    for device in result["devices"]:
        assert device["busy_ns"] + device["copy_only_ns"] + device["idle_ns"] == device["window_ns"]


def test_every_format_appears_in_the_folder(run, tmp_path):
    code, _, _ = run(SGLANG, "--format", "html,json,md,csv,parquet,perfetto,svg,png", "-o", "out")
    assert code == 0
    stem = SGLANG.stem
    names = {p.name for p in (tmp_path / "out").iterdir()}
    assert {f"{stem}.html", f"{stem}.json", f"{stem}.md", f"{stem}.perfetto.json", stem} <= names
    assert {f"{stem}-roofline.svg", f"{stem}-roofline.png"} <= names
    tables = {p.name for p in (tmp_path / "out" / stem).iterdir()}
    assert {"steps.csv", "kernels.csv", "steps.parquet", "kernel_rows.parquet"} <= tables
    steps = pl.read_parquet(tmp_path / "out" / stem / "steps.parquet")
    assert len(steps) == len(pl.read_csv(tmp_path / "out" / stem / "steps.csv"))
    events = json.loads((tmp_path / "out" / f"{stem}.perfetto.json").read_text())["traceEvents"]
    assert all(isinstance(e["ts"], int | float) and e["ts"] > -1e9 for e in events if e["ph"] == "X")
    assert any(e["name"] == "stall" for e in events)


@pytest.mark.parametrize(
    ("gates", "code"),
    [
        (["stall_count >= 1"], 0),
        (["stall_ms == 0"], 1),
        (["stall_ms == 0", "prefill_mfu_kernel_pct > 1"], 3),  # the run has mixed steps only; 3 beats 1
    ],
)
def test_gates_decide_the_exit_code(run, gates, code):
    words = [w for gate in gates for w in ("--gate", gate)]
    assert run(CHUNKED, *words, "--quiet")[0] == code


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["absent.sqlite"], "no such file"),
        ([CHUNKED, "--gpu", "h1000"], "h100"),
        ([CHUNKED, "--window", "5"], "--window"),
        ([CHUNKED, "--format", "pdf"], "--format"),
        ([CHUNKED, "--format", "html", "-o", "-"], "-o -"),
        ([CHUNKED, "--gate", "stall_ms"], "--gate"),
        ([CHUNKED, "--gate", "stal_ms < 1"], "stall_ms"),
        ([CHUNKED, "--gate", "decode_mbu > 70%"], "_pct"),
        ([CHUNKED, "--weight-dtype", "bf17"], "--weight-dtype: unknown 'bf17'; choose of"),
        ([CHUNKED, "--kv-dtype", "fp9"], "--kv-dtype"),
        (["comapre", CHUNKED, CHUNKED], "did you mean: trace-analyze compare"),
        (["gpu"], "did you mean: trace-analyze gpus"),
        ([CHUNKED, "--model", "no-such-model-7b"], "model"),
        ([CHUNKED, "--ncu", "absent.csv"], "absent.csv"),
        ([CHUNKED, "--step", "mean"], "median-decode"),
        ([CHUNKED, "--itl-target", "soon"], "--itl-target"),
        ([CHUNKED, "--no-such-option"], "no-such-option"),
    ],
)
def test_wrong_usage_is_exit_2_with_a_sentence(run, tmp_path, words, message):
    code, out, err = run(*words)
    assert code == 2
    assert message.lower() in (out + err).lower()
    assert "Traceback" not in out + err
    assert list(tmp_path.glob("*.html")) == []


def test_a_window_shows_and_counts_its_own_steps_only(run):
    _, out, _ = run(SGLANG, "--window", "50ms:150ms")
    told = " ".join(out.split())
    assert "7 steps, decode batch 12 to 13, 2 partial left out" in told
    strip = next(line for line in out.splitlines() if line.startswith("Steps "))
    assert re.fullmatch(r"D+P+D+", strip.split()[1])


def test_a_lower_bound_is_one_wherever_the_report_shows_it(run, tmp_path):
    run(CHUNKED)
    page = (tmp_path / CHUNKED.with_suffix(".html").name).read_text("utf-8")
    devices = page.split('id="devices"')[1].split("</section>")[0]
    assert re.search(r"decode MBU, kernel time.{0,200}≥ 7\d\.\d", devices, re.DOTALL)


def test_empty_window_is_exit_3(run):
    code, _, err = run(CHUNKED, "--window", "3600:")
    assert code == 3
    assert "--window: no kernel starts from 3600.000000 s on" in err


def test_no_kernels_is_exit_3_with_hints(run, tmp_path):
    path = cases.no_kernels().write(tmp_path / "nothing.sqlite")
    code, _, err = run(path)
    assert code == 3
    assert "--cuda-graph-trace=node" in err
    assert [p.name for p in tmp_path.iterdir()] == ["nothing.sqlite"]


def test_capture_is_never_written_to_and_gets_no_side_files(run, tmp_path):
    folder = tmp_path / "read-only"
    folder.mkdir()
    copy = Path(shutil.copy(CHUNKED, folder))
    before = copy.read_bytes()
    copy.chmod(0o444)
    folder.chmod(0o555)
    try:
        assert run(copy)[0] == 0
        assert [p.name for p in folder.iterdir()] == [copy.name]
        assert copy.read_bytes() == before
    finally:
        folder.chmod(0o755)


def test_unwritable_output_says_so_and_leaves_nothing(run, tmp_path):
    (tmp_path / "file").write_text("in the way")
    code, _, err = run(CHUNKED, "-o", tmp_path / "file" / "below")
    assert code == 2
    assert "cannot write" in err


def test_two_runs_are_the_same_to_the_byte(run, tmp_path):
    run(SGLANG, "--format", "html,json", "-o", "a")
    run(SGLANG, "--format", "html,json", "-o", "b")
    for name in (f"{SGLANG.stem}.html", f"{SGLANG.stem}.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_step_kernel_by_kernel(run):
    _, out, _ = run(SGLANG, "--step", "median-decode", "--format", "json", "-o", "-")
    table = json.loads(out)["step_table"]
    assert sum(row["time_pct"] for row in table) == pytest.approx(100)
    assert {"gemm", "attention", "norm"} <= {row["op_class"] for row in table}


def test_a_path_is_analysed_and_results_print_in_one_line():
    trace = open_trace(SGLANG)
    assert repr(trace) == "<Trace sglang-qwen3-8b-h100.sqlite: Nsight Systems, 8,050 kernels>"
    assert repr(analyze(str(SGLANG))).startswith("<Analysis sglang-qwen3-8b-h100.sqlite: ok; Decode is memory-bound")


def test_step_section_says_which_step_and_that_launches_are_added_up(run, tmp_path):
    run(SGLANG, "--step", "7")
    page = (tmp_path / "sglang-qwen3-8b-h100.html").read_text("utf-8")
    assert "Step 7 on device 0, 6.25 ms, chosen with --step" in page


def test_cache_gives_the_same_answer(run, tmp_path):
    plain = run(SGLANG, "--format", "json", "-o", "-")
    first = run(SGLANG, "--format", "json", "-o", "-", "--cache", tmp_path / "cache")
    second = run(SGLANG, "--format", "json", "-o", "-", "--cache", tmp_path / "cache")
    assert plain == first == second
    assert len(list((tmp_path / "cache").iterdir())) == 2  # what was read, and what the analysis made of it


def test_damaged_cache_entry_is_replaced(run, tmp_path):
    run(SGLANG, "--quiet", "--cache", tmp_path / "cache")
    (kernels,) = (tmp_path / "cache").glob("*/kernels.parquet")
    kernels.write_bytes(b"damaged")
    assert run(SGLANG, "--quiet", "--cache", tmp_path / "cache")[0] == 0
    assert pl.read_parquet(kernels).height > 0


def test_demo_names_its_report(run, tmp_path):
    code, out, _ = run("demo", "-o", "demo")
    assert code == 0
    (report,) = (tmp_path / "demo").glob("*.html")
    assert report.name in out


@pytest.mark.parametrize(
    ("command", "word"), [("gpus", "h100-sxm5-80gb"), ("models", "Llama-3.1-8B"), ("markers", "execute_context_")]
)
def test_listings(run, command, word):
    code, out, _ = run(command)
    assert code == 0
    assert word in out


def test_doctor_tells_what_is_missing(run, tmp_path):
    path = cases.opaque_graphs().write(tmp_path / "opaque.sqlite")
    code, out, _ = run("doctor", path)
    assert code == 0
    assert "--cuda-graph-trace=node" in out
    assert "nsys profile" in out
    assert "1 device with GPU work" in out


def test_doctor_keeps_flags_whole_on_a_narrow_screen(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = run("doctor", SGLANG)
    rows = out.split("How to record it")[0].splitlines()
    assert any(row.rstrip().endswith("--gpu-metrics-frequency=10000") for row in rows)


def test_names_cannot_reach_the_terminal_as_escape_sequences(run, tmp_path):
    path = cases.hostile_text().write(tmp_path / "hostile.sqlite")
    _, out, err = run(path, "--no-color")
    assert "\x1b" not in out + err


def test_version_and_help_need_no_heavy_import():
    """Start-up must not pay for polars, numpy or matplotlib."""
    script = (
        "import sys; from trace_analyze.cli import main; code = main(['--help']);"
        "heavy = {'polars', 'numpy', 'pandas', 'matplotlib', 'pyarrow', 'connectorx'} & set(sys.modules);"
        "assert not heavy, heavy; sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for option in ("--gpu", "--model", "--tp", "--window", "--gate", "--cache"):
        assert option in done.stdout


def test_every_documented_option_exists():
    """The contract's command line, option by option."""
    contract = {
        (): "--gpu --model --tp --weight-dtype --kv-dtype --ceilings --ncu --window --markers --step --itl-target "
        "--dmon --dcgm -o --format --gate --gpu-override --cache --quiet --no-color",
        ("batch",): "-o --jobs --dask --resume --label --gate --gpu --model",
        ("compare",): "--baseline --min-change --gate -o",
    }
    for command, options in contract.items():
        text = subprocess.run(
            [sys.executable, "-m", "trace_analyze.cli", *command, "--help"], capture_output=True, text=True, check=True,
            env=os.environ | {"COLUMNS": "200"},
        ).stdout  # fmt: skip
        missing = [o for o in options.split() if not re.search(rf"(?<![\w-]){o}\b", text)]
        assert not missing, (command, missing)


def test_a_closed_pipe_is_no_error():
    done = subprocess.run(
        f"{sys.executable} -m trace_analyze.cli gpus | head -1", shell=True, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""


def test_no_traceback_for_a_fault_of_the_tool(run, monkeypatch):
    def broken(*_args, **_kwargs):
        raise ZeroDivisionError("by design of this test")

    monkeypatch.setattr("trace_analyze.analysis.road.analyze_capture", broken)
    monkeypatch.delenv("TRACE_ANALYZE_DEBUG", raising=False)
    code, _, err = run(CHUNKED)
    assert code == 2
    assert "fault of the tool" in err
    assert "Traceback" not in err


def test_step_is_printed_under_the_screen(run):
    _, out, _ = run(SGLANG, "--step", "median-decode", "--no-color")
    lines = out.splitlines()
    (head,) = [i for i, line in enumerate(lines) if re.match(r"Step \d+: [\d.]+ ms", line)]
    assert "gate_up" in "\n".join(lines[head:])
    assert max(map(len, lines)) <= 80


def test_one_kernel_alone_is_no_reason_for_distrust(run, shared_traces):
    """A capture of a single kernel: it covers its window by definition."""
    _, out, _ = run(shared_traces / "nsys" / "2023.3.3-a30-mig-2g.sqlite", "--format", "json", "-o", "-")
    trust = json.loads(out)["trust"]
    assert trust["verdict"] == "good", trust["verdict_reasons"]
