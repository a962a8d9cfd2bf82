"""trace-analyze: prefill, decode and the stalls between them, read from Nsight captures of LLM serving runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .analysis.records.trace import Trace
    from .analysis.records.version import __version__
    from .ingest import open_trace
    from .reports.python_api import Analysis, analyze

__all__ = ["Analysis", "Trace", "__version__", "analyze", "open_trace"]

_HOMES = {
    "analyze": ".reports.python_api",
    "Analysis": ".reports.python_api",
    "open_trace": ".ingest",
    "Trace": ".analysis.records.trace",
    "__version__": ".analysis.records.version",
}


def __getattr__(name: str) -> object:
    # Heavy imports happen where they are used, so that `trace-analyze --help` answers at once.
    if name in _HOMES:
        from importlib import import_module

        home: object = getattr(import_module(_HOMES[name], __name__), name)
        return home
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
