"""Figures for papers and slides, as SVG or PNG: the roofline, MBU and MFU over time, intensity against batch.

Readable in print and in greyscale: phases differ in marker shape as well as in colour.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from ..analysis.gpus.run_ceilings import ceilings_in_use, main_dtype
from ..analysis.numeric.number_text import is_known, number
from ..analysis.records.analysis import Analysis
from ..analysis.records.usable_steps import USABLE_STEP
from .key_text import label
from .terminal import PHASE_STYLES
from .whole_files import file_name, produce_whole

MARKERS = {"decode": "o", "prefill": "s", "mixed": "D", "other": "x", "unknown": "+"}
_GREY = "#8a8a8a"
_SIZE = (7.2, 4.6)
_DPI = 160


def colour(phase: str) -> str:
    """The colour of a phase, the same in every report."""
    style = PHASE_STYLES.get(phase, "")
    return style if style.startswith("#") else _GREY


def write_plots(analysis: Analysis, folder: Path, stem: str, output_format: str) -> list[Path]:
    """Write every figure that the result allows as ``folder/<stem>-<figure>.<format>``; returns the files.

    A figure whose numbers are all unknown is written with the reason in its place, so that a missing file never hides
    one.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    # names stay text in SVG (searchable, small), and a run's figures do not change from one writing to the next
    style = {"svg.fonttype": "none", "svg.hashsalt": "trace-analyze", "font.size": 9, "axes.grid": True,
             "grid.linewidth": 0.4, "grid.alpha": 0.6, "axes.spines.top": False, "axes.spines.right": False}  # fmt: skip
    figures: dict[str, Callable[[Analysis, Any], None]] = {
        "roofline": draw_roofline,
        "utilisation": draw_utilisation,
        "intensity": draw_intensity,
    }
    written = []
    for name, draw in figures.items():
        with plt.rc_context(style):
            figure, axes = plt.subplots(figsize=_SIZE, layout="constrained")
            try:
                draw(analysis, axes)
                path = folder / file_name(stem, f"-{name}.{output_format}")
                made_by = "trace-analyze"
                metadata = {"Date": None, "Creator": made_by} if output_format == "svg" else {"Software": made_by}
                save = partial(figure.savefig, format=output_format, dpi=_DPI, metadata=metadata)
                produce_whole(path, save)
            finally:
                plt.close(figure)
        written.append(path)
    return written


def _say_nothing(axes: Any, title: str, reason: str) -> None:
    axes.set_title(title, loc="left")
    axes.set_axis_off()
    axes.text(0.5, 0.5, f"not known: {reason}", ha="center", va="center", wrap=True, transform=axes.transAxes)


def _points(analysis: Analysis) -> list[Mapping[str, Any]]:
    points = analysis.roofline.get("points") or ()
    return [p for p in points if is_known(p.get("arithmetic_intensity")) and is_known(p.get("tflops"))
            and p["arithmetic_intensity"] > 0 and p["tflops"] > 0]  # fmt: skip


def _area(ms: float, longest: float) -> float:
    """The area of a point in square points: its share of the longest time, and enough to be seen."""
    return 18 + 380 * ms / longest


def draw_roofline(analysis: Analysis, axes: Any) -> None:
    """Log-log roofline: a ceiling per data type, points by op class sized by their time, the phases' centroids."""
    title = "Roofline by op class and phase (area = GPU time)"
    ceilings, points = ceilings_in_use(analysis), _points(analysis)
    if not ceilings or not points:
        reason = analysis.roofline.get("reason") or ("no ceiling is known" if not ceilings else "no work is known")
        _say_nothing(axes, title, str(reason))
        return
    x = np.array([p["arithmetic_intensity"] for p in points])
    low, high = min(x.min() / 3, 0.5), max(x.max() * 3, 3 * max(c.ridge for c in ceilings))
    at = np.geomspace(low, high, 400)
    for ceiling in ceilings:
        bandwidth, peak, ridge = ceiling.bandwidth_gbps / 1e3, ceiling.peak_tflops, ceiling.ridge
        axes.plot(at, np.minimum(at * bandwidth, peak), color="#444444", linewidth=1.0)
        names = "/".join(ceiling.dtypes)
        # left of the ridge, above the roof: there no point can lie and no other roof's label is
        axes.annotate(
            f"{names} {number(peak)} TFLOP/s, ridge {number(ridge)}", (ridge, peak), fontsize=7.5, ha="right",
            va="bottom", xytext=(-4, 1), textcoords="offset points",
        )  # fmt: skip
        axes.plot([ridge], [peak], marker="|", color="#444444", markersize=8)
    slope = ceilings[0].bandwidth_gbps / 1e3
    axes.annotate(
        f"{number(ceilings[0].bandwidth_gbps)} GB/s", (low * 1.15, low * 1.15 * slope), fontsize=7.5, va="bottom",
        xytext=(-4, 14), textcoords="offset points",
    )  # fmt: skip
    longest = max(p["total_ms"] for p in points)
    for phase, marker in MARKERS.items():
        own = [p for p in points if p["phase"] == phase]
        if own:
            axes.scatter(
                [p["arithmetic_intensity"] for p in own], [p["tflops"] for p in own],
                s=[_area(p["total_ms"], longest) for p in own], marker=marker,
                c=colour(phase), alpha=0.75, linewidths=0.5, edgecolors="white" if marker in "osD" else None,
                label=phase,
            )  # fmt: skip
    for centroid in analysis.roofline.get("centroids") or ():
        if is_known(centroid.get("arithmetic_intensity")) and is_known(centroid.get("tflops")):
            axes.axvline(
                centroid["arithmetic_intensity"], color=colour(centroid["phase"]), linewidth=0.8, linestyle=":"
            )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("arithmetic intensity, FLOP/byte (activations counted)")
    axes.set_ylabel("TFLOP/s")
    axes.set_title(title, loc="left")
    axes.set_xlim(low, high)
    axes.set_ylim(top=2.2 * max(c.peak_tflops for c in ceilings))
    _legend(axes, loc="lower right")
    _label(axes, points)


