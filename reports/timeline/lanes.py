"""The lanes of the timeline: kernels and copies per device and stream, ranges per host thread, sampled metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from ...analysis.numeric.covered_time import Times
from ...analysis.records.analysis import Analysis
from ...analysis.records.tables import PHASES
from ..short_names import shorten
from .byte_planes import Pack
from .covered_levels import levels_by_code
from .kernel_selection import Detail

MAX_LANES = 48
MAX_ITEMS = 30_000  # copies and ranges drawn one by one
MAX_THREADS = 4
MAX_DEPTH = 4
MAX_METRIC_DEVICES = 4
METRIC_BINS = 4_096
BINS = 1 << 18  # over all lanes
PHASE_CODES = {name: i for i, name in enumerate(PHASES.categories)}
METRICS = {
    "sm_active_pct": "SM active",
    "tensor_active_pct": "tensor active",
    "dram_read_pct": "DRAM read",
    "dram_write_pct": "DRAM write",
}
COUNTERS = {
    "utilization_pct": "utilisation",
    "memory_utilization_pct": "memory utilisation",
    "sm_active_pct": "SM active",
    "tensor_active_pct": "tensor active",
    "dram_active_pct": "DRAM active",
}


def bins_per_lane(lanes: int) -> int:
    """Slices of time for each of ``lanes`` lanes."""
    return int(min(65_536, max(2_048, BINS // max(1, lanes))))


def edges_of(window: tuple[int, int], count: int) -> npt.NDArray[np.float64]:
    """Edges of ``count`` equal slices of the window."""
    return np.linspace(window[0], window[1], count + 1)


def kernel_lanes(
    kernels: pl.DataFrame, analysis: Analysis, window: tuple[int, int], detail: Detail, pack: Pack
) -> tuple[list[dict[str, Any]], dict[str, Any], int]:
    """(lanes, dictionary of what kernels are, streams left out), heaviest streams first within a device.

    ``kernels``: those in the window, sorted by start.
    """
    keys = ["device_index", "process", "context", "stream"]
    # one number per stream: comparing it for each lane is several times faster than joining millions of rows
    stream_key = kernels.select(keys).hash_rows(seed=1)
    first = stream_key.arg_unique()
    sizes = kernels.select(keys)[first].with_columns(stream_key[first].alias("key"))
    counts = stream_key.value_counts().rename({stream_key.name: "key", "count": "n"})
    sizes = sizes.join(counts, on="key").sort(["n", *keys], descending=[True, *[False] * 4])
    kept = sizes.head(MAX_LANES).sort(["device_index", "n", *keys[1:]], descending=[False, True, False, False, False])
    lane_keys = stream_key.to_numpy()
    starts, ends = kernels["start_ns"].to_numpy(), kernels["end_ns"].to_numpy()
    codes = kernels["phase"].to_physical().fill_null(PHASE_CODES["unknown"]).to_numpy().astype(np.uint8)
    drawn = in_windows(starts, detail)
    what, dictionary = _dictionary(kernels, drawn, analysis, pack)
    count = bins_per_lane(kept.height)
    edges = edges_of(window, count)
    several = {d: g.height > 1 for (d,), g in kept.group_by("device_index")}
    made = []
    for row in kept.to_dicts():
        mine = lane_keys == np.uint64(row["key"])
        begin, end = starts[mine], ends[mine]
        shown = drawn[mine]
        picked = what[np.flatnonzero(mine[drawn])] if not detail.whole else what[mine]
        made.append(
            {
                "kind": "kernels",
                "label": _device_label(analysis, row["device_index"]) + (f" stream {row['stream']}" if several[row["device_index"]] else ""),
                "device": row["device_index"],
                "stream": row["stream"],
                "count": int(row["n"]),
                "items": {**pack.intervals(begin[shown] - window[0], end[shown] - window[0]), "what": pack.whole(picked)},
                "bins": {"n": count, "layers": {code: pack.whole(level) for code, level in levels_by_code(begin, end, codes[mine], edges, len(PHASE_CODES)).items()}},
            }
        )  # fmt: skip
    return made, dictionary, sizes.height - kept.height


def in_windows(starts: Times, detail: Detail) -> npt.NDArray[np.bool_]:
    """Which of the sorted ``starts`` lie in the stretches of ``detail``."""
    if detail.whole:
        return np.ones(len(starts), bool)
    mask = np.zeros(len(starts), bool)
    for start, end in detail.windows:
        first, last = np.searchsorted(starts, [start, end])
        mask[first:last] = True
    return mask


def _device_label(analysis: Analysis, device_index: int) -> str:
    devices = analysis.trace.devices
    if device_index >= devices.height:
        return f"GPU {device_index}"
    return f"GPU {devices['device'][device_index]}"


def _dictionary(
    kernels: pl.DataFrame, drawn: npt.NDArray[np.bool_], analysis: Analysis, pack: Pack
) -> tuple[npt.NDArray[np.int64], dict[str, Any]]:
    """(index per drawn kernel, the distinct kinds of kernel): name, op, phase, evidence, grid and work."""
    wanted = [
        "name_id",
        "op_class",
        "phase",
        "evidence",
        "grid_x",
        "grid_y",
        "grid_z",
        "block_x",
        "flop",
        "bytes",
        "work_source",
    ]
    rows = kernels.select(*wanted, "mfu_pct", "mbu_pct", (pl.col("end_ns") - pl.col("start_ns")).alias("ns"))
    if not drawn.all():
        rows = rows.filter(pl.Series(drawn))
    hashes = rows.select(wanted).hash_rows(seed=1).to_numpy()
    _, first, what = np.unique(hashes, return_index=True, return_inverse=True)
    kinds = rows[first]
    used, name = np.unique(kinds["name_id"].to_numpy(), return_inverse=True)
    names = analysis.trace.names
    picked = names[used] if names.height else names
    ns = kinds["ns"].cast(pl.Float64)
    dictionary = {
        "names": [[shorten(s, 90), shorten(f, 300)] for s, f in zip(picked["short_name"], picked["name"], strict=True)],
        "name": pack.whole(name),
        "op": pack.whole(_codes(kinds["op_class"])),
        "phase": pack.whole(_codes(kinds["phase"])),
        "evidence": pack.whole(_codes(kinds["evidence"])),
        "source": pack.whole(_codes(kinds["work_source"])),
        "grid": [pack.whole(np.maximum(kinds[c].fill_null(0).to_numpy(), 0)) for c in ("grid_x", "grid_y", "grid_z")],
        "block": pack.whole(np.maximum(kinds["block_x"].fill_null(0).to_numpy(), 0)),
        "flop": pack.floats(_known(kinds["flop"])),
        "bytes": pack.floats(_known(kinds["bytes"])),
        # a ratio times its time is the same for all kernels of a kind: each one's ratio is that over its own time
        "mfu_ns": pack.floats(_known(kinds["mfu_pct"].cast(pl.Float64) * ns)),
        "mbu_ns": pack.floats(_known(kinds["mbu_pct"].cast(pl.Float64) * ns)),
    }  # fmt: skip
    return what, dictionary


def _codes(series: pl.Series) -> npt.NDArray[np.uint8]:
    """The physical codes of an Enum column; null as the first."""
    return series.to_physical().fill_null(0).to_numpy().astype(np.uint8)


def _known(series: pl.Series) -> npt.NDArray[np.float64]:
    return series.cast(pl.Float64).fill_null(float("nan")).to_numpy()


def copy_lanes(analysis: Analysis, window: tuple[int, int], pack: Pack) -> list[dict[str, Any]]:
    """Copies and memsets per device, the longest one by one."""
    copies = analysis.trace.copies.filter((pl.col("start_ns") >= window[0]) & (pl.col("end_ns") <= window[1]))
    made = []
    for (device,), mine in copies.sort("device_index", "start_ns").group_by("device_index", maintain_order=True):
        starts, ends = mine["start_ns"].to_numpy(), mine["end_ns"].to_numpy()
        edges = edges_of(window, 8_192)
        shown = _longest(mine)
        code = np.zeros(len(starts), np.uint8)
        made.append(
            {
                "kind": "copies",
                "label": f"{_device_label(analysis, int(device))} copies",
                "count": mine.height,
                "items": {**pack.intervals(shown["start_ns"].to_numpy() - window[0], shown["end_ns"].to_numpy() - window[0]), "what": pack.whole(shown["kind"].to_physical().to_numpy()), "bytes": pack.whole(np.maximum(shown["bytes"].fill_null(0).to_numpy(), 0))},
                "bins": {"n": 8_192, "layers": {PHASE_CODES["other"]: pack.whole(levels_by_code(starts, ends, code, edges, 1)[0])}},
            }
        )  # fmt: skip
    return made[:MAX_LANES]


def _longest(frame: pl.DataFrame, most: int = MAX_ITEMS) -> pl.DataFrame:
    """The longest intervals, in time order."""
    if frame.height <= most:
        return frame
    return frame.sort(pl.col("end_ns") - pl.col("start_ns"), descending=True).head(most).sort("start_ns", "end_ns")


def range_lanes(analysis: Analysis, window: tuple[int, int], pack: Pack) -> tuple[list[dict[str, Any]], int]:
    """(lanes, ranges left out): NVTX ranges of the threads where most time is in ranges, nested four deep."""
    ranges = analysis.trace.ranges.filter((pl.col("end_ns") > window[0]) & (pl.col("start_ns") < window[1]))
    keys = ["process", "thread", "device_index", "stream"]
    length = pl.col("end_ns") - pl.col("start_ns")
    busiest = ranges.group_by(keys).agg(length.sum().alias("ns")).sort(["ns", *keys], descending=[True, *[False] * 4])
    made, drawn = [], 0
    for number, row in enumerate(busiest.head(MAX_THREADS).to_dicts(), 1):
        mine = ranges.filter(*(pl.col(k) == row[k] for k in keys)).sort(
            ["start_ns", "end_ns"], descending=[False, True]
        )
        mine = mine.with_columns(pl.Series("depth", depths(mine["start_ns"].to_numpy(), mine["end_ns"].to_numpy())))
        shown = _longest(mine.filter(pl.col("depth") < MAX_DEPTH), MAX_ITEMS // MAX_THREADS)
        texts, index = np.unique(shown["text_id"].to_numpy(), return_inverse=True)
        words = analysis.trace.texts["text"].gather(texts).to_list() if len(texts) else []
        on_gpu = row["thread"] < 0
        depth = shown["depth"].to_numpy()
        where = (
            f"{_device_label(analysis, row['device_index'])} stream {row['stream']}"
            if on_gpu
            else f"host thread {number}"
        )
        starts = np.maximum(shown["start_ns"].to_numpy() - window[0], 0)
        made.append(
            {
                "kind": "ranges",
                "label": f"NVTX, {where}",
                "count": mine.height,
                "depth": int(depth.max()) + 1 if len(depth) else 1,
                "items": {**pack.intervals(starts, np.maximum(shown["end_ns"].to_numpy() - window[0], starts)), "what": pack.whole(index), "depth": pack.whole(depth)},
                "texts": [shorten(t or "", 160) for t in words],
            }
        )  # fmt: skip
        drawn += shown.height
    return made, ranges.height - drawn


def depths(starts: Times, ends: Times) -> Times:
    """Nesting depth of intervals sorted by (start, end falling): how many began before and are still open."""
    ended = np.searchsorted(np.sort(ends), starts, side="right")
    depth: Times = np.maximum(np.arange(len(starts)) - ended, 0)
    return depth


def metric_lanes(analysis: Analysis, window: tuple[int, int], pack: Pack) -> list[dict[str, Any]]:
    """Sampled GPU metrics, then counters from beside the profiler, per device, averaged over slices of time.

    0 = not sampled, else 1 + percent × 2.
    """
    trace = analysis.trace
    made = _sampled_lanes(analysis, trace.gpu_metrics, METRICS, window, pack, "")
    for (source,), own in trace.counters.group_by("source", maintain_order=True):
        made += _sampled_lanes(analysis, own, COUNTERS, window, pack, f" ({source})")
    return made


def _sampled_lanes(
    analysis: Analysis, frame: pl.DataFrame, names: Mapping[str, str], window: tuple[int, int], pack: Pack, tail: str
) -> list[dict[str, Any]]:
    samples = frame.filter(pl.col("time_ns").is_between(*window)).sort("device_index", "time_ns")
    made: list[dict[str, Any]] = []
    for (device,), mine in samples.group_by("device_index", maintain_order=True):
        if len({lane["device"] for lane in made}) >= MAX_METRIC_DEVICES:
            break
        count = int(min(METRIC_BINS, max(1, mine.height)))
        slot = (
            ((mine["time_ns"].to_numpy() - window[0]) * (count / max(1, window[1] - window[0])))
            .astype(np.int64)
            .clip(0, count - 1)
        )
        for key, name in names.items():
            values = mine[key].cast(pl.Float64).fill_null(float("nan")).to_numpy()
            known = np.isfinite(values)
            if not known.any():
                continue
            n = np.bincount(slot[known], minlength=count)
            mean = np.bincount(slot[known], values[known], minlength=count) / np.maximum(n, 1)
            level = np.where(n > 0, 1 + np.rint(mean.clip(0, 100) * 2), 0)
            label = f"{_device_label(analysis, int(device))} {name}{tail}"
            made.append({"kind": "metric", "label": label, "device": int(device), "values": pack.whole(level)})
    return made
