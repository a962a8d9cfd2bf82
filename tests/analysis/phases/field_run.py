"""Serving runs written kernel by kernel, with the truth beside each kernel: engines and settings not simulated elsewhere.

Nothing here knows the simulator of ``fixtures/simulator/serving.py``: names, grids, launch order and timing are stated anew, so
that a habit of the one is not taken for a law. A run is a host clock and one GPU clock per (process, device, stream).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import polars as pl

from trace_analyze.analysis.kernels.classify import classify_names
from trace_analyze.analysis.phases import PhaseResult, find_phases
from trace_analyze.fixtures.writers.nsys_writer import Capture
from trace_analyze.ingest import open_trace

Grid: TypeAlias = int | tuple[int, int, int]  # blocks along x, or along all three
COUNTS = ("prefill_tokens", "decode_tokens", "prefill_requests", "decode_requests")


@dataclass
class Step:
    """What a step truly is; ``None`` counts are not compared."""

    phase: str
    prefill_tokens: int | None = 0
    decode_tokens: int | None = 0
    prefill_requests: int | None = 0
    decode_requests: int | None = 0


@dataclass
class Run:
    """One process on one device; several runs may share a ``capture``."""

    capture: Capture = field(default_factory=lambda: Capture("2025.6"))
    device: int = 0
    pid: int = 4242
    stream: int = 7
    launch_ns: int = 3_500
    gpu: str | None = "h100"
    launches: bool = True  # whether launch calls are recorded
    correlations: bool = True
    cpu: int = 1_000_000
    busy: dict[int, int] = field(default_factory=dict)  # stream -> end of its last kernel
    steps: list[Step | None] = field(default_factory=list)
    truth: list[tuple[int, int, int, int, int, str]] = field(default_factory=list)
    replay: int | None = None  # correlation id of the replay being written
    node: int = 0
    graph_id: int | None = None
    opaque: bool = False
    window: tuple[int, int] = (0, 1 << 62)  # kernels that start outside are not recorded
    keep: Callable[[int], bool] | None = None  # callable(kernel number) -> recorded?
    number: int = 0
    drop_launch: Callable[[int], bool] | None = None  # callable(kernel number) -> launch call lost?

    def __post_init__(self) -> None:
        if self.gpu:
            self.capture.gpu(self.gpu)

    def begin(self, phase: str, pt: int = 0, dt: int = 0, pr: int = 0, dr: int = 0) -> None:
        """Kernels from here on belong to a new step."""
        self.steps.append(Step(phase, pt, dt, pr, dr))

    def outside(self) -> None:
        """Kernels from here on belong to no step."""
        self.steps.append(None)

    def k(
        self,
        name: str,
        grid: Grid = 1,
        us: float = 4.0,
        *,
        stream: int | None = None,
        own: str | None = None,
        gap: float = 0.8,
        step: int | None = None,
        block: int = 128,
    ) -> None:
        """One kernel. ``own``: its own phase where it is not its step's; ``step``: number of its step."""
        blocks = (grid, 1, 1) if isinstance(grid, int) else grid
        stream = self.stream if stream is None else stream
        number, self.number = self.number, self.number + 1
        if self.replay is None:
            self.cpu += self.launch_ns
            at = self.cpu
        else:
            at = None
        start = max(self.busy.get(stream, 0) + round(gap * 1000), self.cpu + 2_500)
        end = start + round(us * 1000)
        self.busy[stream] = end
        if not self.window[0] <= start < self.window[1] or (self.keep and not self.keep(number)):
            return
        lost = not self.launches or (self.drop_launch is not None and self.drop_launch(number))
        step = len(self.steps) - 1 if step is None else step
        more: dict[str, Any] = (
            {"correlation": self.replay, "graph": self.graph_id, "graph_node": self.node} if at is None else {}
        )
        if at is not None and not self.correlations:
            more["correlation"] = 0
        if at is None:
            self.node += 1
        self.capture.kernel(
            name, start, end, device=self.device, stream=stream, pid=self.pid, grid=blocks, block=(block, 1, 1),
            launched_at=None if at is None or lost or at < self.window[0] or not self.correlations else at,
            launch_ns=2_000, **more,
        )  # fmt: skip
        true = self.steps[step] if self.steps else None
        self.truth.append(
            (self.pid, self.device, stream, start, step if true else -1, own or (true.phase if true else "other"))
        )

    @contextmanager
    def graph(self, number: int, *, node: int | None = None) -> Iterator[None]:
        """Kernels inside come from one replay of graph ``number``."""
        self.cpu += 6_000
        self.replay = self.capture.next_correlation()
        self.graph_id, self.node = number, (number * 10_000 if node is None else node)
        called = self.cpu
        yield
        if self.correlations and self.window[0] <= called < self.window[1]:
            self.capture.call("cudaGraphLaunch_v10000", called, called + 5_000, pid=self.pid, correlation=self.replay)
        self.replay = self.graph_id = None
        self.cpu += 2_000

    @contextmanager
    def range(self, text: str, **options: Any) -> Iterator[None]:
        """An NVTX range around the host's work."""
        self.cpu += 1_000
        start = self.cpu
        yield
        self.cpu += 1_000
        if start >= self.window[0] and self.cpu < self.window[1]:
            self.capture.nvtx(text, start, self.cpu, pid=self.pid, **options)

    def sync(self, us: float = 0.0) -> None:
        """The host waits for the GPU, then does ``us`` of its own work."""
        self.cpu = max(self.cpu, *self.busy.values(), 0) + round(us * 1000)

    def wait_stream(self, other: int, waiting: int) -> None:
        """``waiting`` runs nothing before ``other`` has finished what it has."""
        self.busy[waiting] = max(self.busy.get(waiting, 0), self.busy.get(other, 0))

    def copy(self, kind: str, size: int, us: float = 1.5) -> None:
        self.cpu += 3_000
        start = max(self.busy.get(self.stream, 0) + 500, self.cpu + 1_000)
        end = start + round(us * 1000)
        self.busy[self.stream] = end
        if self.window[0] <= start < self.window[1]:
            self.capture.copy(
                kind, start, end, size, device=self.device, pid=self.pid, stream=self.stream, called_at=self.cpu
            )


