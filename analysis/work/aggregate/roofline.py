"""JSON ``roofline``: the ceilings of the devices, and the op classes of each phase under them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import polars as pl

from ...gpus.device_ceilings import DeviceCeilings
from ...records.work import Roofline, RooflineCeiling, RooflineCentroid, RooflinePoint

CONVENTIONS = (
    "multiply-add = 2 FLOP; attention exact causal; bytes = least traffic, activations counted",
    "intensity counts activations; by the weights-only convention a GEMM's is its tokens at 16 bit a weight",
    "MFU counts matrix work (GEMMs, attention) against the dense peak of the kernel's own type",
)
MIN_POINTS_SHARE = 0.5  # of a phase's time, collectives left out, that its points must hold for a centroid
_POINT_COLUMNS = (
    "op_class",
    "phase",
    "flop",
    "bytes",
    "arithmetic_intensity",
    "mfu_pct",
    "mbu_pct",
    "total_ms",
    "bound",
)


def roofline(op_classes: pl.DataFrame, ceilings: Sequence[DeviceCeilings], clock_mhz: float | None) -> Roofline:
    """Ceilings per data type, a point per (op class, phase) with known work, and a centroid per phase.

    ``clock_mhz``: the measured SM clock; the peak at that clock then stands beside the spec peak.
    """
    points = tuple(_points(op_classes))
    return Roofline(
        ceilings=tuple(_ceilings(ceilings, clock_mhz)),
        points=points,
        centroids=tuple(_centroids(points, op_classes)),
        conventions=CONVENTIONS,
    )


def _ceilings(ceilings: Sequence[DeviceCeilings], clock_mhz: float | None) -> Iterator[RooflineCeiling]:
    for ceiling in ceilings:
        for dtype, peak in sorted(ceiling.peak_tflops.items(), key=lambda item: -item[1]):
            yield RooflineCeiling(
                device_index=ceiling.device_index,
                gpu_name=ceiling.gpu_name,
                dtype=dtype,
                peak_tflops=peak,
                bandwidth_gbps=ceiling.memory_bandwidth_gbps,
                ridge=ceiling.ridge(dtype),
                source=ceiling.ceiling_source,
                peak_tflops_at_clock=ceiling.peak_at_clock(dtype, 1e6 * clock_mhz) if clock_mhz else None,
            )


def _points(op_classes: pl.DataFrame) -> Iterator[RooflinePoint]:
    for row in op_classes.select(_POINT_COLUMNS).iter_rows(named=True):
        if row["arithmetic_intensity"] is None or not row["total_ms"]:
            continue
        gbps = row["bytes"] / row["total_ms"] / 1e6
        # By way of the intensity: where FLOPs are known of some kernels only, the point keeps its place to the roof.
        yield RooflinePoint(**row, tflops=row["arithmetic_intensity"] * gbps / 1e3, gbps=gbps)


def _centroids(points: Sequence[RooflinePoint], op_classes: pl.DataFrame) -> Iterator[RooflineCentroid]:
    for phase in ("prefill", "decode", "mixed"):
        own = [point for point in points if point.phase == phase]
        of_phase = op_classes.filter((pl.col("phase") == phase) & (pl.col("op_class") != "collective"))
        ms = sum(point.total_ms for point in own)
        if not own or ms < MIN_POINTS_SHARE * float(of_phase["total_ms"].sum()):
            continue
        flop = sum(point.arithmetic_intensity * point.bytes for point in own)
        size = sum(point.bytes for point in own)
        yield RooflineCentroid(
            phase=phase, arithmetic_intensity=flop / size if size else None, tflops=flop / ms / 1e9, total_ms=ms
        )
