"""JSON ``host``: what the host did while the GPU waited between decode steps."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from .record import Record


class HostParts(Record, frozen=True, kw_only=True):
    """Bubbles by what the launching thread did, ms; they sum to ``bubble_ms``."""

    waiting: float  #: in a synchronising call
    graph_launch: float  #: launching graphs
    kernel_launch: float  #: launching kernels
    copies: float  #: in copies and memsets
    sampling: float  #: under the engine's scopes of sampling
    input_preparation: float  #: under its scopes of preparing inputs
    scheduling: float  #: under its scopes of scheduling
    unnamed_host_code: float  #: the rest


class LaunchesInFlight(Record, frozen=True, kw_only=True):
    """Launch calls made but not yet running when a decode step starts."""

    p50: float  #: median
    max: int  #: most


class HostSide(Record, frozen=True, kw_only=True):
    """The bubbles of pure decode gaps, means over the devices."""

    bubble_ms: float | None  #: GPU idle between decode steps because the launch call came late, mean over devices
    bubble_ms_reason: str | UnsetType = UNSET  #: why it is null
    bubble_count: int | UnsetType = UNSET  #: bubbles per device
    bubble_ms_per_decode_step: float | UnsetType | None = UNSET  #: median per step
    share_of_decode_pct: float | UnsetType | None = UNSET  #: of the time between decode tokens
    parts_ms: HostParts | UnsetType = UNSET  #: bubbles by what the launching thread did; they sum to `bubble_ms`
    dispatch_ms: float | UnsetType = UNSET  #: idle between queued kernels: not the host's
    scopes_seen: bool | UnsetType = UNSET  #: whether the engine names its host code
    #: launch calls made but not yet running when a decode step starts
    launches_in_flight: LaunchesInFlight | UnsetType | None = UNSET
    launches_in_flight_reason: str | UnsetType = UNSET  #: why it is null
