"""Work of simulated runs against what really happened: GEMMs within 1% everywhere, attention where lengths are known."""

from __future__ import annotations

import re
from dataclasses import replace

import polars as pl
import pytest

from trace_analyze.analysis.phases import find_phases
from trace_analyze.analysis.records.tables import KERNEL_TABLE, KERNEL_TAGS, KERNEL_WORK, OP_CLASS_TABLE, STEPS
from trace_analyze.analysis.records.trace import KERNELS

RUNS = [
    "vllm-llama-8b-a100-eager-detailed",
    "vllm-llama-8b-h100-marks",
    "vllm-llama-8b-h200-fp8-kv8",
    "vllm-llama-8b-a100-int4-unmarked",
    "vllm-llama-8b-h100-tp2",
    "vllm-qwen3-moe-h100",
    "vllm-deepseek-lite-h100-mla",
    "vllm-llama-1b-h100-autograd",
    "sglang-qwen3-8b-a100-roofline",
    "sglang-qwen3-8b-h100-piecewise-copies",  # padded graphs; the copies of their inputs tell the tokens
    "vllm-llama-8b-h100-piecewise-unmarked",  # padded graphs; kernels outside them tell the tokens
    "trtllm-llama-8b-h100",
    "llamacpp-llama-8b-rtx4090",
]
PADDED = "sglang-qwen3-8b-h100-piecewise-unmarked"  # nothing but the padded size tells the tokens of its two prompts
RENAMED = {"moe_gate_up": "expert_gate_up", "moe_down": "expert_down", "q_absorb": "absorb_q", "v_absorb": "absorb_o"}


def far(frame: pl.DataFrame, own: str, true: str) -> pl.DataFrame:
    """Rows whose value is more than 1% from the truth."""
    return frame.filter((pl.col(own) - pl.col(true)).abs() > 0.01 * pl.col(true).abs())


@pytest.mark.parametrize("name", RUNS)
def test_gemms(prepared, name):
    run = prepared(name)
    kernels = run.against_truth(run.with_model())
    gemms = kernels.filter(pl.col("op_class").is_in(["gemm", "moe_gemm"]))
    assert gemms.height > 300
    wrong = gemms.filter(pl.col("place") != pl.col("true_place").replace(RENAMED))
    assert wrong.is_empty(), wrong.select("place", "true_place", "name")
    assert far(gemms, "flop", "true_flop").is_empty()
    assert far(gemms, "bytes_weights", "true_bytes_weights").is_empty()
    # a prefill whose tokens no kernel shows may leave its few GEMMs unknown, never wrong
    assert gemms["flop"].null_count() <= 0.01 * gemms.height
    assert gemms["bytes_weights"].null_count() == 0


@pytest.mark.parametrize("name", RUNS)
def test_attention_is_right_or_unknown(prepared, name):
    run = prepared(name)
    kernels = run.against_truth(run.with_model())
    attention = kernels.filter(pl.col("op_class") == "attention")
    known = attention.filter(pl.col("flop").is_not_null())
    assert far(known, "flop", "true_flop").is_empty()
    assert far(attention.filter(pl.col("bytes_kv").is_not_null()), "bytes_kv", "true_bytes_kv").is_empty()


@pytest.mark.parametrize(
    "name",
    [
        "vllm-llama-8b-a100-eager-detailed",  # detailed markers hold the sums
        "vllm-qwen3-moe-h100",
        "vllm-deepseek-lite-h100-mla",
        "sglang-qwen3-8b-a100-roofline",
        "vllm-llama-8b-h100-marks",  # all prompts seen, nobody finishes
    ],
)
def test_lengths_that_the_capture_holds_are_used(prepared, name):
    run = prepared(name)
    result = run.with_model()
    decode = run.against_truth(result).filter((pl.col("op_class") == "attention") & (pl.col("step_phase") == "decode"))
    assert decode["bytes_kv"].null_count() == 0
    assert result.model["decode_bytes_are_lower_bound"] is False


