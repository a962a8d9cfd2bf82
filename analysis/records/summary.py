"""JSON ``summary`` and ``groups[]``: the headline numbers of a capture and of each of its groups.

Times of devices are means over the devices with kernels. Step and stall numbers are per group, added up over groups.
"""

from __future__ import annotations

from typing import ClassVar, Generic, TypeVar

from msgspec import UNSET, UnsetType

from .record import Record

Amount = TypeVar("Amount", int, float)


class Spread(Record, frozen=True, kw_only=True):
    """How values in ms are distributed; all but ``n`` are null where there are none."""

    n: int  #: values
    p50: float | None  #: median
    p95: float | None  #: 95th percentile
    p99: float | None  #: 99th percentile
    max: float | None  #: largest


class ByPhase(Record, Generic[Amount], frozen=True, kw_only=True):
    """One number per step phase."""

    prefill: Amount  #: steps that run prompts
    decode: Amount  #: steps that generate
    mixed: Amount  #: steps that do both
    other: Amount  #: neither
    unknown: Amount  #: not known


class ByCause(Record, Generic[Amount], frozen=True, kw_only=True):
    """Idle time by what ended it."""

    launch_bound: Amount  #: the launch call came late
    host_sync: Amount  #: the host was waiting for the GPU
    waiting_rank: Amount  #: another rank was late
    between_requests: Amount  #: there was nothing to run
    unknown: Amount  #: not known


class KnownSteps(Record, frozen=True, kw_only=True):
    """Where a ratio is known for part of the steps only."""

    counted: int  #: steps behind the ratio
    of: int  #: steps of the phase


class Utilization(Record, frozen=True, kw_only=True):
    """What utilisation meters would have shown, beside MFU and MBU."""

    nvml_utilization_pct: float | None  #: as in `summary`
    decode_mbu_kernel_pct: float | None  #: as in `summary`
    prefill_mfu_kernel_pct: float | None  #: as in `summary`
    dcgm_fi_prof_sm_active_pct: float | None  #: sampled activity under DCGM's name: SMs with work
    dcgm_fi_prof_sm_active_pct_reason: str | UnsetType = UNSET  #: why it is null
    dcgm_fi_prof_sm_active_pct_source: str | UnsetType = UNSET  #: `gpu_metrics` or `dcgm`
    dcgm_fi_prof_pipe_tensor_active_pct: float | None  #: the same for the tensor cores
    dcgm_fi_prof_pipe_tensor_active_pct_reason: str | UnsetType = UNSET  #: why it is null
    dcgm_fi_prof_pipe_tensor_active_pct_source: str | UnsetType = UNSET  #: `gpu_metrics` or `dcgm`
    dcgm_fi_prof_dram_active_pct: float | None  #: the same for device memory, reads and writes
    dcgm_fi_prof_dram_active_pct_reason: str | UnsetType = UNSET  #: why it is null
    dcgm_fi_prof_dram_active_pct_source: str | UnsetType = UNSET  #: `gpu_metrics` or `dcgm`
    nvidia_smi_measured_pct: float | UnsetType = UNSET  #: with `--dmon`: the mean of its own samples in the window


class WorstEpisode(Record, frozen=True, kw_only=True):
    """The episode with most stall time."""

    episode: int  #: number of the episode
    group: int  #: its group
    start_ns: int  #: start of its first gap
    end_ns: int  #: end of its last gap
    stalls: int  #: stalls in it
    steps: int  #: steps that stalled
    stall_ms: float | None  #: sum of its stalls
    prefill_tokens: int | None  #: prompt tokens of these steps
    requests_held: int | None  #: most requests held at once
    request_ms_lost: float | None  #: stall time times requests held
    gap_before_ms: float | None  #: inter-token gap before it
    gap_during_ms: float | None  #: median gap in it
    gap_after_ms: float | None  #: gap after it
    tokens_lost: float | None  #: `request_ms_lost` over the calm gap


class DecodeRamp(Record, frozen=True, kw_only=True):
    """Steps of the ramp are in the statistics; this says how many they are."""

    group: int  #: of which group
    steps: int  #: decode-bearing steps of the ramp
    ms: float  #: from the first one's start to the last one's end
    from_requests: int  #: batch of the first step
    to_requests: int  #: median batch of the second half of the steps


class LongestRun(Record, frozen=True, kw_only=True):
    """The longest run of prefill steps while requests waited."""

    group: int  #: its group
    steps: int  #: prefill steps in a row
    ms: float  #: its length
    start_ns: int  #: where it begins
    end_ns: int  #: where it ends
    requests_held: int | None  #: who waited


