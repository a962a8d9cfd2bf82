"""What the work stage says beside its tables: JSON ``model``, ``roofline``, ``traffic``, ``measured``, and its trust."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from .record import Number, Record
from .trust import Clocks


class Model(Record, frozen=True, kw_only=True):
    """Which model ran, how that is known, its sizes, and what the figures rest on. Sizes only of a known model."""

    name: str | None  #: null = not known
    source: str | None  #: what named it: `option`, `command_line`, `recognised`
    reason: str | None  #: why it is not known
    candidates: tuple[str, ...]  #: models that fit where none is chosen
    tensor_parallel: int | None  #: ranks that share each layer
    tensor_parallel_source: str | None  #: what told them
    attention_convention: str  #: how attention is counted
    bytes_convention: str  #: how bytes are counted
    notes: tuple[str, ...]  #: what to know before use of the figures
    layers: int | UnsetType = UNSET
    hidden: int | UnsetType = UNSET
    parameters_total: Number | UnsetType = UNSET
    parameters_active: Number | UnsetType = UNSET  #: read for one token
    weight_dtype: str | UnsetType = UNSET
    activation_dtype: str | UnsetType = UNSET
    kv_dtype: str | UnsetType = UNSET
    kv_bytes_per_token: Number | UnsetType = UNSET  #: of the whole model
    weight_bytes_per_decode_step: float | UnsetType | None = UNSET  #: mean, of one rank
    rectangle_over_causal_flop: float | None  #: FLOPs by the full-rectangle convention over ours
    decode_bytes_are_lower_bound: bool | None  #: some decode steps lack KV bytes


class RooflineCeiling(Record, frozen=True, kw_only=True):
    """A roof: the peak of one data type on one device."""

    device_index: int
    gpu_name: str | None
    dtype: str
    peak_tflops: Number
    bandwidth_gbps: Number | None
    ridge: float | None  #: FLOP/byte where slope and roof meet
    source: str | None  #: where the ceilings come from
    peak_tflops_at_clock: float | None  #: at the measured SM clock


class RooflinePoint(Record, frozen=True, kw_only=True):
    """One (op class, phase) whose work is known."""

    op_class: str
    phase: str
    flop: float | None
    bytes: float
    arithmetic_intensity: float  #: FLOP/byte
    mfu_pct: float | None
    mbu_pct: float | None
    total_ms: float
    bound: str | None
    tflops: float  #: speed reached
    gbps: float  #: bandwidth reached


class RooflineCentroid(Record, frozen=True, kw_only=True):
    """The points of one phase as one."""

    phase: str
    arithmetic_intensity: float | None
    tflops: float
    total_ms: float


class Roofline(Record, frozen=True, kw_only=True):
    """Ceilings, and the work held against them."""

    ceilings: tuple[RooflineCeiling, ...]
    points: tuple[RooflinePoint, ...]
    centroids: tuple[RooflineCentroid, ...]
    conventions: tuple[str, ...]  #: how work is counted, a sentence each


class Traffic(Record, frozen=True, kw_only=True):
    """Bytes of decode steps by kind, and the bandwidths that the steps' times imply; keys only where looked at."""

    decode_steps: int | UnsetType = UNSET
    bytes_weights_per_step: float | UnsetType | None = UNSET
    bytes_kv_per_step: float | UnsetType | None = UNSET
    bytes_activations_per_step: float | UnsetType | None = UNSET
    steps_with_known_kv: int | UnsetType = UNSET
    kv_reason: str | UnsetType | None = UNSET
    reason: str | UnsetType | None = UNSET  #: why no more is known
    kv_bytes_per_token: Number | UnsetType = UNSET  #: of one rank
    kv_fit_over: str | UnsetType = UNSET  #: whose time the cache's bandwidth is fitted to
    kv_fit_steps: int | UnsetType = UNSET
    kv_ns_per_token: float | UnsetType | None = UNSET
    kv_fit_error_pct: float | UnsetType | None = UNSET
    kv_fitted_gbps: float | UnsetType | None = UNSET
    kv_fitted_mbu_pct: float | UnsetType | None = UNSET
    kv_fit_reason: str | UnsetType | None = UNSET
    ms_per_request: float | UnsetType | None = UNSET
    ms_at_batch_zero: float | UnsetType | None = UNSET
    batch_fit_reason: str | UnsetType | None = UNSET
    weights_fitted_gbps: float | UnsetType | None = UNSET
    weights_fitted_mbu_pct: float | UnsetType | None = UNSET
    weights_fit_over: str | UnsetType | None = UNSET
    weights_fit_reason: str | UnsetType | None = UNSET
    kv_tokens_at_most: float | UnsetType = UNSET  #: that attention had time to read at the peak bandwidth
    attention_ms_per_decode_step: float | UnsetType = UNSET
    notes: tuple[str, ...] | UnsetType = UNSET


class NcuPair(Record, frozen=True, kw_only=True):
    """Modelled beside measured work of one launch."""

    short_name: str
    grid_x: int
    grid_y: int
    grid_z: int
    bytes_model: float | None
    bytes_measured: float | None
    flop_executed_model: float | None
    flop_executed_measured: float | None


class NcuJoin(Record, frozen=True, kw_only=True):
    """Nsight Compute results laid over the kernels."""

    launches: int  #: profiled launches read
    joined_launches: int  #: of which a kernel of the capture has name, grid and block
    kernels: int  #: kernels that got measured work
    notes: tuple[str, ...]
    pairs: tuple[NcuPair, ...]


class PhaseMetrics(Record, frozen=True, kw_only=True):
    """GPU metrics over the steps of one phase on one device: means weighted by time."""

    device_index: int
    phase: str
    steps: int
    seconds: float
    sampled_mbu_pct: float | None
    sampled_gbps: float | None
    dram_read_pct: float | None
    dram_write_pct: float | None
    tensor_active_pct: float | None
    sm_active_pct: float | None
    sm_clock_mhz: float | None


class GpuMetrics(Record, frozen=True, kw_only=True):
    """GPU metrics samples."""

    samples: int
    period_us: float | None  #: median between samples
    by_phase: tuple[PhaseMetrics, ...]


class CounterMeans(Record, frozen=True, kw_only=True):
    """Counters logged beside the profiler: means over the window, and the model's bandwidth beside the counted one."""

    device_index: int
    source: str
    samples: int
    utilization_pct: float | None
    memory_utilization_pct: float | None
    sm_active_pct: float | None
    tensor_active_pct: float | None
    dram_active_pct: float | None
    sm_clock_hz: float | None
    power_w: float | None
    counted_gbps: float | None
    model_gbps: float | None
    model_gbps_is_lower_bound: bool | None


class Measured(Record, frozen=True, kw_only=True):
    """What was measured beside the timeline, each part only where the capture or an option brings it."""

    ncu: NcuJoin | UnsetType = UNSET
    gpu_metrics: GpuMetrics | UnsetType = UNSET
    counters: tuple[CounterMeans, ...] | UnsetType = UNSET
    warnings: tuple[str, ...] | UnsetType = UNSET  #: where model and measurement differ


class WorkTrust(Record, frozen=True, kw_only=True):
    """The work stage's part of JSON ``trust``."""

    gpu_time_by_work_source: dict[str, float]
    clocks: Clocks | None  #: null = nobody looked
    contradictions: tuple[str, ...]
