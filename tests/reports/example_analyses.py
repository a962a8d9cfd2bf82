"""The Analyses that the reports' tests render: simulated captures through the whole analysis, and what follows from them.

``conftest`` makes each once a session, by name. A run that no capture shows (names that try to become markup, a million
kernels) is the result of a simulated one with the columns in question replaced.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl
from msgspec import structs

from trace_analyze.analysis.records.advice import Finding, WrongDtype
from trace_analyze.analysis.records.analysis import Analysis
from trace_analyze.analysis.records.options import Options
from trace_analyze.analysis.records.trace import ServingFacts
from trace_analyze.analysis.road import Capture, analyze_capture
from trace_analyze.fixtures import cases
from trace_analyze.fixtures.cases import StepSpec, steps_capture
from trace_analyze.fixtures.matrix import MS
from trace_analyze.fixtures.simulator.config import RunConfig
from trace_analyze.fixtures.simulator.scheduler import Request
from trace_analyze.fixtures.simulator.serving import SimulatedRun, simulate
from trace_analyze.fixtures.writers.nsys_writer import Capture as Export

HOSTILE = "</script><img src=x onerror=alert(1)>"
#: Two A100s, tensor parallel: eight prompts (a prefill step, a mixed one), decode, two more prompts in chunks.
SERVING = RunConfig(
    "serving",
    (
        *(Request(0, 180 + 20 * i, 60) for i in range(8)),
        Request(60 * MS, 2400, 40),
        Request(85 * MS, 1500, 30),
    ),
    model="llama-3.2-1b",
    gpu="a100-80gb",
    tensor_parallel=2,
    max_batched_tokens=1024,
    max_steps=60,
    seed=11,
)
SERVING_PATTERN = "PM" + 29 * "D" + "MMM" + 5 * "D" + "MM" + 19 * "D"  # its steps by phase
LAYER_OF_AN_ENCODER = (  # name, µs
    ("void cutlass::Kernel<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_tn_align8>(Params)", 90),
    ("void softmax_warp_forward<c10::BFloat16, float, 9>(T2 *, const T1 *, int, int, int)", 20),
    ("void at::native::vectorized_layer_norm_kernel<c10::BFloat16, float>(int, T2, const T1 *, T1 *)", 10),
)


def analysed(capture: SimulatedRun | Export, options: Options | None = None) -> Analysis:
    """The analysis of a simulated capture."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.sqlite"
        capture.write(path)
        return analyze_capture(Capture(path), options or Options())


@cache
def serving_run() -> Analysis:
    """A run with everything a report shows: all kinds of steps, stalls in two episodes, collectives, findings."""
    return analysed(simulate(SERVING))


@cache
def no_phases() -> Analysis:
    """An encoder on a GPU that the capture does not name: kernels and times are known, steps and ratios are not."""
    capture = Export()
    at = 5 * MS
    for _ in range(40):
        for name, us in LAYER_OF_AN_ENCODER:
            capture.kernel(name, at, at + us * 1000, launched_at=at - MS, grid=(96, 1, 1))
            at += us * 1000 + 2000
    return analysed(capture)


@cache
def could_not_look() -> Analysis:
    """A capture whose graph replays are opaque: nothing can be said, and the reports say that."""
    return analysed(cases.opaque_graphs())


@cache
def unknown_stalls() -> Analysis:
    """Stalls without a step to compare with, of which the tokens and requests are not known either."""
    plan = [StepSpec(8 + 3 * (i % 3), 1, 512, 4) for i in range(8)]
    found = analysed(steps_capture(plan))
    counts = [c for c in found.steps.columns if c.endswith(("_tokens", "_requests"))]
    return replace(
        found,
        stalls=_nulls(found.stalls, ["prefill_tokens", "requests_held", "request_ms_lost"]),
        steps=_nulls(found.steps, [*counts, "kv_tokens_source", "label"]),
    )


def _nulls(frame: pl.DataFrame, columns: list[str]) -> pl.DataFrame:
    return frame.with_columns(pl.lit(None, frame.schema[c]).alias(c) for c in columns)


@cache
def hostile(rows: int = 5_000, length: int = 200) -> Analysis:
    """Names that try to become markup or to blow a report up."""
    base = serving_run()
    names = [
        f"{HOSTILE}<b>x</b>\u2028\u2029{{{{7*7}}}} {i} " + "T" * (length if i % 50 else length * 40)
        for i in range(rows)
    ]
    table = pl.concat([base.kernel_table.head(1)] * rows).with_columns(
        name=pl.Series(names),
        short_name=pl.Series([n[:120] for n in names]),
        total_ms=pl.Series(np.linspace(50, 0.01, rows)),
    )
    trace = replace(
        base.trace,
        names=base.trace.names.with_columns(name=pl.lit(HOSTILE), short_name=pl.lit(HOSTILE)),
        texts=base.trace.texts.with_columns(text="<b>x</b>" + HOSTILE + pl.col("text")),
        capture=replace(
            base.trace.capture, source_name=f"{HOSTILE}.sqlite", serving=ServingFacts(engine="vllm", model=HOSTILE)
        ),
    )
    evidence = WrongDtype(total_ms=1.0, kernel=HOSTILE, dtype="fp32", count=1, recoverable_is=HOSTILE)
    return replace(
        base,
        trace=trace,
        kernel_table=table,
        model=structs.replace(base.model, name=HOSTILE),
        summary=structs.replace(base.summary, headline=HOSTILE),
        findings=(Finding(id="x", sentence=HOSTILE, recoverable_ms=1.0, evidence=evidence, lever=HOSTILE),),
        reasons=(HOSTILE,),
        steps=base.steps.with_columns(label=pl.lit("<b>x</b>" + HOSTILE)),
        trust=structs.replace(base.trust, contradictions=(HOSTILE,)),
    )


def repeated(base: Analysis, times: int) -> Analysis:
    """``base`` as if its window had come ``times`` times in a row: frames of events only, the summary stays."""
    period = base.window.end_ns - base.window.start_ns + MS
    index_step = max(base.steps["index"].to_list(), default=0) + 1

    def again(frame: pl.DataFrame, **counted: int) -> pl.DataFrame:
        """The frame once per repetition, later by a period each; ``counted`` columns go on counting by so many."""
        round_of = np.repeat(np.arange(times), frame.height)
        shift = {"start_ns": period, "end_ns": period, **counted}
        columns = [
            pl.when(pl.col(c) < 0).then(pl.col(c)).otherwise(pl.col(c) + pl.Series(round_of * by)).cast(frame.schema[c])
            for c, by in shift.items()
        ]
        return pl.concat([frame] * times).with_columns(columns)

    kernels = again(base.kernels, step=base.steps.height)
    recorded = base.trace.kernels.columns
    return replace(
        base,
        kernels=kernels,
        trace=replace(base.trace, kernels=kernels.select(recorded)),
        steps=again(base.steps, step=base.steps.height, index=index_step),
        stalls=again(
            base.stalls, stall=base.stalls.height, episode=max(base.stalls["episode"].to_list(), default=0) + 1
        ),
        gaps=again(base.gaps, index=index_step, stall=base.stalls.height),
        window=structs.replace(base.window, end_ns=base.window.start_ns + times * period),
        summary=structs.replace(base.summary, window_ms=times * period / 1e6, kernel_count=kernels.height),
    )


@cache
def big() -> Analysis:
    """A long run, about a million kernels."""
    base = serving_run()
    return repeated(base, 1_000_000 // base.kernels.height + 1)
