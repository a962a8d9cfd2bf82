"""Ceilings: which row applies, what is derived, what contradicts, and the published figures."""

from __future__ import annotations

import re
import sqlite3

import polars as pl
import pytest

from trace_analyze.analysis.gpus.device_ceilings import DeviceCeilings, resolve_devices
from trace_analyze.analysis.gpus.gpu_table import gpu_table, list_gpus, plain_name
from trace_analyze.analysis.records.errors import UsageError
from trace_analyze.analysis.records.trace import DEVICES, CaptureFacts, build_trace

TABLE = gpu_table()
ROWS = {gpu.key: gpu for gpu in TABLE.gpus}


def trace(*devices: dict):
    rows = [
        {**dict.fromkeys(DEVICES), "device_index": i, "device": i, "process": 1, "mapping": "exact", **device}
        for i, device in enumerate(devices)
    ]
    return build_trace(CaptureFacts("run.sqlite", "nsys_sqlite"), devices=pl.DataFrame(rows, schema=dict(DEVICES)))


def resolve(device: dict | None = None, **options) -> DeviceCeilings:
    (found,) = resolve_devices(trace(device or {}), **options)
    return found


def reported(
    name: str, sms: int, memory: float, bandwidth: float, mhz: float, chip: str | None = None, cc: str | None = None
) -> dict:
    """A device as a capture reports it: memory and bandwidth in 1e9 bytes."""
    return {
        "gpu_name": name, "gpu_source": "TARGET_INFO_GPU", "sm_count": sms, "total_memory_bytes": int(memory * 1e9),
        "memory_bandwidth_bytes_per_s": int(bandwidth * 1e9), "max_clock_hz": int(mhz * 1e6), "chip": chip,
        "compute_capability": cc,
    }  # fmt: skip


H100 = reported("NVIDIA H100 80GB HBM3", 132, 84.93, 3352.32, 1980, "GH100", "9.0")
A100_40 = reported("NVIDIA A100-PCIE-40GB", 108, 42.35, 1555.2, 1410, "GA100", "8.0")
ORIN_8GB = reported("Orin", 8, 7.99, 29.376, 1020, "GA10B", "8.7")

# -- the table ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gpu", TABLE.gpus, ids=lambda gpu: gpu.key)
def test_every_row_is_found_by_its_names_and_by_what_people_type(gpu):
    for name in (*gpu.names, gpu.key, gpu.key.lower(), *gpu.aliases):
        assert TABLE.named(name) == (gpu,), name
        assert TABLE.typed(name)[0] == gpu, name


@pytest.mark.parametrize("gpu", TABLE.gpus, ids=lambda gpu: gpu.key)
def test_every_row_applies_to_a_capture_that_agrees(gpu):
    found = resolve(
        {
            "gpu_name": gpu.names[0],
            "sm_count": gpu.sm_count or None,
            "total_memory_bytes": int(gpu.memory_gb * 1.06e9),  # GiB written as GB, less what the driver keeps
            "compute_capability": gpu.compute_capability,
        }
    )
    assert found.key == gpu.key
    assert found.peak_tflops == pytest.approx(gpu.peaks)
    assert found.memory_bandwidth_gbps == gpu.bandwidth_gbps
    assert gpu.key in found.bandwidth_source and gpu.source in found.ceiling_source
    assert not found.derived and found.contradiction is None and found.candidates == ()


@pytest.mark.parametrize(
    "gpu",
    [gpu for gpu in TABLE.gpus if gpu.fma16_per_sm_clk and gpu.spec_clock_mhz and not gpu.capped],
    ids=lambda gpu: gpu.key,
)
def test_peaks_agree_with_sm_count_times_clock_times_rate(gpu):
    peak = gpu.peaks.get("fp16", gpu.peaks.get("bf16"))
    formula = gpu.sm_count * gpu.fma16_per_sm_clk * 2 * gpu.spec_clock_mhz * 1e6 / 1e12
    assert peak == pytest.approx(formula, rel=0.022)


