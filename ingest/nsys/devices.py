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
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from ...analysis.records.trace import DEVICES
from .rows import Notes
from .sqlite_pages.database import Database, as_int, as_text, identifier
from .strings import dense

Keys = npt.NDArray[np.int64]
PID_MASK = 0xFFFFFF
KILOBYTES_PER_S_BELOW = 10**10
KILOHERTZ_BELOW = 10**8
OTHER_VENDORS = ("intel", "microsoft", "virtio", "vmware", "llvmpipe", "matrox", "aspeed", "amd radeon(tm) graphics")
GPU_COLUMNS = [
    "vmId",
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
    machine: int | None = None  # hardware and virtual-machine id, where the table has it: reports of nodes get merged


@dataclass
class Device:
    """One row of DEVICES in the making."""

    ordinal: int
    process: int
    gpu: Gpu | None
    mapping: str
    sm_count: int | None = None


@dataclass(frozen=True)
class Mapped:
    """What TARGET_INFO_CUDA_DEVICE says of one (process, ordinal)."""

    gpu_id: int
    uuid: str | None
    sm_count: int | None


@dataclass
class Places:
    """Gives each (process, deviceId) its row of DEVICES, in the order of processes and ordinals."""

    gpus: list[Gpu]
    exact: Mapping[tuple[int, int], Mapped]  # (OS pid, ordinal)
    database: Database
    notes: Notes
    devices: list[Device] = field(default_factory=list)
    _rows: dict[tuple[int, int], int] = field(default_factory=dict)
    _keys: dict[tuple[object, ...], int] = field(default_factory=dict)

    def known_process(self, process: Keys) -> Keys:
        """``process`` with absent keys (-1) filled in where the capture has one process only."""
        absent = process == -1
        if not absent.any():
            return process
        only = _process_of_host_rows(self.database)
        if only is None:
            self.notes.say("GPU rows without a process id could not be tied to one of several processes.")
            return process
        return np.where(absent, only, process)

    def single_process(self) -> int | None:
        """The process of all GPU work placed so far; None where there are several or it is unknown."""
        processes = {process for process, _ in self._rows}
        return processes.pop() if len(processes) == 1 and -1 not in processes else None

    def device_index(self, process: Keys, ordinal: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
        """The row of DEVICES of each event."""
        if process.size == 0:
            return np.empty(0, dtype=np.int32)
        processes, process_codes = dense(process)
        ordinals, ordinal_codes = dense(ordinal)
        if processes.size == ordinals.size == 1:
            return np.full(process.size, self._row(int(processes[0]), int(ordinals[0])), dtype=np.int32)
        pairs, codes = dense(process_codes.astype(np.int64) * ordinals.size + ordinal_codes)
        rows = [self._row(int(processes[pair // ordinals.size]), int(ordinals[pair % ordinals.size])) for pair in pairs]
        index: npt.NDArray[np.int32] = np.array(rows, dtype=np.int32)[codes]
        return index

    def _row(self, process: int, ordinal: int) -> int:
        pair = (process, ordinal)
        if pair not in self._rows:
            key, device = self._resolve(process, ordinal)
            if key not in self._keys:
                self._keys[key] = len(self.devices)
                self.devices.append(device)
            elif device.mapping != "exact":
                self.notes.say(
                    f"Several processes call a GPU CUDA device {ordinal} and the capture does not say whether it is one "
                    "GPU; it was counted as one."
                )
            self._rows[pair] = self._keys[key]
        return self._rows[pair]

    def _resolve(self, process: int, ordinal: int) -> tuple[tuple[object, ...], Device]:
        machine = process >> 24 if process != -1 else None
        gpus = [gpu for gpu in self.gpus if machine is None or gpu.machine in {None, machine}] or self.gpus
        match = self.exact.get((process & PID_MASK, ordinal))
        if match is not None:
            same = [gpu for gpu in gpus if gpu.id == match.gpu_id]
            named = [gpu for gpu in same if match.uuid is not None and gpu.uuid == match.uuid] or same
            gpu = named[0] if named else _common(gpus)
            mapping = "exact" if named else "one_name" if gpu else "none"
            return ("gpu", machine, match.gpu_id, match.uuid), Device(ordinal, process, gpu, mapping, match.sm_count)
        key = ("ordinal", machine, ordinal)
        candidates = [gpu for gpu in gpus if gpu.ordinal == ordinal]
        common = _common(gpus)
        if len(candidates) == 1:
            if common is None:
                self.notes.say(
                    "The capture has no table of CUDA devices: its GPUs were told apart by Nsight's own ordinals, "
                    "which CUDA_VISIBLE_DEVICES can make wrong."
                )
            return key, Device(ordinal, process, candidates[0], "ordinal")
        if common is not None:
            return key, Device(ordinal, process, common, "one_name")
        if gpus:
            self.notes.say(f"CUDA device {ordinal} could not be tied to one of the GPUs the capture lists.")
        return key, Device(ordinal, process, None, "none")

    def index_of_perfworks_id(self, perfworks_id: int) -> int | None:
        """The row of DEVICES of a GPU as the metrics sampler numbers it."""
        for index, device in enumerate(self.devices):
            if device.gpu is not None and device.gpu.perfworks_id == perfworks_id and device.mapping != "one_name":
                return index
        return None

    def index_of_only_device(self) -> int | None:
        """0 where there is one device and the capture does not say which GPU it is."""
        unknown = len(self.devices) == 1 and (self.devices[0].gpu is None or self.devices[0].gpu.perfworks_id is None)
        return 0 if unknown else None

    def frame(self) -> pl.DataFrame:
        """The DEVICES frame."""
        rows = [_device_row(index, device) for index, device in enumerate(self.devices)]
        columns = {name: [_fitting(row[place], DEVICES[name]) for row in rows] for place, name in enumerate(DEVICES)}
        return pl.DataFrame(columns, schema=dict(DEVICES)).with_columns(pl.col("device").fill_null(-1))


def _fitting(value: object, dtype: object) -> object:
    """``value``, or None where it is a number beyond 32 bits that has no place in its column."""
    return None if dtype == pl.Int32 and isinstance(value, int) and not -(2**31) <= value < 2**31 else value


def _common(gpus: list[Gpu]) -> Gpu | None:
    """A GPU that stands for all: the one there is, or what all of one name have in common."""
    if not gpus or len({gpu.name for gpu in gpus}) > 1:
        return None
    return gpus[0] if len(gpus) == 1 else replace(gpus[0], id=None, ordinal=None, perfworks_id=None, uuid=None)


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


def _machine(vm_id: object) -> int | None:
    """``vmId`` is ``hardware << 56 | vm << 48``; small numbers of other writers say nothing."""
    number = as_int(vm_id)
    return number >> 48 if number is not None and number >> 48 else None


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
            machine=_machine(row["vmId"]),
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
                memory_bandwidth=_thousands(bandwidth, KILOBYTES_PER_S_BELOW),
                total_memory=_positive(row["globalMemorySize"]),
                l2=_positive(row["l2CacheSize"]),
                clock=_thousands(clock, KILOHERTZ_BELOW),
                compute_capability=f"{major}.{minor or 0}" if major else None,
                max_warps=_positive(row["maxWarpsPerMultiprocessor"]),
                max_blocks=_positive(row["maxBlocksPerMultiprocessor"]),
                shared_memory=_positive(row["maxSharedMemoryPerMultiprocessor"]),
                registers=_positive(row["maxRegistersPerMultiprocessor"]),
            )
        )
    return gpus


def _thousands(value: int | None, below: int) -> int | None:
    """A number that is in thousands where it is small; no GPU is that slow or that fast."""
    return value * 1000 if value is not None and value < below else value


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


def _exact_map(database: Database) -> dict[tuple[int, int], Mapped]:
    columns = ["gpuId", "cudaId", "pid", "uuid", "numMultiprocessors"]
    exact = {}
    for row in database.rows(database.find("TARGET_INFO_CUDA_DEVICE"), columns):
        gpu_id, ordinal, pid = as_int(row["gpuId"]), as_int(row["cudaId"]), as_int(row["pid"])
        if gpu_id is not None and ordinal is not None and pid is not None:
            exact[pid & PID_MASK, ordinal] = Mapped(gpu_id, as_text(row["uuid"]), _positive(row["numMultiprocessors"]))
    # One GPU is one device also where some of its rows lack the uuid.
    without = {match.gpu_id for match in exact.values() if match.uuid is None}
    return {pair: replace(match, uuid=None) if match.gpu_id in without else match for pair, match in exact.items()}


def _process_of_host_rows(database: Database) -> int | None:
    """The process key of the host rows, where all have the same one."""
    for name in ("CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"):
        table = database.find(name)
        if table is None or "globaltid" not in database.columns(table):
            continue
        column = identifier(database.columns(table)["globaltid"])
        row = database.connection.execute(f"SELECT min({column}), max({column}) FROM {identifier(table)}").fetchone()
        low, high = as_int(row[0]), as_int(row[1])
        if low is not None and high is not None:
            return low >> 24 if low >> 24 == high >> 24 else None
    return None
