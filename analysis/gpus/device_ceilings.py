"""Ceilings of each device: dense peaks, bandwidth, where each comes from, and what contradicts what.

The capture decides which GPU it was; ``--gpu`` settles what the capture leaves open and loses, loudly, where it
contradicts (``--gpu-override`` wins). A row of the table applies only where name, SM count and memory agree; a GPU in no
row gets its bandwidth from the capture and a peak derived from SM count, clock and the rate per SM of its chip.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..records.trace import Trace
from .gpu_table import Chip, Gpu, gpu_table, is_mig_name, list_gpus, plain_name, without_mig
from .measured_ceilings import MeasuredCeilings, read_ceilings

__all__ = ["DeviceCeilings", "list_gpus", "resolve_devices"]

BANDWIDTH_TOLERANCE = 0.10
DERIVED_NOTE = "about 8% high, because the capture records the maximum clock"


@dataclass(frozen=True)
class DeviceCeilings:
    """What one device can do at most, and how that is known. Unknown numbers are None with ``reason`` beside them."""

    device_index: int
    key: str | None  # row of gpus.toml, None where no row applies
    gpu_name: str | None
    gpu_source: str | None  # the table of the capture that named it, '--gpu' or '--gpu-override'
    sm_count: int | None
    memory_bandwidth_gbps: float | None
    bandwidth_source: str | None
    peak_tflops: Mapping[str, float]  # dense, by data type; a type that is absent has no known peak
    ceiling_source: str | None
    derived: bool = False
    l2_bytes: int | None = None
    spec_clock_mhz: float | None = None  # clock at which the 16-bit peak holds
    max_clock_mhz: float | None = None
    fma16_per_sm_clk: int | None = None
    candidates: tuple[str, ...] = ()  # other parts it could be, where the capture does not tell
    contradiction: str | None = None
    reason: str | None = None  # why a number is missing, or what to know about one
    max_warps_per_sm: int | None = None
    registers_per_sm: int | None = None
    shared_memory_per_sm_bytes: int | None = None
    mem_gb: float | None = None
    max_blocks_per_sm: int | None = None
    mig: bool = False
    nvlink_gbps: float | None = None

    def ridge(self, dtype: str = "bf16") -> float | None:
        """FLOP/byte at which ``dtype`` turns from bandwidth-bound to compute-bound; None where either is unknown."""
        peak = self.peak_tflops.get(dtype)
        if peak is None or not self.memory_bandwidth_gbps:
            return None
        return peak * 1e3 / self.memory_bandwidth_gbps

    def peak_at_clock(self, dtype: str, clock_hz: float) -> float | None:
        """Peak of ``dtype`` in TFLOP/s at a measured SM clock: the spec peak scaled by the clocks."""
        peak = self.peak_tflops.get(dtype)
        if peak is None or not self.spec_clock_mhz:
            return None
        return peak * clock_hz / (self.spec_clock_mhz * 1e6)


@dataclass(frozen=True)
class _Seen:
    """What the capture says of one device; zeros and empty names count as silence."""

    index: int
    name: str | None
    name_source: str | None
    sm_count: int | None
    memory_bytes: int | None
    bandwidth_gbps: float | None
    l2_bytes: int | None
    clock_mhz: float | None
    compute_capability: str | None
    chip: str | None
    mig: bool
    limits: Mapping[str, int | None]

    def misfit(self, gpu: Gpu) -> str | None:
        """What of the capture speaks against a row, None where nothing does. A slice differs in all but the name."""
        if self.name is not None and self.name_fits(gpu) is False:
            return f"the capture names {self.name}"
        if self.mig:
            return None
        if self.sm_count and gpu.sm_count and self.sm_count != gpu.sm_count:
            return f"the capture reports {self.sm_count} SMs, {gpu.key} has {gpu.sm_count}"
        if self.memory_bytes and not gpu.memory_agrees(self.memory_bytes):
            return f"the capture reports {self.memory_bytes / 1e9:.1f} GB of memory, {gpu.key} has {gpu.memory_gb:g}"
        if self.compute_capability and gpu.compute_capability and self.compute_capability != gpu.compute_capability:
            return (
                f"the capture reports compute capability {self.compute_capability}, {gpu.key} has "
                f"{gpu.compute_capability}"
            )
        return None

    def name_fits(self, gpu: Gpu) -> bool:
        return self.name is not None and gpu in gpu_table().named(self.name)

    def bandwidth_fits(self, gpu: Gpu) -> bool:
        return self.bandwidth_gbps is None or abs(self.bandwidth_gbps / gpu.bandwidth_gbps - 1) <= BANDWIDTH_TOLERANCE


@dataclass(frozen=True)
class _Choice:
    """Which row stands for a device, and what has to be said about the choice."""

    gpu: Gpu | None = None
    source: str | None = None
    candidates: tuple[str, ...] = ()
    contradiction: str | None = None
    reason: str | None = None
    overridden: bool = False


def resolve_devices(
    trace: Trace, *, gpu: str | None = None, gpu_override: str | None = None, ceilings: Path | None = None
) -> tuple[DeviceCeilings, ...]:
    """Ceilings of each row of ``trace.devices``, in order.

    ``gpu`` and ``gpu_override`` are what the user typed; ``ceilings`` is a file of measured ones (ceilings_file.py).
    Raises ``UsageError`` for an unknown GPU name or a bad file, also when there is no device to apply it to.
    """
    table = gpu_table()
    typed = table.typed(gpu) if gpu else ()
    forced = table.typed(gpu_override) if gpu_override else ()
    measured = read_ceilings(ceilings) if ceilings else None
    resolved = []
    for row in trace.devices.iter_rows(named=True):
        seen = _seen(row)
        choice = _override(seen, forced) if forced else _choose(seen, typed, gpu)
        found = _ceilings(seen, choice)
        resolved.append(_with_measured(found, measured) if measured else found)
    return tuple(resolved)


def _seen(row: Mapping[str, Any]) -> _Seen:
    name = (row["gpu_name"] or "").strip() or None
    bandwidth, clock = row["memory_bandwidth_bytes_per_s"], row["max_clock_hz"]
    return _Seen(
        index=row["device_index"],
        name=name,
        name_source=(row["gpu_source"] or "capture") if name else None,
        sm_count=row["sm_count"] or None,
        memory_bytes=row["total_memory_bytes"] or None,
        bandwidth_gbps=bandwidth / 1e9 if bandwidth else None,
        l2_bytes=row["l2_bytes"] or None,
        clock_mhz=clock / 1e6 if clock else None,
        compute_capability=row["compute_capability"] or None,
        chip=row["chip"] or None,
        mig=bool(row["mig"]) or (name is not None and is_mig_name(name)),
        limits={
            limit: row[limit] or None
            for limit in ("max_warps_per_sm", "max_blocks_per_sm", "shared_memory_per_sm_bytes", "registers_per_sm")
        },
    )


def _override(seen: _Seen, forced: tuple[Gpu, ...]) -> _Choice:
    fitting = [gpu for gpu in forced if seen.misfit(gpu) is None]
    chosen = fitting[0] if fitting else forced[0]
    against = None if fitting else seen.misfit(chosen)
    return _Choice(
        gpu=chosen,
        source="--gpu-override",
        candidates=tuple(gpu.key for gpu in (fitting or forced) if gpu is not chosen) if seen.name is None else (),
        contradiction=f"--gpu-override {chosen.key} is used although {against}" if against else None,
        overridden=True,
    )


def _choose(seen: _Seen, typed: tuple[Gpu, ...], flag: str | None) -> _Choice:
    if seen.name is not None:
        return _named_by_capture(seen, typed, flag)
    if not typed:
        known = seen.sm_count or seen.bandwidth_gbps
        missing = "the capture does not name its GPU; name it with --gpu"
        return _Choice(reason=missing, source="capture" if known else None)
    fitting = [gpu for gpu in typed if seen.misfit(gpu) is None]
    if not fitting:
        return _Choice(contradiction=f"--gpu {flag} is not used: {seen.misfit(typed[0])}", source="capture")
    by_bandwidth = [gpu for gpu in fitting if seen.bandwidth_fits(gpu)]
    chosen, *others = by_bandwidth or fitting
    return _Choice(gpu=chosen, source="--gpu", candidates=tuple(gpu.key for gpu in others))


def _named_by_capture(seen: _Seen, typed: tuple[Gpu, ...], flag: str | None) -> _Choice:
    named = gpu_table().named(seen.name or "")
    fitting = [gpu for gpu in named if seen.misfit(gpu) is None]
    close = [gpu for gpu in fitting if seen.bandwidth_fits(gpu)] or fitting
    wanted = [gpu for gpu in close if gpu in typed] or close
    contradiction = None
    if typed and not any(gpu in typed for gpu in close):
        against = f"the capture names {seen.name}"
        if named and not fitting:
            against = seen.misfit(named[0]) or against
        contradiction = f"--gpu {flag} is not used: {against} (--gpu-override forces it)"
    if not wanted:
        reason = None if not named else f"no row of the table applies: {seen.misfit(named[0])}"
        return _Choice(source=seen.name_source, contradiction=contradiction, reason=reason)
    chosen, *others = wanted
    return _Choice(chosen, seen.name_source, tuple(gpu.key for gpu in others), contradiction)


def _ceilings(seen: _Seen, choice: _Choice) -> DeviceCeilings:
    found = _from_row(seen, choice, choice.gpu) if choice.gpu else _derived(seen, choice)
    return replace(
        found,
        max_warps_per_sm=seen.limits["max_warps_per_sm"],
        max_blocks_per_sm=seen.limits["max_blocks_per_sm"],
        shared_memory_per_sm_bytes=seen.limits["shared_memory_per_sm_bytes"],
        registers_per_sm=seen.limits["registers_per_sm"],
    )


def _from_row(seen: _Seen, choice: _Choice, gpu: Gpu) -> DeviceCeilings:
    table_bandwidth = f"{gpu.key} in gpus.toml ({gpu.confidence} confidence)"
    bandwidth, bandwidth_source = gpu.bandwidth_gbps, table_bandwidth
    notes = [choice.reason] if choice.reason else []
    chip = gpu_table().chip(seen.chip or gpu.chip, seen.compute_capability or gpu.compute_capability)
    if seen.bandwidth_gbps and not choice.overridden:
        if chip is not None and chip.bandwidth_reported_is_wrong:
            notes.append(_wrong_bandwidth(seen.bandwidth_gbps))
        else:
            bandwidth, bandwidth_source = seen.bandwidth_gbps, "capture"
            if not seen.mig and not seen.bandwidth_fits(gpu):
                notes.append(
                    f"the capture reports {seen.bandwidth_gbps:.0f} GB/s, {gpu.key} has {gpu.bandwidth_gbps:g}"
                )
    if not {"bf16", "fp16"} & gpu.peaks.keys():
        notes.append(f"no dense 16-bit peak is published for {gpu.key}")
    share, source = 1.0, f"{gpu.key} in gpus.toml: {gpu.source}"
    sm_count = seen.sm_count if not choice.overridden else None
    if seen.mig and sm_count and gpu.sm_count:
        share = sm_count / gpu.sm_count
        source += f"; MIG slice: {sm_count} of {gpu.sm_count} SMs"
        if bandwidth_source != "capture" and seen.memory_bytes:
            notes.append("the capture gives no bandwidth for the slice: the whole GPU's is used")
    return DeviceCeilings(
        device_index=seen.index,
        key=gpu.key,
        gpu_name=seen.name if seen.name and not choice.overridden else gpu.names[0],
        gpu_source=choice.source,
        sm_count=sm_count or gpu.sm_count or None,
        memory_bandwidth_gbps=bandwidth,
        bandwidth_source=bandwidth_source,
        peak_tflops={dtype: peak * share for dtype, peak in gpu.peaks.items()},
        ceiling_source=source,
        l2_bytes=(None if choice.overridden else seen.l2_bytes) or gpu.l2_bytes,
        spec_clock_mhz=gpu.spec_clock_mhz,
        max_clock_mhz=seen.clock_mhz or gpu.max_clock_mhz,
        fma16_per_sm_clk=gpu.fma16_per_sm_clk if not gpu.capped else None,
        candidates=choice.candidates,
        contradiction=choice.contradiction,
        reason="; ".join(notes) or None,
        mem_gb=gpu.memory_gb if not seen.mig else (seen.memory_bytes or 0) / 1e9 or None,
        mig=seen.mig,
        nvlink_gbps=gpu.nvlink_gbps,
    )


def _derived(seen: _Seen, choice: _Choice) -> DeviceCeilings:
    """A device in no row: bandwidth as reported, peak from SM count, clock and the chip's rate."""
    chip = gpu_table().chip(seen.chip, seen.compute_capability)
    notes = [choice.reason] if choice.reason else []
    bandwidth, bandwidth_source = seen.bandwidth_gbps, "capture" if seen.bandwidth_gbps else None
    if bandwidth and chip is not None and chip.bandwidth_reported_is_wrong:
        notes.append(_wrong_bandwidth(bandwidth))
        bandwidth, bandwidth_source = None, None
    why_not = _why_no_peak(seen, chip)
    peaks: dict[str, float] = {}
    source, fma16 = None, None
    if why_not is None and chip is not None and seen.sm_count and seen.clock_mhz:
        geforce = "geforce" in (seen.name or "").lower()
        fma16, ratios = chip.rates(geforce)
        base = seen.sm_count * fma16 * 2 * seen.clock_mhz * 1e6 / 1e12
        peaks = {dtype: base * ratio for dtype, ratio in ratios.items()}
        peaks["fp32"] = seen.sm_count * chip.fma32_per_sm_clk * 2 * seen.clock_mhz * 1e6 / 1e12
        source = (
            f"derived: {seen.sm_count} SMs x {fma16} multiply-adds x 2 x {seen.clock_mhz:.0f} MHz; {DERIVED_NOTE}"
            + ("; GeForce: half rate with fp32 accumulation" if geforce and fma16 != chip.fma16_per_sm_clk else "")
        )
    elif seen.name or seen.sm_count:
        notes.append(f"no peak: {why_not}")
    return DeviceCeilings(
        device_index=seen.index,
        key=None,
        gpu_name=seen.name,
        gpu_source=choice.source,
        sm_count=seen.sm_count,
        memory_bandwidth_gbps=bandwidth,
        bandwidth_source=bandwidth_source,
        peak_tflops=peaks,
        ceiling_source=source,
        derived=bool(peaks),
        l2_bytes=seen.l2_bytes,
        spec_clock_mhz=seen.clock_mhz if peaks else None,
        max_clock_mhz=seen.clock_mhz,
        fma16_per_sm_clk=fma16,
        candidates=choice.candidates,
        contradiction=choice.contradiction,
        reason="; ".join(notes) or None,
        mem_gb=seen.memory_bytes / 1e9 if seen.memory_bytes else None,
        mig=seen.mig,
    )


