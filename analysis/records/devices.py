"""JSON ``devices[]`` and ``window``: where and when the kernels of an analysis ran."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from .record import Number, Record
from .summary import ByCause, ByPhase


class Device(Record, frozen=True, kw_only=True):
    """One device with kernels in the window: identity, ceilings and time account."""

    device: int  #: CUDA ordinal
    device_index: int  #: number of the device in this result
    process: int | None  #: OS process id that used it first
    group: int | None  #: its group
    gpu_name: str | None  #: name of the GPU
    gpu_source: str | None  #: what gave the name: a table of the capture, `--gpu` or `--gpu-override`
    sm_count: int | None  #: streaming multiprocessors
    memory_bandwidth_gbps: Number | None  #: peak bandwidth
    peak_tflops: dict[str, Number]  #: dense peak by data type; a type without a known peak is absent
    ceiling_source: str | None  #: where the peaks come from
    ceiling_reason: str | None  #: why a number is missing
    candidates: tuple[str, ...]  #: other parts it could be, where the capture leaves that open
    contradiction: str | None  #: an option that the capture contradicts
    kernel_count: int  #: kernels in the window
    window_ns: int  #: length of the window
    busy_ns: int  #: union of the kernels' intervals
    copy_only_ns: int  #: copies while no kernel runs
    idle_ns: int | None  #: the rest: busy + copies only + idle = window, exactly
    idle_ns_by_cause: ByCause[int] | None  #: idle time by what ended it
    phase_ns: ByPhase[int]  #: busy time by step phase
    kernel_time_sum_ns: int  #: plain sum of the kernels' durations
    same_stream_overlap_ns: int  #: overlap of kernels on one stream (programmatic dependent launch)
    idle_ns_reason: str | UnsetType = UNSET  #: why idle time is null
    idle_ns_by_cause_reason: str | UnsetType = UNSET  #: why its causes are null


class Window(Record, frozen=True, kw_only=True):
    """The time that was analysed."""

    start_ns: int  #: where it begins
    end_ns: int  #: where it ends
    source: str  #: the rule or the `--window` that set it
