"""The table of GPUs (gpus.toml): rows, the names people type, and exact matching of device names.

Names are compared as a whole after case, separators and vendor words are dropped, never as substrings: ``h20`` is not
``h200``, ``a10`` neither ``a10g`` nor ``a100``, and an RTX A1000 is no A100.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..facts.load import load_table
from ..records.errors import UsageError

GIB = 1 << 30
MEMORY_TOLERANCE = 0.10
_VENDOR_WORDS = re.compile(r"\b(?:nvidia|amd|instinct|geforce|tesla|quadro)\b")
_MIG = re.compile(r"\s+MIG\s+\S+$", re.IGNORECASE)


@dataclass(frozen=True)
class Gpu:
    """One row: dense peaks in TFLOP/s, bandwidth in 1e9 byte/s, as published."""

    key: str
    names: tuple[str, ...]
    aliases: tuple[str, ...]
    arch: str
    chip: str | None
    compute_capability: str | None
    sm_count: int
    spec_clock_mhz: float | None
    max_clock_mhz: float | None
    fma16_per_sm_clk: int | None
    memory_gb: float
    memory_type: str
    bandwidth_gbps: float
    l2_bytes: int | None
    nvlink_gbps: float | None
    tdp_w: float | None
    peaks: Mapping[str, float]
    capped: bool
    confidence: str
    notes: str
    source: str

    def memory_agrees(self, total_bytes: int) -> bool:
        """Whether a reported size is this part's, within 10%, its GB read as 1e9 or as 2**30 bytes."""
        return any(abs(total_bytes / (self.memory_gb * unit) - 1) <= MEMORY_TOLERANCE for unit in (1e9, GIB))


@dataclass(frozen=True)
class Chip:
    """Multiply-adds per SM and clock of a chip, for parts in no row."""

    names: tuple[str, ...]
    compute_capabilities: tuple[str, ...]
    fma16_per_sm_clk: int
    fma32_per_sm_clk: int
    ratios: Mapping[str, float]
    geforce_fma16_per_sm_clk: int | None
    geforce_ratios: Mapping[str, float]
    bandwidth_reported_is_wrong: bool

    def rates(self, geforce: bool) -> tuple[int, Mapping[str, float]]:
        """(fp16 multiply-adds per SM and clock, ratio of each data type to fp16)."""
        if geforce and self.geforce_fma16_per_sm_clk is not None:
            return self.geforce_fma16_per_sm_clk, self.geforce_ratios
        return self.fma16_per_sm_clk, self.ratios


@dataclass(frozen=True)
class GpuTable:
    """gpus.toml with its lookups."""

    gpus: tuple[Gpu, ...]
    families: Mapping[str, tuple[str, ...]]  # plain name -> keys, the commonest first
    chips: tuple[Chip, ...]
    no_derivation: tuple[tuple[str, str], ...]  # (pattern on the device name, reason)

    def named(self, device_name: str) -> tuple[Gpu, ...]:
        """Rows whose exact device name this is; else rows of that alias or family (a MIG suffix is dropped)."""
        plain = plain_name(without_mig(device_name))
        exact = tuple(gpu for gpu in self.gpus if any(plain_name(name) == plain for name in gpu.names))
        return exact or self._typed(plain)

    def typed(self, text: str) -> tuple[Gpu, ...]:
        """Rows that ``--gpu text`` may mean, the commonest first.

        Raises ``UsageError`` with the nearest names for an unknown one.
        """
        rows = self._typed(plain_name(text)) or self.named(text)
        if rows:
            return rows
        known = sorted({name for gpu in self.gpus for name in (gpu.key.lower(), *gpu.aliases)} | set(self.families))
        near = difflib.get_close_matches(text.lower().strip(), known, n=4, cutoff=0.5)
        meant = f" Did you mean {', '.join(near)}?" if near else ""
        raise UsageError(f"No GPU is called {text!r}.{meant} `trace-analyze gpus` lists every name.")

    def _typed(self, plain: str) -> tuple[Gpu, ...]:
        by_key = {gpu.key: gpu for gpu in self.gpus}
        for family, keys in self.families.items():
            if plain_name(family) == plain:
                return tuple(by_key[key] for key in keys)
        return tuple(
            gpu for gpu in self.gpus if plain in {plain_name(gpu.key), *(plain_name(alias) for alias in gpu.aliases)}
        )

    def chip(self, name: str | None, compute_capability: str | None) -> Chip | None:
        """The chip by its name, else by compute capability."""
        for chip in self.chips:
            if name and name.upper() in chip.names:
                return chip
        if name:
            known = {each for chip in self.chips for each in chip.names}
            if name.upper() in known:
                return None
        for chip in self.chips:
            if compute_capability in chip.compute_capabilities:
                return chip
        return None

    def why_not_derived(self, device_name: str) -> str | None:
        """Why no peak may be derived for a device of this name, if so."""
        for pattern, reason in self.no_derivation:
            if re.search(pattern, device_name, re.IGNORECASE):
                return reason
        return None


