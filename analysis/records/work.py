"""JSON ``model``, ``roofline``, ``traffic`` and ``measured``, and the work stage's part of ``trust``.

Work is FLOPs and bytes; ratios are against the ceilings of the devices.
"""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from .record import Number, Record
from .trust import Clocks


class Model(Record, frozen=True, kw_only=True):
    """Which model ran, how that is known, its sizes, and what the figures rest on."""

    name: str | None = None  #: model, null where it is not known
    source: str | None = None  #: `option`, `command_line` or `recognised`
    reason: str | None = None  #: why the model or its ranks are not known
    candidates: tuple[str, ...] = ()  #: models that fit, where none was chosen
    tensor_parallel: int | None = None  #: ranks that share the model
    #: `option`, `command_line`, `group`, `world_size` or `no_collectives`
    tensor_parallel_source: str | None = None
    attention_convention: str = "exact causal"  #: which query-key pairs are counted ([roofline.md](roofline.md))
    bytes_convention: str = "least traffic, activations counted"  #: which bytes are counted
    notes: tuple[str, ...] = ()  #: what the figures rest on
    layers: int | UnsetType = UNSET  #: layers of the known model
    hidden: int | UnsetType = UNSET  #: its hidden width
    parameters_total: int | UnsetType = UNSET  #: all weights
    parameters_active: int | UnsetType = UNSET  #: weights that one token uses
    weight_dtype: str | UnsetType = UNSET  #: data type of the weights
    activation_dtype: str | UnsetType = UNSET  #: of the activations
    kv_dtype: str | UnsetType = UNSET  #: of the KV cache
    kv_bytes_per_token: Number | UnsetType = UNSET  #: KV cache of one token over all ranks
    weight_bytes_per_decode_step: float | UnsetType | None = UNSET  #: weights that one rank reads in a decode step
    #: all FLOPs if attention were counted as a full rectangle, over ours
    rectangle_over_causal_flop: float | None = None
    #: whether KV lengths are unknown in some step with decode work; true where work comes from tiles and grids
    decode_bytes_are_lower_bound: bool | None = None


class RooflineCeiling(Record, frozen=True, kw_only=True):
    """The roof of one device for one data type."""

    device_index: int  #: device
    gpu_name: str | None  #: its name
    dtype: str  #: data type
    peak_tflops: Number  #: dense peak
    bandwidth_gbps: Number | None  #: peak bandwidth
    ridge: float | None  #: peak over bandwidth, FLOP/byte
    source: str | None  #: where the ceiling comes from
    peak_tflops_at_clock: float | None  #: peak at the sampled SM clock


class RooflinePoint(Record, frozen=True, kw_only=True):
    """The kernels of one op class and phase whose work is known."""

    op_class: str  #: as in `op_classes`
    phase: str  #: step phase
    flop: float  #: FLOPs
    bytes: float  #: bytes
    arithmetic_intensity: float  #: FLOP per byte
    mfu_pct: float | None  #: MFU
    mbu_pct: float | None  #: MBU
    total_ms: float  #: time
    bound: str  #: as in `op_classes`
    tflops: float  #: FLOPs over time
    gbps: float  #: bytes over time


class RooflineCentroid(Record, frozen=True, kw_only=True):
    """All points of one phase together."""

    phase: str  #: phase
    arithmetic_intensity: float | None  #: all FLOPs over all bytes
    tflops: float  #: achieved
    total_ms: float  #: time of its points


class Roofline(Record, frozen=True, kw_only=True):
    """Ceilings, and what the kernels achieve under them."""

    ceilings: tuple[RooflineCeiling, ...]  #: one per device and data type
    points: tuple[RooflinePoint, ...]  #: one per op class and phase with known work
    centroids: tuple[RooflineCentroid, ...]  #: all points of a phase together
    conventions: tuple[str, ...]  #: what is counted


