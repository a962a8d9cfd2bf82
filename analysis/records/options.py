"""What the user asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Options:
    """What the user asked for; None = not given."""

    gpu: str | None = None
    gpu_override: str | None = None
    model: str | None = None  # a name of models.toml or a path of a config.json
    tensor_parallel: int | None = None
    weight_dtype: str | None = None
    kv_dtype: str | None = None
    ceilings: Path | None = None
    ncu: tuple[Path, ...] = ()
    window: str | None = None
    markers: Path | None = None
    step: str | None = None  # 'median-decode' | 'median-prefill' | INDEX
    itl_target_ms: float | None = None
    dmon: Path | None = None
    dcgm: Path | None = None
