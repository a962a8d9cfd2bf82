"""The command line: arguments, exit codes and wiring. Everything heavy is imported where it is used."""

from __future__ import annotations

import errno
import gc
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .analysis.records.errors import TraceAnalyzeError, UsageError
from .analysis.records.version import __version__
from .reports.commands.analysis_flags import takes_analysis_options
from .reports.commands.command_ending import (
    StoppedError,
    discard_stdout,
    open_closed_streams,
    print_anything,
    reader_is_gone,
    say,
    signals_raise,
)

try:
    from typer._click.exceptions import ClickException  # releases of typer that carry click within themselves
except ImportError:
    from click import ClickException  # type: ignore[assignment]

if TYPE_CHECKING:
    from .analysis.records.options import Options

COMMANDS = ("batch", "compare", "gpus", "models", "markers", "demo", "doctor")
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FORMATS = ("html", "json", "md", "csv", "parquet", "perfetto", "svg", "png")
EPILOG = (
    "Other commands: batch PATH... (an archive of captures), compare BEFORE AFTER, doctor CAPTURE, demo, gpus, models, "
    "markers; each has its own --help. Exit codes: 0 analysed; 1 a gate failed or a regression; 2 usage, or not a "
    "capture; 3 readable, but the question could not be answered."
)

SETTINGS = {"help_option_names": ["-h", "--help"]}
# The bare form (no subcommand) is an app of its own, so that its help and errors read `trace-analyze CAPTURE`.
bare = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
app = typer.Typer(
    add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None, context_settings=SETTINGS
)

