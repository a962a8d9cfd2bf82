"""A miniature engine: a few lines state a run as kernels, launches and ranges, with the truth beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import polars as pl
import pytest

from trace_analyze.analysis.records.tables import OP_CLASSES
from trace_analyze.analysis.records.trace import COPIES, FRAMES, CaptureFacts, Schema, Trace, build_trace

Row: TypeAlias = Mapping[str, Any]

# name: (op class, phase hint, strength, tokens_from)
NAMES = {
    "embedding_kernel": ("embedding", None, None, "grid_x"),
    "rms_norm": ("norm", None, None, "grid_x"),
    "gemm_qkv": ("gemm", None, None, None),
    "rotary": ("rope", None, None, "grid_x"),
    "cache_write": ("kv_write", None, None, "grid_x"),
    "attention_any": ("attention", None, None, None),
    "attention_decode": ("attention", "decode", "sure", None),
    "attention_context": ("attention", "prefill", "sure", None),
    "flash_attn_ext_vec<128, 1>": ("attention", "decode", "sure", None),
    "attention_causal": ("attention", "prefill_or_mixed", "sure", None),
    "gemm_o": ("gemm", None, None, None),
    "gemm_up": ("gemm", None, None, None),
    "silu": ("activation", None, None, "grid_x"),
    "gemm_down": ("gemm", None, None, None),
    "all_reduce": ("collective", None, None, None),
    "send_recv": ("collective", None, None, None),
    "vectorized_gather_kernel": ("embedding", None, None, None),
    "gemm_lm_head": ("gemm", None, None, None),
    "sampler": ("sampling", None, None, None),
    "router_softmax": ("sampling", None, None, None),
    "rejection_greedy_sample_kernel": ("sampling", "decode", "sure", None),
    "alloc_extend_kernel": ("step_metadata", None, None, None),
    "alloc_decode_kernel": ("step_metadata", None, None, None),
    "metadata": ("step_metadata", None, None, None),
    "fill": ("copy", None, None, None),
    "repack": ("load_time", None, None, None),
    "flash_bwd_kernel": ("attention", None, None, None),
}
US = 1_000
KERNEL = {"context": 1, "block_x": 128, "block_y": 1, "block_z": 1, "registers": 32, "shared_memory_bytes": 0}


@dataclass
class MiniRun:
    """Kernels follow each other on the GPU at ``now``; their launch calls at ``cpu``, on one thread per device."""

    layers: int = 4
    now: int = 1_000_000
    cpu: int = 0
    kernel_ns: int = 5_000
    correlation: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    ranges: list[dict[str, Any]] = field(default_factory=list)
    marks: list[dict[str, Any]] = field(default_factory=list)
    copies: list[dict[str, Any]] = field(default_factory=list)
    whole_graphs: list[dict[str, Any]] = field(default_factory=list)
    texts: list[str] = field(default_factory=lambda: ["cudaLaunchKernel", "cudaGraphLaunch", ""])
    truth: list[tuple[int, int, str]] = field(default_factory=list)  # (kernel row, step, phase)
    steps: list[str] = field(default_factory=list)
    engine: str | None = None
    with_launches: bool = True

    def text(self, text: str) -> int:
        if text not in self.texts:
            self.texts.append(text)
        return self.texts.index(text)

    def kernel(  # noqa: PLR0913 (a run is stated by keywords)
        self,
        name: str,
        grid: tuple[int, int, int] = (1, 1, 1),
        *,
        device: int = 0,
        stream: int = 7,
        ns: int | None = None,
        graph: int | None = None,
        node: int = -1,
        phase: str | None = None,
        gap: int = 500,
    ) -> None:
        """One kernel; inside ``graph`` (a correlation id) it has no launch call of its own."""
        if graph is None:
            self.correlation += 1
            self.call("kernel", device, self.correlation)
        length = ns or self.kernel_ns
        self.rows.append(
            {
                "start_ns": self.now,
                "end_ns": self.now + length,
                "device_index": device,
                "process": 100 + device,
                "stream": stream,
                "correlation_id": graph or self.correlation,
                "name": name,
                "grid_x": grid[0],
                "grid_y": grid[1],
                "grid_z": grid[2],
                "graph_node_id": node,
                "graph_id": -1,
                "truth": (len(self.steps) - 1, phase),
            }
        )
        self.now += length + gap

    def call(self, kind: str, device: int, correlation: int) -> None:
        self.cpu += 2 * US
        if self.with_launches:
            self.calls.append(
                {
                    "start_ns": self.cpu,
                    "end_ns": self.cpu + US,
                    "process": 100 + device,
                    "thread": 1000 + device,
                    "correlation_id": correlation,
                    "kind": kind,
                    "text_id": 1 if kind == "graph" else 0,
                }
            )

    def step(  # noqa: PLR0913 (a run is stated by keywords)
        self,
        phase: str,
        tokens: int,
        requests: int,
        *,
        attention: str | tuple[str, ...] = "attention_any",
        marker: str | None = None,
        graph: int | None = None,
        sampler: bool = True,
        gather: bool = True,
        embedding: bool = True,
        device: int = 0,
        layers: int | None = None,
        late_sampler: bool = False,
        metadata: int = 1,
        tensor_parallel: bool = False,
        lm_head: bool = True,
        idle_us: int = 50,
        stream: int = 7,
        before_range: bool = False,
    ) -> MiniRun:
        """One forward pass with its sampling. ``graph``: base node id of a captured graph that holds the layers."""
        self.steps.append(phase)
        self.now += idle_us * US
        self.now = max(self.now, self.cpu + 10 * US)
        common: dict[str, Any] = {"device": device, "stream": stream, "phase": phase}
        if before_range:
            self.kernel("metadata", **common)
        opened = self.cpu + US
        for _ in range(metadata):
            self.kernel("metadata", **common)
        inner = dict(common)
        node = graph
        if graph is not None:
            self.correlation += 1
            replay = self.correlation
            self.call("graph", device, replay)
            inner |= {"graph": replay}

        def run(name: str, grid: tuple[int, int, int] = (1, 1, 1), **more: Any) -> None:
            nonlocal node
            if node is not None:
                inner["node"] = node
                node += 1
            self.kernel(name, grid, **(inner | more))

        rows = (tokens, 1, 1)
        if embedding:
            run("embedding_kernel", rows)
        kinds = attention if isinstance(attention, tuple) else (attention,)
        for _ in range(layers or self.layers):
            for name in layer_kernels(kinds, tensor_parallel=tensor_parallel):
                run(name, (1, requests, 8) if name in kinds else rows if NAMES[name][3] else (1, 1, 1))
        run("rms_norm", rows)
        if marker is not None and late_sampler:
            self.range(marker, opened, self.cpu + US, device)
        if gather:
            self.kernel("vectorized_gather_kernel", (requests, 2, 1), **common)
        if lm_head:
            self.kernel("gemm_lm_head", **common)
        if sampler:
            self.kernel("sampler", (requests, 1, 1), **common)
        if marker is not None and not late_sampler:
            self.range(marker, opened, self.cpu + US, device)
        return self

    def range(
        self,
        text: str,
        start: int,
        end: int,
        device: int = 0,
        *,
        kind: str = "push_pop",
        end_thread: int | None = None,
        thread: int | None = None,
    ) -> None:
        self.cpu = max(self.cpu, end) + US
        self.ranges.append(
            {
                "start_ns": start,
                "end_ns": end,
                "process": 100 + device,
                "thread": thread or 1000 + device,
                "end_thread": end_thread or 1000 + device,
                "text_id": self.text(text),
                "domain_text_id": 2,
                "kind": kind,
                "device_index": -1,
                "stream": -1,
            }
        )

    def mark(self, text: str, device: int = 0) -> None:
        self.cpu += US
        self.marks.append(
            {
                "time_ns": self.cpu,
                "process": 100 + device,
                "thread": 1000 + device,
                "text_id": self.text(text),
                "domain_text_id": 2,
            }
        )

    def copy(self, kind: str = "d2h", bytes: int = 128, device: int = 0) -> None:
        self.copies.append(
            {
                "start_ns": self.now,
                "end_ns": self.now + 1000,
                "device_index": device,
                "process": 100 + device,
                "context": 1,
                "stream": 7,
                "correlation_id": -1,
                "kind": kind,
                "bytes": bytes,
                "graph_node_id": -1,
            }
        )
        self.now += 1500

    def whole_graph(self, ns: int, graph_id: int = 1, device: int = 0, phase: str = "decode") -> None:
        self.steps.append(phase)
        self.correlation += 1
        self.call("graph", device, self.correlation)
        self.now = max(self.now, self.cpu) + 5 * US
        self.whole_graphs.append(
            {
                "start_ns": self.now,
                "end_ns": self.now + ns,
                "device_index": device,
                "process": 100 + device,
                "context": 1,
                "stream": 7,
                "correlation_id": self.correlation,
                "graph_id": graph_id,
                "graph_exec_id": graph_id,
            }
        )
        self.now += ns + 1000

    def build(self) -> tuple[Trace, pl.DataFrame]:
        """The Trace and the facts of its names; ``truth`` afterwards holds (step, phase) per kernel in trace order."""
        names = list(NAMES)
        rows = sorted(self.rows, key=lambda row: (row["start_ns"], row["device_index"]))
        self.truth = [row["truth"] for row in rows]
        frames = {
            "kernels": [row | KERNEL | {"name_id": names.index(row["name"]), "cluster_size": 0} for row in rows],
            "launches": sorted(self.calls, key=lambda row: row["start_ns"]),
            "ranges": sorted(self.ranges, key=lambda row: row["start_ns"]),
            "marks": self.marks,
            "copies": self.copies,
            "graph_launches": self.whole_graphs,
            "names": [{"name_id": n, "name": name, "short_name": name} for n, name in enumerate(names)],
            "texts": [{"text_id": n, "text": text} for n, text in enumerate(self.texts)],
            "devices": [
                {"device_index": d, "device": d, "process": 100 + d}
                for d in sorted({row["device_index"] for row in [*rows, *self.whole_graphs]})
            ],
        }
        built = {name: table(FRAMES[name], content) for name, content in frames.items()}
        trace = build_trace(CaptureFacts(source_name="mini", format="nsys_sqlite"), gaps_in_evidence=(), **built)
        return trace, name_facts(names)


def layer_kernels(attention: Sequence[str], *, tensor_parallel: bool) -> list[str]:
    """The kernels of one layer in their order."""
    reduce = ["all_reduce"] if tensor_parallel else []
    first = ["rms_norm", "gemm_qkv", "rotary", "cache_write", *attention, "gemm_o", *reduce]
    return [*first, "rms_norm", "gemm_up", "silu", "gemm_down", *reduce]


def table(schema: Schema, rows: Sequence[Row]) -> pl.DataFrame:
    return pl.DataFrame(
        {name: pl.Series(name, [row.get(name) for row in rows], dtype=dtype) for name, dtype in schema.items()}
    )


def name_facts(names: Sequence[str]) -> pl.DataFrame:
    """What classify_names says of the miniature's names."""
    rows = [NAMES[name] for name in names]
    return pl.DataFrame(
        {
            "name_id": pl.Series(range(len(names)), dtype=pl.UInt32),
            "short_name": names,
            "op_class": [row[0] for row in rows],
            "phase_hint": pl.Series([row[1] for row in rows], dtype=pl.String),
            "hint_strength": pl.Series([row[2] for row in rows], dtype=pl.String),
            "tokens_from": pl.Series([row[3] for row in rows], dtype=pl.String),
            "split_kv": pl.Series([None] * len(names), dtype=pl.Boolean),
            "load_time": [row[0] == "load_time" for row in rows],
        }
    )


assert {kind for kind, *_ in NAMES.values()} <= set(OP_CLASSES.categories.to_list())
assert "kind" in COPIES


@pytest.fixture
def mini() -> type[MiniRun]:
    """A new miniature run."""
    return MiniRun
