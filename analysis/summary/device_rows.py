"""JSON ``devices[]``: identity, ceilings and time account of every device with kernels in the window."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
from msgspec import UNSET

from ..gpus.device_ceilings import DeviceCeilings
from ..records.devices import Device
from ..records.summary import ByCause, ByPhase
from ..records.trace import Trace
from ..time.time_accounting import TimeResult

PROCESS_BITS = 0xFFFFFF  # of a recorded process number: the rest says which machine and run


def device_rows(
    trace: Trace, groups: pl.DataFrame, time: TimeResult, ceilings: Sequence[DeviceCeilings] = ()
) -> tuple[Device, ...]:
    """One row per device with kernels; where it has no ceilings, what the capture says of it."""
    ceiling_of = {c.device_index: c for c in ceilings}
    group_of = {d: g for g, devices in groups.select("group", "devices").iter_rows() for d in devices}
    identity = {row["device_index"]: row for row in trace.devices.iter_rows(named=True)}
    rows = []
    for account in time.devices:
        d = account.device_index
        seen, ceiling = identity.get(d, {}), ceiling_of.get(d)
        bandwidth = seen.get("memory_bandwidth_bytes_per_s")
        process = seen.get("process")
        causes = account.idle_ns_by_cause
        rows.append(
            Device(
                device=account.device,
                device_index=d,
                process=None if process is None else int(process) & PROCESS_BITS,
                group=group_of.get(d),
                gpu_name=(ceiling and ceiling.gpu_name) or seen.get("gpu_name"),
                gpu_source=(ceiling and ceiling.gpu_source) or seen.get("gpu_source"),
                sm_count=(ceiling and ceiling.sm_count) or seen.get("sm_count"),
                # what the ceilings leave out (an integrated chip's wrong figure) must not come back from the capture
                memory_bandwidth_gbps=ceiling.memory_bandwidth_gbps
                if ceiling
                else bandwidth / 1e9
                if bandwidth
                else None,
                peak_tflops=dict(ceiling.peak_tflops) if ceiling else {},
                ceiling_source=ceiling.ceiling_source if ceiling else None,
                ceiling_reason=ceiling.reason if ceiling else None,
                candidates=ceiling.candidates if ceiling else (),
                contradiction=ceiling.contradiction if ceiling else None,
                kernel_count=account.kernel_count,
                window_ns=account.window_ns,
                busy_ns=account.busy_ns,
                copy_only_ns=account.copy_only_ns,
                idle_ns=account.idle_ns,
                idle_ns_by_cause=None if causes is None else ByCause[int](**causes),
                phase_ns=ByPhase[int](**account.phase_ns),
                kernel_time_sum_ns=account.kernel_time_sum_ns,
                same_stream_overlap_ns=account.same_stream_overlap_ns,
                idle_ns_reason=account.reason or UNSET,
                idle_ns_by_cause_reason=account.reason or UNSET,
            )
        )
    return tuple(rows)