# Further options that several commands share; those of the analysis are in `analysis_flags`.
Gate = Annotated[
    list[str] | None,
    typer.Option("--gate", metavar="EXPR", help="e.g. 'decode_step_ms.p95 < 12'; exit 1 where it fails (repeatable)."),
]
Cache = Annotated[Path | None, typer.Option("--cache", metavar="DIR", help="Keep results here for a second look.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
NoColor = Annotated[bool, typer.Option("--no-color", help="No colour in the terminal.")]


@bare.command(epilog=EPILOG, context_settings=SETTINGS)
@takes_analysis_options()
def analyze_command(
    capture: Annotated[Path, typer.Argument(metavar="CAPTURE", help="Nsight Systems export, or another capture.")],
    *,
    options: Options,
    out: Annotated[
        str | None, typer.Option("-o", "--out", metavar="DIR", help="Folder for the outputs; '-' = stdout (JSON, md).")
    ] = None,
    formats: Annotated[str, typer.Option("--format", metavar="LIST", help=f"Of {','.join(FORMATS)}.")] = "html",
    gate: Gate = None,
    cache: Cache = None,
    quiet: Quiet = False,
    no_color: NoColor = False,
) -> None:
    """Say where GPU time goes in an LLM serving capture: prefill, decode, and the stalls between them.

    Prints one screen and writes one self-contained HTML report.
    """
    from .reports.commands.analyze_command import run_single

    code = run_single(
        capture,
        options,
        formats=parse_formats(formats),
        out=out,
        gates=tuple(gate or ()),
        cache=cache,
        quiet=quiet,
        color=not no_color,
    )
    raise typer.Exit(code)


@app.command("batch")
@takes_analysis_options()
def batch_command(  # noqa: PLR0913 (the options of the command)
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Captures, or folders that hold them.")],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="DIR", help="Folder of the archive's reports.")],
    jobs: Annotated[int | None, typer.Option("--jobs", metavar="N", min=1, help="Workers; default: all cores.")] = None,
    dask: Annotated[str | None, typer.Option("--dask", metavar="ADDRESS", help="Run on this Dask cluster.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Keep what an interrupted batch has finished.")] = False,
    label: Annotated[
        str | None, typer.Option("--label", metavar="PATTERN", help="Columns from paths: 'chunk={chunk}/bs={bs}'.")
    ] = None,
    *,
    options: Options,
    gate: Gate = None,
    cache: Cache = None,
    quiet: Quiet = False,
    no_color: NoColor = False,
) -> None:
    """Analyse every capture below the paths: one report and one row each, and an index of them all."""
    from .reports.archive import BatchRequest, run_batch

    if dask is not None and jobs is not None:
        raise UsageError("--jobs and --dask exclude each other: the Dask cluster decides its own workers.")
    request = BatchRequest(
        paths=tuple(paths), out=out, options=options, jobs=jobs, dask=dask, resume=resume, label=label,
        gates=tuple(gate or ()), cache=cache,
    )  # fmt: skip
    raise typer.Exit(run_batch(request, quiet=quiet, color=not no_color))


@app.command("compare")
@takes_analysis_options(without=("ncu", "step", "itl_target", "dmon", "dcgm"))
def compare_command(  # noqa: PLR0913 (the options of the command)
    captures: Annotated[
        list[Path], typer.Argument(metavar="BEFORE AFTER", help="Two captures, or one with --baseline.")
    ],
    baseline: Annotated[
        str | None, typer.Option("--baseline", metavar="NAME", help="A baseline stored in the archive -o DIR.")
    ] = None,
    min_change: Annotated[
        float, typer.Option("--min-change", metavar="PCT", min=0, help="Smallest change that counts.")
    ] = 3.0,
    out: Annotated[Path | None, typer.Option("-o", "--out", metavar="DIR", help="Folder for the outputs.")] = None,
    *,
    options: Options,
    gate: Gate = None,
    cache: Cache = None,
    quiet: Quiet = False,
    no_color: NoColor = False,
) -> None:
    """Say what changed between two captures, whether it is significant, and whether they can be compared at all."""
    from .reports.comparison import CompareRequest, run_compare

    request = CompareRequest(
        captures=tuple(captures), options=options, baseline=baseline,
        min_change_pct=min_change, out=out, gates=tuple(gate or ()), cache=cache,
    )  # fmt: skip
    raise typer.Exit(run_compare(request, quiet=quiet, color=not no_color))


@app.command("gpus")
def gpus_command() -> None:
    """List the GPUs with their ceilings, ridge, source and the names --gpu accepts."""
    from .reports.commands.listings import print_gpus

    print_gpus()


@app.command("models")
def models_command() -> None:
    """List the models that --model knows: parameters, KV bytes per token, ridge batch."""
    from .reports.commands.listings import print_models

    print_models()


@app.command("markers")
def markers_command() -> None:
    """List the NVTX grammars that are recognised, by engine, with an example each."""
    from .reports.commands.listings import print_markers

    print_markers()


@app.command("demo")
def demo_command(
    out: Annotated[Path, typer.Option("-o", "--out", metavar="DIR", help="Folder for capture and report.")] = Path(),
    no_color: NoColor = False,
) -> None:
    """Simulate a small serving run with known truth, analyse it and name the report."""
    from .reports.commands.analyze_command import run_demo

    raise typer.Exit(run_demo(out, color=not no_color))


@app.command("doctor")
def doctor_command(
    capture: Annotated[Path, typer.Argument(metavar="CAPTURE", help="Any capture.")],
    no_color: NoColor = False,
) -> None:
    """Say what a capture holds, what is missing for which question, and how to record it."""
    from .reports.commands.doctor_command import run_doctor

    raise typer.Exit(run_doctor(capture, color=not no_color))


def parse_formats(text: str) -> tuple[str, ...]:
    """The formats of ``--format``, in order, each once. Raises UsageError for an unknown one."""
    formats = tuple(dict.fromkeys(part.strip().lower() for part in text.split(",") if part.strip()))
    unknown = [name for name in formats if name not in FORMATS]
    if unknown or not formats:
        raise UsageError(f"--format: unknown {', '.join(unknown) or 'empty list'}; choose of {','.join(FORMATS)}.")
    return formats


def _refuse_misspelt_command(word: str) -> None:
    """Raise UsageError for a first word that is no file, looks like none and is nearly a command."""
    if word in COMMANDS or not word.isalpha() or Path(word).exists():
        return
    from difflib import get_close_matches

    near = get_close_matches(word.lower(), COMMANDS, n=1, cutoff=0.7)
    if near:
        raise UsageError(f"'{word}' is neither a file here nor a command; did you mean: trace-analyze {near[0]}")


def run(words: list[str]) -> int:
    """Run one command line. Raises what the command raises; returns the exit code."""
    if words == ["--version"]:
        print(f"trace-analyze {__version__}")
        return 0
    if words:
        _refuse_misspelt_command(words[0])
    chosen = typer.main.get_command(app if words and words[0] in COMMANDS else bare)
    try:
        # not chosen(...): that makes 1 of an interrupt and of a closed pipe
        with chosen.make_context("trace-analyze", words or ["--help"]) as context:
            chosen.invoke(context)
    except typer.Exit as stop:
        return stop.exit_code
    except ClickException as error:
        error.show()
        return error.exit_code
    return 0


def internal_error(error: Exception) -> str:
    """The sentence for a fault of the tool; raises it again under TRACE_ANALYZE_DEBUG=1."""
    if os.environ.get("TRACE_ANALYZE_DEBUG"):
        raise error
    return (
        f"internal error ({type(error).__name__}: {error}). This is a fault of the tool; TRACE_ANALYZE_DEBUG=1 "
        "shows where. The capture is unchanged and no partial output was left."
    )


def main(argv: list[str] | None = None) -> int:
    """Entry point. Returns the exit code; a user never sees a traceback (TRACE_ANALYZE_DEBUG=1 shows it)."""
    # polars' allocator would keep freed pages for ten seconds, longer than a run lasts; read when polars is imported
    os.environ.setdefault("_RJEM_MALLOC_CONF", "dirty_decay_ms:200,muzzy_decay_ms:0")
    open_closed_streams()
    print_anything()
    try:
        with signals_raise():
            code = run(sys.argv[1:] if argv is None else argv)
            sys.stdout.flush()
            return code
    except (KeyboardInterrupt, StoppedError) as stop:
        message = "interrupted; nothing partial was left behind."
        code = stop.exit_code if isinstance(stop, StoppedError) else 130
    except TraceAnalyzeError as error:
        message, code = str(error), error.exit_code
    except OSError as error:
        if isinstance(error, BrokenPipeError) and reader_is_gone():
            discard_stdout()  # the reader went away: that is its right, not an error of ours
            return 0
        if error.errno in DISK_FULL:
            message, code = f"cannot write the output: {error.strerror}.", 2
        else:
            message, code = internal_error(error), 2
    except MemoryError:
        message, code = "not enough memory for this capture; analyse a part of it with --window A:B.", 3
    except Exception as error:
        message, code = internal_error(error), 2
    say(message)
    return code


KEPT_BYTES = 1 << 28  # blocks up to this size stay with the process when freed
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h


def _spend_memory_once() -> None:
    """Settings of a process that analyses one capture and ends.

    glibc maps every large array anew and gives it back when it is freed, so each passing array of a million rows costs
    thousands of page faults: it had better keep them for the next (between stages they are given back all the same).
    Nothing of what is analysed is garbage that only the collector of cycles would find.
    """
    gc.disable()
    if sys.platform != "linux":
        return
    import ctypes

    try:
        tune = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another C library than glibc
        return
    tune(M_MMAP_THRESHOLD, KEPT_BYTES)
    tune(M_TRIM_THRESHOLD, KEPT_BYTES)


def entry() -> None:
    """The program: as ``main``, but leaves without taking a million rows apart, which takes a while and helps nobody."""
    helpers = sys.argv[1:2] and sys.argv[1] in COMMANDS  # a batch has helper processes, which end in the usual way
    if not helpers:
        _spend_memory_once()
    code = main()
    with suppress(OSError):  # what could not be printed has been said by now
        sys.stdout.flush()
        sys.stderr.flush()
    if helpers:
        discard_stdout()
        sys.exit(code)
    os._exit(code)


if __name__ == "__main__":
    entry()