def test_unknown_lengths_leave_a_lower_bound_that_says_so(prepared):
    run = prepared("vllm-llama-8b-h200-fp8-kv8")
    result = run.with_model()
    decode = result.steps.filter(pl.col("phase") == "decode")
    assert decode["bytes_kv"].null_count() == decode.height
    assert decode["bytes_weights"].null_count() == 0
    assert decode["mbu_pct"].null_count() == 0
    assert result.model["decode_bytes_are_lower_bound"] is True
    assert any("lower bound (weights only)" in note for note in result.model["notes"])
    attention = result.kernel_table.filter((pl.col("op_class") == "attention") & (pl.col("phase") == "decode"))
    assert attention["flop"].to_list() == [None]
    assert "KV lengths" in attention["reason"][0]
    assert result.traffic["kv_tokens_at_most"] > 0


@pytest.mark.parametrize("name", RUNS)
def test_small_kernels(prepared, name):
    """Norms, rope, cache writes, activations: bytes as the truth has them."""
    run = prepared(name)
    kernels = run.against_truth(run.with_model())
    small = kernels.filter(
        pl.col("op_class").is_in(["norm", "rope", "kv_write", "activation", "embedding"])
        & pl.col("bytes").is_not_null()
    )
    assert far(small, "bytes", "true_bytes").is_empty()


@pytest.mark.parametrize("name", ["vllm-llama-8b-h100-marks", "vllm-llama-8b-h100-tp2"])
def test_contract(prepared, name):
    run = prepared(name)
    result = run.with_model()
    assert dict(result.kernels.schema) == {**KERNELS, **KERNEL_TAGS, **KERNEL_WORK}
    assert dict(result.steps.schema) == dict(STEPS)
    assert dict(result.kernel_table.schema) == dict(KERNEL_TABLE)
    assert dict(result.op_classes.schema) == dict(OP_CLASS_TABLE)
    assert result.kernels.select(list(KERNELS)).equals(run.trace.kernels)
    assert sum(result.trust["gpu_time_by_work_source"].values()) == pytest.approx(1.0)


def gemms_of(result, phase):
    """The counted GEMMs of a phase and their row of the op-class table."""
    is_phase, is_gemm = (
        pl.col(name).cast(pl.String) == word for name, word in (("phase", phase), ("op_class", "gemm"))
    )
    kernels = result.kernels.filter(pl.col("in_window") & is_phase & is_gemm)
    return kernels, result.op_classes.row(by_predicate=is_gemm & is_phase, named=True)


def without_copies(run, *sizes):
    """The run as a capture without its copies of these sizes would show it."""
    trace = replace(run.trace, copies=run.trace.copies.filter(~pl.col("bytes").is_in(sizes)))
    return replace(run, trace=trace, phases=find_phases(trace, run.facts))


def test_flops_of_some_kernels_and_bytes_of_others_make_no_ratio(prepared):
    """One of five prompts has no copies: its GEMMs have the bytes of their weights alone."""
    run = without_copies(prepared("sglang-qwen3-8b-h100-piecewise-copies"), 8 * 330)
    result = run.with_model()
    kernels, row = gemms_of(result, "prefill")
    whole = kernels.filter(pl.col("flop").is_not_null() & pl.col("bytes").is_not_null())
    assert 0 < whole.height < kernels.height == kernels["bytes"].count()
    assert row["arithmetic_intensity"] == pytest.approx(whole["flop"].sum() / whole["bytes"].sum())
    assert 0 < row["headroom_ms"] < (whole["end_ns"] - whole["start_ns"]).sum() / 1e6
    assert "useful FLOPs known for 97% of its time" in row["reason"]
    point = next(p for p in result.roofline["points"] if (p["op_class"], p["phase"]) == ("gemm", "prefill"))
    assert point["tflops"] * 1e3 / point["gbps"] == pytest.approx(point["arithmetic_intensity"])