@pytest.mark.parametrize(
    "gpu", [gpu for gpu in TABLE.gpus if gpu.chip and gpu.fma16_per_sm_clk], ids=lambda gpu: gpu.key
)
def test_chip_rates_give_the_ratios_of_the_rows(gpu):
    chip = TABLE.chip(gpu.chip, gpu.compute_capability)
    if chip is None:  # integrated parts whose rate is not derived
        assert gpu.compute_capability in {"11.0", "12.1"}
        return
    half_rate_board = gpu.key in {"A10G", "L40"}  # boards sold at half the tensor rate of their chip
    fma16, ratios = chip.rates(geforce="GeForce" in gpu.names[0])
    assert half_rate_board or fma16 == gpu.fma16_per_sm_clk
    if half_rate_board or gpu.capped or "fp16" not in gpu.peaks:
        return
    base = gpu.peaks["fp16"]
    for dtype, ratio in ratios.items():
        if dtype in gpu.peaks:
            assert gpu.peaks[dtype] == pytest.approx(base * ratio, rel=0.03), dtype


def test_no_name_means_two_parts():
    owners: dict[str, str] = {}
    for gpu in TABLE.gpus:
        for name in {plain_name(each) for each in (*gpu.names, gpu.key, *gpu.aliases)}:
            assert owners.setdefault(name, gpu.key) == gpu.key, name
    shared = {family for family in TABLE.families if plain_name(family) in owners}
    assert shared == {"h200", "orin"}  # also a device name: what a capture calls "NVIDIA H200" is the SXM part
    assert all(owners[plain_name(family)] == TABLE.families[family][0] for family in shared)


@pytest.mark.parametrize(
    ("a", "b"),
    [("NVIDIA H20", "NVIDIA H200"), ("NVIDIA A10", "NVIDIA A10G"), ("NVIDIA A10", "NVIDIA A100-SXM4-80GB"),
     ("NVIDIA L4", "NVIDIA L40"), ("NVIDIA L40", "NVIDIA L40S"), ("NVIDIA H100 PCIe", "NVIDIA H100 80GB HBM3")],
)  # fmt: skip
def test_names_are_never_matched_by_part(a, b):
    of_a, of_b = ({gpu.key for gpu in TABLE.named(name)} for name in (a, b))
    assert of_a and of_b and of_a.isdisjoint(of_b)


@pytest.mark.parametrize(
    "name",
    ["NVIDIA RTX A1000", "NVIDIA RTX A1000 Laptop GPU", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 D",
     "NVIDIA L20X", "NVIDIA A100-SXM-64GB", "NVIDIA A2", "Tesla P100"],
)  # fmt: skip
def test_a_longer_or_shorter_name_is_another_part(name):
    assert TABLE.named(name) == ()


def test_every_family_row_names_parts_of_the_table():
    for family, keys in TABLE.families.items():
        assert [gpu.key for gpu in TABLE.typed(family)] == list(keys)


@pytest.mark.parametrize(
    ("typed", "key"),
    [("a100", "A100-SXM4-80GB"), ("A100", "A100-SXM4-80GB"), ("a100-80gb", "A100-SXM4-80GB"), ("a100-40gb", "A100-SXM4-40GB"),
     ("a100-pcie", "A100-PCIE-80GB"), ("h100", "H100-SXM5-80GB"), ("h100-pcie", "H100-PCIE-80GB"), ("h100 nvl", "H100-NVL-94GB"),
     ("h200", "H200-SXM-141GB"), ("gh200", "GH200-96GB"), ("l4", "L4"), ("l40s", "L40S"), ("rtx4090", "RTX-4090"), ("4090", "RTX-4090"),
     ("RTX 4090", "RTX-4090"), ("NVIDIA GeForce RTX 4090", "RTX-4090"), ("rtx_3090", "RTX-3090"), ("v100", "V100-SXM2-32GB"),
     ("mi300x", "MI300X"), ("AMD Instinct MI300X", "MI300X"), ("t4", "T4"), ("Tesla T4", "T4"), ("b200", "B200-SXM6"), ("h20", "H20-96GB")],
)  # fmt: skip
def test_what_people_type(typed, key):
    assert TABLE.typed(typed)[0].key == key


