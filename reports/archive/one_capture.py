"""What happens to one capture of an archive: its report and its row. Runs in a process of its own or on a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...analysis.records.errors import CannotAnswerError, TraceAnalyzeError
from ...analysis.records.options import Options
from .archive_row import ArchiveRow, analysed_row, refused_row
from .find_captures import Found


@dataclass(frozen=True)
class Task:
    """One capture to analyse and where its report goes."""

    found: Found
    report: Path
    options: Options
    gates: tuple[str, ...] = ()
    cache: Path | None = None


def analyse_capture(task: Task) -> ArchiveRow:
    """Analyse one capture, write its report whole, return its row. Never raises for a bad file.

    The row is the last thing that happens: where it exists, the report is there.
    """
    from ...analysis.compare import profile_json
    from ...analysis.gates import parse_gate
    from ...analysis.road import Capture, analyze_capture
    from ...ingest.run_of_files.open_run import NotOneRunError
    from ..commands.analyze_command import check_gates
    from ..outputs import render
    from ..whole_files import write_whole
    from .runs_in_files import NOT_ONE_RUN

    relative = task.found.relative
    content: str | None = None
    try:
        content = task.found.fingerprint()
        capture = Capture(task.found.path, task.found.files, None if task.found.files else content)
        analysis = analyze_capture(capture, task.options, cache=task.cache)
        gates = check_gates(analysis, [parse_gate(text) for text in task.gates])
        write_whole(task.report, render(analysis, "html"))
        report = f"{task.report.parent.name}/{task.report.name}"
        return analysed_row(relative, content, analysis, report, gates, profile_json(analysis))
    except CannotAnswerError as error:
        state = NOT_ONE_RUN if isinstance(error, NotOneRunError) else "could not look"
        return refused_row(relative, content, state, str(error))
    except TraceAnalyzeError as error:
        return refused_row(relative, content, "unreadable", str(error))
    except OSError as error:
        return refused_row(relative, content, "unreadable", f"cannot be read: {error.strerror or error}")
    except MemoryError:
        return refused_row(relative, content, "could not look", "not enough memory for this capture")
    except Exception as error:
        reason = f"internal error ({type(error).__name__}: {error}); this is a fault of the tool"
        return refused_row(relative, content, "could not look", reason)


def task_key(content: str, task: Task, options_digest: str) -> str:
    """What a finished row is kept under: content, tool version, options and the row's own name."""
    import hashlib

    from ...analysis.records.version import __version__

    parts = (content, __version__, options_digest, task.found.relative)
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()


def options_digest(options: Options, gates: Sequence[str]) -> str:
    """A digest of everything that shapes a row: the options, the gates, and the contents of the files they name."""
    import hashlib

    from ...analysis.option_files import options_digest as digest_of

    digest = hashlib.blake2b(digest_of(options).encode(), digest_size=16)
    digest.update(repr(tuple(gates)).encode())
    return digest.hexdigest()