@pytest.mark.parametrize(("name", "phase"), [(PADDED, "prefill"), ("trtllm-llama-8b-a100-unmarked", "decode")])
def test_a_few_known_kernels_do_not_speak_for_all(prepared, name, phase):
    """The layers' GEMMs have only their padded work and the bytes of their weights; a GEMV of lm_head has both."""
    run = prepared(name)
    result = run.with_model()
    kernels, row = gemms_of(result, phase)
    assert 0 < kernels["flop"].count() < 0.1 * kernels.height
    assert kernels["flop_executed"].null_count() == kernels["bytes_weights"].null_count() == 0
    assert row["flop_executed"] == pytest.approx(kernels["flop_executed"].sum())
    assert [row[key] for key in ("arithmetic_intensity", "mfu_pct", "bound", "headroom_ms")] == [
        None,
        None,
        "unknown",
        None,
    ]
    at_most = re.search(r"MFU at most ([\d.]+)%, counted with the padded size", row["reason"])
    truth = run.against_truth(result).join(
        kernels.select("start_ns", "correlation_id"), on=["start_ns", "correlation_id"]
    )
    seconds = (truth["end_ns"] - truth["start_ns"]).sum() / 1e9
    peak = run.devices[0].peak_tflops["bf16"] * 1e12
    assert 100 * truth["true_flop"].sum() / seconds / peak < float(at_most[1]) < 100
    assert not [p for p in result.roofline["points"] if (p["op_class"], p["phase"]) == ("gemm", phase)]
    assert phase not in [centroid["phase"] for centroid in result.roofline["centroids"]]


def test_prompts_in_padded_graphs_are_unknown_and_their_padded_work_is_known(prepared):
    run = prepared(PADDED)
    result = run.with_model()
    kernels = run.against_truth(result)
    gemms = kernels.filter((pl.col("op_class") == "gemm") & (pl.col("place") != "lm_head"))
    prefill = gemms.filter(pl.col("step_phase") == "prefill")
    assert prefill.height == prefill["flop"].null_count() == 288
    assert far(prefill, "flop_executed", "true_flop_executed").is_empty()
    assert far(prefill, "bytes_weights", "true_bytes_weights").is_empty()
    others = gemms.filter(pl.col("step_phase") != "prefill")
    assert others["flop"].null_count() == 0
    assert far(others, "flop", "true_flop").is_empty()
    steps = result.steps.filter(pl.col("phase") == "prefill")
    for unknown in ("prefill_tokens", "flop", "mfu_pct", "bytes_activations"):
        assert steps[unknown].null_count() == steps.height == 2, unknown
    assert steps["padded_tokens"].to_list() == [2048, 2816]
    assert steps["bytes_weights"].null_count() == steps["prompts_finished"].null_count() == 0
    # the padded work over the busy time of each step; attention is not counted
    flop = (
        gemms.filter(pl.col("step_phase") == "prefill").group_by("step").agg(pl.col("flop_executed").sum()).sort("step")
    )
    whole = 100 * flop["flop_executed"] / (steps["busy_ns"] / 1e9) / (run.devices[0].peak_tflops["bf16"] * 1e12)
    assert result.mfu_at_most.drop_nulls().to_list() == pytest.approx(whole.to_list(), rel=1e-3)
    assert result.mfu_at_most.null_count() == result.steps.height - 2
    (note,) = [note for note in result.model["notes"] if "padded" in note]
    assert note.startswith("prompt tokens of 2 steps are not known")


WHOLE = [
    "vllm-llama-8b-h100-marks",
    "vllm-qwen3-moe-h100-tp2-eager",  # two ranks, experts, mixed steps
    "vllm-llama-8b-h100-speculative",  # draft steps without work
    "vllm-deepseek-lite-h100-mla",
    "trtllm-llama-8b-h100",  # mixed steps with an attention kernel per part
]


@pytest.mark.parametrize("name", WHOLE)
def test_sums_of_the_tables_are_the_sums_of_the_kernels(prepared, name):
    result = prepared(name).with_model()
    counted = result.kernels.filter(pl.col("in_window"))
    for table in (result.kernel_table, result.op_classes):
        assert table["count"].sum() == counted.height
        assert table["total_ms"].sum() == pytest.approx((counted["end_ns"] - counted["start_ns"]).sum() / 1e6)
        for column in ("flop", "flop_executed", "bytes"):
            assert table[column].sum() == pytest.approx(counted[column].sum(), rel=1e-9)
    for shares in result.kernel_table["evidence"]:
        assert sum(shares.values()) == pytest.approx(1.0)
    by_class = result.kernel_table.group_by("op_class", "phase").agg(pl.col("flop", "bytes", "total_ms").sum())
    both = result.op_classes.join(by_class, on=["op_class", "phase"], suffix="_sum", how="full")
    for column in ("flop", "bytes", "total_ms"):
        assert ((both[column].fill_null(0.0) - both[f"{column}_sum"]).abs() <= 1e-9 * both[f"{column}_sum"]).all()


