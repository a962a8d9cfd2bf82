"""Python's door: ``analyze`` with the options of the command line as keywords, and a result that saves and shows itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from ..analysis.pipeline import analyze_options
from ..analysis.records import analysis as records
from ..analysis.records.options import Options
from ..analysis.records.trace import Trace
from ..analysis.road import Capture, analyze_capture

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Analysis", "Options", "analyze"]


@dataclass(frozen=True, repr=False)
class Analysis(records.Analysis):
    """The result of ``trace_analyze.analyze``: the frames and records of an analysis, and how to save and show them."""

    @staticmethod
    def of(analysis: records.Analysis) -> Analysis:
        """The same result, with what users of Python do with it."""
        return Analysis(**{field.name: getattr(analysis, field.name) for field in fields(analysis)})

    # The reports are imported where they are used, so that an analysis alone loads none of them.

    def to_dict(self) -> dict[str, object]:
        """The content of ``--format json`` as plain dictionaries and lists."""
        from .json_report import to_dict

        return to_dict(self)

    def to_pandas(self) -> dict[str, pd.DataFrame]:
        """Every table of the result as a pandas frame, by name (``kernel_rows`` has every launch)."""
        from .table_files import pandas_frames

        return pandas_frames(self)

    def save_html(self, path: str | Path) -> Path:
        """Write the self-contained report to ``path`` (whole or not at all) and return the path."""
        from .html import save_html

        save_html(self, path)
        return Path(path)

    def save_json(self, path: str | Path) -> Path:
        """Write the JSON to ``path`` (whole or not at all) and return the path."""
        from .json_report import to_json
        from .whole_files import write_whole

        target = Path(path)
        write_whole(target, to_json(self))
        return target

    def _repr_html_(self) -> str:
        from .notebook import notebook_html

        return notebook_html(self)


def analyze(  # noqa: PLR0913 (the options of the command line, as keywords)
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
        return Analysis.of(analyze_options(trace, options))
    return Analysis.of(analyze_capture(Capture(Path(trace)), options))


def _path(value: str | Path | None) -> Path | None:
    return None if value is None else Path(value)
