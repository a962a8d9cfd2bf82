"""From (process, deviceId) to a GPU: exact table first, then Nsight's ordinal, then the one name; never a guess."""

import json
import sqlite3
from pathlib import Path

import pytest

from trace_analyze.analysis.records.trace import Trace
from trace_analyze.fixtures.writers.nsys_writer import Capture
from trace_analyze.ingest import open_trace

GPU, CUDA_DEVICE = "TARGET_INFO_GPU", "TARGET_INFO_CUDA_DEVICE"


def capture_with(*gpus: tuple[str, int, int], generation: str = "2025.6", kernels: list[tuple[int, int]]) -> Capture:
    """GPUs as (model, id, cuDevice); kernels as (pid, deviceId)."""
    capture = Capture(generation)
    for model, gpu_id, ordinal in gpus:
        capture.gpu(model, gpu_id=gpu_id, cuda_device=ordinal)
    for row, (pid, device) in enumerate(kernels):
        capture.kernel("gemm", 1_000 * row + 100, 1_000 * row + 900, pid=pid, device=device)
    return capture


def read(capture: Capture, path: Path, *statements: str, **options) -> Trace:
    capture.write(path, **options)
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()
    return open_trace(path)


def named(trace: Trace) -> list[tuple[int, str | None, str]]:
    return trace.devices.select("device", "gpu_name", "mapping").rows()


A100, H100, L4 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA L4"


def test_ids_are_not_ordinals(tmp_path: Path):
    # GPU id 0 has CUDA ordinal 1: joining deviceId with the id would name the wrong one.
    capture = capture_with(("a100-80gb", 0, 1), ("h100", 1, 0), kernels=[(7, 0)])
    assert named(read(capture, tmp_path / "run.sqlite")) == [(0, H100, "exact")]


def test_without_the_table_nsights_ordinal_is_used_and_the_doubt_said(tmp_path: Path):
    capture = capture_with(("a100-80gb", 0, 1), ("h100", 1, 0), kernels=[(7, 0)])
    trace = read(capture, tmp_path / "run.sqlite", without=[CUDA_DEVICE])
    assert named(trace) == [(0, H100, "ordinal")]
    assert any("CUDA_VISIBLE_DEVICES" in note for note in trace.capture.notes)


def test_one_name_for_all(tmp_path: Path):
    capture = capture_with(("h100", 0, 5), ("h100", 1, 6), kernels=[(7, 0), (7, 1)])
    trace = read(capture, tmp_path / "run.sqlite", without=[CUDA_DEVICE])
    assert named(trace) == [(0, H100, "one_name"), (1, H100, "one_name")]


def test_two_names_and_no_ordinal_is_not_guessed(tmp_path: Path):
    capture = capture_with(("h100", 0, 5), ("l4", 1, 6), kernels=[(7, 0)])
    trace = read(capture, tmp_path / "run.sqlite", without=[CUDA_DEVICE])
    assert named(trace) == [(0, None, "none")]
    assert any("could not be tied" in note for note in trace.capture.notes)


def test_ranks_that_each_call_their_gpu_zero_are_two_devices(tmp_path: Path):
    capture = capture_with(("h100", 0, 0), ("h100", 1, 1), kernels=[(111, 0), (112, 0)])
    mapping = f"UPDATE {CUDA_DEVICE} SET gpuId = pid - 111, uuid = 'GPU-' || (pid - 111), cudaId = 0"
    trace = read(capture, tmp_path / "run.sqlite", mapping)
    assert named(trace) == [(0, H100, "exact"), (0, H100, "exact")]
    assert trace.kernels["device_index"].to_list() == [0, 1]
    assert trace.devices["process"].n_unique() == 2


def test_processes_on_one_gpu_share_its_device(tmp_path: Path):
    capture = capture_with(("h100", 0, 0), kernels=[(111, 0), (112, 0)])
    trace = read(capture, tmp_path / "run.sqlite")
    assert trace.devices.height == 1 and trace.kernels["device_index"].to_list() == [0, 0]
    assert trace.kernels["process"].n_unique() == 2


def test_one_gpu_with_and_without_uuid_is_one_device(tmp_path: Path):
    capture = capture_with(("h100", 0, 0), kernels=[(111, 0), (112, 0)])
    trace = read(capture, tmp_path / "run.sqlite", f"UPDATE {CUDA_DEVICE} SET uuid = NULL WHERE pid = 111")
    assert trace.devices.height == 1


def test_processes_with_one_ordinal_and_no_table_are_counted_as_one_and_said(tmp_path: Path):
    capture = capture_with(("h100", 0, 0), ("h100", 1, 1), kernels=[(111, 0), (112, 0)])
    trace = read(capture, tmp_path / "run.sqlite", without=[CUDA_DEVICE])
    assert trace.devices.height == 1
    assert any("counted as one" in note for note in trace.capture.notes)


def test_mig_slices_of_one_gpu(tmp_path: Path):
    capture = capture_with(("a100-80gb", 0, 0), kernels=[(111, 0), (112, 0)])
    slices = f"UPDATE {CUDA_DEVICE} SET uuid = 'MIG-' || pid, numMultiprocessors = 42"
    trace = read(capture, tmp_path / "run.sqlite", slices)
    assert trace.devices.select("gpu_name", "sm_count", "mig").rows() == [(A100, 42, True), (A100, 42, True)]