@pytest.mark.parametrize("name", WHOLE)
def test_steps_are_the_sums_of_their_kernels(prepared, name):
    """On every rank by itself; FLOPs of the matrix kernels and of the small ones alike."""
    result = prepared(name).with_model()
    by_step = result.kernels.filter(pl.col("step") >= 0).group_by("step").agg(pl.col("flop", "bytes", "bytes_kv").sum())
    both = result.steps.filter(pl.col("bytes").is_not_null() & pl.col("flop").is_not_null()).join(
        by_step, on="step", suffix="_sum"
    )
    assert both.height > 20
    assert set(both["device_index"]) == set(result.steps["device_index"])
    for column in ("flop", "bytes"):
        assert ((both[column] - both[f"{column}_sum"]).abs() <= 1e-9 * both[column]).all()
    known = both.filter(pl.col("bytes_kv").is_not_null())
    assert ((known["bytes_kv"] - known["bytes_kv_sum"]).abs() <= 1e-9 * known["bytes_kv"]).all()
    parts = known["bytes_weights"] + known["bytes_kv"] + known["bytes_activations"]
    assert ((parts - known["bytes"]).abs() <= 1e-6 * known["bytes"]).all()


def test_ratios_of_a_row_are_those_of_its_sums(prepared):
    """A table's MBU is its bytes over its time, not a mean of ratios."""
    result = prepared("trtllm-llama-8b-h100").with_model()
    rows = result.kernel_table.filter(pl.col("mbu_pct").is_not_null() & pl.col("reason").is_null())
    assert rows.height > 5
    bandwidth = prepared("trtllm-llama-8b-h100").devices[0].memory_bandwidth_gbps
    expected = 100.0 * rows["bytes"] / (rows["total_ms"] / 1e3) / (bandwidth * 1e9)
    assert ((rows["mbu_pct"] - expected).abs() <= 1e-6 * expected).all()
    both = rows.filter(pl.col("flop").is_not_null())
    intensity = both["flop"] / both["bytes"]
    assert ((both["arithmetic_intensity"] - intensity).abs() <= 1e-9 * intensity).all()


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_attention_of_a_mixed_step_belongs_to_its_own_phase(prepared, phase):
    """TensorRT-LLM launches one kernel for each part of a mixed step."""
    run = prepared("trtllm-llama-8b-h100")
    kernels = run.against_truth(run.with_model())
    own = kernels.filter((pl.col("op_class") == "attention") & (pl.col("step_phase") == "mixed"))
    part = own.filter(pl.col("phase") == phase)
    assert part.height
    assert (part["place"] == f"attention_{phase}").all()
    assert part.filter(pl.col("true_phase") != phase).is_empty()


@pytest.mark.parametrize(("name", "ranks"), [("vllm-llama-8b-h100-tp2", 2), ("vllm-llama-70b-h100-tp8-unmarked", 8)])
def test_every_rank_reads_its_share(prepared, name, ranks):
    """8B: 15.01 GB over two ranks; 70B: 139.0 GB over eight; norms and lm_head rows aside."""
    result = prepared(name).with_model()
    decode = result.steps.filter((pl.col("phase") == "decode") & ~pl.col("partial"))
    by_device = decode.group_by("device_index").agg(pl.col("bytes_weights").median())
    whole = {2: 15.01e9, 8: 139.0e9}[ranks]
    assert by_device.height == ranks
    assert by_device["bytes_weights"].to_list() == [pytest.approx(whole / ranks, rel=2e-3)] * ranks


def test_decode_is_bound_by_memory_and_prefill_by_compute(prepared):
    result = prepared("vllm-llama-8b-h100-marks").with_model()
    gemms = result.op_classes.filter(pl.col("op_class") == "gemm")
    bound = dict(gemms.select("phase", "bound").iter_rows())
    assert bound == {"decode": "memory", "prefill": "compute"}
    centroids = {row["phase"]: row["arithmetic_intensity"] for row in result.roofline["centroids"]}
    assert centroids["decode"] < 295 < centroids["prefill"]


