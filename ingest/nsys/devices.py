"""Which GPU a row ran on.

A row's ``deviceId`` is a CUDA ordinal *inside its process*, after CUDA_VISIBLE_DEVICES; it is not
``TARGET_INFO_GPU.id``. In order of trust:

* ``exact``: TARGET_INFO_CUDA_DEVICE maps (process, ordinal) to a GPU;
* ``ordinal``: TARGET_INFO_GPU.cuDevice equals the ordinal (wrong under CUDA_VISIBLE_DEVICES, so it is said);
* ``one_name``: all NVIDIA GPUs of the capture have one name, so the name holds although the GPU is unknown;
* ``none``: the capture does not say.

Two processes that reach one physical GPU share its row; two that both call theirs "device 0" but map to different
GPUs have a row each.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from ..trace import DEVICES
from .database import Database, as_int, as_text
from .rows import Notes

PID_MASK = 0xFFFFFF
OTHER_VENDORS = ("intel", "microsoft", "virtio", "vmware", "llvmpipe", "matrox", "aspeed", "amd radeon(tm) graphics")
GPU_COLUMNS = [
    "id",
    "name",
    "l2CacheSize",
    "totalMemory",
    "memoryBandwidth",
    "clockRate",
    "smCount",
    "pwGpuId",
    "uuid",
    "chipName",
    "cuDevice",
    "computeMajor",
    "computeMinor",
    "maxShmemPerSm",
    "maxRegistersPerSm",
    "maxWarpsPerSm",
    "maxBlocksPerSm",
    "deviceId",
]


@dataclass(frozen=True)
class Gpu:
    """One GPU (or MIG slice) that the capture lists."""

    id: int | None
    name: str | None
    source: str
    ordinal: int | None = None
    perfworks_id: int | None = None
    uuid: str | None = None
    sm_count: int | None = None
    memory_bandwidth: int | None = None
    total_memory: int | None = None
    l2: int | None = None
    clock: int | None = None
    compute_capability: str | None = None
    chip: str | None = None
    max_warps: int | None = None
    max_blocks: int | None = None
    shared_memory: int | None = None
    registers: int | None = None
    mig: bool = False


@dataclass
class Device:
    """One row of DEVICES in the making."""

    ordinal: int
    process: int
    gpu: Gpu | None
    mapping: str
    sm_count: int | None = None


@dataclass
class Places:
    """Gives each (process, deviceId) its row of DEVICES, in order of first sight."""

    gpus: list[Gpu]
    exact: Mapping[tuple[int, int], tuple[int, str | None, int | None]]  # (pid, ordinal) -> gpu id, uuid, SMs
    database: Database
    notes: Notes
    devices: list[Device] = field(default_factory=list)
    _rows: dict[tuple[int, int], int] = field(default_factory=dict)
    _keys: dict[object, int] = field(default_factory=dict)

    def known_process(self, process: np.ndarray) -> np.ndarray:
        """``process`` with absent keys (-1) filled in where the capture has one process only."""
        absent = process == -1
        if not absent.any():
            return process
        only = _only_process(self.database)
        if only is None:
            self.notes.say("GPU rows without a process id could not be tied to one of several processes.")
            return process
        return np.where(absent, only, process)

    def device_index(self, process: np.ndarray, ordinal: np.ndarray) -> np.ndarray:
        """The row of DEVICES of each event."""
        if process.size == 0:
            return np.empty(0, dtype=np.int32)
        first, last = int(process[0]), int(ordinal[0])
        if (process == first).all() and (ordinal == last).all():
            return np.full(process.size, self._row(first, last), dtype=np.int32)
        pairs = pl.DataFrame({"process": process, "ordinal": ordinal})
        distinct = pairs.unique().sort("process", "ordinal")
        index = [self._row(a, b) for a, b in distinct.iter_rows()]
        joined = pairs.join(
            distinct.with_columns(pl.Series("row", index, dtype=pl.Int32)),
            on=["process", "ordinal"],
            how="left",
            maintain_order="left",
        )
        return joined["row"].to_numpy()

    def _row(self, process: int, ordinal: int) -> int:
        pair = (process, ordinal)
        if pair not in self._rows:
            key, device = self._resolve(process, ordinal)
            if key not in self._keys:
                self._keys[key] = len(self.devices)
                self.devices.append(device)
            self._rows[pair] = self._keys[key]
        return self._rows[pair]

    def _resolve(self, process: int, ordinal: int) -> tuple[object, Device]:
        match = self.exact.get((process & PID_MASK, ordinal))
        if match is not None:
            gpu_id, uuid, sm_count = match
            gpu = self._by_id(gpu_id, uuid)
            return ("gpu", gpu_id, uuid), Device(ordinal, process, gpu, "exact" if gpu else "none", sm_count)
        key = ("ordinal", ordinal)
        candidates = [gpu for gpu in self.gpus if gpu.ordinal == ordinal]
        if len(candidates) == 1:
            if len(self.gpus) > 1:
                self.notes.say(
                    "The capture has no table of CUDA devices: GPUs were named by Nsight's own ordinals, "
                    "which CUDA_VISIBLE_DEVICES can make wrong."
                )
            return key, Device(ordinal, process, candidates[0], "ordinal")
        names = {gpu.name for gpu in self.gpus}
        if len(names) == 1:
            return key, Device(ordinal, process, self.gpus[0], "one_name")
        if names:
            self.notes.say(f"CUDA device {ordinal} could not be tied to one of the GPUs the capture lists.")
        return key, Device(ordinal, process, None, "none")

    def _by_id(self, gpu_id: int, uuid: str | None) -> Gpu | None:
        same = [gpu for gpu in self.gpus if gpu.id == gpu_id]
        exact = [gpu for gpu in same if uuid is not None and gpu.uuid == uuid]
        return (exact or same or [None])[0]

    def index_of_perfworks_id(self, perfworks_id: int) -> int | None:
        """The row of DEVICES of a GPU as the metrics sampler numbers it."""
        for index, device in enumerate(self.devices):
            if device.gpu is not None and device.gpu.perfworks_id == perfworks_id and device.mapping != "one_name":
                return index
        return None

    def frame(self) -> pl.DataFrame:
        """The DEVICES frame."""
        rows = [_device_row(index, device) for index, device in enumerate(self.devices)]
        return pl.DataFrame(rows, schema=dict(DEVICES), orient="row")


def _device_row(index: int, device: Device) -> tuple[object, ...]:
    gpu = device.gpu or Gpu(None, None, "")
    sm_count, mig = gpu.sm_count, gpu.mig
    if device.sm_count and (sm_count is None or device.sm_count < sm_count):
        sm_count, mig = device.sm_count, mig or sm_count is not None
    source = gpu.source if device.gpu is not None else None
    return (
        index, device.ordinal, device.process, gpu.name, source, device.mapping, sm_count, gpu.memory_bandwidth,
        gpu.total_memory, gpu.l2, gpu.clock, gpu.compute_capability, gpu.chip, mig if device.gpu is not None else None,
        gpu.max_warps, gpu.max_blocks, gpu.shared_memory, gpu.registers,
    )  # fmt: skip


def read_places(database: Database, notes: Notes) -> Places:
    """What the capture says of GPUs and processes, before any row is placed."""
    gpus = _listed(database) or _from_old_table(database) or _from_environment(database)
    return Places(gpus, _exact_map(database), database, notes)


def _positive(value: object) -> int | None:
    number = as_int(value)
    return number if number is not None and number > 0 else None


def _listed(database: Database) -> list[Gpu]:
    rows = database.rows(database.find("TARGET_INFO_GPU"), GPU_COLUMNS)
    old = {gpu.name: gpu for gpu in _from_old_table(database)}
    gpus = []
    for row in rows:
        name = as_text(row["name"])
        if name is None or name.lower().startswith(OTHER_VENDORS):
            continue
        major, minor = as_int(row["computeMajor"]), as_int(row["computeMinor"])
        gpu = Gpu(
            id=as_int(row["id"]),
            name=name,
            source="TARGET_INFO_GPU",
            ordinal=as_int(row["cuDevice"]) if row["cuDevice"] is not None else as_int(row["deviceId"]),
            perfworks_id=as_int(row["pwGpuId"]),
            uuid=as_text(row["uuid"]),
            sm_count=_positive(row["smCount"]),
            memory_bandwidth=_positive(row["memoryBandwidth"]),
            total_memory=_positive(row["totalMemory"]),
            l2=_positive(row["l2CacheSize"]),
            clock=_positive(row["clockRate"]),
            compute_capability=f"{major}.{minor or 0}" if major else None,
            chip=as_text(row["chipName"]),
            max_warps=_positive(row["maxWarpsPerSm"]),
            max_blocks=_positive(row["maxBlocksPerSm"]),
            shared_memory=_positive(row["maxShmemPerSm"]),
            registers=_positive(row["maxRegistersPerSm"]),
            mig="MIG" in name.upper().split() or (as_text(row["uuid"]) or "").upper().startswith("MIG"),
        )
        # The five-column table of 2020 and 2021 names GPUs only; an older table beside it has the figures.
        gpus.append(old[name] if gpu.sm_count is None and name in old else gpu)
    return gpus


def _from_old_table(database: Database) -> list[Gpu]:
    """TARGET_INFO_CUDA_GPU of 2020 and 2021: bandwidth in kB/s, clock in kHz, ``deviceId`` is the CUDA ordinal."""
    columns = [
        "name",
        "deviceId",
        "globalMemoryBandwidth",
        "globalMemorySize",
        "l2CacheSize",
        "coreClockRate",
        "numMultiprocessors",
        "maxWarpsPerMultiprocessor",
        "maxBlocksPerMultiprocessor",
        "computeCapabilityMajor",
        "computeCapabilityMinor",
        "maxSharedMemoryPerMultiprocessor",
        "maxRegistersPerMultiprocessor",
    ]
    gpus = []
    for row in database.rows(database.find("TARGET_INFO_CUDA_GPU"), columns):
        name = as_text(row["name"])
        if name is None:
            continue
        bandwidth, clock = _positive(row["globalMemoryBandwidth"]), _positive(row["coreClockRate"])
        major, minor = as_int(row["computeCapabilityMajor"]), as_int(row["computeCapabilityMinor"])
        gpus.append(
            Gpu(
                id=as_int(row["deviceId"]),
                name=name,
                source="TARGET_INFO_CUDA_GPU",
                ordinal=as_int(row["deviceId"]),
                sm_count=_positive(row["numMultiprocessors"]),
                memory_bandwidth=bandwidth * 1000 if bandwidth else None,
                total_memory=_positive(row["globalMemorySize"]),
                l2=_positive(row["l2CacheSize"]),
                clock=clock * 1000 if clock else None,
                compute_capability=f"{major}.{minor or 0}" if major else None,
                max_warps=_positive(row["maxWarpsPerMultiprocessor"]),
                max_blocks=_positive(row["maxBlocksPerMultiprocessor"]),
                shared_memory=_positive(row["maxSharedMemoryPerMultiprocessor"]),
                registers=_positive(row["maxRegistersPerMultiprocessor"]),
            )
        )
    return gpus


def _from_environment(database: Database) -> list[Gpu]:
    """GpuInfo, a JSON text of TARGET_INFO_SYSTEM_ENV; numbers are strings there. Nothing else of that table is read."""
    rows = database.rows(database.find("TARGET_INFO_SYSTEM_ENV"), ["value"], "WHERE name = 'GpuInfo'")
    gpus = []
    for row in rows:
        listed: object = None
        with suppress(ValueError, RecursionError):
            listed = json.loads(as_text(row["value"]) or "null")
        entries = listed.get("Gpus") if isinstance(listed, dict) else None
        for entry in entries if isinstance(entries, list) else []:
            name = as_text(entry.get("Name")) if isinstance(entry, dict) else None
            if name is None or name.lower().startswith(OTHER_VENDORS):
                continue
            gpus.append(
                Gpu(
                    id=as_int(entry.get("Id")),
                    name=name,
                    source="GpuInfo",
                    ordinal=as_int(entry.get("CuDevice")),
                    perfworks_id=as_int(entry.get("PwGpuId")),
                    sm_count=_positive(entry.get("SmCount")),
                    memory_bandwidth=_positive(entry.get("MemoryBandwidth")),
                    total_memory=_positive(entry.get("TotalMemory")),
                    l2=_positive(entry.get("L2CacheSize")),
                    clock=_positive(entry.get("ClockRate")),
                    chip=as_text(entry.get("ChipName")),
                    mig="MIG" in name.upper().split() or str(entry.get("MigEnabled")).lower() in {"true", "1"},
                )
            )
    return gpus


def _exact_map(database: Database) -> dict[tuple[int, int], tuple[int, str | None, int | None]]:
    columns = ["gpuId", "cudaId", "pid", "uuid", "numMultiprocessors"]
    exact = {}
    for row in database.rows(database.find("TARGET_INFO_CUDA_DEVICE"), columns):
        gpu_id, ordinal, pid = as_int(row["gpuId"]), as_int(row["cudaId"]), as_int(row["pid"])
        if gpu_id is not None and ordinal is not None and pid is not None:
            exact[pid & PID_MASK, ordinal] = gpu_id, as_text(row["uuid"]), _positive(row["numMultiprocessors"])
    return exact


def _only_process(database: Database) -> int | None:
    """The process key of the host rows, where all have the same one."""
    for name, column in (("CUPTI_ACTIVITY_KIND_RUNTIME", "globalTid"), ("NVTX_EVENTS", "globalTid")):
        table = database.find(name)
        if table is None or column.lower() not in database.columns(table):
            continue
        row = database.connection.execute(f'SELECT min({column}), max({column}) FROM "{table}"').fetchone()
        low, high = as_int(row[0]), as_int(row[1])
        if low is not None and high is not None:
            return low >> 24 if low >> 24 == high >> 24 else None
    return None
