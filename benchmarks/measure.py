"""Wall time, CPU time and peak memory of a command, each in a process of its own."""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Run:
    """One finished command."""

    wall: float
    cpu: float
    peak_mib: float
    code: int
    output: str
    error: str


def run(
    command: Sequence[str | Path], *, timeout: float = 900, environment: dict[str, str] | None = None
) -> Run | None:
    """Run to the end, or None where it takes longer than ``timeout`` seconds."""
    variables = _environment(environment)
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as error:
        start = time.perf_counter()
        # some peers leave a folder where they are started
        process = subprocess.Popen(
            [str(word) for word in command], stdout=output, stderr=error, env=variables, cwd=tempfile.gettempdir()
        )
        while True:
            pid, status, used = os.wait4(process.pid, os.WNOHANG)
            wall = time.perf_counter() - start
            if pid:
                break
            if wall > timeout:
                process.kill()
                os.wait4(process.pid, 0)
                process.returncode = -9
                return None
            time.sleep(0.002 if wall < 5 else 0.02)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        error.seek(0)
        return Run(
            wall,
            used.ru_utime + used.ru_stime,
            used.ru_maxrss / 1024,
            process.returncode,
            output.read().decode(errors="replace"),
            error.read().decode(errors="replace"),
        )


@dataclass(frozen=True)
class TreeRun:
    """One finished command with its helpers' CPU time, the largest process and the most memory of all together."""

    wall: float
    cpu: float
    largest_mib: float
    together_mib: float
    code: int
    error: str


def run_tree(command: Sequence[str | Path]) -> TreeRun:
    """Run a command that works in processes of its own (Linux: looks at /proc ten times a second)."""
    helpers: dict[int, float] = {}
    largest = together = 0.0
    with tempfile.TemporaryFile() as error:
        start = time.perf_counter()
        words = [str(word) for word in command]
        process = subprocess.Popen(
            words, stdout=subprocess.DEVNULL, stderr=error, env=_environment(None), start_new_session=True
        )
        while True:
            pid, status, used = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            sizes = []
            for folder in Path("/proc").glob("[0-9]*"):
                facts = _lines(f"{folder}/stat")
                fields = facts[0].rpartition(")")[2].split() if facts else []
                if not fields or int(fields[3]) != process.pid:
                    continue
                sizes.append(int(fields[21]) * os.sysconf("SC_PAGE_SIZE") / 2**20)
                if int(fields[1]) == process.pid:  # the fork server: it collects the time of the workers it started
                    helpers[int(folder.name)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
            largest, together = max([largest, *sizes]), max(together, sum(sizes))
            time.sleep(0.1)
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        error.seek(0)
        cpu = used.ru_utime + used.ru_stime + sum(helpers.values())
        return TreeRun(wall, cpu, largest, together, process.returncode, error.read().decode(errors="replace"))


def _environment(more: dict[str, str] | None) -> dict[str, str]:
    # an installed package has its bytecode; without this an editable one would be compiled anew every time
    variables = {**os.environ, **(more or {})}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    variables.setdefault("PYTHONPYCACHEPREFIX", str(Path(tempfile.gettempdir()) / "trace-analyze-benchmarks-bytecode"))
    return variables


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def spread(values: Sequence[float], digits: int = 2) -> str:
    """The median, and between which values the others lie."""
    middle = f"{median(values):.{digits}f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def machine() -> str:
    """Cores, memory, processor and Python: what figures depend on."""
    import platform

    processor = next(
        (line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.machine(),
    )
    kib = next((int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    return (
        f"{os.cpu_count()} cores ({processor}), {kib / 2**20:.0f} GiB, {platform.system()}, "
        f"Python {platform.python_version()}"
    )


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
