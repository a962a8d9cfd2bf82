"""What of a run is needed to compare it: its identity, its steps with their batch and KV, time per step and kernel.

Small enough to be kept in an archive's table (``profile`` column), so that a baseline needs no capture.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import orjson
import polars as pl
from msgspec import ValidationError, convert

from ..records.analysis import Analysis
from ..records.plain_values import clean
from ..records.record import Record
from ..records.usable_steps import USABLE_STEP

PROFILE_VERSION = 1
MAX_STEPS_KEPT = 1000  # evenly spaced over the run
MAX_KERNELS_KEPT = 60
_FLOATS = ("duration_ms", "tokens", "batch", "kv_tokens")

Floats = npt.NDArray[np.float64]
JsonObject: TypeAlias = Mapping[str, object]


@dataclass(frozen=True)
class PhaseProfile:
    """The steps of one phase: arrays of one length, and ms per step of every op class and kernel."""

    duration_ms: Floats
    tokens: Floats  # prefill + decode tokens; NaN = unknown (padded graphs)
    batch: Floats  # rows the kernels ran for: padded tokens where known, else decode requests; NaN = unknown
    kv_tokens: Floats  # NaN = unknown
    op_classes: Mapping[str, Floats]
    kernels: Mapping[str, Floats]  # by short name, the most expensive ones


class RunIdentity(Record, frozen=True, kw_only=True):
    """What two runs must have in common to be compared, as far as it is known."""

    gpu_name: str | None  #: names of the GPUs
    devices: int  #: devices with kernels
    model: str | None  #: model name
    weight_dtype: str | None  #: its weights' type
    tensor_parallel: int | None  #: devices that share a layer
    graph_trace_mode: str | None  #: how the profiler recorded CUDA graphs
    engine: str | None  #: serving engine


@dataclass(frozen=True)
class Profile:
    """One run, ready to be compared."""

    name: str
    identity: RunIdentity | None  # None where the capture gave no analysis
    status: str
    phases: Mapping[str, PhaseProfile]  # 'decode', 'prefill', 'mixed'
    kernel_ms: Mapping[str, float]  # total ms by full name, for new and vanished kernels
    summary: JsonObject  # JSON ``summary`` without its headline
    reasons: tuple[str, ...] = ()


def profile_of(analysis: Analysis) -> Profile:
    """The profile of one result."""
    model = analysis.model
    names = sorted({str(d.gpu_name) for d in analysis.devices if d.gpu_name})
    capture = analysis.trace.capture
    identity = RunIdentity(
        gpu_name=", ".join(names) or None,
        devices=len(analysis.devices),
        model=model.get("name"),
        weight_dtype=model.get("weight_dtype"),
        tensor_parallel=model.get("tensor_parallel"),
        graph_trace_mode=capture.graph_trace_mode,
        engine=analysis.trust.engine or capture.serving.engine,
    )
    kept = analysis.steps.filter(USABLE_STEP)
    if len(kept):
        kept = kept.filter(pl.col("device_index") == pl.col("device_index").min().over("group"))
    table = analysis.kernel_table.group_by("name", maintain_order=True).agg(pl.col("total_ms").sum())
    return Profile(
        name=capture.source_name,
        identity=identity,
        status=analysis.status,
        phases={
            phase: _phase_profile(analysis, kept.filter(pl.col("phase") == phase))
            for phase in ("decode", "prefill", "mixed")
            if len(kept.filter(pl.col("phase") == phase))
        },
        kernel_ms=dict(zip(table["name"].to_list(), table["total_ms"].to_list(), strict=True)),
        summary=clean({k: v for k, v in analysis.summary.items() if k != "headline"}),
        reasons=analysis.reasons,
    )


def _phase_profile(analysis: Analysis, steps: pl.DataFrame) -> PhaseProfile:
    if len(steps) > MAX_STEPS_KEPT:
        steps = steps[np.linspace(0, len(steps) - 1, MAX_STEPS_KEPT).round().astype(int).tolist()]
    tokens = steps["prefill_tokens"] + steps["decode_tokens"].fill_null(0)
    batch = steps["padded_tokens"].fill_null(steps["decode_requests"])
    kernels = _ms_per_step(analysis, steps)
    return PhaseProfile(
        duration_ms=((steps["end_ns"] - steps["start_ns"]) / 1e6).to_numpy().astype(float),
        tokens=tokens.cast(pl.Float64).fill_null(float("nan")).to_numpy(),
        batch=batch.cast(pl.Float64).fill_null(float("nan")).to_numpy(),
        kv_tokens=steps["kv_tokens"].cast(pl.Float64).fill_null(float("nan")).to_numpy(),
        op_classes=_matrix(kernels, steps, "op_class", MAX_KERNELS_KEPT),
        kernels=_matrix(kernels, steps, "short_name", MAX_KERNELS_KEPT),
    )


def _ms_per_step(analysis: Analysis, steps: pl.DataFrame) -> pl.DataFrame:
    """step, op_class, short_name, ms for the kernels of ``steps``."""
    names = analysis.trace.names.select("name_id", "short_name")
    chosen = steps.select("step")
    return (
        analysis.kernels.lazy()
        .select("step", "op_class", "name_id", ((pl.col("end_ns") - pl.col("start_ns")) / 1e6).alias("ms"))
        .join(chosen.lazy(), on="step", how="semi")
        .group_by("step", "op_class", "name_id", maintain_order=True)
        .agg(pl.col("ms").sum())
        .join(names.lazy(), on="name_id", how="left")
        .with_columns(pl.col("op_class").cast(pl.String))
        .collect()
    )


def _matrix(kernels: pl.DataFrame, steps: pl.DataFrame, key: str, most: int) -> dict[str, Floats]:
    top = (
        kernels.group_by(key, maintain_order=True)
        .agg(pl.col("ms").sum())
        .sort("ms", key, descending=[True, False])
        .head(most)
    )
    position = {step: i for i, step in enumerate(steps["step"].to_list())}
    result: dict[str, Floats] = {}
    sums = kernels.group_by(key, "step", maintain_order=True).agg(pl.col("ms").sum())
    for name in top[key].to_list():
        rows = sums.filter(pl.col(key) == name)
        column = np.zeros(len(steps))
        column[[position[s] for s in rows["step"].to_list()]] = rows["ms"].to_numpy()
        result[str(name)] = column
    return result


def profile_json(analysis: Analysis) -> str:
    """The profile as JSON text; arrays are float32, deflated, base64."""
    profile = profile_of(analysis)
    data = {
        "version": PROFILE_VERSION,
        "name": profile.name,
        "identity": clean(profile.identity),
        "status": profile.status,
        "reasons": list(profile.reasons),
        "summary": profile.summary,
        "kernel_ms": {k: round(v, 4) for k, v in profile.kernel_ms.items()},
        "phases": {phase: _pack_phase(p) for phase, p in profile.phases.items()},
    }
    return orjson.dumps(data).decode()


def _pack_phase(phase: PhaseProfile) -> dict[str, object]:
    return {
        **{name: _pack(getattr(phase, name)) for name in _FLOATS},
        "op_classes": {k: _pack(v) for k, v in phase.op_classes.items()},
        "kernels": {k: _pack(v) for k, v in phase.kernels.items()},
    }


def _pack(values: Floats) -> str:
    return base64.b64encode(zlib.compress(values.astype("<f4").tobytes())).decode()


def _unpack(text: str) -> Floats:
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype="<f4").astype(float)


def profile_from_json(text: str) -> Profile:
    """The inverse of :func:`profile_json`. Raises ValueError for another version, or an identity of other keys."""
    data = orjson.loads(text)
    if data.get("version") != PROFILE_VERSION:
        raise ValueError(f"profile version {data.get('version')!r}, expected {PROFILE_VERSION}")
    phases = {
        phase: PhaseProfile(
            **{name: _unpack(p[name]) for name in _FLOATS},
            op_classes={k: _unpack(v) for k, v in p["op_classes"].items()},
            kernels={k: _unpack(v) for k, v in p["kernels"].items()},
        )
        for phase, p in data["phases"].items()
    }
    try:
        identity = convert(data["identity"], RunIdentity)
    except ValidationError as error:
        raise ValueError(f"profile identity: {error}") from error
    return Profile(
        name=data["name"],
        identity=identity,
        status=data["status"],
        phases=phases,
        kernel_ms=data["kernel_ms"],
        summary=data["summary"],
        reasons=tuple(data["reasons"]),
    )
