"""The first screen in a terminal: what it says, that it fits 80 columns and 40 lines, that names cannot paint."""

import re
from dataclasses import replace

import polars as pl
import pytest
from msgspec import structs

from trace_analyze.analysis.gates import evaluate, parse_gate
from trace_analyze.analysis.records.summary import Spread
from trace_analyze.analysis.records.trace import EvidenceGap
from trace_analyze.analysis.records.trust import Contradiction
from trace_analyze.reports.first_screen.lines import gpu_line, model_line, ratio_lines, stall_line
from trace_analyze.reports.terminal import plain, print_screen

PAGES = ("serving_run", "no_phases", "unknown_stalls", "could_not_look", "hostile")
LONG = "a consequence that takes a whole line and more of the screen to be told in words"


@pytest.fixture
def screen(capsys, monkeypatch):
    """Prints an Analysis at a width and returns its lines."""

    def show(analysis, *, width=80, **options):
        monkeypatch.setenv("COLUMNS", str(width))
        print_screen(analysis, **options)
        return capsys.readouterr().out.splitlines()

    return show


def line_of(lines, label):
    """The text beside a label, its folded lines joined."""
    at = next(i for i, line in enumerate(lines) if line.startswith(label + " "))
    rest = []
    for line in lines[at + 1 :]:
        if not line.startswith(" " * 13) or not line.strip():
            break
        rest.append(line.strip())
    return " ".join([lines[at][13:].strip(), *rest])


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("width", [80, 100, 200])
def test_it_fits(screen, pages, tmp_path, name, width):
    analysis, _ = pages(name)
    lines = screen(analysis, width=width, written=[tmp_path / "run.html"])
    assert len(lines) <= 40
    assert max(len(line) for line in lines if not line.startswith("Written")) <= min(width, 110)
    assert not any(line.endswith(" ") for line in lines)


def test_a_run_with_much_to_say_gives_up_kernels_before_sentences(screen, pages):
    analysis, _ = pages("serving_run")
    gaps = tuple(EvidenceGap(f"no thing {i}", LONG, f"nsys profile {'--long-option ' * 9}") for i in range(3))
    headline = " ".join(["Decode runs at 61% MBU and much else is to be said about it;"] * 9)
    full = replace(
        analysis,
        trace=replace(analysis.trace, gaps_in_evidence=gaps),
        summary=structs.replace(analysis.summary, headline=headline),
    )
    lines = screen(full)
    assert len(lines) <= 40
    said = " ".join(" ".join(lines).split())
    assert headline in said
    assert f"{LONG} (2 more in the report)" in said
    assert "Finding 1" in said
    usual = screen(analysis)
    count = sum(line[:2] in ("D ", "P ", "M ") for line in lines)
    assert 2 <= count < sum(line[:2] in ("D ", "P ", "M ") for line in usual)


def test_numbers_of_the_screen(screen, pages):
    analysis, _ = pages("serving_run")
    lines = screen(analysis)
    summary = analysis.summary
    step = summary.decode_step_ms
    assert line_of(lines, "Decode step").endswith(f"(n = {step.n})")
    assert f"p50 {step.p50:.2f} ms" in line_of(lines, "Decode step")
    assert f"{summary.decode_mbu_kernel_pct:.1f}% of peak (kernel time)" in line_of(lines, "Decode MBU")
    assert line_of(lines, "GPU").startswith("2 x NVIDIA A100")
    assert "ridge 153" in line_of(lines, "GPU")  # 312 TFLOP/s over 2,039 GB/s


def test_strip_of_steps_is_in_proportion(screen, pages):
    analysis, _ = pages("serving_run")
    letters = line_of(screen(analysis), "Steps")
    assert set(letters) <= set("DPMo?. ^")
    first = analysis.steps.filter(pl.col("device_index") == 0)
    span = first["end_ns"].max() - first["start_ns"].min()
    for phase, letter in (("prefill", "P"), ("mixed", "M")):
        own = first.filter(pl.col("phase") == phase)
        share = (own["end_ns"] - own["start_ns"]).sum() / span
        assert letters.count(letter) / 66 == pytest.approx(share, abs=0.06)