class Traffic(Record, frozen=True, kw_only=True):
    """What a decode step moves, and the bandwidths that the steps imply: over whole pure decode steps, per device."""

    decode_steps: int | UnsetType = UNSET  #: steps looked at
    bytes_weights_per_step: float | UnsetType | None = UNSET  #: mean bytes of weights in a step
    bytes_kv_per_step: float | UnsetType | None = UNSET  #: of KV cache
    bytes_activations_per_step: float | UnsetType | None = UNSET  #: of activations
    steps_with_known_kv: int | UnsetType = UNSET  #: of the steps, those whose KV lengths are known
    kv_reason: str | UnsetType | None = UNSET  #: why KV bytes are not over all steps
    reason: str | UnsetType | None = UNSET  #: why there is nothing, or no model
    kv_bytes_per_token: Number | UnsetType = UNSET  #: KV cache of one token on one rank
    #: whose time is fitted: `attention` kernels, or whole `steps` where those are not recorded or do not tell
    kv_fit_over: str | UnsetType = UNSET
    kv_fit_steps: int | UnsetType = UNSET  #: steps behind the fit over KV tokens
    kv_ns_per_token: float | UnsetType | None = UNSET  #: time per cached token
    kv_fit_error_pct: float | UnsetType | None = UNSET  #: its standard error
    kv_fitted_gbps: float | UnsetType | None = UNSET  #: bandwidth that this means
    kv_fitted_mbu_pct: float | UnsetType | None = UNSET  #: the same of the peak
    kv_fit_reason: str | UnsetType | None = UNSET  #: why there is no fit
    ms_per_request: float | UnsetType | None = UNSET  #: step time per further request
    ms_at_batch_zero: float | UnsetType | None = UNSET  #: step time that is left at no request
    batch_fit_reason: str | UnsetType | None = UNSET  #: why there is no fit
    weights_fitted_gbps: float | UnsetType | None = UNSET  #: bandwidth of the weights
    weights_fitted_mbu_pct: float | UnsetType | None = UNSET  #: the same of the peak
    #: `steps` where the level of the cache is known, else `steps without attention` (and without collectives), or
    #: `steps at batch zero` where attention is not recorded
    weights_fit_over: str | UnsetType | None = UNSET
    weights_fit_reason: str | UnsetType | None = UNSET  #: why there is no fit
    kv_tokens_at_most: float | UnsetType = UNSET  #: most KV tokens that attention had time to read at peak bandwidth
    attention_ms_per_decode_step: float | UnsetType = UNSET  #: attention time behind that bound
    notes: tuple[str, ...] | UnsetType = UNSET  #: what disagrees


class NcuPair(Record, frozen=True, kw_only=True):
    """Modelled beside measured work of one launch."""

    short_name: str  #: kernel
    grid_x: int  #: its grid
    grid_y: int  #: its grid
    grid_z: int  #: its grid
    bytes_model: float | None  #: bytes by the model
    bytes_measured: float | None  #: DRAM bytes counted
    flop_executed_model: float | None  #: executed FLOPs by the model
    flop_executed_measured: float | None  #: executed FLOPs counted


class NcuJoin(Record, frozen=True, kw_only=True):
    """Nsight Compute results joined to kernels."""

    launches: int  #: profiled launches
    joined_launches: int  #: those that stand for kernels of the capture
    kernels: int  #: kernels they stand for
    notes: tuple[str, ...]  #: what was compared and what was not collected
    pairs: tuple[NcuPair, ...]  #: modelled beside measured work, the largest fifty


class PhaseMetrics(Record, frozen=True, kw_only=True):
    """GPU metrics over the steps of one phase on one device, weighted by time."""

    device_index: int  #: device
    phase: str  #: step phase
    steps: int  #: steps
    seconds: float  #: their spans, s
    sampled_mbu_pct: float | None  #: DRAM read and write activity
    sampled_gbps: float | None  #: the same as bandwidth
    dram_read_pct: float | None  #: DRAM read activity
    dram_write_pct: float | None  #: DRAM write activity
    tensor_active_pct: float | None  #: activity of the tensor cores
    sm_active_pct: float | None  #: SMs with work
    sm_clock_mhz: float | None  #: SM clock


class GpuMetrics(Record, frozen=True, kw_only=True):
    """GPU metrics sampled by Nsight Systems."""

    samples: int  #: samples
    period_us: float | None  #: median distance of samples
    by_phase: tuple[PhaseMetrics, ...]  #: means over the steps of a phase on a device


class CounterMeans(Record, frozen=True, kw_only=True):
    """Means of the counters of one device and source inside the window, beside the model's bandwidth."""

    device_index: int  #: device
    source: str  #: `dmon` or `dcgm`
    samples: int  #: samples inside the window
    utilization_pct: float | None  #: nvidia-smi's `sm`: share of time with a kernel
    memory_utilization_pct: float | None  #: nvidia-smi's `mem`: share of time in which memory was read or written
    sm_active_pct: float | None  #: DCGM's activity of the SMs
    tensor_active_pct: float | None  #: of the tensor cores
    dram_active_pct: float | None  #: of device memory
    sm_clock_hz: float | None  #: SM clock
    power_w: float | None  #: power
    counted_gbps: float | None  #: DRAM activity times peak bandwidth
    model_gbps: float | None  #: modelled bytes over the window
    model_gbps_is_lower_bound: bool | None  #: under 95% of kernel time has known bytes


class Measured(Record, frozen=True, kw_only=True):
    """What was measured beside the timeline, each kind only where the capture or an option brings it."""

    ncu: NcuJoin | UnsetType = UNSET  #: Nsight Compute results joined to kernels
    gpu_metrics: GpuMetrics | UnsetType = UNSET  #: GPU metrics sampled by Nsight Systems
    #: with `--dmon` or `--dcgm`: means over the window, one per device and source
    counters: tuple[CounterMeans, ...] | UnsetType = UNSET
    warnings: tuple[str, ...] | UnsetType = UNSET  #: where modelled and measured work differ by more than 1.5 times


class WorkTrust(Record, frozen=True, kw_only=True):
    """The work stage's part of ``trust``."""

    gpu_time_by_work_source: dict[str, float]  #: share of kernel time by source of its work
    clocks: Clocks | None  #: SM clock
    contradictions: tuple[str, ...] = ()  #: sentences where the model and the capture disagree
