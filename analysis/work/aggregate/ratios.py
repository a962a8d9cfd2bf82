"""MFU, MBU, bound and headroom, and when a ratio is refused.

* MFU = useful FLOP/s over the dense peak of the type the kernel computes in; MBU = bytes/s over peak bandwidth.
* Work of several types: sum of FLOP_k / peak_k over time, so an fp8 GEMM and a bf16 attention share one percentage.
* Over kernel time (the union of the kernels) and over wall time (spans with what lies between) are two numbers;
  the caller names which one it asks for by the time it passes.
* A ratio above its ceiling is explained or refused, never clamped: bytes that fit in L2 need not come from memory;
  a little above the peak is a boost clock or measuring noise; the rest means that an input is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...gpus.device_ceilings import DeviceCeilings

MAX_LATENCY_SHARE = 0.30  # below this share of the kernel's time at the roofline, neither ceiling binds
MAX_MBU_PCT = 105.0  # effective bandwidth up to this is the ceiling, within the noise of its calibration
MAX_MFU_PCT = 108.0  # where no clock is known: boost clocks exceed datasheet clocks by up to this (H100: 1980/1830)


@dataclass(frozen=True)
class Ratio:
    """A percentage, or None with the reason why it is not given."""

    pct: float | None
    reason: str | None = None
    l2_resident: bool = False


def mfu(flop: float, seconds: float, peak_tflops: float, *, boost_pct: float = MAX_MFU_PCT) -> Ratio:
    """Model FLOPs utilisation in percent; refused above ``boost_pct`` with the three inputs to check."""
    if not seconds > 0:
        return Ratio(None, "no duration")
    pct = 100.0 * flop / seconds / (peak_tflops * 1e12)
    if pct <= 100.0:
        return Ratio(pct)
    if pct <= boost_pct:
        return Ratio(pct, "above the spec peak by no more than a boost clock allows")
    return Ratio(
        None,
        f"MFU would be {pct:.0f}%: check the FLOPs ({flop:.4g}), the time ({seconds:.4g} s) "
        f"and the peak ({peak_tflops:g} TFLOP/s)",
    )


def mbu(num_bytes: float, seconds: float, bandwidth_gbps: float, *, l2_bytes: float | None = None) -> Ratio:
    """Memory bandwidth utilisation in percent. ``l2_bytes``: cache size, against bytes of one launch."""
    if not seconds > 0:
        return Ratio(None, "no duration")
    pct = 100.0 * num_bytes / seconds / (bandwidth_gbps * 1e9)
    if pct <= 100.0:
        return Ratio(pct)
    if l2_bytes is not None and num_bytes <= l2_bytes:
        return Ratio(None, f"l2_resident: {num_bytes / 1e6:.3g} MB fit in the L2 cache", l2_resident=True)
    if pct <= MAX_MBU_PCT:
        return Ratio(pct, "at the bandwidth ceiling, within its calibration")
    return Ratio(
        None,
        f"MBU would be {pct:.0f}%: check the bytes ({num_bytes:.4g}), the time ({seconds:.4g} s) "
        f"and the bandwidth ({bandwidth_gbps:g} GB/s)",
    )


@dataclass(frozen=True)
class Verdict:
    """Which ceiling binds, and the milliseconds between kernel time and roofline time."""

    bound: str  # BOUNDS
    headroom_ms: float | None
    roofline_share: float | None = None  # roofline time over kernel time


def verdict(
    seconds: float,
    compute_seconds: float | None,
    memory_seconds: float | None,
    *,
    communication: bool = False,
) -> Verdict:
    """The bound of work that takes ``seconds``, from its ideal times at the two ceilings (None = unknown work).

    Memory or compute by which ideal time is longer (that is: intensity against the ridge); ``latency`` where the
    longer one is under 30% of the time; headroom is time minus roofline time.
    """
    if communication:
        return Verdict("communication", None)
    if compute_seconds is None or memory_seconds is None or not seconds > 0:
        return Verdict("unknown", None)
    roofline = max(compute_seconds, memory_seconds)
    share = roofline / seconds
    headroom = 1e3 * (seconds - roofline)
    if share < MAX_LATENCY_SHARE:
        return Verdict("latency", headroom, share)
    return Verdict("compute" if compute_seconds > memory_seconds else "memory", headroom, share)


def boost_pct(ceilings: DeviceCeilings) -> float:
    """How far above the spec peak a device may honestly come: its maximum clock over the clock of the peak."""
    if ceilings.max_clock_mhz and ceilings.spec_clock_mhz:
        return float(100.0 * max(1.0, ceilings.max_clock_mhz / ceilings.spec_clock_mhz))
    return MAX_MFU_PCT