@pytest.mark.parametrize("name", PAGES)
def test_no_colour_no_escapes(screen, pages, name):
    analysis, _ = pages(name)
    assert "\x1b" not in "\n".join(screen(analysis, color=False))


def test_names_cannot_paint():
    assert plain("a\x1b[31mred\x07\nb\x9b") == "a?[31mred??b?"


def test_hostile_names_stay_on_their_line(screen, pages):
    analysis, _ = pages("hostile")
    text = "\n".join(screen(analysis))
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)


def test_two_kernels_are_told_apart_where_their_names_are_cut(screen, pages):
    analysis, _ = pages("serving_run")
    stem = "nvjet_tst_64x8_64x16_4x1_v_bz_with_a_tail_"
    table = analysis.kernel_table.filter(pl.col("phase") == "decode").head(3)
    told = table.with_columns(name=pl.Series([f"{stem}TNT", f"{stem}splitK_TNT", "void f<int>(P)"]))
    told = told.with_columns(short_name=told["name"])
    lines = screen(replace(analysis, kernel_table=told))
    names = [line[2:].split()[0] for line in lines if line.startswith("D ")]
    assert len(set(names)) == 3
    assert all(len(name) >= 12 for name in names[:2])


@pytest.fixture
def summary(pages):
    """The summary of the serving run with other values."""
    return lambda **values: structs.replace(pages("serving_run")[0].summary, **values)


def steps(count):
    return Spread(n=count, p50=1.0, p95=1.0, p99=1.0, max=1.0)


@pytest.mark.parametrize(
    ("values", "label", "text"),
    [
        ({"prefill_mfu_kernel_pct": 50.0, "prefill_mfu_wall_pct": 40.0, "prefill_step_ms": steps(3), "mixed_step_ms": steps(2)},
         "Prefill MFU", "50.0% of peak (kernel time), 40.0% (wall)"),
        # chunked prefill: all prompt work sits in mixed steps
        ({"mixed_mfu_kernel_pct": 62.34, "mixed_mfu_wall_pct": None, "prefill_step_ms": steps(0), "mixed_step_ms": steps(2)},
         "Mixed MFU", "62.3% of peak (kernel time)"),
    ],
)  # fmt: skip
def test_mfu_is_that_of_the_steps_that_prefill(summary, values, label, text):
    _, mfu = ratio_lines(summary(**values))
    assert (mfu.label, mfu.text) == (label, text)


def test_a_lower_bound_says_so(summary):
    values = {"decode_mbu_kernel_pct": 75.1, "decode_mbu_wall_pct": 70.0, "decode_mbu_is_lower_bound": True}
    mbu, _ = ratio_lines(summary(**values))
    assert mbu.text == "≥ 75.1% of peak (kernel time), ≥ 70.0% (wall), weights only"


@pytest.mark.parametrize(
    ("values", "text", "why"),
    [
        ({"stall_count": 0, "stall_ms": 0.0}, "none: no decoding request waited for a prefill", ""),
        ({"stall_count": None, "reasons": {"stall_count": "no two steps"}}, "", "no two steps"),
        ({"stall_count": 3, "stall_ms": None, "reasons": {"stall_ms": "no baseline"}},
         "3 stalls; their length is not known: no baseline", ""),
        ({"stall_count": 3, "stall_ms": 141.0, "stall_pct_of_window": 43.7, "stall_episode_count": 1, "stall_episode_max_ms": 141.0},
         "141 ms (43.7% of window) in 1 episode of 3 stalls, longest episode 141 ms", ""),
        ({"stall_count": 2, "stall_ms": 20.0, "stall_ms_is_lower_bound": True, "stall_pct_of_window": 4.0, "stall_episode_count": 2,
          "stall_episode_max_ms": 12.0}, "≥ 20.0 ms (≥ 4.0% of window) in 2 episodes of 2 stalls, longest episode 12.0 ms", ""),
    ],
)  # fmt: skip
def test_stalls(summary, values, text, why):
    line = stall_line(summary(**values))
    assert (line.text, line.why) == (text, why)


