"""The GPUs of a PyTorch-profiler trace, from its ``deviceProperties``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from .kineto_events import integer
from .trace import DEVICES


def property_names(facts: Mapping[str, Any]) -> list[str]:
    """Names of all GPUs the trace lists, '' where it does not say."""
    return [str(device.get("name") or "") for device in _properties(facts)]


def _properties(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The listed devices: their name as text, everything else as integers or absent."""
    found = facts.get("deviceProperties")
    devices = [device for device in found if isinstance(device, dict)] if isinstance(found, list) else []
    return [
        {
            key: (str(value) if value is not None else None) if key == "name" else integer(value)
            for key, value in device.items()
        }
        for device in devices
    ]


def find_devices(
    frames: Mapping[str, pl.DataFrame], facts: Mapping[str, Any], process: int
) -> tuple[pl.DataFrame, pl.DataFrame, list[str]]:
    """The ``devices`` frame, the table device -> device_index, and notes on how devices were named."""
    used = (
        pl.concat([frame.select("device") for frame in (frames["kernel"], frames["copy"]) if frame.height])["device"]
        .fill_null(-1)
        .unique()
        .sort()
    )
    properties = _properties(facts)
    by_id = {device.get("id"): device for device in properties}
    amd = any(key.startswith(("hip_", "roctracer")) for key in facts)
    alike = len({_identity(device) for device in properties}) == 1
    notes: list[str] = []
    rows = []
    for index, device in enumerate(used.to_list()):
        # ROCm numbers devices by agent, CPUs included, so an id that matches there proves nothing.
        if device in by_id and not amd:
            chosen, mapping = by_id[device], "exact"
        elif alike:
            chosen, mapping = properties[0], "one_name"
            if device not in by_id:
                notes.append(
                    f"GPU {device} is not in the trace's device list; taken for one of the {len(properties)} listed."
                )
        else:
            chosen, mapping = {}, "none"
        rows.append(
            {"device_index": index, "device": device, "process": process, "mapping": mapping, **_facts(chosen, amd)}
        )
    frame = pl.DataFrame(rows, schema={name: DEVICES[name] for name in DEVICES}, strict=False)
    index_of = frame.select(pl.col("device").cast(pl.Int64), "device_index")
    return frame, index_of, notes


def _identity(device: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(device.get(key) for key in ("name", "totalGlobalMem", "numSms"))


def _facts(device: Mapping[str, Any], amd: bool) -> dict[str, Any]:
    """Columns of ``devices`` that one entry of ``deviceProperties`` fills."""
    threads, warp = device.get("maxThreadsPerMultiprocessor"), device.get("warpSize")
    major, minor = device.get("computeMajor"), device.get("computeMinor")
    version = f"{major}.{minor}" if major is not None and minor is not None else None
    name = device.get("name") or None
    shared = device.get("sharedMemPerMultiprocessor") or device.get("maxSharedMemoryPerMultiProcessor")
    return {
        "gpu_name": name,
        "gpu_source": "deviceProperties" if name else None,
        "sm_count": device.get("numSms"),
        "total_memory_bytes": device.get("totalGlobalMem"),
        "compute_capability": None if amd else version,
        "max_warps_per_sm": threads // warp if threads and warp else None,
        "shared_memory_per_sm_bytes": shared,
        "registers_per_sm": device.get("regsPerMultiprocessor"),
        "mig": False if name and " MIG " not in name else bool(name),
    }
