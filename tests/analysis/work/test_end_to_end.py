"""Published cases from a file to the numbers of the JSON, through the command line."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from trace_analyze import analyze, cli
from trace_analyze.fixtures import cases
from trace_analyze.fixtures.writers.nsys_writer import Capture


@pytest.fixture
def analysed(tmp_path, capsys):
    """The JSON of a capture with these options."""

    def run(capture, *options):
        path = capture.write(tmp_path / "capture.sqlite")
        assert cli.main([str(path), *options, "--format", "json", "-o", "-"]) in (0, 3)
        return json.loads(capsys.readouterr().out)

    return run


def test_f10_decode_attention_over_a_long_cache(analysed, tmp_path):
    """users.md F10 (intel/sycl-tla PR 778): 671.2 MB of KV, 162.1 GB/s, 1.621 TFLOP/s, 10.0 FLOP/B."""
    config = {
        **{"model_type": "llama", "hidden_size": 10240, "num_hidden_layers": 1, "num_attention_heads": 80},
        **{"num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 28672, "vocab_size": 128256},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    result = analysed(cases.decode_attention(), "--model", str(tmp_path / "config.json"))
    kernel, step = result["kernels"][0], result["steps"][0]
    seconds = kernel["total_ms"] / 1e3
    assert seconds == pytest.approx(4.1408e-3)
    assert step["bytes_kv"] == pytest.approx(671.2e6, rel=1e-3)
    assert kernel["bytes"] == pytest.approx(671.8e6, rel=1e-4)
    assert step["bytes_kv"] / seconds / 1e9 == pytest.approx(162.1, abs=0.05)
    assert kernel["flop"] / seconds / 1e12 == pytest.approx(1.621, abs=1e-3)
    assert kernel["flop"] / step["bytes_kv"] == pytest.approx(10.0, abs=0.01)
    assert kernel["arithmetic_intensity"] == pytest.approx(9.99, abs=0.01)  # query and output counted
    assert kernel["work_source"] == "model"
    assert kernel["bound"] == "latency"  # 2% of the roofline: neither ceiling binds
    assert kernel["mbu_pct"] == pytest.approx(100 * kernel["bytes"] / seconds / 8.184e12, rel=0.03)


def test_f9_is_refused_at_369_percent(analysed):
    """users.md F9 (nsys-ai issue 385): 989e12 FLOP in 0.2709 s on an H100; 79,079^3 multiply-adds make them."""
    capture = Capture(pid=cases.PID)
    capture.gpu("h100")
    ms = cases.MS
    capture.nvtx("aten::mm, op_id = 2, sizes = [[79079, 79079], [79079, 79079]]", 10 * ms, 12 * ms)
    name = "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT"
    capture.kernel(name, 20 * ms, 20 * ms + 270_900_000, grid=(132, 1, 1), block=(384, 1, 1), launched_at=11 * ms)
    kernel = analysed(capture)["kernels"][0]
    assert kernel["flop"] == pytest.approx(989e12, rel=1e-4)
    assert kernel["work_source"] == "shape"
    assert kernel["mfu_pct"] is None
    assert kernel["bound"] == "unknown"
    for part in ("MFU would be 369%", "the FLOPs (9.89e+14)", "the time (0.2709 s)", "the peak (989.4 TFLOP/s)"):
        assert part in kernel["reason"]


def test_launches_per_step_leave_out_the_steps_that_a_window_cuts():
    """100 ms hold two whole steps and the rest of two others: what a step launches is the same as over the whole run."""
    capture = Path(__file__).parents[3] / "fixtures" / "captures" / "vllm-llama-3.1-8b-a100-chunked-prefill.sqlite"
    row = ["name", "phase"]
    whole, part = (
        analyze(capture, window=window).kernel_table.select(*row, "count_per_step") for window in (None, "0.1:0.2")
    )
    both = part.join(whole, on=row, suffix="_whole")
    gemms = both.filter(pl.col("name").str.contains("s16816gemm"), pl.col("phase").cast(pl.String) == "mixed")
    assert sorted(gemms["count_per_step"]) == [1.0, 128.0]  # lm_head; qkv, o, gate_up, down of 32 layers
    assert both["count_per_step"].to_list() == both["count_per_step_whole"].to_list()