def test_an_unknown_name_is_an_error_with_the_nearest_ones():
    with pytest.raises(UsageError, match=r"'a1oo'.*a100") as raised:
        resolve(gpu="a1oo")
    assert raised.value.exit_code == 2
    with pytest.raises(UsageError, match="trace-analyze gpus"):
        resolve_devices(trace(), gpu_override="toaster")


# -- ridges and published figures --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpu", "dtype", "ridge"),
    [
        ("a100-80gb", "bf16", 153),
        ("h100", "bf16", 295),
        ("h20", "bf16", 37),
        ("h100", "fp8", 591),
        ("v100", "fp16", 139),
    ],
)
def test_ridges(gpu, dtype, ridge):
    assert resolve(gpu=gpu).ridge(dtype) == pytest.approx(ridge, abs=0.5)


def test_no_ridge_without_a_peak():
    assert resolve(gpu="v100").ridge("bf16") is None
    assert resolve().ridge("bf16") is None


def test_peak_at_a_measured_clock():
    assert resolve(H100).peak_at_clock("bf16", 1.42e9) == pytest.approx(768, rel=0.01)
    assert resolve().peak_at_clock("bf16", 1.42e9) is None


# -- capture against flag ----------------------------------------------------------------------------------------------


def test_the_capture_names_the_gpu_and_its_bandwidth():
    found = resolve(H100)
    assert (found.key, found.gpu_name, found.gpu_source) == (
        "H100-SXM5-80GB",
        "NVIDIA H100 80GB HBM3",
        "TARGET_INFO_GPU",
    )
    assert (found.memory_bandwidth_gbps, found.bandwidth_source) == (3352.32, "capture")
    assert found.peak_tflops["bf16"] == 989.4  # the datasheet's, not 1070 at the clock the capture reports


def test_a_family_is_settled_by_the_capture():
    found = resolve(A100_40, gpu="a100")
    assert found.key == "A100-PCIE-40GB" and found.contradiction is None and found.candidates == ()


def test_a_silent_capture_means_the_commonest_part_and_shows_the_others():
    found = resolve(gpu="a100")
    assert (found.key, found.gpu_source) == ("A100-SXM4-80GB", "--gpu")
    assert found.candidates == ("A100-SXM4-40GB", "A100-PCIE-80GB", "A100-PCIE-40GB")


@pytest.mark.parametrize(
    ("device", "key", "candidates"),
    [
        ({"total_memory_bytes": int(42.3e9)}, "A100-SXM4-40GB", ("A100-PCIE-40GB",)),
        ({"memory_bandwidth_bytes_per_s": int(1935.36e9)}, "A100-SXM4-80GB", ("A100-PCIE-80GB",)),
        ({"sm_count": 108}, "A100-SXM4-80GB", ("A100-SXM4-40GB", "A100-PCIE-80GB", "A100-PCIE-40GB")),
    ],
)
def test_a_capture_without_name_still_narrows_a_family(device, key, candidates):
    found = resolve(device, gpu="a100")
    assert (found.key, found.candidates) == (key, candidates)


def test_a_flag_that_contradicts_loses_loudly():
    found = resolve(H100, gpu="a100")
    assert found.key == "H100-SXM5-80GB"
    assert "--gpu a100 is not used" in found.contradiction and "NVIDIA H100 80GB HBM3" in found.contradiction


def test_a_flag_loses_against_sm_count_alone():
    found = resolve({"sm_count": 132}, gpu="a100")
    assert found.key is None and "132 SMs" in found.contradiction


def test_the_override_wins_and_says_what_speaks_against_it():
    found = resolve(H100, gpu_override="a100-80gb")
    assert (found.key, found.gpu_source, found.sm_count) == ("A100-SXM4-80GB", "--gpu-override", 108)
    assert found.memory_bandwidth_gbps == 2039 and "NVIDIA H100 80GB HBM3" in found.contradiction
    assert resolve(H100, gpu_override="h100").contradiction is None


def test_neither_capture_nor_flag():
    found = resolve()
    assert found.peak_tflops == {} and found.memory_bandwidth_gbps is None and "--gpu" in found.reason


