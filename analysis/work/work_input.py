"""What the work stage is given, in one record that its parts hand on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import polars as pl

from ..gpus.device_ceilings import DeviceCeilings
from ..phases import PhaseResult
from ..records.options import Options
from ..records.trace import Trace


@dataclass(frozen=True)
class WorkInput:
    """A capture divided into steps, what its kernels' names say, the ceilings of its devices, and what the user asked."""

    trace: Trace
    phases: PhaseResult
    name_facts: pl.DataFrame  # row-aligned with ``trace.names``
    ceilings: Sequence[DeviceCeilings]
    options: Options = field(default_factory=Options)

    @property
    def bandwidth_gbps(self) -> dict[int, float]:
        """Peak memory bandwidth by device index, of the devices where it is known."""
        return {each.device_index: each.memory_bandwidth_gbps for each in self.ceilings if each.memory_bandwidth_gbps}