@dataclass
class Seen:
    """What the tool made of a capture beside the truth."""

    result: PhaseResult
    kernels: pl.DataFrame
    true_steps: dict[tuple[int | None, int, int], Step | None]

    @property
    def wrong_pct(self) -> float:
        """Kernel time whose phase is not the true one, percent; a phase left unknown counts as ``unknown_pct``."""
        wrong = self.kernels.filter((pl.col("phase") != pl.col("true_phase")) & (pl.col("phase") != "unknown"))
        return 100 * int(wrong["ns"].sum()) / int(self.kernels["ns"].sum())

    @property
    def unknown_pct(self) -> float:
        lost = self.kernels.filter((pl.col("phase") == "unknown") & (pl.col("true_phase") != "unknown"))
        return 100 * int(lost["ns"].sum()) / int(self.kernels["ns"].sum())

    @property
    def wrong(self) -> list[tuple[object, ...]]:
        columns = ("name", "phase", "true_phase", "step", "true_step")
        rows = self.kernels.filter(pl.col("phase") != pl.col("true_phase"))
        return rows.group_by(*columns).agg(pl.len(), pl.col("ns").sum()).sort("ns", descending=True).rows()[:12]

    @property
    def mixed_up(self) -> list[tuple[object, ...]]:
        """Found steps that hold working kernels of several true steps, and true steps spread over several found."""
        works = self.kernels.filter(pl.col("op_class").cast(pl.String).is_in(["attention", "gemm", "moe_gemm"]))
        works = works.filter((pl.col("step") >= 0) | (pl.col("true_step") >= 0))
        whole = ["process", "device_index"]
        several = works.group_by("step").agg(
            pl.struct(*whole, "true_step").n_unique().alias("n"), pl.col("true_step").unique().sort()
        )
        spread = works.group_by(*whole, "true_step").agg(
            pl.col("step").n_unique().alias("n"), pl.col("step").unique().sort()
        )
        several = several.filter((pl.col("step") >= 0) & (pl.col("n") > 1))
        spread = spread.filter((pl.col("true_step") >= 0) & (pl.col("n") > 1))
        return [("found holds", *row) for row in several.rows()[:6]] + [("true in", *row) for row in spread.rows()[:6]]

    def counts(self, *names: str) -> tuple[list[tuple[object, ...]], dict[str, int], int]:
        """(step, name, found, true) where a count that the tool gives is not the true one, and null shares."""
        first = (
            self.kernels.filter(pl.col("step") >= 0)
            .group_by("step")
            .agg(pl.struct("process", "device", "true_step").mode().first().alias("true"))
        )
        rows = self.result.steps.join(first, on="step")
        wrong: list[tuple[object, ...]] = []
        unknown, total = dict.fromkeys(names or COUNTS, 0), 0
        for row in rows.sort("step").iter_rows(named=True):
            key = row["true"]
            true = self.true_steps.get((key["process"], key["device"], key["true_step"]))
            if true is None or row["partial"] or row["excluded"]:
                continue
            total += 1
            for name in names or COUNTS:
                if row[name] is None:
                    unknown[name] += 1
                elif getattr(true, name) is not None and row[name] != getattr(true, name):
                    wrong.append((row["step"], row["phase"], name, row[name], getattr(true, name)))
        return wrong, {name: share for name, share in unknown.items() if share}, total


def see(tmp_path: Path, *runs: Run, capture: Capture | None = None) -> Seen:
    """Write the capture, read it back and find its phases."""
    written = capture or runs[0].capture
    path = written.write(tmp_path / "run.sqlite")
    trace = open_trace(path)
    result = find_phases(trace, classify_names(trace.names))
    truth = pl.DataFrame(
        [row for run in runs for row in run.truth],
        schema=["pid", "device", "stream", "start_ns", "true_step", "true_phase"], orient="row",
    )  # fmt: skip
    kernels = (
        result.kernels.join(trace.devices.select("device_index", "device"), on="device_index")
        .join(trace.names.select("name_id", "name"), on="name_id")
        .with_columns(
            (pl.col("process") & 0xFFFFFF).alias("pid"), pl.col("phase", "step_phase", "evidence").cast(pl.String),
            (pl.col("end_ns") - pl.col("start_ns")).alias("ns"), pl.col("name").str.slice(0, 60),
        )
        .join(truth.with_columns(pl.col("device", "stream").cast(pl.Int32)), on=["pid", "device", "stream", "start_ns"], how="left")
    )  # fmt: skip
    assert kernels["true_phase"].null_count() == 0
    processes = dict(kernels.select("pid", "process").unique().iter_rows())
    steps = {
        (processes.get(run.pid), run.device, number): step for run in runs for number, step in enumerate(run.steps)
    }
    return Seen(result, kernels, steps)