def test_a_slice_by_its_name(tmp_path: Path):
    capture = Capture("2023.4")
    capture.gpu("a100-80gb", name=f"{A100} MIG 3g.40gb", smCount=42)
    capture.kernel("gemm", 100, 900)
    trace = open_trace(capture.write(tmp_path / "run.sqlite"))
    assert trace.devices.select("sm_count", "mig").rows() == [(42, True)]


def test_other_vendors_and_zeros(tmp_path: Path):
    capture = capture_with(("h100", 0, 0), kernels=[(7, 0)])
    capture.gpu("h100", gpu_id=1, cuda_device=0, name="Intel(R) UHD Graphics", smCount=0, memoryBandwidth=0)
    capture.gpu("h100", gpu_id=2, cuda_device=0, name="Microsoft Basic Render Driver", smCount=0, memoryBandwidth=0)
    trace = read(capture, tmp_path / "run.sqlite", without=[CUDA_DEVICE])
    assert named(trace) == [(0, H100, "ordinal")]
    assert trace.capture.gpus_present == (H100,)


@pytest.mark.parametrize("value", ["0", "NULL", "'n/a'"])
def test_figures_that_are_missing_are_null_not_zero(tmp_path: Path, value: str):
    capture = capture_with(("h100", 0, 0), kernels=[(7, 0)])
    columns = ("memoryBandwidth", "smCount", "totalMemory", "l2CacheSize", "clockRate")
    blank = f"UPDATE {GPU} SET {', '.join(f'{column} = {value}' for column in columns)}"
    trace = read(capture, tmp_path / "run.sqlite", blank, without=[CUDA_DEVICE])
    device = trace.devices.row(0, named=True)
    assert device["gpu_name"] == H100
    for column in ("memory_bandwidth_bytes_per_s", "sm_count", "total_memory_bytes", "l2_bytes", "max_clock_hz"):
        assert device[column] is None


def test_truncated_names_lose_their_trailing_blank(tmp_path: Path):
    capture = Capture("2022")
    capture.gpu("h100", name="NVIDIA GeForce RTX 3060 Laptop ")
    capture.kernel("gemm", 100, 900)
    trace = open_trace(capture.write(tmp_path / "run.sqlite"))
    assert trace.devices["gpu_name"].to_list() == ["NVIDIA GeForce RTX 3060 Laptop"]


def test_five_column_table_alone(tmp_path: Path):
    capture = capture_with(("h100", 0, 0), generation="2020", kernels=[(7, 0)])
    trace = read(capture, tmp_path / "run.sqlite", without=["TARGET_INFO_CUDA_GPU"])
    assert named(trace) == [(0, H100, "ordinal")]
    assert trace.devices["sm_count"].to_list() == [None]


def test_gpu_info_where_there_is_no_table(tmp_path: Path):
    capture = capture_with(("h100", 0, 0), kernels=[(7, 0)])
    trace = read(capture, tmp_path / "run.sqlite", without=[GPU])
    assert trace.devices["gpu_source"].to_list() == ["GpuInfo"]
    assert trace.devices.select("gpu_name", "memory_bandwidth_bytes_per_s").row(0) == (H100, 3_352_320_000_000)


@pytest.mark.parametrize("text", ["{}", "", "not json", '{"Gpus": null}', '{"Gpus": [1, {}]}', "[" * 100_000])
def test_gpu_info_of_any_shape(tmp_path: Path, text: str):
    capture = capture_with(("h100", 0, 0), kernels=[(7, 0)])
    set_info = f"UPDATE TARGET_INFO_SYSTEM_ENV SET value = '{text}' WHERE name = 'GpuInfo'"
    trace = read(capture, tmp_path / "run.sqlite", set_info, without=[GPU, CUDA_DEVICE])
    assert named(trace) == [(0, None, "none")]
    assert "no GPU table" in {gap.what for gap in trace.gaps_in_evidence}


def test_nodes_merged_into_one_report_keep_their_gpus(tmp_path: Path):
    # Two machines (vm 1 and 2), each with a GPU of id 0, ordinal 0: another model on each.
    capture = capture_with(("h100", 0, 0), kernels=[(111, 0), (112, 0)])
    second = 1 << 48
    trace = read(
        capture,
        tmp_path / "run.sqlite",
        f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET globalPid = globalPid + {second} WHERE start > 1000",
        f"INSERT INTO {GPU} (vmId, id, name, cuDevice, smCount) VALUES ({2 << 48}, 0, '{L4}', 0, 58)",
        f"UPDATE {CUDA_DEVICE} SET uuid = NULL",
    )
    assert named(trace) == [(0, H100, "exact"), (0, L4, "exact")]


def test_streams_are_not_filtered_by_number(tmp_path: Path):
    capture = Capture("2025.6")
    for device in range(4):
        capture.gpu("l40s", gpu_id=device, cuda_device=device)
        capture.kernel("gemm", 100 + device, 900 + device, device=device, stream=7 if device == 0 else 17)
    trace = open_trace(capture.write(tmp_path / "run.sqlite"))
    assert trace.devices["device"].to_list() == [0, 1, 2, 3]
    assert trace.kernels.group_by("device_index").len()["len"].to_list() == [1, 1, 1, 1]


def test_gpu_info_json_of_the_writer_is_what_the_reader_expects(tmp_path: Path):
    path = capture_with(("h100", 0, 0), kernels=[(7, 0)]).write(tmp_path / "run.sqlite")
    connection = sqlite3.connect(path)
    (text,) = connection.execute("SELECT value FROM TARGET_INFO_SYSTEM_ENV WHERE name = 'GpuInfo'").fetchone()
    connection.close()
    assert isinstance(json.loads(text)["Gpus"][0]["MemoryBandwidth"], str)
