"""Simulated runs analysed up to the work stage, made once per session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import polars as pl
import pytest

from trace_analyze.analysis.gpus.device_ceilings import DeviceCeilings, resolve_devices
from trace_analyze.analysis.kernels.classify import classify_names
from trace_analyze.analysis.phases import PhaseResult, find_phases
from trace_analyze.analysis.records.options import Options
from trace_analyze.analysis.records.trace import Trace
from trace_analyze.analysis.work.assign_work import WorkResult, assign_work
from trace_analyze.analysis.work.work_input import WorkInput
from trace_analyze.fixtures.matrix import MATRIX
from trace_analyze.fixtures.simulator.serving import SimulatedRun, simulate
from trace_analyze.ingest import open_trace


@dataclass(frozen=True)
class Prepared:
    """A simulated run and everything the work stage takes."""

    run: SimulatedRun
    trace: Trace
    facts: pl.DataFrame
    devices: tuple[DeviceCeilings, ...]
    phases: PhaseResult

    @property
    def given(self) -> WorkInput:
        """What the work stage is given without options."""
        return WorkInput(self.trace, self.phases, self.facts, self.devices)

    def work(self, **options: Any) -> WorkResult:
        """The work stage's result with these options."""
        return assign_work(self.trace, self.phases, self.facts, self.devices, Options(**options))

    def with_model(self, **options: Any) -> WorkResult:
        """The same with the model and data types that ran."""
        config = self.run.config
        weight = None if config.weight_dtype in ("bf16", "fp16", "q4_k") else config.weight_dtype  # names tell q4_k
        return self.work(model=config.model, weight_dtype=weight, kv_dtype=config.kv_dtype, **options)

    def against_truth(self, result: WorkResult) -> pl.DataFrame:
        """Kernels of counted steps beside what really happened: columns of the truth have the prefix ``true_``."""
        keys = ["start_ns", "device", "name"]
        names = self.trace.names["name"].gather(result.kernels["name_id"])
        device = self.trace.devices["device"].gather(result.kernels["device_index"])
        counted = result.steps.filter(~pl.col("excluded") & pl.col("phase").is_in(["prefill", "decode", "mixed"]))
        kernels = result.kernels.with_columns(name=names, device=device)
        kernels = kernels.filter(pl.col("step").is_in(counted["step"].implode()))
        truth = self.run.truth.kernels.filter(pl.col("recorded")).unique(keys)
        return kernels.join(
            truth.select(keys + [pl.col(c).alias(f"true_{c}") for c in truth.columns if c not in keys]), on=keys
        )


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Prepared]:
    """``prepared(name)``: the run of that name, simulated, written, read and divided into steps once."""
    folder = tmp_path_factory.mktemp("runs")

    @cache
    def make(name: str) -> Prepared:
        run = simulate(MATRIX[name])
        trace = open_trace(run.write(folder / f"{name}.sqlite"))
        facts = classify_names(trace.names)
        devices = resolve_devices(trace)
        return Prepared(run, trace, facts, devices, find_phases(trace, facts))

    return make
