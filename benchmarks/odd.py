"""Time captures that are odd in one way each, at two sizes: does anything grow faster than it should?

    python benchmarks/odd.py [--case NAME ...] [--scale 1.0] [--shrink 4] [--folder DIR] [--list]

Prints a row for each case (``odd_captures.py``): rows in the file, CPU seconds to open, analyse, write HTML and JSON, peak
memory, sizes of the outputs, time beside an ordinary capture with as many rows, and the exponent with which time grows
from the smaller size to the larger, the fixed cost taken off. Each run is a process of its own.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import measure

SMALLEST = 20  # steps of the capture whose time is the fixed cost
LEAST_SECONDS = 0.15  # beyond the fixed cost, below which a size tells nothing of growth
HEAD = (
    "| case | n | rows | open | analyze | html | json | all CPU s | beside ordinary | peak MiB | HTML MB | JSON MB "
    "| grows with n to the |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|"
)


def one(path: Path) -> None:
    """The four stages in this process, as JSON."""
    import trace_analyze.reports.html  # noqa: F401  imports are not what is timed
    from trace_analyze.analysis.pipeline import analyze_options
    from trace_analyze.analysis.records.options import Options
    from trace_analyze.ingest import open_trace
    from trace_analyze.reports.outputs import render

    gc.disable()  # as the command line does
    clock = [time.process_time()]
    trace = open_trace(path)
    clock.append(time.process_time())
    analysis = analyze_options(trace, Options())
    clock.append(time.process_time())
    html = render(analysis, "html")
    clock.append(time.process_time())
    text = render(analysis, "json")
    clock.append(time.process_time())
    summary = {
        **{name: clock[i + 1] - clock[i] for i, name in enumerate(("open", "analyze", "html", "json"))},
        "all": clock[-1] - clock[0], "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "html_mb": len(html) / 1e6, "json_mb": len(text) / 1e6, "steps": analysis.steps.height,
        "status": analysis.status,
    }  # fmt: skip
    print(json.dumps(summary))


def capture_path(folder: Path, name: str, n: int) -> Path:
    """The capture, made where it is not there yet: by another process, whose memory is not this one's."""
    path = folder / f"odd-{name.replace(' ', '-')}-{n}.sqlite"
    if not path.exists():
        unfinished = path.with_suffix(".part")
        subprocess.run([sys.executable, __file__, "--make", name, str(n), str(unfinished)], check=True)
        unfinished.replace(path)
    return path


def rows_in(path: Path) -> int:
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return sum(database.execute(f'SELECT count(*) FROM "{table}"').fetchone()[0] for table in tables)


def run(path: Path, timeout: float) -> dict | None:
    done = measure.run([sys.executable, __file__, "--one", path], timeout=timeout)
    if done is None or done.code != 0:
        print(f"{path.name}: {'too long' if done is None else done.error[-600:]}", file=sys.stderr)
        return None
    return {**json.loads(done.output), "rows": rows_in(path)}


def main() -> None:
    from odd_captures import CASES

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", action="append", choices=CASES, help="repeatable; default all")
    parser.add_argument("--scale", type=float, default=1.0, help="of the larger size")
    parser.add_argument("--shrink", type=float, default=4.0, help="larger size over smaller size")
    parser.add_argument("--folder", type=Path, help="keep the captures here; default a temporary folder")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds of one run")
    parser.add_argument("--list", action="store_true", help="say what the cases are and stop")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--make", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one(options.one)
        return
    if options.make:
        name, n, path = options.make
        CASES[name].make(int(n)).write(path)
        return
    if options.list:
        for name, case in CASES.items():
            print(f"{name}: {case.size} {case.what}")
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        names = ["ordinary", *(name for name in options.case or CASES if name != "ordinary")]
        table(folder, names, options.scale, options.shrink, options.timeout, keep=options.folder is not None)


def table(folder: Path, names: list[str], scale: float, shrink: float, timeout: float, *, keep: bool) -> None:
    """Print a row for each case."""
    from odd_captures import CASES

    def timed(name: str, n: float) -> dict | None:
        path = capture_path(folder, name, max(1, round(n)))
        found = run(path, timeout)
        if not keep:
            path.unlink()
        return found

    print(HEAD, flush=True)
    fixed = timed("ordinary", SMALLEST)["all"]  # modules, templates, tables of facts
    per_row = 0.0
    for name in names:
        n = CASES[name].size * scale
        small, large = timed(name, n / shrink), timed(name, n)
        if small is None or large is None:
            print(f"| {name} | {n:,.0f} | did not finish |" + " |" * 10, flush=True)
            continue
        if name == "ordinary":
            per_row = max(large["all"] - fixed, 0.0) / large["rows"]
        like = fixed + per_row * large["rows"]
        above = [max(each["all"] - fixed, 0.01) for each in (small, large)]
        slope = f"{math.log(above[1] / above[0]) / math.log(shrink):.2f}" if above[0] > LEAST_SECONDS else "too quick"
        stages = " | ".join(f"{large[stage]:.2f}" for stage in ("open", "analyze", "html", "json"))
        print(
            f"| {name} | {n:,.0f} | {large['rows']:,} | {stages} | {large['all']:.2f} | {large['all'] / like:.1f} "
            f"| {large['peak']:.0f} | {large['html_mb']:.2f} | {large['json_mb']:.1f} | {slope} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