def plain_name(text: str) -> str:
    """A name without case, vendor words and separators: 'NVIDIA GeForce RTX 4090' -> 'rtx4090'."""
    return re.sub(r"[^a-z0-9]", "", _VENDOR_WORDS.sub("", text.lower().replace("_", " ").replace("-", " ")))


def without_mig(name: str) -> str:
    """The device name without its slice: 'NVIDIA A30 MIG 2g.12gb' -> 'NVIDIA A30'."""
    return _MIG.sub("", name)


def is_mig_name(name: str) -> bool:
    """Whether a device name is that of a MIG slice."""
    return _MIG.search(name) is not None


@cache
def gpu_table() -> GpuTable:
    """gpus.toml, read once."""
    data = load_table("gpus")
    return GpuTable(
        gpus=tuple(_gpu(row) for row in data["gpu"]),
        families={row["name"]: tuple(row["means"]) for row in data["family"]},
        chips=tuple(_chip(row) for row in data["chip"]),
        no_derivation=tuple((row["pattern"], row["reason"]) for row in data["no_derivation"]),
    )


def _gpu(row: Mapping[str, Any]) -> Gpu:
    return Gpu(
        key=row["key"],
        names=tuple(row["names"]),
        aliases=tuple(row["aliases"]),
        arch=row["arch"],
        chip=row.get("chip"),
        compute_capability=row.get("compute_capability"),
        sm_count=row.get("sm_count", 0),
        spec_clock_mhz=row.get("spec_clock_mhz"),
        max_clock_mhz=row.get("max_clock_mhz"),
        fma16_per_sm_clk=row.get("fma16_per_sm_clk"),
        memory_gb=row["memory_gb"],
        memory_type=row["memory_type"],
        bandwidth_gbps=row["bandwidth_gbps"],
        l2_bytes=row["l2_mib"] << 20 if "l2_mib" in row else None,
        nvlink_gbps=row.get("nvlink_gbps"),
        tdp_w=row.get("tdp_w"),
        peaks=dict(row["peaks"]),
        capped=row.get("capped", False),
        confidence=row["confidence"],
        notes=row.get("notes", ""),
        source=row["source"],
    )


def _chip(row: Mapping[str, Any]) -> Chip:
    geforce = row.get("geforce", {})
    return Chip(
        names=tuple(row["names"]),
        compute_capabilities=tuple(row["compute_capabilities"]),
        fma16_per_sm_clk=row["fma16_per_sm_clk"],
        fma32_per_sm_clk=row["fma32_per_sm_clk"],
        ratios=dict(row["ratios"]),
        geforce_fma16_per_sm_clk=geforce.get("fma16_per_sm_clk"),
        geforce_ratios=dict(geforce.get("ratios", {})),
        bandwidth_reported_is_wrong=row.get("bandwidth_reported_is_wrong", False),
    )


def list_gpus() -> list[dict[str, Any]]:
    """One row per known GPU for ``trace-analyze gpus``.

    Keys: ``name`` (what to type), ``also``, ``device_name``, ``sm_count``, ``memory_gb``, ``memory_type``,
    ``bandwidth_gbps``, ``peak_tflops`` (dense, by data type), ``ridge_flop_per_byte`` (16-bit), ``l2_mib``,
    ``confidence``, ``source``, ``notes``.
    """
    table = gpu_table()
    families: dict[str, list[str]] = {}
    for family, keys in table.families.items():
        families.setdefault(keys[0], []).append(family)
    return [
        {
            "name": gpu.key.lower(),
            "also": [*families.get(gpu.key, ()), *gpu.aliases],
            "device_name": gpu.names[0],
            "sm_count": gpu.sm_count or None,
            "memory_gb": gpu.memory_gb,
            "memory_type": gpu.memory_type,
            "bandwidth_gbps": gpu.bandwidth_gbps,
            "peak_tflops": dict(gpu.peaks),
            "ridge_flop_per_byte": ridge_of(gpu.peaks, gpu.bandwidth_gbps),
            "l2_mib": gpu.l2_bytes >> 20 if gpu.l2_bytes else None,
            "confidence": gpu.confidence,
            "source": gpu.source,
            "notes": gpu.notes,
        }
        for gpu in table.gpus
    ]


def ridge_of(peaks: Mapping[str, float], bandwidth_gbps: float) -> float | None:
    """Ridge of 16-bit arithmetic, FLOP/byte: bf16 where the part has it, else fp16."""
    peak = peaks.get("bf16", peaks.get("fp16"))
    return None if peak is None else peak * 1e3 / bandwidth_gbps