# -- rows that must not apply ------------------------------------------------------------------------------------------


def test_a_small_orin_is_no_agx_orin():
    found = resolve(ORIN_8GB, gpu="orin")
    assert found.key is None and found.memory_bandwidth_gbps is None
    assert "8 SMs" in found.reason and "29 GB/s, which is wrong" in found.reason
    assert "8 SMs" in found.contradiction
    agx = resolve(reported("Orin", 16, 64.2, 29.4, 1300, "GA10B", "8.7"))
    assert agx.key == "JETSON-AGX-ORIN-64GB" and agx.memory_bandwidth_gbps == 204.8 and "wrong" in agx.reason


def test_name_alone_does_not_make_a_row():
    found = resolve({**H100, "total_memory_bytes": int(64e9)})
    assert found.key is None and "64.0 GB of memory" in found.reason
    assert found.derived and found.memory_bandwidth_gbps == 3352.32


def test_a_bandwidth_far_from_the_table_is_said():
    found = resolve({**H100, "memory_bandwidth_bytes_per_s": int(2000e9)})
    assert found.memory_bandwidth_gbps == 2000 and "3350" in found.reason


@pytest.mark.parametrize("typed", ["gb10", "rtx-pro-6000-server"])
def test_a_part_without_a_published_peak_says_so(typed):
    found = resolve(gpu=typed)
    assert found.ridge("bf16") is None and found.memory_bandwidth_gbps > 0
    assert "no dense 16-bit peak" in found.reason


# -- derived -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chip", TABLE.chips, ids=lambda chip: chip.names[0])
@pytest.mark.parametrize("geforce", [False, True])
def test_a_gpu_in_no_row_gets_a_derived_peak(chip, geforce):
    name = "NVIDIA GeForce Example 1" if geforce else "NVIDIA Example 1"
    device = reported(name, 10, 16, 500, 1000, chip.names[-1])
    found = resolve(device)
    fma16, ratios = chip.rates(geforce)
    assert found.derived and found.key is None
    for dtype, ratio in ratios.items():
        assert found.peak_tflops[dtype] == pytest.approx(10 * fma16 * 2 * 1e9 / 1e12 * ratio)
    assert found.peak_tflops["fp32"] == pytest.approx(10 * chip.fma32_per_sm_clk * 2 * 1e9 / 1e12)
    assert "derived" in found.ceiling_source and "8% high" in found.ceiling_source
    by_capability = resolve({**device, "chip": None, "compute_capability": chip.compute_capabilities[0]})
    assert by_capability.peak_tflops == found.peak_tflops


def test_derived_by_hand():
    # 46 SMs x 256 x 2 x 1.762 GHz = 41.5 TFLOP/s: GeForce runs fp32 accumulation at half rate
    found = resolve(reported("NVIDIA GeForce RTX 5070 Ti Laptop GPU", 46, 12.8, 672.048, 1762, "GB205", "12.0"))
    assert found.peak_tflops["bf16"] == pytest.approx(41.5, rel=1e-3)
    assert found.memory_bandwidth_gbps == 672.048 and "half rate" in found.ceiling_source


@pytest.mark.parametrize(
    ("device", "key", "peaks"),
    [
        (reported("NVIDIA H20-3e", 78, 150, 4900, 1980, "GH100", "9.0"), "H20-141GB", {"bf16": 148, "fp8": 296}),
        (reported("NVIDIA L20", 92, 48, 864, 2520, "AD102", "8.9"), "L20", {"bf16": 119.5, "fp8": 239, "int8": 239}),
        (reported("AMD Instinct MI355X", 256, 309, 8000, 2400, None, None), "MI355X", {"fp4": 10066.3, "fp8": 5033.2}),
        (reported("AMD Instinct MI300X", 304, 206, 5300, 2100, None, None), "MI300X", {"int8": 2614.9, "bf16": 1307.4}),
        (reported("NVIDIA B200", 148, 192, 8000, 1965, "GB100", "10.0"), "B200-SXM6", {"fp4": 9000, "fp8": 4500}),
    ],
)
def test_published_peaks_of_a_captured_device(device, key, peaks):
    found = resolve(device)
    assert found.key == key and not found.derived
    assert {dtype: found.peak_tflops[dtype] for dtype in peaks} == peaks


