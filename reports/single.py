"""One capture from file to answer: the screen on stdout, progress on stderr, the files that were asked for."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..analysis.gate import Gate, GateResult, evaluate_all, exit_code, parse_gate
from ..analysis.result import Analysis, Options
from ..ingest.errors import CannotAnswerError, UsageError
from .outputs import render, stdout_format, stem_of, write_output
from .progress import Progress


def run_single(
    capture: Path,
    options: Options,
    *,
    formats: Sequence[str] = ("html",),
    out: str | None = None,
    gates: Sequence[str] = (),
    cache: Path | None = None,
    quiet: bool = False,
    color: bool = True,
) -> int:
    """Analyse ``capture``, write what was asked for, print the first screen; returns the exit code.

    Raises the TraceAnalyzeErrors of reading, analysing and writing.
    """
    parsed = [parse_gate(text) for text in gates]
    to_stdout = out == "-"
    chosen = stdout_format(formats) if to_stdout else None
    with Progress(enabled=not quiet) as progress:
        analysis = analyse_file(capture, options, cache=cache, progress=progress)
        results = check_gates(analysis, parsed)  # first: a mistyped key must not leave files behind
        written: list[Path] = []
        if chosen is None:
            folder = Path(out) if out else Path()
            for output_format in formats:
                progress.stage(f"writing {output_format}")
                written += write_output(
                    analysis, output_format, folder, stem_of(capture.name or capture.resolve().name)
                )
    if chosen is not None:
        sys.stdout.buffer.write(render(analysis, chosen))
        sys.stdout.flush()
        report_gates(results, stream_is_stdout=False)
    elif not quiet:
        from .terminal import print_screen

        print_screen(analysis, written=written, gates=results, color=color)
    else:
        report_gates([r for r in results if r.passed is not True], stream_is_stdout=False)
    code = exit_code(results)
    return 3 if analysis.status == "could_not_look" else code


def analyse_file(
    capture: Path,
    options: Options,
    *,
    cache: Path | None = None,
    progress: Progress | None = None,
    files: Sequence[Path] = (),
) -> Analysis:
    """Open and analyse one capture with progress; ``files`` of the folder ``capture`` where these are one run.

    Raises TraceAnalyzeErrors.
    """
    from ..analysis import analyze_options
    from ..analysis.memory import give_back
    from ..ingest import open_trace
    from ..ingest.ncu_trace import FORMATS as NCU_FORMATS

    stage = progress.stage if progress is not None else None
    if stage is not None:
        stage(f"reading {capture.name}")
    if files:
        from ..ingest.multi import open_run
        from ..ingest.run_files import pattern_name

        trace = open_run(files, pattern_name([file.name for file in files]), cache=cache, progress=stage)
    else:
        trace = open_trace(capture, cache=cache, progress=stage)
    if trace.capture.format in NCU_FORMATS:  # the launches of the Trace are those that were measured
        options = replace(options, ncu=(*options.ncu, capture))
    analysis = analyze_options(trace, options, progress=stage)
    give_back()
    return analysis


def check_gates(analysis: Analysis, gates: Sequence[Gate]) -> list[GateResult]:
    """Evaluate gates on the JSON form of the result."""
    if not gates:
        return []
    from .json_report import to_dict

    return evaluate_all(gates, to_dict(analysis))


def report_gates(results: Sequence[GateResult], *, stream_is_stdout: bool) -> None:
    """One line a gate."""
    for result in results:
        print(f"gate  {result.sentence}", file=sys.stdout if stream_is_stdout else sys.stderr)


def run_demo(out: Path, *, color: bool = True) -> int:
    """Simulate a serving run, analyse it without its truth file, and name the report."""
    from ..fixtures.demo import write_demo

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write {out}: {error.strerror or error}.") from error
    capture = write_demo(out / "trace-analyze-demo.sqlite")
    code = run_single(capture, Options(), out=str(out), color=color)
    if code not in (0, 1):
        raise CannotAnswerError("the demo could not be analysed; please report this.")
    return code
