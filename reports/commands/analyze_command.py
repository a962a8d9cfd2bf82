"""One capture from file to answer: the screen on stdout, progress on stderr, the files that were asked for."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ...analysis.cache.options_digest import files_of_options
from ...analysis.gates import Gate, GateResult, evaluate_all, exit_code, parse_gate
from ...analysis.records.analysis import Analysis
from ...analysis.records.errors import CannotAnswerError, UsageError
from ...analysis.records.inputs_read import forget_input, remember_inputs
from ...analysis.records.options import Options
from ...analysis.records.trace import Trace
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
    parsed = [parse_gate(text) for text in gates]
    to_stdout = out == "-"
    chosen = stdout_format(formats) if to_stdout else None
    folder = Path(out or "")
    stem = stem_of(capture.name or capture.resolve().name)
    remember_inputs([capture, *files_of_options(options)])
    if chosen is None:
        check_outputs(formats, folder, stem)  # before the work, not after it
    with Progress(enabled=not quiet) as progress:
        analysis = analyse_file(capture, options, cache=cache, progress=progress)
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


def analyse_file(
    capture: Path,
    options: Options,
    *,
    cache: Path | None = None,
    progress: Progress | None = None,
    files: Sequence[Path] = (),
    content: str | None = None,
) -> Analysis:
    """Open and analyse one capture with progress; ``files`` of the folder ``capture`` where these are one run.

    ``content`` is the capture's fingerprint for the cache, where it is known. Raises TraceAnalyzeErrors.
    """
    from ...analysis.numeric.free_memory import give_back

    stage = progress.stage if progress is not None else None
    if stage is not None:
        stage(f"reading {capture.name}")
    look = _Look(capture, options, cache, stage, tuple(files))
    analysis = look.kept(cache, content) if cache is not None else look.analyse(look.read())
    give_back()
    return analysis


@dataclass(frozen=True)
class _Look:
    """One capture on the road from file to Analysis."""

    capture: Path
    options: Options
    cache: Path | None
    stage: Callable[[str], None] | None
    files: tuple[Path, ...]  # of one run, in the folder ``capture``

    def read(self, content: str | None = None) -> Trace:
        from ...ingest import open_trace

        if not self.files:
            return open_trace(self.capture, cache=self.cache, progress=self.stage, content=content)
        from ...ingest.run_of_files.open_run import open_run

        return open_run(self.files, self.run_name(), cache=self.cache, progress=self.stage)

    def run_name(self) -> str:
        from ...ingest.run_of_files.file_names import pattern_name

        return pattern_name([file.name for file in self.files])

    def analyse(self, trace: Trace) -> Analysis:
        from ...analysis.pipeline import analyze_options

        return analyze_options(trace, self.options_for(trace.capture.format), progress=self.stage)

    def options_for(self, input_format: str) -> Options:
        from ...ingest.ncu.launches_as_trace import FORMATS as NCU_FORMATS

        if input_format in NCU_FORMATS:  # the launches of the Trace are those that were measured
            return replace(self.options, ncu=(*self.options.ncu, self.capture))
        return self.options

    def kept(self, cache: Path, content: str | None) -> Analysis:
        """By way of what ``cache`` holds."""
        from ...analysis.cache.kept_analyses import Source, through_store
        from ...ingest import looks_like_capture, printable
        from ...ingest.cache.fingerprint import fingerprint, fingerprint_of_run
        from ...ingest.cache.kept_traces import through_cache
        from ...ingest.sniff import SQLITE_MAGIC, read_head

        try:
            if self.files:
                name, content = self.run_name(), fingerprint_of_run(self.files)
                read = partial(through_cache, Path(name), cache, self.read, content=content)
            elif read_head(self.capture).startswith(SQLITE_MAGIC) or looks_like_capture(self.capture):
                name, content = self.capture.name or self.capture.resolve().name, content or fingerprint(self.capture)
                read = partial(self.read, content)
            else:
                return self.analyse(self.read())  # which says what it is
        except OSError:
            return self.analyse(self.read())
        source = Source(content, printable(name), read, self.analyse, self.options_for)
        return through_store(cache, source, self.options)


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