def test_one_reason_is_said_once(screen, pages):
    analysis, _ = pages("no_phases")
    text = " ".join(" ".join(screen(analysis)).split())
    assert text.count("no autoregressive phases found") <= 2  # the sentence, and the one line of what is not known
    assert "decode MBU" in text


def test_input_without_times(screen, pages):
    analysis, _ = pages("no_phases")
    capture = replace(analysis.trace.capture, format="ncu_csv")
    unknown = dict.fromkeys(("gpu_idle_ms", "window_ms", "capture_ms", "nvml_utilization_pct"))
    reasons = {**analysis.summary.reasons, "gpu_idle_ms": "the input holds durations but no times"}
    summary = structs.replace(analysis.summary, **unknown, gpu_busy_ms=21.06, kernel_count=4, reasons=reasons)
    lines = screen(replace(analysis, summary=summary, trace=replace(analysis.trace, capture=capture)))
    assert line_of(lines, "Measured") == "21.1 ms in 4 kernels: durations without times"
    text = " ".join(lines)
    assert "durations but no times" in text
    assert "nvidia-smi" not in text
    assert not any(line.startswith("Window") for line in lines)


def test_an_unknown_gpu_is_said_once(pages):
    analysis, _ = pages("no_phases")
    nameless = structs.replace(
        analysis.devices[0], gpu_name=None, gpu_source="capture", peak_tflops={}, ceiling_reason="give --gpu"
    )
    assert (
        gpu_line(replace(analysis, devices=(nameless,))) == "not known: the capture does not name its GPU (give --gpu)"
    )
    assert gpu_line(replace(analysis, devices=())) == "none with activity"


def test_the_peak_is_that_of_the_type_the_run_computes_in(pages):
    analysis, _ = pages("serving_run")
    peaks = {"bf16": 989.4, "fp8": 1978.9}
    device = structs.replace(
        analysis.devices[0], gpu_name="H100", gpu_source=None, peak_tflops=peaks, memory_bandwidth_gbps=3352.0
    )
    fp8 = analysis.kernel_table.with_columns(dtype=pl.lit("fp8"))
    assert (
        gpu_line(replace(analysis, devices=(device,), kernel_table=fp8))
        == "H100, 1,979 TFLOP/s fp8, 3,352 GB/s, ridge 590"
    )


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ({"name": "Llama-3.1-8B", "weight_dtype": "fp8", "tensor_parallel": 2, "source": "command_line"},
         "Llama-3.1-8B fp8, TP 2, from command line"),
        ({"name": "Qwen3-8B", "source": "recognised"}, "Qwen3-8B, recognised"),
        ({"name": None, "tensor_parallel": 1, "candidates": ["a", "b"]}, "not known (could be a or b; give --model)"),
    ],
)  # fmt: skip
def test_model(pages, model, text):
    analysis, _ = pages("serving_run")
    assert model_line(replace(analysis, model=model)).startswith(text)


def test_a_model_that_is_not_known_says_where_gemm_work_comes_from(pages):
    analysis, _ = pages("serving_run")
    trust = structs.replace(analysis.trust, gpu_time_by_work_source={"name": 0.8, "unknown": 0.2})
    line = model_line(replace(analysis, model={"name": None}, trust=trust))
    assert line.startswith("not known (give --model), GEMM work bounded by tiles and grids")


def test_evidence_that_disagrees_is_said(screen, pages):
    analysis, _ = pages("serving_run")
    found = Contradiction(what="markers and kernels", steps=2, kernels=9, gpu_ms=3.5, examples=())
    lines = screen(replace(analysis, trust=structs.replace(analysis.trust, contradictions=(found,))))
    assert f"{'':13}markers and kernels" in lines


def test_gates_and_files_close_the_screen(screen, pages, tmp_path):
    analysis, _ = pages("serving_run")
    gate = evaluate(parse_gate("summary.stall_count < 1"), {"summary": {"stall_count": 6}})
    path = tmp_path / ("a" * 90 + ".html")
    lines = screen(analysis, gates=[gate], written=[path])
    assert lines[-1] == f"Written      {path}"
    assert lines[-2].startswith("Gate ")
