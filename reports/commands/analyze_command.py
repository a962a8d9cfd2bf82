"""One capture from file to answer: the screen on stdout, progress on stderr, the files that were asked for."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Sequence
from pathlib import Path

from ...analysis.gates import Gate, GateResult, evaluate_all, exit_code, parse_gate
from ...analysis.option_files import files_of_options
from ...analysis.records.analysis import Analysis
from ...analysis.records.errors import CannotAnswerError, UsageError
from ...analysis.records.inputs_read import forget_input, remember_inputs
from ...analysis.records.options import Options
from ..outputs import check_outputs, render, stdout_format, stem_of, write_output
from ..progress import Progress
from ..whole_files import produce_whole


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
    from ...analysis.road import Capture, analyze_capture

    parsed = [parse_gate(text) for text in gates]
    to_stdout = out == "-"
    chosen = stdout_format(formats) if to_stdout else None
    folder = Path(out or "")
    stem = stem_of(capture.name or capture.resolve().name)
    remember_inputs([capture, *files_of_options(options)])
    if chosen is None:
        check_outputs(formats, folder, stem)  # before the work, not after it
    with Progress(enabled=not quiet) as progress:
        analysis = analyze_capture(Capture(capture), options, cache=cache, progress=progress.stage)
        results = check_gates(analysis, parsed)  # first: a mistyped key must not leave files behind
        written: list[Path] = []
        if chosen is None:
            for output_format in formats:
                progress.stage(f"writing {output_format}")
                written += write_output(analysis, output_format, folder, stem)
    if chosen is not None:
        sys.stdout.buffer.write(render(analysis, chosen))
        sys.stdout.flush()
        report_gates(results, stream_is_stdout=False)
    elif not quiet:
        from ..terminal import print_screen

        print_screen(analysis, written=written, gates=results, color=color)
    else:
        report_gates([r for r in results if r.passed is not True], stream_is_stdout=False)
    code = exit_code(results)
    return 3 if analysis.status == "could_not_look" else code


def check_gates(analysis: Analysis, gates: Sequence[Gate]) -> list[GateResult]:
    """Evaluate gates on the JSON form of the result."""
    if not gates:
        return []
    from ..json_report import to_dict

    return evaluate_all(gates, to_dict(analysis))


def report_gates(results: Sequence[GateResult], *, stream_is_stdout: bool) -> None:
    """One line a gate."""
    for result in results:
        print(f"gate  {result.sentence}", file=sys.stdout if stream_is_stdout else sys.stderr)


def run_demo(out: Path, *, color: bool = True) -> int:
    """Simulate a serving run, analyse it without its truth file, and name the report."""
    from ...fixtures.demo import write_demo

    capture = out / "trace-analyze-demo.sqlite"
    try:
        produce_whole(capture, write_demo, ours=lambda _: True)  # its name says whose it is
    except sqlite3.Error as error:  # what SQLite says where a disk is full
        raise UsageError(f"cannot write {capture}: {error}. Choose another folder with -o DIR.") from error
    try:
        code = run_single(capture, Options(), out=str(out), color=color)
    finally:
        forget_input(capture)
    if code not in (0, 1):
        raise CannotAnswerError("the demo could not be analysed; please report this.")
    return code
