"""Other tools that read Nsight Systems SQLite exports and can be installed from the package index.

They go into a virtual environment and a home folder of their own, in the benchmarks' folder. Each row says what its
command gives, since none gives the same: a command that only sums kernels by name is no match for one that finds causes.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Peer:
    """A tool: its packages, what the timed command gives, and the words after the program; {} is the capture."""

    name: str
    packages: tuple[str, ...]
    gives: str
    words: tuple[str, ...]
    prepare: str = ""


# nsys-ai looks for DuckDB's SQLite extension on the network first; this package brings it along, so that the peer
# runs at its best
SCANNER = "import duckdb_extensions; duckdb_extensions.import_extension('sqlite_scanner')"
PEERS = (
    Peer(
        "nsys-ai diagnose",
        ("nsys-ai", "duckdb==1.5.5", "duckdb-extensions", "duckdb-extension-sqlite-scanner"),
        "findings, no phases, no roofline",
        ("nsys-ai", "diagnose", "{}", "--format", "json"),
        SCANNER,
    ),
    Peer("nsys-tui summary", ("nsys-tui",), "kernel sums only", ("nsys-tui", "summary", "{}")),
)


def home(folder: Path) -> dict[str, str]:
    """The peers' environment variables."""
    return {"HOME": str(folder / "peers" / "home")}


def installed(folder: Path, peer: Peer) -> Path | None:
    """The folder of the peer's programs, installing it first where needed; None where that fails."""
    where = folder / "peers" / peer.packages[0]
    programs = where / "bin"
    ready = where / "ready"
    if not ready.exists():
        Path(home(folder)["HOME"]).mkdir(parents=True, exist_ok=True)
        try:
            subprocess.run([sys.executable, "-m", "venv", where], check=True)
            subprocess.run([programs / "pip", "install", "--quiet", *peer.packages], check=True)
            if peer.prepare:
                subprocess.run([programs / "python", "-c", peer.prepare], check=True, env=home(folder))
        except (OSError, subprocess.CalledProcessError):
            return None
        ready.touch()
    return programs


def version(programs: Path, peer: Peer) -> str:
    code = f"from importlib.metadata import version; print(version('{peer.packages[0]}'))"
    return subprocess.run([programs / "python", "-c", code], capture_output=True, text=True, check=True).stdout.strip()