def test_parts_with_fp4_units_say_what_they_do():
    # the parts whose bf16 rate is published and that multiply 4-bit floats: twice fp8 and more
    for gpu in TABLE.gpus:
        if gpu.arch in {"Blackwell", "CDNA4"} and "fp8" in gpu.peaks:
            assert gpu.peaks["fp4"] >= 1.99 * gpu.peaks["fp8"], gpu.key
        assert "fp4" not in gpu.peaks or gpu.arch in {"Blackwell", "CDNA4"}, gpu.key


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        (reported("NVIDIA L2", 60, 24, 300, 2520, "AD104", "8.9"), "export variant"),
        (reported("NVIDIA L20", 80, 48, 864, 2520, "AD102", "8.9"), "export variant"),
        (reported("NVIDIA GeForce GTX 1660", 22, 6, 192, 1785, "TU116", "7.5"), "tensor cores"),
        (reported("NVIDIA Thor", 12, 64, 200, 1500, None, "11.0"), "integrated"),
        (reported("NVIDIA Future 1", 100, 200, 9000, 2000, "GX100", "15.0"), "not known"),
        ({**reported("NVIDIA GeForce RTX 3080", 68, 10, 760, 1710, "GA102", "8.6"), "max_clock_hz": None}, "no clock"),
        (reported("NVIDIA H20", 78, 60, 4000, 1980, "GH100", "9.0"), "export variant"),
    ],
)
def test_peaks_that_must_not_be_derived(device, reason):
    found = resolve(device)
    assert found.peak_tflops == {} and not found.derived and reason in found.reason
    assert found.memory_bandwidth_gbps == device["memory_bandwidth_bytes_per_s"] / 1e9


# -- slices, several devices -------------------------------------------------------------------------------------------


def test_a_slice_gets_its_share_of_the_peak_and_its_own_bandwidth():
    found = resolve(reported("NVIDIA A30 MIG 2g.12gb", 28, 12.55, 466.56, 1440, "GA100", "8.0"))
    assert (found.key, found.mig, found.sm_count) == ("A30", True, 28)
    assert found.peak_tflops["bf16"] == 82.5  # 165 x 28 of 56 SMs
    assert found.memory_bandwidth_gbps == 466.56 and "28 of 56 SMs" in found.ceiling_source


def test_a_slice_is_recognised_by_the_flag_of_the_capture_too():
    device = {**reported("NVIDIA A100-SXM4-80GB", 42, 40.0, 1019, 1410, "GA100", "8.0"), "mig": True}
    assert resolve(device).peak_tflops["bf16"] == pytest.approx(312 * 42 / 108)


def test_each_device_has_its_own_row():
    a100, a40 = resolve_devices(trace(A100_40, reported("NVIDIA A40", 84, 47.85, 696.096, 1740, "GA102", "8.6")))
    assert (a100.device_index, a100.key) == (0, "A100-PCIE-40GB")
    assert (a40.device_index, a40.key) == (1, "A40")


def test_limits_of_the_capture_are_passed_on():
    found = resolve({**H100, "max_warps_per_sm": 64, "registers_per_sm": 65536, "shared_memory_per_sm_bytes": 233472})
    assert (found.max_warps_per_sm, found.registers_per_sm, found.shared_memory_per_sm_bytes) == (64, 65536, 233472)


# -- measured ceilings -------------------------------------------------------------------------------------------------


def test_measured_ceilings_stand_over_published_ones(tmp_path):
    path = tmp_path / "ours.toml"
    path.write_text(
        '["NVIDIA H100 80GB HBM3"]\nmemory_bandwidth_gbps = 3010\nsource = "our sweep"\n["NVIDIA H100 80GB HBM3".peak_tflops]\nbf16 = 800\n'
    )
    found = resolve(H100, ceilings=path)
    assert found.peak_tflops["bf16"] == 800 and found.peak_tflops["fp8"] == 1978.9
    assert found.memory_bandwidth_gbps == 3010
    assert found.bandwidth_source == "measured: our sweep" and "measured: our sweep (bf16)" in found.ceiling_source
    assert resolve(A100_40, ceilings=path).peak_tflops["bf16"] == 312