class StepNumbers(Record, frozen=True, kw_only=True):
    """Step, gap, ratio and stall numbers, of all groups (``summary``) or of one (``groups[]``)."""

    step_count: int  #: steps without warm-up
    decode_step_ms: Spread  #: spans of whole decode steps
    prefill_step_ms: Spread  #: spans of whole prefill steps
    mixed_step_ms: Spread  #: spans of whole mixed steps
    inter_token_gap_ms: Spread  #: gaps in which somebody waited for the next token
    decode_batch_p50: float | None  #: median decode requests of pure decode steps
    decode_batch_min: int | None  #: smallest batch among them
    decode_batch_max: int | None  #: largest batch among them
    prefill_tokens: int | None  #: prompt tokens of all steps
    decode_tokens: int | None  #: generated tokens of all steps
    decode_mbu_kernel_pct: float | None  #: MBU of pure decode steps over kernel time
    decode_mbu_wall_pct: float | None  #: the same over wall time
    decode_mbu_steps: KnownSteps | UnsetType = UNSET  #: where the ratio is known for part of the steps
    prefill_mfu_kernel_pct: float | None  #: MFU of prefill steps over kernel time
    prefill_mfu_wall_pct: float | None  #: the same over wall time
    prefill_mfu_steps: KnownSteps | UnsetType = UNSET  #: where the ratio is known for part of the steps
    mixed_mfu_kernel_pct: float | None  #: MFU of mixed steps over kernel time
    mixed_mfu_wall_pct: float | None  #: the same over wall time
    mixed_mfu_steps: KnownSteps | UnsetType = UNSET  #: where the ratio is known for part of the steps
    #: KV reads are not known for every step: the MBU counts weights only there
    decode_mbu_is_lower_bound: bool
    stall_count: int | None  #: stalls
    stall_ms: float | None  #: their sum
    stall_max_ms: float | None  #: the longest
    stall_pct_of_window: float | None  #: `stall_ms` over the window (times groups)
    stall_episode_count: int | None  #: runs of stalls in consecutive gaps
    stall_episode_max_ms: float | None  #: the longest of them
    request_ms_lost: float | None  #: stall time times requests held
    prefill_without_waiters: int | None  #: gaps with prefill in which nobody waited
    stall_ms_is_lower_bound: bool | UnsetType = UNSET  #: some stalls have no baseline


class GroupSummary(StepNumbers, frozen=True, kw_only=True):
    """The keys that ``summary`` has of the same name, for one group."""

    FIRST_KEYS: ClassVar[tuple[str, ...]] = ("group", "kind", "devices")

    group: int  #: number of the group
    kind: str  #: `single`, `tensor_parallel` or `pipeline_parallel`
    devices: tuple[int, ...]  #: CUDA ordinals of its ranks
    reasons: dict[str, str]  #: why a key is null


class Summary(StepNumbers, frozen=True, kw_only=True):
    """The headline numbers of a capture."""

    FIRST_KEYS: ClassVar[tuple[str, ...]] = (
        "capture_ms",
        "window_ms",
        "gpu_busy_ms",
        "copy_only_ms",
        "gpu_idle_ms",
        "idle_ms_by_cause",
        "nvml_utilization_pct",
        "kernel_count",
        "kernel_time_sum_ms",
        "phase_ms",
        "phase_pct",
    )

    capture_ms: float | None  #: length of the capture
    window_ms: float | None  #: length of the window; null for inputs without times
    gpu_busy_ms: float  #: busy time
    copy_only_ms: float | None  #: copies while no kernel runs
    gpu_idle_ms: float | None  #: the rest of the window
    idle_ms_by_cause: ByCause[float] | None  #: idle time by cause
    nvml_utilization_pct: float | None  #: busy over window: what nvidia-smi calls utilisation
    kernel_count: int  #: kernels in the window
    kernel_time_sum_ms: float  #: plain sum of the kernels' durations
    phase_ms: ByPhase[float]  #: busy time by step phase
    phase_pct: ByPhase[float] | None  #: of busy time
    utilization: Utilization  #: utilisation meters beside MFU and MBU
    decode_ramp: DecodeRamp | None  #: the start of the capture, where the batch still grows; null where it does not
    worst_episode: WorstEpisode | None  #: the episode with most stall time
    longest_run_without_decode: LongestRun | None  #: the longest run of prefill steps while requests waited
    stalls_across_groups: UnsetType | None = UNSET  #: with several groups: cannot be detected, see `reasons`
    reasons: dict[str, str]  #: for every key here that is null (or a lower bound): why
    headline: str  #: the first sentence of the screen
