"""The GPUs of a PyTorch-profiler trace, from its ``deviceProperties``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from ...analysis.records.trace import DEVICES
from .events import integer


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
    frames: Mapping[str, pl.DataFrame], facts: Mapping[str, Any], launches: pl.DataFrame, threads: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame, list[str]]:
    """The ``devices`` frame, the table (rank, device) -> (device_index, process), and notes on how GPUs were named."""
    places = (
        pl.concat([_place(frame) for frame in (frames["kernel"], frames["copy"]) if frame.height])
        .unique()
        .sort("rank", "device")
        .rows()
    )
    process_of = _processes(places, frames["kernel"], launches, threads)
    properties = _properties(facts)
    by_id = {device.get("id"): device for device in properties}
    amd = any(key.startswith(("hip_", "roctracer")) for key in facts)
    alike = len({_identity(device) for device in properties}) == 1
    notes: list[str] = []
    rows = []
    for index, (_, device) in enumerate(places):
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
        place = {"device_index": index, "device": device, "process": process_of[index], "mapping": mapping}
        rows.append({**place, **_facts(chosen, amd)})
    frame = pl.DataFrame(rows, schema={name: DEVICES[name] for name in DEVICES}, strict=False)
    index_of = pl.DataFrame(places, schema={"rank": pl.Int64, "device": pl.Int64}, orient="row").with_columns(
        frame["device_index"], pl.Series("process", process_of, dtype=pl.Int64)
    )
    return frame, index_of, notes


def _place(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.select("rank", pl.col("device").fill_null(-1))


def _processes(
    places: list[tuple[int, int]], kernels: pl.DataFrame, launches: pl.DataFrame, threads: pl.DataFrame
) -> list[int]:
    """The process that launches on each (rank, device).

    A trace normally holds one process. In a merged one the rank's label decides; without labels the process with most
    of the place's correlation ids, and where ids coincide (each rank counts from one), the order of both.
    """
    launching = launches["process"].unique().sort().to_list()
    rank_of = dict(threads.select("process", "rank").iter_rows())
    counts = (
        kernels.select("rank", pl.col("device").fill_null(-1), pl.col("correlation").alias("correlation_id"))
        .join(launches.select("correlation_id", "process"), on="correlation_id")
        .group_by("rank", "device", "process")
        .len()
    )
    matches = {(rank, device, process): number for rank, device, process, number in counts.iter_rows()}
    found = []
    for order, (rank, device) in enumerate(places):
        own = [process for process in launching if rank_of.get(process) == rank] or launching
        best = max((matches.get((rank, device, process), 0) for process in own), default=0)
        tied = [process for process in own if matches.get((rank, device, process), 0) == best]
        if not tied:
            found.append(next(iter(rank_of), 0))
        elif len(tied) > 1 and len(own) == len(places):
            found.append(own[order])
        else:
            found.append(tied[0])
    return found


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
