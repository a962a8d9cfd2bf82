"""JSON ``findings[]``: sentences with a number, a cause and a lever, and the evidence behind each."""

from __future__ import annotations

from .host import HostParts
from .record import Number, Record


class PrefillInterference(Record, frozen=True, kw_only=True, tag=True):
    """Prefill work kept decoding requests waiting."""

    stall_ms: float
    stalls: int
    episodes: int
    requests_held_max: int | None
    request_ms_lost: float | None
    prefill_tokens: int | None
    largest_gap_ms: float
    chunk_now_tokens: int | None


class SmallDecodeBatch(Record, frozen=True, kw_only=True, tag=True):
    """Decode reads all weights for few requests."""

    decode_batch_p50: float
    decode_tokens_p50: float
    ridge_batch: float
    decode_ms: float


class PaddedGraphs(Record, frozen=True, kw_only=True, tag=True):
    """Decode graphs larger than the batch they serve; the graph is the one that costs most."""

    padding_ms: float
    graph_id: int
    batch: int
    real_batch_median: float
    replays: int


class HostBoundDecode(Record, frozen=True, kw_only=True, tag=True):
    """The GPU waits for the host between decode tokens."""

    bubble_ms: float
    bubble_ms_per_decode_step: float | None
    share_of_decode_pct: float
    parts_ms: HostParts


class HostBoundPrefill(Record, frozen=True, kw_only=True, tag=True):
    """The GPU waits for launch calls inside steps with prefill work."""

    waiting_ms: float
    steps_ms: float
    share_of_steps_pct: float


class CollectiveWaiting(Record, frozen=True, kw_only=True, tag=True):
    """Ranks wait inside collectives for a late one."""

    wait_ms: float
    transfer_ms: float
    late_device: int | None


class LowOccupancyAttention(Record, frozen=True, kw_only=True, tag=True):
    """Decode attention that leaves most SMs without a block; the kernel is the one that takes most time."""

    kernel: str
    blocks: int | None
    sm_coverage_pct: float
    headroom_ms: float


class UnfusedKernels(Record, frozen=True, kw_only=True, tag=True):
    """Small elementwise kernels that a fused one would absorb."""

    total_ms: float
    launches: int
    kernels: tuple[str, ...]
    recoverable_is: str


class SamplingOnCriticalPath(Record, frozen=True, kw_only=True, tag=True):
    """Sampling kernels, and copies alone between decode tokens."""

    sampling_ms: float
    copy_ms: float
    decode_ms: float
    kernels: tuple[str, ...]


class WrongDtype(Record, frozen=True, kw_only=True, tag=True):
    """GEMMs in a 32-bit type beside a model in 16 bits or fewer; the kernel is the one that takes most time."""

    total_ms: float
    kernel: str
    dtype: str
    count: int
    recoverable_is: str


class OpaqueGraphs(Record, frozen=True, kw_only=True, tag=True):
    """Graph replays were recorded as single rows."""

    graph_replays: int
    graph_ms: float
    kernels_recorded: int


class RanksMissing(Record, frozen=True, kw_only=True, tag=True):
    """Fewer devices ran kernels than the serving options ask for."""

    ranks_expected: int
    devices_with_kernels: int


class ClocksLow(Record, frozen=True, kw_only=True, tag=True):
    """The SM clock is under the one its peak stands for."""

    sm_clock_mhz: float
    spec_clock_mhz: Number
    share_pct: float


FindingEvidence = (
    PrefillInterference
    | SmallDecodeBatch
    | PaddedGraphs
    | HostBoundDecode
    | HostBoundPrefill
    | CollectiveWaiting
    | LowOccupancyAttention
    | UnfusedKernels
    | SamplingOnCriticalPath
    | WrongDtype
    | OpaqueGraphs
    | RanksMissing
    | ClocksLow
)


class Finding(Record, frozen=True, kw_only=True):
    """One sentence with a number, a cause and a lever, and the evidence behind it."""

    id: str  #: rule ([findings.md](findings.md))
    kind: str = "serving"  #: `serving` or `capture`
    sentence: str  #: what, how much, why
    recoverable_ms: float | None  #: milliseconds it could recover
    evidence: FindingEvidence  #: the numbers behind it; keys depend on `id`
    lever: str  #: what to do
