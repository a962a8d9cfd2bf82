"""``analyze``: a capture in, an Analysis out, with the options of the command line as keywords."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .pipeline import analyze_options
from .records.analysis import Analysis
from .records.options import Options
from .records.trace import Trace
from .road import Capture, analyze_capture

__all__ = ["Analysis", "Options", "analyze"]


def analyze(
    trace: Trace | str | Path,
    *,
    gpu: str | None = None,
    gpu_override: str | None = None,
    model: str | Path | None = None,
    tensor_parallel: int | None = None,
    weight_dtype: str | None = None,
    kv_dtype: str | None = None,
    ceilings: str | Path | None = None,
    ncu: Sequence[str | Path] = (),
    window: str | None = None,
    markers: str | Path | None = None,
    step: str | None = None,
    itl_target_ms: float | None = None,
    dmon: str | Path | None = None,
    dcgm: str | Path | None = None,
) -> Analysis:
    """Analyse a capture: a Trace, or the path of one.

    ``gpu`` names the GPU where the capture is silent, ``model`` is a name of ``trace-analyze models`` or a
    ``config.json``; all arguments mean what the command line's options of the same name mean.

    Raises UsageError for an argument that cannot be used and CannotAnswerError where the window is empty.
    """
    options = Options(
        gpu=gpu,
        gpu_override=gpu_override,
        model=None if model is None else str(model),
        tensor_parallel=tensor_parallel,
        weight_dtype=weight_dtype,
        kv_dtype=kv_dtype,
        ceilings=_path(ceilings),
        ncu=tuple(Path(p) for p in ncu),
        window=window,
        markers=_path(markers),
        step=step,
        itl_target_ms=itl_target_ms,
        dmon=_path(dmon),
        dcgm=_path(dcgm),
    )
    if isinstance(trace, Trace):
        return analyze_options(trace, options)
    return analyze_capture(Capture(Path(trace)), options)


def _path(value: str | Path | None) -> Path | None:
    return None if value is None else Path(value)