def _why_no_peak(seen: _Seen, chip: Chip | None) -> str | None:
    if seen.name is not None:
        named = gpu_table().why_not_derived(seen.name)
        if named is not None:
            return named
        if any(gpu.capped for gpu in gpu_table().named(without_mig(seen.name))):
            return "an export variant: its tensor rate is capped, so SM count times clock says nothing"
    if chip is None:
        return "the chip is not known, so its rate per SM is not either"
    if not seen.sm_count or not seen.clock_mhz:
        return "the capture gives no SM count or no clock to derive it from"
    return None


def _wrong_bandwidth(reported_gbps: float) -> str:
    return f"the capture reports {reported_gbps:.0f} GB/s, which is wrong on this integrated chip and not used"


def _with_measured(found: DeviceCeilings, measured: MeasuredCeilings) -> DeviceCeilings:
    """Measured ceilings over the published ones; what was not measured stays."""
    table = gpu_table()
    names = {plain_name(name) for name in (found.gpu_name and without_mig(found.gpu_name), found.key) if name}
    for name, row in measured.rows.items():
        typed = {gpu.key for gpu in table.named(name)} if name != "*" else set()
        if name != "*" and plain_name(name) not in names and found.key not in typed:
            continue
        source = f"measured: {row.source or measured.path.name}"
        bandwidth = row.memory_bandwidth_gbps
        return replace(
            found,
            peak_tflops={**found.peak_tflops, **row.peak_tflops},
            ceiling_source=f"{source} ({', '.join(sorted(row.peak_tflops))}); else {found.ceiling_source}"
            if row.peak_tflops
            else found.ceiling_source,
            memory_bandwidth_gbps=bandwidth or found.memory_bandwidth_gbps,
            bandwidth_source=source if bandwidth else found.bandwidth_source,
        )
    return found
