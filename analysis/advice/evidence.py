"""What the rules of the findings may look at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from ..records.advice import Finding
from ..records.host import HostSide
from ..records.what_if import WhatIf
from ..summary.summary_input import SummaryInput
from ..time.collectives import CollectiveResult


@dataclass(frozen=True)
class Evidence:
    """What the rules may look at."""

    found: SummaryInput
    collectives: CollectiveResult
    host: HostSide
    what_if: WhatIf

    @property
    def busy_ms(self) -> float:
        """Busy time, mean over the devices."""
        devices = self.found.time.devices
        return sum(d.busy_ns for d in devices) / max(len(devices), 1) / 1e6

    @property
    def device_count(self) -> int:
        """Devices with kernels."""
        return max(len(self.found.time.devices), 1)

    @property
    def decode_ms(self) -> float:
        """Busy time of decode steps, mean over the devices."""
        devices = self.found.time.devices
        return sum(d.phase_ns.get("decode", 0) for d in devices) / self.device_count / 1e6


Rule: TypeAlias = Callable[[Evidence], Finding | None]