def _legend(axes: Any, **where: Any) -> None:
    """The phases with signs of one size: the scatter's own sizes mean time."""
    legend = axes.legend(frameon=False, **where)
    for handle in legend.legend_handles:
        if hasattr(handle, "set_sizes"):
            handle.set_sizes([30.0])


def _label(axes: Any, points: Sequence[Mapping[str, Any]], most: int = 9) -> None:
    """Name the op classes that took most time, each where its text covers no other; the largest choose first."""
    taken: list[Any] = []
    canvas = axes.figure.canvas.get_renderer()
    axes.figure.draw_without_rendering()  # the layout is settled only when drawn
    longest = max(p["total_ms"] for p in points)
    for point in sorted(points, key=lambda p: -p["total_ms"]):
        radius = math.sqrt(_area(point["total_ms"], longest)) / 2
        text = axes.annotate(
            label(str(point["op_class"])), (point["arithmetic_intensity"], point["tflops"]), fontsize=7.5,
            xytext=(radius + 2, 3), textcoords="offset points",
        )  # fmt: skip
        box = text.get_window_extent(canvas)
        if len(taken) >= most or any(box.overlaps(other) for other in taken):
            text.remove()
        else:
            taken.append(box)


def _counted_steps(analysis: Analysis) -> pl.DataFrame:
    return analysis.steps.filter(USABLE_STEP)


def draw_utilisation(analysis: Analysis, axes: Any) -> None:
    """MBU of decode steps and MFU of prefill and mixed steps over time, each over the step's busy time."""
    title = "MBU of decode steps, MFU of prefill and mixed steps"
    steps = _counted_steps(analysis)
    origin = analysis.window.start_ns
    drawn = False
    for phase, column, text in (
        ("decode", "mbu_pct", "decode MBU"), ("prefill", "mfu_pct", "prefill MFU"), ("mixed", "mfu_pct", "mixed MFU"),
    ):  # fmt: skip
        own = steps.filter((pl.col("phase") == phase) & pl.col(column).is_not_null())
        if len(own):
            drawn = True
            seconds = (own["start_ns"].to_numpy() - origin) / 1e9
            axes.scatter(seconds, own[column].to_numpy(), s=9, marker=MARKERS[phase], c=colour(phase), label=text)
    if not drawn:
        _say_nothing(axes, title, analysis.summary.reasons.get("decode_mbu_kernel_pct", "") or "no step has work")
        return
    axes.set_ylim(bottom=0, top=1.3 * axes.get_ylim()[1])  # room for the legend above the points
    axes.set_xlabel("time in the window, s")
    axes.set_ylabel("% of peak")
    axes.set_title(title, loc="left")
    _legend(axes, loc="upper right", ncols=3)


def draw_intensity(analysis: Analysis, axes: Any) -> None:
    """Arithmetic intensity of whole steps against the tokens they process, with the ridge."""
    title = "Arithmetic intensity of a step against its tokens"
    steps = _counted_steps(analysis).filter((pl.col("flop") > 0) & (pl.col("bytes") > 0))
    tokens = (steps["prefill_tokens"].fill_null(0) + steps["decode_tokens"].fill_null(0)).to_numpy()
    if not len(steps) or not (tokens > 0).any():
        _say_nothing(axes, title, "no step has both its tokens and its work")
        return
    intensity = (steps["flop"] / steps["bytes"]).to_numpy()
    phases = np.array(steps["phase"].to_list())
    for phase, marker in MARKERS.items():
        own = (phases == phase) & (tokens > 0)
        if own.any():
            axes.scatter(tokens[own], intensity[own], s=12, marker=marker, c=colour(phase), label=phase)
    main = main_dtype(analysis.kernel_table)
    ceilings = ceilings_in_use(analysis)
    for ceiling in sorted(ceilings, key=lambda c: main not in c.dtypes)[:1]:  # the type most time computes in
        ridge = ceiling.ridge
        axes.axhline(ridge, color="#444444", linewidth=1.0)
        told = f"ridge {number(ridge)} FLOP/byte ({'/'.join(ceiling.dtypes)})"
        axes.annotate(told, (0, ridge), xycoords=("axes fraction", "data"), va="bottom", fontsize=7.5,
                      xytext=(4, 2), textcoords="offset points")  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("tokens in the step")
    axes.set_ylabel("FLOP/byte")
    axes.set_title(title, loc="left")
    _legend(axes, loc="lower right")
