"""What a capture holds, which question it cannot answer, and how to record one that can.

``diagnose`` looks at a Trace only; the commands and the size of rows are facts of ``capture_commands.toml``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import polars as pl

from ..facts.load import load_table
from ..markers.grammar import parse_texts
from ..phases.engine import recognise_engine
from ..records.trace import CaptureFacts, Trace

NANOSECONDS = 1_000_000_000
EXAMPLE_SECONDS = 10.0  # length of the capture whose size is estimated
ENOUGH_SHARE = 0.99  # of kernels that carry a fact, for the fact to count as there


@dataclass(frozen=True)
class Recipe:
    """How to record one engine from one version on."""

    engine: str
    since: str
    markers: str
    serve: str
    under_load: str
    notes: tuple[str, ...]
    source: str

    def command(self) -> str:
        """Everything to run, in order."""
        return self.serve if not self.under_load else f"{self.serve}\n# once requests flow:\n{self.under_load}"


@dataclass(frozen=True)
class Question:
    """One question of the tool and whether this capture answers it."""

    question: str
    state: str  # 'yes' | 'partly' | 'no'
    because: str
    fix: str  # flag or command that would change it, '' where it is 'yes' or nothing helps


@dataclass(frozen=True)
class SizeEstimate:
    """Size of a capture of ``seconds`` under the same load, recorded as recommended; a SQLite export, in bytes."""

    seconds: float
    bytes: int | None
    gpu_metrics_bytes: int  # added by sampling at 10 kHz, for the GPUs at work
    reason: str  # what it was estimated from, or why not


@dataclass(frozen=True)
class Diagnosis:
    """What ``trace-analyze doctor`` says."""

    capture: CaptureFacts
    contents: tuple[tuple[str, int], ...]  # (what, rows)
    engine: str | None
    engine_name: str
    engine_version: str | None
    recognised_by: str
    questions: tuple[Question, ...]
    recipe: Recipe
    processes: str  # which processes of the engine must be profiled
    torch_profiler: str  # the same with the PyTorch profiler, '' where the engine offers none
    nsys_flags: tuple[tuple[str, str], ...]  # (flag, what for)
    gpu_metrics: str  # flags that add GPU metrics
    gpu_metrics_note: str
    size: SizeEstimate


@cache
def capture_commands() -> Mapping[str, Any]:
    """``capture_commands.toml`` as it is."""
    return load_table("capture_commands")


def recipes(engine: str | None) -> tuple[Recipe, ...]:
    """Recipes of an engine, newest first; those of any engine for one without its own."""
    row = _engine(engine)
    return tuple(
        Recipe(
            engine=row["key"],
            since=recipe["since"],
            markers=recipe["markers"],
            serve=recipe["serve"].strip(),
            under_load=recipe["under_load"],
            notes=tuple(recipe["notes"]),
            source=recipe["source"],
        )
        for recipe in row["recipe"]
    )


def recipe_for(engine: str | None, version: str | None) -> Recipe:
    """The recipe of an engine's version; without a version, of its newest."""
    choices = recipes(engine)
    if version is None:
        return choices[0]
    return next((recipe for recipe in choices if _numbers(recipe.since) <= _numbers(version)), choices[-1])


def _engine(key: str | None) -> Mapping[str, Any]:
    rows: list[Mapping[str, Any]] = capture_commands()["engine"]
    return next((row for row in rows if row["key"] == key), rows[-1])


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def diagnose(trace: Trace) -> Diagnosis:
    """Look at what ``trace`` holds; nothing is analysed."""
    texts = _used_texts(trace)
    engine = recognise_engine(trace, texts)
    version = trace.capture.serving.engine_version
    row = _engine(engine)
    nsys = capture_commands()["nsys"]
    return Diagnosis(
        capture=trace.capture,
        contents=_contents(trace),
        engine=engine,
        engine_name=row["name"],
        engine_version=version,
        recognised_by=_recognised_by(trace, texts, engine),
        questions=tuple(look(trace, texts) for look in _QUESTIONS),
        recipe=recipe_for(engine, version),
        processes=row["processes"],
        torch_profiler=row["torch"].strip(),
        nsys_flags=tuple((flag, why) for flag, why in nsys["flags"]),
        gpu_metrics=nsys["gpu_metrics"],
        gpu_metrics_note=nsys["gpu_metrics_note"],
        size=_size(trace),
    )


def _used_texts(trace: Trace) -> pl.DataFrame:
    used = pl.concat([trace.ranges["text_id"], trace.marks["text_id"]]).unique().sort()
    return parse_texts(trace.texts.filter(pl.col("text_id").is_in(used.implode())))


