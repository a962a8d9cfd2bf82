"""One stage of the road in this process: its wall time, CPU time and the peak memory up to its end, as JSON.

    python benchmarks/stages.py open|analyze|html|json run.sqlite

What comes before the stage runs first and is not timed.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

STAGES = ("open", "analyze", "html", "json")


def main(stage: str, path: Path) -> None:
    from trace_analyze.analysis.pipeline import analyze_options
    from trace_analyze.analysis.records.options import Options
    from trace_analyze.ingest import open_trace
    from trace_analyze.reports.outputs import render

    begin = _now()
    value = open_trace(path)
    if stage != "open":
        begin = _now()
        value = analyze_options(value, Options())
    if stage in ("html", "json"):
        begin = _now()
        render(value, stage)
    end = _now()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"wall": end[0] - begin[0], "cpu": end[1] - begin[1], "peak_mib": peak}))


def _now() -> tuple[float, float]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return time.perf_counter(), used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