def test_the_fitted_bandwidths_are_those_of_the_simulation(prepared):
    """The simulator moves weights at about 85% of 3,352 GB/s and each further cached token at 82%."""
    traffic = prepared("vllm-llama-8b-h100-marks").with_model().traffic
    assert traffic["weights_fitted_mbu_pct"] == pytest.approx(85, abs=5)
    assert traffic["kv_fitted_mbu_pct"] == pytest.approx(82, abs=2)
    assert traffic["bytes_weights_per_step"] == pytest.approx(15.01e9, rel=1e-3)


def test_collectives_have_no_ratio(prepared):
    result = prepared("vllm-llama-8b-h100-tp2").with_model()
    rows = result.op_classes.filter(pl.col("op_class") == "collective")
    assert rows.height
    assert set(rows["bound"]) == {"communication"}
    assert rows["mfu_pct"].null_count() == rows["mbu_pct"].null_count() == rows.height
    assert result.model["tensor_parallel"] == 2


class TestLostKernels:
    def test_a_lossy_capture_gives_unknown_work_not_wrong_work(self, prepared):
        run = prepared("vllm-llama-8b-a100-lossy-2022")
        kernels = run.against_truth(run.with_model()).filter(pl.col("op_class") == "gemm")
        assert far(kernels, "flop", "true_flop").is_empty()
        assert kernels["flop"].null_count() < 0.03 * kernels.height


class TestRecognition:
    def test_the_command_line_names_the_model(self, prepared):
        result = prepared("vllm-llama-8b-h100-tp2").work()
        assert result.model["name"] == "Llama-3.1-8B"
        assert result.model["source"] == "command_line"

    def test_layers_and_grids_tell_llama_from_mistral(self, prepared):
        """No command line in this capture: both have 32 layers and equal layers; lm_head's tiles differ."""
        result = prepared("vllm-llama-8b-a100-2020-unmarked").work()
        assert result.model["name"] == "Llama-3.1-8B"
        assert result.model["source"] == "recognised"
        assert any("recognised" in note for note in result.model["notes"])

    def test_recorded_shapes_beat_the_model_and_disagreement_is_reported(self, prepared):
        run = prepared("vllm-llama-1b-h100-autograd")
        right = run.work(model="llama-3.2-1b")
        wrong = run.work(model="llama-3.1-8b")
        assert right.trust["gpu_time_by_work_source"]["shape"] > 0.5
        assert not any("recorded shapes" in each for each in right.trust["contradictions"])
        assert any("recorded shapes differ from Llama-3.1-8B" in each for each in wrong.trust["contradictions"])
        assert any("16 layers seen" in each for each in wrong.trust["contradictions"])
        gemm = pl.col("work_source") == "shape"
        assert wrong.kernels.filter(gemm)["flop"].equals(right.kernels.filter(gemm)["flop"])

    def test_without_a_model_work_is_unknown_with_its_reason(self, prepared):
        from dataclasses import replace

        from trace_analyze.analysis.records.trace import ServingFacts

        run = prepared("vllm-llama-8b-h100-marks")
        silent = replace(run.trace, capture=replace(run.trace.capture, serving=ServingFacts()))
        result = replace(run, trace=silent).work()
        assert result.model["name"] is None
        assert "Llama-3.1-8B" in result.model["candidates"]
        assert "--model" in result.model["reason"]
        gemm = result.kernel_table.filter(pl.col("op_class") == "gemm")
        assert gemm["flop"].null_count() == gemm.height
        assert all("--model" in reason for reason in gemm["reason"])


def test_both_conventions_of_intensity_are_named_and_meant(prepared):
    """The seeds count weights alone: a decode GEMM of 16 requests has an intensity of 16; with activations a bit less."""
    result = prepared("vllm-llama-8b-h100-marks").with_model()
    said = " ".join(result.roofline["conventions"])
    assert "activations" in said
    assert "weights-only" in said
    kernels = result.kernels.filter((pl.col("op_class") == "gemm") & (pl.col("step_phase") == "decode"))
    assert set((kernels["flop"] / kernels["bytes_weights"]).round(6)) == {16.0}
    both = kernels["flop"] / kernels["bytes"]
    assert (both < 16.0).all()
    assert (both > 15.5).all()