@pytest.mark.parametrize("name", ["*", "h100", "H100-SXM5-80GB"])
def test_measured_ceilings_by_alias_or_for_every_device(tmp_path, name):
    path = tmp_path / "ours.toml"
    path.write_text(f'["{name}".peak_tflops]\nbf16 = 800\n')
    assert resolve(H100, ceilings=path).peak_tflops["bf16"] == 800


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not toml", "is not TOML"),
        ("", "is empty"),
        ("bf16 = 3", "expected a table"),
        ('["*"]\nbandwidth = 3', "unknown key 'bandwidth'"),
        ('["*".peak_tflops]\nbf17 = 3', "unknown data type 'bf17'"),
        ('["*".peak_tflops]\nbf16 = -3', "must be a positive number"),
        ('["*"]\nmemory_bandwidth_gbps = "fast"', "must be a positive number"),
        ('["*"]\nsource = "x"', "gives neither"),
        ('["*"]\npeak_tflops = 3', "is a table of data types"),
    ],
)
def test_a_bad_file_of_ceilings_is_explained(tmp_path, text, message):
    path = tmp_path / "ours.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=re.escape(message)):
        resolve(H100, ceilings=path)


def test_a_missing_file_of_ceilings(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        resolve(H100, ceilings=tmp_path / "none.toml")


# -- the list and the captures by others -------------------------------------------------------------------------------


def test_the_list_has_every_gpu_with_what_to_type():
    rows = list_gpus()
    assert len(rows) == len(TABLE.gpus)
    a100 = next(row for row in rows if row["name"] == "a100-sxm4-80gb")
    assert "a100" in a100["also"] and a100["ridge_flop_per_byte"] == pytest.approx(153, abs=0.5)
    assert all(TABLE.typed(name)[0].key.lower() == row["name"] for row in rows for name in (row["name"], *row["also"]))
    assert next(row for row in rows if row["name"] == "dgx-spark-gb10")["ridge_flop_per_byte"] is None


EXPECTED = {
    "2022.2.1-a100-sxm-mpi": "A100-SXM4-40GB",
    "2022.3.4-a100-export-meta-data": "A100-PCIE-40GB",
    "2023.3.3-a30-mig-2g": "A30",
    "2024.5.4-orin": None,
    "2024.6.2-h100-nvjet": "H100-SXM5-80GB",
    "2025.1.1-h200-nvjet-13k-nvtx": "H200-SXM-141GB",
    "2025.3.1-t4-nvtx-by-textid": "T4",
    "2025.5.1-rtx3090x2-9359-kernels": "RTX-3090",
    "2026.1.1-rtx4060ti-4-processes": None,
    "2026.2.1-a100-no-cuda": "A100-PCIE-80GB",
    "2020-rtx2070s-columns-added-by-other-tool": None,
}


@pytest.mark.parametrize(("file", "key"), EXPECTED.items())
def test_gpus_of_captures_by_others(shared_traces, file, key):
    connection = sqlite3.connect(f"file:{shared_traces / 'nsys' / file}.sqlite?mode=ro&immutable=1", uri=True)
    connection.row_factory = sqlite3.Row
    row = dict(connection.execute("SELECT * FROM TARGET_INFO_GPU LIMIT 1").fetchone())
    connection.close()
    capability = f"{row['computeMajor']}.{row['computeMinor']}" if row.get("computeMajor") else None
    found = resolve(
        reported(
            row["name"],
            row["smCount"],
            row["totalMemory"] / 1e9,
            row["memoryBandwidth"] / 1e9,
            row["clockRate"] / 1e6,
            row["chipName"],
            capability,
        )
    )
    assert found.key == key
    assert found.derived == (key is None)
    assert found.ridge("fp16" if file.startswith(("2025.3.1", "2020")) else "bf16") is not None or "orin" in file
