"""Nsight Systems reports (``.nsys-rep``, ``.qdrep``), through an installed ``nsys``.

The format is NVIDIA's own and only ``nsys`` opens it, so the report is exported to SQLite in a temporary folder and read
from there; with ``--cache DIR`` what was read is kept, so that the export happens once. Where ``nsys`` is missing the
error is the command to run where it is installed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ...analysis.records.errors import NotACaptureError
from ...analysis.records.trace import Trace
from .. import nsys
from ..other_programs import run_program, shell_name
from ..sniff import SQLITE_MAGIC
from ..temporary_copies import temporary_folder

FORMAT = "nsys_rep"
SUFFIXES = frozenset({".nsys-rep", ".qdrep"})
# Where NVIDIA's packages put the program when it is not on the PATH.
_PLACES = ("/opt/nvidia/nsight-systems*/**/bin/nsys", "/usr/local/cuda*/bin/nsys")
_WORDS_OF_NSYS = (b"NVIDIA Nsight Systems", b"QuadD")


def sniff(path: Path, head: bytes) -> bool:
    """Whether this is a report: told by words in its first bytes, or by its name where the bytes are no text."""
    if path.is_dir() or head.startswith(SQLITE_MAGIC):
        return False
    if any(words in head[:512] for words in _WORDS_OF_NSYS):
        return True
    return path.suffix.lower() in SUFFIXES and b"\x00" in head


def read(path: Path, *, progress: Callable[[str], None] | None = None) -> Trace:
    """Export the report with ``nsys`` and read the export.

    Raises NotACaptureError when ``nsys`` is not installed or cannot export the report.
    """
    program = find_nsys()
    if program is None:
        raise NotACaptureError(
            f"{path.name} is an Nsight Systems report, which only `nsys` can open, and `nsys` is not installed here. "
            f"Where it is, run: {export_command(path.name)}  and give {Path(path.name).stem}.sqlite."
        )
    with temporary_folder() as folder:
        exported = Path(folder) / f"{path.stem}.sqlite"
        _export(program, path, exported, progress)
        trace = nsys.read(exported, progress=progress)
    return replace(trace, capture=replace(trace.capture, source_name=path.name, format=FORMAT))


def export_command(name: str) -> str:
    """The command that exports the report ``name`` beside itself, for a shell."""
    return f"nsys export --type sqlite --output {shell_name(f'{Path(name).stem}.sqlite')} {shell_name(name)}"


def find_nsys() -> str | None:
    """The ``nsys`` on the PATH, else the newest of NVIDIA's usual places, else None."""
    found = shutil.which("nsys")
    if found:
        return found
    installed = sorted(str(place) for pattern in _PLACES for place in Path("/").glob(pattern.lstrip("/")))
    return installed[-1] if installed else None


def _export(program: str, report: Path, exported: Path, progress: Callable[[str], None] | None) -> None:
    def tell(seconds: float) -> None:
        if progress:
            size = exported.stat().st_size / 1e6 if exported.exists() else 0.0
            progress(f"nsys export: {size:,.0f} MB after {seconds:.0f} s")

    settings = ("--type", "sqlite", "--force-overwrite", "true")
    try:
        done = run_program(program, ["export", *settings, "--output", exported, report], while_running=tell)
    except OSError as error:
        raise NotACaptureError(f"{program} could not be run: {error.strerror or error}.") from error
    words = (done.output + done.errors).decode("utf-8", "replace").strip().splitlines()
    if done.code != 0 or not exported.exists():
        raise NotACaptureError(
            f"`nsys export` could not export {report.name} (exit {done.code}): "
            f"{words[-1] if words else 'it printed nothing'}. A report needs an nsys at least as new as the one that "
            f"wrote it. By hand: {export_command(report.name)}"
        )