def _contents(trace: Trace) -> tuple[tuple[str, int], ...]:
    counted = (
        ("kernels", trace.kernel_count),
        ("kernel launches", int((trace.launches["kind"] == "kernel").sum())),
        ("graph launches", int((trace.launches["kind"] == "graph").sum())),
        ("whole-graph rows (opaque)", trace.graph_launches.height),
        ("copies", trace.copies.height),
        ("other CUDA calls", trace.api_calls.height),
        ("NVTX ranges and annotations", trace.ranges.height),
        ("NVTX marks", trace.marks.height),
        ("GPU metrics samples", trace.gpu_metrics.height),
        ("devices with GPU work", trace.devices.height),
        ("processes", trace.kernels["process"].n_unique()),
    )
    return tuple((what, rows) for what, rows in counted if rows)


def _recognised_by(trace: Trace, texts: pl.DataFrame, engine: str | None) -> str:
    if engine is None:
        return "no command line, marker or kernel name tells the engine"
    if trace.capture.serving.engine:
        return "the recorded command line"
    spoken = texts.filter(pl.col("role") == "step")["engine"].drop_nulls()
    return "its markers" if engine in spoken.to_list() else "kernel names only it has"


def _size(trace: Trace) -> SizeEstimate:
    rows = capture_commands()["size"]
    metrics = round(
        10_000 * rows["gpu_metrics_per_sample"] * rows["gpu_metric"] * EXAMPLE_SECONDS * trace.devices.height
    )
    starts, ends = trace.kernels["start_ns"], trace.kernels["end_ns"]
    seconds = (int(ends.max()) - int(starts.min())) / NANOSECONDS if trace.kernels.height else 0.0  # type: ignore[arg-type]
    if trace.graph_launches.height:
        return SizeEstimate(
            EXAMPLE_SECONDS,
            None,
            metrics,
            "the kernels inside graph replays were not recorded, so their rate is unknown",
        )
    if seconds <= 0 or not trace.capture.has_timeline:
        return SizeEstimate(EXAMPLE_SECONDS, None, metrics, "no stretch of time to take rates from")
    bytes_here = (
        trace.kernels.height * rows["kernel"]
        + (trace.launches.height + trace.api_calls.height) * rows["call"]
        + (trace.ranges.height + trace.marks.height) * rows["range"]
        + trace.copies.height * rows["copy"]
    )
    estimate = round(bytes_here / seconds * EXAMPLE_SECONDS)
    return SizeEstimate(
        EXAMPLE_SECONDS,
        estimate,
        metrics,
        f"{trace.kernels.height / seconds:,.0f} kernels/s over {seconds:.3g} s of this capture",
    )


# ------------------------------------------------------------------------------------------------ the questions


def _where_time_goes(trace: Trace, texts: pl.DataFrame) -> Question:
    question = "Where does GPU time go, kernel by kernel?"
    if trace.holds_sums:
        return Question(question, "partly", "only sums by kernel name", capture_commands()["nsys"]["export"])
    if trace.graph_launches.height:
        return Question(
            question,
            "partly",
            f"{trace.graph_launches.height:,} graph replays are opaque rows",
            "--cuda-graph-trace=node",
        )
    return Question(question, "yes", f"{trace.kernels.height:,} kernels", "")


def _phases(trace: Trace, texts: pl.DataFrame) -> Question:
    question = "Which kernels are prefill, which decode?"
    steps = texts.filter(pl.col("role") == "step")
    if steps.height and trace.launches.height:
        return Question(question, "yes", f"{steps.height:,} different step markers", "")
    if not trace.capture.has_timeline:
        return Question(question, "partly", "no steps; only kernels whose own name tells", _COMMAND)
    return Question(question, "partly", "no step markers: from kernel names, geometry and order", _COMMAND)


def _tokens(trace: Trace, texts: pl.DataFrame) -> Question:
    question = "How many tokens and requests has each step?"
    steps = texts.filter(pl.col("role") == "step")
    counted = steps.filter(pl.col("prefill_tokens").is_not_null() | pl.col("decode_tokens").is_not_null())
    if counted.height:
        return Question(question, "yes", "the markers say", "")
    if _share(trace, "grid_x") >= ENOUGH_SHARE:
        return Question(question, "partly", "from launch geometry, where a kernel's grid is the token count", _COMMAND)
    return Question(question, "no", "no markers with counts, and kernels without a recorded grid", _COMMAND)


def _context_lengths(trace: Trace, texts: pl.DataFrame) -> Question:
    question = "How long are the contexts (attention work, full decode MBU)?"
    if texts.filter(pl.col("decode_kv").is_not_null()).height:
        return Question(question, "yes", "the markers hold the sums of KV lengths", "")
    return Question(
        question, "partly", "only for requests whose prompt lies in the capture; else MBU is a lower bound", _COMMAND
    )


def _shapes(trace: Trace, texts: pl.DataFrame) -> Question:
    question = "What are the exact matrix shapes?"
    shaped = texts.filter(pl.col("shapes").is_not_null()).height
    if shaped:
        return Question(question, "yes", f"{shaped:,} different recorded shapes", "")
    return Question(
        question, "partly", "from the model's configuration and token counts (--model)", "--model NAME or config.json"
    )


def _ceilings(trace: Trace, texts: pl.DataFrame) -> Question:
    question = "How near is it to what this GPU can do (MFU, MBU)?"
    unnamed = trace.devices.filter(pl.col("gpu_name").is_null()).height
    if unnamed:
        return Question(
            question, "partly", f"{unnamed} of {trace.devices.height} GPUs are not named in the capture", "--gpu NAME"
        )
    return Question(question, "yes", f"GPUs are named ({', '.join(sorted(set(trace.devices['gpu_name'])))})", "")


def _stalls(trace: Trace, texts: pl.DataFrame) -> Question:
    question = "When does decode wait for prefill?"
    if not trace.capture.has_timeline:
        return Question(question, "no", "there is no timeline", _COMMAND)
    if texts.filter(pl.col("role") == "step").height:
        return Question(question, "yes", "steps are marked and lie on a timeline", "")
    return Question(
        question, "partly", "steps are found from kernels; requests held only where counts are known", _COMMAND
    )


def _idle(trace: Trace, texts: pl.DataFrame) -> Question:
    question = "Why is the GPU idle?"
    if not trace.launches.height:
        return Question(question, "no", "no launch calls are recorded", "--trace=cuda")
    launched = trace.kernels.join(trace.launches, on=["process", "correlation_id"], how="semi").height
    share = launched / max(1, trace.kernels.height)
    if share < ENOUGH_SHARE:
        return Question(
            question, "partly", f"{1 - share:.0%} of kernels have no launch call", "--trace-fork-before-exec=true"
        )
    return Question(question, "yes", f"{trace.launches.height:,} launch calls are tied to their kernels", "")


def _ranks(trace: Trace, texts: pl.DataFrame) -> Question:
    question = "Which rank makes the others wait in collectives?"
    size = trace.capture.world_size or trace.capture.serving.tensor_parallel or len(trace.capture.gpus_present) or 1
    if trace.devices.height > 1:
        state = "yes" if trace.devices.height >= size else "partly"
        return Question(
            question, state, f"{trace.devices.height} of {max(size, trace.devices.height)} GPUs are in this capture", ""
        )
    if size > 1:
        return Question(
            question, "no", f"one GPU of {size} is in this capture", "profile the command that starts all ranks"
        )
    return Question(question, "yes", "one GPU: there is nobody to wait for", "")


def _measured(trace: Trace, texts: pl.DataFrame) -> Question:
    question = "What were the clock and the measured memory traffic?"
    if trace.gpu_metrics.height:
        return Question(question, "yes", f"{trace.gpu_metrics.height:,} GPU metrics samples", "")
    if trace.counters.height:
        return Question(
            question,
            "partly",
            f"{trace.counters.height:,} samples from beside the profiler",
            capture_commands()["nsys"]["gpu_metrics"],
        )
    return Question(
        question,
        "no",
        "no GPU metrics: peaks are those of the specification, traffic is modelled",
        capture_commands()["nsys"]["gpu_metrics"],
    )


def _complete(trace: Trace, texts: pl.DataFrame) -> Question:
    question = "Is the capture complete?"
    lost = [message.text for message in trace.capture.diagnostics if message.severity in ("warning", "error")]
    rejected = sum(trace.capture.rejected_rows.values())
    if lost:
        return Question(
            question, "partly", lost[0], "shorter capture, or --flush-on-cudaprofilerstop=true with a capture range"
        )
    if rejected:
        return Question(question, "partly", f"{rejected:,} rows could not be used", "")
    return Question(question, "yes", "the profiler reports no loss", "")


def _share(trace: Trace, column: str) -> float:
    return 1 - trace.kernels[column].null_count() / max(1, trace.kernels.height)


_COMMAND = "the command below"
_QUESTIONS: tuple[Callable[[Trace, pl.DataFrame], Question], ...] = (
    _where_time_goes,
    _phases,
    _tokens,
    _stalls,
    _ceilings,
    _context_lengths,
    _shapes,
    _idle,
    _ranks,
    _measured,
    _complete,
)
